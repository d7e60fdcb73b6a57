"""The inside pass as operations that autograd can follow any number of times, in the scales of a chart that is there.

Products are linear, so derivatives exist at rules of weight 0 too. It keeps all splits for the gradient.
Read next: `recursions/tree_scaled.py`, whose steps these are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import largest
from rankfold.recursions.tree_potentials import Forest
from rankfold.recursions.tree_scaled import Chart, prepared, step


def log_z(f: Forest, chart: Chart) -> Tensor:  # "b"   float64
    """log Z of every sentence; -inf for those that the chart has forgotten.

    The chart's scales are constants, and any constants give the same log Z: nothing is lost by not following them.
    """
    first = torch.where((f.lengths == 1)[:, None], f.log_leaf[:, 0], 0.0)
    found = log_sum(first.double() + f.log_root_leaf.double())
    top = largest(f.log_root)
    root = torch.exp(f.log_root - top)
    for width, span in enumerate(spans(f, chart), 2):
        total = (span[:, 0].double() * root).sum(-1)
        alive = total > 0
        here = torch.where(alive, torch.log(torch.where(alive, total, 1.0)), float("-inf"))
        here = here + torch.where(alive, chart.scales[width][:, 0], 0.0) + top[:, 0].double()
        found = torch.where(f.lengths == width, here, found)
    return found


def spans(f: Forest, chart: Chart) -> list[Tensor]:  # "b s n" by width, from 2
    """The mantissas of all spans, differentiable in every tensor of the forest."""
    rules, num_words = f.rules, f.log_leaf.shape[1]
    known = f.inside() & (chart.leaf_scale > float("-inf"))
    log_leaf = torch.where(known.unsqueeze(-1), f.log_leaf, float("-inf"))
    scale = torch.where(known, chart.leaf_scale, 0.0).to(log_leaf.dtype)
    leaf = torch.exp(log_leaf - scale.unsqueeze(-1))
    leaves = prepared(rules, leaf)
    found, lefts, rights = {1: leaf}, {1: leaf}, {1: leaf}
    for width in range(2, num_words + 1):
        count = num_words - width + 1
        splits = range(2, width - 1) if width > 3 else range(1, 2)  # of narrow spans, a step looks at no such split
        left = torch.stack([lefts[k][:, :count] for k in splits], 2)
        right = torch.stack([rights[width - k if width > 3 else 1][:, k : k + count] for k in splits], 2)
        raw = step(rules, chart.shares[width], width, leaves, found[width - 1], left, right)
        ends = torch.diagonal(f.log_span, width, 1, 2)
        ends = torch.where(ends > float("-inf"), ends - ends.detach(), 0.0).unsqueeze(-1)  # its value is in the scales
        found[width] = raw / chart.norms[width] * torch.exp(ends)
        lefts[width], rights[width] = rules.span_span.left(found[width]), rules.span_span.right(found[width])
    return [found[width] for width in range(2, num_words + 1)]
