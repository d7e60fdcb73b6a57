"""`python -m benchmarks.induce`: train a grammar by a recipe, judge it by gold trees, keep the small files of it.

    python -m benchmarks.induce --recipe rankpcfg-gum --data treebank/gum --trees treebank/gum.test.trees.txt.gz \
        --seeds 1 2 --out results

The training is that of `rankfold train`, the judgement that of `rankfold evaluate --trees --json`. A folder NAME-sSEED
each has recipe.toml, metrics.jsonl, environment.json and evaluation.json; models stay in --work. Interrupted once
(Ctrl-C, SIGTERM), a run ends after its update, and its best model so far is judged; twice, at once. Needs torch,
numpy and safetensors alone. `python -m benchmarks.results docs/results --add results` puts them on the page.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.induced import Induction, Job
from benchmarks.results.archive import EVALUATION
from rankfold.cli.evaluate import pairs
from rankfold.cli.evaluate_trees import read_gold
from rankfold.cli.train import INTERRUPTED, add_settings
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.models.grammar_config import GrammarConfig
from rankfold.training.config import Config
from rankfold.training.recipes import load_recipe
from rankfold.training.setup import signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and judge, seed by seed: 0, 130 if interrupted, 1 if a run broke off, 2 if something given is wrong."""
    given = _parser().parse_args(arguments)
    try:
        return run(given)
    except KeyboardInterrupt:
        print("benchmarks.induce: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (DataError, DomainError, ShapeError, UnsupportedError, OSError) as error:
        print(f"benchmarks.induce: {error}", file=sys.stderr)
        return 2


def run(given: argparse.Namespace) -> int:
    """What is wrong is found before the first update; after an interruption no further seed is begun."""
    job = Job(
        recipe=given.recipe,
        settings=tuple(given.settings),
        data=given.data,
        trees=tuple(given.trees),
        replaced=pairs(given.replace),
        device=given.device,
        curve=given.curve,
    )
    configs = {seed: _config(job, seed) for seed in given.seeds}
    name = given.name or Path(given.recipe).name.removesuffix(".toml")
    folders = {seed: given.out / f"{name}-s{seed}" for seed in given.seeds}
    for folder in folders.values():
        if (folder / EVALUATION).exists() or (folder.exists() and any(folder.iterdir())):
            raise DataError(f"{folder}: holds something already: give another --out or --name, or move it away.")
    gold, *_ = read_gold(job.trees, "test", configs[given.seeds[0]].data)
    status = 0
    with ExitStack() as stack:
        work = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="induce-")))
        for seed, config in configs.items():
            stop = Stop()
            induction = Induction(job, config, work / f"{name}-s{seed}", folders[seed], gold, stop)
            with signals(stop):
                end = induction.run()
            print(folders[seed])
            if end == "interrupted" or stop.asked:
                return INTERRUPTED
            status = max(status, int(end == "broken off"))
    return status


class Stop:
    """What a signal calls: before the first update it ends the run; after the last, the judgement is finished first."""

    def __init__(self) -> None:
        self.asked = False
        self.patient = False  # whether there is something to finish

    def __call__(self) -> bool:
        if self.asked or not self.patient:
            return True
        self.asked = True
        os.write(2, b"finishing the evaluation; once more to stop at once\n")
        return False


def _config(job: Job, seed: int) -> Config:
    device = [] if job.device is None else [f"train.device={job.device}"]
    config = load_recipe(job.recipe, [*job.settings, f"train.seed={seed}", *device])
    if not isinstance(config.model, GrammarConfig):
        raise UnsupportedError(
            f'{job.recipe} is of the family "{config.model.family}", but trees are asked of grammars alone.\n'
            "  Give a recipe of a grammar, such as small-rankpcfg."
        )
    return config


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.induce",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--recipe", required=True, metavar="NAME_OR_FILE")
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER/NAME", help="as of rankfold train")
    parser.add_argument("--trees", required=True, type=Path, nargs="+", metavar="FILE", help="gold trees")
    parser.add_argument("--replace", nargs="+", default=[], metavar="WORD=OTHER", help="words of the trees: %%=N")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="gets a folder NAME-sSEED a seed")
    parser.add_argument("--name", help="what the folders are called (default: as the recipe)")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keeps models and checkpoints (default: none)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--curve",
        type=int,
        default=0,
        metavar="K",
        help="judge the best model so far at every K-th validation, too, on a sample of trees; selects nothing",
    )
    add_settings(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
