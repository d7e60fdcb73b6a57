"""A folder of text as what a run needs: ids, vocabulary, batches of every epoch, word clusters.

Read next: `data/batch.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rankfold.data.batch import Batch, Batches, epoch_generator, length_batches, streams, unsorted_batches
from rankfold.data.brown import brown
from rankfold.data.clusters import Clusters, read_clusters, uniform_clusters
from rankfold.data.text import Sentences, find_split, has_split, read_sentences
from rankfold.data.vocab import Encoded, Vocabulary
from rankfold.errors import DataError
from rankfold.models.config import ModelConfig
from rankfold.training.config import DataConfig


@dataclass(frozen=True)
class Corpus:
    """The splits of a text as ids of the training text's vocabulary."""

    vocabulary: Vocabulary
    train: Encoded
    valid: Encoded
    test: Encoded | None

    @property
    def splits(self) -> dict[str, Encoded]:
        """The splits that are there, by name."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: split for name, split in splits.items() if split is not None}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all ids: what a resumed run must find again."""
        return hashlib.sha256(repr([split.sentences for split in self.splits.values()]).encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """What was read, counted: words that became <unk> among it."""
        return {
            "fingerprint": self.fingerprint,
            "vocabulary": len(self.vocabulary),
            **{
                name: {"sentences": len(split), "tokens": split.num_tokens, "unknown_words": split.num_unknown}
                for name, split in self.splits.items()
            },
        }

    def warnings(self) -> list[str]:
        """What a reader of perplexities should know: held-out words that became <unk>."""
        lines = []
        for name, split in self.splits.items():
            if split.num_unknown and name != "train":
                share = split.num_unknown / split.num_tokens
                lines.append(
                    f"{name}: {split.num_unknown:,} words ({share:.1%} of tokens) are unknown, counted as <unk>"
                )
        if lines and not self.vocabulary.has_unk_mass:
            lines.append(
                "the training text has no <unk>: unknown words have no trained probability (see data.min_count)"
            )
        return lines

    def epoch(self, config: DataConfig, seed: int, epoch: int) -> Batches | list[Batch]:
        """The batches of an epoch, the same whenever asked."""
        generator = epoch_generator(seed, epoch)
        if config.batching == "streams":
            return streams(self.train, config.num_streams, config.window, generator=generator)
        if config.batching == "unsorted":
            return unsorted_batches(self.train, config.tokens, generator=generator)
        return length_batches(self.train, config.tokens, generator=generator, rounding=config.rounding)


def read_corpus(folder: str | Path, config: DataConfig, vocabulary: Vocabulary | None = None) -> Corpus:
    """train and valid, and test if it is there; the vocabulary is built from train unless one is given."""
    paths = {split: find_split(folder, split) for split in ("train", "valid")}
    test = find_split(folder, "test") if has_split(folder, "test") else None
    texts: dict[str, Sentences] = {split: read_sentences(path) for split, path in paths.items()}
    if vocabulary is None:
        vocabulary = Vocabulary.build(texts["train"], max_size=config.max_vocabulary, min_count=config.min_count)
    train, valid = vocabulary.encode_all(texts["train"]), vocabulary.encode_all(texts["valid"])
    held_out = None if test is None else vocabulary.encode_all(read_sentences(test))
    return Corpus(vocabulary, train, valid, held_out)


def find_clusters(config: ModelConfig, corpus: Corpus, seed: int, progress: Callable[[str], None]) -> Clusters | None:
    """The word clusters a block model asks for; None for the other families."""
    if config.family != "block":
        return None
    num_words = len(corpus.vocabulary)
    if config.num_clusters > num_words:
        raise DataError(
            f"the model has {config.num_clusters} clusters, but the text only {num_words} words.\n"
            f"  Set model.num_clusters to at most {num_words}."
        )
    if config.clusters == "uniform":
        return uniform_clusters(num_words, config.num_clusters, seed=seed)
    if config.clusters != "brown":
        if not Path(config.clusters).is_file():
            raise DataError(
                f'model.clusters is {config.clusters!r}: no such file, and neither "brown" nor "uniform".\n'
                "  Give one of these, or a file of word clusters."
            )
        clusters = read_clusters(config.clusters, corpus.vocabulary.index, missing="last")
        if clusters.num_clusters != config.num_clusters:
            raise DataError(
                f"{config.clusters} has {clusters.num_clusters} clusters, but model.num_clusters is "
                f"{config.num_clusters}.\n  Set model.num_clusters={clusters.num_clusters}."
            )
        return clusters
    progress(f"Brown clusters of {num_words:,} words")
    return brown(corpus.train.sentences, num_words, config.num_clusters)
