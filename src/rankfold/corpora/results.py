"""A folder of results, one file for each input, whole or absent; a second run skips what is finished.

job.json says which model was asked what; done.jsonl has a line for each result, with the checksums of input and result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rankfold.errors import DataError
from rankfold.files import expect_file, open_new, open_own, read_json, sync_folder, write_text
from rankfold.version import __version__

try:
    import fcntl
except ImportError:  # no such locks here: jobs go on without
    fcntl = None  # type: ignore[assignment]

FORMAT, VERSION = "rankfold-results", 1
JOB, DONE, LOCK = "job.json", "done.jsonl", "lock"


def digest_of(*paths: Path) -> str:
    """The SHA-256 of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        expect_file(path)
        with path.open("rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def model_digest(folder: Path) -> str:
    """A checksum of all files of a saved model."""
    kinds = {".json", ".safetensors"}
    return digest_of(*sorted(path for path in folder.iterdir() if path.suffix in kinds and path.is_file()))


class Results:
    """The results of one job in a folder that no other job writes into meanwhile; `close` releases it."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        """Make the folder, or go on in it; `DataError` if it is of another job."""
        self.folder = folder
        content = {"format": FORMAT, "version": VERSION, **job}
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder} is a file, but a folder for the results was expected: give another --out.")
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = _lock(folder)
        try:
            self._expect_same(content)
            self.done = _read_done(folder / DONE)
            if not (folder / JOB).exists():
                write_text(folder / JOB, json.dumps({**content, "rankfold": __version__}, indent=2) + "\n")
        except BaseException:
            self.close()
            raise

    def _expect_same(self, content: dict[str, Any]) -> None:
        path = self.folder / JOB
        if not path.exists():
            return
        found = read_json(path, "the job.json of a folder of results")
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise DataError(f"{path}: not the job of a folder of results.\n  Give another --out.")
        for key, value in content.items():
            if found.get(key) != value:
                was, now = (json.dumps(x)[:80] for x in (found.get(key), value))
                raise DataError(
                    f"{self.folder} holds results of another job: {key} is {was} there, but {now} here.\n"
                    "  Give another --out, or move the folder away."
                )

    def is_finished(self, source: Path, name: str) -> bool:
        """Whether the result of that name is there, and of this very input; `DataError` if the file is not ours."""
        path, records = self.folder / name, self.done.get(name, [])
        expect_file(source)
        if not os.path.lexists(path):
            return False
        if not records or path.is_symlink() or not path.is_file():
            raise DataError(f"{path} is in the way: no result of this job.\n  Move it away, or give another --out.")
        found = digest_of(path)
        if all(record["result"] != found for record in records):
            raise DataError(f"{path} was changed since it was written.\n  Move it away: it is computed again then.")
        last = records[-1]
        if last["result"] != found or last["bytes"] != source.stat().st_size:
            return False
        return bool(last["input"] == digest_of(source))

    def write(self, source: Path, name: str) -> ResultFile:
        """A new result of an input, under a temporary name until it is whole."""
        return ResultFile(self, source, name)

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ResultFile:
    """One result that is being written; `finish` names it, `drop` removes it."""

    def __init__(self, results: Results, source: Path, name: str) -> None:
        self.results, self.source, self.name = results, source, name
        self.before = _state(source)
        self.part = results.folder / f"{name}.part"
        self.stream = os.fdopen(open_new(self.part), "wb")
        self.digest = hashlib.sha256()

    def write(self, text: str) -> None:
        content = text.encode()
        self.digest.update(content)
        with self._named():
            self.stream.write(content)

    def finish(self) -> None:
        """Note the result, then give it its name: so a file of that name is never without its note."""
        with self._named():
            self.stream.flush()
            os.fsync(self.stream.fileno())
            self.stream.close()
        record = {
            "name": self.name,
            "bytes": self.source.stat().st_size,
            "input": digest_of(self.source),
            "result": self.digest.hexdigest(),
        }
        if _state(self.source) != self.before:
            raise DataError(f"{self.source}: changed while it was read.\n  Run the command again.")
        path = self.results.folder / self.name
        with self._named():
            _append(self.results.folder / DONE, json.dumps(record).encode() + b"\n")
            os.replace(self.part, path)
            sync_folder(path)
        self.results.done.setdefault(self.name, []).append(record)

    def drop(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):  # a full disk does not take the rest
            self.stream.close()
        with contextlib.suppress(OSError):
            self.part.unlink()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Where the disk takes no more, the error says of which result."""
        try:
            yield
        except OSError as error:
            text = (
                f"{self.results.folder / self.name} could not be written: {error.strerror}. Finished results are kept"
            )
            raise OSError(error.errno, text) from error


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _lock(folder: Path) -> int | None:
    if fcntl is None:
        return None
    descriptor = open_own(folder / LOCK, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataError(f"{folder}: another process writes results there.\n  Wait, or give another --out.") from None
    except OSError:  # a disk that keeps no locks
        pass
    return descriptor


def _append(path: Path, line: bytes) -> None:
    descriptor = open_own(path, os.O_RDWR | os.O_APPEND)
    with os.fdopen(descriptor, "ab") as stream:  # writes all of it, or raises
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # after one that a crash tore
        stream.write(line)
        stream.flush()
        os.fsync(descriptor)


def _read_done(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The notes of each result, the last one last; lines that a crash tore are passed over."""
    found: dict[str, list[dict[str, Any]]] = {}
    if not path.exists():
        return found
    expect_file(path)
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and {"name", "bytes", "input", "result"} <= record.keys():
                found.setdefault(str(record["name"]), []).append(record)
    return found
