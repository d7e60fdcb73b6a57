"""The outside pass on scaled vectors: the derivative of each width's steps, made anew from the chart.

Read next: `recursions/tree_scaled.py`, whose steps these are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankfold.recursions.tree_potentials import Forest
from rankfold.recursions.tree_scaled import Chart, Leaves, Tops, prepared, slices, step

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
