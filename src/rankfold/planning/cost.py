"""Work, memory traffic and peak memory of a gradient step, counted before it is taken.

Bounds to choose, to cut batches and to refuse by, never a result. Seconds are a lower bound: of each part the slower of
arithmetic and memory traffic at fixed rates of a class of machine, so that a plan is the same on every run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rankfold.errors import UnsupportedError
from rankfold.numerics.precision import Precision, check_precision

FLOAT = 4  # bytes
MOMENTS = 2  # numbers that Adam and AdamW keep for each parameter


class Rates(NamedTuple):
    """The operations and bytes per second of a class of machines."""

    multiply_adds: float
    bytes: float
    exact: float  # multiply-adds in float32


# cpu: 2 cores with AVX2, torch 2.13, 2026-11-15. cuda: one H200, torch 2.11, 2026-11-15, what the kernels of a step
# reach, about four fifths of the machine's ceilings.
CPU = Rates(4e10, 1e10, 4e10)
CUDA: dict[str, Rates] = {
    "float32": Rates(25e12, 3.4e12, 25e12),
    "tf32": Rates(170e12, 3.4e12, 25e12),
    "bf16": Rates(300e12, 3.4e12, 25e12),
}


class Work(NamedTuple):
    """One part of a step."""

    name: str
    multiply_adds: int
    bytes: int  # read and written
    kernel: str = "torch"  # torch's own calls, or "triton"
    least: float = 0.0  # seconds, where calls cannot fill the machine
    calls: float = 0.0  # seconds that calls take besides, counted where only one of two orders has them
    exact: bool = False  # whether products are in float32 whatever the precision

    def seconds(self, rates: Rates) -> float:
        """A lower bound."""
        rate = rates.exact if self.exact else rates.multiply_adds
        return max(self.multiply_adds / rate, self.bytes / rates.bytes, self.least) + self.calls


@dataclass(frozen=True, slots=True)
class Peak:
    """Numbers alive at once, 4 bytes each; parameters and their gradients are counted apart."""

    step: float  # at the peak of a gradient step
    evaluation: float  # without gradients

    def __add__(self, other: Peak) -> Peak:
        return Peak(self.step + other.step, self.evaluation + other.evaluation)

    def __mul__(self, times: float) -> Peak:
        return Peak(self.step * times, self.evaluation * times)


class Plan(NamedTuple):
    """One way to take a gradient step; without an optimiser, unless `with_optimiser`."""

    order: str  # of elimination: states first, or ranks first
    parts: tuple[Work, ...]
    fixed_bytes: int  # parameters, their gradients, tables made of them once per batch
    token_bytes: int  # messages and observations, for each token of the batch
    tokens: int
    rates: Rates
    parameters: int = 0  # numbers
    eval_fixed_bytes: int = 0  # tables that an evaluation makes of the parameters, which are not counted
    eval_token_bytes: int = 1

    @classmethod
    def of(
        cls, order: str, parts: Iterable[Work], fixed: Peak, token: Peak, tokens: int, rates: Rates, params: int
    ) -> Plan:
        """The plan of its parts, with the numbers it holds once and for each token."""
        parts = tuple(part for part in parts if part.multiply_adds or part.bytes)
        held = 2 * FLOAT * params + int(FLOAT * fixed.step), int(FLOAT * token.step)
        evaluated = int(FLOAT * fixed.evaluation), int(FLOAT * token.evaluation)
        return cls(order, parts, *held, tokens, rates, params, *evaluated)

    @property
    def multiply_adds(self) -> int:
        return sum(part.multiply_adds for part in self.parts)

    @property
    def seconds(self) -> float:
        """A lower bound."""
        return sum(part.seconds(self.rates) for part in self.parts)

    @property
    def peak_bytes(self) -> int:
        return self.fixed_bytes + self.token_bytes * self.tokens

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and an optimiser's moments, which stay from one update to the next."""
        return (2 + MOMENTS) * FLOAT * self.parameters

    @property
    def work_bytes(self) -> int:
        """Tables made of the parameters once per batch, freed after it."""
        return self.fixed_bytes - 2 * FLOAT * self.parameters

    def with_optimiser(self) -> Plan:
        """The same plan together with an optimiser's moments."""
        return self._replace(fixed_bytes=self.state_bytes + self.work_bytes)

    def largest_batch(self, memory: int) -> int:
        """How many tokens fit into this many bytes; 0 if not even the parameters do."""
        return max(0, (memory - self.fixed_bytes) // self.token_bytes)

    def largest_evaluation(self, memory: int) -> int:
        """How many tokens without gradients fit into this many bytes, parameters not counted."""
        return max(0, (memory - self.eval_fixed_bytes) // self.eval_token_bytes)


class Plans(NamedTuple):
    """Every elimination order, the cheapest first."""

    ways: tuple[Plan, ...]

    @classmethod
    def of(cls, ways: Iterable[Plan]) -> Plans:
        """The ways by their seconds."""
        return cls(tuple(sorted(ways, key=lambda way: way.seconds)))

    @property
    def best(self) -> Plan:
        return self.ways[0]

    def in_order(self, order: str) -> Plan:
        """The way of an elimination order; the cheapest for "auto" and for orders that a model does not have."""
        return next((way for way in self.ways if way.order == order), self.best)


def rates_of(device: str, precision: Precision) -> Rates:
    """The rates of a device."""
    check_precision(precision)
    return CPU if device_kind(device) == "cpu" else CUDA[precision]


def device_kind(device: str) -> str:
    """ "cpu" or "cuda"; `UnsupportedError` for other devices."""
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UnsupportedError(f'device is {device!r}, but a plan is known for "cpu" and "cuda".')
    return kind
