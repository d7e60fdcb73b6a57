"""A gradient step of every family at the published sizes: `python -m benchmarks.steps` prints time and peak memory.

Parameters to potentials to log Z and back, without the optimizer; TF32 on a GPU; median of 15 after 4 to warm up.
On a machine without a GPU the sizes are a sixteenth: that only shows that it runs.
Read next: `rankfold/models/base.py`.
"""

from __future__ import annotations

import datetime
import statistics
import time
from typing import NamedTuple

import torch

from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.models import ModelConfig, build_model
from rankfold.numerics.precision import Precision, matmul_precision

NUM_WORDS, NUM_POSITIONS, DIM, WARM, REPEATS = 10_001, 32, 256, 4, 15


class Row(NamedTuple):
    """A model, a number of sequences, and what the published code takes on an H200 (2026-11-15, torch 2.11, TF32)."""

    name: str
    config: ModelConfig
    num_sequences: int
    published_ms: float
    published_mib: int


def rows(shrink: int) -> list[Row]:
    """The published sizes, each divided by `shrink`."""
    z, large, r, wide = 16384 // shrink, 32768 // shrink, 2048 // shrink, 4096 // shrink

    def rank(states: int, ranks: int) -> ModelConfig:
        return ModelConfig(family="rank", num_states=states, rank=ranks, dim=DIM, logit_dropout=0.1, plan="rank")

    def lhmm(ranks: int) -> ModelConfig:
        return ModelConfig(family="lhmm", num_states=z, rank=ranks, dim=DIM)

    def block(states: int, dropout: float) -> ModelConfig:
        clusters = 128 // shrink
        return ModelConfig(family="block", num_states=states, num_clusters=clusters, dim=DIM, state_dropout=dropout)

    banded = ModelConfig(family="banded", num_states=wide, rank=512 // shrink, band=256 // shrink, dim=DIM)
    return [
        Row(f"rank, {z:,} states, rank {r:,}", rank(z, r), 8, 55.0, 1962),
        Row(f"rank, {z:,} states, rank {wide:,}", rank(z, wide), 8, 64.6, 3596),
        Row(f"rank, {large:,} states, rank {wide:,}", rank(large, wide), 8, 104.4, 6722),
        Row(f"lhmm, {z:,} states, rank {r:,}", lhmm(r), 8, 42.1, 3145),
        Row(f"lhmm, {z:,} states, rank {wide:,}", lhmm(wide), 8, 56.7, 4358),
        Row(f"hmm, {z:,} states", ModelConfig(family="hmm", num_states=z, dim=DIM), 8, 80.1, 6837),
        Row(f"banded, {wide:,} states, rank {banded.rank:,}, {banded.band} diagonals each side", banded, 8, 44.6, 796),
        Row(f"block, {z:,} states, 115 of 128 kept", block(z, 13 / 128), 8, 32.2, 6276),
        Row(f"block, {large:,} states, 128 of 256 kept", block(large, 0.5), 16, 36.5, 10876),
    ]


def measure(row: Row, device: torch.device, precision: Precision) -> tuple[float, float, float]:
    """Median milliseconds of the forward pass and of the step, and peak MiB (0 on a CPU)."""
    clusters = uniform_clusters(NUM_WORDS, row.config.num_clusters, seed=0) if row.config.family == "block" else None
    model = build_model(row.config, NUM_WORDS, clusters=clusters).to(device)
    words = torch.randint(NUM_WORDS, (row.num_sequences, NUM_POSITIONS), generator=torch.Generator().manual_seed(0))
    batch = Batch(words, torch.full((row.num_sequences,), NUM_POSITIONS)).to(device)
    generator = torch.Generator(device=device).manual_seed(0)
    forward, whole = [], []
    for i in range(WARM + REPEATS):
        if i == WARM and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        model.zero_grad(set_to_none=True)
        start = _now(device)
        with matmul_precision(precision, device):
            total = model.log_z(model.potentials(batch, generator=generator), precision=precision).sum()
            middle = _now(device)
            total.backward()
        forward.append(1e3 * (middle - start))
        whole.append(1e3 * (_now(device) - start))
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0.0
    return statistics.median(forward[WARM:]), statistics.median(whole[WARM:]), peak


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """Print the table."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    precision: Precision = "tf32" if cuda else "float32"
    name = torch.cuda.get_device_name() if cuda else "CPU, a sixteenth of the sizes: not comparable"
    print(f"{name}, torch {torch.__version__}, {precision}, {datetime.date.today()}\n")
    print("| model | batch x length | forward ms | step ms | published | MiB | published |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for row in rows(1 if cuda else 16):
        forward, step, peak = measure(row, device, precision)
        print(
            f"| {row.name} | {row.num_sequences} x {NUM_POSITIONS} | {forward:.1f} | {step:.1f} | {row.published_ms} "
            f"| {peak:,.0f} | {row.published_mib:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
