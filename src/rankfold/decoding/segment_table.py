"""The table of segments with how sure each of them is, of chains (stretches of one state) and semi-Markov chains alike.

And whether segments longer than the longest duration would fit the sequences better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.decoding.counts import expected_counts
from rankfold.decoding.dispatch import answer
from rankfold.decoding.viterbi import BestPath, BestSegments, stretches, viterbi
from rankfold.recursions import blocks, chain, segments
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.chain.rungs import solve as solve_chain
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.segments.rungs import solve

CLEAR = 5.0  # nats: odds of 150 to 1, very strong evidence in the words of Kass and Raftery 1995
Ints = NDArray[np.int64]
ENTRIES = 2**22  # of the rows of a transition that are written out at a time


class _Rows(NamedTuple):
    """The segments of all sequences, one after another, and their frames."""

    sequence: Ints  # "n"
    start: Ints  # "n"
    end: Ints  # "n"
    state: Ints  # "n"

    @property
    def first(self) -> Ints:  # "n"
        """The place of each segment's first frame among all frames."""
        lengths = self.end - self.start
        found: Ints = np.cumsum(lengths) - lengths
        return found

    @property
    def frames(self) -> tuple[Ints, Ints, Ints]:  # "m" each
        """Of each frame its sequence, its place there and its state."""
        lengths = self.end - self.start
        here = np.arange(lengths.sum()) + np.repeat(self.start - self.first, lengths)
        return np.repeat(self.sequence, lengths), here, np.repeat(self.state, lengths)


Weight = Callable[[_Rows], Sequence[float]]


class ScoredSegment(NamedTuple):
    """A row of the table of segments."""

    start: int  # its first frame
    end: int  # the frame after its last
    state: int
    posterior: float  # of this very segment, given the whole sequence
    frames: float  # the mean over its frames of the posterior of its state


def segment_table(
    p: ChainPotentials | SegmentPotentials | BlockPotentials, best: BestPath | BestSegments | None = None
) -> list[list[ScoredSegment]]:
    """The table of each sequence's segments: start, end (exclusive), state, posterior.

    Of the best path or segmentation, or of the one given. An ordinary chain has no segments of its own: its rows are
    stretches of equal states, and `posterior` is the probability that all frames of the stretch have its state,
    whatever is before and after. A segment that was carried in starts at 0, and its posterior is that of its part in
    this stretch. Of blocks, chains whose transitions are those of each position. An
    impossible sequence has no rows. Cost: that of `viterbi` and of `posterior`.
    """
    weigh = answer("segment_table", _WEIGHTS, p)
    best = viterbi(p) if best is None else best
    table: list[list[ScoredSegment]] = [[] for _ in range(len(best.path))]
    rows = _Rows(*(x.cpu().numpy() for x in stretches(best)))
    if not len(rows.state):
        return table
    with torch.no_grad():
        states, weight = weigh(p, best)
    sequence, here, path = rows.frames
    shares = states.double().cpu().numpy()[sequence, here, path % states.shape[-1]]  # of blocks: within its own
    means = np.add.reduceat(shares, rows.first) / (rows.end - rows.start)
    of, *known = (x.tolist() for x in rows)
    for i, row in zip(of, map(ScoredSegment, *known, weight(rows), means.tolist()), strict=True):
        table[i].append(row)
    return table


def _of_chain(p: ChainPotentials, best: BestPath) -> tuple[Tensor, Weight]:
    """The state posterior "b t z", and that of stretches: of their last state, times the share of paths that stayed.

    p(z_s..z_t = k | x) = p(z_t = k | x) p(x_1..s, z_s = k) prod_{s<u<=t} A[k, k] obs_u[k] / p(x_1..t, z_t = k)
    """
    c = chain.validate(p).detach().double()
    solution = solve_chain(c, "scaled")
    found = solution.gradients(torch.ones_like(solution.log_z), of_factors=False)[1]
    before, states, obs = (x.cpu().numpy() for x in (solution.log_filtered(), found, c.log_obs))
    stays = np.empty(c.num_states)

    def weight(rows: _Rows) -> Sequence[float]:
        used = np.unique(rows.state)
        for own in np.array_split(used, 1 + len(used) * c.num_states // ENTRIES):
            rows_of = c.transition.log_rows(torch.from_numpy(own).to(found.device))
            stays[own] = rows_of[range(len(own)), own].cpu().numpy()
        sequence, here, path = rows.frames
        seen = obs[sequence, here, path] + stays[path]
        seen[rows.first] = 0.0  # the message before it has the first
        last = states[rows.sequence, rows.end - 1, rows.state]
        stayed = before[rows.start, rows.sequence, rows.state] + np.add.reduceat(seen, rows.first)
        stayed -= np.where(last > 0, before[rows.end - 1, rows.sequence, rows.state], np.inf)
        return np.minimum(1.0, np.exp(stayed) * last).tolist()  # type: ignore[no-any-return]

    return found, weight


def _of_blocks(p: BlockPotentials, best: BestPath) -> tuple[Tensor, Weight]:
    """The same of transitions of each position: the posterior is a chain, whose steps are pairs over states."""
    counts = expected_counts(p)
    state, pairs = counts.state.double(), counts.transition.double()

    def one(i: int, start: int, end: int, which: int) -> float:
        own = which % state.shape[-1]
        stays = pairs[i, start : end - 1, own, own] / state[i, start : end - 1, own]
        return min(1.0, float(state[i, start, own] * stays.prod()))

    return state, lambda rows: list(map(one, *(x.tolist() for x in rows)))


def _of_segments(p: SegmentPotentials, best: BestSegments) -> tuple[Tensor, Weight]:
    """The same of segments. A difference of large logarithms: of a Z that is good to float32 alone it may exceed 1."""
    c = segments.validate(p).detach().double()
    solution = solve(c, "scaled")
    found, lengths = solution.posteriors(), c.lengths.tolist()
    given = c.log_obs, found.after, found.opened, solution.log_z, c.durations(), c.closings(), c.log_initial
    obs, after, opened, log_z, durations, closings, initial = (x.double().cpu().numpy() for x in given)
    begun = best.begins.tolist()

    def one(i: int, start: int, end: int, state: int) -> float:
        table = closings if end == lengths[i] else durations
        seen = obs[i, start:end, state].sum() + after[end - 1, i, state]
        if c.is_carried and not begun[i][start]:
            room = len(table) - (end - start)
            log_open = np.logaddexp.reduce(initial[i, :room, state] + table[end - start :, state])
        else:
            log_open = opened[start, i, state] + table[end - start - 1, state]
        return math.exp(log_open + seen - log_z[i])

    return found.states.transpose(0, 1), lambda rows: list(map(one, *(x.tolist() for x in rows)))


_WEIGHTS: dict[ModuleType, Any] = {chain: _of_chain, segments: _of_segments, blocks: _of_blocks}


@torch.no_grad()
def gain_of_longer(p: ChainPotentials | SegmentPotentials) -> Tensor:  # "b"   float64
    """The nats each sequence would gain if half of the segments could last longer, up to twice the longest.

    The other half keep their durations, those of the longer ones are all alike. A sequence gains where the longest
    duration cuts what lasts longer into pieces; where nothing does it loses about log 2 per segment. No sequence that
    ends within the longest duration gains, and a chain, which has no longest, gains 0. Cost: two forward passes, of d
    and of 2 d.
    """
    return answer("gain_of_longer", _GAINS, p)(p)


def _gain(p: SegmentPotentials) -> Tensor:
    longest = p.log_duration.shape[1]
    longer = torch.full_like(p.log_duration, -math.log(2 * longest))
    doubled = p._replace(log_duration=torch.cat([p.log_duration - math.log(2), longer], 1))
    return segments.log_z(doubled) - segments.log_z(p)


_GAINS: dict[ModuleType, Callable[..., Tensor]] = {
    chain: lambda p: p.log_obs.new_zeros(len(p.log_obs)),
    segments: _gain,
}


def cut_short(gains: Iterable[float], longest: int, setting: str) -> str | None:
    """The warning where longer segments would clearly gain; None where they would not."""
    gain = sum(x for x in gains if x > 0)
    if not gain > CLEAR:
        return None
    return (
        f"segments last at most {longest} frames, and some of these sequences hold longer ones, which are cut into "
        f"several: up to {2 * longest} frames would gain {gain:.1f} nats.\n  Raise {setting}."
    )
