"""Charts of maxima: the weight of the best tree over every span, for each symbol at its top.

A maximum does not pass through a sum over ranks, so rules of low rank give no speed-up to the best tree: they are
visited pair by pair, in blocks. With ranks as part of the tree there is no sum, and the cost is that of `log_z`.
Read next: `recursions/tree_trace.py`, which finds the trees themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.kernels.blocks import BLOCK
from rankfold.kernels.max_matmul import max_matmul
from rankfold.operators.binary import BinaryOperator
from rankfold.operators.factor import Factor
from rankfold.recursions.tree_potentials import Forest
from rankfold.recursions.tree_trace import kinds_of
from rankfold.recursions.tree_views import log_rows


def best_by_pairs(f: Forest) -> list[Tensor]:  # "b s n" by width; leaves at 1
    """max over trees, of the forest's own rules.

        best[i, j, a] = span[i, j] + max_k max_{n, m}  log T[a, n, m] + best[i, k, n] + best[k, j, m]

    Cost: n m a split, and a n m a span, n the symbols of all children; for rules of rank r besides a n m r a width,
    once for all sentences, if T is larger than a block, else once. Nothing larger than a block of T is ever held.
    """
    vectors = _words(f)
    rules = [_Blocks(rule) for rule in f.rules]
    for width in range(2, f.log_leaf.shape[1] + 1):
        best = f.log_leaf.new_full((*_size(f, width), f.log_root.shape[1]), float("-inf"))
        for kind, cuts in kinds_of(width):
            sides = [(vectors[k][:, : best.shape[1]], vectors[width - k][:, k : k + best.shape[1]]) for k in cuts]
            best = torch.maximum(best, rules[kind].best(sides))
        vectors.append(best + torch.diagonal(f.log_span, width, 1, 2).unsqueeze(-1))
    return vectors


def best_by_ranks(f: Forest) -> list[Tensor]:  # "b s n" by width; leaves at 1
    """max over trees and the ranks of their rules, of CPDs.   (n + m + a) r a span, r a split."""
    vectors = _words(f)
    sides: dict[tuple[object, ...], Tensor] = {}

    def side(name: tuple[object, ...], factor: Factor, width: int) -> Tensor:
        if (*name, width) not in sides:
            sides[(*name, width)] = max_side(vectors[width], factor)
        return sides[(*name, width)]

    for width in range(2, f.log_leaf.shape[1] + 1):
        best = f.log_leaf.new_full((*_size(f, width), f.log_root.shape[1]), float("-inf"))
        count = best.shape[1]
        for kind, cuts in kinds_of(width):
            rule = f.rules[kind]
            head, left, right = rule.parts  # type: ignore[attr-defined]
            found = torch.stack(
                [
                    side(("left", rule.left_of), left, k)[:, :count]
                    + side(("right", rule.right_of), right, width - k)[:, k : k + count]
                    for k in cuts
                ]
            ).amax(0)
            best = torch.maximum(best, found if head is None else _max_product(found, head.log.mT))
        vectors.append(best + torch.diagonal(f.log_span, width, 1, 2).unsqueeze(-1))
    return vectors


def max_side(x: Tensor, factor: Factor) -> Tensor:  # "b s n" -> "b s r"
    """The best child for each rank."""
    return _max_product(x, factor.log)


def _max_product(x: Tensor, log_w: Tensor) -> Tensor:  # "b s n", "n r" or "b n r" -> "b s r"
    if log_w.ndim == 3:
        return torch.stack([max_matmul(one, w)[0] for one, w in zip(x, log_w, strict=True)])
    return max_matmul(x.flatten(0, 1), log_w)[0].reshape(*x.shape[:2], -1)


def _words(f: Forest) -> list[Tensor]:
    leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, float("-inf"))
    return [leaf, leaf]


def _size(f: Forest, width: int) -> tuple[int, int]:
    return len(f.lengths), f.log_leaf.shape[1] - width + 1


class _Blocks:
    """log T[a, n, m] by blocks of left children; kept, if it is one block."""

    def __init__(self, rule: BinaryOperator) -> None:
        self.rule = rule
        parents, left, right = rule.shape
        self.height = max(1, min(left, BLOCK // (parents * right)))
        self._whole: dict[int, Tensor] = {}

    def best(self, sides: list[tuple[Tensor, Tensor]]) -> Tensor:  # "b s n", "b s m" by split -> "b s a"
        """max over splits and pairs of children."""
        if self.rule.batch is not None:
            every = range(self.rule.batch)
            return torch.cat([self._of(b, [(x[b : b + 1], y[b : b + 1]) for x, y in sides]) for b in every])
        return self._of(0, sides)

    def _of(self, sentence: int, sides: list[tuple[Tensor, Tensor]]) -> Tensor:
        num, count, many = sides[0][1].shape
        best = sides[0][0].new_full((num * count, self.rule.shape[0]), float("-inf"))
        spans = max(1, BLOCK // (self.height * many))
        for start in range(0, self.rule.shape[1], self.height):
            rows = slice(start, min(start + self.height, self.rule.shape[1]))
            block = self._block(sentence, rows).flatten(1).mT
            for at in range(0, num * count, spans):
                some = slice(at, at + spans)
                pairs = None
                for x, y in sides:
                    new = x.flatten(0, 1)[some, rows, None] + y.flatten(0, 1)[some, None]
                    pairs = new if pairs is None else torch.maximum(pairs, new, out=pairs)
                assert pairs is not None
                best[some] = torch.maximum(best[some], max_matmul(pairs.flatten(1), block)[0])
        return best.reshape(num, count, -1)

    def _block(self, sentence: int, rows: slice) -> Tensor:  # "a n' m"
        if sentence in self._whole:
            return self._whole[sentence]
        parents = torch.arange(self.rule.shape[0], device=self.rule.factors()[0].device)
        found = log_rows(self.rule, torch.full_like(parents, sentence), parents, rows)
        if self.height == self.rule.shape[1]:
            self._whole[sentence] = found
        return found
