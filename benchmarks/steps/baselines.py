"""What a step is held against: the plain reference, where it fits into memory and a minute, and the machine's ceilings.

Ceilings: bytes copied and numbers multiplied in a second, measured. A step's floor is its plan's work at these rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.steps.cases import Case
from benchmarks.steps.step import reference_gradients
from rankfold.cli.bench import Gradients
from rankfold.data.batch import Batch
from rankfold.models.config import KINDS, FrameConfig, GrammarConfig, ModelConfig
from rankfold.numerics.precision import Precision, matmul_precision
from rankfold.planning.cost import Plan
from rankfold.planning.measure import host_time, out_of_memory, peak_mib, release, too_large

LONGEST = 60.0  # seconds of a step
TOTAL = 20.0  # seconds of all repeats, beyond three
# Bytes of the copy and side of the product: larger than any cache, and a moment's work.
COPY = {"cpu": 2**27, "cuda": 2**31}
SIDE = {"cpu": 1024, "cuda": 8192}
REPEATS = 7


class Plain(NamedTuple):
    """What the reference gives, and how often it is worth timing; `why` it was left out, else empty."""

    found: Gradients | None = None  # in float32, whatever it is timed in
    repeats: int = 0
    peak_mib: float | None = None
    why: str = ""


def try_plain(
    model: Any, case: Case, batch: Batch, precision: Precision, *, rate: float, repeats: int, held: int = 0
) -> Plain:
    """Run the reference, unless it cannot fit or cannot finish (`rate`: multiply-adds in a second).

    `held` is what the process held before there was a model.
    """
    device = batch.lengths.device
    if not case.has_reference:
        return Plain(why=f"is not written for {case.config.family}")
    needed = cost(case)
    why = too_large(needed.bytes, device)
    if not why and needed.multiply_adds / rate > LONGEST:
        why = f"would take over {LONGEST:.0f} s"
    if why:
        return Plain(why=why)

    def work() -> None:
        reference_gradients(model, batch, precision)

    try:
        first = host_time(work, device) / 1e3
        peak = None if first > LONGEST else peak_mib(work, device, held)
        found = reference_gradients(model, batch)
        if first > LONGEST:
            return Plain(found, why=f"takes {first:.0f} s")
        result = Plain(found, min(repeats, max(3, int(TOTAL / first))), peak)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        result = Plain(why="does not fit into memory")
    release(device)
    return result


class Cost(NamedTuple):
    """What a step of the reference needs at least, so that one that cannot fit or finish is not begun."""

    multiply_adds: int
    bytes: int


def cost(case: Case) -> Cost:
    """What the plain step needs: each table with its logits and both gradients; three products for each."""
    config = case.config
    if isinstance(config, ModelConfig):
        return _chain(case, config)
    if isinstance(config, FrameConfig):
        return _frames(case, config)
    return _pairs(case, config) if config.family in ("npcfg", "lpcfg") else _ranks(case, config)


def _chain(case: Case, config: ModelConfig) -> Cost:
    tokens = case.batch * case.length
    z, r = config.num_states, config.rank
    dim = config.dim if config.neural else 0
    made = {"hmm": z * z, "block": z * z, "lhmm": 2 * z * r, "banded": 2 * z * r, "rank": 2 * z * r}[config.family]
    step = {"hmm": z * z, "block": z, "lhmm": 2 * z * r, "banded": 2 * z * r + z * z, "rank": r * r}[config.family]
    extra = {"banded": 2 * z * z, "rank": r * r}.get(config.family, 0)
    width = r if config.family == "rank" else z
    squared = z * r * r if config.family == "rank" else 0
    emissions = width * case.num_words
    messages = 6 * tokens * (z // config.num_clusters if config.family == "block" else width)
    return Cost(
        3 * ((made + emissions) * dim + squared + tokens * step), 4 * (4 * (made + extra + emissions) + messages)
    )


def _frames(case: Case, config: FrameConfig) -> Cost:
    """Densities written out feature by feature, every transition written, and for segments every open duration."""
    tokens, z, f = case.batch * case.length, config.num_states, config.num_features
    made = z * z * (config.rank if config.own_rank is not None else config.dim if config.neural else 1)
    open_segments = 4 * config.max_duration if config.has_segments else 0
    densities = 4 * f if config.observations == "gaussian" else 2
    held = tokens * z * (densities + open_segments + 6)
    return Cost(3 * (made + tokens * z * (z + f + open_segments)), 4 * (4 * z * z + held))


def _counts(case: Case) -> tuple[int, int, int]:
    """Words, spans of two words and more, and their splits."""
    b, t = case.batch, case.length
    return b * t, b * t * (t - 1) // 2, b * t * (t * t - 1) // 6


def _ranks(case: Case, config: GrammarConfig) -> Cost:
    """Rules with a rank: a sum for each split, its gradient, and the vectors of each span."""
    n, p = config.num_nonterminals, config.num_preterminals
    tokens, spans, splits = _counts(case)
    r = n if config.family == "spcfg" else config.rank
    a_span = 3 * n * r if config.family == "tnpcfg" else 2 * r * r
    once = 2 * n * r * r if config.family == "rankpcfg" else 0
    tables, emissions = 2 * (n + p) * r + (n * r if config.family != "spcfg" else 0), p * case.num_words
    work = (tables + emissions) * config.dim + once + tokens * 2 * p * r + spans * a_span + splits * r
    return Cost(3 * work, 4 * (4 * (tables + emissions) + splits * r + 6 * spans * r))


def _pairs(case: Case, config: GrammarConfig) -> Cost:
    """All pairs of children: of spans for each split, of a span and a word twice for each span."""
    n, p = config.num_nonterminals, config.num_preterminals
    tokens, spans, splits = _counts(case)
    thin = config.low_rank if config.family == "lpcfg" else ()
    counts = dict(zip(KINDS, (n * n, n * p, p * n, p * p), strict=True))
    height = {kind: config.rank if kind in thin else n for kind in KINDS}
    emissions, made = p * case.num_words, sum(counts[kind] * height[kind] for kind in KINDS)
    inner = sum(counts[kind] * height[kind] for kind in KINDS[:3])
    work = (emissions + made) * config.dim + spans * inner + tokens * counts["leaf_leaf"] * height["leaf_leaf"]
    held = splits * n * n + 2 * spans * (n * n + 2 * n * p) + 2 * tokens * p * p
    return Cost(3 * (work + splits * n * n), 4 * (4 * (made + emissions) + held))


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
