"""States matched to labels, at most one to each, so that most frames agree; learnt on one set, applied to another.

Read next: `segmentation.py`, which scores what was matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DataError, DomainError

Ints = NDArray[np.int64]
How = Literal["one_to_one", "many_to_one"]


@dataclass(frozen=True)
class Matching:
    """Which label each state stands for; -1 for a state that stands for none."""

    labels: tuple[int, ...]  # by state
    how: How

    def apply(self, states: Any) -> Ints:  # "t"
        """The labels of a sequence of states. State z without a label gets -2 - z, which no label is.

        So its frames are wrong, and its segments stay apart from others. A state that the matching never saw has no
        label; -1 (no state) stays -1.
        """
        z = np.asarray(states, dtype=np.int64)
        known = (z >= 0) & (z < len(self.labels))
        label = np.full(z.shape, -1, dtype=np.int64)
        label[known] = np.array(self.labels, dtype=np.int64)[z[known]]
        return np.where((label < 0) & (z >= 0), -2 - z, label)


def match_states(states: Sequence[Any], labels: Sequence[Any], *, how: How = "one_to_one") -> Matching:
    """The matching under which most frames have the label of their state; frames without a label (-1) do not count.

    "one_to_one": each label names at most one state (the Hungarian algorithm, O(min^2 max) for states and labels);
    states left over name none. "many_to_one": each state has its most frequent label, the smallest of equally frequent
    ones; with many states that always looks good. A state and a label that share no frame are never matched.
    """
    if how not in ("one_to_one", "many_to_one"):
        raise DomainError(f'how is {how!r}, but must be "one_to_one" or "many_to_one".')
    table = contingency(states, labels)
    found = np.full(len(table), -1, dtype=np.int64)
    if table.size:
        rows, columns = assign(table) if how == "one_to_one" else (np.arange(len(table)), table.argmax(1))
        shared = table[rows, columns] > 0
        found[rows[shared]] = columns[shared]
    return Matching(tuple(found.tolist()), how)


def contingency(states: Sequence[Any], labels: Sequence[Any]) -> Ints:  # "z k"
    """How many frames have state z and label k; frames where either is -1 are left out."""
    z, y = (np.concatenate([np.asarray(x, dtype=np.int64) for x in given]) for given in (states, labels))
    inside = (z >= 0) & (y >= 0)
    z, y = z[inside], y[inside]
    num_states, num_labels = (int(x.max()) + 1 if len(x) else 0 for x in (z, y))
    return np.bincount(z * num_labels + y, minlength=num_states * num_labels).reshape(num_states, num_labels)


def assign(weights: Any) -> tuple[Ints, Ints]:
    """Rows and columns, each at most once and min(rows, columns) pairs, with the largest total weight. Rows ascend.

    Shortest augmenting paths with dual variables: one row after the other joins, each in O(rows columns). Whole numbers
    are added as whole numbers, exactly. Source: Kuhn 1955; Jonker, Volgenant 1987.
    """
    w = np.asarray(weights)
    if w.ndim != 2 or w.dtype.kind not in "iufb" or not np.isfinite(w).all():
        raise DataError(f"weights are {w.dtype} of shape {w.shape}, but a finite matrix of numbers was expected.")
    if w.shape[0] > w.shape[1]:
        columns, rows = assign(w.T)
        order = rows.argsort()
        return rows[order], columns[order]
    cost = -w.astype(np.float64 if w.dtype.kind == "f" else np.int64)
    owner = np.full(cost.shape[1], -1, dtype=np.int64)  # the row of each column
    of_row, of_column = np.zeros(len(cost), cost.dtype), np.zeros(cost.shape[1], cost.dtype)
    for row in range(len(cost)):
        _augment(row, cost, owner, of_row, of_column)
    columns = np.flatnonzero(owner >= 0)
    order = owner[columns].argsort()
    return owner[columns][order], columns[order]


def _augment(start: int, cost: Any, owner: Ints, of_row: Any, of_column: Any) -> None:
    """Give `start` a column by the cheapest alternating path, and keep reduced costs at least 0 (0 on pairs)."""
    num_columns = cost.shape[1]
    distance = cost[start] - of_row[start] - of_column
    before = np.full(num_columns, -1, dtype=np.int64)  # the column before each on the path; -1: the start
    done = np.zeros(num_columns, dtype=bool)
    while True:
        reachable = np.flatnonzero(~done)
        column = int(reachable[distance[reachable].argmin()])
        done[column] = True
        row = int(owner[column])
        if row < 0:
            break
        through = distance[column] + cost[row] - of_row[row] - of_column
        shorter = ~done & (through < distance)
        distance[shorter], before[shorter] = through[shorter], column
    length = distance[column]
    visited = np.flatnonzero(done & (owner >= 0))
    of_row[owner[visited]] += length - distance[visited]
    of_column[visited] -= length - distance[visited]
    of_row[start] += length
    while column >= 0:
        ahead = int(before[column])
        owner[column] = start if ahead < 0 else owner[ahead]
        column = ahead
