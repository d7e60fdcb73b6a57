"""How a sentence may go on: the probability of its beginning under a grammar, and of the symbol of the next word.

Exact, from left to right: next to the inside pass, one sum over pairs of positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer
from rankfold.errors import DomainError, UnsupportedError
from rankfold.numerics.log_space import log_sum, log_weights
from rankfold.numerics.scaled import largest
from rankfold.operators.binary import BinaryOperator
from rankfold.recursions import tree
from rankfold.recursions.tree.best import log_inside
from rankfold.recursions.tree.potentials import Forest, TreePotentials, validate
from rankfold.recursions.tree.termination import left_closure, log_kinds, mass


class Prefixes(NamedTuple):
    """Of every beginning of every sentence, words 0..k-1 in entry k; -inf beyond a length. float64.

    exp(log_prefix[k]) = exp(log_whole[k]) + sum_p exp(log_next[k, p]): the sentence ends here, or it has a next word.
    """

    log_prefix: Tensor  # "b t+1"     all sentences that begin with these words; entry 0: all that end
    log_whole: Tensor  # "b t+1"     the sentence of these words and no more
    log_next: Tensor  # "b t+1 p"   all that begin with these words and whose next word has this symbol


def prefix(p: TreePotentials) -> Prefixes:
    """The probability that a sentence begins with these words, and how it goes on, for every beginning at once.

        next[k, p]    = sum_a open*[k, a] sum_m T[a, p, m] mass[m] + open[k, p]       open* = open (I - C)^-1
        open[k, m]    = sum_{i < k} sum_{a, n} open*[i, a] T[a, n, m] inside[i, k, n]
        prefix[k + 1] = sum_p next[k, p] leaf[k, p]

    `open` are the symbols that wait at position k, C[a, n] the left corners: what stands to the right is summed out, by
    the probability that it ends (`mass`). Rules are distributions, and `log_leaf` is of emissions that sum to 1 over
    the words. A grammar may go on for ever with some probability: those trees say no sentence, and count nowhere.

    In float64, without a graph. Each parent's rules are divided by their sum, which float32 leaves a little off 1.
    Cost: an inside pass, `mass` and `left_closure` (n^3), then for every position the rules' cells once, or of a CPD
    (n + m) r for every span. Scaled arithmetic: a span and what waits before it that are together more than 708 nats
    less probable than the most probable of their position are lost. Source: Jelinek, Lafferty 1991; Stolcke 1995.
    """
    f = answer("prefix", {tree: validate}, p)(p)
    if p.log_span is not None:
        raise UnsupportedError(
            "log_span weighs brackets of whole sentences, but sentences that begin with these words have others, too.\n"
            "  Ask without it."
        )
    with torch.no_grad():
        f = f.detach().double()
        f = f.replace(rules=f.rules.divide_parents(log_sum(log_kinds(f.rules))))
        found = _Pass(f).run()
    _expect_sound(found)
    return found


def _expect_sound(found: Prefixes) -> None:
    """Raise where a prefix is less probable than its own continuation: float64 could not hold all its weight."""
    least = torch.cat([found.log_prefix[:, 1:], found.log_whole], 1)
    most = torch.cat([found.log_prefix[:, :-1], found.log_prefix], 1)
    wrong = (least - most > 1e-6) | least.isnan() | most.isnan()
    if bool(wrong.any()):
        sentence = int(wrong.any(1).nonzero()[0])
        raise DomainError(
            f"sentence {sentence}: its beginnings cannot be told in float64: what weighs is more than 708 nats less "
            "probable than the rest,\n  or rules lead to a word with a probability below 1e-16."
        )


class _Pass:
    """From left to right: the symbols that wait at each position, given the words before it."""

    def __init__(self, f: Forest) -> None:
        self.f = f
        self.inside, _ = log_inside(f)  # "b s n" by width, leaves at 1
        rules = f.rules
        self.mass = mass(rules)
        leaf = self.mass.new_ones(1, rules.leaf_leaf.shape[1])
        self.first = rules.leaf_span.given_right(self.mass) + rules.leaf_leaf.given_right(leaf)  # "b n p"
        self.closure = left_closure(rules, self.mass, self.first)

    def run(self) -> Prefixes:
        f, end = self.f, float("-inf")
        num, num_words, _ = f.log_leaf.shape
        waits: list[Tensor] = []  # log open* of each position, "b n"
        follows: list[Tensor] = []  # "b p"
        for k in range(num_words + 1):
            spans, leaves, top = self._open(k, waits)
            closed = spans.unsqueeze(1) @ self.closure
            waits.append(log_weights(closed).squeeze(1) + top)
            follows.append(log_weights(leaves + (closed @ self.first).squeeze(1)) + top)
        log_next = torch.stack(follows, 1)
        nothing = log_next.new_full((num, 1), end)
        all_that_end = log_sum(torch.cat([f.log_root + log_weights(self.mass), f.log_root_leaf], -1))
        log_prefix = torch.cat([all_that_end[:, None], log_sum(log_next[:, :-1] + f.log_leaf)], 1)
        one = log_sum(f.log_leaf[:, 0] + f.log_root_leaf).unsqueeze(1)
        more = [log_sum(f.log_root + self.inside[k][:, 0]) for k in range(2, num_words + 1)]
        log_whole = torch.cat([nothing, one, *(x.unsqueeze(1) for x in more)], 1)
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
        kinds = [(f.rules.leaf_span, f.rules.leaf_leaf, parents[:, -1:], f.log_leaf[:, k - 1 : k])]
        if k > 1:
            ending = torch.stack([self.inside[k - i][:, i] for i in range(k - 1)], 1)
            kinds.append((f.rules.span_span, f.rules.span_leaf, parents[:, :-1], ending))
        top = largest(torch.cat([_log_weight(a, x) for _, _, a, x in kinds], 1).squeeze(-1))
        spans = [_right(to_span, a, x, top) for to_span, _, a, x in kinds]
        leaves = [_right(to_leaf, a, x, top) for _, to_leaf, a, x in kinds]
        return torch.stack(spans).sum(0), torch.stack(leaves).sum(0), top


def _log_weight(parents: Tensor, left: Tensor) -> Tensor:  # "b s a", "b s n" -> "b s 1"
    """The largest entries of both together."""
    return parents.amax(-1, keepdim=True) + left.amax(-1, keepdim=True)


def _right(rule: BinaryOperator, parents: Tensor, left: Tensor, top: Tensor) -> Tensor:  # -> "b m"
    """sum_{s, a, n} parents[s, a] T[a, n, m] left[s, n] / exp(top), of logarithms."""
    weights = torch.exp(parents - largest(parents)) * torch.exp(_log_weight(parents, left) - top.unsqueeze(1))
    return rule.to_right(weights, torch.exp(left - largest(left)))
