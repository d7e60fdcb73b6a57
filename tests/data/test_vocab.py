"""Vocabularies: ids, counts, unknown words, and files that are not one."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.data.text import read_splits
from rankfold.data.vocab import EOS, UNK, Vocabulary
from rankfold.errors import DataError, DomainError
from tests.data.corpora import FOLDER, needs_texts

TEXT = [["b", "a", "c"], ["b", "a"], ["b", "d"]]


def test_ids_are_by_frequency_then_alphabet() -> None:
    vocabulary = Vocabulary.build(TEXT)
    assert vocabulary.words == (UNK, EOS, "b", "a", "c", "d")
    assert vocabulary.counts == (0, 3, 3, 2, 1, 1)
    assert vocabulary.index == {UNK: 0, EOS: 1, "b": 2, "a": 3, "c": 4, "d": 5}
    assert (vocabulary.unk_id, vocabulary.eos_id, len(vocabulary)) == (0, 1, 6)


def test_the_order_of_sentences_changes_nothing() -> None:
    assert Vocabulary.build(TEXT[::-1]) == Vocabulary.build(TEXT)
    assert Vocabulary.build(iter(TEXT)) == Vocabulary.build(TEXT)


@pytest.mark.parametrize(
    ("limits", "words", "counts"),
    [
        ({"max_size": 4}, ("b", "a"), (2, 3, 3, 2)),
        ({"max_size": 2}, (), (7, 3)),
        ({"max_size": 99}, ("b", "a", "c", "d"), (0, 3, 3, 2, 1, 1)),
        ({"min_count": 2}, ("b", "a"), (2, 3, 3, 2)),
        ({"min_count": 2, "max_size": 3}, ("b",), (4, 3, 3)),
    ],
)
def test_cut_words_count_as_unknown(limits: dict[str, int], words: tuple[str, ...], counts: tuple[int, ...]) -> None:
    vocabulary = Vocabulary.build(TEXT, **limits)
    assert vocabulary.words[2:] == words
    assert vocabulary.counts == counts
    assert vocabulary.has_unk_mass == (counts[0] > 0)


def test_unk_in_the_text_is_the_unknown_word() -> None:
    vocabulary = Vocabulary.build([["a", UNK, UNK]])
    assert vocabulary.words == (UNK, EOS, "a")
    assert vocabulary.counts == (2, 1, 1)
    assert vocabulary.has_unk_mass
    encoded = vocabulary.encode_all([[UNK, "a"]])
    assert encoded.sentences == [[0, 2, 1]]
    assert encoded.num_unknown == 0  # it is a word of the text, not one we do not know


def test_a_vocabulary_without_trained_unknown_says_so() -> None:
    assert not Vocabulary.build(TEXT).has_unk_mass
    assert Vocabulary.build(TEXT, min_count=2).has_unk_mass


def test_encode_and_decode() -> None:
    vocabulary = Vocabulary.build(TEXT)
    assert vocabulary.encode(["a", "x", "b"]) == [3, 0, 2, 1]
    assert vocabulary.encode([]) == [1]
    assert vocabulary.decode([3, 0, 2, 1]) == ["a", UNK, "b", EOS]
    assert vocabulary.decode(torch.tensor([2, 1])) == ["b", EOS]


def test_unknown_words_are_counted() -> None:
    encoded = Vocabulary.build(TEXT).encode_all([["a", "x"], ["x", "y", "b"], []])
    assert encoded.sentences == [[3, 0, 1], [0, 0, 2, 1], [1]]
    assert encoded.unknown == {"x": 2, "y": 1}
    assert (encoded.num_unknown, encoded.num_tokens, len(encoded)) == (3, 8, 3)
    assert list(encoded) == encoded.sentences


@pytest.mark.parametrize("i", [-1, 6, 100])
def test_ids_outside_the_vocabulary(i: int) -> None:
    with pytest.raises(DomainError, match=rf"the id {i} is outside .* 0 to 5"):
        Vocabulary.build(TEXT).decode([2, i])


def test_the_end_symbol_inside_a_sentence() -> None:
    bad = [["a"], ["b", EOS, "c"]]
    vocabulary = Vocabulary.build(TEXT)
    for read in (Vocabulary.build, vocabulary.encode_all):
        with pytest.raises(DataError, match=r"(?s)sentence 2: token 2 is <eos>.*remove it"):
            read(bad)
    with pytest.raises(DataError, match="token 2 is <eos>"):
        vocabulary.encode(bad[1])


def test_a_sentence_that_was_not_split() -> None:
    for read in (Vocabulary.build, Vocabulary.build(TEXT).encode_all):
        with pytest.raises(DataError, match=r"sentence 2 is the string 'a b c'.*split"):
            read([["a"], "a b c"])


def test_limits_and_texts_that_make_no_vocabulary() -> None:
    with pytest.raises(DomainError, match="max_size is 1, but <unk> and <eos> alone make 2"):
        Vocabulary.build(TEXT, max_size=1)
    with pytest.raises(DomainError, match="min_count is 0"):
        Vocabulary.build(TEXT, min_count=0)
    with pytest.raises(DataError, match="no sentences"):
        Vocabulary.build([])


def test_save_and_load(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build([["caf\u00e9", '"', "\\", "\u4e2d", "a"], ["a", "\U0001f600"]], min_count=1)
    path = tmp_path / "vocab.json"
    vocabulary.save(path)
    assert Vocabulary.load(str(path)) == vocabulary
    assert Vocabulary.load(path).fingerprint() == vocabulary.fingerprint()
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.json"]
    assert path.read_bytes().isascii()


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vocab.json"
    Vocabulary.build(TEXT).save(path)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        Vocabulary.build([["other"]]).save(path)
    assert Vocabulary.load(path) == Vocabulary.build(TEXT)


def test_fingerprints_tell_vocabularies_apart() -> None:
    prints = [
        Vocabulary.build(text).fingerprint()
        for text in (TEXT, [["a", "b"]], [["b", "b", "a"]], [["a", "b", "c"]], [["ab"]], [["a b"]], [['a", "b']])
    ]
    assert len(set(prints)) == len(prints)
    assert all(len(value) == 64 for value in prints)
    assert Vocabulary.build([["a", "a", "b"]]).fingerprint() == Vocabulary.build([["a", "b"]]).fingerprint()
    # Written out, so that it stays what earlier runs have stored.
    assert Vocabulary.build([["a"]]).fingerprint() == "d2bf89158e12b95d961c988c2f6cc4c46fcff7d86ae2e9c41fae970aa63a4adc"


def test_repr_is_short() -> None:
    assert len(repr(Vocabulary.build([[str(i) for i in range(2000)]]))) < 80


GOOD = {"format": "rankfold-vocabulary", "version": 1, "words": [UNK, EOS, "a"], "counts": [0, 1, 1]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, 'not a vocabulary.*"format": "rankfold-vocabulary"'),
        ({"version": 2}, "format version 2, but this release reads version 1"),
        ({"words": [UNK, EOS, "a", "b", "a"], "counts": [0, 1, 1, 1, 1]}, "the word 'a' has two ids, 2 and 4"),
        ({"words": [EOS, UNK, "a"]}, "starts with <unk> and <eos>"),
        ({"words": [], "counts": []}, "starts with <unk> and <eos>"),
        ({"words": [UNK, EOS, 3]}, '"words" must be a list of strings'),
        ({"words": "<unk><eos>"}, '"words" must be a list of strings'),
        ({"counts": [0, 1]}, "3 words, but 2 counts"),
        ({"counts": [0, 1, -1]}, '"counts" must be a list of whole numbers'),
        ({"counts": [0, 1, 1.5]}, '"counts" must be a list of whole numbers'),
        ({"counts": [0, 1, True]}, '"counts" must be a list of whole numbers'),
        ({"counts": None}, '"counts" must be a list of whole numbers'),
    ],
)
def test_files_that_are_no_vocabulary(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(DataError, match=rf"(?s)vocab\.json: .*{words}.*Vocabulary\.save"):
        Vocabulary.load(path)


@pytest.mark.parametrize("content", [b"", json.dumps(GOOD).encode()[:-20], b"\xff\xfe{", b"words\n", b"[" * 100_000])
def test_files_that_are_no_json(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"(?s)vocab\.json: not a whole JSON file.*Copy it again"):
        Vocabulary.load(path)


def test_json_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text("[1, 2]")
    with pytest.raises(DataError, match="not a vocabulary"):
        Vocabulary.load(path)
    with pytest.raises(DataError, match=r"gone\.json: no such file"):
        Vocabulary.load(tmp_path / "gone.json")


@needs_texts
def test_penn_treebank() -> None:
    """10,000 words with <eos>, 929,589 / 73,760 / 82,430 tokens, and no unknown word: the published figures."""
    splits = read_splits(FOLDER / "ptb-lm")
    vocabulary = Vocabulary.build(splits["train"])
    assert len(vocabulary) == 10_000
    assert vocabulary.counts[:3] == (45_020, 42_068, 50_770)
    assert vocabulary.words[2] == "the"
    encoded = {split: vocabulary.encode_all(sentences) for split, sentences in splits.items()}
    assert [corpus.num_tokens for corpus in encoded.values()] == [929_589, 73_760, 82_430]
    assert [corpus.num_unknown for corpus in encoded.values()] == [0, 0, 0]
