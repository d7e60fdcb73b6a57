"""`rankfold explain`: the cost of a gradient step, in every order it can be computed, before a long job starts.

Also how training would cut batches to fit memory, or what would fit. Of a grammar in a file: the cost of its sum as
written and in rank space.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rankfold.cli.load import BATCH, NUM_WORDS, add_options, find_device, find_model, own_recipe
from rankfold.cli.output import to_json
from rankfold.cli.train import add_settings
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.fgg import Grammar, read
from rankfold.fgg import explain as explain_sum
from rankfold.fgg.cost import compare
from rankfold.models.base import Model
from rankfold.models.config import ModelConfig, readers
from rankfold.models.sharded import messages, shard_of
from rankfold.numerics.precision import Precision
from rankfold.planning.cost import Plan
from rankfold.planning.measure import GIB, available
from rankfold.planning.messages import Message
from rankfold.training.config import Config
from rankfold.training.graphs import graphs_serve
from rankfold.training.memory_budget import DataSizes, fit, least_memory, longest_sentence

BATCH_OF_SUM = 1  # sentences of the sum of a grammar, where no number is given
SUFFIX = ".fgg"
SIZES = ("num_states", "num_nonterminals", "num_preterminals", "rank", "num_features")
DESCRIPTION = (
    "Print what a gradient step costs in every order it can be computed. Seconds are a lower bound: the slower of "
    "arithmetic and memory at fixed rates of a class of machine, without the time of calls. Of a grammar (a file "
    ".fgg): the multiply-adds of one sum, without its gradient, rule by rule, as written and in rank space."
)
EXAMPLE = """\
example:
  rankfold explain small-lhmm
  rankfold explain small-lhmm --set model.num_states=65536 --device cuda --precision bf16 --set train.memory=80
  rankfold explain small-lhmm --set model.num_states=1048576 --devices 8 --device cuda
  rankfold explain runs/small --batch 16 --length 64 --json
  rankfold explain rankpcfg-4500-9000-ptb --device cuda --batch 16 --length 40 --set train.memory=140
  rankfold explain g.fgg --length 40 --set N=30 --set P=60 --rank 16"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="RUN_OR_RECIPE", help="the folder of a run or model, a recipe, or a grammar (a file .fgg)"
    )
    add_settings(parser)
    parser.add_argument(
        "--batch", type=int, help=f"sequences (default: {BATCH}; for a grammar {BATCH_OF_SUM} sentence)"
    )
    parser.add_argument("--length", type=int, default=32, help="tokens of each (default: 32)")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), help="of products (default: the recipe's)")
    parser.add_argument("--words", type=int, help=f"size of a recipe's vocabulary (default: {NUM_WORDS})")
    parser.add_argument(
        "--devices", type=int, help="that share the states: what each computes, holds and sends (default: model.shards)"
    )
    parser.add_argument("--rank", type=int, help="grammars: factors of states are taken as given by parts of this rank")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plans."""
    if arguments.model.endswith(SUFFIX):
        return _run_grammar(arguments)
    if arguments.rank is not None:
        raise DataError(f"--rank is for grammars (files {SUFFIX}), but {arguments.model} is none.")
    model = find_model(arguments.model, arguments.settings, arguments.words)
    # A plan for a device needs none: jobs are often planned where there is no GPU.
    device = "cuda" if arguments.device == "cuda" else find_device(arguments.device)
    config = own_recipe(arguments.model, arguments.settings)
    result = explain(
        model,
        batch=BATCH if arguments.batch is None else arguments.batch,
        length=arguments.length,
        device=device,
        precision=arguments.precision,
        config=config,
        devices=arguments.devices,
    )
    print(to_json(result, indent=2) if arguments.json else _text(result))
    return 0


def _run_grammar(arguments: argparse.Namespace) -> int:
    """Print the comparison of a grammar's sums, or with --json its numbers."""
    for name in ("batch", "length", "rank"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise DomainError(f"--{name} is {value}, but must be at least 1.")
    g = sized_grammar(arguments.model, arguments.settings)
    options: dict[str, Any] = {"batch": arguments.batch or BATCH_OF_SUM, "rank": arguments.rank}
    if arguments.json:
        print(to_json(compare(g, arguments.length, **options), indent=2))
    else:
        print(explain_sum(g, arguments.length, **options))
    return 0


def sized_grammar(path: str, settings: Sequence[str]) -> Grammar:
    """The grammar of a file, with the sizes of domains that `--set N=30` gives."""
    sizes: dict[str, int] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if not value.strip().isdigit():
            raise DataError(f"--set {setting} is not a size of a domain; write --set N=30.")
        sizes[name.strip()] = int(value)
    return read(path).with_domains(sizes)


def explain(
    model: Model[Any, Any],
    *,
    batch: int = 8,
    length: int = 32,
    device: str = "cpu",
    precision: Precision | None = None,
    config: Config | None = None,
    devices: int | None = None,
) -> dict[str, Any]:
    """The plans as plain data, the cheapest first; with a recipe, also how it would be trained here.

    The precision is the recipe's unless one is given; float32 without a recipe. `devices`: of one of so many that share
    the states, with the messages it sends.
    """
    devices = model.config.shards if devices is None else devices
    if devices < 1:
        raise DomainError(f"--devices is {devices}, but must be at least 1.")
    if devices > 1:
        shard_of(model.config, 0, devices)  # raises for families and sizes that cannot be shared
    if config is not None and isinstance(config.model, ModelConfig):
        config = replace(config, model=replace(config.model, shards=devices))
    if batch < 1 or length < 1:
        raise DomainError(f"--batch is {batch} and --length {length}, but both must be at least 1.")
    precision = precision or (config.train.precision if config else "float32")
    shared: dict[str, Any] = {"devices": devices} if isinstance(model.config, ModelConfig) and devices > 1 else {}
    plans = model.plan(batch, length, device, precision, **shared)
    order = plans.in_order(model.order(model.config.plan, batch, length, device, precision)).order
    memory = available(device, config.train.memory if config else 0.0)
    return {
        "family": model.config.family,
        "size": model.config.size,
        **{
            name: getattr(model.config, name)
            for name in SIZES
            if hasattr(model.config, name) and readers(model.config, name) is None
        },
        "num_words": None if model.config.data == "recordings" else model.num_words,
        "parameters": model.num_parameters,
        "batch": batch,
        "length": length,
        "device": device,
        "devices": devices,
        "messages": [_sent(x) for x in messages(model, batch, length, devices)] if devices > 1 else [],
        "precision": precision,
        "memory_bytes": memory,
        "plans": [_record(plan, memory, chosen=plan.order == order) for plan in plans.ways],
        "training": _training(config, precision, model.num_words, length, device, memory) if config else None,
    }


def _sent(message: Message) -> dict[str, Any]:
    return {**message._asdict(), "bytes": message.bytes}


def _record(plan: Plan, memory: int | None, *, chosen: bool) -> dict[str, Any]:
    trained = plan.with_optimiser()
    return {
        "order": plan.order,
        "chosen": chosen,
        "multiply_adds": plan.multiply_adds,
        "parts": {part.name: part.multiply_adds for part in plan.parts},
        "seconds": {part.name: part.seconds(plan.rates) for part in plan.parts},
        "kernels": {part.name: part.kernel for part in plan.parts},
        "least_seconds": plan.seconds,
        "peak_bytes": plan.peak_bytes,
        "training_bytes": trained.peak_bytes,
        "largest_batch_tokens": None if memory is None else trained.largest_batch(memory),
    }


def _training(
    config: Config, precision: Precision, num_inputs: int, length: int, device: str, memory: int | None
) -> dict[str, Any]:
    """How the recipe's batches would be cut, of data whose longest sequence has `length` tokens."""
    config = replace(config, train=replace(config.train, precision=precision))
    data, sizes = config.data, DataSizes(num_inputs, length, length)
    tokens = data.batch_tokens(length)
    found: dict[str, Any] = {"batch_tokens": tokens, "least_bytes": least_memory(config, sizes, device).total}
    if config.model.data == "sentences" and memory is not None:
        found["longest_sentence"] = longest_sentence(config, num_inputs, device, memory)
    try:
        budget = fit(config, sizes, device, memory)
    except UnsupportedError as error:
        return {**found, "fits": False, "why_not": str(error)}
    part = budget.part_tokens or tokens
    return {
        **found,
        "fits": None if memory is None else True,
        "part_tokens": part,
        "parts_of_a_batch": -(-tokens // part),
        "eval_tokens": budget.eval_tokens or data.eval_tokens,
        "graphs": budget.graphs and graphs_serve(config, device),
    }


def _text(result: dict[str, Any]) -> str:
    memory = result["memory_bytes"]
    there_is = f"{memory / GIB:,.3g} GiB" if memory else "unknown memory"
    frames = result.get("num_features")
    seen, tokens = (f"{frames:,} features", "frames") if frames else (f"{result['num_words']:,} words", "tokens")
    lines = [
        f"{result['family']}, {result['size']}, {seen}, {result['parameters']:,} parameters",
        f"a gradient step of {result['batch']} sequences of {result['length']} {tokens} "
        f"on {result['device']} ({there_is}), {result['precision']}; * is the plan that is used",
        "",
        f"  {'plan':<24}{'multiply-adds':>20}{'seconds (at least)':>22}{'peak memory':>16}{'largest batch':>24}",
    ]
    for plan in result["plans"]:
        fits = plan["largest_batch_tokens"]
        lines.append(
            f"{'*' if plan['chosen'] else ' '} {plan['order']:<24}{plan['multiply_adds']:>20,}"
            f"{plan['least_seconds']:>22.4f}{plan['peak_bytes'] / 2**20:>12,.0f} MiB"
            f"{'unknown' if fits is None else f'{fits:,} {tokens}':>24}"
        )
        lines += [
            f"    {name:<22}{count:>20,}{plan['seconds'][name]:>22.6f}  by {plan['kernels'][name]}"
            for name, count in plan["parts"].items()
        ]
    lines += _message_lines(result)
    return "\n".join(lines + _training_lines(result["training"], tokens, known=bool(memory)))


def _message_lines(result: dict[str, Any]) -> list[str]:
    """What one of several devices holds and sends."""
    if not result["messages"]:
        return []
    total = sum(x["bytes"] for x in result["messages"])
    return [
        "",
        f"each of {result['devices']} devices has its share of the states, whose work and memory this is; a step sends "
        f"{total / 2**20:,.3g} MiB from each, no table among them",
        *(
            f"    {x['what']:<42}{x['numbers']:>14,} numbers {x['times']:>6,} times  by {x['collective']}"
            for x in result["messages"]
        ),
    ]


def _training_lines(training: dict[str, Any] | None, unit: str, *, known: bool) -> list[str]:
    """Lines to read before `rankfold train`."""
    if training is None:
        return []
    if training["fits"] is False:
        return ["", training["why_not"]]
    tokens, parts, least = training["batch_tokens"], training["parts_of_a_batch"], training["least_bytes"] / GIB
    how = "at once" if parts == 1 else f"in {parts} parts of at most {training['part_tokens']:,} {unit}"
    if not known:
        how = "at once, if it fits (train.memory=GIB says into what)"
    graphs = ", as captured graphs" if training["graphs"] else ""
    longest = training.get("longest_sentence")
    return [
        "",
        f"training, with an optimiser: a batch of {tokens:,} {unit} {how}{graphs}; evaluation by "
        f"{training['eval_tokens']:,} {unit}; at least {least:.3g} GiB",
        *([f"a sentence may have up to {longest:,} words, trained by itself"] if longest else []),
    ]
