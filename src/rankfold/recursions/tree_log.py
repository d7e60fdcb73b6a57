"""The inside pass in logarithms, as operations that autograd can follow any number of times.

Any range; slower than `tree_scaled`, and it keeps all splits for the gradient. Read next: `recursions/tree.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.log_space import log_sum
from rankfold.operators.binary import BinaryOperator
from rankfold.recursions.tree_potentials import Forest


def log_z(f: Forest) -> Tensor:  # "b"
    """log Z of every sentence, those of one word included."""
    log_leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, 0.0)
    single = log_sum(log_leaf[:, 0] + f.log_root_leaf)
    return torch.where(f.lengths == 1, single, whole(f, log_inside(f, log_leaf)))


def whole(f: Forest, spans: list[Tensor]) -> Tensor:  # "b s n" by width -> "b"
    """log Z of every sentence of two words and more, from the vector of its widest span; -inf for the others."""
    found = torch.full_like(f.log_root[:, 0], float("-inf"))
    for width, span in enumerate(spans, 2):
        found = torch.where(f.lengths == width, log_sum(span[:, 0] + f.log_root), found)
    return found


def log_inside(f: Forest, log_leaf: Tensor) -> list[Tensor]:  # "b t p" -> "b s n" by width, from 2
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
