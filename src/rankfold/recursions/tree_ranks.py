"""Inside and outside for rules of ranks that share their factors, as the papers' grammars do: one grid, two products.

Words and spans look alike to their parents, a left and a right vector over ranks. Both lie in one grid of starts and
ends, left sides above the diagonal, right sides below it, so that all splits of all spans of a width are two strided
views. The backward pass is written out; it needs a second grid and nothing of the size of the splits.
Read next: `recursions/tree_scaled.py`, the same for any rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rankfold.numerics.scaled import largest
from rankfold.operators.binary import Branch
from rankfold.operators.binary_cpd import BinaryCPD
from rankfold.operators.factor import Factor
from rankfold.recursions.tree_potentials import Forest
from rankfold.recursions.tree_scaled import Tops, clear, divisor, leaf_mantissas, plus, zeros_are_losses


def shared(rules: Branch) -> bool:
    """Whether all kinds of children have one head, and a child one left and one right factor whoever its sibling is."""
    one, two, three, four = rules
    return (
        all(isinstance(rule, BinaryCPD) for rule in rules)
        and len({rule.head_of for rule in rules}) == 1
        and (one.left_of, one.right_of, four.left_of) == (two.left_of, three.right_of, three.left_of)
        and four.right_of == two.right_of
    )


class Sides:
    """The factors of such rules: head "a r" or None, of spans "n r", of leaves "p r"; any may lead with a batch."""

    def __init__(self, rules: Branch) -> None:
        one, four = rules.span_span, rules.leaf_leaf
        assert isinstance(one, BinaryCPD)
        assert isinstance(four, BinaryCPD)
        self.head, self.left, self.right = one.parts
        _, self.leaf_left, self.leaf_right = four.parts

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
    """What the inside pass leaves: vectors of all spans, the sides that parents see, and the shares of the splits."""

    def __init__(self, f: Forest) -> None:
        self.sides = Sides(f.rules)
        self.leaf, self.leaf_scale = leaf_mantissas(f)
        num, self.num_words = self.leaf.shape[:2]
        edge = self.num_words + 1
        rank = self.sides.left.value.shape[-1]
        self.grid = self.leaf.new_zeros(num, edge, edge, rank)  # [i, j] left side of words i..j-1, [j, i] right side
        self.scale = torch.full((num, edge, edge, 1), float("-inf"), dtype=torch.float64, device=self.leaf.device)
        self.ranks: list[Tensor] = []  # from width 2, "b s r"   mantissas before the head, largest entry 1
        self.norms: list[Tensor] = []  # "b s 1"                 what each was divided by
        self.tops: list[Tensor] = []  # "b s"    float64         the scale that the splits of a span were brought to
        self.scales: list[Tensor] = []  # "b s"  float64         inside = mantissa exp(scale)
        self.shares: list[Tensor] = []  # "b s k 1"              of the splits, the largest 1
        self.sound = torch.ones(num, dtype=torch.bool, device=self.leaf.device)

    def vectors(self) -> tuple[list[Tensor], list[Tensor]]:  # "b s n", "b s" by width from 2
        """The mantissas of all spans over their symbols, and their scales."""
        return [self.sides.parents(x) for x in self.ranks], self.scales

    def raw(self) -> Iterator[Tensor]:  # "b s n" by width from 2
        """What the products of each width left over symbols, before it was scaled up."""
        pairs = zip(self.ranks, self.norms, strict=True)
        return (self.sides.parents(x) * norm.clamp(max=1.0) for x, norm in pairs)

    def forget(self, index: Tensor) -> None:  # "k"
        """Leave nothing of some sentences, so that whatever they hold, infinities too, adds 0 to a gradient."""
        for zero in (self.leaf, self.grid, *self.ranks, *self.shares):
            zero[index] = 0.0
        for one in self.norms:
            one[index] = 1.0


def diagonal(grid: Tensor, offset: int) -> Tensor:  # "b e e r" -> "b s r", a view
    """The cells [i, i + offset]: the left sides of spans of a width, the right sides if it is negative."""
    return torch.diagonal(grid, offset, 1, 2).mT


def splits(grid: Tensor, width: int) -> tuple[Tensor, Tensor]:  # "b e e r" -> "b s k r" twice, views
    """Both sides of all splits of the spans of a width, by the number of words on the left, 1 to width - 1."""
    num, edge, _, rank = grid.shape
    size = (num, edge - width, width - 1, rank)
    strides = (edge * edge * rank, (edge + 1) * rank, rank, 1)
    left, right = rank, (width * edge + 1) * rank  # of words 0..0, at [0, 1]; of words 1..width-1, at [width, 1]
    return torch.as_strided(grid, size, strides, left), torch.as_strided(grid, size, strides, right)


def inside(f: Forest) -> Chart:
    """The vectors of all spans; 0 for those that reach beyond a length.   2 r^2 a span in rank space, r a split."""
    chart = Chart(f)
    known = f.inside() & (chart.leaf.amax(-1) > 0)
    leaf_scale = torch.where(known, chart.leaf_scale, float("-inf"))
    _write(chart, 1, chart.leaf, leaf_scale)
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
    chart.sound = _nothing_lost(f, chart, leaf_scale)
    return chart


def _write(chart: Chart, width: int, vectors: Tensor, scale: Tensor) -> None:  # "b s n", "b s"
    """Both sides of the spans of a width."""
    for side, offset in zip(chart.sides.of(leaf=width == 1), (width, -width), strict=True):
        diagonal(chart.grid, offset).copy_(vectors @ side.linear)
        diagonal(chart.scale, offset).copy_(plus(scale, side.log_scale).unsqueeze(-1))


def _nothing_lost(f: Forest, chart: Chart, leaf_scale: Tensor) -> Tensor:  # "b"
    """Whether what underflow took from a sentence is below the round-off of what is left.

    A term that underflows is below `tiny`. In a vector over ranks that makes at most k tiny / norm, for k terms; in the
    sides made of it that times the sums of their factors (`gain`). So every entry of a side, those of rank vectors need
    not be seen, must be `gain` / norm times the bound of `clear`. Zeros are losses where no rule explains them.
    """
    low, high = chart.grid.amin(-1), chart.grid.amax(-1)
    low, high = torch.minimum(low, low.mT), torch.maximum(high, high.mT)
    strict = zeros_are_losses(f)[:, None]
    info = torch.finfo(chart.leaf.dtype)
    bound = info.tiny / info.eps
    words = _packed(low, [1]).double() >= bound * chart.sides.gain(leaf=True)[..., None]
    sound = ((leaf_scale == float("-inf")) | ~strict | words) & (_packed(high, [1]) < float("inf"))
    if chart.num_words < 2:
        return sound.all(-1)
    norm = torch.cat(chart.norms, 1)[..., 0]
    reached = torch.cat(chart.tops, 1) > float("-inf")
    fine = clear(norm)
    below = list(range(2, chart.num_words))  # the whole sentence, last, has no sides
    if below:
        needed = bound * chart.sides.gain(leaf=False)[..., None] / norm[:, :-1].double().clamp(max=1.0)
        fine[:, :-1] &= (~strict | (_packed(low, below).double() >= needed)) & (_packed(high, below) < float("inf"))
    return sound.all(-1) & (~reached | fine).all(-1)


def _packed(cells: Tensor, widths: list[int]) -> Tensor:  # "b e e" -> "b s"
    """The cells above the diagonal, width by width."""
    return torch.cat([torch.diagonal(cells, width, 1, 2) for width in widths], 1)


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
