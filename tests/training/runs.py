"""Runs small enough for a test: a text with structure, a tiny recipe, interruptions, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from rankfold.data.vocab import Vocabulary
from rankfold.data.weights import load_tensors
from rankfold.models.catalog import AnyModel, build_model
from rankfold.models.config import Family, ModelConfig
from rankfold.training.config import Config, DataConfig, TrainConfig
from rankfold.training.corpus import Corpus, find_clusters, read_corpus
from rankfold.training.loop import Result
from rankfold.training.report import Reporter
from rankfold.training.run_dir import read_metrics

FAMILIES: tuple[Family, ...] = get_args(Family)
NUM_WORDS = 20  # <unk> and <eos> included
NUM_TRAIN, NUM_VALID, NUM_TEST = 40, 7, 5

MODEL: dict[str, Any] = {
    "family": "lhmm",
    "num_states": 8,
    "rank": 4,
    "dim": 4,
    "num_layers": 1,
    "band": 2,
    "num_clusters": 4,
    "clusters": "uniform",
}
DROPOUT: dict[str, Any] = {"state_dropout": 0.4, "feature_dropout": 0.4, "logit_dropout": 0.2}
DATA: dict[str, Any] = {"tokens": 40, "eval_tokens": 64, "num_streams": 7, "window": 5}
TRAIN: dict[str, Any] = {
    "updates": 11,
    "seed": 3,
    "lr": 0.02,
    "evaluate_every": 4,
    "checkpoint_every": 5,
    "log_every": 3,
    "device": "cpu",
}


def tiny(**settings: Any) -> Config:
    """The tiny recipe, with settings in whichever table has them."""
    tables = {"model": (ModelConfig, MODEL), "data": (DataConfig, DATA), "train": (TrainConfig, TRAIN)}
    made: dict[str, Any] = {}
    for table, (cls, defaults) in tables.items():
        own = {name: settings.pop(name) for name in list(settings) if name in cls.__dataclass_fields__}
        made[table] = cls(**{**defaults, **own})
    assert not settings, f"no table has {settings}"
    return Config(**made)


def sentence(i: int) -> str:
    """Words in a circle, from the i-th on, 1 to 8 of them: the next word follows from the last."""
    words = [f"w{j:02}" for j in range(NUM_WORDS - 2)]
    return " ".join(itertools.islice(itertools.cycle(words), 5 * i % len(words), 5 * i % len(words) + 1 + 3 * i % 8))


def write_corpus(folder: Path, *, test: bool = True) -> Path:
    """A folder with the splits."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = list(itertools.accumulate([NUM_TRAIN, NUM_VALID, NUM_TEST], initial=0))
    for split, start, end in zip(("train", "valid", "test"), ends, ends[1:], strict=False):
        if test or split != "test":
            (folder / f"{split}.txt").write_text("".join(f"{sentence(i)}\n" for i in range(start, end)))
    return folder


def fresh_model(config: Config, corpus: Corpus, *, seed: int | None = None) -> AnyModel:
    """The model a run starts with; with a seed, other parameters on the same word clusters."""
    clusters = find_clusters(config.model, corpus, config.train.seed, lambda line: None)
    return build_model(
        config.model, len(corpus.vocabulary), clusters=clusters, seed=config.train.seed if seed is None else seed
    )


def corpus_of(config: Config, data: Path) -> Corpus:
    """The text as a run reads it."""
    return read_corpus(data, config.data)


class StopAfter(Reporter):
    """Ctrl-C, `times` times, while the update after which the run has done `update` of them is being reported."""

    def __init__(self, update: int, *, times: int = 1, number: int = signal.SIGINT) -> None:
        self.at, self.times, self.number = update, times, number
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self, done: int, record: dict[str, Any]) -> None:
        if done == self.at:
            for _ in range(self.times):
                signal.raise_signal(self.number)


def metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run, without the seconds, which no two runs share."""
    return [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def state(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a run's checkpoint, and where it stood, without what depends on the clock."""
    tensors, metadata = load_tensors(run / "checkpoint.safetensors")
    content = json.loads(metadata["state"])
    for name in ("seconds", "metrics_size"):  # the digits of the seconds are part of the size
        del content["progress"][name]
    return tensors, content


def expect_same_end(a: Result, b: Result) -> None:
    """Raise unless two runs ended alike, to the last bit: parameters, optimiser, metrics, best model, test."""
    assert (a.updates, a.finished, a.test) == (b.updates, b.finished, b.test)
    assert a.best_valid_perplexity == b.best_valid_perplexity
    (tensors, content), (others, other_content) = state(a.run), state(b.run)
    assert content == other_content
    expect_equal(tensors, others)
    best, other_best = (load_tensors(x.run / "best" / "model.safetensors")[0] for x in (a, b))
    expect_equal(best, other_best)
    assert metrics(a.run) == metrics(b.run)


def expect_equal(tensors: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    """Raise unless names, types and bits are the same."""
    assert tensors.keys() == others.keys()
    for name, x in tensors.items():
        assert x.dtype == others[name].dtype, name
        assert torch.equal(x, others[name]), name


def decoded(vocabulary: Vocabulary, rows: list[list[int]]) -> list[list[str]]:
    """Sentences of ids as words."""
    return [vocabulary.decode(row) for row in rows]


def replaced(config: Config, table: str, **settings: Any) -> Config:
    """The recipe with other values in one table."""
    return dataclasses.replace(config, **{table: dataclasses.replace(getattr(config, table), **settings)})
