"""Every command on a grammar: parse, evaluate with trees, score, sample, explain; and what each refuses."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold import prefix
from rankfold.cli import main
from rankfold.cli.evaluate_trees import evaluate_trees
from rankfold.data.brackets import parse_tree, parse_trees
from rankfold.data.vocab import Vocabulary
from rankfold.errors import UnsupportedError
from rankfold.models import ModelConfig, build_model, load_model
from rankfold.models.config import GrammarConfig
from rankfold.models.parsing import parse

SENTENCES = [["the", "dog", "saw", "a", "cat"], ["a", "cat", "slept"], ["the", "cat", "saw", "the", "dog"], ["go"]]
TREES = """(S (NP (D the) (N dog)) (VP (V saw) (NP (D a) (N cat))))
(S (NP (D a) (N zebra)) (V slept))
(V go)
"""


def saved(folder: Path, family: Any = "rankpcfg", **options: Any) -> Path:
    sizes = {"num_nonterminals": 4, "num_preterminals": 5, "rank": 3, "dim": 6, "latent_dim": 2, "encoder_dim": 4}
    vocabulary = Vocabulary.build(SENTENCES, ends=False)
    model = build_model(GrammarConfig(family=family, **{**sizes, **options}), len(vocabulary), seed=1)
    model.vocabulary = vocabulary
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


def given(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("family", ["npcfg", "cpcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg"])
def test_every_line_gets_a_tree(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    run = saved(tmp_path / "model", family)
    given(monkeypatch, "the dog saw a cat\n\nhello\nthe cat slept\n")
    assert main(["parse", str(run)]) == 0
    out, err = capsys.readouterr()
    first, empty, one, last = out.split("\n")[:4]
    for line, words in ((first, "the dog saw a cat"), (last, "the cat slept")):
        tree = parse_tree(line)
        assert tree.is_binary
        assert tree.words == words.split()
        assert {node.label for node in tree.nodes()} == {"X", "T"}
    assert (empty, one) == ("", "(T hello)")
    assert "1 empty line stays empty" in err
    assert "1 line of one word, which this grammar does not generate" in err
    assert "hello (1)" in err


@pytest.mark.parametrize(
    "order", [["RUN", "FILE", "--labels"], ["RUN", "--labels", "FILE"], ["--labels", "RUN", "FILE"]]
)
def test_options_stand_anywhere(order: list[str], run: Path, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the dog saw a cat\n")
    assert main(["parse", *({"RUN": str(run), "FILE": str(path)}.get(x, x) for x in order)]) == 0
    assert parse_tree(capsys.readouterr().out).label.startswith("NT-")


@pytest.mark.parametrize("family", ["npcfg", "cpcfg", "rankpcfg"])
@pytest.mark.parametrize("decode", ["mbr", "viterbi"])
def test_one_word_of_a_grammar_that_makes_them(decode: Any, family: str, tmp_path: Path) -> None:
    """Its symbol, and by viterbi the probability of the two."""
    model = load_model(saved(tmp_path / "model", family, single_words=True))
    sentences = [["dog"], ["a", "cat"], ["dog"]]
    one, two, again = parse(model, sentences, decode=decode, labels=True)  # type: ignore[arg-type]
    assert one == again
    assert one.possible
    assert re.fullmatch(r"\(T-\d dog\)", str(one.tree))
    assert two.tree.words == ["a", "cat"]
    assert str(parse(model, sentences, decode=decode)[0].tree) == "(T dog)"  # type: ignore[arg-type]
    if decode == "viterbi" and family != "cpcfg":
        assert model.vocabulary is not None
        batch = model.batch(torch.tensor([model.vocabulary.encode(["dog"])]))  # type: ignore[operator]
        p = model.tree_potentials(batch, labels=True)  # type: ignore[operator, union-attr]
        joint = (p.log_root_leaf + p.log_leaf[0, 0]).detach()
        assert one.score == pytest.approx(float(joint.max()), rel=1e-5)
        assert str(one.tree) == f"(T-{int(joint.argmax())} dog)"


def test_one_word_of_a_grammar_that_makes_none(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    given(monkeypatch, "dog\n")
    assert main(["parse", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["possible"] is False


def test_labels_are_the_symbols(run: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "text.txt").write_text("the dog saw a cat\n")
    for decode in ("mbr", "viterbi"):
        assert main(["parse", str(run), str(tmp_path / "text.txt"), "--labels", "--decode", decode]) == 0
        tree = parse_tree(capsys.readouterr().out)
        spans = {node.label for node in tree.nodes() if not node.is_tag}
        tags = {node.label for node in tree.nodes() if node.is_tag}
        assert spans <= {f"NT-{k}" for k in range(4)}
        assert tags <= {f"T-{k}" for k in range(5)}


def test_viterbi_is_the_most_probable_tree(run: Path) -> None:
    """Its score is at most the sentence's log-probability, and at least that of any sampled tree's part of it."""
    from rankfold.models import load_model

    model = load_model(run)
    words = ["the", "dog", "saw", "a", "cat"]
    (found,) = parse(model, [words], decode="viterbi")
    total = float(model.log_likelihood(model.batch(torch.tensor([model.vocabulary.encode(words)]))).detach())  # type: ignore[union-attr]
    assert found.score is not None
    assert found.score < total
    assert found.score > total - math.log(14 * 4**4 * 5**5)  # trees of five words, times labels


def test_a_picture_and_a_tree_for_the_eye(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    given(monkeypatch, "\nthe dog saw a cat\na cat slept\n")
    picture = tmp_path / "pictures" / "tree.svg"
    assert main(["parse", str(run), "-", "--pretty", "--draw", str(picture), "--line", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("\nX\n")
    assert "line 3" in err
    assert all(f">{word}<" in picture.read_text() for word in ("a", "cat", "slept"))
    assert ">dog<" not in picture.read_text()


def test_brackets_in_words_are_refused_or_escaped(run: Path, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a cat\na ( cat) slept\n")
    assert main(["parse", str(run), str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "text.txt, line 2: word 2 is '('" in err
    assert "--escape" in err
    assert main(["parse", str(run), str(path), "--escape"]) == 0
    trees = [parse_tree(line) for line in capsys.readouterr().out.splitlines()]
    assert [tree.words for tree in trees] == [["a", "cat"], ["a", "-LRB-", "cat-RRB-", "slept"]]


def test_parse_as_json(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    given(monkeypatch, "a cat slept\n\n")
    assert main(["parse", str(run), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["words"] == ["a", "cat", "slept"]
    assert parse_tree(first["tree"]).words == first["words"]
    assert first["spans"][0] == [0, 3, "X"]
    assert 1.0 <= first["score"] <= 2.0  # brackets to be expected, of two; the whole sentence is certain
    assert second == {"line": 2, "words": [], "tree": None, "spans": [], "possible": None, "score": None}


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a cat\nthe (dog slept\n", [], r"standard input, line 2: word 2 is '(dog'"),
        ("a cat\n", ["--draw", "x.png"], "a name in .svg was expected"),
        ("a cat\n", ["--line", "1"], "there is no --draw"),
        ("a cat\n", ["--draw", "x.svg", "--line", "2"], "--line is 2, but standard input has lines 1 to 1"),
        ("a cat\n\n", ["--draw", "x.svg", "--line", "2"], "that line is empty"),
        ("\n", ["--draw", "x.svg"], "standard input: 1 line, empty"),
        ("", [], "standard input: empty"),
        ("\ufeffa cat\n", [], "standard input, line 1: starts with a byte order mark"),
        ("", ["gold.trees"], "rankfold evaluate"),
        ("the cat\n\na <eos> c\n", [], "standard input, line 3: word 2 is <eos>"),
    ],
)
def test_what_parse_refuses(
    run: Path, text: str, options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    given(monkeypatch, text)
    assert main(["parse", str(run), *options]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""


def test_long_sentences_never_fail(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    given(monkeypatch, "\n".join(" ".join(["the", "dog"] * n) for n in (100, 1, 65)) + "\n")
    assert main(["parse", str(run)]) == 0
    assert [len(tree.words) for tree in parse_trees(capsys.readouterr().out)] == [200, 2, 130]


def test_brackets_against_gold_ones(run: Path, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "gold.trees"
    path.write_text(TREES)
    found = evaluate_trees(run, [path])
    err = capsys.readouterr().err
    assert "left out: 1 sentence of one word" in err
    assert "zebra (1)" in err
    assert (found["trees"], found["words"], found["tokens"], found["unknown_words"]) == (2, 8, 10, 1)
    assert found["left_out"] == {"sentences_of_one_word": 1}
    scores = found["scores"]
    assert set(scores) == {"mbr", "right-branching", "left-branching", "random", "best binary"}
    assert scores["best binary"]["uf1"]["sentence"] == 1.0
    # Right-branching: of (the dog) (saw a cat) (a cat) it has the last two, with dog saw a cat; of (a zebra) none.
    assert scores["right-branching"]["uf1"]["sentence"] == pytest.approx((2 / 3 + 0) / 2)
    assert scores["left-branching"]["uf1"]["sentence"] == pytest.approx((1 / 3 + 1) / 2)
    assert found["denominator"].startswith("words + sentences")
    assert found["perplexity"] == pytest.approx(math.exp(-found["log_likelihood"] / 10))


def test_the_evaluation_for_a_person_and_two_files(run: Path, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "gold.trees"
    path.write_text(TREES)
    assert main(["evaluate", str(run), "--trees", str(path), str(path), "--replace", "zebra=dog"]) == 0
    out, err = capsys.readouterr()
    assert "4 of 16 words, 0 unknown" in out
    assert "right-branching" in out
    assert "sentence, kim" in out
    assert "zebra" not in err


def test_trees_must_have_the_words_of_the_text(run: Path, tmp_path: Path, capsys: Captured) -> None:
    trees, text = tmp_path / "gold.trees", tmp_path / "text.txt"
    trees.write_text(TREES)
    text.write_text("the dog saw a cat\n\na zebra sleeps\ngo\n")
    assert main(["evaluate", str(run), "--trees", str(trees), "--data", str(text)]) == 2
    err = capsys.readouterr().err
    assert f"{text}: 1 empty line, no sentence" in err
    line = 1 + TREES.splitlines().index("(S (NP (D a) (N zebra)) (V slept))")
    assert f"and {text}: sentence 2 ({trees}, line {line}): word 3 is 'slept' in the tree, but 's" in err


def test_a_tree_that_no_memory_holds_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """By its file and line: trees before it are of one word, or of none, and in another file."""
    first, second = tmp_path / "a.trees", tmp_path / "b.trees"
    first.write_text(TREES)
    second.write_text("(UH yes)\n(S (-NONE- *))\n(S (A a) (B b))\n(S" + " (D the)" * 300 + ")\n")
    monkeypatch.setattr("rankfold.models.strings.available", lambda _: 2**20)
    assert main(["evaluate", str(run), "--trees", str(first), str(second)]) == 2
    assert f"{second}, line 4: a sentence of 300 words needs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("(S (A a) (B b)\n", "gold.trees, line 1: the tree that starts here never ends"),
        ("(S (A a) (B b)))\n", "gold.trees, line 1: a closing bracket too many"),
        ("(S (A a) (B b(c))\n", "line 1: a bracket inside a word"),
        ("(S (A))\n", "line 1: the constituent 'A' holds no words"),
        ("", "the file holds no tree"),
        ("(A a)\n", "every tree is of one word"),
    ],
)
def test_bad_trees(run: Path, tmp_path: Path, content: str, words: str, capsys: Captured) -> None:
    (tmp_path / "gold.trees").write_text(content)
    assert main(["evaluate", str(run), "--trees", str(tmp_path / "gold.trees")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("pair", ["zebra", "=dog", "zebra="])
def test_a_replacement_that_is_none(run: Path, pair: str, capsys: Captured) -> None:
    assert main(["evaluate", str(run), "--trees", "x.trees", "--replace", pair]) == 2
    assert "WORD=OTHER was expected" in capsys.readouterr().err


def test_the_perplexity_of_a_text(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    (tmp_path / "text.txt").write_text("the dog slept\ngo\na cat saw the dog\n")
    assert main(["evaluate", str(run), "--data", str(tmp_path / "text.txt"), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["tokens"], found["sentences"], found["left_out"]) == (10, 2, 1)
    assert "left out: 1 sentence of one word" in err
    assert found["largest_log_difference"] < 1e-5
    given(monkeypatch, "the dog slept\n\ngo\na cat saw the dog\n")
    assert main(["evaluate", str(run), "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**found, "empty_lines": 1}


def test_scores_and_single_words(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    given(monkeypatch, "the dog slept\ngo\n")
    assert main(["score", str(run)]) == 0
    out, err = capsys.readouterr()
    assert math.isfinite(float(out.splitlines()[0].split("\t")[0]))
    assert out.splitlines()[1] == "-inf\tgo"
    assert "1 line of one word: this grammar gives none a probability" in err
    other = saved(tmp_path / "other", single_words=True)
    given(monkeypatch, "go\n")
    assert main(["score", str(other)]) == 0
    assert math.isfinite(float(capsys.readouterr().out.split("\t")[0]))
    given(monkeypatch, "go\n")
    assert main(["score", str(other), "--no-eos"]) == 2
    assert "--no-eos is for models of sequences" in capsys.readouterr().err


def test_bounds_are_called_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    run = saved(tmp_path / "model", "cpcfg")
    given(monkeypatch, "the dog slept\n")
    assert main(["score", str(run)]) == 0
    assert "lower bounds" in capsys.readouterr().err
    (tmp_path / "gold.trees").write_text(TREES)
    assert main(["evaluate", str(run), "--trees", str(tmp_path / "gold.trees")]) == 0
    assert "a bound" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["rankpcfg", "cpcfg"])
def test_sentences_made_up(family: str, tmp_path: Path, capsys: Captured) -> None:
    options = ["--num", "4", "--max-length", "8", "--seed", "3"]
    assert main(["sample", str(run := saved(tmp_path / "model", family)), *options]) == 0
    sentences = capsys.readouterr().out.splitlines()
    assert main(["sample", str(run), *options, "--trees"]) == 0
    trees = parse_trees(capsys.readouterr().out)
    assert [" ".join(tree.words) for tree in trees] == sentences
    assert [2 <= len(tree.words) <= 8 for tree in trees] == [True] * 4
    assert main(["sample", str(run), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [" ".join(entry["words"]) for entry in found["sentences"]] == sentences
    assert main(["sample", str(run), *options, "--trees", "--top-k", "1", "--no-unk"]) == 0
    chosen = parse_trees(capsys.readouterr().out)
    assert [tree.spans() for tree in chosen] == [tree.spans() for tree in trees]
    assert "<unk>" not in {word for tree in chosen for word in tree.words}
    assert main(["sample", str(run), "--prefix", "the"]) == 2
    assert "a grammar makes a sentence from its root" in capsys.readouterr().err


def test_tags_are_for_sequences(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    given(monkeypatch, "the dog\n")
    assert main(["tag", str(run)]) == 2
    assert "rankfold tag is for models of sequences" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["npcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg"])
def test_next_words(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Each word of a sentence given those before, and its end: together the sentence's score."""
    run = saved(tmp_path / "model", family)
    words, total = ["the", "dog", "slept"], 0.0
    for k in range(len(words) + 1):
        assert main(["predict", str(run), *words[:k], "--top", "99", "--json"]) == 0
        found = {entry["word"]: entry for entry in json.loads(capsys.readouterr().out)["next"]}
        assert sum(entry["probability"] for entry in found.values()) == pytest.approx(1, abs=1e-6)  # float32 parameters
        assert (found["<eos>"]["probability"] == 0) == (k < 2)  # the shortest sentence has two words
        total += found[[*words, "<eos>"][k]]["log_prob"]
    given(monkeypatch, "the dog slept\n")
    assert main(["score", str(run), "--json"]) == 0
    model = load_model(run)
    with torch.no_grad():
        ends = prefix(model.potentials(model.batch(torch.tensor([[1]])))).log_prefix[0, 0]  # this grammar may not
    score = json.loads(capsys.readouterr().out)["log_prob"]
    assert total == pytest.approx(score - float(ends), abs=1e-4)


def test_next_words_refused(tmp_path: Path, capsys: Captured) -> None:
    assert main(["predict", str(saved(tmp_path / "compound", "cpcfg")), "the"]) == 2
    assert "there is no closed form" in capsys.readouterr().err


def test_next_words_after_an_unknown_one(run: Path, capsys: Captured) -> None:
    assert main(["predict", str(run), "the", "<unk>"]) == 0
    expected = capsys.readouterr().out
    assert main(["predict", str(run), "the", "zebra"]) == 0
    out, err = capsys.readouterr()
    assert out == expected
    assert "counted as <unk>: 1, of them zebra (1)" in err


def test_a_model_without_trees_is_not_asked_for_them(tmp_path: Path, capsys: Captured) -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    model = build_model(ModelConfig(family="hmm", num_states=3, dim=4), len(vocabulary))
    with pytest.raises(UnsupportedError, match='"hmm", which has none'):
        parse(model, SENTENCES)
    model.vocabulary = vocabulary
    model.save_pretrained(tmp_path / "hmm")
    assert main(["sample", str(tmp_path / "hmm"), "--trees"]) == 2
    assert "--trees is for grammars" in capsys.readouterr().err


def test_a_vocabulary_of_the_other_kind(tmp_path: Path, capsys: Captured) -> None:
    vocabulary = Vocabulary.build(SENTENCES)
    model = build_model(GrammarConfig(num_nonterminals=2, num_preterminals=3, rank=2, dim=4), len(vocabulary))
    model.vocabulary = vocabulary
    model.save_pretrained(tmp_path / "model")
    assert main(["score", str(tmp_path / "model")]) == 2
    assert "the vocabulary has <eos>, but a grammar" in capsys.readouterr().err


def test_explain_says_how_long_a_sentence_may_be(capsys: Captured) -> None:
    assert main(["explain", "small-npcfg", "--set", "train.memory=0.25", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "npcfg, 60 nonterminals, 120 preterminals" in out
    assert "a sentence may have up to" in out
    assert main(["explain", "small-npcfg", "--set", "train.memory=0.25", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_nonterminals"] == 60
    longest = found["training"]["longest_sentence"]
    assert main(["explain", "small-npcfg", "--set", "train.memory=0.25", "--length", str(2 * longest)]) == 0
    assert f"more than {longest} words" in capsys.readouterr().out


def test_the_k_best_trees(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """All distinct with their labels, in order; the first is viterbi's; one word has none in this grammar."""
    lines = "the dog saw\n\ngo\na cat\n"
    given(monkeypatch, lines)
    assert main(["parse", str(run), "--k", "5"]) == 0
    out, err = capsys.readouterr()
    rows = [row.split("\t") for row in out.splitlines()]
    assert [int(number) for number, *_ in rows] == [1] * 5 + [4] * 5
    assert len({tree for *_, tree in rows[:5]}) == 5
    scores = [float(score) for _, score, _ in rows]
    assert scores[:5] == sorted(scores[:5], reverse=True)
    assert "1 line of one word, which this grammar does not generate" in err
    best = parse(load_model(run), [["the", "dog", "saw"]], decode="viterbi", labels=True)[0]
    assert rows[0][2] == str(best.tree)
    assert scores[0] == pytest.approx(best.score, abs=1e-5)
    given(monkeypatch, lines)
    assert main(["parse", str(run), "--k", "2", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(entry["best"]) for entry in found] == [2, 0, 0, 2]
    assert found[3]["best"][1]["tree"] == rows[6][2]


@pytest.mark.parametrize("option", [["--decode", "mbr"], ["--pretty"], ["--draw", "x.svg"]])
def test_k_goes_alone(option: list[str], run: Path, capsys: Captured) -> None:
    assert main(["parse", str(run), "--k", "2", *option]) == 2
    assert f"it goes without {option[0]}" in capsys.readouterr().err
