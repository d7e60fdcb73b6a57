"""Grammars that are distributions: rules that sum to 1 for every parent, roots and words."""

import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, Branch
from tests.recursions.trees import grammar

N, P, V = 2, 3, 2


def normalised(name: str, *, leaf: float = 3.0) -> Branch:
    """Rules whose four kinds sum to 1 for every parent; children that are words more often than not."""
    rules = grammar("shared" if name == "ranked" else name, N, P, torch.Generator().manual_seed(0))
    dense = [rule.to_dense() for rule in rules]
    weight = [1.0, leaf, leaf, leaf * leaf]
    total = sum(w * x.sum((1, 2)) for w, x in zip(weight, dense, strict=True))
    if name.startswith("shared") or name == "ranked":  # by the head, and the sides of leaves
        head, left, right, leaf_left, leaf_right = _shared_factors(rules, leaf)
        if name == "ranked":
            one, other = left.sum(0) + leaf_left.sum(0), right.sum(0) + leaf_right.sum(0)
            left, right, leaf_left, leaf_right = left / one, right / other, leaf_left / one, leaf_right / other
        mass = (head * (left.sum(0) + leaf_left.sum(0)) * (right.sum(0) + leaf_right.sum(0))).sum(-1)
        head = head / mass[:, None]
        logs = name.endswith("log")
        make = BinaryCPD.from_log if logs else BinaryCPD
        head, left, right, leaf_left, leaf_right = (
            x.log() if logs else x for x in (head, left, right, leaf_left, leaf_right)
        )
        return Branch(
            make(head, left, right),
            make(head, left, leaf_right),
            make(head, leaf_left, right),
            make(head, leaf_left, leaf_right),
        )
    scaled = [w * x / total[:, None, None] for w, x in zip(weight, dense, strict=True)]
    if name == "dense":
        return Branch(*(BinaryDense(x) for x in scaled))
    parts = []
    for w, rule in zip(weight, rules, strict=True):
        *rest, last = rule.factors()
        if name == "matricised":
            parts.append(rule.with_factors(rest[0] * w / total[:, None], last))
        else:
            parts.append(rule.with_factors(*rest, last * (w / total)))
    return Branch(*parts)


def _shared_factors(rules: Branch, leaf: float) -> list[Tensor]:
    one, four = rules.span_span, rules.leaf_leaf
    factors = [*one.factors(), *four.factors()[1:]]
    if one.log_factors[0]:
        factors = [x.exp() for x in factors]
    far = torch.tensor([0.02, 1.0, 5.0], dtype=torch.float64)  # ranks whose children weigh more, or less, in all
    heavy = 0.1 + 1.4 * torch.eye(P, dtype=torch.float64)  # and each with words of its own
    return [factors[0], far * factors[1], factors[2], leaf * far * heavy * factors[3], leaf * heavy * factors[4]]


def emission() -> Tensor:
    return torch.randn(P, V, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(-1)


def root() -> Tensor:
    return torch.randn(N + P, generator=torch.Generator().manual_seed(2), dtype=torch.float64).log_softmax(-1)
