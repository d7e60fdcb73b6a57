"""Rules that are any distribution at all: for every parent a softmax over all pairs of children.

Pairs are numbered kind by kind, spans before leaves, so that the rules of a kind are a block of columns: a view, never
a copy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankfold.kernels.linear_softmax import linear_softmax
from rankfold.operators import BinaryDense, Branch
from rankfold.params.networks import Drawing


class SoftmaxRules(nn.Module):
    """T[a, (l, r)] = softmax_(l, r)(e_a . v_lr + b_lr).   Cost: n (n + p)^2 d multiply-adds, memory n (n + p)^2.

    One linear layer from a parent's embedding to all pairs. Source: Kim, Dyer, Rush 2019, the N-PCFG.
    """

    def __init__(self, num_spans: int, num_leaves: int, dim: int, drawing: Drawing) -> None:
        super().__init__()
        num_pairs = (num_spans + num_leaves) ** 2
        self.num_leaves = num_leaves
        self.parent = drawing.embedding(num_spans, dim)
        self.pair, self.bias = drawing.matrix(num_pairs, dim), drawing.bias(num_pairs, dim)

    def forward(self) -> Branch:
        table = linear_softmax(self.parent, self.pair, self.bias).share
        return Branch(*map(BinaryDense.unchecked, by_kind(table, self.num_leaves)))


class FreeRules(nn.Module):
    """T[a, (l, r)] = softmax_(l, r) of free logits "n (n+p)^2", by kind: logarithms of any range, -inf included."""

    def __init__(self, log_rules: Tensor, num_leaves: int) -> None:  # "n (n+p)^2"
        super().__init__()
        self.num_spans, self.num_leaves = len(log_rules), num_leaves
        self.log_rules = nn.Parameter(log_rules)

    @classmethod
    def draw(cls, num_spans: int, num_leaves: int, *, drawing: Drawing) -> FreeRules:
        """Random logits."""
        return cls(drawing.embedding(num_spans, (num_spans + num_leaves) ** 2).data, num_leaves)

    def forward(self) -> Branch:
        log_rules = torch.log_softmax(self.log_rules, 1)
        return Branch(*map(BinaryDense.from_log, by_kind(log_rules, self.num_leaves)))


def kind_sizes(num_spans: int, num_leaves: int) -> tuple[tuple[int, int], ...]:
    """The number of left and of right children of each kind, in the order of `Branch`."""
    n, p = num_spans, num_leaves
    return (n, n), (n, p), (p, n), (p, p)


def by_kind(table: Tensor, num_leaves: int) -> list[Tensor]:  # "... n k" -> four of "... n l r"
    """A table of parents and all pairs, numbered by kind, as one tensor per kind. Views; one gradient for all."""
    sizes = kind_sizes(table.shape[-2], num_leaves)
    parts = torch.split(table, [left * right for left, right in sizes], -1)
    return [part.view(*part.shape[:-1], *size) for part, size in zip(parts, sizes, strict=True)]


def from_dense(rules: Tensor) -> Tensor:  # "n (n+p) (n+p)" -> "n (n+p)^2"
    """Rules over all symbols, nonterminals first, with the pairs numbered by kind."""
    n = len(rules)
    blocks = (rules[:, rows, columns] for rows in (slice(n), slice(n, None)) for columns in (slice(n), slice(n, None)))
    return torch.cat([block.flatten(1) for block in blocks], 1)


def to_dense(rules: Branch) -> Tensor:  # "n (n+p) (n+p)"
    """All rules written out, nonterminals before preterminals. Cost: n (n + p)^2, for small grammars."""
    span_span, span_leaf, leaf_span, leaf_leaf = (rule.to_dense() for rule in rules)
    return torch.cat([torch.cat([span_span, span_leaf], -1), torch.cat([leaf_span, leaf_leaf], -1)], -2)
