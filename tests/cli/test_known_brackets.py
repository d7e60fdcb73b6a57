"""`rankfold parse --brackets`: trees that have the known brackets, exactly the best of those; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rankfold.cli import main
from rankfold.data.known_brackets import log_spans, read_brackets
from rankfold.errors import DataError, DomainError
from rankfold.models import load_model
from rankfold.models.parsing import parse, parse_k_best
from tests.cli.test_grammar_commands import SENTENCES, Captured, saved

TEXT = "the dog saw a cat\n\na cat slept\ngo\n"
KNOWN = "1:4 2:4\n\n0:2\n\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "known").write_text(KNOWN)
    return saved(tmp_path / "model", "npcfg")


@pytest.mark.parametrize("options", [[], ["--decode", "viterbi"], ["--labels"]])
def test_trees_have_the_known_brackets(run: Path, tmp_path: Path, capsys: Captured, options: list[str]) -> None:
    files = [str(tmp_path / "text"), "--brackets", str(tmp_path / "known"), "--json"]
    assert main(["parse", str(run), *files, *options]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    spans = [{(i, j) for i, j, _ in record["spans"]} for record in records]
    assert spans[0] >= {(1, 4), (2, 4)}
    assert (0, 2) in spans[2]
    assert all(record["possible"] for record in records if len(record["words"]) > 1)


@pytest.mark.parametrize("family", ["npcfg", "rankpcfg"])
def test_the_best_tree_with_brackets_is_the_best_of_all_that_have_them(tmp_path: Path, family: str) -> None:
    model = load_model(saved(tmp_path / "model", family)).double()
    words, known = SENTENCES[0], [(1, 4)]
    every = parse_k_best(model, [words], 300)[0]
    having = [x for x in every if (1, 4) in {(span.start, span.end) for span in x.tree.spans()}]
    assert 0 < len(having) < len(every)
    (found,) = parse(model, [words], decode="viterbi", labels=True, brackets=[known])
    assert found.score == pytest.approx(having[0].score, rel=1e-10)
    assert str(found.tree) == str(having[0].tree)
    for one, two in zip(parse_k_best(model, [words], 5, brackets=[known])[0], having, strict=False):
        assert one.score == pytest.approx(two.score, rel=1e-10)


def test_posteriors_are_those_given_the_brackets(tmp_path: Path) -> None:
    """The brackets expected to be right, by the share of every tree among those that have the known ones."""
    model = load_model(saved(tmp_path / "model", "npcfg")).double()
    words, known = SENTENCES[1], (1, 3)
    every = [(x.score, {(s.start, s.end) for s in x.tree.spans()}) for x in parse_k_best(model, [words], 5000)[0]]
    having = [(torch.tensor(score, dtype=torch.float64).exp(), own) for score, own in every if known in own]
    z = sum(weight for weight, _ in having)
    (found,) = parse(model, [words], brackets=[[known]])
    chosen = {(s.start, s.end) for s in found.tree.spans()}
    expected = sum(float(weight / z) for weight, own in having for span in chosen if span in own)
    assert known in chosen
    assert found.score == pytest.approx(expected, rel=1e-8)


def test_known_brackets_from_python(run: Path) -> None:
    model = load_model(run)
    tree = model.parse("the dog saw a cat", brackets=[(1, 4)])
    assert tree is not None
    assert (1, 4) in {(span.start, span.end) for span in tree.spans()}
    both = model.parse(["the dog saw a cat", "", "a cat slept"], brackets=[[(0, 3)], [], [(1, 3)]])
    assert both[1] is None
    assert [(0, 3) in {(s.start, s.end) for s in both[0].spans()}, str(both[2]).count("(")] == [True, 5]
    with pytest.raises(DomainError, match="brackets are of 1 sentences, but there are 2"):
        model.parse(["a cat", "a dog"], brackets=[[]])
    with pytest.raises(DataError, match="sentence 1: brackets 0:2 and 1:3 cross"):
        model.parse("a cat slept", brackets=[(0, 2), (1, 3)])


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ("0:2 1:3\n\n\n\n", "known, line 1: brackets 0:2 and 1:3 cross, so no tree has both"),
        ("\n\n0:4\n\n", "known, line 3: bracket 0:4 is no span of 3 words"),
        ("\n\n2:1\n\n", "known, line 3: bracket 2:1 is no span of 3 words"),
        ("\n0-2\n\n\n", "known, line 2: '0-2' is no bracket; spans such as 0:2 were expected"),
        ("\n\n", "has 2 lines of brackets, but the text has more"),
        ("\n\n\n\n0:1\n", "has 5 lines of brackets, but the text has 4"),
    ],
)
def test_bad_brackets_name_file_and_line(run: Path, tmp_path: Path, capsys: Captured, known: str, message: str) -> None:
    (tmp_path / "known").write_text(known)
    assert main(["parse", str(run), str(tmp_path / "text"), "--brackets", str(tmp_path / "known")]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert not out


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is missing"):
        read_brackets(tmp_path / "nothing")


def test_spans_that_cross_have_no_weight() -> None:
    found = log_spans([[(1, 3)], []], 4, like=torch.zeros(1))
    crossing = {(i, j) for i in range(5) for j in range(i + 1, 5) if found[0, i, j] < 0}
    assert crossing == {(0, 2), (2, 4)}
    assert not found[1].any()
