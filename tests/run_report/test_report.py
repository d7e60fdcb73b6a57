"""The report of a run: what is on the page, that nothing on it can run or be fetched, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import rankfold
from rankfold import cli
from rankfold.errors import DataError
from rankfold.run_report import training, write
from rankfold.run_report.drawing import bars, learning_curve
from rankfold.run_report.page import MARK, escape
from rankfold.training import loop
from tests.cli.test_grammar_commands import saved
from tests.cli.test_language_models import as_json, said, save_model, write_corpus, write_recipe
from tests.cli.test_states import HEBREW, ODD

OLD = Path(__file__).parents[1] / "regression" / "saved_0_1"
Captured = pytest.CaptureFixture[str]


class Reader(HTMLParser):
    """The tags and the visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(path: Path) -> Reader:
    """A page, which must be self-contained: no script, no handler, no address of anything."""
    text = path.read_text(encoding="utf-8")
    found = Reader(text)
    assert MARK in text[:100]
    assert not {"script", "img", "iframe", "object", "embed", "link", "form", "a"} & {tag for tag, _ in found.tags}
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "srcdoc", "action")]
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    policy = [a["content"] for tag, a in found.tags if tag == "meta" and "http-equiv" in a]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    return found


@pytest.fixture
def trained(tmp_path: Path, capsys: Captured) -> Path:
    """A finished run on words that look like markup, and one from right to left."""
    data = write_corpus(tmp_path / "data")
    for split in ("train", "valid"):
        (data / f"{split}.txt").write_text("\n".join(f"the cat {word} ran" for word in ODD[:2]) + "\n")
    recipe = write_recipe(tmp_path / "tiny.toml")
    said(capsys, "train", "--recipe", recipe, "--data", data, "--out", tmp_path / "run")
    return tmp_path / "run"


def test_every_finished_run_has_a_report(trained: Path, capsys: Captured) -> None:
    page = read_page(trained / "report.html")
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    for shown in (f"{last['test_perplexity']:,.4g}", f"{last['best_valid_perplexity']:,.4g}", "Kneser-Ney", "unigram"):
        assert shown in page.text
    assert "<script>alert(1)</script>" in page.text  # as text
    assert HEBREW in page.text
    assert "6 states; use is the share of 10 positions of the validation text" in page.text
    assert "num_states" in page.text
    assert any(tag == "polyline" for tag, _ in page.tags)
    before = (trained / "report.html").read_bytes()
    assert said(capsys, "report", trained) == f"{trained / 'report.html'}\n"
    assert (trained / "report.html").read_bytes() == before
    assert as_json(capsys, "report", trained) == {"report": str(trained / "report.html")}


def test_one_sentence_and_training_from_python(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.toml")
    lines = ["the cat sat"]
    run = rankfold.train(recipe, {"train": lines, "valid": lines}, tmp_path / "run", quiet=True).run
    page = read_page(run / "report.html")
    assert "6 states" in page.text
    assert rankfold.train.__doc__ == loop.train.__doc__


def test_a_report_that_fails_harms_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def fail(run: Path) -> Path:
        raise RuntimeError("no room")

    monkeypatch.setattr(training, "write_report", fail)
    data, recipe = write_corpus(tmp_path / "data"), write_recipe(tmp_path / "tiny.toml")
    arguments = ["train", "--recipe", recipe, "--data", data, "--out", tmp_path / "run"]
    assert cli.main([*map(str, arguments)]) == 0
    assert "could not be written: no room" in capsys.readouterr().err
    assert not (tmp_path / "run" / "report.html").exists()


def test_data_that_are_gone_or_other_are_named(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "data").rename(tmp_path / "moved")
    said(capsys, "report", trained)
    page = read_page(trained / "report.html")
    assert "data: " in page.text
    assert "endless text of the model" in page.text
    said(capsys, "report", trained, "--data", tmp_path / "moved")
    assert "positions of the validation text" in read_page(trained / "report.html").text
    shutil.copytree(tmp_path / "moved", tmp_path / "data")
    (tmp_path / "data" / "train.txt").write_text("another text\n" * 3)
    said(capsys, "report", trained)
    assert "not the data of this run any more" in read_page(trained / "report.html").text


def test_only_a_report_is_written_over(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")
    assert cli.main(["report", str(trained), "-o", str(mine)]) == 2
    assert "mine.html" in capsys.readouterr().err
    assert mine.read_text() == "<p>mine</p>"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "report.html").write_text("mine")
    with pytest.raises(DataError, match=r"holds no run, but report\.html"):
        rankfold.train(tmp_path / "tiny.toml", tmp_path / "data", tmp_path / "new", quiet=True)
    assert (tmp_path / "new" / "report.html").read_text() == "mine"


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "holds no model" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "nothing")]) == 2


@pytest.mark.parametrize("name", sorted(path.parent.name for path in OLD.glob("*/recipe.toml")))
def test_saved_by_an_older_version(name: str, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(OLD / name, tmp_path / name)
    assert said(capsys, "report", tmp_path / name, "-o", tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    assert "rankfold" in page.text
    assert "could not be read; the reason" not in page.text


def test_a_model_of_a_version_to_come_is_named(tmp_path: Path, capsys: Captured) -> None:
    folder = save_model(tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"version": 99}))
    said(capsys, "report", folder)
    page = read_page(folder / "report.html")
    assert "format version 99, but this release reads 1" in page.text


def test_a_grammar_and_a_model_by_itself(tmp_path: Path, capsys: Captured) -> None:
    said(capsys, "report", saved(tmp_path / "grammar", "tnpcfg"))
    assert "sentences that the grammar makes" in read_page(tmp_path / "grammar" / "report.html").text
    said(capsys, "report", saved(tmp_path / "compound", "cpcfg"))
    assert "other rules for every sentence" in read_page(tmp_path / "compound" / "report.html").text
    said(capsys, "report", save_model(tmp_path / "nameless", named=False))
    assert "without a vocabulary" in read_page(tmp_path / "nameless" / "report.html").text


def test_the_curve_holds_every_point() -> None:
    metrics: list[dict[str, Any]] = [
        {"update": 0, "train_perplexity": 100.0},
        {"update": 50, "train_perplexity": 50.0, "valid_perplexity": 60.0},
        {"update": 100, "train_perplexity": 25.0, "valid_perplexity": 30.0},
    ]
    drawn = learning_curve(metrics, "perplexity", {"<b>": 40.0})
    assert drawn is not None
    assert "<b>" not in drawn
    assert "&lt;b&gt; 40.0" in drawn
    assert "validation (dots), on test (dashed)" in drawn
    (train, valid) = re.findall(r'points="([^"]*)"', drawn)
    points = [tuple(map(float, point.split(","))) for point in train.split()]
    xs, ys = zip(*points, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)  # halves are equal steps of a logarithm
    assert ys[0] < ys[1] < ys[2]  # downwards on a screen
    assert len(valid.split()) == drawn.count("<circle") == 2
    assert "best on validation 30" in drawn
    plain = learning_curve([{"update": 1, "valid_nats": -3.0}, {"update": 2, "valid_nats": -5.0}], "nats", {})
    assert plain is not None
    assert "nats per frame" in plain
    assert learning_curve([], "perplexity", {}) is None
    assert learning_curve([{"update": 1, "valid_perplexity": float("inf")}], "perplexity", {}) is None
    assert "&lt;i&gt;" in bars([("<i>", 0.0, "none", 0)], "told")


def test_text_is_escaped() -> None:
    assert escape("<a href='x'>\x1b&\x00") == "&lt;a href=&#x27;x&#x27;&gt;\\x1b&amp;\\x00"


def test_a_large_text_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [[0] * 10 for _ in range(100)]
    assert len(write._some(sentences, 200)) == 20
    assert write._some([[1, 2]], 1) == [[1, 2]]
    assert len(write._some(sentences, 10_000)) == 100
