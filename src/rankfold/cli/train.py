"""`rankfold train`: a recipe and a folder of text into a run, which can be interrupted and resumed."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.cli.load import device_name
from rankfold.cli.output import say, to_json
from rankfold.errors import DataError
from rankfold.models.config import readers
from rankfold.run_report.training import train
from rankfold.training import report
from rankfold.training.automatic import FOLDER, resolve
from rankfold.training.callbacks import LOGGERS
from rankfold.training.config import Config
from rankfold.training.distributed import expect_data, in_turn, joined, rank, restarted
from rankfold.training.loop import Result
from rankfold.training.recipes import recipe_groups
from rankfold.training.run_dir import RECIPE

INTERRUPTED = 130
DESCRIPTION = (
    "Train a model on a text, which is first cut into sentences, words and splits (as rankfold data prepare does), or "
    "on the train.txt of a folder; choose the best by valid.txt, and print the perplexity of test.txt. Without "
    "--recipe one is chosen for the data. A grammar may be given trees (.trees, .mrg), of which it reads the words "
    "alone; a model of frames recordings (.npy, .npz, .csv, .parquet, or a folder of them), and prints nats per frame. "
    "Ctrl-C writes a checkpoint, and --resume goes on from it as if nothing had happened."
)
EXAMPLE = """\
example:
  rankfold train --data book.txt --out runs/book
  rankfold train --recipe small-lhmm --data ptb --out runs/small
  rankfold train --recipe small-lhmm --set model.num_states=256 --set train.updates=100 --data ptb --out runs/tiny
  rankfold train --resume --data ptb --out runs/small
  rankfold train --resume --set train.updates=8000 --data ptb --out runs/small
  rankfold train --init-from runs/small --data letters --out runs/letters
  rankfold train --recipe small-tnpcfg --data treebank/gum --out runs/grammar
  rankfold train --recipe segment-hsmm --data recordings.npz --out runs/walks
  rankfold train --list"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipe", metavar="NAME_OR_FILE", help="a name from --list, or a TOML file (default: chosen by the data)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE_OR_DIR",
        help="a text, plain or .gz; or a folder with train.txt, valid.txt, test.txt; or FOLDER/NAME for NAME.train.txt "
        "and so on; or recordings",
    )
    parser.add_argument("--out", type=Path, metavar="RUN", help="folder of the run")
    add_settings(parser)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in --out, by its own recipe; --set train.updates=N extends it",
    )
    parser.add_argument(
        "--init-from", type=Path, metavar="RUN", help="start with the parameters and the vocabulary of a run or model"
    )
    parser.add_argument("--device", type=device_name, choices=("auto", "cpu", "cuda"), help="the setting train.device")
    parser.add_argument(
        "--log",
        action="append",
        choices=sorted(LOGGERS),
        default=[],
        help="log evaluations there, too; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="print the recipes to pick from, in groups")
    parser.add_argument("--all", action="store_true", help="with --list: the rows of the papers' tables as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The argument --set, which may be repeated."""
    parser.add_argument(
        "--set",
        dest="settings",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change the recipe, for instance model.rank=64; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train and print how it ended; 130 if it was interrupted."""
    if arguments.list:
        return _list(papers=arguments.all, as_json=arguments.json)
    if arguments.all:
        raise DataError("--all goes with --list: it shows the rows of the papers' tables as well.")
    if arguments.data is None and arguments.resume and arguments.out and (arguments.out / FOLDER).is_dir():
        arguments.data = arguments.out / FOLDER
    if arguments.data is None or arguments.out is None:
        raise DataError(
            "train needs --data DIR and --out RUN, DIR a folder or a file; rankfold train --help shows an example."
        )
    with joined():
        return _train(arguments)


def _train(arguments: argparse.Namespace) -> int:
    started = {"resume": arguments.resume, "init_from": arguments.init_from}
    if restarted(arguments.out, RECIPE):
        started = {"resume": True, "init_from": None}
    leads = rank() == 0
    told = report.reporter() if leads else report.Reporter()
    asked = (arguments.recipe, arguments.data, arguments.out, arguments.settings)
    expect_data(arguments.data)
    config, data = in_turn(lambda: resolve(*asked, told.say, device=arguments.device, **started))
    callbacks = [LOGGERS[name]() for name in dict.fromkeys(arguments.log)] if leads else []
    for line in unread_settings(arguments.settings, config) if leads else ():
        say(line)
    result = train(config, data, arguments.out, callbacks=callbacks, report=told, **started)
    if not leads:
        return 0 if result.finished else INTERRUPTED
    print(to_json(_record(result, config), indent=2) if arguments.json else _text(result, config))
    if result.finished:
        return 0
    again = shlex.join(["rankfold", "train", "--resume", "--data", str(arguments.data), "--out", str(arguments.out)])
    say(f"rankfold: interrupted; go on with: {again}")
    return INTERRUPTED


def unread_settings(settings: Sequence[str], config: Config) -> list[str]:
    """A line for each of the settings that the family does not read; recipes may hold some for other families."""
    given = dict.fromkeys(setting.partition("=")[0].strip() for setting in settings)
    found = {key: readers(config.model, key.removeprefix("model.")) for key in given if key.startswith("model.")}
    return [
        f"note: {key} is read by {', '.join(families)} alone: {config.model.family} has no use for it"
        for key, families in found.items()
        if families is not None
    ]


def _list(*, papers: bool, as_json: bool) -> int:
    groups = recipe_groups(papers=papers)
    if as_json:
        print(to_json({name: text for group in groups.values() for name, text in group.items()}, indent=2))
        return 0
    width = max(len(name) for group in groups.values() for name in group)
    for i, (group, described) in enumerate(groups.items()):
        print(f"{chr(10) if i else ''}{group}")
        print("\n".join(f"  {name:<{width}}  {text}" for name, text in described.items()))
    if not papers:
        say("\nrankfold train --list --all shows the rows of the papers' tables as well")
    return 0


def _record(result: Result, config: Config) -> dict[str, Any]:
    best, test, name = result.best_valid, result.test, config.model.measure.name
    counted = config.model.measure.unit
    return {
        "run": str(result.run),
        "updates": result.updates,
        "finished": result.finished,
        f"best_valid_{name}": best if math.isfinite(best) else None,
        f"test_{name}": None if test is None else test.value(config.model.measure),
        f"test_{counted}": None if test is None else test.tokens,
        "test_log_likelihood": None if test is None else test.log_likelihood,
        "seconds": result.seconds,
    }


def _text(result: Result, config: Config) -> str:
    best, test, measure = result.best_valid, result.test, config.model.measure
    title = "perplexity" if measure.of_words else "nats/frame"
    missing = ("no test.txt" if measure.of_words else "no test split") if result.finished else "not yet"
    counted = "tokens, " + ("words + sentences" if config.model.data == "sentences" else "<eos> counted")
    if not measure.of_words:
        counted = "frames"
    bound = "; bounds of lower ones" if test is not None and test.is_bound else ""
    return "\n".join(
        [
            f"run                {result.run}",
            f"updates            {result.updates:,}" + ("" if result.finished else " (interrupted)"),
            f"valid {title}   {f'{best:.3f} (best)' if math.isfinite(best) else 'none yet'}",
            f"test {title}    "
            + (f"{test.value(measure):.3f} over {test.tokens:,} {counted}{bound}" if test else missing),
            f"seconds            {result.seconds:,.1f}",
        ]
    )
