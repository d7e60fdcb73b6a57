"""How a sentence may go on: the probability of its beginning under a grammar, and of the symbol of the next word.

Exact, from left to right: beside the inside pass, one sum over pairs of positions. Read next:
`recursions/tree_mass.py`, what the rules say without words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.numerics.log_space import log_sum, log_weights
from rankfold.numerics.scaled import largest
from rankfold.operators.binary import BinaryOperator, Branch
from rankfold.recursions.tree import chart
from rankfold.recursions.tree_mass import applied, left_closure, log_kinds, mass
from rankfold.recursions.tree_potentials import Forest, TreePotentials, checked


class Prefixes(NamedTuple):
    """Of every beginning of every sentence, words 0..k-1 in entry k; -inf beyond a length. float64.

    exp(log_prefix[k]) = exp(log_whole[k]) + sum_p exp(log_next[k, p]): the sentence ends here, or it has a next word.
    """

    log_prefix: Tensor  # "b t+1"     all sentences that begin with these words; entry 0: all that end
    log_whole: Tensor  # "b t+1"     the sentence of these words and no more
    log_next: Tensor  # "b t+1 p"   all that begin with these words and whose next word has this symbol


def prefixes(p: TreePotentials) -> Prefixes:
    """The probability that a sentence begins with these words, and how it goes on, for every beginning at once.

        next[k, p]    = sum_a open*[k, a] sum_m T[a, p, m] mass[m] + open[k, p]       open* = open (I - C)^-1
        open[k, m]    = sum_{i < k} sum_{a, n} open*[i, a] T[a, n, m] inside[i, k, n]
        prefix[k + 1] = sum_p next[k, p] leaf[k, p]

    `open` are the symbols that wait at position k, C[a, n] the left corners: what stands to the right is summed out, by
    the probability that it ends (`mass`). Rules are distributions, and `log_leaf` is of emissions that sum to 1 over
    the words. A grammar may go on for ever with some probability: those trees say no sentence, and count nowhere.

    In float64, without a graph. Cost: an inside pass, `mass` and `left_closure` (n^3), then a product of rules for
    every pair of positions. Scaled arithmetic: symbols more than 708 nats less probable than the most probable one of
    their position or span are lost. Source: Jelinek, Lafferty 1991; Stolcke 1995.
    """
    if p.log_span is not None:
        raise UnsupportedError(
            "log_span weighs brackets of whole sentences, but sentences that begin with these words have others, too.\n"
            "  Ask without it."
        )
    with torch.inference_mode(False), torch.no_grad():
        f = checked(p).detach().double()
        f = f.with_tensors(*(x.clone() for x in f.tensors()))  # out of inference mode: a derivative notes them
        log_kinds(f.rules)
        return _Pass(f, chart(p).clone()).run()


class _Pass:
    """From left to right: what waits at each position, given the words before it."""

    def __init__(self, f: Forest, inside: Tensor) -> None:  # "b t+1 t+1 n" logarithms
        self.f, self.inside = f, inside
        self.mass = mass(f.rules)
        self.closure = left_closure(f.rules, self.mass)

    def run(self) -> Prefixes:
        f, end = self.f, float("-inf")
        num, num_words, _ = f.log_leaf.shape
        waits: list[Tensor] = []  # log open* of each position, "b n"
        follows: list[Tensor] = []  # "b p"
        for k in range(num_words + 1):
            spans, leaves, top = self._open(k, waits)
            closed = (spans.unsqueeze(1) @ self.closure).squeeze(1)
            waits.append(log_weights(closed) + top)
            follows.append(log_weights(leaves + _first_words(f.rules, closed, self.mass)) + top)
        log_next = torch.stack(follows, 1)
        nothing = log_next.new_full((num, 1), end)
        all_that_end = log_sum(torch.cat([f.log_root + log_weights(self.mass), f.log_root_leaf], -1))
        log_prefix = torch.cat([all_that_end[:, None], log_sum(log_next[:, :-1] + f.log_leaf)], 1)
        one = log_sum(f.log_leaf[:, 0] + f.log_root_leaf).unsqueeze(1)
        log_whole = torch.cat([nothing, one, log_sum(f.log_root.unsqueeze(1) + self.inside[:, 0, 2:])], 1)
        beyond = torch.arange(num_words + 1, device=f.lengths.device) > f.lengths[:, None]
        return Prefixes(
            torch.where(beyond, end, log_prefix),
            torch.where(beyond, end, log_whole),
            torch.where(beyond.unsqueeze(-1), end, log_next),
        )

    def _open(self, k: int, waits: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:  # "b n", "b p", "b 1" their scale
        """The symbols that wait at k: right children of those whose left child ends there; the root's at the start."""
        f = self.f
        if k == 0:
            top = largest(torch.cat([f.log_root, f.log_root_leaf], -1))
            return torch.exp(f.log_root - top), torch.exp(f.log_root_leaf - top), top
        parents = torch.stack(waits, 1)  # "b s n"
        word = f.log_leaf[:, k - 1 : k]
        kinds = [(f.rules.leaf_span, f.rules.leaf_leaf, parents[:, -1:], word)]
        if k > 1:
            kinds.append((f.rules.span_span, f.rules.span_leaf, parents[:, :-1], self.inside[:, : k - 1, k]))
        top = largest(torch.cat([_log_weight(a, x) for _, _, a, x in kinds], 1).squeeze(-1))
        spans = [_right(to_span, a, x, top) for to_span, _, a, x in kinds]
        leaves = [_right(to_leaf, a, x, top) for _, to_leaf, a, x in kinds]
        return torch.stack(spans).sum(0), torch.stack(leaves).sum(0), top


def _log_weight(parents: Tensor, left: Tensor) -> Tensor:  # "b s a", "b s n" -> "b s 1"
    """The largest entries of both together."""
    return parents.amax(-1, keepdim=True) + left.amax(-1, keepdim=True)


def _right(rule: BinaryOperator, parents: Tensor, left: Tensor, top: Tensor) -> Tensor:  # -> "b m"
    """sum_{s, a, n} parents[s, a] T[a, n, m] left[s, n] / exp(top), of logarithms: a derivative by the right child."""
    mantissas = torch.exp(left - largest(left))
    weights = torch.exp(parents - largest(parents)) * torch.exp(_log_weight(parents, left) - top.unsqueeze(1))
    right = left.new_zeros(len(left), 1, rule.shape[2])
    return _derivative(right, ((rule, mantissas, right),), weights)


def _first_words(rules: Branch, parents: Tensor, mass: Tensor) -> Tensor:  # "b n" -> "b p"
    """sum_{a, m} parents[a] T[a, p, m] mass[m], leaves as right children of mass 1."""
    num, num_leaves = len(parents), rules.leaf_leaf.shape[1]
    left = parents.new_zeros(num, 1, num_leaves)
    weight, ones = mass.expand(num, -1).unsqueeze(1), parents.new_ones(num, 1, num_leaves)
    both = ((rules.leaf_span, left, weight), (rules.leaf_leaf, left, ones))
    return _derivative(left, both, parents.unsqueeze(1))


def _derivative(of: Tensor, sides: Iterable[tuple[BinaryOperator, Tensor, Tensor]], parents: Tensor) -> Tensor:
    """d (parents . sum of applied rules) / d one child, in which they are linear: "b 1 m" -> "b m"."""
    with torch.enable_grad():
        of.requires_grad_()
        total = sum(((applied(*side) * parents).sum() for side in sides), of.new_zeros(()))
    return torch.autograd.grad(total, of)[0].squeeze(1)
