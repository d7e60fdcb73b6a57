"""Engines: results in order, few pieces read ahead, workers that die replaced, errors at their place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankfold.corpora import engines, processes
from rankfold.corpora.engines import Engine, Failed, readable, run, share_of
from rankfold.errors import DataError, DomainError, UnsupportedError
from tests.corpora.workers import Number, Square, no_model, numbers


def until_error(found: Iterator[Any]) -> tuple[list[Any], Exception | None]:
    results: list[Any] = []
    try:
        results.extend(found)
    except Exception as error:
        return results, error
    return results, None


def test_this_process(tmp_path: Path) -> None:
    sources = [partial(numbers, 0, 3), partial(numbers, 3, 5)]
    assert list(run(Engine(), partial(Square, tmp_path), sources)) == [0, 1, 4, 9, 16]
    found, error = until_error(run(Engine(), partial(Square, tmp_path), [partial(numbers, 0, 3, {2: "wrong"})]))
    assert found == [0, 1]
    assert "number 2 is wrong" in str(error)


def test_order_and_deaths_in_two_processes(tmp_path: Path) -> None:
    """One worker is killed, one has no memory for a moment; results are those of one process, then the error."""
    fates = {5: "killed once", 9: "no memory once", 40: "wrong"}
    read = 0

    def counted() -> Iterator[Number]:
        nonlocal read
        for piece in numbers(0, 60, fates):
            read += 1
            yield piece

    ahead: list[int] = []

    def watched() -> Iterator[int]:
        for told, result in enumerate(run(Engine("processes", 2), partial(Square, tmp_path), [share_of(counted())])):
            ahead.append(read - told)
            yield result

    found, error = until_error(watched())
    assert isinstance(error, DataError)
    assert "number 40 is wrong" in str(error)
    assert max(ahead) <= 2 * processes.AHEAD
    assert found == [value**2 for value in range(40)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "9"]  # both did happen


def test_a_piece_that_kills_its_workers_is_named(tmp_path: Path) -> None:
    pieces = partial(numbers, 0, 4, {1: "killed"})
    found, error = until_error(run(Engine("processes", 1, retries=1), partial(Square, tmp_path), [pieces]))
    assert found == [0]
    assert isinstance(error, ChildProcessError)
    assert "number 1: the worker ended 2 times at it (signal SIGKILL)" in str(error)
    assert "fewer workers" in str(error)


def test_a_model_that_cannot_be_loaded() -> None:
    with pytest.raises(DataError, match="there is no model"):
        list(run(Engine("processes", 1), no_model, [partial(numbers, 0, 3)]))


def test_errors_go_to_other_processes() -> None:
    """Mistakes in the input stay what they are, lack of memory may pass, ours keep their lines."""
    wrong = engines.attempt(Square(Path()), Number(1, "wrong"))
    assert isinstance(wrong.error, DataError)
    assert not wrong.passing
    ours = engines.attempt(Square(Path()), Number(1, "ours"))
    assert isinstance(ours.error, AssertionError)
    assert "workers.py" in str(ours.error)
    assert Failed.of(RuntimeError("CUDA out of memory. Tried"), "x").passing
    assert "x: a worker failed: CUDA out of memory" in str(Failed.of(RuntimeError("CUDA out of memory."), "x").error)
    assert isinstance(Failed.of(RuntimeError("sizes differ"), "x").error, AssertionError)


def test_an_error_while_reading_is_the_last_piece() -> None:
    *pieces, last = readable(partial(numbers, 0, 2, broken=True))
    assert pieces == [Number(0), Number(1)]
    assert isinstance(last, Failed)
    assert "ends early" in str(last.error)
    assert engines.attempt(Square(Path()), last) is last


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "cluster"}, 'engine is \'cluster\', but must be "here", "processes" or "ray"'),
        ({"kind": "processes", "workers": 0}, "workers is 0, but must be at least 1"),
        ({"kind": "here", "workers": 2}, "this process alone"),
        ({"kind": "processes", "retries": -1}, "retries is -1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DomainError) as caught:
        Engine(**settings)
    assert words in str(caught.value)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'rankfold\[ray\]'"):
        Engine("ray")
