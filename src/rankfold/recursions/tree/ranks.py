"""Inside and outside for rules of ranks that share their factors, as the papers' grammars do: one grid, two products.

Words and spans look alike to their parents, a left and a right vector over ranks. Both lie in one grid of starts and
ends, left sides above the diagonal, right sides below it: all splits of all spans of a width are two strided views.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rankfold.numerics.scaled import largest
from rankfold.operators.binary import Branch
from rankfold.operators.factor import Factor
from rankfold.recursions.tree.charts import (
    Tops,
    diagonal,
    divisor,
    leaf_mantissas,
    plus,
    splits,
)
from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.scaled import SeeLabels


def share_factors(rules: Branch) -> bool:
    """Whether all kinds of children have one head, and a child the same left and right factor next to any sibling."""
    one, two, three, four = rules
    return (
        all(rule.cpd is not None for rule in rules)
        and len({rule.head_of for rule in rules}) == 1
        and (one.left_of, one.right_of, four.left_of) == (two.left_of, three.right_of, three.left_of)
        and four.right_of == two.right_of
    )


class Sides:
    """The factors of such rules: head "a r" or None, of spans "n r", of leaves "p r"; any may lead with a batch."""

    def __init__(self, rules: Branch) -> None:
        one, four = rules.span_span.cpd, rules.leaf_leaf.cpd
        assert one is not None
        assert four is not None
        self.head, self.left, self.right = one
        _, self.leaf_left, self.leaf_right = four

    def parents(self, ranks: Tensor) -> Tensor:  # "b s r" -> "b s a"
        return ranks if self.head is None else ranks @ self.head.linear.mT

    def of(self, *, leaf: bool) -> tuple[Factor, Factor]:
        """The left and the right factor of a kind of child."""
        return (self.leaf_left, self.leaf_right) if leaf else (self.left, self.right)

    def gain(self, *, leaf: bool) -> Tensor:  # "" or "b"   float64
        """By how much an absolute loss in a child's vector may grow on the way to a side's; at least 1."""
        left, right = self.of(leaf=leaf)
        grown = torch.maximum(left.most(-2), right.most(-2))
        return grown if self.head is None or leaf else grown * self.head.most(-1)


class Chart:
    """The result of the inside pass: vectors of all spans, the sides that parents see, and the shares of the splits."""

    def __init__(self, f: Forest) -> None:
        self.sides = Sides(f.rules)
        self.leaf, self.leaf_scale = leaf_mantissas(f)
        num, self.num_words = self.leaf.shape[:2]
        edge = self.num_words + 1
        rank = self.sides.left.value.shape[-1]
        self.grid = self.leaf.new_zeros(num, edge, edge, rank)  # [i, j] left side of words i..j-1, [j, i] right side
        self.scale = torch.full((num, edge, edge, 1), float("-inf"), dtype=torch.float64, device=self.leaf.device)
        self.ranks: list[Tensor] = []  # from width 2, "b s r"   mantissas before the head, largest entry 1
        self.norms: list[Tensor] = []  # "b s 1"                 the divisor of each
        self.tops: list[Tensor] = []  # "b s"    float64         the scale that the splits of a span were brought to
        self.scales: list[Tensor] = []  # "b s"  float64         inside = mantissa exp(scale)
        self.shares: list[Tensor] = []  # "b s k 1"              of the splits, the largest 1

    def vectors(self) -> tuple[list[Tensor], list[Tensor]]:  # "b s n", "b s" by width from 2
        """The mantissas of all spans over their symbols, and their scales."""
        return [self.sides.parents(x) for x in self.ranks], self.scales

    def raw(self) -> Iterator[Tensor]:  # "b s n" by width from 2
        """The products of each width over symbols, before scaling."""
        pairs = zip(self.ranks, self.norms, strict=True)
        return (self.sides.parents(x) * norm.clamp(max=1.0) for x, norm in pairs)

    def forget(self, index: Tensor) -> None:  # "k"
        """Leave nothing of some sentences, so that whatever they hold, infinities too, adds 0 to a gradient."""
        for zero in (self.leaf, self.grid, *self.ranks, *self.shares):
            zero[index] = 0.0
        for one in self.norms:
            one[index] = 1.0


def inside(f: Forest) -> Chart:
    """The vectors of all spans; 0 for spans that reach beyond a length.   2 r^2 per span in rank space, r per split."""
    chart = Chart(f)
    known = f.inside() & (chart.leaf.amax(-1) > 0)
    chart.leaf_scale = torch.where(known, chart.leaf_scale, float("-inf"))
    _write(chart, 1, chart.leaf, chart.leaf_scale)
    head_scale = 0.0 if chart.sides.head is None else chart.sides.head.log_scale
    for width in range(2, chart.num_words + 1):
        one, other = splits(chart.scale, width)
        scale = one + other
        top = scale.amax(2, keepdim=True)
        # Where no split has any weight, all shares are 0.
        share = torch.exp(scale - torch.where(top > float("-inf"), top, 0.0)).to(chart.leaf.dtype)
        left, right = splits(chart.grid, width)
        raw = (share.mT @ (left * right)).squeeze(2)
        norm = divisor(raw)
        ranks = raw / norm
        whole = top[:, :, 0, 0] + norm[..., 0].double().log() + torch.diagonal(f.log_span, width, 1, 2)
        chart.ranks.append(ranks)
        chart.norms.append(norm)
        chart.tops.append(top[:, :, 0, 0])
        chart.scales.append(whole := plus(whole, head_scale))
        chart.shares.append(share)
        if width < chart.num_words:
            _write(chart, width, chart.sides.parents(ranks), whole)
    return chart


def _write(chart: Chart, width: int, vectors: Tensor, scale: Tensor) -> None:  # "b s n", "b s"
    """Both sides of the spans of a width."""
    for side, offset in zip(chart.sides.of(leaf=width == 1), (width, -width), strict=True):
        diagonal(chart.grid, offset).copy_(vectors @ side.linear)
        diagonal(chart.scale, offset).copy_(plus(scale, side.log_scale).unsqueeze(-1))


def roots(f: Forest, chart: Chart) -> Tops:
    """log Z of every sentence of two words and more, from the vector of its widest span; -inf for the others."""
    top = largest(f.log_root)
    root = torch.exp(f.log_root - top)
    if chart.num_words < 2:
        nothing = torch.zeros_like(root)
        total = nothing.double().sum(-1)
        return Tops(total.log(), nothing, root, total)
    at = torch.where(f.lengths > 2, f.lengths - 2, 0)[:, None]
    scale = torch.stack([x[:, 0] for x in chart.scales], 1).gather(1, at)[:, 0]
    span = chart.sides.parents(whole_ranks(f, chart)).squeeze(1)
    total = torch.where(scale > float("-inf"), (span.double() * root).sum(-1), 0.0) * (f.lengths > 1)
    return Tops(total.log() + scale + top[:, 0].double(), span, root, total)


def whole_ranks(f: Forest, chart: Chart) -> Tensor:  # "b 1 r"
    """The mantissas of whole sentences over ranks; those of one word have anything."""
    first = torch.stack([x[:, 0] for x in chart.ranks], 1)
    at = torch.where(f.lengths > 2, f.lengths - 2, 0)[:, None, None].expand(-1, 1, first.shape[-1])
    return first.gather(1, at)


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
