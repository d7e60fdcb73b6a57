"""`rankfold doctor`: what this machine has, and whether the library is exact on it.

Read next: `cli/exactness.py`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
from typing import Any

import torch

from rankfold.cli.exactness import Exactness, check_exactness
from rankfold.cli.output import to_json
from rankfold.errors import DomainError
from rankfold.version import __version__

PACKAGES = ("torch", "numpy", "triton", "matplotlib")
EXAMPLE = "example:\n  rankfold doctor --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "Show versions and devices, and compare the library with enumeration on each device."
    parser.epilog = EXAMPLE
    parser.add_argument("--seconds", type=float, default=5.0, help="time for the exactness check (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


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
        "exactness": [_record(check) for check in checks],
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


def _record(check: Exactness) -> dict[str, Any]:
    return {**check._asdict(), "passed": check.passed}


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
