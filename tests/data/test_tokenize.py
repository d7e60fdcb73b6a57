"""Tokenizers: nothing but white space is lost, tokens stay tokens, and a saved one cuts as before."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.data.tokenize import REMEMBERED, SPACE, Memory, Tokenizer, simple_tokens, train_subwords
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, UnsupportedError

SIMPLE, CHARACTERS = Tokenizer("simple"), Tokenizer("characters")
# Letters, marks, digits, signs, quotes, ideographs, right-to-left text, all kinds of white space.
TEXT = st.text(
    st.characters(codec="utf-8") | st.sampled_from("ab1.,:'-<>_\u2019 \n\t\u00a0\u2028\u0301\u05d0\u0967\u4e2d")
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The cat isn't well-known.", "The cat isn't well-known ."),
        ('"Yes," he said--twice...', '" Yes , " he said -- twice ...'),
        ("3.14, 1,000 and 10:30; in the U.S. or e.g. 1990s", "3.14 , 1,000 and 10:30 ; in the U.S. or e.g. 1990s"),
        ("_had_ a/b x.y 5-6 'tis dogs'", "_ had _ a / b x . y 5-6 ' tis dogs '"),
        ("<script>alert(1)</script> <unk> <eos>", "< script > alert ( 1 ) < / script > <unk> < eos >"),
        (
            "\u05e9\u05dc\u05d5\u05dd, \u05e2\u05d5\u05dc\u05dd!",
            "\u05e9\u05dc\u05d5\u05dd , \u05e2\u05d5\u05dc\u05dd !",
        ),
        ("\u0928\u092e\u0938\u094d\u0924\u0947\u0964", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0964"),  # with marks
        ("\u4e2d\u6587\u3002ok", "\u4e2d \u6587 \u3002 ok"),
        ("cafe\u0301s -LRB- a -RRB-", "cafe\u0301s -LRB- a -RRB-"),
    ],
)
def test_words_and_punctuation(text: str, tokens: str) -> None:
    assert SIMPLE.tokenize(text) == tokens.split(" ")


@given(TEXT)
@settings(max_examples=300)
def test_every_character_stands_once_and_in_order(text: str) -> None:
    tokens = SIMPLE.tokenize(text)
    assert "".join(tokens) == "".join(text.split())
    assert all(token and not any(c.isspace() for c in token) for token in tokens)


@given(TEXT)
@settings(max_examples=300)
def test_tokens_are_tokens_of_themselves(text: str) -> None:
    tokens = SIMPLE.tokenize(text)
    assert SIMPLE.tokenize(" ".join(tokens)) == tokens


@given(st.text(st.characters(codec="utf-8", exclude_characters=SPACE)))
def test_characters_come_back(text: str) -> None:
    tokens = CHARACTERS.tokenize(text)
    assert all(len(token) == 1 for token in tokens)
    assert CHARACTERS.detokenize(tokens) == " ".join(text.split())


def test_characters_refuse_the_sign_that_stands_for_a_space() -> None:
    with pytest.raises(DataError, match="stands for a space"):
        CHARACTERS.tokenize(f"a{SPACE}b")


@pytest.mark.parametrize(
    "text",
    [
        'He said, "no (never)!" again.',
        "In the U.S., 3.5% of 1,000 isn't much...",
        "\u201cYes,\u201d said \u00abhe\u00bb; well-known.",
    ],
)
def test_simple_tokens_read_as_the_text_did(text: str) -> None:
    assert SIMPLE.detokenize(SIMPLE.tokenize(text)) == text


def test_spaces_cut_at_white_space_alone() -> None:
    assert Tokenizer().tokenize(" a.b  c,\n") == ["a.b", "c,"]
    assert Tokenizer().detokenize(["a.b", ",", "c"]) == "a.b , c"


def test_subwords_are_pieces_that_give_the_text_back(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    lines = ["the cat sat on the mat, there.", "a dog <unk> ran to them <eos>"] * 4
    found = train_subwords(lines, 60)
    assert found == train_subwords(iter(lines), 60)
    tokens = found.tokenize("the  mat, <unk> the then <eos>")
    assert tokens[:3] == [f"{SPACE}the", f"{SPACE}mat", ","]
    assert "<eos>" not in tokens
    assert found.detokenize(tokens) == "the mat, <unk> the then <eos>"
    assert "<unk>" in found.tokenize("\u00e9")
    found.save(tmp_path)
    assert Tokenizer.load(tmp_path).tokenize("the mat") == found.tokenize("the mat")
    vocabulary = Vocabulary.build([tokens[:-3]], tokenizer=found)
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json").tokenizer.tokenize("the mat") == found.tokenize("the mat")


def test_without_the_package_subwords_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnsupportedError, match=r"pip install .*tokenizers"):
        train_subwords(["a"], 9)
    with pytest.raises(UnsupportedError, match="package tokenizers"):
        Tokenizer("subwords", "{}").tokenize("a")


@pytest.mark.parametrize("kind", ["spaces", "simple", "characters"])
def test_a_saved_vocabulary_cuts_as_before(kind: Any, tmp_path: Path) -> None:
    vocabulary = Vocabulary.build([["a", "b"]], tokenizer=Tokenizer(kind))
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json") == vocabulary
    assert ("tokenizer" in json.loads((tmp_path / "vocab.json").read_text())) == (kind != "spaces")
    vocabulary.tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path) == Tokenizer(kind)


def test_a_folder_without_a_tokenizer_is_cut_at_spaces(tmp_path: Path) -> None:
    assert Tokenizer.load(tmp_path) == Tokenizer()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "not a tokenizer"),
        ('{"format": "rankfold-tokenizer", "version": 1}', "kind"),
        ('{"format": "rankfold-tokenizer", "version": 1, "kind": "x"}', "one of spaces, simple"),
        ('{"format": "rankfold-tokenizer", "version": 1, "kind": "subwords"}', "definition"),
        ("[", "not a whole JSON"),
    ],
)
def test_a_broken_file_is_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=words):
        Tokenizer.load(tmp_path)


def test_a_broken_definition_is_refused() -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(DataError, match="cannot read the definition"):
        Tokenizer("subwords", "[]").tokenize("a")


def test_a_memory_is_bounded() -> None:
    memory = Memory(lambda chunk: " ".join(simple_tokens(chunk)))
    for i in range(REMEMBERED + 10):
        memory[f"{i},"]
    assert memory["5,"] == "5 ,"
    memory["x" * 10_000]
    assert len(memory) < 100
