"""`python -m benchmarks scaling`: predicted time, bytes and memory of an update on 1 to 64 GPUs, into docs/scaling.md.

Compute is what one H200 was measured to take (docs/results/steps-million.json), in proportion to states; links are
those that their makers state. Nothing here was run on several GPUs. Next to it the measured updates of 1, 2 and 4
processes on a CPU (docs/results/processes.json, `python -m benchmarks processes --out`), what one process that torchrun
starts costs there and on a GPU (docs/results/processes-gpu.json), and a picture.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import marks
from rankfold.errors import DataError
from rankfold.models.base import Model
from rankfold.models.catalog import sized_model
from rankfold.models.config import ModelConfig
from rankfold.models.sharded import messages, num_parameters_of
from rankfold.planning.messages import Message
from rankfold.plots.picture import add_grid, new_figure, save_figure

DOCS = Path(__file__).parents[1] / "docs"
DEVICES = (1, 2, 4, 8, 16, 32, 64)
FLOAT, MOMENTS = 4, 2
MEMORY = 139 * 2**30  # of an H200, as torch sees it
NODE = 8  # GPUs of a machine, connected by NVLink
# Stated by NVIDIA: 900 GB/s for NVLink 4, both directions together; NDR InfiniBand 400 Gb/s, an adapter for each GPU.
NVLINK, INFINIBAND = 450e9, 50e9  # bytes a second and direction
# Assumed, not stated: seconds until a small message is summed, within a machine and between machines.
WITHIN, BETWEEN = 15e-6, 35e-6


class Measured(NamedTuple):
    """A gradient step of one GPU."""

    name: str
    config: ModelConfig
    words: int
    batch: int
    length: int
    seconds: float
    peak: float  # bytes of the step: parameters, gradients, tables, messages


class Predicted(NamedTuple):
    """An update on so many GPUs: of each its seconds by kind, bytes sent and memory."""

    devices: int
    compute: float
    optimiser: float
    bandwidth: float
    latency: float
    sent: float
    memory: float

    @property
    def seconds(self) -> float:
        return self.compute + self.optimiser + self.bandwidth + self.latency

    @property
    def fits(self) -> bool:
        return self.memory <= MEMORY


def main(given: Sequence[str]) -> int:
    """Write the section and the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder with scaling.md and results")
    args = parser.parse_args(given)
    record = json.loads((args.docs / "results" / "steps-million.json").read_text())
    processes, on_gpu = (
        json.loads((args.docs / "results" / name).read_text()) for name in ("processes.json", "processes-gpu.json")
    )
    speed = record["ceilings"]["bytes_per_second"]
    low, large, dense = (
        measured(record, name)
        for name in ("lhmm, 524,288 states, rank 512", "lhmm, 1,048,576 states, rank 1,024", "hmm, 16,384 states")
    )
    curves = {"data parallel, 2^19 states, rank 512": [data_parallel(low, n, speed) for n in DEVICES]}
    for power in (20, 22, 24):
        curves[f"sharded, 2^{power} states, rank 1,024"] = [sharded(large, n, 2**power, speed) for n in DEVICES]
    curves["sharded dense, 2^16 states"] = [sharded(dense, n, 2**16, speed) for n in DEVICES]
    text = marks.join(
        *(_table(name, rows) for name, rows in curves.items()), _measured(processes), _alone(on_gpu, "time")
    )
    if not marks.replace(args.docs, ["scaling.md"], "prediction", lambda name: text):
        raise DataError(f"{args.docs / 'scaling.md'}: no part that <!-- prediction --> opens.")
    _picture(curves, processes, args.docs / "images" / "scaling.png")
    return 0


def measured(record: dict[str, Any], name: str) -> Measured:
    """The row of a name, in TF32."""
    row = next(x for x in record["rows"] if x["name"] == name and x["precision"] == "tf32")
    config = ModelConfig(family=row["family"], num_states=row["num_states"], rank=row["rank"] or 1, dim=row["dim"])
    seconds, peak = row["step_ms"]["median"] / 1e3, row["peak_mib"] * 2**20
    return Measured(name, config, row["num_words"], row["batch"], row["length"], seconds, peak)


def meta_model(config: ModelConfig, words: int, states: int) -> Model[Any, Any]:
    """A model of so many states, without memory."""
    found: Model[Any, Any] = sized_model(replace(config, num_states=states), words)
    return found


def data_parallel(of: Measured, devices: int, speed: float) -> Predicted:
    """The measured step on every GPU, with sequences of its own; then a ring sums all gradients, after the step.

    Each GPU sends 2 (n - 1) / n of the parameters. Between machines every GPU has an adapter: rings run side by side.
    """
    numbers = meta_model(of.config, of.words, of.config.num_states).num_parameters
    sent = 2 * (devices - 1) / devices * FLOAT * numbers
    link = NVLINK if devices <= NODE else NODE * INFINIBAND
    latency = 0.0 if devices == 1 else WITHIN if devices <= NODE else BETWEEN
    memory = of.peak + MOMENTS * FLOAT * numbers
    return Predicted(devices, of.seconds, _optimiser(numbers, speed), sent / link, 3 * latency, sent, memory)


def sharded(of: Measured, devices: int, states: int, speed: float) -> Predicted:
    """States spread out: compute and memory in proportion to states (dense: to their square), over all GPUs.

    The messages are those that `rankfold explain --devices` lists, each sent around a ring.
    """
    scale = (states / of.config.num_states) ** (2 if of.config.family == "hmm" else 1) / devices
    model = meta_model(of.config, of.words, states)
    numbers = num_parameters_of(model, devices)
    found = messages(model, of.batch, of.length, devices) if devices > 1 else ()
    sent = sum(ring_bytes(message, devices) for message in found)
    link, latency = (NVLINK, WITHIN) if devices <= NODE else (INFINIBAND, BETWEEN)
    return Predicted(
        devices,
        of.seconds * scale,
        _optimiser(numbers, speed),
        sent / link,
        latency * sum(message.times for message in found),
        sent,
        of.peak * scale + MOMENTS * FLOAT * numbers,
    )


def ring_bytes(message: Message, devices: int) -> float:
    """Bytes that each GPU passes on in a ring: all but its own share, for a sum and then for its result."""
    rounds = {"all_reduce": 2 * (devices - 1) / devices, "reduce_scatter": (devices - 1) / devices}
    return message.bytes * rounds.get(message.collective, devices - 1)  # all_gather: its own share is the message


def _optimiser(numbers: float, speed: float) -> float:
    """AdamW reads four numbers of a parameter and writes three."""
    return 7 * FLOAT * numbers / speed


def _table(name: str, rows: Sequence[Predicted]) -> str:
    head = (
        "GPUs",
        "update, ms",
        "compute",
        "optimiser",
        "bytes over links",
        "waiting for links",
        "MiB sent by each",
        "GiB of each",
    )
    lines = []
    for row in rows:
        times = (row.seconds, row.compute, row.optimiser, row.bandwidth, row.latency)
        shown = [f"{1e3 * x:.3g}" for x in times]
        if not row.fits:
            shown = ["does not fit", *shown[1:]]
        lines.append([str(row.devices), *shown, f"{row.sent / 2**20:,.3g}", f"{row.memory / 2**30:,.3g}"])
    return f"**{name[0].upper()}{name[1:]}**\n\n{marks.table(head, lines, left=())}"


def _measured(record: dict[str, Any]) -> str:
    size = f"{record['states']:,} states, rank {record['rank']}, {record['sequences']} x {record['length']} tokens"
    cores = record["cores"]
    lines = []
    for row in record["several"]:
        expected = row["share_ms"] * max(1, row["processes"] / cores) + row["sum_ms"]
        times = (row["update_ms"], expected, row["sum_ms"])
        lines.append([str(row["processes"]), *(f"{x:.1f}" for x in times), f"{row['numbers']:,}"])
    head = ("processes", "update, ms", "as predicted", "of it sums", "numbers summed")
    title = f"**Measured: {record['device']}, {cores} cores, load {record['load']:.1f}, gloo; {size}**"
    return f"{title}\n\n{marks.table(head, lines, left=())}\n\n{_alone(record, 'CPU time')}"


def _alone(record: dict[str, Any], what: str) -> str:
    """What one process that torchrun starts costs."""
    one = record["one"]["torchrun, one process"]["ratio"]
    spread = f"{one['low']:.3f} to {one['high']:.3f}, n = {one['repeats']}"
    times = f"{one['median']:.3f} times the {what} of one without ({spread})"
    return f"{record['device']}, {record['date']}: one process that torchrun started takes {times}."


def _picture(curves: dict[str, list[Predicted]], record: dict[str, Any], path: Path) -> None:
    """Time of an update against GPUs; the measured processes on the CPU as points."""
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    for name, rows in curves.items():
        some = [row for row in rows if row.fits]
        axes.plot([row.devices for row in some], [1e3 * row.seconds for row in some], ".-", label=f"{name} (predicted)")
    several = record["several"]
    places = [row["processes"] for row in several], [row["update_ms"] for row in several]
    axes.plot(
        *places, "ks", markerfacecolor="none", label=f"data parallel, {record['states']:,} states, CPU (measured)"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(DEVICES, [str(n) for n in DEVICES])
    axes.set_xlabel("GPUs, or processes")
    axes.set_ylabel("update, ms")
    add_grid(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=8)
    save_figure(figure, path)
