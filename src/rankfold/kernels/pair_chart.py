"""The pairs of children of all spans of a width in one launch, and their gradients' way back in another.

Cells are packed as in `rank_chart`, words and spans in one table of vectors, "c w", each in units of exp(top). The
largest entry, its `norm`, is divided out by whoever reads it: a small launch writes it. The pairs of a span lie in
blocks: of two words one, "p p"; of wider spans a word and a span, "p n", a span and a word, "n p", and from column
`third` on two spans, "n n". The span's vector is the product of these pairs with the rules.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.rank_chart import Cells, _rounded, _row, _scale


@triton.jit
def _split_scale(scale, sentence, start, split, width, num, num_words, known):
    """The log-scale of splits of a span, by the number of words on the left."""
    left = _row(sentence, start, split, num, num_words)
    right = _row(sentence, start + split, width - split, num, num_words)
    return _scale(scale, left, known) + _scale(scale, right, known)


@triton.jit
def _finish(vectors, top, norm, span, scale, inverse, first, size, wide, BLOCK: tl.constexpr):
    """What readers of a cell need: its vector's largest entry, 1 over that, and the log-scale of the quotient."""
    here = first + tl.program_id(0)
    most = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, size, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(vectors + here.to(tl.int64) * wide + at, mask=at < size, other=0.0))
    found = tl.max(most, 0)
    divisor = tl.where(found == 0.0, 1.0, found)
    tl.store(norm + here, found)
    tl.store(inverse + here, 1.0 / divisor)
    tl.store(scale + here, tl.load(top + here) + tl.load(span + here) + tl.log(divisor.to(tl.float64)))


@triton.jit
def _combine(
    vectors, top, scale, inverse, pairs, width, num, num_words, n, p, wide, third, stride,
    ROUND: tl.constexpr, ALL: tl.constexpr, SOME: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of a span's pairs: the sum over splits of left times right, in units of the largest scale of a split."""
    count = num_words - width + 1
    sentence, start = tl.program_id(0) // count, tl.program_id(0) % count
    here = _row(sentence, start, width, num, num_words)
    every = 1 + tl.arange(0, ALL)
    there = every < width
    most = tl.max(
        tl.where(there, _split_scale(scale, sentence, start, every, width, num, num_words, there), float("-inf")), 0
    )
    unit = tl.where(most > float("-inf"), most, 0.0)
    tile = tl.program_id(1)
    if tile == 0:
        tl.store(top + here, most)
    words = width == 2
    word_span = tl.cdiv(p, ROWS) * tl.cdiv(tl.where(words, p, n), COLUMNS)
    span_word = tl.cdiv(n, ROWS) * tl.cdiv(p, COLUMNS)
    left_is_word = tile < word_span
    right_is_word = words | ((tile >= word_span) & (tile < word_span + span_word))
    inner = (tile >= word_span + span_word) & (width > 2)  # of two words there is no other tile
    tile -= tl.where(left_is_word, 0, tl.where(inner, word_span + span_word, word_span))
    block = tl.where(left_is_word, 0, tl.where(inner, third, n * p))
    lefts, rights = tl.where(left_is_word, p, n), tl.where(right_is_word, p, n)
    first = tl.where(left_is_word, 1, tl.where(inner, 2, width - 1))
    last = tl.where(left_is_word, 2, tl.where(inner, width - 1, width))
    across = tl.cdiv(rights, COLUMNS)
    row = (tile // across) * ROWS + tl.arange(0, ROWS)
    column = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(first, last, SOME):
        split = begin + tl.arange(0, SOME)
        known = split < last
        left = _row(sentence, start, split, num, num_words)
        right = _row(sentence, start + split, width - split, num, num_words)
        own = _split_scale(scale, sentence, start, split, width, num, num_words, known)
        share = tl.where(known, tl.exp(own - unit), 0.0).to(tl.float32)
        of_left = tl.load(inverse + left, mask=known, other=1.0) * share
        of_right = tl.load(inverse + right, mask=known, other=1.0)
        one = tl.load(
            vectors + left.to(tl.int64)[:, None] * wide + row[None, :],
            mask=known[:, None] & (row < lefts)[None, :],
            other=0.0,
        )
        other = tl.load(
            vectors + right.to(tl.int64)[:, None] * wide + column[None, :],
            mask=known[:, None] & (column < rights)[None, :],
            other=0.0,
        )
        total += tl.dot(tl.trans(one * of_left[:, None]), other * of_right[:, None], input_precision="ieee")
    tl.store(
        pairs + tl.program_id(0).to(tl.int64) * stride + block + row[:, None] * rights + column[None, :],
        _rounded(total, ROUND).to(pairs.dtype.element_ty),
        mask=(row < lefts)[:, None] & (column < rights)[None, :],
    )


@triton.jit
def _weight(top, scale, own, sibling, parent, known):
    """What a child's gradient has of its parent's: the split's scale in the parent's units; 0 without a parent."""
    unit = tl.load(top + parent, mask=known, other=float("-inf"))
    whole = own + _scale(scale, sibling, known) - tl.where(unit > float("-inf"), unit, 0.0)
    return tl.where(known, tl.exp(whole), 0.0).to(tl.float32)


@triton.jit
def _gather(
    vectors, top, scale, inverse, of_pairs, of_vectors, operand, width, num, num_words, n, p, wide, third, stride,
    ROUND: tl.constexpr, SOME: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """A child's gradient has two parts from a width: of the span that it begins, and of the one that it ends."""
    sentence, start = tl.program_id(0) // num_words, tl.program_id(0) % num_words
    size = 1 + tl.program_id(1)
    stop, rest, count = start + size, width - size, num_words - width + 1
    opens = start + width <= num_words
    closes = (stop >= width) & (stop <= num_words)
    known = opens | closes
    here = _row(sentence, start, size, num, num_words)
    own = _scale(scale, here, known)
    mine, others = tl.where(size == 1, p, n), tl.where(rest == 1, p, n)
    at = tl.program_id(2) * OWN + tl.arange(0, OWN)

    parent = _row(sentence, start, width, num, num_words)
    sibling = _row(sentence, stop, rest, num, num_words)
    share = _weight(top, scale, own, sibling, parent, opens)
    divisor = tl.load(inverse + sibling, mask=opens, other=1.0)
    block = tl.where(size == 1, 0, tl.where(rest == 1, n * p, third))
    begin = of_pairs + (sentence * count + start).to(tl.int64) * stride + block
    rows = tl.zeros((OWN, SOME), tl.float32)
    for first in range(0, tl.where(opens, others, 0), SOME):
        other = first + tl.arange(0, SOME)
        inside = (at < mine)[:, None] & (other < others)[None, :]
        of = tl.load(begin + at[:, None] * others + other[None, :], mask=inside, other=0.0)
        x = tl.load(vectors + sibling.to(tl.int64) * wide + other, mask=other < others, other=0.0) * divisor
        rows += of * x[None, :]
    found = tl.sum(rows, 1) * share

    parent = _row(sentence, stop - width, width, num, num_words)
    sibling = _row(sentence, stop - width, rest, num, num_words)
    share = _weight(top, scale, own, sibling, parent, closes)
    divisor = tl.load(inverse + sibling, mask=closes, other=1.0)
    block = tl.where(rest == 1, 0, tl.where(size == 1, n * p, third))
    begin = of_pairs + (sentence * count + stop - width).to(tl.int64) * stride + block
    columns = tl.zeros((SOME, OWN), tl.float32)
    for first in range(0, tl.where(closes, others, 0), SOME):
        other = first + tl.arange(0, SOME)
        inside = (other < others)[:, None] & (at < mine)[None, :]
        of = tl.load(begin + other[:, None] * mine + at[None, :], mask=inside, other=0.0)
        x = tl.load(vectors + sibling.to(tl.int64) * wide + other, mask=other < others, other=0.0) * divisor
        columns += of * x[:, None]
    found += tl.sum(columns, 0) * share

    there = (at < mine) & known
    place = here.to(tl.int64) * wide + at
    found *= tl.load(inverse + here, mask=known, other=1.0)
    found += tl.load(of_vectors + place, mask=there, other=0.0)
    tl.store(of_vectors + place, found, mask=there)
    tl.store(operand + place, _rounded(found, ROUND).to(operand.dtype.element_ty), mask=there)


# What a program holds: splits at once, a tile of pairs; other children at once, own symbols. Of 128 registers a thread,
# for which sm_90 spills none, four programs of pairs share a multiprocessor.
SIZES = {"SOME": 16, "ROWS": 32, "COLUMNS": 64, "num_warps": 4, "maxnreg": 128}
BACK = {"SOME": 32, "OWN": 128, "num_warps": 8}


def finish(vectors: Tensor, cells: Cells, width: int, size: int) -> None:  # "c w"
    """Write `norm`, `scale` and `inverse` of a width, whose vectors have so many numbers."""
    here, block = cells.of(width), min(1024, triton.next_power_of_2(max(size, 32)))
    _finish[(here.stop - here.start,)](
        vectors, cells.top, cells.norm, cells.span, cells.scale, cells.inverse, here.start, size, vectors.stride(0),
        BLOCK=block, num_warps=1 if block < 256 else 4,
    )  # fmt: skip


def combine(
    vectors: Tensor, cells: Cells, pairs: Tensor, width: int, n: int, p: int, third: int, *, rounded: bool
) -> None:  # "c w", "s q"
    """Write `pairs` and `top` of a width, from 2, where all narrower ones are finished. `rounded`: to TF32."""
    rows, columns = SIZES["ROWS"], SIZES["COLUMNS"]
    blocks = [(p, p)] if width == 2 else [(p, n), (n, p), (n, n)][: 2 if width == 3 else 3]
    tiles = sum(triton.cdiv(left, rows) * triton.cdiv(right, columns) for left, right in blocks)
    _combine[(cells.num * (cells.num_words - width + 1), tiles)](
        vectors, cells.top, cells.scale, cells.inverse, pairs, width, cells.num, cells.num_words, n, p,
        vectors.stride(0), third, pairs.stride(0),
        ROUND=rounded, ALL=triton.next_power_of_2(cells.num_words), **SIZES,
    )  # fmt: skip


def gather(
    vectors: Tensor, cells: Cells, of_pairs: Tensor, of_vectors: Tensor, operand: Tensor, width: int,
    n: int, p: int, third: int, *, rounded: bool,
) -> None:  # "c w", "s q", "c w", "c w"  # fmt: skip
    """Add to `of_vectors` of all narrower cells what the pairs of a width have; `operand`: the same, for products.

    After the widths from the widest to this one, cells of one word less are done.
    """
    sizes = {**BACK, "OWN": min(BACK["OWN"], triton.next_power_of_2(max(n, p)))}
    _gather[(cells.num * cells.num_words, width - 1, triton.cdiv(max(n, p), sizes["OWN"]))](
        vectors, cells.top, cells.scale, cells.inverse, of_pairs, of_vectors, operand, width, cells.num,
        cells.num_words, n, p, vectors.stride(0), third, of_pairs.stride(0),
        ROUND=rounded, **sizes,
    )  # fmt: skip
