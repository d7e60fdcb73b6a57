"""Roots and leaves of trees: the distribution of the root symbol, and of words given preterminals."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankfold.params.networks import Drawing
from rankfold.params.observations.categorical import Emission, InnerEmission


class Roots(NamedTuple):
    """The symbol of a whole sentence: of two words and more, and of one word; together they sum to 1."""

    log_root: Tensor  # "n"
    log_root_leaf: Tensor | None  # "p"   None: no sentence is one word


class Root(nn.Module):
    """softmax(W f(e) + b) over the nonterminals, f a linear and `num_layers` residual layers.

    With `single_words` over nonterminals and preterminals together. Source: Kim, Dyer, Rush 2019.
    """

    def __init__(
        self, num_spans: int, num_leaves: int, dim: int, num_layers: int, *, single_words: bool, drawing: Drawing
    ) -> None:
        super().__init__()
        self.num_spans = num_spans
        self.embedding = drawing.embedding(1, dim)
        self.mlp = drawing.residual(dim, dim, num_layers)
        self.out = drawing.linear(dim, num_spans + (num_leaves if single_words else 0))

    def forward(self) -> Roots:
        return split_root(torch.log_softmax(self.out(self.mlp(self.embedding[0])), 0), self.num_spans)


class FreeRoot(nn.Module):
    """softmax of free logits "n", or "n+p" with sentences of one word; -inf included."""

    def __init__(self, log_root: Tensor, num_spans: int) -> None:
        super().__init__()
        self.num_spans = num_spans
        self.log_root = nn.Parameter(log_root)

    def forward(self) -> Roots:
        return split_root(torch.log_softmax(self.log_root, 0), self.num_spans)


def split_root(log_root: Tensor, num_spans: int) -> Roots:  # "... n" or "... n+p"
    """The root's distribution in its two parts."""
    size = log_root.shape[-1]
    if size == num_spans:
        return Roots(log_root, None)
    return Roots(*torch.split(log_root, [num_spans, size - num_spans], -1))


class PreterminalWords(nn.Module):
    """p(v | p) = softmax_v(f(e_p) . w_v + b_v), f a linear and `num_layers` residual layers.

    Embeddings are its own, or (`num_leaves` None) those it is called with. The table of preterminals and words is never
    written. Cost: p v d multiply-adds. Source: Kim, Dyer, Rush 2019.
    """

    def __init__(self, num_leaves: int | None, num_words: int, dim: int, num_layers: int, drawing: Drawing) -> None:
        super().__init__()
        self.symbol = None if num_leaves is None else drawing.embedding(num_leaves, dim)
        self.mlp = drawing.residual(dim, dim, num_layers)
        self.word, self.bias = drawing.matrix(num_words, dim), drawing.bias(num_words, dim)

    def forward(self, symbol: Tensor | None = None) -> Emission:  # "p d"
        own = self.symbol if symbol is None else symbol
        return InnerEmission.softmax(self.mlp(own), self.word, self.bias)
