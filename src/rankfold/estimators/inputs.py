"""What estimators take: one array, an array and lengths, a list of arrays, or symbols; checked before any work.

Read next: `data/frames.py`, which checks features and labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankfold.data.frames import frames_of
from rankfold.errors import DataError, UnsupportedError

Missing = Literal["feature", "row", "error"]


class Given(NamedTuple):
    """Sequences as they came, and how to give answers back in the same form."""

    sequences: list[NDArray[Any]]  # "t f" features, or "t" symbols
    labels: list[NDArray[np.int64]] | None  # "t", -1: not known
    together: bool  # whether they came as one array

    @property
    def lengths(self) -> list[int]:
        return [len(x) for x in self.sequences]

    def back(self, answers: Sequence[NDArray[Any]]) -> Any:
        """One array for one array, a list for a list."""
        return np.concatenate(list(answers)) if self.together else list(answers)


def given_features(x: Any, lengths: Any, labels: Any, *, num_states: int, binary: bool, missing: Missing) -> Given:
    """Sequences of feature vectors; with `binary` 0 and 1 alone.

    `missing`: of a frame with some NaN, "feature" takes the others, "row" none, "error" refuses it.
    """
    together = not isinstance(x, list | tuple)
    if together:
        x = _plain(x)
        if x.ndim == 1:
            raise DataError(
                f"Reshape your data: X has shape {x.shape}, but frames are rows and features columns.\n"
                "  A single feature is X[:, None], a single frame X[None]."
            )
        if x.ndim == 2 and x.shape[1] == 0:
            raise DataError(f"0 feature(s) (shape={x.shape}) while a minimum of 1 is required.")
    absent: list[NDArray[np.bool_]] = []
    if missing == "feature":
        whole = [x] if together else [_plain(rows) for rows in x]
        absent = [_partly(rows) for rows in whole]
        whole = [np.where(gone, 0, rows) if gone.any() else rows for rows, gone in zip(whole, absent, strict=True)]
        x = whole[0] if together else whole
    frames = frames_of(
        x,
        lengths=lengths,
        labels=labels,
        label_names=[str(i) for i in range(num_states)],
        missing="row" if missing == "row" else "error",
    )
    sequences = list(frames)
    if any(gone.any() for gone in absent):
        gone_each = np.split(absent[0], np.cumsum(frames.lengths)[:-1]) if together else absent
        sequences = [np.where(gone, np.nan, rows) for rows, gone in zip(sequences, gone_each, strict=True)]
    if binary:
        for i, rows in enumerate(sequences):
            wrong = ~(np.isnan(rows) | (rows == 0) | (rows == 1))
            if wrong.any():
                t, f = np.argwhere(wrong)[0]
                raise DataError(
                    f'sequence {i}, row {t}: feature {f} is {rows[t, f]:g}, but observations="bernoulli" are 0 or 1.\n'
                    '  Cut them at a threshold (x > 0.5), or use observations="gaussian".'
                )
    return Given(sequences, frames.labels, together)


def _partly(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """The missing features of frames that are there in part."""
    gone = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros(rows.shape, bool)
    return gone & ~gone.all(1, keepdims=True) if rows.ndim == 2 else np.zeros(rows.shape, bool)


def _plain(x: Any) -> NDArray[Any]:
    """An array of real numbers from anything that turns into one."""
    if hasattr(x, "toarray"):
        raise UnsupportedError("a sparse matrix came, but frames are dense arrays.\n  Convert it: x.toarray().")
    array = np.asarray(x)
    if array.dtype.kind == "c":
        raise UnsupportedError("Complex data not supported: frames are real numbers.")
    return array.astype(np.float64) if array.dtype == object else array


def given_symbols(x: Any, lengths: Any, labels: Any, *, num_states: int, may_miss: bool = False) -> Given:
    """Sequences of symbols: a list of strings, lists or arrays; or one array of all, and the lengths.

    -1 is a missing symbol; unless they `may_miss` them all, each sequence has one that is not.
    """
    together = not isinstance(x, list | tuple)
    if isinstance(x, str):
        raise DataError("one string came, but a list of sequences was expected.\n  Write [text].")
    arrays = [_symbols(s, i) for i, s in enumerate(x)] if not together else [_symbols(x, 0)]
    if not arrays:
        raise DataError("no sequences; at least one was expected.")
    # The rules of lengths and labels are those of frames.
    columns: Any = [np.zeros((len(a), 1)) for a in arrays]
    frames = frames_of(
        columns[0] if together else columns,
        lengths=lengths,
        labels=labels,
        label_names=[str(i) for i in range(num_states)],
    )
    if together and len(frames) > 1:
        arrays = np.split(arrays[0], np.cumsum(frames.lengths)[:-1])
    for i, row in enumerate(arrays):
        if row.dtype.kind == "i" and (row == -1).all() and not may_miss:
            raise DataError(f"sequence {i}: all {len(row)} symbols are missing (-1).\n  Leave such sequences out.")
    return Given(list(arrays), frames.labels, together)


def _symbols(sequence: Any, i: int) -> NDArray[Any]:
    array = np.asarray(list(sequence) if isinstance(sequence, str) else _plain_symbols(sequence))
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not len(array):
        raise DataError(
            f"sequence {i}: has shape {array.shape}, but symbols come in one row, at least one of them.\n"
            "  Write a list of sequences: [[0, 1, 2], [2, 0]] or ['abba', 'bab']."
        )
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            odd = (array != np.floor(array)) | ~(np.abs(array) < 2.0**53)  # beyond that floats are no longer counted
        if odd.any():
            t = int(odd.argmax())
            raise DataError(
                f"sequence {i}, position {t}: the symbol is {array[t].item()!r}, but whole numbers or strings were "
                "expected.\n  -1 is a missing symbol."
            )
    if array.dtype.kind not in "iubfUSO":
        raise DataError(f"sequence {i}: symbols of {array.dtype}; whole numbers or strings were expected.")
    if array.dtype.kind not in "iubf":
        return array.astype(str)
    array = array.astype(np.int64)
    if (array < -1).any():
        t = int((array < -1).argmax())
        raise DataError(
            f"sequence {i}, position {t}: the symbol is {int(array[t])}, but whole numbers from 0 on were expected.\n"
            "  -1 is a missing symbol."
        )
    return array


def _plain_symbols(sequence: Any) -> Any:
    return sequence.tolist() if getattr(getattr(sequence, "dtype", None), "kind", "") == "O" else sequence


def symbol_ids(given: Given, symbols: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The place of every symbol among the known ones, -1 where a whole number is -1: missing."""
    found = []
    for i, row in enumerate(given.sequences):
        if row.dtype.kind != symbols.dtype.kind:
            raise DataError(f"sequence {i}: symbols of {row.dtype}, but the model knows {symbols.dtype}.")
        missing = row == -1 if row.dtype.kind == "i" else np.zeros(len(row), bool)
        ids = np.minimum(np.searchsorted(symbols, row), len(symbols) - 1)
        unknown = (symbols[ids] != row) & ~missing
        if unknown.any():
            t = int(unknown.argmax())
            raise DataError(
                f"sequence {i}, position {t}: the symbol {row[t].item()!r} is none of the {len(symbols)} known ones.\n"
                "  Give the number of symbols, n_symbols, before fit; smoothing above 0 gives unseen ones weight."
            )
        found.append(np.where(missing, -1, ids))
    return found


def known_symbols(given: Given, num_symbols: int | None) -> NDArray[Any]:
    """All symbols, sorted: those that occur, or 0..num_symbols - 1."""
    if num_symbols is not None:
        return np.arange(num_symbols)
    if len({row.dtype.kind for row in given.sequences}) > 1:
        raise DataError("some sequences have whole numbers for symbols and others strings; one kind was expected.")
    every = np.unique(np.concatenate(given.sequences))
    every = every[every != -1] if every.dtype.kind == "i" else every
    if not len(every):
        raise DataError("all symbols are missing (-1).\n  Leave such sequences out.")
    return every
