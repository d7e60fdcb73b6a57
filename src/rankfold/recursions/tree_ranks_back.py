"""The outside pass for rules of ranks that share their factors, written out: expected counts from a second grid.

Read next: `recursions/tree_ranks.py`, whose chart this goes through from the widest span.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.operators.factor import Factor
from rankfold.recursions.tree_potentials import Forest
from rankfold.recursions.tree_ranks import Chart, diagonal, splits, whole_ranks
from rankfold.recursions.tree_scaled import Tops
from rankfold.recursions.tree_scaled_back import SeeLabels


class _Totals:
    """Gradients of the factors' linear weights, each factor once, summed over all its uses."""

    def __init__(self, *, asked: bool) -> None:
        self.asked = asked
        self.found: dict[tuple[int, bool], tuple[Factor, Tensor]] = {}

    def add(self, factor: Factor, x: Tensor, y: Tensor) -> None:  # "b s n", "b s r"
        """Add x^T y, summed over all that the factor's own axes do not hold."""
        if not self.asked:
            return
        key = id(factor.value), factor.is_log
        if key not in self.found:
            self.found[key] = factor, torch.zeros_like(factor.linear)
        total = self.found[key][1]
        if total.ndim == 3:
            total.baddbmm_(x.mT, y)
        else:
            total.addmm_(x.flatten(0, 1).mT, y.flatten(0, 1))

    def of(self, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        """The gradients of the tensors that the factors hold, as weights or as logarithms."""
        out = [torch.zeros_like(x) for x in tensors]
        place = {id(x): at for at, x in enumerate(tensors)}
        for factor, total in self.found.values():
            out[place[id(factor.value)]] += total * factor.linear if factor.is_log else total
        return out


def gradients(  # weight "b"
    f: Forest, chart: Chart, tops: Tops, weight: Tensor, see: SeeLabels | None = None, *, of_factors: bool = True
) -> list[Tensor]:
    """d (weight . log Z) / d (log_leaf, log_root, log_span, *factors), of sentences of two words and more.

    Cost: twice that of the inside pass. Memory: one more grid. `see` is shown the posteriors of labels, width by width.
    Unless asked for, factors have 0.
    """
    kind, sides = chart.leaf.dtype, chart.sides
    tensors = f.tensors()[4:]
    found = (tops.total > 0) & (f.lengths > 1)
    share = torch.where(found, weight / torch.where(found, tops.total, 1.0), 0.0).to(kind).unsqueeze(-1)
    of_root, of_top = share * tops.span * tops.root, share * tops.root
    of_span, totals = torch.zeros_like(f.log_span), _Totals(asked=of_factors)
    if chart.num_words < 2:
        return [torch.zeros_like(chart.leaf), of_root, of_span, *totals.of(tensors)]
    of_label = of_top
    if sides.head is not None:
        totals.add(sides.head, of_top.unsqueeze(1), whole_ranks(f, chart))
        of_top = (of_top.unsqueeze(1) @ sides.head.linear).squeeze(1)
    here = f.lengths[:, None] == torch.arange(chart.num_words + 1, device=f.lengths.device)
    of_tops = of_top.unsqueeze(1) * here.unsqueeze(-1)  # "b w r": where a sentence's whole span is
    of_grid = torch.zeros_like(chart.grid)
    for width in range(chart.num_words, 1, -1):
        ranks, norm, shares = chart.ranks[width - 2], chart.norms[width - 2], chart.shares[width - 2]
        vectors = sides.parents(ranks) if see or width < chart.num_words else ranks
        if width < chart.num_words:
            grad = _through_sides(chart, totals, of_grid, width, vectors)
        else:
            grad = torch.zeros_like(vectors)
        if see:
            labels = grad.clone()
            labels[:, 0] += of_label * here[:, width, None]
            see(width, labels * vectors)
        if width == chart.num_words:
            grad = torch.zeros_like(ranks)
        elif sides.head is not None:
            totals.add(sides.head, grad, ranks)
            grad = grad @ sides.head.linear
        grad[:, 0] += of_tops[:, width]
        torch.diagonal(of_span, width, 1, 2).copy_((grad * ranks).sum(-1))
        each = shares * (grad / norm).unsqueeze(2)  # "b s k r"
        for mine, other in zip(splits(of_grid, width), reversed(splits(chart.grid, width)), strict=True):
            mine.addcmul_(each, other)
    of_leaf = _through_sides(chart, totals, of_grid, 1, chart.leaf)
    return [of_leaf * chart.leaf, of_root, of_span, *totals.of(tensors)]


def _through_sides(chart: Chart, totals: _Totals, of_grid: Tensor, width: int, vectors: Tensor) -> Tensor:
    """The gradient of the vectors of a width from those of both sides, which go to the factors too."""
    left, right = chart.sides.of(leaf=width == 1)
    of_left, of_right = diagonal(of_grid, width).contiguous(), diagonal(of_grid, -width).contiguous()
    totals.add(left, vectors, of_left)
    totals.add(right, vectors, of_right)
    return of_left @ left.linear.mT + of_right @ right.linear.mT
