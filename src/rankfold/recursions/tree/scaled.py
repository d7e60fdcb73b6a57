"""Inside and outside on scaled vectors, for any rules: all spans of a width at once, products in linear space.

The chart keeps every span's vector as its rules' children need it: by start for left children, by end for right ones.
The outside pass goes through the widths again and makes their products anew: nothing of size splits x spans is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.numerics.scaled import largest
from rankfold.operators.binary import BinaryOperator, Branch
from rankfold.recursions.tree.charts import (
    Tops,
    divisor,
    leaf_mantissas,
    plus,
)
from rankfold.recursions.tree.potentials import Forest


class Leaves(NamedTuple):
    """Words as children: each rule's side of them, made once per word."""

    leaf_span: Tensor  # "b t l"
    span_leaf: Tensor  # "b t h"
    leaf_leaf_left: Tensor  # "b t l"
    leaf_leaf_right: Tensor  # "b t h"


class Chart(NamedTuple):
    """The result of the inside pass. Widths 0 and 1 of the lists are empty."""

    leaf: Tensor  # "b t p"       mantissas
    leaf_scale: Tensor  # "b t"   float64
    spans: list[Tensor]  # by width, "b s n"   mantissas, largest entry 1
    norms: list[Tensor]  # "b s 1"             the divisor of each
    scales: list[Tensor]  # "b s"              float64: inside = mantissa exp(scale)
    tops: list[Tensor]  # "b s"                float64: the scale that the splits of a span were brought to
    shares: list[list[Tensor]]  # "b s k 1"    the splits' own scales in units of that, kind by kind
    by_start: Tensor  # "b t w l"              left sides of spans, by start and width
    by_end: Tensor  # "b t w h"                right sides, by end and t - width: splits then run along both
    start_scale: Tensor  # "b t w"             float64
    end_scale: Tensor  # "b t w"
    lows: list[Tensor]  # "b s", from width 2  the smallest entry of each span before it was scaled up

    def vectors(self) -> tuple[list[Tensor], list[Tensor]]:  # "b s n", "b s" by width from 2
        """The mantissas of all spans, and their scales."""
        return self.spans[2:], self.scales[2:]

    def raw(self) -> Iterator[Tensor]:  # "b s n" by width from 2
        """The products of each width, before scaling."""
        return (x * norm.clamp(max=1.0) for x, norm in zip(self.spans[2:], self.norms[2:], strict=True))

    def forget(self, index: Tensor) -> None:  # "k"
        """Leave nothing of some sentences, so that whatever they hold, infinities too, adds 0 to a gradient."""
        shares = (share for shares in self.shares for share in shares)
        for zero in (self.leaf, *self.spans[2:], self.by_start, self.by_end, *shares):
            zero[index] = 0.0
        for one in self.norms[2:]:
            one[index] = 1.0
        for nothing in (self.leaf_scale, *self.scales[2:], self.start_scale, self.end_scale):
            nothing[index] = float("-inf")


def leaf_sides(rules: Branch, leaf: Tensor) -> Leaves:
    """Every rule's side of the words."""
    return Leaves(
        rules.leaf_span.left(leaf),
        rules.span_leaf.right(leaf),
        rules.leaf_leaf.left(leaf),
        rules.leaf_leaf.right(leaf),
    )


def inside(f: Forest) -> Chart:
    """The vectors of all spans; 0 for spans that reach beyond a length."""
    num, num_words, _ = f.log_leaf.shape
    leaf, leaf_scale = leaf_mantissas(f)
    leaves = leaf_sides(f.rules, leaf)
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
        [[], []],
        by_start,
        by_end,
        scale,
        scale.clone(),
        [],
    )
    for width in range(2, num_words + 1):
        top, shares = _shares(f.rules, chart, width)
        chart.tops.append(top)
        chart.shares.append(shares)
        raw = step(f.rules, shares, width, leaves, chart.spans[width - 1], *slices(chart, width, num_words))
        norm = divisor(raw)
        chart.lows.append(raw.amin(-1))
        span = raw / norm
        whole = top + norm[..., 0].double().log() + torch.diagonal(f.log_span, width, 1, 2)
        for found, new in ((chart.spans, span), (chart.norms, norm), (chart.scales, whole)):
            found.append(new)
        if width < num_words:
            count = num_words - width + 1
            by_start[:, :count, width] = rule.left(span)
            by_end[:, width:, num_words - width] = rule.right(span)
            chart.start_scale[:, :count, width] = whole
            chart.end_scale[:, width:, num_words - width] = whole
    return chart


def slices(chart: Chart, width: int, num_words: int) -> tuple[Tensor, Tensor]:  # "b s k l", "b s k h"
    """Both sides of the splits into two spans: left children of 2 to width - 2 words."""
    left = chart.by_start[:, : num_words - width + 1, 2 : width - 1]
    return left, chart.by_end[:, width:, num_words - width + 2 : num_words - 1]


def _split_scales(rules: Branch, chart: Chart, width: int) -> list[Tensor]:  # "b s k" each
    """The log-scale of every split, kind by kind, as `step` takes them."""
    num_words, leaf, before = chart.leaf.shape[1], chart.leaf_scale, chart.scales[width - 1]
    count = num_words - width + 1
    if width == 2:
        return [plus(leaf[:, :-1] + leaf[:, 1:], rules.leaf_leaf.log_scale).unsqueeze(-1)]
    found = [
        plus(leaf[:, :count] + before[:, 1:], rules.leaf_span.log_scale).unsqueeze(-1),
        plus(before[:, :-1] + leaf[:, width - 1 :], rules.span_leaf.log_scale).unsqueeze(-1),
    ]
    if width > 3:
        left = chart.start_scale[:, :count, 2 : width - 1]
        right = chart.end_scale[:, width:, num_words - width + 2 : num_words - 1]
        found.append(plus(left + right, rules.span_span.log_scale))
    return found


def _shares(rules: Branch, chart: Chart, width: int) -> tuple[Tensor, list[Tensor]]:  # "b s" float64, "b s k 1" each
    """The largest scale of a span's splits, and theirs in units of it, kind by kind; 0 where none has any weight."""
    scales = _split_scales(rules, chart, width)
    sizes = [x.shape[-1] for x in scales]
    together = torch.cat(scales, -1) if len(scales) > 1 else scales[0]
    top = together.amax(-1, keepdim=True)
    shares = torch.exp(together - torch.where(top > float("-inf"), top, 0.0)).to(chart.leaf.dtype).unsqueeze(-1)
    return top.squeeze(-1), list(torch.split_with_sizes(shares, sizes, -2))


def spans_by_width(
    rules: Branch,
    leaf: Tensor,  # "b t p"
    shares: Callable[[int], list[Tensor]],
    finish: Callable[[int, Tensor], Tensor],  # a width, "b s n" -> "b s n"
) -> Iterator[Tensor]:  # "b s n", from width 2
    """The vectors of all spans, each width finished by the caller; nothing is written in place: autograd may follow."""
    num_words, leaves = leaf.shape[1], leaf_sides(rules, leaf)
    span, lefts, rights = leaf, {1: leaf}, {1: leaf}
    for width in range(2, num_words + 1):
        count = num_words - width + 1
        splits = range(2, width - 1) if width > 3 else range(1, 2)  # of narrow spans, a step looks at no such split
        left = torch.stack([lefts[k][:, :count] for k in splits], 2)
        right = torch.stack([rights[width - k if width > 3 else 1][:, k : k + count] for k in splits], 2)
        span = finish(width, step(rules, shares(width), width, leaves, span, left, right))
        yield span
        lefts[width], rights[width] = rules.span_span.left(span), rules.span_span.right(span)


def step(
    rules: Branch, shares: list[Tensor], width: int, leaves: Leaves, before: Tensor, left: Tensor, right: Tensor
) -> Tensor:  # "b s n"
    """The spans of a width from those one word narrower (`before`), the words, and both sides of all other splits.

    `shares` are those of the splits, kind by kind. In units of exp(top). Differentiable in everything but the scales.
    """
    count = leaves.leaf_span.shape[1] - width + 1
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
    total = torch.where(scale > float("-inf"), (span.double() * root).sum(-1), 0.0)
    return Tops(total.log() + scale + top[:, 0].double(), span, root, total)


SeeLabels = Callable[[int, Tensor], None]  # a width, "b s n"


def gradients(  # weight "b"
    f: Forest, chart: Chart, tops: Tops, weight: Tensor, see: SeeLabels | None = None, *, of_factors: bool = True
) -> list[Tensor]:
    """d (weight . log Z) / d (log_leaf, log_root, log_span, *factors), of sentences of two words and more.

    `see` is shown the posteriors of labels, width by width. Unless asked for, factors have 0.
    """
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
        given_factors = [x.detach().requires_grad_(of_factors) for x in tensors]
        rules = f.with_tensors(f.log_leaf, f.log_root, f.log_root_leaf, f.log_span, *given_factors).rules
        factors = given_factors if of_factors else []
        leaves = leaf_sides(rules, leaf)
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
            left, right = (x.detach().requires_grad_() for x in slices(chart, width, num_words))
            log_weight = grad.new_zeros(*grad.shape[:2], grad.shape[2] if see else 1).requires_grad_()
            raw = step(rules, chart.shares[width], width, held, before, left, right)
            span = raw / chart.norms[width] * torch.exp(log_weight)
            outputs, given = [span], [grad]
            if width < num_words - 1:
                outputs += [rules.span_span.left(span), rules.span_span.right(span)]
                given += [of_start[:, :count, width], of_end[:, width:, num_words - width]]
            asked = [log_weight, before, *held, *factors, left, right]
            # Kept: what the rules make of their factors is shared by all widths. The rest goes with its width.
            parts = torch.autograd.grad(outputs, asked, given, allow_unused=True, retain_graph=True)
        ends = torch.diagonal(grad_span, width, 1, 2)
        ends += parts[0].sum(-1)
        if see:
            see(width, parts[0])
        of_before = torch.zeros_like(before) if parts[1] is None else parts[1]
        for total, part in zip(
            [*of_leaves, *totals[: len(factors)]], parts[2 : 2 + len(held) + len(factors)], strict=True
        ):
            if part is not None:
                total += part
        if parts[-2] is not None:
            for chart_of, part, at in zip((of_start, of_end), parts[-2:], _slice_index(width, num_words), strict=True):
                chart_of[at] += part
    (grad_leaf, *more) = torch.autograd.grad(
        leaves, [leaf, *factors], of_leaves, allow_unused=True, materialize_grads=True
    )
    for total, part in zip(totals[: len(factors)], more, strict=True):
        total += part
    return [grad_leaf * chart.leaf, grad_root, grad_span, *totals]


def _slice_index(width: int, num_words: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    every = slice(None)
    return (every, slice(0, num_words - width + 1), slice(2, width - 1)), (
        every,
        slice(width, None),
        slice(num_words - width + 2, num_words - 1),
    )
