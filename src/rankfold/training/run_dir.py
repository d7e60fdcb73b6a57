"""The folder of one run: one writer at a time, metrics that are only added to, and where it all ran.

The kernel frees the lock when the process ends, by whatever signal. A resumed run cuts its metrics back to the
checkpoint and keeps what it cut. `load` opens the best model of a run, or a model by itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.files import expect_file, open_own
from rankfold.models.base import Model
from rankfold.models.pretrained import DTYPES, load_any
from rankfold.training.distributed import join
from rankfold.version import __version__

try:
    import fcntl
except ImportError:  # no such locks here: runs go on without
    fcntl = None  # type: ignore[assignment]

CONFIG = "config.json"  # of a model
RECIPE, CHECKPOINT, METRICS = "recipe.toml", "checkpoint.safetensors", "metrics.jsonl"
REPORT = "report.html"
STARTERS, STARTER_NAMES = Path(__file__).parents[1] / "starters", ("starter", "starter-grammar")
# Where a checkpoint is in shards, and the one before it.
CHECKPOINTS = tuple(f"checkpoint{x}.safetensors{y}" for x in ("", "-before") for y in ("", ".index.json"))
LOST, LOCK, BEST, LOG, INIT = "metrics.lost.jsonl", "lock", "best", "log.txt", "init.json"
OTHERS = (
    REPORT,
    "data.json",
    "environment.json",
    "vocab.json",
    "frames.json",
    INIT,
    LOST,
    LOG,
    BEST,
    "tensorboard",
)  # a run's, too
# Disks, mostly of a network, that keep no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class RunDir:
    """A run's folder, held by this process until `close`; made by `create` or `open`, not by its constructor.

    Processes forked from this one hold the lock, too, until they end.
    """

    def __init__(self, path: Path, lock: int, made: Sequence[Path] = ()) -> None:
        self.path, self._made = path, made  # the folders made for it, the innermost first
        self._lock: int | None = lock
        self._metrics: int | None = None

    @classmethod
    def create(cls, path: str | Path) -> RunDir:
        """The folder of a new run, made if need be; `DataError` if there is a run in it, or it cannot be written."""
        path = Path(path)
        _expect_free(path)
        _expect_no_others(path)
        try:
            made = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise DataError(f"{path}: is a file, but a folder for the run was expected: give another --out.") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be made: {error.strerror}.\n  Give another --out.") from None
        try:
            run = cls(path, _lock(path), made)
        except DataError:
            if path.is_dir():
                raise
            return cls.create(path)  # a run that never began had made the folder, and removed it since
        try:
            _expect_free(path)  # again: another process may have had the lock a moment ago
        except DataError:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """The folder of a run that goes on; `DataError` if there is none in it."""
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path}: no such folder; the folder of a run was expected.")
        if not (path / RECIPE).is_file():
            raise DataError(
                f"{path}: holds no {RECIPE}, so there is no run to go on with.\n  Start one without --resume."
            )
        _expect_no_links(path)
        return cls(path, _lock(path))

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to the metrics; numbers that are not finite are written as Python reads them, NaN, Infinity."""
        line = json.dumps(dict(record)).encode() + b"\n"
        if self._metrics is None:
            self._metrics = self._open_metrics()
        size = self.metrics_size()
        try:
            _write(self._metrics, line)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path / METRICS, size)  # half a line would spoil the next one
            raise _failed(self.path / METRICS, error) from error

    def metrics_size(self) -> int:
        """Bytes of metrics so far: what a checkpoint notes, for `cut_metrics`."""
        try:
            return (self.path / METRICS).stat().st_size
        except FileNotFoundError:
            return 0

    def sync(self) -> None:
        """Return once the disk holds all metrics; before a checkpoint that counts on them."""
        if self._metrics is not None:
            try:
                os.fsync(self._metrics)
            except OSError as error:
                raise _failed(self.path / METRICS, error) from error

    def cut_metrics(self, size: int) -> int:
        """How many lines came after the first `size` bytes; they are moved to the end of `metrics.lost.jsonl`.

        They were written after the checkpoint, and the run is about to write them again; the last may be torn. If this
        is interrupted, lines may be in both files; they are never in none.
        """
        self._expect_open()
        path = self.path / METRICS
        if size < 0:
            raise DomainError(f"metrics are cut to {size} bytes, but a file has at least 0.")
        if self.metrics_size() < size:
            raise DataError(
                f"{path}: has {self.metrics_size():,} bytes, but {size:,} when the checkpoint was written.\n"
                "  It was changed since: put the earlier file back."
            )
        if not path.exists():
            return 0
        content = path.read_bytes()
        kept, lost = content[:size], content[size:]
        if kept and not kept.endswith(b"\n"):
            raise DataError(f"{path}: byte {size:,} is within a line, but the checkpoint was written after one.")
        if not lost:
            return 0
        whole = lost if lost.endswith(b"\n") else lost + b"\n"
        try:
            self._keep(LOST, whole)
            os.truncate(path, size)
        except OSError as error:
            raise _failed(path, error) from error
        return whole.count(b"\n")

    def note(self, text: str) -> None:
        """Add an event to the log, with the date: an error, or an extension; most runs have no log."""
        try:
            self._keep(LOG, f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n".encode())
        except OSError as error:
            raise _failed(self.path / LOG, error) from error

    def close(self) -> None:
        """Release the folder; one in which no run started is left as it was. A second call does nothing."""
        unused = self._lock is not None and _removed(self.path, self._lock)
        for descriptor in (self._metrics, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._metrics = self._lock = None
        with contextlib.suppress(OSError):  # another may be in them by now: folders that are not empty stay
            for folder in self._made if unused else ():
                folder.rmdir()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _expect_open(self) -> None:
        assert self._lock is not None, f"{self.path} was closed, and may be another's now"

    def _open_metrics(self) -> int:
        """A descriptor at the end of the metrics, which end in a whole line."""
        self._expect_open()
        path = self.path / METRICS
        if _is_torn(path):
            raise DataError(f"{path}: the last line is torn: a run that goes on calls cut_metrics first.")
        try:
            return open_own(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise _failed(path, error) from error

    def _keep(self, name: str, lines: bytes) -> None:
        """Add lines to a file; on disk before this returns, since the caller may remove them elsewhere."""
        path = self.path / name
        descriptor = open_own(path, os.O_RDWR | os.O_APPEND)
        start = b"\n" if _is_torn(path) else b""  # keeping them was interrupted before
        try:
            _write(descriptor, start + lines)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Onlooker(RunDir):
    """The folder of a run as the processes besides the first see it: they read, and write nothing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, record: Mapping[str, Any]) -> None:
        return

    def sync(self) -> None:
        return

    def cut_metrics(self, size: int) -> int:
        return 0

    def note(self, text: str) -> None:
        return

    def close(self) -> None:
        return


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a metrics file, in order; `DataError` with the line for one that is torn or no JSON object."""
    path = Path(path)
    expect_file(path, f"the {METRICS} of a run")
    try:
        with path.open("rb") as stream:
            lines = list(stream)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; metrics are the {METRICS} of a run.") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            shown = line[:60].decode(errors="backslashreplace").rstrip("\n")
            what = "is no JSON object" if line.endswith(b"\n") else "is torn, the run was killed while it wrote it"
            raise DataError(
                f"{path}: line {number} {what}: {shown!r}.\n  Going on with --resume moves torn lines away."
            )
        records.append(record)
    return records


def environment() -> dict[str, Any]:
    """Where and with what this process runs, in plain values: versions, machine, date, command line."""
    import numpy as np

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "rankfold": __version__,
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv),
    }


def _expect_free(path: Path) -> None:
    _expect_no_links(path)
    held = [name for name in (RECIPE, *CHECKPOINTS, METRICS) if os.path.lexists(path / name)]
    if held:
        raise DataError(
            f"{path}: already holds a run ({', '.join(held)}): go on with --resume, or give another --out.\n"
            "  In Python: resume=True, or another out."
        )


def _expect_no_others(path: Path) -> None:
    """Raise on files of somebody else that a run would write over; a run that was killed as it began left its lock."""
    lock = path / LOCK
    locked = lock.is_file() and lock.read_bytes()[:4] in (b"", b"pid ")
    held = [name for name in OTHERS if os.path.lexists(path / name)] + [LOCK] * lock.is_file()
    if held and not locked:
        raise DataError(f"{path}: holds no run, but {', '.join(held)}, left as they are.\n  Give another --out.")


def _expect_no_links(path: Path) -> None:
    """Raise on a link in place of a file that is added to or emptied: that would happen to another file."""
    for name in (LOCK, METRICS, LOST, LOG):
        if (path / name).is_symlink():
            raise DataError(f"{path / name}: is a link, but a run writes into files of its own folder: move it away.")


def _removed(folder: Path, descriptor: int) -> bool:
    """Whether there was nothing in the folder but the lock, which is gone then; only where it is surely ours."""
    with contextlib.suppress(OSError):
        if fcntl is not None and os.listdir(folder) == [LOCK] and _is_at(folder / LOCK, descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held already: fails where there are no locks
            (folder / LOCK).unlink()
            return True
    return False


def _lock(folder: Path) -> int:
    """A descriptor that holds the folder's lock for as long as it is open."""
    try:
        descriptor = open_own(folder / LOCK, os.O_RDWR)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}.\n  Give another folder.") from None
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(folder / LOCK, descriptor):  # who held it has removed it: others would lock another file
                os.close(descriptor)
                return _lock(folder)
        os.ftruncate(descriptor, 0)
        _write(descriptor, f"pid {os.getpid()} on {platform.node()}\n".encode())
    except BlockingIOError:
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise DataError(f"{folder}: in use by {holder}: wait until it ends, or give another folder.") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            os.close(descriptor)
            raise DataError(f"{folder}: cannot be locked: {error.strerror}.\n  Give another folder.") from None
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _write(descriptor: int, content: bytes) -> None:
    """Write all of it: a disk that is nearly full takes a part and raises at the next."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _is_torn(path: Path) -> bool:
    """Whether a file ends within a line."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 1, 0))
            return stream.read(1) not in (b"", b"\n")
    except FileNotFoundError:
        return False


def _failed(path: Path, error: OSError) -> OSError:
    return OSError(error.errno, f"{path} could not be written: {error.strerror}. Lines before are untouched")


def load(
    folder: str | Path, *, device: str = "cpu", dtype: str | torch.dtype | None = None, shards: int = 1
) -> Model[Any, Any]:
    """The best model of a run, or the model that `save_pretrained` wrote into a folder; of words or of frames.

    "starter", a language model, and "starter-grammar" are inside the package; a folder of that name comes first.
    `device`: "cpu", "cuda", "cuda:1", or "auto", a GPU if there is one. `dtype`: "float32", "float64"; None: as saved.
    `shards`: as many processes, which torchrun started, call this, and each gets its share of the states.
    """
    if dtype is not None and str(dtype).removeprefix("torch.") not in DTYPES:
        raise UnsupportedError(f"dtype is {dtype}, but models are of {' or '.join(DTYPES)}.")
    if shards > 1:
        join()
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_any(model_folder(Path(folder)), device=auto if device == "auto" else device, shards=shards)
    return model if dtype is None else model.to(getattr(torch, str(dtype).removeprefix("torch.")))


def is_starter(path: Path) -> bool:
    """Whether this is the name of a model inside the package, and no file or folder here has it."""
    return str(path) in STARTER_NAMES and not os.path.lexists(path)


def model_folder(path: Path) -> Path:
    """The folder that holds config.json: the path itself, or the best model of the run there.

    Where no such path exists, "starter" and "starter-grammar" are the models inside the package.
    """
    if is_starter(path):
        return STARTERS / path
    if not path.is_dir():
        what = "a file, but a folder" if path.exists() else "no such folder; the folder"
        raise DataError(f"{path}: {what} of a run or of a model was expected.")
    for folder in (path, path / BEST):
        if (folder / CONFIG).is_file():
            return folder
    if (path / RECIPE).is_file():
        raise DataError(
            f"{path}: the run has no model yet: {BEST}/ is written at its first evaluation.\n"
            "  Wait for it, or go on with the run: rankfold train --resume."
        )
    raise DataError(
        f"{path}: holds no model: neither {CONFIG} nor {BEST}/{CONFIG} is there.\n"
        "  Give the folder that rankfold train --out made, or one that save_pretrained wrote."
    )


def recipe_path(path: Path) -> Path | None:
    """The recipe of the run that a path names, or whose best model it names; None for a model by itself."""
    run = path.parent if model_folder(path) == path and path.name == BEST else path
    return run / RECIPE if (run / RECIPE).is_file() else None
