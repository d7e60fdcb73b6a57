"""Inputs of estimators: one array, an array and lengths, or a list of arrays; validated before any work."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.data.frames import Missing, as_array, frames_of
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.models.config import FrameConfig


class NotANumberError(DataError, TypeError):
    """Something else among numbers; scikit-learn expects a TypeError there."""


class Inputs(NamedTuple):
    """Sequences as they came, and how to give answers back in the same form."""

    sequences: list[NDArray[Any]]  # "t f" features, or "t" symbols
    labels: list[NDArray[np.int64]] | None  # "t", -1: not known
    together: bool  # whether they came as one array
    missing: list[NDArray[np.bool_]] | None = None  # "t", of symbols
    inputs: list[NDArray[np.float64]] | None = None  # "t k"

    @property
    def lengths(self) -> list[int]:
        return [len(x) for x in self.sequences]

    def back(self, answers: Sequence[NDArray[Any]]) -> Any:
        """One array for one array, a list for a list."""
        return np.concatenate(list(answers)) if self.together else list(answers)


def lengths_of(x: Any, y: Any, lengths: Any) -> Any:
    """The lengths: `lengths`, or `y` where they came in its place, as with hmmlearn; a target is not used.

    A target has an entry for each row of `x`, lengths add up to the rows; anything else is refused.
    """
    if y is None:
        return lengths
    if isinstance(x, list | tuple):
        raise UnsupportedError(
            f"a {type(y).__name__} came as y, which is not used with a list of sequences.\n"
            "  Labels of frames are labels=...; lengths cut one array."
        )
    what = as_array(y, "y")
    if what.ndim:
        rows = (x.shape if hasattr(x, "shape") else as_array(x, "X").shape)[:1]
        whole = what.ndim == 1 and what.dtype.kind in "iu" and bool((what >= 1).all())
        is_lengths = whole and (int(what.sum()),) == rows
        if what.shape[:1] == rows:
            if is_lengths and rows != (1,):
                raise UnsupportedError(
                    f"{rows[0]} ones came as y for {rows[0]} rows: lengths of sequences, or a target?\n"
                    "  Write lengths=... for lengths; a target is not used."
                )
            return lengths
        if is_lengths and lengths is None:
            return what
    raise UnsupportedError(
        f"an array of shape {what.shape} came as y, which is not used: neither a target, one for each row, nor "
        "lengths that add up to the rows of one array.\n  Labels of frames are labels=..., lengths lengths=...."
    )


def names_of(x: Any) -> tuple[str, ...] | None:
    """The names of the columns, if they are strings; of a list, the names common to all its tables."""
    tables = x if isinstance(x, list | tuple) else [x]
    found = [_columns(table, i) for i, table in enumerate(tables)]
    for i, names in enumerate(found):
        if names != found[0]:
            raise DataError(
                f"sequence {i}: the columns are {names!r:.80}, but those of sequence 0 {found[0]!r:.80}.\n"
                "  All sequences of a set have the same features, in the same order."
            )
    return found[0] if found else None


def _columns(table: Any, i: int) -> tuple[str, ...] | None:
    columns = getattr(table, "columns", None)
    if columns is None:
        return None
    names = list(columns)
    text = [isinstance(name, str) for name in names]
    if any(text) and not all(text):
        raise DataError(
            f"sequence {i}: the column {names[text.index(False)]!r} has no string for its name, but others have.\n"
            "  Name all columns by strings: x.columns = x.columns.astype(str)."
        )
    return tuple(names) if all(text) else None


def expect_names(known: Sequence[str] | None, given: Sequence[str] | None, who: str) -> None:
    """Raise where columns have other names, or another order, than those of the fit; warn where one has none."""
    if known is None or given is None:
        if known is not None:
            warnings.warn(f"X does not have valid feature names, but {who} was fitted with feature names", stacklevel=4)
        elif given is not None:
            warnings.warn(f"X has feature names, but {who} was fitted without feature names", stacklevel=4)
        return
    if list(known) == list(given):
        return
    place = next((i for i, (a, b) in enumerate(zip(known, given, strict=False)) if a != b), min(len(known), len(given)))
    what = "Feature names must be in the same order as they were in fit."
    if sorted(known) != sorted(given):
        what = f"Unseen: {sorted(set(given) - set(known))!r:.80}; missing: {sorted(set(known) - set(given))!r:.80}."
    raise DomainError(
        "The feature names should match those that were passed during fit.\n"
        f"  {what}\n  They differ from column {place} on; take X[list(model.feature_names_in_)]."
    )


def read_features(
    x: Any, lengths: Any, labels: Any, *, num_states: int, missing: Missing, dtype: str = "float64"
) -> Inputs:
    """Sequences of feature vectors. Values that `dtype` cannot hold are refused.

    `missing`: of a frame with some NaN, "feature" takes the others, "row" none, "error" refuses it.
    """
    together = not isinstance(x, list | tuple)
    whole = [plain(x, "X")] if together else [plain(rows, f"sequence {i}") for i, rows in enumerate(x)]
    if together:
        shape = whole[0].shape
        if len(shape) == 1:
            raise DataError(
                f"Reshape your data: X has shape {shape}, but frames are rows and features columns.\n"
                "  A single feature is X[:, None], a single frame X[None]."
            )
        if len(shape) == 2 and shape[1] == 0:
            raise DataError(f"0 feature(s) (shape={shape}) while a minimum of 1 is required.")
    if dtype == "float32":
        with np.errstate(over="ignore"):  # what overflows is found, and named, as infinite
            whole = [rows.astype(np.float32) if rows.dtype.kind in "fiub" else rows for rows in whole]
    frames = frames_of(
        whole[0] if together else whole,
        lengths=lengths,
        labels=labels,
        label_names=[str(i) for i in range(num_states)],
        missing=missing,
    )
    return Inputs(frames.features, frames.labels, together)


def read_inputs(inputs: Any, given: Inputs) -> list[NDArray[np.float64]]:  # "t k" each
    """The inputs of every frame, in the form of the frames: one array, or a list. None may be missing."""
    lengths = given.lengths
    if given.together:
        whole = plain(inputs, "inputs")
        if whole.ndim != 2 or len(whole) != sum(lengths):
            raise ShapeError(
                f"inputs have shape {whole.shape}, but an array of {sum(lengths)} rows, one for each frame, was "
                "expected.\n  A single input is inputs[:, None]."
            )
        each = np.split(whole, np.cumsum(lengths)[:-1])
    else:
        if not isinstance(inputs, list | tuple) or len(inputs) != len(lengths):
            came = f"{len(inputs)}" if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
            raise ShapeError(
                f"inputs are {came}, but a list of one array for each of {len(lengths)} sequences was expected."
            )
        each = [plain(rows, f"inputs of sequence {i}") for i, rows in enumerate(inputs)]
    for i, (rows, length) in enumerate(zip(each, lengths, strict=True)):
        if rows.ndim != 2 or len(rows) != length or rows.shape[1] != each[0].shape[1] or not rows.shape[1]:
            raise ShapeError(
                f"inputs of sequence {i} have shape {rows.shape}, but {length} rows, one for each frame, of as many "
                "columns as all others were expected."
            )
        if rows.dtype.kind not in "fiub":
            raise DataError(f"inputs of sequence {i} are of type {rows.dtype}, but numbers were expected.")
        bad = ~np.isfinite(rows.astype(np.float64))
        if bad.any():
            t, k = (int(at[0]) for at in bad.nonzero())
            what = "missing (NaN)" if np.isnan(rows[t, k]) else "infinite"
            raise DataError(
                f"sequence {i}, row {t}: input {k} is {what}, but inputs have no distribution to sum over.\n"
                "  Fill it in, or cut the sequence there."
            )
    return [np.ascontiguousarray(rows, dtype=np.float64) for rows in each]


def with_inputs(given: Inputs, inputs: Any, *, observed: bool, driven: bool, num: int | None) -> Inputs:
    """The sequences with their inputs: as their last columns where observations read them, else next to them.

    `num`: how many inputs the model has; None: not known yet. Raises where they are missing, or nothing reads them.
    """
    if inputs is None:
        if driven or (observed and num):
            raise DomainError(
                "inputs are missing, but this model depends on them.\n  Give them: inputs=..., one row for each frame."
            )
        return given
    if not (observed or driven):
        raise DomainError(
            "inputs came, but nothing here depends on them.\n"
            '  Set input_driven=("transition",) or ("start",), or observations="regression" or "logistic".'
        )
    each = read_inputs(inputs, given)
    if num is not None and each[0].shape[1] != num:
        raise ShapeError(f"inputs have {each[0].shape[1]} columns, but the model was fitted with {num}.")
    sequences = given.sequences
    if observed:
        sequences = [np.concatenate([x, u.astype(x.dtype)], 1) for x, u in zip(sequences, each, strict=True)]
    return given._replace(sequences=sequences, inputs=each if driven else None)


def expect_observed(sequences: Sequence[NDArray[Any]], config: FrameConfig) -> None:
    """Raise unless the observations can take every value: the first that they cannot, and what to do."""
    if config.observation.takes_every_number():
        return  # infinite ones were refused when they were read
    several = len(sequences) > 1 and len({x.dtype for x in sequences}) == 1
    if several and config.invalid(torch.from_numpy(np.concatenate(sequences))) is None:
        return  # all at once: each by itself would take a dozen calls
    for i, rows in enumerate(sequences):
        wrong = config.invalid(torch.from_numpy(rows))
        if wrong is not None:
            t, f = wrong.at
            raise DataError(
                f'sequence {i}, row {t}: feature {f} is {rows[t, f]:g}, but observations="{config.observations}" are '
                f"{wrong.expected}.\n  {wrong.remedy}"
            )


def weights_of(given: Any, inputs: Inputs) -> tuple[float, ...] | None:
    """The weight of each sequence: one number each, or one for each row that is the same in all of a sequence."""
    if given is None:
        return None
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DomainError(f"sample_weight is no array of numbers ({error!s:.80}).") from None
    lengths = inputs.lengths
    rows = inputs.together and len(lengths) != sum(lengths) and weights.shape == (sum(lengths),)
    if weights.shape != (len(lengths),) and not rows:
        raise DomainError(
            f"sample_weight has shape {weights.shape}, but one number for each of {len(lengths)} sequences was "
            "expected."
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise DomainError("sample_weight has entries that are not finite, or below 0.")
    if not weights.any():
        raise DomainError("sample_weight is zero for every sequence: there is nothing to fit.")
    if rows:
        parts = np.split(weights, np.cumsum(lengths)[:-1])
        for i, part in enumerate(parts):
            if (part != part[0]).any():
                raise DomainError(f"sample_weight changes within sequence {i}, but a sequence has one weight.")
        weights = np.array([part[0] for part in parts])
    return None if (weights == 1).all() else tuple(map(float, weights))


def expect_width(width: int, estimator: Any) -> None:
    """Raise unless there are as many features as the estimator was fitted with."""
    if width != estimator.n_features_in_:
        raise DomainError(
            f"X has {width} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} features "
            "as input."
        )


def is_missing(value: Any) -> bool:
    """Whether an entry stands for nothing: None, NaN, pandas' NA."""
    if value is None or value is getattr(sys.modules.get("pandas"), "NA", None):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def plain(x: Any, where: str) -> NDArray[Any]:
    """An array of real numbers; of objects each by itself, where None, NaN and NA are missing."""
    if hasattr(x, "toarray"):
        raise UnsupportedError("a sparse matrix came, but frames are dense arrays.\n  Convert it: x.toarray().")
    array: NDArray[Any] = as_array(x, where)
    if array.dtype.kind == "c":
        raise UnsupportedError("Complex data not supported: frames are real numbers.")
    if array.dtype != object:
        return array
    numbers = np.empty(array.shape)
    for place, value in np.ndenumerate(array):
        try:
            if isinstance(value, str | bytes):
                raise TypeError("text")
            numbers[place] = np.nan if is_missing(value) else float(value)
        except (TypeError, ValueError) as error:
            spot = "".join(f", {axis} {i}" for axis, i in zip(("row", "feature"), place, strict=False))
            raise NotANumberError(
                f"{where}{spot}: {value!r:.40} is no number ({error!s:.80}).\n"
                "  Leave columns of text out; None, NaN and NA are missing values."
            ) from None
    return numbers


def with_index(segments: NDArray[Any], table: Any) -> NDArray[Any]:
    """Segments with the labels that the index of their table has for their first and last frame, if it has one."""
    index = getattr(table, "index", None)
    if index is None or callable(index):  # lists have a method of that name
        return segments
    labels = np.asarray(index)
    found = np.empty(len(segments), dtype=[*segments.dtype.descr, ("first", labels.dtype), ("last", labels.dtype)])
    for name in segments.dtype.names or ():
        found[name] = segments[name]
    found["first"], found["last"] = labels[segments["start"]], labels[segments["end"] - 1]
    return found
