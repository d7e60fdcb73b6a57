"""Runs on sentences: a corpus, its vocabulary and clusters, perplexity. Read next: `training/corpus.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rankfold.data.clusters import Clusters
from rankfold.data.vocab import Vocabulary
from rankfold.models.catalog import AnyModel, build_model
from rankfold.models.grammar_config import GrammarConfig
from rankfold.models.pretrained import load_model, save_model
from rankfold.numerics.precision import Precision
from rankfold.training.checkpoint import Loaded, Progress
from rankfold.training.config import Config, DataConfig
from rankfold.training.corpus import Corpus, read_corpus
from rankfold.training.evaluation import Evaluation, denominator, evaluate
from rankfold.training.gradients import Gradients
from rankfold.training.memory import Room
from rankfold.training.report import Reporter
from rankfold.training.setup import clusters, fitted
from rankfold.training.task import PERPLEXITY, Task


class TextTask(Task):
    """A model of words and its corpus."""

    measure = PERPLEXITY
    changed = "the text is not the one"

    def __init__(self, config: Config, corpus: Corpus, report: Reporter) -> None:
        self.config, self.corpus, self.report, self.own = config, corpus, report, config.words
        self._clusters: Clusters | None = None

    @classmethod
    def read(cls, config: Config, data: str | Path, run: Path, report: Reporter, *, resume: bool) -> TextTask:
        """The text of a folder; a resumed run has its vocabulary already."""
        vocabulary = Vocabulary.load(run / "vocab.json") if resume else None
        return cls(config, read_corpus(data, config.data, vocabulary, model=config.words), report)

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return self.corpus.fingerprint

    @property
    def has_test(self) -> bool:  # type: ignore[override]
        return self.corpus.test is not None

    def summary(self) -> Mapping[str, Any]:
        return self.corpus.summary()

    def keep(self, folder: Path) -> None:
        self.corpus.vocabulary.save(folder / "vocab.json")

    def prepare(self, loaded: Loaded | None) -> None:
        self._clusters = clusters(self.config, self.corpus, self.report, loaded)

    def expect_batches(self) -> None:
        if self.config.data.batching == "streams" or self.config.data.curriculum_start:
            self.epoch(0)

    def room(self, device: torch.device, progress: Progress, say: Callable[[str], None]) -> Room:
        return fitted(self.config, self.corpus, self._clusters, device, progress, say)

    def model(self) -> AnyModel:
        model = build_model(self.own, len(self.corpus.vocabulary), clusters=self._clusters, seed=self.config.train.seed)
        model.vocabulary = self.corpus.vocabulary
        return model

    def steps(self, *made_of: Any) -> Gradients:
        return Gradients(*made_of)

    def save(self, model: AnyModel, folder: Path) -> None:
        save_model(model, folder, file_bytes=self.config.train.shard_bytes)

    def load(self, folder: Path, device: str) -> AnyModel:
        return load_model(folder, device=device)

    def lines(self, model: AnyModel) -> list[str]:
        count = sum(x.numel() for x in model.parameters())
        lines = [
            f"{self.own.family}, {count:,} parameters, {len(self.corpus.vocabulary):,} words, "
            f"{self.corpus.train.num_tokens:,} training tokens"
        ]
        if isinstance(self.own, GrammarConfig):
            bounds = ", and are bounds: the true ones are lower" if model.is_bound else ""
            lines.append(f"perplexities divide by {denominator(model)}{bounds}")
        return lines

    def warnings(self) -> list[str]:
        return self.corpus.warnings()

    def epoch(self, epoch: int) -> Any:
        return self.corpus.epoch(self.config.data, self.config.train.seed, epoch)

    def counted(self, batch: Any) -> int:
        tokens: int = batch.num_tokens + (len(batch.values) if isinstance(self.own, GrammarConfig) else 0)
        return tokens

    def evaluate(self, model: AnyModel, split: str, data: DataConfig, precision: Precision = "float32") -> Evaluation:
        return evaluate(model, self.corpus.splits[split], data, precision=precision)

    def shown(self, batches: Sequence[Any]) -> dict[str, Any]:
        rows = [
            self.corpus.vocabulary.decode(words[:length].tolist())
            for batch in batches
            for words, length in zip(batch.values, batch.lengths.tolist(), strict=True)
        ]
        return {"sentences": rows}
