"""Trees by inside and outside sums over dense rules in wide logarithms; shares no code with the library.

One sentence at a time. Rules are four tables "a n m" by kind of children: "ss", "sl", "ls", "ll".
Held to plain enumeration in `test_oracles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.hunt.arithmetic import NONE, Array, exp, total

KINDS = ("ss", "sl", "ls", "ll")
Span = tuple[int, int]


@dataclass
class Sentence:
    """The log-weights of one sentence."""

    leaf: Array  # "t p"
    rules: dict[str, Array]
    root: Array  # "n"
    root_leaf: Array  # "p"
    span: Array  # "t+1 t+1"

    def kind(self, i: int, k: int, j: int) -> str:
        return ("l" if k - i == 1 else "s") + ("l" if j - k == 1 else "s")

    def spans(self) -> list[Span]:
        """All of two words and more, the short ones first."""
        words = len(self.leaf)
        return [(i, i + w) for w in range(2, words + 1) for i in range(words - w + 1)]


@dataclass
class Solved:
    """Inside and outside weights, and log Z."""

    inside: dict[Span, Array]
    outside: dict[Span, Array]  # all but what is inside; log Z not taken off
    log_z: Array
    rules: dict[str, Array]  # log d log Z / d rule


def inside(s: Sentence, best: bool = False) -> dict[Span, Array]:
    """The weight of all trees (or of the best one) over each span by label, `span` included."""
    found = {(i, i + 1): s.leaf[i] for i in range(len(s.leaf))}
    for i, j in s.spans():
        parts = [s.rules[s.kind(i, k, j)] + found[i, k][:, None] + found[k, j] for k in range(i + 1, j)]
        flat = np.concatenate([part.reshape(len(part), -1) for part in parts], 1)
        found[i, j] = (flat.max(1) if best else total(flat)) + s.span[i, j]
    return found


def top(s: Sentence, found: dict[Span, Array]) -> Array:
    """What the root makes of the whole sentence, by label."""
    words = len(s.leaf)
    return found[0, words] + (s.root_leaf if words == 1 else s.root)


def solve(s: Sentence) -> Solved:
    """Inside, outside, log Z and the gradient of the rules."""
    up = inside(s)
    words = len(s.leaf)
    log_z = total(top(s, up))
    known = log_z if np.isfinite(log_z) else 0.0
    down = {span: [] for span in up}
    down[0, words].append(s.root_leaf if words == 1 else s.root)
    uses: dict[str, list[Array]] = {kind: [np.full(s.rules[kind].shape, NONE)] for kind in KINDS}
    outside = {}
    for i, j in [*reversed(s.spans()), *((i, i + 1) for i in range(words))]:
        outside[i, j] = total(np.stack(down[i, j]), 0)
        if j - i == 1:
            continue
        above = (outside[i, j] + s.span[i, j])[:, None, None]
        for k in range(i + 1, j):
            kind = s.kind(i, k, j)
            left, right = up[i, k][:, None], up[k, j][None, :]
            uses[kind].append(above + left + right)
            down[i, k].append(total(above + s.rules[kind] + right, (0, 2)))
            down[k, j].append(total(above + s.rules[kind] + left, (0, 1)))
    possible = np.isfinite(log_z)
    rules = {k: total(np.stack(x), 0) - known if possible else np.full(x[0].shape, NONE) for k, x in uses.items()}
    return Solved(up, outside, log_z, rules)


def labelled(s: Sentence, found: Solved) -> dict[Span, Array]:
    """The posterior of every label of every span and word; all zero if the sentence is impossible."""
    if not np.isfinite(found.log_z):
        return {span: 0.0 * exp(np.where(np.isfinite(x), 0.0, x)) for span, x in found.inside.items()}
    return {span: exp(found.inside[span] + found.outside[span] - found.log_z) for span in found.inside}


def weight(s: Sentence, spans: list[Span], labels: list[int], tags: list[int]) -> Array | None:
    """The log-weight of a tree given by its brackets; None if they are no binary tree of the sentence."""
    words = len(s.leaf)
    label = dict(zip(spans, labels, strict=True))
    if len(tags) != words or len(label) != words - 1:
        return None
    out = s.root_leaf[tags[0]] if words == 1 else s.root[label.get((0, words), 0)]
    out = out + sum(s.leaf[i, tag] for i, tag in enumerate(tags))
    for (i, j), a in label.items():
        splits = [k for k in range(i + 1, j) if all(e - b == 1 or (b, e) in label for b, e in ((i, k), (k, j)))]
        if len(splits) != 1:
            return None
        n, m = (tags[b] if e - b == 1 else label[b, e] for b, e in ((i, splits[0]), (splits[0], j)))
        out = out + s.rules[s.kind(i, splits[0], j)][a, n, m] + s.span[i, j]
    return out


def most(words: int, value: Array) -> Array:  # "t+1 t+1"
    """The largest sum of values of the brackets of a binary tree."""
    best = {(i, i + 1): value.dtype.type(0.0) for i in range(words)}
    for w in range(2, words + 1):
        for i in range(words - w + 1):
            j = i + w
            best[i, j] = value[i, j] + max(best[i, k] + best[k, j] for k in range(i + 1, j))
    return best[0, words]
