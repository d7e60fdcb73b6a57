"""Text for grammars: vocabularies without ends, spelling, words of trees, equal batches, splits by prefix."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from rankfold.data.batch import equal_batches, length_batches
from rankfold.data.demo import draw_trees, grammar, write_toy_corpus
from rankfold.data.sources import read_source
from rankfold.data.text import find_split, has_split, read_sentences
from rankfold.data.trees import Tree
from rankfold.data.vocab import EOS, UNK, Spelling, Vocabulary
from rankfold.errors import DataError, DomainError

TEXT = [["b", "a", "c"], ["b", "a"], ["b", "d"]]


def test_a_vocabulary_without_ends(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(TEXT, ends=False)
    assert vocabulary.words == (UNK, "b", "a", "c", "d")
    assert vocabulary.counts == (0, 3, 2, 1, 1)
    assert vocabulary.encode(["a", "z"]) == [2, 0]
    encoded = vocabulary.encode_all(TEXT)
    assert encoded.num_tokens == 7 + 3  # one end a sentence, counted though not there
    assert Vocabulary.build(TEXT).encode_all(TEXT).num_tokens == 7 + 3
    assert Vocabulary.build(TEXT, ends=False, max_size=2).words == (UNK, "b")
    assert vocabulary.fingerprint() != Vocabulary.build(TEXT).fingerprint()
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json") == vocabulary
    assert not Vocabulary.load(tmp_path / "vocab.json").ends


def test_a_vocabulary_with_ends_is_saved_as_it_was(tmp_path: Path) -> None:
    Vocabulary.build(TEXT).save(tmp_path / "vocab.json")
    assert set(json.loads((tmp_path / "vocab.json").read_text())) == {"format", "version", "words", "counts"}


@pytest.mark.parametrize("words", [("a",), (UNK, "a", EOS)])
def test_what_is_no_vocabulary_without_ends(words: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="without ends starts with <unk>, and does not hold <eos>"):
        Vocabulary(words, (1,) * len(words), ends=False)


def test_words_are_looked_up_as_they_are_spelt(tmp_path: Path) -> None:
    rules = Spelling(lower=True, numbers=True)
    vocabulary = Vocabulary.build([["The", "1,000.5", "dog"], ["the", "7"]], ends=False, spelling=rules)
    assert vocabulary.words == (UNK, "N", "the", "dog")
    assert vocabulary.encode(["THE", "99", "Cat"]) == [2, 1, 0]
    assert vocabulary.encode_all([["Dog", "Cat"]]).unknown == {"Cat": 1}
    assert vocabulary.knows("DOG")
    assert not vocabulary.knows("cat")
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json") == vocabulary
    plain = Vocabulary(vocabulary.words, vocabulary.counts, ends=False)
    assert plain.encode(["THE", "N"]) == [0, 1]
    assert plain.fingerprint() != vocabulary.fingerprint()


@pytest.mark.parametrize("entry", [{"ends": 1}, {"spelling": {"upper": True}}, {"spelling": {"lower": 1}}])
def test_a_file_that_says_it_wrongly(tmp_path: Path, entry: dict[str, object]) -> None:
    path = tmp_path / "vocab.json"
    Vocabulary.build(TEXT, ends=False).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **entry}))
    with pytest.raises(DataError, match='"ends" must be true or false'):
        Vocabulary.load(path)


ROWS = [[1] * n for n in (3, 2, 3, 5, 3, 2, 3, 3)]


def test_equal_batches_have_one_length_each() -> None:
    batches = equal_batches(ROWS, 2)
    lengths = [[len(ROWS[i]) for i in group] for group in batches.groups]
    assert lengths == [[2, 2], [3, 3], [3, 3], [3], [5]]
    assert sorted(i for group in batches.groups for i in group) == list(range(len(ROWS)))
    by_tokens = equal_batches(ROWS, 4, max_tokens=6)
    assert [len(group) for group in by_tokens.groups] == [2, 2, 2, 1, 1]


def test_equal_batches_are_shuffled_by_the_generator() -> None:
    def drawn(seed: int) -> list[list[int]]:
        return equal_batches(ROWS, 2, generator=torch.Generator().manual_seed(seed)).groups

    assert drawn(1) == drawn(1)
    assert any(drawn(seed) != drawn(1) for seed in range(2, 6))
    counts = Counter(len(ROWS[group[0]]) for group in drawn(1))
    assert counts == {2: 1, 3: 3, 5: 1}


def test_length_batches_under_two_limits_and_at_a_price() -> None:
    assert [len(group) for group in length_batches(ROWS, 100, max_sentences=3).groups] == [3, 3, 2]
    squares = length_batches(ROWS, 18, cost=lambda width: width**2)
    assert [[len(ROWS[i]) for i in group] for group in squares.groups] == [[2, 2], [3, 3], [3, 3], [3], [5]]
    with pytest.raises(DomainError, match="max_sentences is 0"):
        length_batches(ROWS, 100, max_sentences=0)


def test_a_split_by_the_beginning_of_its_name(tmp_path: Path) -> None:
    for name in ("gum.train.trees.txt", "ptb.train.txt", "gum.valid.trees.txt"):
        (tmp_path / name).write_text("(S (A a) (B b))\n")
    assert find_split(tmp_path / "gum", "train", trees=True).name == "gum.train.trees.txt"
    assert find_split(tmp_path / "ptb", "train").name == "ptb.train.txt"
    assert not has_split(tmp_path / "ptb", "valid", trees=True)
    with pytest.raises(DataError, match=r"2 files could be the split 'train'(.|\n)*such as .*gum\."):
        find_split(tmp_path, "train", trees=True)
    with pytest.raises(DataError, match="gum: no file for the split 'train'"):
        find_split(tmp_path / "gum", "train")
    with pytest.raises(DataError, match="cess is missing, but a folder"):
        find_split(tmp_path / "cess", "train")


def test_words_of_trees(tmp_path: Path) -> None:
    path = tmp_path / "train.trees.gz"
    trees = "(S (NP (DT The) (NN dog)) (-NONE- *) (. .))\n( (S (-NONE- *)) )\n(NP (NN Stop))\n"
    path.write_bytes(gzip.compress(trees.encode()))
    whole = read_source(path)
    assert whole.sentences == [["The", "dog", "."], ["Stop"]]
    assert whole.left_out == {"trees_without_words": 1, "traces": 2}
    penn = read_source(path, word_tags="penn")
    assert penn.sentences == [["The", "dog"], ["Stop"]]
    assert penn.left_out["words_by_tag"] == 1
    assert penn.longer_than_one().sentences == [["The", "dog"]]
    assert penn.longer_than_one().left_out["sentences_of_one_word"] == 1
    assert penn.up_to(1).left_out["sentences_of_more_than_1_words"] == 1


def test_trees_of_other_tags_are_not_lost_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "train.trees"
    path.write_text("(S (da0ms0 el) (ncms000 grupo))\n")
    assert read_source(path).sentences == [["el", "grupo"]]
    with pytest.raises(DataError, match="no tree has a word left"):
        read_source(path, word_tags="penn")


def test_brackets_in_a_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("a b\n\na (b c\n")
    with pytest.raises(DataError, match=r"train.txt, line 3: word 2 is '\(b'(.|\n)*-LRB-"):
        read_source(path)
    assert len(read_sentences(path)) == 2  # a language model may have them
    path.write_text("a b\n\n")
    assert read_source(path).left_out == {"empty_lines": 1}


def test_the_toy_grammar_has_one_tree_a_sentence() -> None:
    rules = grammar()
    trees = draw_trees(2000, seed=3)
    by_words: dict[tuple[str, ...], set[Tree]] = {}
    for tree in trees:
        by_words.setdefault(tuple(tree.words), set()).add(tree)
        assert tree.is_binary
        assert 2 <= len(tree.words) <= 14
        for node in tree.nodes():
            parts = tuple(child if isinstance(child, str) else child.label for child in node.children)
            assert parts in {choice.parts for choice in rules[node.label]}
    assert all(len(same) == 1 for same in by_words.values())
    assert draw_trees(5, seed=3) == trees[:5]
    with pytest.raises(DomainError, match="max_words 2"):
        draw_trees(1, seed=1, max_words=2)


def test_the_toy_corpus_tests_on_new_sentences(tmp_path: Path) -> None:
    write_toy_corpus(tmp_path, num=200, num_held_out=20)
    train, valid = (read_sentences(tmp_path / f"{split}.txt").sentences for split in ("train", "valid"))
    test = read_source(tmp_path / "test.trees").sentences
    assert (len(train), len(valid), len(test)) == (200, 20, 20)
    assert not {*map(tuple, test)} & {*map(tuple, train + valid)}
    write_toy_corpus(tmp_path, num=200, num_held_out=20)  # safe to repeat


@pytest.mark.parametrize("name", ["train.txt", "valid.txt", "test.trees"])
def test_the_toy_corpus_writes_over_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("my only copy\n")
    with pytest.raises(DataError, match=f"{name} exists"):
        write_toy_corpus(str(tmp_path), num=20, num_held_out=5)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "my only copy\n"}


def test_the_toy_text_has_words_to_train_unk_on(tmp_path: Path) -> None:
    write_toy_corpus(tmp_path, num=400, num_held_out=20)
    counts = Counter((tmp_path / "train.txt").read_text().split())
    known = {choice.parts[0] for choices in grammar().values() for choice in choices}
    rare = {word for word, count in counts.items() if count < 2}
    assert rare
    assert rare.isdisjoint(known)
    assert {word for word in counts if word not in known} == rare
    assert rare.isdisjoint((tmp_path / "valid.txt").read_text().split())
