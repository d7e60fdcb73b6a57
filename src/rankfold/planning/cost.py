"""Seconds and bytes of one way to take a gradient step.

Seconds are the sum over launches of max(operations / rate, bytes / bandwidth), plus a price for each launch. The rates
are fixed figures of a class of machine, not measured here, so that a plan is the same on every run.
Read next: `planning/families.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rankfold.errors import UnsupportedError
from rankfold.numerics.precision import Precision, check_precision

FLOAT = 4  # bytes
# Numbers an optimiser keeps for each parameter: Adam and AdamW two moments.
MOMENTS = 2


class Rates(NamedTuple):
    """What a machine does in a second."""

    multiply_adds: float
    bytes: float
    launch: float  # seconds a torch call takes at least
    exact: float  # multiply-adds in float32


# cpu: 2 cores with AVX2, torch 2.13, 2026-11-15. cuda: one H200, torch 2.11, 2026-11-15, what the kernels of a step
# reach, about four fifths of the machine's ceilings; a launch inside a captured graph, one that Python makes takes
# CUDA_EAGER_LAUNCH. How near estimates are to every committed measurement: `tests/benchmarks/steps/test_estimates.py`.
CPU = Rates(4e10, 1e10, 5e-6, 4e10)
CUDA: dict[str, Rates] = {
    "float32": Rates(25e12, 3.4e12, 2e-6, 25e12),
    "tf32": Rates(170e12, 3.4e12, 2e-6, 25e12),
    "bf16": Rates(300e12, 3.4e12, 2e-6, 25e12),
}
CUDA_EAGER_LAUNCH = 15e-6


class Work(NamedTuple):
    """Launches of one kind: `multiply_adds` and `bytes` are of all of them together, which are alike."""

    name: str
    multiply_adds: int
    bytes: int
    launches: int
    kernel: str = "torch"  # what does it: torch's own calls, or "triton"
    least: float = 0.0  # seconds it takes where it cannot fill the machine
    exact: bool = False  # whether its products are in float32 whatever the precision

    def seconds(self, rates: Rates) -> float:
        """The estimate."""
        rate = rates.exact if self.exact else rates.multiply_adds
        busy = max(self.multiply_adds / rate, self.bytes / rates.bytes, self.least)
        return busy + self.launches * rates.launch


class Plan(NamedTuple):
    """One way to take a gradient step; without an optimiser, unless `trained`."""

    order: str
    parts: tuple[Work, ...]
    fixed_bytes: int  # parameters, their gradients, what is made of them once a batch
    token_bytes: int  # messages and observations, for each token of the batch
    tokens: int
    rates: Rates
    parameters: int = 0  # numbers
    eval_fixed_bytes: int = 0  # what an evaluation makes of the parameters, which it does not count
    eval_token_bytes: int = 1

    @property
    def multiply_adds(self) -> int:
        return sum(part.multiply_adds for part in self.parts)

    @property
    def seconds(self) -> float:
        return sum(part.seconds(self.rates) for part in self.parts)

    @property
    def peak_bytes(self) -> int:
        return self.fixed_bytes + self.token_bytes * self.tokens

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and an optimiser's moments: what stays from one update to the next."""
        return (2 + MOMENTS) * FLOAT * self.parameters

    @property
    def work_bytes(self) -> int:
        """What is made of the parameters once a batch, and goes with it."""
        return self.fixed_bytes - 2 * FLOAT * self.parameters

    def trained(self) -> Plan:
        """The same step with an optimiser's moments beside the parameters."""
        return self._replace(fixed_bytes=self.state_bytes + self.work_bytes)

    def largest_batch(self, memory: int) -> int:
        """How many tokens fit into this many bytes; 0 if not even the parameters do."""
        return max(0, (memory - self.fixed_bytes) // self.token_bytes)

    def largest_evaluation(self, memory: int) -> int:
        """How many tokens without gradients fit into this many bytes, beside whatever parameters there are."""
        return max(0, (memory - self.eval_fixed_bytes) // self.eval_token_bytes)


class Plans(NamedTuple):
    """Every way, the cheapest first."""

    ways: tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        return self.ways[0]

    def chosen(self, order: str) -> Plan:
        """The way of an order, or the cheapest for "auto" and for orders that a model has not."""
        return next((way for way in self.ways if way.order == order), self.best)

    def at(self, rates: Rates) -> Plans:
        """The same ways at other rates."""
        return sorted_plans(way._replace(rates=rates) for way in self.ways)


def sorted_plans(ways: Iterable[Plan]) -> Plans:
    """Plans with the cheapest first."""
    return Plans(tuple(sorted(ways, key=lambda way: way.seconds)))


def rates_of(device: str, precision: Precision, *, captured: bool = True) -> Rates:
    """The rates of a device; `captured`: launches are those of a CUDA graph, as in training, not Python's."""
    check_precision(precision)
    kind = device_kind(device)
    if kind == "cpu":
        return CPU
    return CUDA[precision] if captured else CUDA[precision]._replace(launch=CUDA_EAGER_LAUNCH)


def device_kind(device: str) -> str:
    """ "cpu" or "cuda"; `UnsupportedError` for what no plan is known for."""
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UnsupportedError(f'device is {device!r}, but a plan is known for "cpu" and "cuda".')
    return kind
