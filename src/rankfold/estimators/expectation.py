"""The E step: exact expected counts of all sequences, group by group.

Read next: `packed.py` for the groups, `em.py` for what is done with the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.estimators.durations import Durations
from rankfold.estimators.moves import Moves
from rankfold.estimators.observations import Family, Observed
from rankfold.estimators.packed import Group, ruled_out
from rankfold.recursions import chain, segments
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.chain.rungs import ChainSolution
from rankfold.recursions.chain.rungs import solve as solve_chain
from rankfold.recursions.factor_gradients import counted
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.segments.rungs import Solution as SegmentSolution
from rankfold.recursions.segments.rungs import solve as solve_segments


class Tables(NamedTuple):
    """All distributions of a model of frames, in linear space and float64."""

    initial: Tensor  # "z"
    moves: Moves
    observed: Observed
    durations: Durations | None = None
    censored: bool = False  # whether the end may cut the last segment

    def fit(self, dtype: torch.dtype) -> bool:
        """Whether moves keep their digits in a narrower dtype: below its smallest number they would become 0."""
        tiny = torch.finfo(dtype).tiny
        return dtype == torch.float64 or not any(bool(((x > 0) & (x < tiny)).any()) for x in self.moves.tables)


class Counts(NamedTuple):
    """How often each part is used, in expectation, summed over sequences."""

    initial: Tensor  # "z"
    moves: tuple[Tensor, ...]  # like the transition's tables
    observed: Tensor  # "z s"
    durations: Tensor | None  # "z d"
    log_likelihood: float

    def scaled(self, by: float) -> Counts:
        """All counts times a number."""
        durations = None if self.durations is None else self.durations * by
        moves = tuple(x * by for x in self.moves)
        return Counts(self.initial * by, moves, self.observed * by, durations, self.log_likelihood * by)

    def plus(self, other: Counts) -> Counts:
        """The counts of both."""
        durations = None
        if self.durations is not None and other.durations is not None:
            durations = self.durations + other.durations
        return Counts(
            self.initial + other.initial,
            tuple(x + y for x, y in zip(self.moves, other.moves, strict=True)),
            self.observed + other.observed,
            durations,
            self.log_likelihood + other.log_likelihood,
        )


# Multiply-adds of a step below which a second thread costs more than it brings: 100 sequences and 16 states take 5
# microseconds on one thread and 21 on two, 100 and 256 about as long on both.
SMALL_STEP = 2**21

Potentials = ChainPotentials | SegmentPotentials


def potentials(group: Group, tables: Tables, family: Family) -> Potentials:
    """The weights of all paths or segmentations of a group; labels are -inf for every other state."""
    dtype = group.dtype if tables.fit(group.dtype) else torch.float64
    log_obs = family.log_obs(group.data, tables.observed).to(dtype)
    if group.labels is not None:
        log_obs = log_obs.masked_fill(ruled_out(group.labels, log_obs.shape[-1]), float("-inf"))
    first, operator = tables.initial.log().to(dtype), tables.moves.to(dtype).operator()
    by_sequence = log_obs.transpose(0, 1)
    if tables.durations is None:
        return ChainPotentials(first, operator, by_sequence, lengths=group.lengths)
    log_duration = tables.durations.log_table().to(dtype)
    return SegmentPotentials(
        first, operator, log_duration, by_sequence, lengths=group.lengths, censored=tables.censored
    )


def expected(groups: Sequence[Group], tables: Tables, family: Family) -> Counts:
    """The expected counts of all sequences under the tables; raises if one of them is impossible.

    Cost: a forward and a backward pass and two products with the frames' statistics; memory O(t b z) of one group.
    """
    parts = []
    for group in groups:
        with _threads(len(group.lengths) * sum(x.numel() for x in tables.moves.tables), tables.initial.device):
            parts.append(_of_group(group, tables, family))
    return reduce(Counts.plus, parts)


@contextmanager
def _threads(step: int, device: torch.device) -> Iterator[None]:
    """One thread for small steps on a CPU; what was set comes back afterwards."""
    before = torch.get_num_threads()
    if device.type != "cpu" or step >= SMALL_STEP or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def _of_group(group: Group, tables: Tables, family: Family) -> Counts:
    p = potentials(group, tables, family)
    solution: ChainSolution | SegmentSolution
    if isinstance(p, ChainPotentials):
        solution = solve_chain(chain.validate(p), "scaled", "float32")
        log_z, one = solution.log_z, torch.ones_like(solution.log_z)
        initial, states, _, *grads = solution.gradients(one, of_factors=True)
        durations = None
    else:
        solution = solve_segments(segments.validate(p), "scaled")
        log_z, one = solution.log_z, torch.ones_like(solution.log_z)
        initial, durations, states, _, *grads = solution.gradients(one, of_factors=True)
    expect_possible(log_z, group, tables.durations)
    size = len(grads)
    found = counted(p.transition, grads, lambda by: solution.gradients(one * by, of_factors=True)[-size:])
    by_factor = tuple(x.double() for x in found)
    observed = family.count(group.data.flatten(0, 1), states.transpose(0, 1).flatten(0, 1))
    durations = None if durations is None else durations.double()
    first = initial.double().sum(0)
    return Counts(first, tables.moves.counts(by_factor), observed, durations, float(log_z.sum()))


def expect_possible(log_z: Tensor, group: Group, durations: Durations | None) -> None:
    """Raise if a sequence has no weight at all."""
    impossible = (log_z == float("-inf")).nonzero()[:, 0]
    if len(impossible):
        at = int(impossible[0])
        longest = None if durations is None else durations.longest
        raise no_weight(group.which[at], int(group.lengths[at]), longest, labelled=group.labels is not None)


def no_weight(sequence: int, length: int, longest: int | None, *, labelled: bool) -> DomainError:
    """What to say of an impossible sequence, and what may be done. `longest`: the longest segment, if there are any."""
    why = "  Zeros come from what was never seen in training: fit with smoothing above 0, or forbid less."
    if longest is not None:
        why = (
            f"  Segments last at most {longest} frames: raise max_duration, or set self_transitions=True, where "
            "labelled ones are longer;\n  censored=True lets the end of a sequence cut the last one; what was never "
            "seen in training needs smoothing above 0."
        )
    return DomainError(
        f"sequence {sequence} ({length} frames) is impossible under the model"
        f"{' and its labels' if labelled else ''}: nothing has any weight.\n{why}"
    )
