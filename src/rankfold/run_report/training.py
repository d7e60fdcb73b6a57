"""`rankfold.train`: training whose finished runs get their report."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from rankfold.run_report.write import write_report
from rankfold.training.distributed import rank
from rankfold.training.loop import Result
from rankfold.training.loop import train as train_alone

Given = ParamSpec("Given")


def with_report(train: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function; a finished run has a report.html afterwards."""

    @functools.wraps(train)
    def train_and_report(*arguments: Given.args, **options: Given.kwargs) -> Result:
        result = train(*arguments, **options)
        if result.finished and rank() == 0:
            report_run(result.run)
        return result

    return train_and_report


def report_run(run: Path) -> Path | None:
    """Write the report of a run that has just finished; a failure is said on standard error and harms nothing."""
    try:
        return write_report(run)
    except Exception as error:  # whatever it is: the run itself is done and on disk
        print(f"the report of {run} could not be written: {error}", file=sys.stderr, flush=True)
        return None


train = with_report(train_alone)
