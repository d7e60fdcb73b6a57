"""A check of the library on this machine: random small chains against enumeration in plain Python.

The enumeration shares no code with the library. Read next: `cli/doctor.py`.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import NamedTuple

import torch

from rankfold.decoding.posterior import state_posterior
from rankfold.decoding.viterbi import viterbi
from rankfold.operators import Banded, Dense, LowRank, Operator, Sum
from rankfold.recursions.chain import log_z
from rankfold.recursions.chain.potentials import ChainPotentials

# What a result may differ from enumeration: nats for log Z and best paths, probability for posteriors.
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-4}


class Exactness(NamedTuple):
    """How many chains were checked on one device, and the largest difference from enumeration."""

    device: str
    num_chains: int
    float64_error: float
    float32_error: float

    @property
    def passed(self) -> bool:
        """Whether every difference is within its limit; NaN is not."""
        return self.float64_error <= LIMITS[torch.float64] and self.float32_error <= LIMITS[torch.float32]


def check_exactness(device: str, *, seconds: float, seed: int = 0) -> Exactness:
    """Draw chains until the time is up (at least one) and compare every path through the library."""
    generator = torch.Generator().manual_seed(seed)
    worst = dict.fromkeys(LIMITS, 0.0)
    stop, count = time.monotonic() + seconds, 0
    while count == 0 or time.monotonic() < stop:
        potentials = _draw(generator)
        expected = _enumerate(potentials)
        for dtype in worst:
            error = _difference(_cast(potentials, dtype, device), expected)
            worst[dtype] = error if math.isnan(error) else max(worst[dtype], error)
        count += 1
    return Exactness(device, count, worst[torch.float64], worst[torch.float32])


def _draw(generator: torch.Generator) -> ChainPotentials:
    """One sequence of 1 to 5 positions, 1 to 4 states, any operator; float64 numbers that float32 holds too."""

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    def weights(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float32).double()

    num_states, num_positions, rank = number(1, 4), number(1, 5), number(1, 6)
    low_rank = LowRank(weights(num_states, rank), weights(num_states, rank))
    band = Banded(weights(num_states, 1), number(1 - num_states, num_states - 1))
    operators: list[Operator] = [Dense(weights(num_states, num_states)), low_rank, Sum([low_rank, band])]
    log_obs = (torch.randn(1, num_positions, num_states, generator=generator, dtype=torch.float32) * 3).double()
    return ChainPotentials(weights(num_states), operators[number(0, 2)], log_obs, weights(num_states))


def _cast(p: ChainPotentials, dtype: torch.dtype, device: str) -> ChainPotentials:
    factors = (factor.to(device, dtype) for factor in p.transition.factors())
    ends = [x.to(device, dtype) for x in (p.log_initial, p.log_obs, p.log_final) if x is not None]
    return ChainPotentials(ends[0], p.transition.with_factors(*factors), ends[1], ends[2])


def _enumerate(p: ChainPotentials) -> tuple[float, list[list[float]], float]:
    """log Z, the posterior and the best log-probability, from every path."""
    initial, log_obs = p.log_initial.tolist(), p.log_obs[0].tolist()
    final = [] if p.log_final is None else p.log_final.tolist()
    transition = p.transition.to_dense().tolist()
    posterior = [[0.0] * len(initial) for _ in log_obs]
    total, best = 0.0, -math.inf
    for path in itertools.product(range(len(initial)), repeat=len(log_obs)):
        weight = math.exp(
            initial[path[0]] + final[path[-1]] + sum(row[z] for row, z in zip(log_obs, path, strict=True))
        )
        for source, target in itertools.pairwise(path):
            weight *= transition[source][target]
        total += weight
        best = max(best, math.log(weight) if weight else -math.inf)
        for row, z in zip(posterior, path, strict=True):
            row[z] += weight
    shares = [[weight / total for weight in row] for row in posterior] if total else posterior
    return math.log(total) if total else -math.inf, shares, best


def _difference(p: ChainPotentials, expected: tuple[float, list[list[float]], float]) -> float:
    """The largest difference between the library and enumeration."""
    total, posterior, best = expected
    results = [(log_z(p, "scaled").item(), total), (log_z(p, "log").item(), total), (viterbi(p).log_prob.item(), best)]
    for found, row in zip(state_posterior(p)[0].tolist(), posterior, strict=True):
        results += list(zip(found, row, strict=True))
    errors = [0.0 if found == true else abs(found - true) for found, true in results]
    return math.nan if any(map(math.isnan, errors)) else max(errors)
