"""The meaning of states: the tokens they account for, the words they emit, their labels or parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rankfold.errors import DataError, DomainError, ShapeError, expect, expect_logs, expect_weights

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
How = Literal["one_to_one", "many_to_one"]


class StateUse(NamedTuple):
    """One state and the share of all tokens it accounts for."""

    state: int
    share: float


class UsageSummary(NamedTuple):
    """How evenly the tokens are spread over the states."""

    by_share: list[StateUse]  # the most used first; equal shares in the order of their numbers
    effective: float  # exp(entropy of the shares): 1 if one state does all, z if all do the same
    num_used: int  # states with more than a tenth of an equal share, 1 / (10 z)

    @property
    def shares(self) -> list[float]:
        """The shares alone, falling; they sum to 1."""
        return [use.share for use in self.by_share]


def state_usage(posterior_mass: Tensor) -> UsageSummary:  # "z"
    """The shares of tokens by state, for the posterior p(z_t | x) summed over all tokens; any scale will do."""
    expect(posterior_mass, "z", name="posterior_mass")
    expect_weights(posterior_mass, name="posterior_mass")
    mass = posterior_mass.detach().double().cpu()
    if not mass.any():
        raise DomainError("posterior_mass is 0 for every state, but shares need at least one token.")
    shares = mass / mass.sum()
    falling, states = shares.sort(descending=True, stable=True)
    return UsageSummary(
        by_share=[StateUse(*use) for use in zip(states.tolist(), falling.tolist(), strict=True)],
        effective=effective_number(shares.numpy()),
        num_used=int((shares > 1 / (10 * len(shares))).sum()),
    )


def effective_number(share: Floats) -> float:  # "z"
    """exp(entropy of the shares): 1 if one state does all, z if all do the same."""
    positive = share[share > 0]
    return float(np.exp(-(positive * np.log(positive)).sum()))


def top_words(log_emission_rows: Tensor, words: Sequence[str], num: int = 8) -> list[list[tuple[str, float]]]:  # "k v"
    """The `num` most probable words of each row and p(word | state), the most probable first.

    Words of probability 0 are left out, so a list may be shorter; equal ones come in the order of their ids.
    """
    expect(log_emission_rows, "k v", name="log_emission_rows")
    expect_logs(log_emission_rows, name="log_emission_rows")
    if len(words) != log_emission_rows.shape[1]:
        raise ShapeError(
            f"log_emission_rows has {log_emission_rows.shape[1]} words in its last axis, but {len(words)} words came.\n"
            "  Rows are states: log_emission[states], and words those of the vocabulary the model was trained with."
        )
    if num < 1:
        raise DomainError(f"num is {num}, but at least 1 word of each state can be shown.")
    falling, order = log_emission_rows.detach().cpu().sort(dim=1, descending=True, stable=True)
    return [
        [(words[i], p) for i, p in zip(ids, probabilities, strict=True) if p > 0]
        for ids, probabilities in zip(order[:, :num].tolist(), falling[:, :num].exp().tolist(), strict=True)
    ]


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


class TagScores(NamedTuple):
    """How well states predict tags."""

    many_to_one: float
    one_to_one: float
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
    _check_tags(predicted, gold)
    states, state_of = np.unique([state for sentence in predicted for state in sentence], return_inverse=True)
    tags, tag_of = np.unique([tag for sentence in gold for tag in sentence], return_inverse=True)
    counts = contingency([state_of], [tag_of])  # "k c": tokens of each state and tag
    table = counts.astype(np.float64)
    total = table.sum()
    homogeneity, completeness = _explained(table), _explained(table.T)
    both = homogeneity + completeness
    return TagScores(
        many_to_one=float(table.max(1).sum() / total),
        one_to_one=float(table[assign(counts)].sum() / total),
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


def _check_tags(predicted: Sequence[Sequence[int]], gold: Sequence[Sequence[str]]) -> None:
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
