"""Sequences of symbols: whole numbers or strings, some of which may be missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.data.frames import as_array, frames_of
from rankfold.errors import DataError
from rankfold.estimators.inputs import Inputs, is_missing

# What numpy and pandas make of missing values in arrays of strings.
WRITTEN_MISSING = ("nan", "None", "<NA>")


def read_symbols(x: Any, lengths: Any, labels: Any, *, num_states: int, may_miss: bool = False) -> Inputs:
    """Sequences of symbols: a list of strings, lists or arrays; or one array of all, and the lengths.

    -1, None, NaN and NA are missing symbols; unless they `may_miss` them all, each sequence has one that is not.
    """
    together = not isinstance(x, list | tuple)
    if isinstance(x, str):
        raise DataError("one string came, but a list of sequences was expected.\n  Write [text].")
    pairs = [_symbols(s, i) for i, s in enumerate([x] if together else x)]
    if not pairs:
        raise DataError("no sequences; at least one was expected.")
    arrays, gone = [symbols for symbols, _ in pairs], [missing for _, missing in pairs]
    # The rules of lengths and labels are those of frames.
    columns: Any = [np.zeros((len(a), 1)) for a in arrays]
    frames = frames_of(
        columns[0] if together else columns,
        lengths=lengths,
        labels=labels,
        label_names=[str(i) for i in range(num_states)],
    )
    if together and len(frames) > 1:
        arrays, gone = (np.split(rows[0], np.cumsum(frames.lengths)[:-1]) for rows in (arrays, gone))
    for i, missing in enumerate(gone):
        if missing.all() and not may_miss:
            raise DataError(f"sequence {i}: all {len(missing)} symbols are missing (-1).\n  Leave such sequences out.")
    return Inputs(list(arrays), frames.labels, together, list(gone))


def _symbols(sequence: Any, i: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The symbols, int64 or str, and which of them are missing."""
    if isinstance(sequence, str):
        sequence = np.array(list(sequence), dtype=str)
    known = hasattr(sequence, "dtype") or hasattr(sequence, "__array__")  # a DataFrame has the second alone
    array = as_array(sequence if known else _objects(sequence, i), f"sequence {i}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not len(array):
        raise DataError(
            f"sequence {i}: has shape {array.shape}, but symbols come in one row, at least one of them.\n"
            "  Write a list of sequences: [[0, 1, 2], [2, 0]] or ['abba', 'bab']."
        )
    if array.dtype.kind == "O":
        return _of_objects(array, i)
    if array.dtype.kind in "US":
        return _of_text(array, i)
    if array.dtype.kind not in "iubf":
        raise DataError(f"sequence {i}: symbols of {array.dtype}; whole numbers or strings were expected.")
    return _of_numbers(array, i)


def _objects(sequence: Any, i: int) -> NDArray[Any]:
    try:
        return np.array(list(sequence), dtype=object)
    except (ValueError, TypeError):
        raise DataError(
            f"sequence {i}: is {sequence!r:.40}, but a row of whole numbers or strings was expected.\n"
            "  Write a list of sequences: [[0, 1, 2], [2, 0]] or ['abba', 'bab']."
        ) from None


def _of_objects(array: NDArray[Any], i: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    missing = np.array([is_missing(value) for value in array])
    here = [(t, value) for t, value in enumerate(array) if not missing[t]]
    for t, value in here:
        kinds = str if here and isinstance(here[0][1], str) else int | float | np.integer | np.floating | np.bool_
        if not isinstance(value, kinds):
            raise DataError(
                f"sequence {i}, position {t}: the symbol is {value!r:.40}, but whole numbers or strings were expected, "
                "one kind in all sequences.\n  None, NaN and NA are missing symbols."
            )
    if here and not isinstance(here[0][1], str):
        return _of_numbers(np.array([-1 if gone else x for x, gone in zip(array, missing, strict=True)], float), i)
    if not here:
        return np.full(len(array), -1), missing
    return np.array(["" if gone else x for x, gone in zip(array, missing, strict=True)], dtype=str), missing


def _of_text(array: NDArray[Any], i: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    try:
        text = array.astype(str)
    except UnicodeDecodeError as error:
        raise DataError(f"sequence {i}: bytes that are no text ({error}).\n  Give strings.") from None
    written = np.isin(text, WRITTEN_MISSING)
    if written.any():
        t = int(written.argmax())
        raise DataError(
            f"sequence {i}, position {t}: the symbol is {text[t].item()!r} in an array of strings, which is what a "
            "missing value becomes there.\n  Give dtype=object for missing values, or a list of strings for a word."
        )
    return text, np.zeros(len(text), bool)


def _of_numbers(array: NDArray[Any], i: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), -1.0, array)
        odd = (array != np.floor(array)) | ~(np.abs(array) < 2.0**53)  # beyond that floats are no longer counted
    else:
        odd = array > 2**53 if array.dtype.kind == "u" else np.zeros(len(array), bool)
    if odd.any():
        t = int(odd.argmax())
        raise DataError(
            f"sequence {i}, position {t}: the symbol is {array[t].item()!r}, but whole numbers or strings were "
            "expected.\n  -1 is a missing symbol."
        )
    found = array.astype(np.int64)
    if (found < -1).any():
        t = int((found < -1).argmax())
        raise DataError(
            f"sequence {i}, position {t}: the symbol is {int(found[t])}, but whole numbers from 0 on were expected.\n"
            "  -1 is a missing symbol."
        )
    return found, found == -1


def symbol_ids(given: Inputs, symbols: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The place of every symbol among the known ones, -1 where it is missing."""
    assert given.missing is not None
    found = []
    for i, (row, missing) in enumerate(zip(given.sequences, given.missing, strict=True)):
        if missing.all():
            found.append(np.full(len(row), -1))
            continue
        if row.dtype.kind != symbols.dtype.kind:
            raise DataError(f"sequence {i}: symbols of {row.dtype}, but the model knows {symbols.dtype}.")
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


def collect_symbols(given: Inputs, num_symbols: int | None) -> NDArray[Any]:
    """All symbols, sorted: the ones in the data, or 0..num_symbols - 1."""
    assert given.missing is not None
    if num_symbols is not None:
        return np.arange(num_symbols)
    here = [row[~missing] for row, missing in zip(given.sequences, given.missing, strict=True) if not missing.all()]
    if not here:
        raise DataError("all symbols are missing (-1).\n  Leave such sequences out.")
    if len({row.dtype.kind for row in here}) > 1:
        raise DataError("some sequences have whole numbers for symbols and others strings; one kind was expected.")
    return np.unique(np.concatenate(here))
