"""What a semi-Markov chain is made of, and the checks at the door of every function that takes one.

States hold for a while: a segment has a state and a duration, and a transition leads to the next segment.
Read next: `recursions/segments`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, expect, expect_logs, same_kind
from rankfold.numerics.log_space import log_sum
from rankfold.operators.protocol import Operator, expect_operator
from rankfold.recursions.problem import validate_lengths


class SegmentPotentials(NamedTuple):
    """The weights of all segmentations of a batch of sequences, and of their labels.

        weight = initial[z_1]  prod_k duration[z_k, d_k]  prod_{t in segment k} obs_t[z_k]  prod_k A[z_k, z_k+1]
                 final[z_last]

    The durations add up to the length: the last segment ends with the sequence. `censored`: it may be cut
    there, and counts with the weight of all durations that are at least as long as what was seen of it.
    A missing observation is a row of zeros in `log_obs`. Frames beyond a length are never used, nor are
    durations beyond it. A `log_initial` "b d z" is a state carried in from an earlier stretch: see `carry`.
    """

    log_initial: Tensor  # "z", "b z", or "b d z"
    transition: Operator  # "z z"   from a segment to the next
    log_duration: Tensor  # "z d"   the first column is duration 1
    log_obs: Tensor  # "b t z"
    log_final: Tensor | None = None  # "z" or "b z"; None means zeros
    lengths: Tensor | None = None  # "b" integers; None means all of t
    censored: bool = False


class Segments(NamedTuple):
    """Potentials that passed the door: every field there, every one with its batch axis."""

    log_initial: Tensor  # "b z", or "b d z" if carried
    transition: Operator
    log_duration: Tensor  # "z d"
    log_obs: Tensor  # "b t z"
    log_final: Tensor  # "b z"
    lengths: Tensor  # "b" int64, on the device of log_obs
    ragged: bool  # whether some length is below t
    censored: bool
    ends: Tensor | None = None  # "b d z"   what follows segments open at the end, by age; None: the end

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything a gradient may be asked of, transition factors last."""
        return (self.log_initial, self.log_duration, self.log_obs, self.log_final, *self.transition.factors())

    def with_tensors(
        self, log_initial: Tensor, log_duration: Tensor, log_obs: Tensor, log_final: Tensor, *factors: Tensor
    ) -> Segments:
        """The same segments of other tensors."""
        return self._replace(
            log_initial=log_initial,
            transition=self.transition.with_factors(*factors),
            log_duration=log_duration,
            log_obs=log_obs,
            log_final=log_final,
        )

    def take(self, index: Tensor) -> Segments:  # "k"
        """Some of the sequences; differentiable."""
        return self._replace(
            log_initial=self.log_initial[index],
            log_obs=self.log_obs[index],
            log_final=self.log_final[index],
            lengths=self.lengths[index],
            ends=None if self.ends is None else self.ends[index],
        )

    def double(self) -> Segments:
        """The same in float64; differentiable."""
        ends = None if self.ends is None else self.ends.double()
        return self.with_tensors(*(x.double() for x in self.tensors()))._replace(ends=ends)

    def detach(self) -> Segments:
        """The same values without history."""
        return self.with_tensors(*(x.detach() for x in self.tensors()))

    @property
    def carried(self) -> bool:
        """Whether the first stretch of a sequence lies before."""
        return self.log_initial.ndim == 3

    @property
    def longest(self) -> int:
        """The longest duration that can be used here: none is longer than all frames, but for those carried in."""
        _, num_durations = self.log_duration.shape
        return num_durations if self.carried else min(num_durations, self.log_obs.shape[1])

    def durations(self) -> Tensor:  # "d z"
        """The log-weights of the durations that can be used, shortest first."""
        return self.log_duration[:, : self.longest].mT.contiguous()

    def closings(self) -> Tensor:  # "d z"
        """The log-weights of the last segment by what was seen of it: its duration, or all from it on."""
        return survival(self.log_duration)[:, : self.longest].mT.contiguous() if self.censored else self.durations()

    @property
    def cut(self) -> bool:
        """Whether the last segment may go on beyond the end."""
        return self.censored or self.ends is not None

    def cuts(self) -> Tensor | None:  # "d z" or "d b z"
        """The log-weights of a last segment that may go on, by what was seen of it; None: it does not."""
        if self.ends is not None:
            return self.ends[:, : self.longest].transpose(0, 1).contiguous()
        return self.closings() if self.censored else None

    def entry(self) -> Tensor:  # "b z"
        """The log-weights of the last state."""
        return self.log_final if self.ends is None else torch.zeros_like(self.log_final)

    def at_end(self) -> Tensor:  # "d b z"
        """All that follows a segment still open at the end, by age: float64."""
        if self.ends is not None:
            return self.ends[:, : self.longest].transpose(0, 1).double()
        return self.closings().double().unsqueeze(1) + self.log_final.double()

    def inside(self) -> Tensor:  # "b t"
        """Which frames lie inside their sequence."""
        return torch.arange(self.log_obs.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def observations(self) -> Tensor:  # "t b z"
        """log_obs, 0 beyond the length."""
        if not self.ragged:
            return self.log_obs.transpose(0, 1)
        return torch.where(self.inside().unsqueeze(-1), self.log_obs, 0.0).transpose(0, 1)


def survival(log_duration: Tensor) -> Tensor:  # "z d" -> "z d"
    """log sum_{e >= d} duration[z, e]: the weight of all durations of at least d. Differentiable at -inf, too."""
    columns = list(log_duration.unbind(1))
    for d in reversed(range(len(columns) - 1)):
        columns[d] = log_sum(torch.stack([columns[d], columns[d + 1]], -1))
    return torch.stack(columns, 1)


def validate(p: SegmentPotentials) -> Segments:
    """The potentials, completed; raises on any shape, dtype, device or value that does not fit."""
    if not isinstance(p, SegmentPotentials):
        raise ShapeError(f"expected SegmentPotentials, but got a {type(p).__name__}.")
    expect_operator(p.transition, name="transition")
    num_states, num_targets = p.transition.shape
    if num_states != num_targets:
        raise ShapeError(f"segments need a square transition, but this one maps {num_states} -> {num_targets}.")
    expect(p.log_obs, "b t z", name="log_obs", z=num_states, hint=_hint(p.log_obs, num_states))
    expect(
        p.log_duration,
        "z d",
        name="log_duration",
        z=num_states,
        hint="One row a state; the first column is duration 1.",
    )
    num_sequences, num_frames, _ = p.log_obs.shape
    _expect_initial(p, num_sequences, num_states)
    ends: dict[str, Tensor] = {"log_initial": p.log_initial}
    if p.log_final is not None:
        ends["log_final"] = p.log_final
        if isinstance(p.log_final, Tensor) and p.log_final.ndim == 2:
            expect(p.log_final, "b z", name="log_final", b=num_sequences, z=num_states)
        else:
            expect(p.log_final, "z", name="log_final", z=num_states)
    if not isinstance(p.censored, bool):
        raise DomainError(f"censored is {p.censored!r}, but says whether the end may cut a segment: True or False.")
    factors = {f"transition factor {i}": factor for i, factor in enumerate(p.transition.factors())}
    same_kind(p.log_obs, "log_obs", {**ends, "log_duration": p.log_duration, **factors})
    lengths, ragged = validate_lengths(p.lengths, num_sequences, num_frames, p.log_obs)
    log_final = p.log_obs.new_zeros(()) if p.log_final is None else p.log_final
    log_initial = p.log_initial if p.log_initial.ndim == 3 else p.log_initial.expand(num_sequences, num_states)
    segments = Segments(
        log_initial,
        p.transition,
        p.log_duration,
        p.log_obs,
        log_final.expand(num_sequences, num_states),
        lengths,
        ragged,
        p.censored,
    )
    for name, x in {**ends, "log_duration": p.log_duration}.items():
        expect_logs(x, name=name)
    expect_logs(p.log_obs, name="log_obs", inside=segments.inside() if ragged else None)
    return segments


def _expect_initial(p: SegmentPotentials, num_sequences: int, num_states: int) -> None:
    ndim = p.log_initial.ndim if isinstance(p.log_initial, Tensor) else 1
    if ndim == 3:
        num_durations = p.log_duration.shape[1]
        expect(p.log_initial, "b d z", name="log_initial", b=num_sequences, d=num_durations, z=num_states)
    elif ndim == 2:
        expect(p.log_initial, "b z", name="log_initial", b=num_sequences, z=num_states)
    else:
        expect(p.log_initial, "z", name="log_initial", z=num_states)


def _hint(log_obs: Tensor, num_states: int) -> str:
    shape = tuple(getattr(log_obs, "shape", ()))
    if len(shape) == 2 and shape[1] == num_states:
        return "For one sequence add a batch axis: log_obs[None]."
    if 0 in shape:
        return "An empty batch or sequence has nothing to sum over: leave it out."
    return f"The transition maps {num_states} -> {num_states}: did both see the same states?"
