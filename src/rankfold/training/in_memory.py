"""Data given in Python instead of by the name of a file: sentences, or frames, as lists or by split.

`{"train": ..., "valid": ..., "test": ...}` names the splits; test may be missing. Of a plain list of sentences every
tenth is held out for validation; recordings without splits are all training, as those of a file are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankfold.data.frames import Frames, Missing, frames_of
from rankfold.data.sources import Source
from rankfold.data.text import expect_no_brackets
from rankfold.errors import DataError, quantity

SPLITS = ("train", "valid", "test")
HELD_OUT = 10  # of so many sentences one is for validation


def is_in_memory(data: Any) -> bool:
    """Whether data are given themselves, not by a path."""
    return not isinstance(data, str | os.PathLike)


def name_data(data: Any) -> str:
    """How an error names the data: the path, or that they were given."""
    return "the data" if is_in_memory(data) else str(data)


def text_sources(data: Any, *, brackets: bool = True) -> dict[str, Source]:
    """The sentences of each split; empty ones are skipped and counted."""
    if isinstance(data, Mapping):
        _expect_splits(data, needed=("train", "valid"))
        return {split: _source(data[split], f"data[{split!r}]", brackets=brackets) for split in SPLITS if split in data}
    found = _source(data, "data", brackets=brackets)
    if len(found) < 2:
        raise DataError(
            f"the data are {quantity(len(found), 'sentence')}, but one to train on and one to validate are needed."
        )
    step = min(HELD_OUT, len(found))
    held = [i % step == step - 1 for i in range(len(found))]
    parts = ([x for x, out in zip(found, held, strict=True) if out is wanted] for wanted in (False, True))
    train, valid = map(Source, parts)
    return {"train": Source(train.sentences, found.left_out), "valid": valid}


def frame_splits(data: Any, *, missing: Missing = "error") -> dict[str, Frames]:
    """The recordings of each split; all of them are "train" where nothing says otherwise."""
    if isinstance(data, Mapping):
        _expect_splits(data, needed=("train",))
        return {split: _frames(data[split], missing) for split in SPLITS if split in data}
    found = _frames(data, missing)
    if found.splits is None:
        return {"train": found}
    return {name: found.split(name) for name in SPLITS if name in found.splits}


def _expect_splits(data: Mapping[Any, Any], needed: Sequence[str]) -> None:
    for name in data:
        if name not in SPLITS:
            raise DataError(f"the data have a split {name!r}, but splits are train, valid and test.")
    for name in needed:
        if name not in data:
            raise DataError(f"the data have no split {name!r}; there are {', '.join(data) or 'none'}.")


def _source(sentences: Any, where: str, *, brackets: bool) -> Source:
    if isinstance(sentences, str) or not isinstance(sentences, Sequence):
        raise DataError(
            f"{where} is a {type(sentences).__name__}, but a list of sentences was expected, each a string or a list "
            "of words.\n  Of a file give its path."
        )
    rows = []
    for i, sentence in enumerate(sentences):
        words = sentence.split() if isinstance(sentence, str) else sentence
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{where}[{i}] is {sentence!r:.60}, but a string or a list of words was expected.")
        if not brackets:
            expect_no_brackets(words, f"{where}[{i}]")
        rows.append(list(words))
    kept = [words for words in rows if words]
    if not kept:
        raise DataError(f"{where}: no sentence has a word.")
    return Source(kept, {"empty_lines": len(rows) - len(kept)} if len(kept) < len(rows) else {})


def _frames(given: Any, missing: Missing) -> Frames:
    if isinstance(given, Frames):
        return given
    alone = isinstance(given, np.ndarray) and given.ndim == 2
    return frames_of([given] if alone else given, missing=missing)
