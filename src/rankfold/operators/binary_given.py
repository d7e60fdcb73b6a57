"""Rules with one child given, or a parent and one child: what is left of T[a, n, m], in weights that a double can hold.

Read next: `operators/binary.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.operators.binary import BinaryOperator, Branch
from rankfold.operators.binary_cpd import BinaryCPD
from rankfold.operators.binary_dense import BinaryDense, BinaryMatricised
from rankfold.operators.factor import Factor


def given_right(rule: BinaryOperator, right: Tensor) -> Tensor:  # "b m" -> "b a n"
    """sum_m T[a, n, m] right[m].   Cost: the rule's cells once, or of a CPD a n r."""
    return _given(rule, right, "n", "m")


def given_left(rule: BinaryOperator, left: Tensor) -> Tensor:  # "b n" -> "b a m"
    """sum_n T[a, n, m] left[n]."""
    return _given(rule, left, "m", "n")


def _given(rule: BinaryOperator, weight: Tensor, kept: str, gone: str) -> Tensor:
    if isinstance(rule, BinaryCPD):
        head, left, right = rule.parts
        side, other = (left, right) if kept == "n" else (right, left)
        by_rank = weight.unsqueeze(-2) @ other.linear  # "b 1 r"
        found = (side.linear * by_rank).mT if head is None else (head.linear * by_rank) @ side.linear.mT
    elif isinstance(rule, BinaryDense):
        found = torch.einsum(f"...anm,...{gone}->...a{kept}", rule.weight.linear, weight)
    else:
        parent, pair = _matricised(rule)
        found = parent @ torch.einsum(f"...nmr,...{gone}->...r{kept}", pair, weight)
    return _scaled(rule, found)


def to_right(rule: BinaryOperator, parents: Tensor, left: Tensor) -> Tensor:  # "b s a", "b s n" -> "b m"
    """sum_{s, a, n} parents[s, a] T[a, n, m] left[s, n].   Cost: the rule's cells once; of a CPD (a + n) r an s."""
    if isinstance(rule, BinaryCPD):
        head, one, other = rule.parts
        ranks = parents if head is None else parents @ head.linear
        both = (ranks * (left @ one.linear)).sum(-2, keepdim=True)
        return _scaled(rule, both @ other.linear.mT).squeeze(-2)
    if isinstance(rule, BinaryDense):
        return _scaled(rule, torch.einsum("...an,...anm->...m", parents.mT @ left, rule.weight.linear))
    parent, pair = _matricised(rule)
    return _scaled(rule, torch.einsum("...rn,...nmr->...m", (parents @ parent).mT @ left, pair))


def of_parents(rules: Branch, index: Tensor) -> Branch:  # "k"
    """The rules of some parents, whose children are still all symbols."""

    def one(rule: BinaryOperator) -> BinaryOperator:
        if isinstance(rule, BinaryCPD):
            head, left, right = rule.parts
            if head is None:
                sides = (x.like(x.value[..., index]) for x in (left, right))
                return BinaryCPD.of_parts(None, *sides)
            return BinaryCPD.of_parts(head.like(head.value[..., index, :]), left, right)
        if isinstance(rule, BinaryDense):
            return rule.with_factors(rule.weight.value[..., index, :, :])
        _matricised(rule)
        parent, pair = rule.factors()
        return rule.with_factors(parent[..., index, :], pair)

    return Branch(*(one(rule) for rule in rules))


def normalised(rules: Branch, log_total: Tensor) -> Branch:  # "b n"
    """The same rules with every parent's divided by its total; what rules shared they share again."""
    shared = log_total[0] if len(log_total) == 1 else log_total
    made: dict[tuple[int, int], Factor] = {}

    def less(factor: Factor, axis: int) -> Factor:
        key = id(factor.value), axis
        if key not in made:
            value, shift = factor.value, shared.unsqueeze(-2) if axis == -1 else shared
            for _ in range(-axis - 1):
                shift = shift.unsqueeze(-1)
            made[key] = factor.like(value - shift if factor.is_log else value / torch.exp(shift))
        return made[key]

    def one(rule: BinaryOperator) -> BinaryOperator:
        if isinstance(rule, BinaryCPD):
            head, left, right = rule.parts
            if head is None:  # parents are the ranks: the last axis of a side
                return BinaryCPD.of_parts(None, less(left, -1), right)
            return BinaryCPD.of_parts(less(head, -2), left, right)
        if isinstance(rule, BinaryDense):
            return rule.with_factors(less(rule.weight, -3).value)
        _matricised(rule)
        parent, pair = rule.parts  # type: ignore[attr-defined]
        return rule.with_factors(less(parent, -2).value, pair.value)

    return Branch(*(one(rule) for rule in rules))


def _matricised(rule: BinaryOperator) -> tuple[Tensor, Tensor]:
    if not isinstance(rule, BinaryMatricised):
        raise UnsupportedError(
            f"a {type(rule).__name__} does not say its rules one by one; BinaryDense, BinaryCPD, BinaryMatricised do."
        )
    return rule.parts[0].linear, rule.parts[1].linear


def _scaled(rule: BinaryOperator, found: Tensor) -> Tensor:
    return found * torch.exp(torch.as_tensor(rule.log_scale, dtype=found.dtype, device=found.device))
