"""What is measured: EM steps of a dense categorical HMM in every library, and gradient steps of our own operators.

EM goes up to the size at which libraries fail; low rank, banded and sum stand against dense and plain autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rankfold
from benchmarks.libraries.peers import (
    DYNAMAX,
    HMMLEARN,
    HMMLEARN_SCALING,
    MAKERS,
    POMEGRANATE,
    RANKFOLD_32,
    RANKFOLD_LOW_RANK,
    make,
    random_hmm,
)
from benchmarks.libraries.process import Case, Outcome, in_process, time_together, total_memory_gib
from rankfold.cli.output import say
from rankfold.planning.measure import Spread

NUM_STATES = (64, 256, 1024)
LARGE_STATES = 16384
LIMIT_S = 120
# The rest is for the system: a library that asks for more is told no, instead of the machine coming to a stop.
MEMORY_SHARE = 0.9
NUM_DIAGONALS = 16
DENSE = "dense"
BANDED = f"banded, {NUM_DIAGONALS} diagonals"


@dataclass(frozen=True)
class Em:
    """Every number of the tables against other libraries."""

    timings: dict[int, dict[str, Spread]]
    large: dict[str, Outcome]
    memory_limit_gib: float


def measure_em(*, quick: bool) -> Em:
    """All sizes in this process, interleaved; the largest in one process for each library."""
    timings = {}
    for num_states in NUM_STATES[:2] if quick else NUM_STATES:
        say(f"EM step, {num_states:,} states")
        hmm = random_hmm(num_states)
        timings[num_states] = time_together({name: make(name, hmm).case() for name in MAKERS}, 5 if quick else 21)
    limit = MEMORY_SHARE * total_memory_gib()
    return Em(timings, {} if quick else _large(timings[NUM_STATES[-1]], limit), limit)


def _large(below: dict[str, Spread], memory_gib: float) -> dict[str, Outcome]:
    outcomes = {}
    for name in (RANKFOLD_32, RANKFOLD_LOW_RANK, HMMLEARN_SCALING, POMEGRANATE, DYNAMAX):
        say(f"EM step, {LARGE_STATES:,} states: {name}")
        repeats = 2 if name in (RANKFOLD_32, RANKFOLD_LOW_RANK) else 1
        task = {"what": "em", "library": name, "num_states": LARGE_STATES, "repeats": repeats}
        outcomes[name] = in_process(task, LIMIT_S, memory_gib)
        say(f"  {outcomes[name].failure or outcomes[name].spread}")
    slower = below[HMMLEARN].median / below[HMMLEARN_SCALING].median
    outcomes[HMMLEARN] = Outcome(failure=f"not run: {slower:.1f}x its scaling mode at {NUM_STATES[-1]:,} states")
    return outcomes


@dataclass(frozen=True)
class Size:
    """What a gradient step is taken of."""

    num_states: int
    rank: int
    num_sequences: int = 8
    num_tokens: int = 64

    def words(self) -> str:
        return f"{self.num_states:,} states, {self.num_sequences} x {self.num_tokens} tokens"


def plain_log_z(p: rankfold.ChainPotentials) -> Tensor:  # "b"
    """The same scaled loop, left to autograd: what one would write without the library."""
    top = p.log_obs.detach().amax(-1, keepdim=True)
    emissions = torch.exp(p.log_obs - top).unbind(1)
    log_scale = top.sum((1, 2)).double()
    x = torch.exp(p.log_initial)
    for t, emission in enumerate(emissions):
        y = (p.transition.push(x) if t else x) * emission
        norm = y.detach().amax(-1, keepdim=True)  # a constant: it cancels
        log_scale = log_scale + norm[:, 0].double().log()
        x = y / norm
    value: Tensor = x.sum(-1).double().log() + log_scale
    return value


class GradientStep:
    """Random potentials whose every tensor wants a gradient."""

    def __init__(self, kind: str, size: Size, dtype: torch.dtype = torch.float32, *, plain: bool = False) -> None:
        self.kind, self.log_z = (
            kind,
            plain_log_z if plain else rankfold.log_z,
        )  # loaded before anything is timed
        self._generator, self._dtype = torch.Generator().manual_seed(0), dtype
        n = size.num_states
        widths = {"low rank": (size.rank, size.rank), DENSE: (n,), "banded": (NUM_DIAGONALS,)}
        widths["sum"] = (*widths["banded"], *widths["low rank"])
        self.factors = [self._draw(n, width) for width in widths[kind]]
        self.log_initial = self._draw(n).detach().log().requires_grad_()
        self.log_obs = self._draw(size.num_sequences, size.num_tokens, n).detach().log_().requires_grad_()

    def _draw(self, *shape: int) -> Tensor:
        x = torch.rand(shape, generator=self._generator, dtype=self._dtype).add_(0.01)
        return x.div_(x.sum(-1, keepdim=True)).requires_grad_()

    def leaves(self) -> list[Tensor]:
        return [self.log_initial, self.log_obs, *self.factors]

    def prepare(self) -> None:
        for x in self.leaves():
            x.grad = None

    def potentials(self) -> rankfold.ChainPotentials:
        operators: list[rankfold.Operator] = []
        if self.kind in ("banded", "sum"):
            operators.append(rankfold.Banded(self.factors[0], -NUM_DIAGONALS // 2))
        if self.kind in ("low rank", "sum"):
            operators.append(rankfold.LowRank(*self.factors[-2:]))
        if self.kind == DENSE:
            operators.append(rankfold.Dense(self.factors[0]))
        transition = operators[0] if len(operators) == 1 else rankfold.Sum(operators)
        return rankfold.ChainPotentials(self.log_initial, transition, self.log_obs)

    def run(self) -> Tensor:
        p = self.potentials()
        out = self.log_z(p).sum()
        torch.autograd.backward(out)
        return out.detach()

    def case(self) -> Case:
        return Case(self.run, self.prepare)


@dataclass(frozen=True)
class Own:
    """Every number of the own tables."""

    long: dict[str, Outcome]  # rankfold, plain autograd: a long chain of many states
    long_size: Size | None
    memory: dict[str, Outcome]  # low rank, dense: peak memory at the size of the sweep over ranks
    by_states: dict[int, dict[str, Spread]]  # rank states / 16
    by_rank: dict[int, Spread]
    structured: dict[str, Spread]  # dense, banded, sum
    sweep_size: Size


def measure_own(*, quick: bool) -> Own:
    """All own tables; with `quick`, small sizes and no long chain."""
    size = Size(256, 16) if quick else Size(4096, 256)
    wanted = 5 if quick else 21
    long_size = None if quick else Size(16384, 2048, num_sequences=1, num_tokens=512)
    long = {} if long_size is None else _long(long_size)
    say(f"peak memory, {size.words()}")
    memory = {kind: in_process(_task(kind, size, repeats=2), limit_s=120) for kind in ("low rank", DENSE)}
    by_states = {}
    for num_states in (64, 128) if quick else (256, 512, 1024, 2048):
        by_states[num_states] = _against_dense(Size(num_states, num_states // 16), wanted)
    ranks = [rank for rank in (16, 64, 256, 512, 1024, 2048, 3072, 4096) if rank <= size.num_states]
    timings = _sweep(size, ranks, wanted)
    by_states[size.num_states] = {"low rank": timings[f"rank {size.rank}"], DENSE: timings[DENSE]}
    return Own(
        long=long,
        long_size=long_size,
        memory=memory,
        by_states=by_states,
        by_rank={rank: timings[f"rank {rank}"] for rank in ranks},
        structured={name: timings[name] for name in (DENSE, BANDED, sum_name(size))},
        sweep_size=size,
    )


def sum_name(size: Size) -> str:
    """How the table calls the sum of a band and a low-rank matrix."""
    return f"band + rank {size.rank}"


def _task(kind: str, size: Size, *, repeats: int, plain: bool = False) -> dict[str, Any]:
    return {"what": "gradient", "kind": kind, "size": vars(size), "plain": plain, "repeats": repeats}


def _long(size: Size) -> dict[str, Outcome]:
    outcomes = {}
    for name, plain, repeats in (("rankfold", False, 3), ("plain autograd", True, 1)):
        say(f"gradient step, {size.words()}, rank {size.rank:,}: {name}")
        outcomes[name] = in_process(_task("low rank", size, repeats=repeats, plain=plain), limit_s=400)
    return outcomes


def _against_dense(size: Size, wanted: int) -> dict[str, Spread]:
    say(f"gradient step, {size.words()}")
    return time_together({kind: GradientStep(kind, size).case() for kind in ("low rank", DENSE)}, wanted)


def _sweep(size: Size, ranks: Sequence[int], wanted: int) -> dict[str, Spread]:
    """Dense, every rank, band and sum of one size, in one interleaved measurement."""
    say(f"gradient step, {size.words()}")
    cases = {DENSE: GradientStep(DENSE, size).case()}
    for rank in ranks:
        cases[f"rank {rank}"] = GradientStep("low rank", Size(size.num_states, rank)).case()
    cases[BANDED] = GradientStep("banded", size).case()
    cases[sum_name(size)] = GradientStep("sum", size).case()
    return time_together(cases, wanted)
