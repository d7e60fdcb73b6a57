"""`rankfold explain`: what a gradient step costs, in every order it can be computed, before a long job starts.

Read next: `planning.py`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rankfold.cli.model_of import add_options, find_device, model_folder, recipe_path
from rankfold.cli.output import to_json
from rankfold.cli.train import add_settings
from rankfold.data.clusters import uniform_clusters
from rankfold.errors import DataError, DomainError
from rankfold.models.catalog import AnyModel, build_model
from rankfold.models.config import ModelConfig
from rankfold.models.pretrained import load_model
from rankfold.numerics.precision import Precision
from rankfold.planning import Plan
from rankfold.training.recipes import load_recipe, recipe_names

NUM_WORDS = 10_000
EXAMPLE = """\
example:
  rankfold explain small-lhmm
  rankfold explain small-lhmm --set model.num_states=65536 --device cuda --precision bf16
  rankfold explain runs/small --batch 16 --length 64 --json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "explain",
        help="operations, memory and the largest batch, before a job starts",
        description=(
            "Print what a gradient step costs in every order it can be computed. Seconds are an estimate from fixed "
            "figures of a class of machine, not measured here."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="RUN_OR_RECIPE", help="the folder of a run or model, or a recipe")
    add_settings(parser)
    parser.add_argument("--batch", type=int, default=8, help="sequences (default: 8)")
    parser.add_argument("--length", type=int, default=32, help="tokens of each (default: 32)")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), help="of products (default: the recipe's)")
    parser.add_argument("--words", type=int, help=f"size of a recipe's vocabulary (default: {NUM_WORDS})")
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the plans."""
    model = find_model(arguments.model, arguments.settings, arguments.words)
    # A plan for a device needs none: jobs are often planned where there is no GPU.
    device = "cuda" if arguments.device == "cuda" else find_device(arguments.device)
    precision = arguments.precision or own_precision(arguments.model, arguments.settings)
    result = explain(model, batch=arguments.batch, length=arguments.length, device=device, precision=precision)
    print(to_json(result, indent=2) if arguments.json else _text(result))
    return 0


def find_model(name: str, settings: Sequence[str] = (), num_words: int | None = None) -> AnyModel:
    """The model of a run or folder, or one of a recipe's sizes whose parameters have no values."""
    if name in recipe_names() or not Path(name).is_dir():
        return of_sizes(load_recipe(name, settings).model, NUM_WORDS if num_words is None else num_words)
    if settings or num_words is not None:
        raise DataError(f"{name} is a model, whose sizes are fixed: --set and --words are for recipes.")
    return load_model(model_folder(Path(name)))


def own_precision(name: str, settings: Sequence[str] = ()) -> Precision:
    """The precision a recipe, or the recipe of a run, trains in; float32 for a model by itself."""
    if name in recipe_names() or not Path(name).is_dir():
        return load_recipe(name, settings).train.precision
    recipe = recipe_path(Path(name))
    return "float32" if recipe is None else load_recipe(recipe).train.precision


def of_sizes(config: ModelConfig, num_words: int) -> AnyModel:
    """A model for its sizes: without memory for its parameters where the family can be built so.

    Block models take clusters of equal size; those found in a text have a larger largest one.
    """
    clusters = uniform_clusters(num_words, config.num_clusters, seed=0) if config.family == "block" else None
    with torch.device("meta"):
        return build_model(config, num_words, clusters=clusters)


def explain(
    model: AnyModel, *, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32"
) -> dict[str, Any]:
    """The plans as plain data, the cheapest first."""
    if batch < 1 or length < 1:
        raise DomainError(f"--batch is {batch} and --length {length}, but both must be at least 1.")
    plans = model.plan(batch, length, device, precision)
    asked = model.config.plan if model.config.family == "rank" else "auto"
    chosen = plans.best.order if asked == "auto" else asked
    memory = _memory(device)
    return {
        "family": model.config.family,
        "num_states": model.config.num_states,
        "num_words": model.num_words,
        "parameters": sum(x.numel() for x in model.parameters()),
        "batch": batch,
        "length": length,
        "device": device,
        "precision": precision,
        "memory_bytes": memory,
        "plans": [_record(plan, memory, chosen=plan.order == chosen) for plan in plans.ways],
    }


def _record(plan: Plan, memory: int | None, *, chosen: bool) -> dict[str, Any]:
    return {
        "order": plan.order,
        "chosen": chosen,
        "multiply_adds": plan.multiply_adds,
        "parts": {part.name: part.multiply_adds for part in plan.parts},
        "estimated_seconds": plan.seconds,
        "peak_bytes": plan.peak_bytes,
        "largest_batch_tokens": None if memory is None else plan.largest_batch(memory),
    }


def _memory(device: str) -> int | None:
    """The bytes a device has in all; None where there is no such device, or it does not say."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")  # a container may have less than its machine
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(text)) if text.isdigit() else total


def _text(result: dict[str, Any]) -> str:
    memory = result["memory_bytes"]
    held = f"{memory / 2**30:,.1f} GiB" if memory else "unknown memory"
    lines = [
        f"{result['family']}, {result['num_states']:,} states, {result['num_words']:,} words, "
        f"{result['parameters']:,} parameters",
        f"a gradient step of {result['batch']} sequences of {result['length']} tokens "
        f"on {result['device']} ({held}), {result['precision']}; * is the plan that is used",
        "",
        f"  {'plan':<24}{'multiply-adds':>20}{'seconds (estimate)':>22}{'peak memory':>16}{'largest batch':>24}",
    ]
    for plan in result["plans"]:
        fits = plan["largest_batch_tokens"]
        lines.append(
            f"{'*' if plan['chosen'] else ' '} {plan['order']:<24}{plan['multiply_adds']:>20,}"
            f"{plan['estimated_seconds']:>22.4f}{plan['peak_bytes'] / 2**20:>12,.0f} MiB"
            f"{'unknown' if fits is None else f'{fits:,} tokens':>24}"
        )
        lines += [f"    {name:<22}{count:>20,}" for name, count in plan["parts"].items()]
    return "\n".join(lines)
