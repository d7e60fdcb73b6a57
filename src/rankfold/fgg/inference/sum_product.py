"""The sum-product of a grammar (equation 2): the total weight of all derivations and all values of their nodes.

Counts are exact: residues modulo primes, each of which float64 holds, put together by the Chinese remainder theorem.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.fgg.contraction import LOGS, MAX, Linear, Step
from rankfold.fgg.dependencies import cycle, cycle_remedy, cycle_text, productive_rules
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.inference.fixed_point import fixed_point
from rankfold.fgg.inference.schedule import Schedule, schedule
from rankfold.fgg.inference.solve import execute, fall_back, log_z_of, solve, solve_plain, tensors_of, weights_of, z_of
from rankfold.fgg.inference.zero_gradients import with_finite, with_zeros
from rankfold.fgg.rewrite.merge import recompose
from rankfold.numerics.log_space import log_weights

Semiring = Literal["real", "log", "max", "counting"]
INT64 = 2**63


def sum_product(g: Grammar, semiring: Semiring = "log") -> Tensor:  # "" or "b"
    """The sum over all derivations and assignments of the product of their factors, in one of four semirings.

    - "log": log Z, float64. Products are scaled, in the factors' dtype; where an entry may have lost digits,
      by underflow that no factor of exactly 0 explains or because a sum came near the largest number, the sum is
      repeated in float64, then with long rules taken apart, then in logarithms. -inf means
      that nothing has weight, with zero gradients.
    - "real": Z itself, by the same sums; 0 or infinite where the factors' dtype has no number for it.
    - "max": the logarithm of the largest weight of any derivation with an assignment. Not differentiable; see `best`.
    - "counting": how many derivations with an assignment have any weight, exactly, int64; see `count` beyond 2^63.

    Differentiable ("log", "real") in every factor, right where weights are exactly 0, and twice (in logarithms not at
    such weights: `UnsupportedError`). Acyclic grammars, as they are after a query; for others see `fixed_point`. Cost:
    `cost(g)`. Memory: a row for every nonterminal of the query, and for gradients what was read of them. Source: Chiang
    and Riley 2020, theorem 15; equations 3 and 4 of Yang, Liu, Tu 2022.
    """
    if semiring not in get_args(Semiring):
        raise UnsupportedError(
            f"semiring={semiring!r} is unknown; there are {', '.join(map(repr, get_args(Semiring)))}."
        )
    if semiring == "counting":
        counts = count(g)
        top = max(counts) if isinstance(counts, list) else counts
        if top >= INT64:
            raise DomainError(f"The count is {top}, beyond int64.\n  `count(g)` gives it as a Python integer.")
        return torch.tensor(counts, device=g.device)
    if semiring == "max":
        g = recompose(g, "the maximum")
        return _per_sentence(g, solve_plain(g, MAX).start()[0])
    if cycle(g.hrg):
        rules = [rule for own in productive_rules(g.hrg).values() for rule in own]
        labels = dict.fromkeys(edge.label for rule in rules for edge in g.hrg.terminal_edges(rule))
        value, scale = fixed_point(g, tensors_of(g, labels))
        return _per_sentence(g, value * torch.exp(scale) if semiring == "real" else log_weights(value) + scale)
    run = solve(g)
    value = z_of(run) if semiring == "real" else log_z_of(run)
    is_log = semiring == "log"
    if run.arithmetic is LOGS:
        value = with_zeros(value, run, is_log=is_log)
    elif run.scaling.has_nothing:
        with_finite(value, run, is_log=is_log)
    return _per_sentence(g, value)


def count(g: Grammar) -> int | list[int]:
    """How many derivations with an assignment have any weight, exactly, as Python integers: one, or one for each
    sentence.

    By residues modulo primes small enough that float64 holds every sum, as many as the logarithm of the count asks for.
    """
    g = recompose(g, "counting")
    if cycle(g.hrg):
        raise DomainError(
            f"The sum is infinite: counting a grammar in which {cycle_text(g.hrg)} has no end.\n  {cycle_remedy(g.hrg)}"
        )
    plan = schedule(g.hrg, is_cut=True)  # the shorter a sum, the larger the primes
    weights = {label: (x != 0).double() for label, x in weights_of(g, plan).items()}
    with torch.no_grad():
        log_counts = log_z_of(fall_back(g, plan, weights))
        bits = max(0.0, float(log_counts.max()) / math.log(2.0))
        # Every number that is added up is below the modulus squared, and so many are added up at most:
        terms = max((_longest_sum(g, plan), 2.0))
        primes = _primes(math.isqrt(int(2**53 / terms)), bits + 2.0)
        residues = [execute(g, plan, _Counting(prime), weights).start()[0].long().tolist() for prime in primes]
    counts = [_from_residues(found, primes) for found in zip(*residues, strict=True)]
    return counts if g.batch is not None else counts[0]


def _per_sentence(g: Grammar, x: Tensor) -> Tensor:  # "b" -> "" where the grammar has no batch
    return x if g.batch is not None else x[0]


def _longest_sum(g: Grammar, plan: Schedule) -> float:
    """No fewer than the terms of any sum in any step."""
    found = 1.0
    for group in plan.groups():
        sizes = [g.size(node.domain) for node in group.nodes if node.observed is None]
        found = max(found, math.prod(map(float, sizes)) * group.splits)
    return found


def _primes(below: int, bits: float) -> list[int]:
    """Primes, the largest below a number first, whose product has more than so many bits."""
    found: list[int] = []
    have, candidate = 0.0, below
    while have <= bits:
        candidate -= 1
        if candidate < 2:
            raise UnsupportedError("A fragment of this grammar is too large to be counted exactly.")
        if all(candidate % k for k in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
            have += math.log2(candidate)
    return found


def _from_residues(residues: tuple[int, ...], primes: list[int]) -> int:
    """The number below the product of the primes with these residues (Chinese remainder theorem)."""
    found, modulus = 0, 1
    for residue, prime in zip(residues, primes, strict=True):
        found += modulus * ((residue - found) * pow(modulus, -1, prime) % prime)
        modulus *= prime
    return found


class _Counting(Linear):
    """Counts modulo a number so small that float64 holds every sum of products exactly. Not differentiable."""

    def __init__(self, modulus: int) -> None:
        super().__init__(is_scaled=False)
        self.modulus = modulus

    def lift(self, weights: Tensor) -> Tensor:
        """1 where there is weight, in float64."""
        return (weights != 0).double()

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        """The counts of one step, reduced."""
        return super().product(step, left, right).remainder(self.modulus)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum, reduced."""
        return (left + right).remainder(self.modulus)
