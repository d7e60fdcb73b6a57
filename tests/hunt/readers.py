"""A reader of files as a kind of the hunt: valid files, damaged, must come back as a valid value or be refused by name.

Refused means one of rankfold's own errors that names the file. No other exception, no hang, no large allocation, no
stranger's warning, and no file beside it changed, made or lost.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import CodeType
from typing import Any
from unittest import mock

import numpy as np

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from tests.hunt import mutate
from tests.hunt.case_files import Files, is_plain, listed, packed, put, shorter, unpacked
from tests.hunt.kind import Case, Deviation, Kind, replay_program

OWN = (DataError, DomainError, ShapeError, UnsupportedError)
ROOM = 2**30  # bytes a reader may take beside what the process has
LARGE = 2**11  # MiB of a file that was packed to be small
_MADE: dict[str, list[Files]] = {}


@dataclass(frozen=True)
class Outcome:
    """What a reader did with a case."""

    value: Any = None
    error: Exception | None = None  # one of our own
    printed: str = ""


class Reader(Kind):
    """A reader: an expression of `folder` and `case`, the valid files it reads, and how they are damaged."""

    unit = "file"
    weight = 1 / 30  # there are many readers, and a minute of one process reads thousands of files
    imports = ""
    expression = ""
    written: tuple[str, ...] = ()  # folders that the reader may write into
    bombs: tuple[str, ...] = ()  # kinds of small files that hold much: see `bomb`
    said: tuple[str, ...] = ()  # how warnings of our own begin
    named = True  # whether every refusal names the folder

    def seeds(self) -> list[Files]:
        """Valid files by name; the first of them is damaged, or one of `victims`."""
        raise NotImplementedError

    def valid(self) -> list[Files]:
        """The seeds, made once in a process."""
        if self.name not in _MADE:
            _MADE[self.name] = self.seeds()
        return _MADE[self.name]

    def victims(self, files: Files) -> list[str]:
        """The files that are damaged."""
        return list(files)[:1]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        """A file, damaged."""
        return mutate.bytes_of(rng, data, others)

    def options(self, rng: Random) -> dict[str, Any]:
        """What else the expression reads from the case."""
        return {}

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        """What is wrong with a value that came, or with a refusal; `files` are those that are plain files."""
        return None

    def draw(self, rng: np.random.Generator) -> Case:
        own = Random(int(rng.integers(2**63)))
        seeds = self.valid()
        files = own.choice(seeds)
        name = own.choice(self.victims(files))
        content: dict[str, Any] = {key: packed(data) for key, data in files.items()}
        case: Case = {"files": content, "victim": name, **self.options(own)}
        what = own.random()
        if what < 0.03:
            case["untouched"] = True
        elif what < 0.07:
            content[name] = own.choice(({"folder": True}, {"fifo": True}, {"link": "nowhere"}, {"link": name}, None))
            if content[name] is None:
                del content[name]
        elif what < 0.073 and self.bombs:
            content[name] = {"bomb": own.choice(self.bombs), "mib": LARGE}
        else:
            others = [
                other[key] for other in seeds for key in other if key.rpartition(".")[2] == name.rpartition(".")[2]
            ]
            content[name] = packed(self.damaged(own, name, files[name], others))
        return case

    def check(self, case: Case) -> Deviation | None:
        with tempfile.TemporaryDirectory(prefix="hunt", dir=fast_folder()) as at:
            folder, scratch = Path(at) / "files", Path(at) / "scratch"
            scratch.mkdir()
            put(folder, case["files"])
            before = listed(folder, self.written)
            try:
                outcome = self._outcome(folder, case)
            except Foreign as error:
                return Deviation(*error.args)
            after = listed(folder, self.written)
            if before != after:
                names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
                return Deviation("files changed", f"{names} after {outcome}")
            if outcome.error is not None and case.get("untouched"):
                return Deviation("valid files refused", str(outcome.error))
            if outcome.error is not None and self.named and str(folder) not in str(outcome.error):
                return Deviation("no file named", f"{type(outcome.error).__name__}: {outcome.error}")
            plain = {name: unpacked(content) for name, content in case["files"].items() if is_plain(content)}
            wrong = self.wrong(outcome, plain, case, scratch)
            return None if wrong is None else Deviation(wrong.partition(":")[0], f"{wrong}\n{outcome}"[:2000])

    def _outcome(self, folder: Path, case: Case) -> Outcome:
        known = {"folder": folder, "case": case, **names_of(self.imports)}
        out = io.StringIO()
        with warnings.catch_warnings(record=True) as found, limited_memory(), quiet(case.get("input"), out):
            warnings.simplefilter("always")
            try:
                value = eval(code_of(self.expression), known)
                outcome = Outcome(value, printed=out.getvalue())
            except OWN as error:
                outcome = Outcome(error=error, printed=out.getvalue())
            except Exception as error:
                if type(error).__name__ == "HangingError":
                    raise
                raise Foreign(*foreign(error)) from None
        for warning in found:
            if warning.category is ResourceWarning:  # of whatever is collected meanwhile
                continue
            if not str(warning.message).startswith(self.said or ("\0",)):
                what = f"{warning.category.__name__} in {Path(warning.filename).name}"
                raise Foreign(f"warning: {what}", str(warning.message))
        return outcome

    def smaller(self, case: Case) -> Iterator[Case]:
        """The damaged file without parts of it."""
        name = case["victim"]
        content = case["files"].get(name)
        if not is_plain(content):
            return
        data = unpacked(content)
        for other in shorter(data):
            yield {**case, "files": {**case["files"], name: packed(other)}}

    def program(self, case: Case) -> str:
        if not all(map(is_plain, case["files"].values())):
            return replay_program(self.name, case)
        lines = ["import tempfile", "from pathlib import Path", "", *self.imports.strip().splitlines(), ""]
        rest = {key: value for key, value in case.items() if key not in ("files", "victim", "untouched")}
        lines += ["folder = Path(tempfile.mkdtemp())", f"case = {rest!r}"]
        for name, content in case["files"].items():
            lines.append(f"path = folder / {name!r}")
            lines.append("path.parent.mkdir(parents=True, exist_ok=True)")
            lines.append(f"path.write_bytes({unpacked(content)!r})")
        return "\n".join([*lines, f"print({self.expression})", ""])


class Command(Reader):
    """A command as a reader: exit 2 with a message that names a file is a refusal."""

    imports = "from rankfold.cli import main"

    def _outcome(self, folder: Path, case: Case) -> Outcome:
        said = io.StringIO()
        with mock.patch.object(sys, "stderr", said):
            outcome = super()._outcome(folder, case)
        if outcome.value == 0:
            return outcome
        text = said.getvalue()
        if "not enough memory" in text:
            raise Foreign("not enough memory", text)
        if outcome.value != 2:
            raise Foreign(f"exit {outcome.value}", text)
        return Outcome(error=DataError(text), printed=outcome.printed)


class Foreign(Exception):  # noqa: N818
    """A deviation on its way out."""


def foreign(error: Exception) -> tuple[str, str]:
    """What an exception that is not ours is called, by where in the library it came from, and all of it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "rankfold" in frame.filename] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].name}"
    return f"{type(error).__name__} in {place}", "".join(traceback.format_exception(error))[-3000:]


@cache
def names_of(imports: str) -> dict[str, Any]:
    """What a program's imports define."""
    known: dict[str, Any] = {}
    exec(imports, known)
    return known


@cache
def code_of(expression: str) -> CodeType:
    """The expression, compiled."""
    return compile(expression, "<reader>", "eval")


@cache
def fast_folder() -> str:
    """A folder in memory, where there is one."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK) else tempfile.gettempdir()


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """At most `ROOM` more bytes than now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def quiet(given: Any, out: io.StringIO) -> Iterator[None]:
    """Standard output into `out`; what is given is standard input."""
    stdin = io.TextIOWrapper(io.BytesIO(b"" if given is None else unpacked(given)))
    with mock.patch.object(sys, "stdin", stdin), contextlib.redirect_stdout(out):
        yield


def json_bytes(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """A JSON file, damaged as one or as bytes."""
    try:
        known = [json.loads(text) for text in (data, *others)]
    except (ValueError, RecursionError):  # damaged before
        known = []
    if not known or rng.random() < 0.2:
        return mutate.bytes_of(rng, data, others)
    return mutate.json_bytes(rng, known[0], known[1:])
