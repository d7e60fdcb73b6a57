"""The models inside the package: they load by name, and what is said of them is what evaluation gives."""

import json
import shutil
from pathlib import Path

import pytest

import rankfold
from rankfold import cli
from rankfold.training.run_dir import STARTER_NAMES, STARTERS
from tests.cli.test_language_models import as_json, said

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without anything of these names."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", STARTER_NAMES)
def test_the_stated_perplexity_is_that_of_the_lines(name: str, capsys: Captured) -> None:
    facts = json.loads((STARTERS / name / "facts.json").read_text())
    found = as_json(capsys, "evaluate", name, "--data", STARTERS / name / "lines.txt")
    assert found["tokens"] == facts["tokens"]
    assert found["perplexity"] == pytest.approx(facts["perplexity"], rel=1e-5)  # float32 sums on another processor


def test_the_stated_perplexity_is_below_that_of_n_grams() -> None:
    facts = json.loads((STARTERS / "starter" / "facts.json").read_text())
    assert facts["perplexity"] < min(facts["others"].values())


def test_together_they_are_small() -> None:
    assert sum(path.stat().st_size for path in STARTERS.rglob("*") if path.is_file()) < 5_000_000
    assert "Python Software Foundation" in (STARTERS / "starter" / "LICENSE-PYTHON.txt").read_text()


def test_every_command_knows_them(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "text.txt").write_text("return the name of the file .\n")
    (tmp_path / "toy.txt").write_text("every child saw a dog\n")
    assert rankfold.load("starter").config.num_states == 2048
    assert "2,048 states" in said(capsys, "states", "starter", "--top", "1")
    assert said(capsys, "tag", "starter", "text.txt").startswith("return/")
    assert "2,048 states" in said(capsys, "explain", "starter")
    assert said(capsys, "sample", "starter", "--num", "1")
    assert said(capsys, "predict", "starter", "return", "the")
    assert "(X " in said(capsys, "parse", "starter-grammar", "toy.txt")
    assert "NT-" in said(capsys, "symbols", "starter-grammar", "--top", "1")
    said(capsys, "report", "starter", "-o", "page.html")
    assert "The most used states" in Path("page.html").read_text()


def test_nothing_is_written_into_the_package(capsys: Captured) -> None:
    before = sorted(STARTERS.rglob("*"))
    assert cli.main(["report", "starter"]) == 2
    assert "name the page, -o FILE" in capsys.readouterr().err
    assert sorted(STARTERS.rglob("*")) == before
    assert not Path("starter").exists()


def test_a_folder_of_that_name_comes_first(capsys: Captured) -> None:
    Path("starter").mkdir()
    assert cli.main(["states", "starter"]) == 2
    assert "holds no model" in capsys.readouterr().err
    Path("starter").rmdir()
    shutil.copytree(STARTERS / "starter-grammar", "starter")
    assert rankfold.load("starter").config.family == "npcfg"
