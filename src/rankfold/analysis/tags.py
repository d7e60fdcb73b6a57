"""States against parts of speech: how much of a hand-made tagging a model found by itself.

Every score compares two labellings of the same tokens and is in [0, 1], 1 where they agree up to names.
Read next: `usage.py`, which shows what a state says.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DataError

Floats = NDArray[np.float64]


class TagScores(NamedTuple):
    """How well states predict tags."""

    many_to_one: float
    one_to_one: float | None  # None where scipy is not installed
    v_measure: float
    homogeneity: float
    completeness: float
    num_tokens: int
    num_states_used: int
    num_tags: int
    mapping: dict[int, str]  # from each state to its most frequent tag


def tag_scores(predicted: Sequence[Sequence[int]], gold: Sequence[Sequence[str]]) -> TagScores:
    """The share of tokens whose state, renamed to a tag, is right, and the V-measure of states and tags.

    Many-to-one: each state is named for its most frequent tag (the first in the alphabet of equally frequent ones).
    One-to-one: each tag names at most one state, in the assignment with the most tokens right; states left over are
    wrong everywhere. With C the tag and K the state of a random token,

        homogeneity  h = 1 - H(C | K) / H(C)        1 if H(C) = 0
        completeness c = 1 - H(K | C) / H(K)        1 if H(K) = 0
        V-measure      = 2 h c / (h + c)            0 if h + c = 0

    Many-to-one grows with the number of states, up to 1 for a state per token; the other two do not.
    Source: Rosenberg, Hirschberg 2007 (beta = 1).
    """
    _check(predicted, gold)
    states, state_of = np.unique([state for sentence in predicted for state in sentence], return_inverse=True)
    tags, tag_of = np.unique([tag for sentence in gold for tag in sentence], return_inverse=True)
    counts = np.bincount(state_of * len(tags) + tag_of, minlength=len(states) * len(tags))
    table = counts.reshape(len(states), len(tags)).astype(np.float64)  # "k c": tokens of each state and tag
    total = table.sum()
    homogeneity, completeness = _explained(table), _explained(table.T)
    both = homogeneity + completeness
    return TagScores(
        many_to_one=float(table.max(1).sum() / total),
        one_to_one=_one_to_one(table),
        v_measure=2 * homogeneity * completeness / both if both > 0 else 0.0,
        homogeneity=homogeneity,
        completeness=completeness,
        num_tokens=int(total),
        num_states_used=len(states),
        num_tags=len(tags),
        mapping={int(state): str(tags[best]) for state, best in zip(states, table.argmax(1), strict=True)},
    )


def _explained(table: Floats) -> float:
    """1 - H(column | row) / H(column), and 1 where the column is certain anyway."""
    columns = table.sum(0)
    entropy = -(columns * np.log(columns / columns.sum())).sum()
    if len(columns) == 1:
        return 1.0
    share = table / table.sum(1, keepdims=True)
    conditional = -(table[table > 0] * np.log(share[table > 0])).sum()
    # Independent labellings differ by rounding only, on either side of 0.
    return max(0.0, float(1 - conditional / entropy))


def _one_to_one(table: Floats) -> float | None:
    try:
        assign = import_module("scipy.optimize").linear_sum_assignment
    except ImportError:
        return None
    return float(table[assign(table, maximize=True)].sum() / table.sum())


def _check(predicted: Sequence[Sequence[int]], gold: Sequence[Sequence[str]]) -> None:
    if len(predicted) != len(gold):
        raise DataError(f"{len(predicted)} sentences have states, but {len(gold)} have tags: one each was expected.")
    for number, (states, tags) in enumerate(zip(predicted, gold, strict=True), 1):
        if len(states) != len(tags):
            raise DataError(
                f"sentence {number} has {len(states)} states, but {len(tags)} tags: one of each for a token.\n"
                "  Is the state of <eos> still there? It has no tag: cut it."
            )
    if not any(map(len, gold)):
        raise DataError("no tokens: at least one with a state and a tag was expected.")
