"""Actors of Ray Data: order, deaths, errors and bytes as of one process. Ray starts once for all: `make ray`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import rankfold
from rankfold.cli import main
from rankfold.corpora.engines import Engine, run
from rankfold.errors import DataError
from tests.cli.test_language_models import save_model
from tests.corpora.test_engines import until_error
from tests.corpora.workers import Square, numbers

ray = pytest.importorskip("ray", reason="corpora on clusters are an extra: pip install 'rankfold[ray]', or make ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of Ray's own code
]
LINES = ["the cat sat", "", "a dog", "the yak ran away", "  ", "the", "a cat saw the dog", "the dog ran"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_order_and_a_killed_actor(tmp_path: Path) -> None:
    fates = {30: "killed once", 35: "no memory once"}
    sources = [partial(numbers, 0, 20), partial(numbers, 20, 50, fates), partial(numbers, 50, 60, broken=True)]
    found, error = until_error(run(Engine("ray", 2), partial(Square, tmp_path), sources))
    assert found == [value**2 for value in range(60)]
    assert isinstance(error, DataError)
    assert "ends early" in str(error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["30", "35"]


def test_a_piece_that_kills_its_actors_is_named(tmp_path: Path) -> None:
    pieces = partial(numbers, 0, 4, {1: "killed"})
    found, error = until_error(run(Engine("ray", 1, retries=1), partial(Square, tmp_path), [pieces]))
    assert found == [0]
    assert isinstance(error, ChildProcessError)
    assert "number 1: the worker ended 2 times at it" in str(error)


def test_the_bytes_of_the_plain_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, texts, out = save_model(tmp_path / "model"), tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    (texts / "a.txt").write_text("".join(f"{line}\n" for line in LINES * 400))
    (texts / "b.txt").write_text("the dog\n")
    plain = {}
    for name in ("a.txt", "b.txt"):
        assert main(["score", str(model), str(texts / name), "--json", "--threads", "1"]) == 0
        plain[name] = capsys.readouterr().out
    engine = ["--engine", "ray", "--workers", "2", "--threads", "1", "--json"]
    assert main(["score", str(model), str(texts / "a.txt"), *engine]) == 0
    assert capsys.readouterr().out == plain["a.txt"]
    assert main(["score", str(model), str(texts), *engine, "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    for name, expected in plain.items():
        assert (out / f"{name}.score.jsonl").read_text() == expected
        assert json.loads(expected.splitlines()[0])["line"]


def test_map(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    truth = list(rankfold.map(LINES, model, "score"))
    assert list(rankfold.map(iter(LINES), model, "score", engine="ray", workers=1)) == truth
