"""From a folder of text to ids, batches that cover every token once, and word clusters."""

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.data.brown import brown
from rankfold.data.clusters import uniform_clusters
from rankfold.data.sources import TextFile
from rankfold.data.text import read_sentences
from rankfold.data.vocab import Encoded, Vocabulary
from rankfold.errors import DataError
from rankfold.models.config import ModelConfig
from rankfold.training.config import DataConfig
from rankfold.training.corpus import Corpus, find_clusters, read_corpus
from rankfold.training.recipes import load_recipe, recipe_names
from tests.training.runs import DATA, NUM_TEST, NUM_TRAIN, NUM_VALID, NUM_WORDS, write_corpus


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def corpus(data: Path) -> Corpus:
    return read_corpus(data, DataConfig(**DATA))


def test_the_splits(corpus: Corpus) -> None:
    assert (len(corpus.train), len(corpus.valid)) == (NUM_TRAIN, NUM_VALID)
    assert corpus.test is not None
    assert len(corpus.test) == NUM_TEST
    assert len(corpus.vocabulary) == NUM_WORDS
    assert all(row[-1] == Vocabulary.eos_id for row in corpus.train)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_missing_split_is_named(tmp_path: Path, split: str) -> None:
    write_corpus(tmp_path)
    (tmp_path / f"{split}.txt").unlink()
    with pytest.raises(DataError, match=f"no file for the split '{split}'"):
        read_corpus(tmp_path, DataConfig())


def test_a_test_split_is_optional(tmp_path: Path, corpus: Corpus) -> None:
    found = read_corpus(write_corpus(tmp_path, test=False), DataConfig())
    assert found.test is None
    assert found.train == corpus.train
    assert found.fingerprint != corpus.fingerprint
    (tmp_path / "a.test.txt").write_text("w01\n")
    (tmp_path / "b.test.txt").write_text("w02\n")
    with pytest.raises(DataError, match="2 files could be the split 'test'"):
        read_corpus(tmp_path, DataConfig())


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none is missing, but a folder that holds train.txt"):
        read_corpus(tmp_path / "none", DataConfig())


def test_the_vocabulary_is_cut_and_is_that_of_train(tmp_path: Path) -> None:
    for split, text in {"train": "a a a b b c\na b d\n", "valid": "e e e e a\n", "test": "b e\n"}.items():
        (tmp_path / f"{split}.txt").write_text(text)
    whole = read_corpus(tmp_path, DataConfig())
    assert whole.vocabulary.words == ("<unk>", "<eos>", "a", "b", "c", "d")
    assert read_corpus(tmp_path, DataConfig(max_vocabulary=4)).vocabulary.words == ("<unk>", "<eos>", "a", "b")
    cut = read_corpus(tmp_path, DataConfig(min_count=4))
    assert cut.vocabulary.words == ("<unk>", "<eos>", "a")
    assert cut.train.sentences == [[2, 2, 2, 0, 0, 0, 1], [2, 0, 0, 1]]
    assert cut.valid.sentences == [[0, 0, 0, 0, 2, 1]]
    assert cut.test is not None
    assert cut.test.sentences == [[0, 0, 1]]
    assert len({corpus.fingerprint for corpus in (whole, cut)}) == 2


def test_a_vocabulary_that_is_given_is_used(data: Path, corpus: Corpus) -> None:
    vocabulary = Vocabulary.build([["w03", "w01", "w03"]])
    found = read_corpus(data, DataConfig(max_vocabulary=2, min_count=99), vocabulary)
    assert found.vocabulary is vocabulary
    assert {word for row in found.train for word in row} == {0, 1, 2, 3}
    assert found.fingerprint != corpus.fingerprint
    assert read_corpus(data, DataConfig(), corpus.vocabulary) == corpus


def test_the_fingerprint_is_of_the_text_in_order(tmp_path: Path, corpus: Corpus) -> None:
    write_corpus(tmp_path)
    lines = (tmp_path / "train.txt").read_text().splitlines(keepends=True)
    (tmp_path / "train.txt").write_text("".join([lines[1], lines[0], *lines[2:]]))
    found = read_corpus(tmp_path, DataConfig())
    assert found.vocabulary == corpus.vocabulary
    assert found.fingerprint != corpus.fingerprint


def sentences_of(corpus: Corpus, config: DataConfig, seed: int, epoch: int) -> list[tuple[int, ...]]:
    return [
        tuple(words[:length].tolist())
        for batch in corpus.epoch(config, seed, epoch)
        for words, length in zip(batch.values, batch.lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    "settings", [{"batching": "length"}, {"batching": "length", "rounding": 4}, {"batching": "unsorted"}]
)
def test_an_epoch_holds_every_sentence_once(corpus: Corpus, settings: dict[str, Any]) -> None:
    config = DataConfig(**{**DATA, **settings})
    orders = set()
    for seed, epoch in ((1, 0), (1, 1), (2, 0)):
        found = sentences_of(corpus, config, seed, epoch)
        assert Counter(found) == Counter(map(tuple, corpus.train))
        assert found == sentences_of(corpus, config, seed, epoch)  # the same whenever asked
        orders.add(tuple(found))
    assert len(orders) == 3
    for batch in corpus.epoch(config, 1, 0):
        assert batch.first
        assert batch.values.numel() <= config.tokens
        assert batch.values.shape[1] % settings.get("rounding", 1) == 0


@pytest.mark.parametrize(("num_streams", "window"), [(1, 1000), (7, 5), (7, 31), (220, 1), (3, 1)])
def test_streams_hold_every_token_once(corpus: Corpus, num_streams: int, window: int) -> None:
    config = DataConfig(batching="streams", num_streams=num_streams, window=window)
    texts = []
    for epoch in (0, 1):
        rows: list[list[int]] = [[] for _ in range(num_streams)]
        for i, batch in enumerate(corpus.epoch(config, 1, epoch)):
            assert batch.first == (i == 0)
            for row, words, length in zip(rows, batch.values, batch.lengths.tolist(), strict=False):
                row.extend(words[:length].tolist())
        text = [word for row in rows for word in row]
        assert Counter(text) == Counter(word for row in corpus.train for word in row)
        found: list[list[int]] = [[]]
        for word in text:  # the sentences, whole, in some order
            found[-1].append(word)
            if word == Vocabulary.eos_id:
                found.append([])
        assert found.pop() == []
        assert sorted(found) == sorted(corpus.train.sentences)
        texts.append(text)
    assert texts[0] != texts[1]


def block(clusters: str, num_clusters: int = 4) -> ModelConfig:
    return ModelConfig(family="block", num_states=num_clusters * 2, num_clusters=num_clusters, clusters=clusters)


def test_only_blocks_have_clusters(corpus: Corpus) -> None:
    said: list[str] = []
    for family in ("hmm", "lhmm", "banded", "rank"):
        assert find_clusters(ModelConfig(family=family, num_clusters=999), corpus, 1, said.append) is None
    assert not said


def test_brown_clusters(corpus: Corpus) -> None:
    said: list[str] = []
    found = find_clusters(block("brown"), corpus, 1, said.append)
    assert found is not None
    expected = brown(corpus.train.sentences, NUM_WORDS, 4)
    assert torch.equal(found.assignment, expected.assignment)
    assert found.num_clusters == 4
    assert said == ["Brown clusters of 20 words"]


def test_uniform_clusters_follow_the_seed(corpus: Corpus) -> None:
    found = [find_clusters(block("uniform"), corpus, seed, lambda line: None) for seed in (1, 1, 2)]
    tables = [clusters.assignment for clusters in found if clusters is not None]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    assert torch.equal(tables[2], uniform_clusters(NUM_WORDS, 4, seed=2).assignment)


def test_clusters_of_a_file(tmp_path: Path, corpus: Corpus) -> None:
    path = tmp_path / "words.tsv"
    path.write_text("w03\t1\nw01\t0\n<eos>\t2\n")
    found = find_clusters(block(str(path), 3), corpus, 1, lambda line: None)
    assert found is not None
    assert found.num_clusters == 3
    own = {corpus.vocabulary.index[word]: number for word, number in {"w03": 1, "w01": 0, "<eos>": 2}.items()}
    assert found.assignment.tolist() == [own.get(i, 2) for i in range(NUM_WORDS)]  # the rest joins the last


def test_a_wrong_number_of_clusters(tmp_path: Path, corpus: Corpus) -> None:
    path = tmp_path / "words.tsv"
    path.write_text("w03\t1\nw01\t0\n")
    with pytest.raises(DataError, match=r"words.tsv has 2 clusters(.|\n)*Set model.num_clusters=2"):
        find_clusters(block(str(path), 3), corpus, 1, lambda line: None)
    with pytest.raises(DataError, match=r"21 clusters, but the text only 20 words(.|\n)*at most 20"):
        find_clusters(block("uniform", 21), corpus, 1, lambda line: None)
    assert find_clusters(block("uniform", 20), corpus, 1, lambda line: None) is not None
    path.write_text("nobody\t0\n")
    with pytest.raises(DataError, match="line 1: the word 'nobody' is not in the vocabulary"):
        find_clusters(block(str(path), 1), corpus, 1, lambda line: None)


def test_a_file_of_clusters_that_is_not_there(tmp_path: Path, corpus: Corpus) -> None:
    with pytest.raises(DataError, match=r"none.tsv': no such file"):
        find_clusters(block(str(tmp_path / "none.tsv")), corpus, 1, lambda line: None)


def test_unknown_words_are_told(tmp_path: Path) -> None:
    for split, text in {"train": "a b\nb c\n", "valid": "a d d\n", "test": "b\n"}.items():
        (tmp_path / f"{split}.txt").write_text(text)
    first, second = read_corpus(tmp_path, DataConfig()).warnings()
    assert first == "valid: 2 words (50.0% of tokens) are unknown, counted as <unk>"
    assert "no trained probability" in second
    assert len(read_corpus(tmp_path, DataConfig(min_count=2)).warnings()) == 1  # there is <unk> in training
    (tmp_path / "valid.txt").write_text("a b\n")
    (warning,) = read_corpus(tmp_path, DataConfig()).warnings()  # also where no held-out word is unknown yet
    assert "no trained probability" in warning


def test_empty_lines_of_a_text_are_counted(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    path = tmp_path / "train.txt"
    path.write_text("\n" + path.read_text() + "\n\n")
    found = read_corpus(tmp_path, DataConfig())
    assert found.summary()["train"]["left_out"] == {"empty_lines": 3}
    assert "train: left out 3 empty lines" in found.warnings()
    assert "left_out" not in found.summary()["valid"]


def test_the_recipes_for_a_text_of_ones_own_train_unknown_words(tmp_path: Path) -> None:
    """Of a text with words that occur once, and no <unk> of its own."""
    text = "".join(f"the w{i} sat on w{i + 1}\n" for i in range(0, 40, 2)) + "the cat sat\na cat sat on a cat\n"
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text(text)
    own = [name for name in recipe_names() if name.startswith(("small-", "demo")) and name != "small-music"]
    assert len(own) == 14
    for name in own:
        config = load_recipe(name)
        corpus = read_corpus(tmp_path, config.data, model=config.model)
        assert any(corpus.vocabulary.unk_id in row for row in corpus.train), name
        assert not any("no trained probability" in line for line in corpus.warnings())


def test_the_fingerprint_is_that_of_the_lists(data: Path) -> None:
    corpus = read_corpus(data, DataConfig())
    rows = [[7, 8, i] for i in range(2500)]
    for found in (corpus, replace(corpus, train=Encoded(rows, {}), test=None)):
        lists = [split.sentences for split in found.splits.values()]
        assert found.fingerprint == hashlib.sha256(repr(lists).encode()).hexdigest()


def test_text_is_read_a_line_at_a_time_and_progress_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfold.training.corpus.Megabytes", lambda what, say: lambda done: say(f"{what} {done}"))
    said: list[str] = []
    assert read_corpus(data, DataConfig(), say=said.append).splits == read_corpus(data, DataConfig()).splits
    assert any(line.startswith(f"{data / 'train.txt'}: read ") for line in said)
    text = TextFile(data / "train.txt")
    assert list(text) == list(text) == read_sentences(data / "train.txt").sentences
    longest = max(map(len, text))
    assert len(list(text.up_to(longest - 1))) < len(list(text))
