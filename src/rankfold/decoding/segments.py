"""Questions about segments: posteriors, expected counts, best and sampled segmentations, and a table of them.

Read next: `recursions/segments` for the sum, `recursions/segments/paths.py` for the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.decoding.viterbi import step_cost
from rankfold.errors import DomainError, UnsupportedError
from rankfold.operators import MaxOperator
from rankfold.recursions.factor_gradients import counted, doubled
from rankfold.recursions.segments import log_z
from rankfold.recursions.segments.paths import best_segments, draw
from rankfold.recursions.segments.potentials import SegmentPotentials, Segments, validate
from rankfold.recursions.segments.rungs import Posteriors, solve
from rankfold.recursions.segments.stretches import solve_long

CLEAR = 5.0  # nats: odds of 150 to 1, very strong evidence in the words of Kass and Raftery 1995


class SegmentPosterior(NamedTuple):
    """Probabilities given the whole sequence; 0 beyond a length and for impossible sequences."""

    states: Tensor  # "b t z"   the state of a frame
    starts: Tensor  # "b t z"   a segment of z begins at a frame
    ends: Tensor  # "b t z"     a segment of z ends at a frame; a last one that may be cut does not count

    @property
    def boundaries(self) -> Tensor:  # "b t"
        """The probability that some segment begins at a frame."""
        return self.starts.sum(-1)


class SegmentCounts(NamedTuple):
    """How often each part is used, in expectation under the posterior."""

    initial: Tensor  # "z"                  summed over sequences; zeros where a state was carried in
    transition: tuple[Tensor, ...]  # like the operator's factors(), summed over sequences and segments
    durations: Tensor  # "z d"              summed over sequences
    states: Tensor  # "b t z"               the state posterior
    log_z: Tensor  # "b"                    what they are derivatives of, float64


class _StatesAndProbability(NamedTuple):
    states: Tensor  # "b t"      -1 beyond the length, and throughout for an impossible sequence
    begins: Tensor  # "b t"      whether a segment begins at a frame
    log_prob: Tensor  # "b"      float64, of segmentation and observations together


class BestSegments(_StatesAndProbability):
    """A triple (states, begins, log_prob); `plan` says which algorithm ran and what it cost."""

    plan: str


class Segment(NamedTuple):
    """A row of the table of segments."""

    start: int  # its first frame
    end: int  # the frame after its last
    state: int
    posterior: float  # of this very segment, given the whole sequence
    frames: float  # the mean over its frames of the posterior of its state


def segment_posterior(p: SegmentPotentials) -> SegmentPosterior:
    """The probability of every state, of every beginning and of every end at every frame; detached.

        states_t[z] = p(z_t = z | x) = d log Z / d log_obs_t[z]

    Cost: one forward and one backward pass. A posterior that enters a loss is `torch.autograd.grad` of
    `semi_markov.log_z` with create_graph=True.
    """
    found = _posteriors(validate(p).detach())[0]
    return SegmentPosterior(*(x.transpose(0, 1) for x in found[:3]))


def segment_counts(p: SegmentPotentials) -> SegmentCounts:
    """The expected number of uses of each initial state, transition factor, duration and state: the E step of EM.

    Transitions are counted through the operator's own factors, as `expected_counts` does. Where the end may cut
    the last segment, its whole duration counts, in expectation. Detached.
    """
    c = validate(p).detach()
    with torch.no_grad():
        solution = solve_long(c, "scaled")
        one = torch.ones_like(solution.log_z)
        initial, durations, states, _, *grads = solution.gradients(one, of_factors=True)
        counts = counted(c.transition, grads, lambda weight: solution.gradients(one * weight, of_factors=True)[4:])
    first = torch.zeros_like(c.log_duration[:, 0]) if c.carried else initial.sum(0)
    return SegmentCounts(first, counts, durations, states, solution.log_z)


def cut_short(gains: Iterable[float], longest: int, setting: str) -> str | None:
    """What to say where longer segments would clearly gain; nothing where they would not."""
    gain = sum(x for x in gains if x > 0)
    if not gain > CLEAR:
        return None
    return (
        f"segments last at most {longest} frames, and some of these sequences hold longer ones, which are cut into "
        f"several: up to {2 * longest} frames would gain {gain:.1f} nats.\n  Raise {setting}."
    )


@torch.no_grad()
def gain_of_longer(p: SegmentPotentials) -> Tensor:  # "b"   float64
    """The nats each sequence would gain if half of the segments could last longer, up to twice the longest.

    The other half keep their durations, those of the longer ones are all alike. A sequence gains where the longest
    duration cuts what lasts longer into pieces; where nothing does it loses about log 2 a segment. No sequence that
    ends within the longest duration gains. Cost: two forward passes, of d and of 2 d.
    """
    longest = p.log_duration.shape[1]
    longer = torch.full_like(p.log_duration, -math.log(2 * longest))
    doubled = p._replace(log_duration=torch.cat([p.log_duration - math.log(2), longer], 1))
    return log_z(doubled) - log_z(p)


def viterbi_segments(p: SegmentPotentials) -> BestSegments:
    """The single most probable segmentation and labelling of each sequence, and its log-weight.

    Exact for every operator: b t d z additions, and for each frame what `viterbi` takes for a step (low rank by
    blocks of rows that are never all in memory). `.plan` says which it was. Detached. Not the most probable
    state of each frame: see `segment_posterior`.
    """
    c = validate(p).detach()
    if not isinstance(c.transition, MaxOperator):
        raise UnsupportedError(
            f"viterbi_segments asks {type(c.transition).__name__} for its best predecessors, but it has no push_max.\n"
            "  Derive it from its rows: inherit from rankfold.operators.row_operator.RowOperator."
        )
    with torch.no_grad():
        best = BestSegments(*best_segments(c.replace(log_duration=c.log_duration.double()), doubled(c.transition)))
    num_sequences, num_frames, num_states = c.log_obs.shape
    name, once, each = step_cost(c.transition)
    steps = num_frames - 1 + c.carried
    shared = f"{steps * once:,} multiply-adds shared by the batch + " if once else ""
    additions = num_sequences * (steps * each + num_frames * c.longest * num_states)
    best.plan = f"exact, {name}: {shared}{additions:,} additions"
    return best


def sample_segments(
    p: SegmentPotentials, *, num_samples: int | None = None, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:  # "b t" and "b t", or "n b t"
    """Segmentations drawn from their posterior, independent and exact: states of frames, and where segments begin.

    Cost: a forward and a backward pass, and for each segment and sample one row of the transition. States
    are -1 beyond a length and throughout an impossible sequence. With `num_samples` a leading axis "n".
    """
    if num_samples is not None and (not isinstance(num_samples, int) or num_samples < 1):
        raise DomainError(f"num_samples is {num_samples}, but must be a whole number of at least 1.")
    with torch.no_grad():
        states, begins = draw(validate(p).detach(), num_samples or 1, generator)
    return (states[0], begins[0]) if num_samples is None else (states, begins)


def segments(p: SegmentPotentials, best: BestSegments | None = None) -> list[list[Segment]]:
    """The table of each sequence's segments: start, end (exclusive), state, posterior.

    Of the best segmentation, or of the one given. A segment that was carried in starts at 0, and its posterior is
    that of its part in this stretch. An impossible sequence has no segments. Cost: that of `viterbi_segments`
    and of `segment_posterior`.
    """
    best = viterbi_segments(p) if best is None else best
    # A segment's posterior is a difference of large logarithms: of a Z that is good to float32 alone it may exceed 1.
    c = validate(p).detach().double()
    found, log_z = _posteriors(c)
    weight = _Weight(c, found, log_z)
    table = []
    for i, length in enumerate(c.lengths.tolist()):
        states = best.states[i, :length].tolist()
        starts = sorted({0, *best.begins[i, :length].nonzero()[:, 0].tolist()}) if states[0] >= 0 else []
        rows = []
        for start, end in zip(starts, [*starts[1:], length], strict=False):
            state = states[start]
            mean = float(found.states[start:end, i, state].mean())
            carried = c.carried and not bool(best.begins[i, start])
            rows.append(Segment(start, end, state, weight(i, start, end, state, carried=carried), mean))
        table.append(rows)
    return table


class _Weight:
    """The posterior of single segments, from the messages on both sides."""

    def __init__(self, c: Segments, found: Posteriors, log_z: Tensor) -> None:
        self._c, self._found, self._log_z = c, found, log_z
        self._durations, self._closings = c.durations().double(), c.closings().double()

    def __call__(self, i: int, start: int, end: int, state: int, *, carried: bool) -> float:
        c = self._c
        table = self._closings if end == int(c.lengths[i]) else self._durations
        seen = c.log_obs[i, start:end, state].double().sum() + self._found.after[end - 1, i, state]
        if carried:
            ages = c.log_initial[i, :, state].double()
            room = len(table) - (end - start)
            log_open = (ages[:room] + table[end - start :, state]).logsumexp(0)
        else:
            log_open = self._found.opened[start, i, state] + table[end - start - 1, state]
        return float(torch.exp(log_open + seen - self._log_z[i]))


def _posteriors(c: Segments) -> tuple[Posteriors, Tensor]:
    with torch.no_grad():
        solution = solve(c, "scaled")
        return solution.posteriors(), solution.log_z
