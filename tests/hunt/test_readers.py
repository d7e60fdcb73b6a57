"""The guard around readers sees what a reader must not do, and mutations are functions of their generator."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.hunt import mutate, mutate_arrays
from tests.hunt.case_files import Files, bomb, packed, shorter, unpacked
from tests.hunt.kind import Case
from tests.hunt.reader_arrays import npy, npz
from tests.hunt.readers import Outcome, Reader
from tests.hunt.runner import deviation

BAD = {
    "KeyError": "{}['a']",
    "DataError without a file": "refuse('bad')",
    "a file beside": "(folder / 'b').write_text('x')",
    "a file changed": "(folder / 'a').write_text('y')",
    "a file lost": "(folder / 'a').unlink()",
    "a warning": "warnings.warn('x')",
    "memory": "bytearray(2**32)",
    "a hang": "next(x for x in iter(int, 1) if x)",
    "a wait": "__import__('time').sleep(60)",
    "a wrong value": "1",
}


class _Toy(Reader):
    """A reader that does what its file says."""

    name = "toy"
    limit = 0.5
    imports = """
import os, warnings
from rankfold.errors import DataError

def refuse(text):
    raise DataError(text)
"""
    expression = "eval((folder / 'a').read_text(), globals(), {'folder': folder})"

    def seeds(self) -> list[Files]:
        return [{"a": b"2"}]

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        return None if outcome.error or outcome.value == 2 else "other value"


def _case(text: str, **more: object) -> Case:
    return {"files": {"a": text}, "victim": "a", **more}


@pytest.mark.parametrize("what", BAD)
def test_the_guard_sees(what: str) -> None:
    assert deviation(_Toy(), _case(BAD[what])) is not None


@pytest.mark.parametrize("text", ["2", "refuse(f'{folder}/a is bad')"])
def test_the_guard_lets_pass(text: str) -> None:
    assert deviation(_Toy(), _case(text)) is None


def test_a_valid_file_must_not_be_refused() -> None:
    found = deviation(_Toy(), _case("refuse(f'{folder}/a')", untouched=True))
    assert found is not None
    assert found.what == "valid files refused"


def test_a_program_shows_the_case_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    exec(_Toy().program(_case("1 + 1")), {"__name__": "program"})
    assert capsys.readouterr().out == "2\n"


@pytest.mark.parametrize(
    "mutation",
    [
        lambda rng: mutate.bytes_of(rng, b"the cat 1 sat\non the mat\n", [b"a dog\n"]),
        lambda rng: mutate.json_bytes(rng, {"a": [1, 2.0, "x"], "b": {"c": None, "d": True}}, [{"e": 3}]),
        lambda rng: mutate.toml_bytes(rng, '[model]\nrank = 3\nname = "x"\n'),
        lambda rng: mutate_arrays.npy_bytes(rng, npy(np.ones((2, 3)))),
        lambda rng: mutate_arrays.npz_bytes(rng, npz(a=np.ones((2, 3)), b=np.arange(4)), [npz(c=np.arange(2))]),
    ],
)
def test_mutations_are_functions_of_their_generator(mutation: Callable[[Random], bytes]) -> None:
    first = [mutation(Random(seed)) for seed in range(300)]
    assert first == [mutation(Random(seed)) for seed in range(300)]
    assert len(set(first)) > 150
    assert all(unpacked(packed(data)) == data for data in first)


def test_shorter_files_come_down_to_single_bytes() -> None:
    data = b"aaaaXaaaaaaaaa"
    while smaller := next((other for other in shorter(data) if b"X" in other), None):
        data = smaller
    assert data == b"X"


def test_bombs_are_small_and_valid(tmp_path: Path) -> None:
    import gzip

    assert gzip.decompress(bomb("gz", 3)) == b"a" * 3 * 2**20
    (tmp_path / "a.npz").write_bytes(bomb("npz", 3))
    assert np.load(tmp_path / "a.npz")["features"].nbytes == 3 * 2**20
    assert len(bomb("npz", 64)) < 2**17
