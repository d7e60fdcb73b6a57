"""Progress of a run, for a person: a bar on a terminal, plain lines elsewhere; TensorBoard on request.

Everything goes to standard error. rich is used where it is installed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rankfold.errors import UnsupportedError


class Reporter:
    """The default reporter of the loop: silent. Subclasses print."""

    def start(self, done: int, total: int) -> None:
        """The run is about to start, or to resume."""

    def say(self, line: str) -> None:
        """One line for a person."""

    def update(self, done: int, record: dict[str, Any]) -> None:
        """An update is done; `record` holds the latest metrics, empty if there are no new ones."""

    def close(self) -> None:
        """The run has ended."""


class Lines(Reporter):
    """One plain line for each new record."""

    def start(self, done: int, total: int) -> None:
        self.total = total

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal ends no run
            print(line, file=sys.stderr, flush=True)

    def update(self, done: int, record: dict[str, Any]) -> None:
        if record:
            self.say(f"update {done:,}/{self.total:,}  {summary(record)}")


class Bar(Lines):
    """A progress bar, with lines for evaluations above it."""

    def start(self, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().start(done, total)
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self.progress = Progress(*columns, console=Console(stderr=True))
        self.task = self.progress.add_task("", total=total, completed=done)
        self.progress.start()

    def say(self, line: str) -> None:
        if hasattr(self, "progress"):
            with contextlib.suppress(OSError):
                self.progress.console.print(line, highlight=False, markup=False)
        else:
            super().say(line)

    def update(self, done: int, record: dict[str, Any]) -> None:
        if any(name in record for name in ("valid_perplexity", "valid_nats")):
            self.say(f"update {done:,}/{self.total:,}  {summary(record)}")
        trained = any(name in record for name in ("train_perplexity", "train_nats"))
        description = summary(record) if trained else None
        with contextlib.suppress(OSError):
            self.progress.update(self.task, completed=done, description=description)

    def close(self) -> None:
        if hasattr(self, "progress"):
            with contextlib.suppress(OSError):
                self.progress.stop()
            del self.progress


def reporter() -> Reporter:
    """A bar in a terminal, and in a notebook that has ipywidgets, if rich is there; else lines."""
    needed = ("rich", "ipywidgets") if in_notebook() else ("rich",)
    if not (in_notebook() or sys.stderr.isatty()) or not all(map(find_spec, needed)):
        return Lines()
    return Bar()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def summary(record: dict[str, Any]) -> str:
    """The numbers of a record a person wants to see."""
    splits = ("train", "valid", "test")
    shown = [f"{split} {record[name]:.2f}" for split in splits if (name := f"{split}_perplexity") in record]
    shown += [f"{split} {record[name]:.4f} nats a frame" for split in splits if (name := f"{split}_nats") in record]
    if shown and record.get("bound"):
        shown.append("(bounds, of a perplexity that is lower)")
    if "lr" in record:
        shown.append(f"rate {record['lr']:.2e}")
    if record.get("best"):
        shown.append("best so far")
    return "  ".join(shown)


def tensorboard_writer() -> Callable[[Path, int], Any]:
    """A function that opens a TensorBoard writer in a run's folder, after so many updates; raises if not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UnsupportedError(
            "train.tensorboard is true, but TensorBoard is not installed.\n"
            "  pip install tensorboard, or set train.tensorboard=false: metrics.jsonl has the same numbers."
        ) from None
    return lambda folder, start: SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
