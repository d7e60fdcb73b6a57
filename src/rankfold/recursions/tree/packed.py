"""Inside and outside over ranks on a GPU: a width is one launch for its splits and one product with both sides.

The same sums as `ranks`, for weights that all sentences share, with operands of products rounded as the caller permits.
A head is multiplied into the sides once: parents are then ranks, too.
"""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor

from rankfold.kernels.dispatch import triton_serves
from rankfold.numerics.precision import Precision
from rankfold.numerics.scaled import largest
from rankfold.operators.factor import Factor
from rankfold.recursions.tree.charts import Tops, leaf_mantissas
from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.ranks import Sides, share_factors
from rankfold.recursions.tree.soundness import at_least_one

# Which charts are packed: the precision of their products, and whether parents have a head of their own. H200,
# 2026-11-19, `python -m benchmarks gpu`, which compares both ways: steps take 0.22 to 0.64 of the time.
CHOSEN: frozenset[tuple[Precision, bool]] = frozenset(product(("tf32", "bf16"), (False, True)))
EVERY = frozenset(product(get_args(Precision), (False, True)))
FILL = 32  # ranks are filled up to a multiple
LONGEST = 256  # words, whose splits a program holds the scales of


def serves(f: Forest, precision: Precision) -> bool:
    """Whether these rules and sentences go this way: chosen, float32 on a GPU, factors that are weights."""
    if not CHOSEN or f.log_leaf.dtype != torch.float32 or not 2 <= f.log_leaf.shape[1] <= LONGEST:
        return False
    if not share_factors(f.rules):
        return False
    if (precision, any((rule.cpd or (None,))[0] is not None for rule in f.rules)) not in CHOSEN:
        return False
    held = [x for rule in f.rules for x in rule.cpd or () if x is not None]
    return all(not x.is_log and x.value.ndim == 2 for x in held) and triton_serves(f.log_leaf)


class Packed:
    """What charts of packed cells have in common (`kernels/rank_chart.py`), whatever lies in `raw`."""

    rank: int  # of the columns of `raw`, those in use
    raw: Tensor  # "c ..."   in units of exp(top), before its division by `norm`

    def __init__(self, f: Forest, precision: Precision) -> None:
        from rankfold.kernels import rank_chart  # Triton may not be there

        self.kernels, self.tf32 = rank_chart, precision == "tf32"
        self.kind = torch.bfloat16 if precision == "bf16" else torch.float32
        self.leaf, scale = leaf_mantissas(f)
        num, num_words, _ = self.leaf.shape
        known = f.inside() & (self.leaf.amax(-1) > 0)
        wider = [torch.diagonal(f.log_span, width, 1, 2).double() for width in range(2, num_words + 1)]
        span = torch.cat([x.flatten() for x in (torch.zeros_like(scale), *wider)])
        self.total = num * num_words * (num_words + 1) // 2
        top = torch.full((self.total,), float("-inf"), dtype=torch.float64, device=scale.device)
        norm = torch.zeros(self.total, dtype=torch.float32, device=scale.device)
        nothing, ones = torch.full_like(top, float("-inf")), torch.ones_like(norm)
        self.cells = rank_chart.Cells(top, norm, span, nothing, ones, num, num_words)
        self.words = self.cells.of(1)
        top[self.words] = torch.where(known, scale, float("-inf")).flatten()
        norm[self.words] = 1.0

    def operand(self, x: Tensor) -> Tensor:
        """As products take it."""
        return self.kernels.rounded_copy(x, self.kind, rounded=self.tf32)

    def times(self, x: Tensor, y: Tensor, out: Tensor, *, more: bool = False) -> None:
        """out = x y, operands as `operand` leaves them; `more`: added to what is there."""
        if x.dtype != out.dtype and not x.is_cuda:
            x, y = x.to(out.dtype), y.to(out.dtype)
        kind: Any = {} if x.dtype == out.dtype else {"out_dtype": out.dtype}
        if more:
            torch.addmm(out, x, y, **kind, out=out)
        else:
            torch.mm(x, y, **kind, out=out)

    def by_sentence(self, x: Tensor) -> list[Tensor]:  # "c ..." -> "b s ..." by width
        """Views of packed cells."""
        return [
            torch.unflatten(x[self.cells.of(w)], 0, (self.cells.num, -1)) for w in range(1, self.cells.num_words + 1)
        ]

    def by_raw(self, root: Tensor) -> Tensor:  # "b n" -> "b r"
        """The weights of the roots' symbols as weights of what `raw` holds."""
        return root

    def forget(self, index: Tensor) -> None:  # "k"
        """Leave nothing of some sentences, so that whatever they hold, infinities too, adds 0 to a gradient."""
        cells = self.cells
        nothing = ((cells.top, float("-inf")), (cells.scale, float("-inf")), (cells.norm, 1.0), (cells.inverse, 1.0))
        for kept, value in ((self.raw, 0.0), *nothing):
            for x in self.by_sentence(kept):
                x[index] = value
        self.leaf[index] = 0.0


class Chart(Packed):
    """The result of the inside pass, packed by width."""

    def __init__(self, f: Forest, precision: Precision) -> None:
        super().__init__(f, precision)
        cells, words, total = self.cells, self.words, self.total
        self.sides = s = Sides(f.rules)
        left, right = s.left.linear, s.right.linear
        if s.head is not None:
            left, right = s.head.linear.mT @ left, s.head.linear.mT @ right
        self.rank = left.shape[1]
        self.by_rank = self._operand_of(left, right, parents=True)  # "2k k"
        self.leaf_by_rank = self._operand_of(s.leaf_left.linear, s.leaf_right.linear)  # "2k p"
        wide, num_words = len(self.by_rank) // 2, cells.num_words
        self.leaf_rows = self.operand(self.leaf.flatten(0, 1))  # "bt p"
        self.side = self.leaf.new_empty(total, 2 * wide, dtype=self.kind)  # "c 2k"   the last has none
        self.raw = self.leaf.new_empty(total, wide, dtype=self.kind)  # "c k"   words have 0
        self.raw[words] = 0.0
        self.times(self.leaf_rows, self.leaf_by_rank.mT, self.side[words])
        for width in range(2, num_words + 1):
            self.kernels.combine(self.side, cells, self.raw, width, rounded=self.tf32)
            if width < num_words:
                self.times(self.raw[cells.of(width)], self.by_rank.mT, self.side[cells.of(width)])

    def _operand_of(self, left: Tensor, right: Tensor, *, parents: bool = False) -> Tensor:  # "n r" -> "2k n"
        """Both sides under each other, ranks filled up with zeros: rows that begin at whole words are read faster."""
        wide = -(-self.rank // FILL) * FILL
        if wide == self.rank:
            return self.operand(torch.cat([left.mT, right.mT]))
        out = left.new_zeros(2, wide, wide if parents else len(left))
        for side, x in zip(out, (left, right), strict=True):
            side[: self.rank, : len(x)] = x.mT
        return self.operand(out.flatten(0, 1))

    def sides_of(self, x: Tensor) -> tuple[Tensor, Tensor]:  # "2k n" -> "n r" twice
        """A gradient of such operands."""
        left, right = torch.unflatten(x, 0, (2, -1))[:, : self.rank].mT
        return left, right

    def by_raw(self, root: Tensor) -> Tensor:  # "b n" -> "b r"
        return root if self.sides.head is None else root @ self.sides.head.linear

    def forget(self, index: Tensor) -> None:  # "k"
        super().forget(index)
        for x in (*self.by_sentence(self.side), torch.unflatten(self.leaf_rows, 0, (self.cells.num, -1))):
            x[index] = 0.0


def inside(f: Forest, precision: Precision) -> Chart:
    """The vectors of all spans; 0 for spans that reach beyond a length."""
    return Chart(f, precision)


def whole(f: Forest, chart: Packed) -> Tensor:  # "b"
    """The cells of whole sentences; of one word, that of the first two."""
    cells, width = chart.cells, torch.where(f.lengths > 1, f.lengths, 2)
    before = (width - 1) * (cells.num_words + 1) - width * (width - 1) // 2
    sentence = torch.arange(cells.num, device=width.device)
    return cells.num * before + sentence * (cells.num_words - width + 1)


def roots(f: Forest, chart: Packed) -> Tops:
    """log Z of every sentence of two words and more, from the numbers of its widest span; -inf for the others."""
    top = largest(f.log_root)
    root = chart.by_raw(torch.exp(f.log_root - top))
    at = whole(f, chart)
    top_, norm, span = (x[at] for x in chart.cells[:3])
    norm = torch.where(norm == 0, 1.0, norm)
    scale = top_ + norm.double().log() + span
    ranks = chart.raw[at, : chart.rank].float() / norm[:, None]
    total = torch.where(scale > float("-inf"), (ranks.double() * root).sum(-1), 0.0) * (f.lengths > 1)
    return Tops(total.log() + scale + top[:, 0].double(), ranks, root, total)


def gradients(f: Forest, chart: Chart, tops: Tops, weight: Tensor, *, of_factors: bool = True) -> list[Tensor]:
    """d (weight . log Z) / d (log_leaf, log_root, log_span, *factors), of sentences of two words and more.

    Unless asked for, factors have 0. Cost: twice that of the inside pass. Memory: one more chart.
    """
    cells, head = chart.cells, chart.sides.head
    share = shares(f, tops, weight)
    of_label = share * torch.exp(f.log_root - largest(f.log_root))  # "b n"
    of_root = of_label * (tops.span if head is None else tops.span @ head.linear.mT)
    of_raw, of_side = _outside(f, chart, share * tops.root)
    of_leaf = torch.empty_like(chart.leaf)
    chart.times(of_side[cells.of(1)], chart.leaf_by_rank, of_leaf.flatten(0, 1))
    of_span = of_spans(f, chart, of_raw)
    tensors = f.tensors()[4:]
    if not of_factors:
        return [of_leaf * chart.leaf, of_root, of_span, *(torch.zeros_like(x) for x in tensors)]
    by_id = _of_factors(chart, of_side, None if head is None else of_label.mT @ tops.span)
    return [of_leaf * chart.leaf, of_root, of_span, *(by_id[id(x)] for x in tensors)]


def shares(f: Forest, tops: Tops, weight: Tensor) -> Tensor:  # "b" -> "b 1"
    """The weight of a sentence over its total; 0 for those of one word, or without a tree."""
    found = (tops.total > 0) & (f.lengths > 1)
    return torch.where(found, weight / torch.where(found, tops.total, 1.0), 0.0).float().unsqueeze(-1)


def of_tops(f: Forest, chart: Packed, of_top: Tensor) -> Tensor:  # "b r" -> "c ..."
    """Gradients of all cells, of which only those of whole sentences are known yet: the others are 0."""
    at = whole(f, chart)
    norm = torch.where(chart.cells.norm[at] == 0, 1.0, chart.cells.norm[at])
    of_raw = torch.zeros_like(chart.raw, dtype=torch.float32)
    of_raw[at, : chart.rank] = of_top / norm[:, None]
    return of_raw


def of_spans(f: Forest, chart: Packed, of_raw: Tensor) -> Tensor:  # "c ..." -> "b t+1 t+1"
    """The posteriors of brackets."""
    out = torch.zeros_like(f.log_span)
    for width, part in enumerate(chart.by_sentence(torch.einsum("cr,cr->c", of_raw, chart.raw.float()))[1:], 2):
        torch.diagonal(out, width, 1, 2).copy_(part)
    return out


def _outside(f: Forest, chart: Chart, of_top: Tensor) -> tuple[Tensor, Tensor]:  # "b r" -> "c k", "c 2k"
    """The gradients of all ranks and of both sides, from those of the whole sentences' ranks.

    Spans of all words have no sides: there is anything.
    """
    cells, of_raw = chart.cells, of_tops(f, chart, of_top)
    of_side = torch.empty_like(chart.side)
    for width in range(cells.num_words - 1, 0, -1):
        chart.kernels.gather(chart.side, cells, of_raw, of_side, width, rounded=chart.tf32)
        if width > 1:
            here = cells.of(width)
            chart.times(of_side[here], chart.by_rank, of_raw[here], more=True)
    return of_raw, of_side


def _of_factors(chart: Chart, of_side: Tensor, of_head: Tensor | None) -> dict[int, Tensor]:  # "c 2k", "n r"
    """The gradients of the factors by the id of their tensors: one product each; `of_head` is the roots' part."""
    s, cells = chart.sides, chart.cells
    words, spans = cells.of(1), slice(cells.first(2), cells.first(cells.num_words))
    of_spans, of_leaves = (torch.empty_like(x, dtype=torch.float32) for x in (chart.by_rank, chart.leaf_by_rank))
    chart.times(of_side[spans].mT, chart.raw[spans], of_spans)
    chart.times(of_side[words].mT, chart.leaf_rows, of_leaves)
    left, right = (x[: chart.rank] for x in chart.sides_of(of_spans))
    parts = []
    if s.head is not None:
        assert of_head is not None
        head = s.head.linear
        parts.append((s.head, of_head + s.left.linear @ left.mT + s.right.linear @ right.mT))
        left, right = head @ left, head @ right
    parts += zip((s.left, s.right, s.leaf_left, s.leaf_right), (left, right, *chart.sides_of(of_leaves)), strict=True)
    return summed(parts)


def summed(parts: list[tuple[Factor, Tensor]]) -> dict[int, Tensor]:
    """Gradients by the id of their tensors: one tensor may be several factors."""
    by_id: dict[int, Tensor] = {}
    for factor, part in parts:
        at = id(factor.value)
        by_id[at] = by_id[at] + part if at in by_id else part
    return by_id


def kept(f: Forest, chart: Chart, tops: Tops) -> Tensor:  # "b"
    """Whether the loss to underflow in a sentence is below the round-off of the rest: as `soundness.ranks_kept`.

    Vectors are held before their division by the norm. A factor of a term that underflows is below `tiny`, the others
    are two sides and a norm at most: with h the largest sum of weights, or 1, no more than h^2 each.
    """
    cells, info = chart.cells, torch.finfo(torch.float32)
    bound, end = info.tiny / info.eps, cells.first(cells.num_words)
    low, high = torch.aminmax(torch.unflatten(chart.side[:end], 1, (2, -1))[..., : chart.rank], dim=-1)
    low, high = low.amin(1), high.amax(1)
    words = cells.of(1)

    def gain(by_rank: Tensor) -> Tensor:
        return at_least_one(by_rank.sum(1, dtype=torch.float32).amax().double())

    of_spans, of_words = gain(chart.by_rank), gain(chart.leaf_by_rank)
    least = bound * torch.maximum(of_spans, of_words) ** 4
    needed = (of_spans * least).expand(end).clone()
    needed[words] = bound * of_words
    fine = cells.norm >= bound
    fine &= cells.norm < 1 / bound  # and so is its inverse
    fine[:end] &= (low.double() >= needed) & (high < float("inf"))
    good = fine | (cells.top == float("-inf"))
    rooted = tops.total >= least * tops.root.double().sum(-1) / cells.norm[whole(f, chart)].double().clamp(max=1.0)
    return torch.stack([x.all(1) for x in chart.by_sentence(good)]).all(0) & rooted
