"""Records of timed rows: what a command measured of one structure, next to a peer, with the floor of the machine.

`docs/results/timed-NAME.json`; `python -m benchmarks structures` writes them into the tables of their structures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.steps.baselines import measure_ceilings
from rankfold.cli.bench import cpu_name

BYTES = {"float64": 8, "float32": 4}


class Timed(NamedTuple):
    """A row: milliseconds of ours and of the peer's, and the work that no implementation is without."""

    structure: str  # Chains, Segments, Trees, Grammars of one's own
    name: str
    size: str  # batch x length
    precision: str
    ours_ms: float
    multiply_adds: float
    numbers: float  # read or written at least once
    peer: str = "-"
    peer_ms: float | None = None


def write(path: Path, command: str, rows: Sequence[Timed]) -> None:
    """The record of a command, floors included: the slower of arithmetic and memory at this machine's speeds.

    Speeds are those of a large product in float32, half of it in float64, and of a large copy, by torch's threads.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings = measure_ceilings(device, ["float32"])
    rate, copied = ceilings.multiply_adds_per_second["float32"], ceilings.bytes_per_second

    def floor(row: Timed) -> float:
        width = BYTES[row.precision]
        return 1e3 * max(row.multiply_adds * width / 4 / rate, row.numbers * width / copied)

    record = {
        "device": cpu_name() if device.type == "cpu" else torch.cuda.get_device_name(),
        "on": "CPU" if device.type == "cpu" else "GPU",
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "rows": [{**row._asdict(), "floor_ms": floor(row)} for row in rows],
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def chain_step(num: int, length: int, states: int) -> tuple[float, float]:
    """Multiply-adds and numbers of a gradient of a dense chain: three products a position, log-weights, posteriors."""
    return 3.0 * num * length * states**2, 2.0 * num * length * states


def segment_step(num: int, length: int, states: int, durations: int) -> tuple[float, float]:
    """The same of segments: every state, duration and frame is added up forwards, backwards, and for its posterior."""
    return 3.0 * num * length * states * (states + durations), 2.0 * num * length * states


def tree_step(num: int, length: int, spans: int, leaves: int) -> tuple[float, float]:
    """The same of trees with dense rules: the children of every split, and once a span their pairs' parents."""
    pairs, every = (spans + leaves) ** 2, range(2, length + 1)
    splits = sum((length - width + 1) * (width - 1) for width in every)
    cells = sum(length - width + 1 for width in every)
    return 3.0 * num * pairs * (splits + cells * spans), 2.0 * num * cells * spans


def em_step(num: int, length: int, states: int, features: int) -> tuple[float, float]:
    """The same of an EM step of Gaussians: densities and statistics of x and x^2 on top."""
    adds, _ = chain_step(num, length, states)
    return adds + 4.0 * num * length * states * features, 1.0 * num * length * features
