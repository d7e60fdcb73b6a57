"""`rankfold doctor`: versions and devices, and random small chains on each device against enumeration in plain Python.

The enumeration shares no code with the library.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import math
import platform
import time
from typing import Any, NamedTuple

import torch

from rankfold.cli.output import to_json
from rankfold.decoding.posterior import posterior as posterior_of
from rankfold.decoding.viterbi import viterbi
from rankfold.errors import DomainError
from rankfold.operators import Banded, Dense, LowRank, Operator, Sum
from rankfold.recursions.chain import log_z
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.version import __version__

PACKAGES = ("torch", "numpy", "numba", "triton", "matplotlib")
DESCRIPTION = "Show versions and devices, and compare the library with enumeration on each device."
EXAMPLE = "example:\n  rankfold doctor --json"
# Largest difference from enumeration: nats for log Z and best paths, probability for posteriors.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="time for the exactness check (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if the check fails."""
    if not 0 < arguments.seconds < 3600:
        raise DomainError(f"--seconds is {arguments.seconds}, but must be above 0 and below 3600.")
    report = doctor(seconds=arguments.seconds)
    print(to_json(report, indent=2) if arguments.json else _text(report))
    return 0 if report["exact"] else 1


def doctor(*, seconds: float = 5.0) -> dict[str, Any]:
    """The report as plain data: versions, devices and the exactness check."""
    devices = _devices()
    checks = [check_exactness(device, seconds=seconds / len(devices)) for device in devices]
    return {
        "rankfold": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": devices,
        "triton_kernels": _triton(),
        "exactness": [{**check._asdict(), "passed": check.passed} for check in checks],
        "exact": all(check.passed for check in checks),
    }


def _devices() -> dict[str, str]:
    devices = {"cpu": f"{torch.get_num_threads()} threads, {platform.machine()}"}
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        devices[f"cuda:{i}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return devices


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _triton() -> str:
    if importlib.util.find_spec("triton") is None:
        return "not installed: the PyTorch versions are used"
    return "available" if torch.cuda.is_available() else "installed, but no CUDA device: the PyTorch versions are used"


def _text(report: dict[str, Any]) -> str:
    lines = [f"rankfold {report['rankfold']}   Python {report['python']}   {report['platform']}"]
    lines += [f"  {name:<12}{version or 'not installed'}" for name, version in report["packages"].items()]
    lines += [f"  {name:<12}{what}" for name, what in report["devices"].items()]
    lines += [
        f"  {'kernels':<12}Triton {report['triton_kernels']}",
        "",
        "Exactness, against enumeration of every path:",
    ]
    for check in report["exactness"]:
        lines.append(
            f"  {check['device']:<12}{check['num_chains']:,} random chains, largest difference "
            f"{check['float64_error']:.1e} in float64, {check['float32_error']:.1e} in float32: "
            f"{'pass' if check['passed'] else 'FAIL'}"
        )
    if not report["exact"]:
        lines.append("The library is not exact on this machine: please report the lines above.")
    return "\n".join(lines)


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
    for found, row in zip(posterior_of(p).state[0].tolist(), posterior, strict=True):
        results += list(zip(found, row, strict=True))
    errors = [0.0 if found == true else abs(found - true) for found, true in results]
    return math.nan if any(map(math.isnan, errors)) else max(errors)
