"""A folder of text, read for a run: ids, vocabulary, batches of every epoch, word clusters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rankfold.data.batch import (
    Batch,
    Batches,
    epoch_generator,
    equal_batches,
    length_batches,
    streams,
    unsorted_batches,
)
from rankfold.data.brown import brown
from rankfold.data.clusters import Clusters, read_clusters, uniform_clusters
from rankfold.data.prepare import Megabytes
from rankfold.data.sources import Source, TextFile, left_out_text, read_source
from rankfold.data.text import find_split, has_split
from rankfold.data.tokenize import Tokenizer
from rankfold.data.vocab import Encoded, Spelling, Vocabulary
from rankfold.errors import DataError
from rankfold.models.config import AnyConfig
from rankfold.models.strings import expect_ends
from rankfold.training.config import DataConfig
from rankfold.training.in_memory import is_in_memory, text_sources


@dataclass(frozen=True)
class Corpus:
    """The splits of a text as ids of the training text's vocabulary."""

    vocabulary: Vocabulary
    train: Encoded
    valid: Encoded
    test: Encoded | None
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by split, counts of what was left out

    @property
    def splits(self) -> dict[str, Encoded]:
        """The splits that are there, by name."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: split for name, split in splits.items() if split is not None}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all ids: a resumed run must find the same."""
        digest = hashlib.sha256()  # of the lists as Python writes them, a thousand sentences at a time
        for i, split in enumerate(self.splits.values()):
            digest.update(b", [" if i else b"[[")
            rows = split.sentences
            for start in range(0, len(rows), 1000):
                digest.update((", " if start else "").encode() + repr(rows[start : start + 1000])[1:-1].encode())
            digest.update(b"]")
        digest.update(b"]")
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """Counts of the data read, words that became <unk> included."""
        return {
            "fingerprint": self.fingerprint,
            "vocabulary": len(self.vocabulary),
            **{
                name: {
                    "sentences": len(split),
                    "tokens": split.num_tokens,
                    "unknown_words": split.num_unknown,
                    **({"left_out": dict(self.left_out[name])} if self.left_out.get(name) else {}),
                }
                for name, split in self.splits.items()
            },
        }

    def warnings(self) -> list[str]:
        """What a reader of perplexities should know: what was left out, held-out words that became <unk>, and
        whether that is trained.
        """
        lines = [
            f"{name}: left out {left_out_text(self.left_out[name])}" for name in self.splits if self.left_out.get(name)
        ]
        for name, split in self.splits.items():
            if split.num_unknown and name != "train":
                share = split.num_unknown / split.num_tokens
                lines.append(
                    f"{name}: {split.num_unknown:,} words ({share:.1%} of tokens) are unknown, counted as <unk>"
                )
        if not any(self.vocabulary.unk_id in row for row in self.train):
            lines.append(
                "warning: the training text has no <unk>: unknown words have no trained probability; words rarer "
                "than data.min_count would train it, and no word is"
            )
        return lines

    def epoch(self, config: DataConfig, seed: int, epoch: int) -> Batches | list[Batch]:
        """The batches of an epoch, the same at every call."""
        generator, rows = epoch_generator(seed, epoch), self._short_enough(config, epoch)
        if config.batching == "streams":
            return streams(rows, config.num_streams, config.window, generator=generator)
        return cut_rows(rows, config, generator)

    def _short_enough(self, config: DataConfig, epoch: int) -> list[list[int]]:
        """The training sentences of an epoch: all, or those the curriculum has reached."""
        longest = config.longest_at(epoch)
        if longest is None:
            return self.train.sentences
        ends = int(self.vocabulary.ends)
        rows = [row for row in self.train if len(row) - ends <= longest]
        if not rows:
            shortest = min(map(len, self.train)) - ends
            raise DataError(
                f"data.curriculum_start is {config.curriculum_start}, but the shortest training sentence has "
                f"{shortest} words.\n  Set it to at least {shortest}."
            )
        return rows


def cut_rows(rows: Sequence[Sequence[int]], config: DataConfig, generator: torch.Generator | None) -> Batches:
    """The batches of sequences that are whole, as a recipe cuts them."""
    if config.batching == "unsorted":
        return unsorted_batches(rows, config.tokens, generator=generator)
    sentences, tokens = config.sentences or None, config.tokens or None
    if config.batching == "equal":
        return equal_batches(rows, config.sentences, max_tokens=tokens, generator=generator)
    limit = tokens or config.batch_tokens(max(map(len, rows)) + config.rounding)
    return length_batches(rows, limit, generator=generator, rounding=config.rounding, max_sentences=sentences)


def read_corpus(
    data: Any,
    config: DataConfig,
    vocabulary: Vocabulary | None = None,
    *,
    model: AnyConfig | None = None,
    say: Callable[[str], None] | None = None,
) -> Corpus:
    """train and valid, and test if it is there, of a folder, or given in Python (`in_memory`).

    The vocabulary is built from train unless one is given. Text of a file is read twice, a line at a time, and kept as
    ids alone; `say` is told of it now and then.

    For a grammar also of trees, whose words are read and nothing else; its sentences have no `<eos>`, and those of one
    word are left out unless it generates them. The vocabulary takes on the tokenizer of a prepared folder.
    """
    trees = _is_grammar(model)
    if is_in_memory(data):
        sources: dict[str, Source | TextFile] = {}
        sources |= {split: _usable(x, model) for split, x in text_sources(data, brackets=not trees).items()}
        places = {split: f"data[{split!r}]" for split in sources}
    else:
        paths = {split: find_split(data, split, trees=trees) for split in ("train", "valid")}
        if has_split(data, "test", trees=trees):
            paths["test"] = find_split(data, "test", trees=trees)
        sources = {split: _source(path, config, model, say) for split, path in paths.items()}
        places = {split: str(path) for split, path in paths.items()}
    _expect_some(sources, places)
    if vocabulary is None:
        vocabulary = Vocabulary.build(
            sources["train"],
            max_size=config.max_vocabulary,
            min_count=config.min_count,
            ends=not trees,
            spelling=Spelling(config.lower, config.numbers),
            tokenizer=None if is_in_memory(data) else Tokenizer.load(data),
        )
    expect_ends(vocabulary, model)
    if config.max_length:
        sources["train"] = sources["train"].up_to(config.max_length)
        _expect_some(sources, places)
    encoded = {split: vocabulary.encode_all(source) for split, source in sources.items()}
    _expect_some(sources, places, encoded)
    left_out = {split: source.left_out for split, source in sources.items() if source.left_out}
    return Corpus(vocabulary, encoded["train"], encoded["valid"], encoded.get("test"), left_out)


def _expect_some(
    sources: Mapping[str, Source | TextFile],
    places: Mapping[str, str],
    encoded: Mapping[str, Encoded] | None = None,
) -> None:
    for split, source in sources.items():
        read = source if encoded is None else encoded[split]
        if not isinstance(read, TextFile) and not len(read):
            raise DataError(
                f"{places[split]}: no sentence is left without {left_out_text(source.left_out)}.\n"
                "  A grammar takes sentences of two words and more (model.single_words), up to data.max_length."
            )


def _is_grammar(model: AnyConfig | None) -> bool:
    return model is not None and model.data == "sentences"


def _source(path: Path, config: DataConfig, model: Any, say: Callable[[str], None] | None) -> Source | TextFile:
    if not _is_grammar(model):
        return TextFile(path, progress=None if say is None else Megabytes(f"{path}: read", say))
    return _usable(read_source(path, word_tags=config.word_tags), model)


def _usable(source: Source, model: Any) -> Source:
    """Without sentences of one word where a grammar does not generate them."""
    return source.longer_than_one() if _is_grammar(model) and not model.single_words else source


def find_clusters(config: Any, corpus: Corpus, seed: int, progress: Callable[[str], None]) -> Clusters | None:
    """The word clusters a block model asks for; None for the other families."""
    if not config.has_clusters:
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
