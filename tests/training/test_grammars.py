"""Training grammars: what is read and left out, batches and curriculum, the loss's denominator, resuming, memory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.data.batch import Batch, length_batches
from rankfold.data.demo import draw_trees
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models import build_model, load_model
from rankfold.models.config import GrammarConfig
from rankfold.planning.measure import GIB
from rankfold.training.config import Config, DataConfig, TrainConfig
from rankfold.training.corpus import read_corpus
from rankfold.training.evaluation import evaluate, tree_batches
from rankfold.training.gradients import row_parts
from rankfold.training.loop import train
from rankfold.training.memory_budget import DataSizes, fit, least_memory, longest_sentence
from rankfold.training.recipes import load_recipe
from rankfold.training.run_dir import read_metrics
from rankfold.training.shapes import TREE_WIDEST, TreeShapes
from tests.training.runs import StopAfter, expect_same_end

FAMILIES = ("npcfg", "cpcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg")
MODEL: dict[str, Any] = {
    "num_nonterminals": 3,
    "num_preterminals": 4,
    "rank": 5,
    "dim": 6,
    "num_layers": 1,
    "latent_dim": 2,
    "encoder_dim": 3,
}


def tiny(family: str = "rankpcfg", *, model: dict[str, Any] | None = None, **settings: Any) -> Config:
    data = {name: settings.pop(name) for name in list(settings) if name in DataConfig.__dataclass_fields__}
    own = {"updates": 7, "evaluate_every": 3, "checkpoint_every": 2, "log_every": 2, "lr": 0.01, "device": "cpu"}
    return Config(
        GrammarConfig(**{"family": family, **MODEL, **(model or {})}),
        DataConfig(**{"tokens": 40, "sentences": 4, **data}),
        TrainConfig(**{**own, **settings}),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trees = draw_trees(40, seed=1, max_words=9)
    text = "".join(" ".join(tree.words) + "\n" for tree in trees)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").write_text(text + "alone\n" + "word " * 12 + "\n")
    (tmp_path / "data" / "valid.trees").write_text("".join(f"{tree}\n" for tree in draw_trees(6, seed=2, max_words=9)))
    (tmp_path / "data" / "test.txt").write_text("mary slept\nanna\n")
    return tmp_path / "data"


def test_what_is_read_and_what_is_left_out(folder: Path) -> None:
    corpus = read_corpus(folder, DataConfig(max_length=9), model=GrammarConfig())
    assert not corpus.vocabulary.ends
    summary = corpus.summary()
    assert summary["train"]["left_out"] == {"sentences_of_one_word": 1, "sentences_of_more_than_9_words": 1}
    assert summary["test"] == {
        "sentences": 1,
        "tokens": 3,
        "unknown_words": 0,
        "left_out": {"sentences_of_one_word": 1},
    }
    assert "left_out" not in summary["valid"]
    assert "train: left out 1 sentence of one word, 1 sentence of more than 9 words" in corpus.warnings()
    single = read_corpus(folder, DataConfig(), model=GrammarConfig(single_words=True))
    assert len(single.train) == 42


def test_a_text_of_single_words_is_no_text_for_a_grammar(folder: Path) -> None:
    (folder / "train.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"train.txt: no sentence is left(.|\n)*two words and more"):
        read_corpus(folder, DataConfig(), model=GrammarConfig())


def test_a_vocabulary_of_the_other_kind(folder: Path) -> None:
    with_ends = Vocabulary.build([["a"]])
    with pytest.raises(DataError, match="the vocabulary has <eos>, but a grammar is of sentences with no <eos>"):
        read_corpus(folder, DataConfig(), with_ends, model=GrammarConfig())
    (folder / "valid.txt").write_text("a\n")
    with pytest.raises(DataError, match="has no <eos>, but a model of sequences"):
        read_corpus(folder, DataConfig(), Vocabulary.build([["a"]], ends=False))


def test_the_curriculum_grows_with_the_epochs(folder: Path) -> None:
    config = DataConfig(curriculum_start=3, curriculum_step=2, batching="equal", sentences=4, tokens=0)
    corpus = read_corpus(folder, config, model=GrammarConfig())
    for epoch, longest in ((0, 3), (1, 5), (2, 7), (9, 12)):
        widths = {batch.values.shape[1] for batch in corpus.epoch(config, 1, epoch)}
        assert max(widths) <= longest
        assert widths == {len(row) for row in corpus.train if len(row) <= longest}
    with pytest.raises(DataError, match=r"curriculum_start is 1, but the shortest training sentence has 2 words"):
        corpus.epoch(DataConfig(curriculum_start=1), 1, 0)


@pytest.mark.parametrize("batching", ["equal", "length"])
def test_an_epoch_is_a_function_of_seed_and_number(folder: Path, batching: Any) -> None:
    config = DataConfig(batching=batching, sentences=4, tokens=0)
    corpus = read_corpus(folder, config, model=GrammarConfig())

    def words(epoch: int) -> list[list[list[int]]]:
        return [batch.values.tolist() for batch in corpus.epoch(config, 5, epoch)]

    assert words(0) == words(0)
    assert words(0) != words(1)
    assert all(len(batch) <= 4 for batch in words(0))
    assert sum(map(len, words(0))) == len(corpus.train)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tokens": 0}, "tokens is 0, but must be at least 1, unless"),
        ({"batching": "equal"}, 'batching is "equal", but sentences'),
        ({"batching": "unsorted", "sentences": 3}, 'sentences is 3, but batching is "unsorted"'),
        ({"max_length": -1}, "max_length is -1"),
    ],
)
def test_batches_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DomainError, match=words):
        DataConfig(**settings)


def test_a_grammar_has_no_streams() -> None:
    with pytest.raises(DomainError, match=r'"streams", but a grammar is of sentences'):
        Config(GrammarConfig(), DataConfig(batching="streams"))


def test_a_perplexity_divides_by_words_and_sentences() -> None:
    model = build_model(tiny().model, 9, seed=1)
    rows = [[1, 2, 3], [4, 5], [6, 7, 8, 1]]
    found = evaluate(model, rows, DataConfig())
    one_by_one = sum(float(model.log_likelihood(model.batch(torch.tensor([row]))).detach()) for row in rows)
    assert found.tokens == 9 + 3
    assert found.log_likelihood == pytest.approx(one_by_one, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(-one_by_one / 12), rel=1e-6)
    assert model.num_counted(Batch(torch.zeros(2, 5), torch.tensor([5, 3]))) == 8 + 2


def test_wide_sentences_come_in_small_batches() -> None:
    model = build_model(tiny().model, 9, seed=1)
    rows = [[1] * n for n in (40, 40, 40, 40, 10, 10, 10, 10)]
    wide = model.plan(1, 40).best.eval_token_bytes * 40
    batches = tree_batches(model, rows, memory=2 * wide)
    assert [len(group) for group in batches.groups if 0 in group or 1 in group] == [2]
    assert all(len(group) <= 2 for group in batches.groups if any(i < 4 for i in group))
    assert any(len(group) == 4 for group in batches.groups)  # the narrow ones all fit
    assert [len(group) for group in tree_batches(model, rows, memory=1).groups] == [1] * 8  # never none


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_and_is_saved(family: str, folder: Path, tmp_path: Path) -> None:
    result = train(tiny(family, max_length=9), folder, tmp_path / "run")
    assert result.finished
    assert math.isfinite(result.best_valid_perplexity)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    bound = [record.get("valid_bound", False) for record in metrics if "valid_perplexity" in record]
    assert bound == [family == "cpcfg"] * 3
    assert json.loads((tmp_path / "run" / "data.json").read_text())["train"]["left_out"]["sentences_of_one_word"] == 1
    model = load_model(tmp_path / "run" / "best")
    assert model.vocabulary is not None
    assert not model.vocabulary.ends
    assert model.is_bound == (family == "cpcfg")


@pytest.mark.parametrize("batching", ["equal", "length"])
@pytest.mark.parametrize("family", ["rankpcfg", "cpcfg"])
def test_an_interrupted_run_ends_with_the_same_digits(family: str, batching: str, folder: Path, tmp_path: Path) -> None:
    config = tiny(family, batching=batching, curriculum_start=4, curriculum_step=1)
    whole = train(config, folder, tmp_path / "whole")
    broken = train(config, folder, tmp_path / "broken", report=StopAfter(3))
    assert not broken.finished
    expect_same_end(train(config, folder, tmp_path / "broken", resume=True), whole)


def test_parts_of_trees_by_the_square_of_the_width() -> None:
    batch = Batch(torch.zeros(8, 10, dtype=torch.int64), torch.full((8,), 10))
    assert len(row_parts(batch, 80)) == 1
    assert len(row_parts(batch, 40)) == 2
    assert len(row_parts(batch, 40, tree_width=20)) == 1  # half as wide as the longest: twice as many tokens
    assert [rows.stop - rows.start for rows in row_parts(batch, 40, tree_width=10)] == [4, 4]


@pytest.mark.parametrize("parts", [False, True])
def test_parts_add_up_to_the_batch(parts: bool, folder: Path, tmp_path: Path) -> None:
    config = tiny("npcfg", sentences=8, tokens=0, max_length=9)
    text = DataSizes(len(read_corpus(folder, config.data, model=config.model).vocabulary), 9, 9)
    least = least_memory(config, text, "cpu").total / GIB
    limited = tiny("npcfg", sentences=8, tokens=0, max_length=9, memory=1.02 * least if parts else 0.0)
    budget = fit(limited, text, "cpu", int(limited.train.memory * GIB) if parts else None)
    assert bool(budget.part_tokens) == parts
    found = train(limited, folder, tmp_path / "run")
    assert found.best_valid_perplexity == pytest.approx(
        train(config, folder, tmp_path / "whole").best_valid_perplexity, rel=1e-5
    )


def test_a_sentence_too_long_for_the_memory_is_told_before_starting() -> None:
    config = load_recipe("small-npcfg")
    memory = GIB // 4
    limit = longest_sentence(config, 5000, "cpu", memory)
    assert 50 < limit < 2000
    assert least_memory(config, DataSizes(5000, limit, limit), "cpu").total <= memory
    assert least_memory(config, DataSizes(5000, limit + 4, limit + 4), "cpu").total > memory
    with pytest.raises(UnsupportedError, match=rf"npcfg of 60 nonterminals(.|\n)*more than {limit} words"):
        fit(config, DataSizes(5000, 40, 2 * limit), "cpu", memory)
    with pytest.raises(UnsupportedError, match=rf"data.max_length={limit} \(the longest sentence has {2 * limit}"):
        fit(config, DataSizes(5000, 2 * limit, 40), "cpu", memory)


@pytest.mark.parametrize(
    ("batch", "shape"), [((3, 9), (4, 12)), ((4, 12), (4, 12)), ((1, 2), (4, 4)), ((2, TREE_WIDEST + 1), None)]
)
def test_shapes_of_trees(batch: tuple[int, int], shape: tuple[int, int] | None) -> None:
    shapes = TreeShapes(DataConfig(sentences=4, tokens=0))
    words = torch.zeros(batch, dtype=torch.int64)
    assert shapes.of(Batch(words, torch.full((batch[0],), batch[1]))) == shape


def test_every_batch_of_a_recipe_has_a_shape(folder: Path) -> None:
    for config in (DataConfig(tokens=40), DataConfig(tokens=40, sentences=3), DataConfig(tokens=40, rounding=4)):
        corpus = read_corpus(folder, config, model=GrammarConfig())
        shapes = TreeShapes(config)
        for batch in corpus.epoch(config, 1, 0):
            shape = shapes.of(batch)
            assert shape is not None
            assert shape[0] * shape[1] <= 2 * 40 or shape[0] == 1


def test_batches_of_like_length_are_those_of_the_budget() -> None:
    rows = [[1] * n for n in (2, 3, 4, 5)]
    assert [len(group) for group in length_batches(rows, 10).groups] == [2, 2]
