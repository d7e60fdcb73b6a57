"""`rankfold explain`: what a gradient step costs, in every order it can be computed, before a long job starts.

And what training would do about memory: how batches are cut, or what would fit. Read next: `planning/cost.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rankfold.cli import explain_grammar
from rankfold.cli.explain_grammar import SUFFIX
from rankfold.cli.model_of import add_options, find_device, model_folder, recipe_path
from rankfold.cli.output import to_json
from rankfold.cli.train import add_settings
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models.catalog import AnyModel, sized_model
from rankfold.models.frame_config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.models.grammar_config import GrammarConfig
from rankfold.models.pretrained import load_any
from rankfold.numerics.precision import Precision
from rankfold.planning import Plan
from rankfold.training.config import Config
from rankfold.training.graphs import graphs_serve
from rankfold.training.memory import GIB, Text, available, fit, longest_sentence, need, sized
from rankfold.training.recipes import load_recipe, recipe_names

NUM_WORDS = 10_000
BATCH = 8  # sequences, where none are asked for
EXAMPLE = """\
example:
  rankfold explain small-lhmm
  rankfold explain small-lhmm --set model.num_states=65536 --device cuda --precision bf16 --set train.memory=80
  rankfold explain runs/small --batch 16 --length 64 --json
  rankfold explain rankpcfg-4500-9000-ptb --device cuda --batch 16 --length 40 --set train.memory=140
  rankfold explain g.fgg --length 40 --set N=30 --set P=60 --rank 16"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Print what a gradient step costs in every order it can be computed. Seconds are a lower bound: the slower of "
        "arithmetic and memory at fixed rates of a class of machine, without the time of calls. Of a grammar (a file "
        ".fgg): the multiply-adds of one sum, without its gradient, rule by rule, as written and in rank space."
    )
    parser.epilog = EXAMPLE
    parser.add_argument(
        "model", metavar="RUN_OR_RECIPE", help="the folder of a run or model, a recipe, or a grammar (a file .fgg)"
    )
    add_settings(parser)
    parser.add_argument(
        "--batch", type=int, help=f"sequences (default: {BATCH}; for a grammar {explain_grammar.BATCH} sentence)"
    )
    parser.add_argument("--length", type=int, default=32, help="tokens of each (default: 32)")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), help="of products (default: the recipe's)")
    parser.add_argument("--words", type=int, help=f"size of a recipe's vocabulary (default: {NUM_WORDS})")
    parser.add_argument("--rank", type=int, help="grammars: factors of states are taken as given by parts of this rank")
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the plans."""
    if arguments.model.endswith(SUFFIX):
        return explain_grammar.run(arguments)
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
    )
    print(to_json(result, indent=2) if arguments.json else _text(result))
    return 0


def find_model(name: str, settings: Sequence[str] = (), num_words: int | None = None) -> AnyModel | FrameModel:
    """The model of a run or folder, or one of a recipe's sizes whose parameters have no values."""
    if name in recipe_names() or not Path(name).is_dir():
        config = load_recipe(name, settings).model
        if isinstance(config, FrameConfig):
            return sized_frames(config, name)
        return sized(config, NUM_WORDS if num_words is None else num_words)
    if settings or num_words is not None:
        raise DataError(f"{name} is a model, whose sizes are fixed: --set and --words are for recipes.")
    return cast(AnyModel | FrameModel, load_any(model_folder(Path(name))))


def sized_frames(config: FrameConfig, name: str) -> FrameModel:
    """A model of frames for its sizes, without memory for its parameters."""
    if not config.num_features:
        raise DataError(
            f"{name} takes as many features as its recordings have, which are not known here.\n"
            "  Say how many: --set model.num_features=12."
        )
    model: FrameModel = sized_model(config, config.num_features)
    return model


def own_recipe(name: str, settings: Sequence[str] = ()) -> Config | None:
    """The recipe of that name, or that of a run; None for a model by itself."""
    if name in recipe_names() or not Path(name).is_dir():
        return load_recipe(name, settings)
    path = recipe_path(Path(name))
    return None if path is None else load_recipe(path)


def explain(
    model: AnyModel | FrameModel,
    *,
    batch: int = 8,
    length: int = 32,
    device: str = "cpu",
    precision: Precision | None = None,
    config: Config | None = None,
) -> dict[str, Any]:
    """The plans as plain data, the cheapest first; with a recipe, also how it would be trained here.

    The precision is the recipe's unless one is given; float32 without a recipe.
    """
    if batch < 1 or length < 1:
        raise DomainError(f"--batch is {batch} and --length {length}, but both must be at least 1.")
    precision = precision or (config.train.precision if config else "float32")
    plans = model.plan(batch, length, device, precision)
    order, words = "auto", 0
    if not isinstance(model, FrameModel):
        order, words = model.order(model.config.plan, batch, length, device, precision), model.num_words
    chosen = plans.in_order(order).order
    memory = available(device, config.train.memory if config else 0.0)
    return {
        "family": model.config.family,
        **_sizes(model),
        "num_words": words or None,
        "parameters": sum(x.numel() for x in model.parameters()),
        "batch": batch,
        "length": length,
        "device": device,
        "precision": precision,
        "memory_bytes": memory,
        "plans": [_record(plan, memory, chosen=plan.order == chosen) for plan in plans.ways],
        # How recordings are cut depends on them: `rankfold train` says so before its first update.
        "training": _training(config, precision, words, length, device, memory) if config and words else None,
    }


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


def _sizes(model: AnyModel | FrameModel) -> dict[str, int]:
    """The numbers of hidden values."""
    if isinstance(model.config, GrammarConfig):
        return {
            "num_nonterminals": model.config.num_nonterminals,
            "num_preterminals": model.config.num_preterminals,
            "rank": model.config.rank,
        }
    if isinstance(model.config, FrameConfig):
        return {"num_states": model.config.num_states, "num_features": model.config.num_features}
    return {"num_states": model.config.num_states}


def _size_text(result: dict[str, Any]) -> str:
    if "num_states" in result:
        return f"{result['num_states']:,} states"
    return f"{result['num_nonterminals']:,} nonterminals, {result['num_preterminals']:,} preterminals"


def _training(
    config: Config, precision: Precision, num_words: int, length: int, device: str, memory: int | None
) -> dict[str, Any]:
    """How the recipe's batches would be cut, of a text whose longest sentence has `length` tokens."""
    config = replace(config, train=replace(config.train, precision=precision))
    data, text = config.data, Text(num_words, length, length)
    tokens = data.batch_tokens(length)
    found: dict[str, Any] = {"batch_tokens": tokens, "least_bytes": need(config, text, device).total}
    if isinstance(config.model, GrammarConfig) and memory is not None:
        found["longest_sentence"] = longest_sentence(config, num_words, device, memory)
    try:
        room = fit(config, text, device, memory)
    except UnsupportedError as error:
        return {**found, "fits": False, "why_not": str(error)}
    part = room.part_tokens or tokens
    return {
        **found,
        "fits": None if memory is None else True,
        "part_tokens": part,
        "parts_of_a_batch": -(-tokens // part),
        "eval_tokens": room.eval_tokens or data.eval_tokens,
        "graphs": room.graphs and graphs_serve(config, device),
    }


def _text(result: dict[str, Any]) -> str:
    memory = result["memory_bytes"]
    held = f"{memory / GIB:,.3g} GiB" if memory else "unknown memory"
    frames = result.get("num_features")
    seen, tokens = (f"{frames:,} features", "frames") if frames else (f"{result['num_words']:,} words", "tokens")
    lines = [
        f"{result['family']}, {_size_text(result)}, {seen}, {result['parameters']:,} parameters",
        f"a gradient step of {result['batch']} sequences of {result['length']} {tokens} "
        f"on {result['device']} ({held}), {result['precision']}; * is the plan that is used",
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
    return "\n".join(lines + _training_lines(result["training"], known=bool(memory)))


def _training_lines(training: dict[str, Any] | None, *, known: bool) -> list[str]:
    """What a person should know before `rankfold train`."""
    if training is None:
        return []
    if training["fits"] is False:
        return ["", training["why_not"]]
    tokens, parts, least = training["batch_tokens"], training["parts_of_a_batch"], training["least_bytes"] / GIB
    how = "at once" if parts == 1 else f"in {parts} parts of at most {training['part_tokens']:,} tokens"
    if not known:
        how = "at once, if it fits (train.memory=GIB says into what)"
    graphs = ", as captured graphs" if training["graphs"] else ""
    longest = training.get("longest_sentence")
    return [
        "",
        f"training, with an optimiser: a batch of {tokens:,} tokens {how}{graphs}; evaluation by "
        f"{training['eval_tokens']:,} tokens; at least {least:.3g} GiB",
        *([f"a sentence may have up to {longest:,} words, trained by itself"] if longest else []),
    ]
