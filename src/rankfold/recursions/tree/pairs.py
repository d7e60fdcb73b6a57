"""Inside and outside over pairs of children on a GPU: a width is one launch for its pairs and one product with rules.

The same sums as `scaled`, for rules that all sentences share, with operands of products rounded as the caller permits.
Rules of low rank are written out once: a launch less a width costs more than the longer product.
"""

from __future__ import annotations

from itertools import product
from typing import Literal, get_args

import torch
from torch import Tensor

from rankfold.kernels.dispatch import triton_serves
from rankfold.numerics.precision import Precision, products_in
from rankfold.operators import BinaryDense, BinaryMatricised
from rankfold.operators.binary import BinaryOperator
from rankfold.operators.factor import Factor
from rankfold.recursions.tree.charts import Tops
from rankfold.recursions.tree.packed import (
    FILL,
    LONGEST,
    Packed,
    of_spans,
    of_tops,
    roots,
    shares,
    summed,
)
from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.soundness import at_least_one

__all__ = ["CHOSEN", "EVERY", "Chart", "gradients", "inside", "kept", "roots", "serves"]

Kind = Literal["dense", "low rank"]
# Which charts go this way: the precision of their products, and whether some rules are of low rank. H200, 2026-11-20,
# `python -m benchmarks gpu`, which compares both ways: steps take 0.27 to 0.45 of the time.
CHOSEN: frozenset[tuple[Precision, Kind]] = frozenset(product(("tf32", "bf16"), get_args(Kind)))
EVERY: frozenset[tuple[Precision, Kind]] = frozenset(product(get_args(Precision), get_args(Kind)))
WHOLE = 8  # numbers of bfloat16 in a word of 16 bytes, which products read at once


def serves(f: Forest, precision: Precision) -> bool:
    """Whether these rules and sentences go this way: chosen, float32 on a GPU, weights or thin factors of few symbols.

    Rules of low rank are taken if, written out, they are no larger than the pairs of all spans of two words.
    """
    num, num_words, _ = f.log_leaf.shape
    if not CHOSEN or f.log_leaf.dtype != torch.float32 or not 2 <= num_words <= LONGEST:
        return False
    if not all(type(rule) in (BinaryDense, BinaryMatricised) and rule.batch is None for rule in f.rules):
        return False
    thin = any(isinstance(rule, BinaryMatricised) for rule in f.rules)
    if (precision, "low rank" if thin else "dense") not in CHOSEN:
        return False
    if (thin and f.log_root.shape[1] > num * (num_words - 1)) or any(any(rule.log_factors) for rule in f.rules):
        return False
    return triton_serves(f.log_leaf)


def _filled(size: int, to: int = FILL) -> int:
    return -(-size // to) * to


class Chart(Packed):
    """The result of the inside pass: vectors of words and spans over their symbols, packed by width in one table.

    Pairs are kept of one width at a time, in blocks of columns filled up with zeros (`kernels/pair_chart.py`).
    """

    def __init__(self, f: Forest, precision: Precision) -> None:
        from rankfold.kernels import pair_chart

        super().__init__(f, precision)
        self.pair_kernels, cells = pair_chart, self.cells
        self.rank = n = f.log_root.shape[1]
        self.num_leaves = p = self.leaf.shape[2]
        self.rules, self.rows = f.rules, _filled(n, WHOLE)
        self.third = _filled(2 * n * p)  # where the pairs of two spans begin
        self.of_words = self._written([(f.rules.leaf_leaf, 0)], _filled(p * p))  # "a pp"
        mixed = [(f.rules.leaf_span, 0), (f.rules.span_leaf, n * p), (f.rules.span_span, self.third)]
        self.of_wider = self._written(mixed, self.third + _filled(n * n))  # "a q"
        count = cells.num * (cells.num_words - 1)
        new = self.leaf.new_zeros
        self.words_pairs = new(count, self.of_words.shape[1], dtype=self.kind)
        self.wider_pairs = new(max(count - cells.num, 0), self.of_wider.shape[1], dtype=self.kind)
        self.raw = new(self.total, _filled(max(n, p)))  # "c w"
        self.raw[self.words, :p] = self.leaf.flatten(0, 1)
        pair_chart.finish(self.raw, cells, 1, p)
        for width in range(2, cells.num_words + 1):
            self.times(self.pairs(width), self.table(width).mT, self.raw[cells.of(width), : self.rows])
            pair_chart.finish(self.raw, cells, width, n)

    def _written(self, rules: list[tuple[BinaryOperator, int]], columns: int) -> Tensor:  # "a q"
        """Rules of some kinds side by side, each from a column on; parents are filled up with zeros, too."""
        out = self.leaf.new_zeros(self.rows, columns)
        for rule, at in rules:
            block = out[: self.rank, at : at + rule.shape[1] * rule.shape[2]]
            if isinstance(rule, BinaryMatricised):
                parent, pair = (x.linear for x in rule.held)
                with products_in("float32", out.device):
                    torch.mm(parent, pair.flatten(0, 1).mT, out=block)
            else:
                assert isinstance(rule, BinaryDense)
                block.copy_(rule.weight.linear.flatten(1))
        return self.operand(out)

    def table(self, width: int) -> Tensor:  # "a q"
        """The rules of a width; of three words no pair is of two spans."""
        if width == 2:
            return self.of_words
        return self.of_wider[:, : self.third] if width == 3 else self.of_wider

    def like_pairs(self, width: int, words: Tensor, wider: Tensor) -> Tensor:  # "s q"
        """The rows and columns of one of two tables that a width has."""
        count = self.cells.num * (self.cells.num_words - width + 1)
        return (words if width == 2 else wider)[:count, : self.table(width).shape[1]]

    def pairs(self, width: int) -> Tensor:  # "s q"
        """The pairs of the spans of a width, made anew, in the place of those of another."""
        out = self.like_pairs(width, self.words_pairs, self.wider_pairs)
        self.pair_kernels.combine(
            self.raw, self.cells, out, width, self.rank, self.num_leaves, self.third, rounded=self.tf32
        )
        return out


def inside(f: Forest, precision: Precision) -> Chart:
    """The vectors of all spans; 0 for spans that reach beyond a length."""
    return Chart(f, precision)


def gradients(f: Forest, chart: Chart, tops: Tops, weight: Tensor, *, of_factors: bool = True) -> list[Tensor]:
    """d (weight . log Z) / d (log_leaf, log_root, log_span, *factors), of sentences of two words and more.

    Unless asked for, factors have 0. Cost: three times that of the inside pass. Memory: the pairs of one more width.
    """
    of_top = shares(f, tops, weight) * tops.root
    of_raw, of_rules = _outside(f, chart, of_top, of_factors=of_factors)
    of_leaf = of_raw[chart.words, : chart.num_leaves].view_as(chart.leaf)
    tensors = f.tensors()[4:]
    by_id = _of_factors(chart, *of_rules) if of_rules else {id(x): torch.zeros_like(x) for x in tensors}
    return [
        of_leaf * chart.leaf,
        of_top * tops.span,
        of_spans(f, chart, of_raw),
        *(by_id[id(x)] for x in tensors),
    ]


def _outside(
    f: Forest, chart: Chart, of_top: Tensor, *, of_factors: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:  # "b n" -> "c w", "a pp" and "a q"
    """The gradients of all vectors, and those of both tables of rules, from those of the whole sentences' vectors."""
    cells, of_raw = chart.cells, of_tops(f, chart, of_top)
    operand = chart.operand(of_raw)
    of_pairs = [torch.empty_like(x, dtype=torch.float32) for x in (chart.words_pairs, chart.wider_pairs)]
    of_rules = [torch.zeros_like(x, dtype=torch.float32) for x in (chart.of_words, chart.of_wider)]
    for width in range(cells.num_words, 1, -1):
        of_span, table = operand[cells.of(width), : chart.rows], chart.table(width)
        out = chart.like_pairs(width, *of_pairs)
        chart.times(of_span, table, out)
        chart.pair_kernels.gather(
            chart.raw, cells, out, of_raw, operand, width, chart.rank, chart.num_leaves, chart.third,
            rounded=chart.tf32,
        )  # fmt: skip
        if of_factors:
            of_table = of_rules[int(width > 2)][:, : table.shape[1]]
            chart.times(of_span.mT, chart.pairs(width), of_table, more=True)
    return of_raw, (of_rules[0], of_rules[1]) if of_factors else None


def _of_factors(chart: Chart, of_words: Tensor, of_wider: Tensor) -> dict[int, Tensor]:  # "a pp", "a q"
    """The gradients of the rules' factors by the id of their tensors."""
    (n, p), rules = (chart.rank, chart.num_leaves), chart.rules
    places = [
        (rules.leaf_leaf, of_words, 0),
        (rules.leaf_span, of_wider, 0),
        (rules.span_leaf, of_wider, n * p),
        (rules.span_span, of_wider, chart.third),
    ]
    parts: list[tuple[Factor, Tensor]] = []
    for rule, table, at in places:
        of_rule = table[:n, at : at + rule.shape[1] * rule.shape[2]]
        if isinstance(rule, BinaryMatricised):
            parent, pair = rule.held
            with products_in("float32", table.device):
                of_pair = (of_rule.mT @ parent.linear).view_as(pair.value)
                parts += [(parent, of_rule @ pair.linear.flatten(0, 1)), (pair, of_pair)]
        else:
            assert isinstance(rule, BinaryDense)
            parts.append((rule.weight, of_rule.reshape(rule.shape)))
    return summed(parts)


def kept(f: Forest, chart: Chart, tops: Tops) -> Tensor:  # "b"
    """Whether the loss to underflow in a sentence is below the round-off of the rest: as `soundness.vectors_kept`.

    A term of a pair that underflows is below `tiny`, and grows on its way to the span's vector by at most the rules'
    `gain`. Vectors are held before their division by the norm, so the bound on their entries is multiplied by it.
    """
    cells, info = chart.cells, torch.finfo(torch.float32)
    gain = torch.stack([x.sum(1, dtype=torch.float32).amax() for x in (chart.of_words, chart.of_wider)]).amax()
    spans = slice(chart.words.stop, None)
    low, high = torch.aminmax(chart.raw[spans, : chart.rank], dim=-1)
    norm, bound = cells.norm[spans], info.tiny / info.eps
    needed = bound * at_least_one(gain.double()) * at_least_one(norm.double())
    fine = (low.double() >= needed) & (high < float("inf")) & (norm < 1 / bound)  # its inverse is no loss, either
    good = torch.ones_like(cells.norm, dtype=torch.bool)
    good[spans] = fine | (cells.top[spans] == float("-inf"))
    return torch.stack([x.all(1) for x in chart.by_sentence(good)]).all(0)
