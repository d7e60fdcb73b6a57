"""The best of trees: charts of maxima, the best brackets by their scores, and charts and labels solved on the ladder.

A maximum does not pass through a sum over ranks, so rules of low rank give no speed-up to the best tree: they are
visited pair by pair, in blocks. With ranks as part of the tree there is no sum, and the cost is that of `log_z`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.kernels.log_products import BLOCK, max_matmul
from rankfold.operators.binary import BinaryOperator
from rankfold.operators.binary_cpd import log_product
from rankfold.operators.factor import Factor
from rankfold.recursions.tree.charts import Labels, diagonal, splits
from rankfold.recursions.tree.descend import kinds_of
from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.rungs import solve


def best_by_pairs(f: Forest) -> list[Tensor]:  # "b s n" by width; leaves at 1
    """max over trees, of the forest's own rules.

        best[i, j, a] = span[i, j] + max_k max_{n, m}  log T[a, n, m] + best[i, k, n] + best[k, j, m]

    Cost: n m per split, and a n m per span, n the symbols of all children; for rules of rank r also a n m r per width,
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
    """max over trees and the ranks of their rules, of CPDs.   (n + m + a) r per span, r per split."""
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
            assert rule.cpd is not None
            head, left, right = rule.cpd
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
        found = self.rule.log_rows(torch.full_like(parents, sentence), parents, rows)
        if self.height == self.rule.shape[1]:
            self._whole[sentence] = found
        return found


def best_labels(f: Forest) -> Labels:
    """For every span the label with which it is most probable, and how probable.

    Cost: one inside and one outside pass; of labels only the best are kept, and a width's posteriors at a time.
    """
    asleep = torch.is_inference_mode_enabled()
    with torch.inference_mode(False), torch.no_grad():
        if asleep:  # a derivative needs tensors that autograd may note
            f = f.with_tensors(*(x.clone() for x in f.tensors())).replace(lengths=f.lengths.clone())
        return solve(f.detach()).labels()


def log_inside(f: Forest) -> tuple[list[Tensor], Tensor]:  # "b s n" by width, leaves at 1; "b" bool
    """The log-weights of all trees of every span, by the label of its top, and which sentences needed logarithms.

    For a forest in float64; -inf beyond a length, and where scaled vectors have an entry too small to matter.
    """
    with torch.no_grad():
        leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, float("-inf"))
        spans, in_logs = solve(f.detach()).log_spans()
    return [leaf, leaf, *spans], in_logs


def log_side(x: Tensor, factor: Factor, in_logs: Tensor) -> Tensor:  # "b s n", "n r", "b" -> "b s r"
    """log(exp(x) factor): a product of scaled vectors, and in logarithms for the sentences that need them."""
    top = x.amax(-1, keepdim=True)
    top = torch.where(top > float("-inf"), top, 0.0)
    found = torch.log(torch.exp(x - top) @ factor.linear) + top + factor.log_scale
    index = in_logs.nonzero()[:, 0]
    if len(index):
        found[index] = log_product(x[index], factor.log if factor.log.ndim == 2 else factor.log[index])
    return found


def best_brackets(score: Tensor, lengths: list[int]) -> tuple[list[list[tuple[int, int]]], list[float]]:  # "b e e"
    """For each sentence the brackets (i, j) of the binary tree whose scores have the largest sum, and that sum.

        best[i, j] = score[i, j] + max_k best[i, k] + best[k, j]

    All spans of a width and all sentences at once: t^3 / 6 additions each. Brackets of two words and more, parents
    first, left before right. Ties go to the shortest left child.
    """
    num, edge, _ = score.shape
    best = torch.zeros(num, edge, edge, 1, dtype=torch.float64, device=score.device)  # [i, j], and again at [j, i]
    where = torch.zeros(num, edge, edge, dtype=torch.int64, device=score.device)
    for width in range(2, edge):
        left, right = splits(best, width)
        total = (left + right).squeeze(-1)
        split = total.argmax(-1, keepdim=True)
        found = total.gather(-1, split) + torch.diagonal(score, width, 1, 2).unsqueeze(-1)
        diagonal(best, width).copy_(found)
        diagonal(best, -width).copy_(found)
        torch.diagonal(where, width, 1, 2).copy_(split.squeeze(-1) + 1)
    at = where.tolist()
    sums = [best[b, 0, length, 0].item() for b, length in enumerate(lengths)]
    return [_from_splits(at[b], length) for b, length in enumerate(lengths)], sums


def _from_splits(split: list[list[int]], length: int) -> list[tuple[int, int]]:
    """The brackets below the whole sentence; split[i][j] is how many words the left child has."""
    found, waiting = [], [(0, length)]
    while waiting:
        i, j = waiting.pop()
        if j - i > 1:
            found.append((i, j))
            k = i + split[i][j]
            waiting += [(k, j), (i, k)]
    return found
