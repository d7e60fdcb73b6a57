"""`rankfold report`: write the report.html of a run again, or of a model by itself."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankfold.cli.load import add_model
from rankfold.cli.output import to_json
from rankfold.run_report.write import write_report

DESCRIPTION = (
    "Write a page of a run that browsers show, without network: learning curve, results next to n-grams, the most "
    "used states or symbols with their words, or segments with their durations, and all settings. Every finished run "
    "has one; this writes it again, as RUN/report.html. Data that have moved are named by --data; without them the "
    "page says what it lacks."
)
EXAMPLE = """\
example:
  rankfold report runs/small
  rankfold report runs/small --data ptb -o small.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the data of the run, if they have moved")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the page (default: RUN/report.html)")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print its name."""
    path = write_report(arguments.folder, arguments.out, data=arguments.data, device=arguments.device)
    print(to_json({"report": str(path)}) if arguments.json else path)
    return 0
