"""Inside and outside on scaled vectors: all spans of a width at once, products in linear space.

The chart keeps every span's vector as its rules' children need it: by start for left children, by end for right ones,
so that the splits of all spans of a width are two slices. The backward pass goes through the widths again, from the
widest, and makes each one's products anew: nothing of size splits x spans is ever stored.
Read next: `operators/binary.py` for the products, `recursions/tree_log.py` for any range.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.numerics.scaled import largest
from rankfold.operators.binary import BinaryOperator, Branch
from rankfold.recursions.tree_potentials import Forest


class Leaves(NamedTuple):
    """Words as children: each rule's side of them, made once a word."""

    leaf_span: Tensor  # "b t l"
    span_leaf: Tensor  # "b t h"
    leaf_leaf_left: Tensor  # "b t l"
    leaf_leaf_right: Tensor  # "b t h"


class Chart(NamedTuple):
    """What the inside pass leaves. Widths 0 and 1 of the lists are empty."""

    leaf: Tensor  # "b t p"       mantissas
    leaf_scale: Tensor  # "b t"   float64
    spans: list[Tensor]  # by width, "b s n"   mantissas, largest entry 1
    norms: list[Tensor]  # "b s 1"             what each was divided by
    scales: list[Tensor]  # "b s"              float64: inside = mantissa exp(scale)
    tops: list[Tensor]  # "b s"                float64: the scale that the splits of a span were brought to
    by_start: Tensor  # "b t w l"              left sides of spans, by start and width
    by_end: Tensor  # "b t w h"                right sides, by end and t - width: splits then run along both
    start_scale: Tensor  # "b t w"             float64
    end_scale: Tensor  # "b t w"
    sound: Tensor  # "b"                       whether every span kept all that its largest entry does not round away


def leaf_mantissas(f: Forest) -> tuple[Tensor, Tensor]:  # "b t p", "b t" float64
    """exp(log_leaf) over its largest entry, and the log of that; 0 beyond a length, so that spans there are 0 too."""
    log_leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, float("-inf"))
    top = largest(log_leaf)
    return torch.exp(log_leaf - top), top[..., 0].double()


def prepared(rules: Branch, leaf: Tensor) -> Leaves:
    """Every rule's side of the words."""
    return Leaves(
        rules.leaf_span.left(leaf),
        rules.span_leaf.right(leaf),
        rules.leaf_leaf.left(leaf),
        rules.leaf_leaf.right(leaf),
    )


def inside(f: Forest) -> Chart:
    """The vectors of all spans; 0 for those that reach beyond a length."""
    num, num_words, _ = f.log_leaf.shape
    leaf, leaf_scale = leaf_mantissas(f)
    leaves = prepared(f.rules, leaf)
    rule = f.rules.span_span
    one = f.log_leaf.new_zeros(num, 1, rule.shape[0])
    edge = (num, num_words + 1, num_words + 1)
    by_start = f.log_leaf.new_zeros(*edge, rule.left(one).shape[-1])
    by_end = f.log_leaf.new_zeros(*edge, rule.right(one).shape[-1])
    scale = torch.full(edge, float("-inf"), dtype=torch.float64, device=leaf.device)
    chart = Chart(
        leaf,
        leaf_scale,
        [leaf] * 2,
        [leaf] * 2,
        [leaf_scale] * 2,
        [leaf_scale] * 2,
        by_start,
        by_end,
        scale,
        scale.clone(),
        torch.ones(num, dtype=torch.bool, device=leaf.device),
    )
    tiny, inside = torch.finfo(leaf.dtype).tiny, f.inside()
    strict = _zeros_are_losses(f)
    for width in range(2, num_words + 1):
        top, reached = _top(f, chart, width)
        raw = step(f.rules, chart, width, top, leaves, chart.spans[width - 1], *_slices(chart, width, num_words))
        norm = raw.amax(-1, keepdim=True)
        chart.sound.logical_and_(_nothing_lost(raw, norm, reached & inside[:, width - 1 :], strict).all(1))
        span = raw / norm.clamp(min=tiny)
        ends = torch.diagonal(f.log_span, width, 1, 2).double()
        whole = top + norm[..., 0].double().log() + ends
        for found, new in ((chart.spans, span), (chart.norms, norm), (chart.scales, whole), (chart.tops, top)):
            found.append(new)
        count = num_words - width + 1
        by_start[:, :count, width] = rule.left(span)
        by_end[:, width:, num_words - width] = rule.right(span)
        chart.start_scale[:, :count, width] = whole
        chart.end_scale[:, width:, num_words - width] = whole
    return chart


def clear(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Whether numbers are finite and so large that what underflows beside them is below their round-off."""
    info = torch.finfo(dtype or x.dtype)
    return (x >= info.tiny / info.eps) & (x < float("inf"))


def _zeros_are_losses(f: Forest) -> Tensor:  # "b"
    """Whether an entry of 0 is to be taken for one that underflow took.

    In float32 always: float64 can tell. There only where no weight is 0, because logarithms cost too much to be asked
    about every rule that is none.
    """
    if f.log_leaf.dtype != torch.float64:
        return torch.ones_like(f.lengths, dtype=torch.bool)
    possible = (f.log_leaf > float("-inf")).all(-1) | ~f.inside()
    return possible.all(-1) & f.rules.positive()


def _nothing_lost(raw: Tensor, norm: Tensor, reached: Tensor, strict: Tensor) -> Tensor:  # "b s n", "b s 1", "b s", "b"
    """Whether what underflow took from a span is below the round-off of its entries; "b s"."""
    high = (norm[..., 0] == 0) | clear(norm[..., 0])
    low = clear(raw.amin(-1)) | ~strict[:, None]
    return ~reached | (high & low)


def forget(chart: Chart, index: Tensor) -> None:  # "k"
    """Leave nothing of some sentences, so that whatever they hold, infinities too, adds 0 to a gradient."""
    for zero in (chart.leaf, *chart.spans[2:], chart.by_start, chart.by_end, *chart.tops[2:]):
        zero[index] = 0.0
    for one in chart.norms[2:]:
        one[index] = 1.0
    for nothing in (chart.leaf_scale, *chart.scales[2:], chart.start_scale, chart.end_scale):
        nothing[index] = float("-inf")


def _slices(chart: Chart, width: int, num_words: int) -> tuple[Tensor, Tensor]:  # "b s k l", "b s k h"
    """Both sides of the splits into two spans: left children of 2 to width - 2 words."""
    left = chart.by_start[:, : num_words - width + 1, 2 : width - 1]
    return left, chart.by_end[:, width:, num_words - width + 2 : num_words - 1]


def _split_scales(rules: Branch, chart: Chart, width: int) -> list[Tensor]:  # "b s k" each
    """The log-scale of every split, kind by kind, as `step` takes them."""
    num_words, leaf, before = chart.leaf.shape[1], chart.leaf_scale, chart.scales[width - 1]
    count = num_words - width + 1
    if width == 2:
        return [(leaf[:, :-1] + leaf[:, 1:] + rules.leaf_leaf.log_scale).unsqueeze(-1)]
    found = [
        (leaf[:, :count] + before[:, 1:] + rules.leaf_span.log_scale).unsqueeze(-1),
        (before[:, :-1] + leaf[:, width - 1 :] + rules.span_leaf.log_scale).unsqueeze(-1),
    ]
    if width > 3:
        left = chart.start_scale[:, :count, 2 : width - 1]
        right = chart.end_scale[:, width:, num_words - width + 2 : num_words - 1]
        found.append(left + right + rules.span_span.log_scale)
    return found


def _top(f: Forest, chart: Chart, width: int) -> tuple[Tensor, Tensor]:  # "b s" float64, "b s" bool
    """The largest scale of a span's splits, 0 where none has any weight, and whether one has."""
    top = torch.cat(_split_scales(f.rules, chart, width), -1).amax(-1)
    reached = top > float("-inf")
    return torch.where(reached, top, 0.0), reached


def step(
    rules: Branch, chart: Chart, width: int, top: Tensor, leaves: Leaves, before: Tensor, left: Tensor, right: Tensor
) -> Tensor:  # "b s n"
    """The spans of a width from those one word narrower (`before`), the words, and both sides of all other splits.

    In units of exp(top). Differentiable in everything but the scales.
    """
    count = chart.leaf.shape[1] - width + 1
    shares = [
        torch.exp(x - top.unsqueeze(-1)).to(before.dtype).unsqueeze(-1) for x in _split_scales(rules, chart, width)
    ]
    if width == 2:
        sides = [(rules.leaf_leaf, leaves.leaf_leaf_left[:, :-1, None], leaves.leaf_leaf_right[:, 1:, None])]
    else:
        sides = [
            (rules.leaf_span, leaves.leaf_span[:, :count, None], rules.leaf_span.right(before)[:, 1:, None]),
            (rules.span_leaf, rules.span_leaf.left(before)[:, :-1, None], leaves.span_leaf[:, width - 1 :, None]),
        ]
        if width > 3:
            sides.append((rules.span_span, left, right))
    by_head: dict[object, tuple[BinaryOperator, Tensor]] = {}
    for (rule, one, other), share in zip(sides, shares, strict=True):
        found = rule.combine(one * share, other)
        key = rule.head_of
        by_head[key] = (rule, found if key not in by_head else by_head[key][1] + found)
    parts = [rule.head(found) for rule, found in by_head.values()]
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


class Tops(NamedTuple):
    """The roots of all sentences."""

    log_z: Tensor  # "b"          float64
    span: Tensor  # "b n"         the mantissa of the whole sentence
    root: Tensor  # "b n"         exp(log_root) over its largest entry
    total: Tensor  # "b"          their product


def roots(f: Forest, chart: Chart) -> Tops:
    """log Z of every sentence of two words and more, from the vector of its widest span; -inf for the others."""
    num = len(f.lengths)
    span = chart.spans[-1].new_zeros(num, f.log_root.shape[1])
    scale = torch.full((num,), float("-inf"), dtype=torch.float64, device=span.device)
    for width in range(2, f.log_leaf.shape[1] + 1):
        here = f.lengths == width
        span = torch.where(here[:, None], chart.spans[width][:, 0], span)
        scale = torch.where(here, chart.scales[width][:, 0], scale)
    top = largest(f.log_root)
    root = torch.exp(f.log_root - top)
    total = (span.double() * root).sum(-1)
    return Tops(total.log() + scale + top[:, 0].double(), span, root, total)


def gradients(f: Forest, chart: Chart, tops: Tops, weight: Tensor) -> list[Tensor]:  # weight "b"
    """d (weight . log Z) / d (log_leaf, log_root, log_span, *factors), of sentences of two words and more."""
    num_words = f.log_leaf.shape[1]
    kind = chart.leaf.dtype
    found = (tops.total > 0) & (f.lengths > 1)
    share = torch.where(found, weight / torch.where(found, tops.total, 1.0), 0.0).to(kind).unsqueeze(-1)
    grad_root = share * tops.span * tops.root
    grad_top = share * tops.root  # "b n", where a sentence's whole span is
    grad_span = torch.zeros_like(f.log_span)
    tensors = f.tensors()[4:]
    totals = [torch.zeros_like(x) for x in tensors]
    with torch.enable_grad():
        leaf = chart.leaf.detach().requires_grad_()
        factors = [x.detach().requires_grad_() for x in tensors]
        rules = f.with_tensors(f.log_leaf, f.log_root, f.log_root_leaf, f.log_span, *factors).rules
        leaves = prepared(rules, leaf)
        held = Leaves(*(x.detach().requires_grad_() for x in leaves))
    of_start, of_end = torch.zeros_like(chart.by_start), torch.zeros_like(chart.by_end)
    of_leaves = [torch.zeros_like(x) for x in held]
    of_before = torch.zeros_like(chart.spans[num_words])
    for width in range(num_words, 1, -1):
        count = num_words - width + 1
        grad = of_before
        grad[:, 0] += torch.where((f.lengths == width)[:, None], grad_top, 0.0)
        with torch.enable_grad():
            before = chart.spans[width - 1].detach().requires_grad_()
            left, right = (x.detach().requires_grad_() for x in _slices(chart, width, num_words))
            log_weight = chart.norms[width].new_zeros(*grad.shape[:2], 1).requires_grad_()
            raw = step(rules, chart, width, chart.tops[width], held, before, left, right)
            tiny = torch.finfo(kind).tiny
            span = raw / chart.norms[width].clamp(min=tiny) * torch.exp(log_weight)
            outputs, given = [span], [grad]
            if width < num_words - 1:
                outputs += [rules.span_span.left(span), rules.span_span.right(span)]
                given += [of_start[:, :count, width], of_end[:, width:, num_words - width]]
            asked = [log_weight, before, *held, *factors, left, right]
            # Kept: what the rules make of their factors is shared by all widths. The rest goes with its width.
            parts = torch.autograd.grad(outputs, asked, given, allow_unused=True, retain_graph=True)
        ends = torch.diagonal(grad_span, width, 1, 2)
        ends += parts[0].squeeze(-1)
        of_before = torch.zeros_like(before) if parts[1] is None else parts[1]
        for total, part in zip([*of_leaves, *totals], parts[2 : 2 + len(held) + len(factors)], strict=True):
            if part is not None:
                total += part
        if parts[-2] is not None:
            for chart_of, part, at in zip((of_start, of_end), parts[-2:], _slice_index(width, num_words), strict=True):
                chart_of[at] += part
    (grad_leaf, *more) = torch.autograd.grad(
        leaves, [leaf, *factors], of_leaves, allow_unused=True, materialize_grads=True
    )
    for total, part in zip(totals, more, strict=True):
        total += part
    return [grad_leaf * chart.leaf, grad_root, grad_span, *totals]


def _slice_index(width: int, num_words: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    every = slice(None)
    return (every, slice(0, num_words - width + 1), slice(2, width - 1)), (
        every,
        slice(width, None),
        slice(num_words - width + 2, num_words - 1),
    )
