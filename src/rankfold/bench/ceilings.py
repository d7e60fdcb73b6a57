"""What this machine can do at most: bytes copied and numbers multiplied in a second, measured; and a step's floor.

Read next: `planning.py`, whose counts of operations and bytes the floor is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from rankfold.bench.timing import host_time
from rankfold.numerics.precision import Precision, matmul_precision
from rankfold.planning import Plan

# Bytes of the copy and side of the product: larger than any cache, and a moment's work.
COPY = {"cpu": 2**27, "cuda": 2**31}
SIDE = {"cpu": 1024, "cuda": 8192}
REPEATS = 7


class Ceilings(NamedTuple):
    """The best of a few runs: a ceiling, not what is usual."""

    bytes_per_second: float
    multiply_adds_per_second: dict[Precision, float]

    def floor_ms(self, plan: Plan, precision: Precision) -> float:
        """Milliseconds no step of this plan can undercut: each part bound by arithmetic or by memory, no launches.

        With "bf16" also the distributions are counted at its rate, though they are made in tf32: the floor stays one.
        """
        rate = self.multiply_adds_per_second[precision]
        return 1e3 * sum(max(part.multiply_adds / rate, part.bytes / self.bytes_per_second) for part in plan.parts)


def measure_ceilings(device: torch.device, precisions: Sequence[Precision]) -> Ceilings:
    """Time a large copy (bytes read and written) and a square product in each precision."""
    return Ceilings(_copy_rate(device), {precision: _product_rate(device, precision) for precision in precisions})


def _copy_rate(device: torch.device) -> float:
    source = torch.ones(COPY[device.type] // 4, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    return 2 * COPY[device.type] / _best(lambda: target.copy_(source), device)


def _product_rate(device: torch.device, precision: Precision) -> float:
    side = SIDE[device.type]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    generator = torch.Generator(device=device).manual_seed(0)
    left, right = (
        torch.randn(side, side, generator=generator, device=device, dtype=torch.float32).to(dtype) for _ in range(2)
    )
    mode: Precision = "float32" if precision == "bf16" else precision
    with matmul_precision(mode, device):
        return float(side**3 / _best(lambda: left @ right, device))


def _best(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the fastest call."""
    work()
    return min(host_time(work, device) for _ in range(REPEATS)) / 1e3
