"""Rules with a rank between parent and children: a parent picks a rank, the rank picks both children, each by itself.

    T[a, l, r] = sum_k head[a, k] left[l, k] right[r, k]

Rows of the head sum to 1, and so do the columns of left and right, over nonterminals and preterminals together: then
every parent's rules do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankfold.kernels.linear_softmax import linear_softmax
from rankfold.operators import BinaryCPD, Branch
from rankfold.params.networks import Drawing


class FactoredRules(nn.Module):
    """head = softmax_k(f1(e_a) . u_k), left = softmax_l(f2(e_l) . u_k), right = softmax_r(f3(e_r) . u_k).

    `shared`: one u for all three, as in rank space (Yang, Liu, Tu 2022, App. A); else each has its own, the head's with
    a bias, and f is one layer, as in the TN-PCFG (Yang, Zhao, Tu 2021). f is a linear and `num_layers` residual layers;
    `shallow`: one linear layer and a ReLU. Cost: (3 n + 2 p) k d multiply-adds, memory (3 n + 2 p) k.
    """

    def __init__(
        self,
        num_spans: int,
        num_leaves: int,
        rank: int,
        dim: int,
        num_layers: int,
        *,
        shared: bool,
        shallow: bool,
        drawing: Drawing,
    ) -> None:
        super().__init__()
        self.num_spans = num_spans
        self.symbol = drawing.embedding(num_spans + num_leaves, dim)
        self.parent, self.left, self.right = (
            nn.Sequential(drawing.linear(dim, dim), nn.ReLU()) if shallow else drawing.residual(dim, dim, num_layers)
            for _ in range(3)
        )
        self.ranks = nn.ParameterList(drawing.matrix(rank, dim) for _ in range(1 if shared else 3))
        self.bias = None if shared else drawing.bias(rank, dim)

    @property
    def preterminals(self) -> Tensor:  # "p d"
        """The embeddings of the symbols of words."""
        return self.symbol[self.num_spans :]

    def forward(self) -> Branch:
        of_head, of_left, of_right = self.ranks if len(self.ranks) == 3 else [self.ranks[0]] * 3
        head = linear_softmax(self.parent(self.symbol[: self.num_spans]), of_head, self.bias).share
        # Ranks in front: sums over symbols then run along memory.
        left = linear_softmax(of_left, self.left(self.symbol)).share
        right = linear_softmax(of_right, self.right(self.symbol)).share
        return factored_branch(head, left, right, self.num_spans)


class SimpleRules(nn.Module):
    """T[a, l, r] = left[a, l] right[a, r]: both children given the parent, each by itself.

        left = softmax_l(f0(e_a) . f1(e_l) / sqrt(d))          right = softmax_r(f0(e_a) . f2(e_r) / sqrt(d))

    The square root keeps products of two networks, d terms, from being all or nothing at the start. Rules of rank n
    whose head is the identity. Cost: 2 n (n + p) d multiply-adds, memory 2 n (n + p).
    Source: Liu, Yang, Kim, Tu 2023, the simple PCFG.
    """

    def __init__(self, num_spans: int, num_leaves: int, dim: int, num_layers: int, drawing: Drawing) -> None:
        super().__init__()
        self.num_spans = num_spans
        self.symbol = drawing.embedding(num_spans + num_leaves, dim)
        self.parent, self.left, self.right = (drawing.residual(dim, dim, num_layers) for _ in range(3))

    @property
    def preterminals(self) -> Tensor:  # "p d"
        """The embeddings of the symbols of words."""
        return self.symbol[self.num_spans :]

    def forward(self) -> Branch:
        parent = self.parent(self.symbol[: self.num_spans]) * self.symbol.shape[1] ** -0.5
        left = linear_softmax(parent, self.left(self.symbol)).share
        right = linear_softmax(parent, self.right(self.symbol)).share
        return factored_branch(None, left, right, self.num_spans)


class FreeFactors(nn.Module):
    """Either of the two with free logits: head "n k" (None: the identity, one rank per parent), left and right "n+p k".

    Probabilities below the dtype's smallest number become 0; zeros stay zeros.
    """

    def __init__(self, log_head: Tensor | None, log_left: Tensor, log_right: Tensor) -> None:
        super().__init__()
        self.num_spans = log_left.shape[1] if log_head is None else len(log_head)
        self.log_head = None if log_head is None else nn.Parameter(log_head)
        self.log_left, self.log_right = nn.Parameter(log_left), nn.Parameter(log_right)

    @classmethod
    def draw(cls, num_spans: int, num_leaves: int, rank: int | None, *, drawing: Drawing) -> FreeFactors:
        """Random logits; no rank: the identity as head."""
        head = None if rank is None else drawing.embedding(num_spans, rank).data
        sides = (drawing.embedding(num_spans + num_leaves, rank or num_spans).data for _ in range(2))
        return cls(head, *sides)

    def forward(self) -> Branch:
        head = None if self.log_head is None else torch.softmax(self.log_head, 1)
        left, right = (torch.softmax(x, 0).mT for x in (self.log_left, self.log_right))
        return factored_branch(head, left, right, self.num_spans)


def factored_branch(
    head: Tensor | None, left: Tensor, right: Tensor, num_spans: int
) -> Branch:  # "n k", "k n+p", "k n+p"
    """The four kinds of rules of three factors. Kinds that use the same factor hold the same tensor, a view."""
    span_left, leaf_left = (x.mT for x in torch.split(left, [num_spans, left.shape[1] - num_spans], 1))
    span_right, leaf_right = (x.mT for x in torch.split(right, [num_spans, right.shape[1] - num_spans], 1))
    sides = ((one, other) for one in (span_left, leaf_left) for other in (span_right, leaf_right))
    return Branch(*(BinaryCPD.unchecked(head, one, other) for one, other in sides))
