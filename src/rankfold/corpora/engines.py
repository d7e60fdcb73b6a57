"""Pieces in, results out, in the order of the pieces, by one of three engines; memory does not grow with their number.

A worker is a callable that has its model loaded and answers one piece; `Opener` makes one, in whichever process.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError, quantity

Kind = Literal["here", "processes", "ray"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RETRIES = 2


class Piece(Protocol):
    """Work for one worker at a time: some sentences, or some recordings."""

    @property
    def label(self) -> str:
        """Its name in an error: the file and lines, or the recordings."""
        ...


Worker = Callable[[Any], Any]
Opener = Callable[[], Worker]  # both go to other processes by pickle, but for the engine "here"
Source = Callable[[], Iterator[Any]]  # the pieces of one input, the same at every call


@dataclass(frozen=True)
class Engine:
    """Where pieces are answered.

    kind      "here": by this process. "processes": by others on this machine. "ray": by actors of Ray Data.
    workers   processes or actors; None: one for each CPU that this process, or the cluster of Ray, may use
    retries   how often a piece is tried again whose worker died or had no memory
    threads   of one product in a worker; None: the CPUs of this machine shared out
    gpus      whether a worker has a GPU: Ray places actors by it, processes take turns
    """

    kind: Kind = "here"
    workers: int | None = None
    retries: int = RETRIES
    threads: int | None = None
    gpus: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DomainError(f'engine is {self.kind!r}, but must be "here", "processes" or "ray".')
        if self.workers is not None and self.workers < 1:
            raise DomainError(f"workers is {self.workers}, but must be at least 1.")
        if self.workers is not None and self.kind == "here":
            raise DomainError(f'{quantity(self.workers, "worker")} of the engine "here", which is this process alone.')
        if self.retries < 0:
            raise DomainError(f"retries is {self.retries}, but must be at least 0.")
        if self.kind == "ray":
            expect_ray()


class Failed(NamedTuple):
    """The error that a piece, or the reading of pieces, ended in; it is raised when its turn comes."""

    label: str
    error: Exception
    passing: bool = False  # whether another try may succeed: no memory, a disk that did not answer

    @classmethod
    def of(cls, error: Exception, label: str) -> Failed:
        """The error, in a form that another process can read."""
        if isinstance(error, DataError | DomainError | ShapeError | UnsupportedError):  # the same at every try
            return cls(label, type(error)(str(error)))
        no_memory = isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "memory" in str(error).lower()
        )
        if no_memory or isinstance(error, OSError):
            what = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            hint = "\n  Take fewer workers, or give fewer long sentences." if no_memory else ""
            return cls(label, ChildProcessError(f"{label}: a worker failed: {what}{hint}"), passing=True)
        return cls(label, AssertionError("".join(traceback.format_exception(error))))  # ours: with all of its lines


def attempt(worker: Worker, piece: Any) -> Any:
    """The result of a piece, or the `Failed` that it ended in."""
    if isinstance(piece, Failed):
        return piece
    try:
        return worker(piece)
    except Exception as error:
        return Failed.of(error, piece.label)


def given_up(label: str, tries: int, how: str) -> ChildProcessError:
    """The error of a piece whose workers all died."""
    return ChildProcessError(
        f"{label}: the worker ended {quantity(tries, 'time')} at it ({how}).\n"
        "  If the machine has no memory left, take fewer workers. Files that are finished are kept."
    )


def readable(source: Source) -> Iterator[Any]:
    """The pieces of a source; an error while reading is its last."""
    try:
        yield from source()
    except OSError as error:
        yield Failed("the input", error)
    except Exception as error:
        yield Failed.of(error, "the input")


def run(engine: Engine, opener: Opener, sources: Sequence[Source]) -> Generator[Any, None, None]:
    """The results of all pieces of all sources, in their order, as they come; raises the first error in that order.

    With Ray a source is read where there is room, again where a machine is lost: it has to be a file that all machines
    see, or data that goes along.
    """
    if engine.kind == "here":
        worker = opener()
        for source in sources:
            yield from map(worker, source())
        return
    if engine.kind == "processes":
        from rankfold.corpora.processes import run_processes

        found = run_processes(engine, opener, (piece for source in sources for piece in readable(source)))
    else:
        from rankfold.corpora.ray_data import run_ray

        found = run_ray(engine, opener, sources)
    try:
        for result in found:
            if isinstance(result, Failed):
                raise result.error
            yield result
    finally:
        found.close()


def num_cpus() -> int:
    """The CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def expect_ray() -> Any:
    """The package ray; an error that names the extra if it is not installed."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UnsupportedError(
            f'the engine "ray" needs the package ray, which cannot be imported here ({error}).\n'
            "  pip install 'rankfold[ray]', or take the engine \"processes\", which needs nothing."
        ) from None
    return ray


def share_of(items: Iterable[Any]) -> Source:
    """A source of pieces that are in memory, or that come from an iterator, which is read once."""
    return _Held(items)


class _Held:
    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items

    def __call__(self) -> Iterator[Any]:
        return iter(self.items)
