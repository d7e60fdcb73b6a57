"""Exact numbers of derivations, however large: residues modulo primes, put together by the Chinese remainder theorem.

The primes are so small that float64 holds every sum, and as many as the logarithm of the count asks for.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.fgg.contraction import Linear, Step
from rankfold.fgg.dependencies import cycle, cycle_remedy, cycle_text
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.inference.schedule import Schedule, schedule
from rankfold.fgg.inference.solve import execute, fall_back, log_z_of, weights_of
from rankfold.fgg.rewrite.merge import recompose


def count(g: Grammar) -> int | list[int]:
    """How many derivations with values of their nodes have any weight, as Python integers: one, or one per sentence."""
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
        residues = [execute(g, plan, _Residues(prime), weights).start()[0].long().tolist() for prime in primes]
    counts = [_from_residues(found, primes) for found in zip(*residues, strict=True)]
    return counts if g.batch is not None else counts[0]


class _Residues(Linear):
    """Counts of weights that are not 0, modulo a number so small that float64 holds every sum of products exactly."""

    def __init__(self, modulus: int) -> None:
        super().__init__()
        self.modulus = modulus

    def lift(self, weights: Tensor) -> Tensor:
        return (weights != 0).double()

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        return super().product(step, left, right).remainder(self.modulus)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return (left + right).remainder(self.modulus)


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
