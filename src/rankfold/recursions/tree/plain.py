"""The inside pass as operations that autograd can follow any number of times: on scaled vectors, and in logarithms.

Scaled products, in the scales of a chart that is there, have derivatives at rules of weight 0 too; logarithms have any
range. Both keep all splits for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import largest
from rankfold.operators.binary import BinaryOperator
from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.scaled import Chart, spans_by_width


def log_z_scaled(f: Forest, chart: Chart) -> Tensor:  # "b"   float64
    """log Z of every sentence; -inf for sentences that the chart has forgotten.

    The chart's scales are constants, and any constants give the same log Z: nothing is lost by not following them.
    """
    first = torch.where((f.lengths == 1)[:, None], f.log_leaf[:, 0], 0.0)
    found = log_sum(first.double() + f.log_root_leaf.double())
    top = largest(f.log_root)
    root = torch.exp(f.log_root - top)
    for width, span in enumerate(spans_scaled(f, chart), 2):
        total = (span[:, 0].double() * root).sum(-1)
        alive = total > 0
        here = torch.where(alive, torch.log(torch.where(alive, total, 1.0)), float("-inf"))
        here = here + torch.where(alive, chart.scales[width][:, 0], 0.0) + top[:, 0].double()
        found = torch.where(f.lengths == width, here, found)
    return found


def spans_scaled(f: Forest, chart: Chart) -> Iterator[Tensor]:  # "b s n" by width, from 2
    """The mantissas of all spans, differentiable in every tensor of the forest."""
    known = f.inside() & (chart.leaf_scale > float("-inf"))
    log_leaf = torch.where(known.unsqueeze(-1), f.log_leaf, float("-inf"))
    scale = torch.where(known, chart.leaf_scale, 0.0).to(log_leaf.dtype)

    def scale_down(width: int, raw: Tensor) -> Tensor:
        ends = torch.diagonal(f.log_span, width, 1, 2)
        ends = torch.where(ends > float("-inf"), ends - ends.detach(), 0.0).unsqueeze(-1)  # its value is in the scales
        return raw / chart.norms[width] * torch.exp(ends)

    leaf = torch.exp(log_leaf - scale.unsqueeze(-1))
    return spans_by_width(f.rules, leaf, lambda width: chart.shares[width], scale_down)


def log_z_in_logs(f: Forest) -> Tensor:  # "b"
    """log Z of every sentence, those of one word included."""
    log_leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, 0.0)
    single = log_sum(log_leaf[:, 0] + f.log_root_leaf)
    return torch.where(f.lengths == 1, single, log_roots(f, inside_in_logs(f, log_leaf)))


def log_roots(f: Forest, spans: list[Tensor]) -> Tensor:  # "b s n" by width -> "b"
    """log Z of every sentence of two words and more, from the vector of its widest span; -inf for the others."""
    found = torch.full_like(f.log_root[:, 0], float("-inf"))
    for width, span in enumerate(spans, 2):
        found = torch.where(f.lengths == width, log_sum(span[:, 0] + f.log_root), found)
    return found


def inside_in_logs(f: Forest, log_leaf: Tensor) -> list[Tensor]:  # "b t p" -> "b s n" by width, from 2
    """The log-weights of all trees of every span, by the label of its top."""
    rules, num_words = f.rules, log_leaf.shape[1]
    leaf_left, leaf_right = rules.leaf_span.left_log(log_leaf), rules.span_leaf.right_log(log_leaf)
    spans: dict[int, Tensor] = {}
    lefts: dict[int, Tensor] = {}
    rights: dict[int, Tensor] = {}
    for width in range(2, num_words + 1):
        count = num_words - width + 1
        if width == 2:
            left, right = rules.leaf_leaf.left_log(log_leaf), rules.leaf_leaf.right_log(log_leaf)
            sides = [(rules.leaf_leaf, left[:, :-1, None], right[:, 1:, None])]
        else:
            before = spans[width - 1]
            sides = [
                (rules.leaf_span, leaf_left[:, :count, None], rules.leaf_span.right_log(before)[:, 1:, None]),
                (rules.span_leaf, rules.span_leaf.left_log(before)[:, :-1, None], leaf_right[:, width - 1 :, None]),
            ]
        if width > 3:
            splits = range(2, width - 1)
            left = torch.stack([lefts[k][:, :count] for k in splits], 2)
            right = torch.stack([rights[width - k][:, k : k + count] for k in splits], 2)
            sides.append((rules.span_span, left, right))
        by_head: dict[object, tuple[BinaryOperator, list[Tensor]]] = {}
        for rule, left, right in sides:
            by_head.setdefault(rule.head_of, (rule, []))[1].append(rule.combine_log(left, right))
        parts = [rule.head_log(log_sum(torch.stack(found, -1))) for rule, found in by_head.values()]
        ends = torch.diagonal(f.log_span, width, 1, 2).unsqueeze(-1)
        spans[width] = log_sum(torch.stack(parts, -1)) + ends
        lefts[width], rights[width] = rules.span_span.left_log(spans[width]), rules.span_span.right_log(spans[width])
    return list(spans.values())
