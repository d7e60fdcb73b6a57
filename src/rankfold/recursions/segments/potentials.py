"""The potentials of a semi-Markov chain, and their validation.

States hold for a while: a segment has a state and a duration, and a transition leads to the next segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, expect, expect_logs, same_kind
from rankfold.numerics.log_space import log_sum
from rankfold.operators.protocol import Operator
from rankfold.recursions.problem import Sequences, expect_end, expect_transition, validate_lengths, validates


class SegmentPotentials(NamedTuple):
    """The weights of all segmentations of a batch of sequences, and of their labels.

        weight = initial[z_1]  prod_k duration[z_k, d_k]  prod_{t in segment k} obs_t[z_k]  prod_k A[z_k, z_k+1]
                 final[z_last]

    The durations add up to the length: the last segment ends with the sequence. `censored`: it may be cut
    there, and counts with the weight of all durations at least as long as its visible part.
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


@dataclass(frozen=True, eq=False)
class Segments(Sequences):
    """Validated potentials of segmentations; `log_initial` is "b d z" if carried."""

    log_duration: Tensor  # "z d"
    censored: bool
    ends: Tensor | None = None  # "b d z"   what follows segments open at the end, by age; None: the end

    fields = ("log_initial", "log_duration", "log_obs", "log_final")
    shared = ("log_duration",)

    def take(self, index: Tensor) -> Segments:  # "k"
        """Some of the sequences; differentiable."""
        return super().take(index).replace(ends=None if self.ends is None else self.ends[index])

    def double(self) -> Segments:
        """The same in float64; differentiable."""
        return super().double().replace(ends=None if self.ends is None else self.ends.double())

    @property
    def is_carried(self) -> bool:
        """Whether `log_initial` holds open segments carried in from an earlier stretch."""
        return self.log_initial.ndim == 3

    @property
    def longest(self) -> int:
        """The longest usable duration: at most the number of frames, unless segments are carried in."""
        _, num_durations = self.log_duration.shape
        return num_durations if self.is_carried else min(num_durations, self.log_obs.shape[1])

    def durations(self) -> Tensor:  # "d z"
        """The log-weights of the durations that can be used, shortest first."""
        return self.log_duration[:, : self.longest].mT.contiguous()

    def closings(self) -> Tensor:  # "d z"
        """The log-weights of the last segment by its visible length: of that duration, or of all from it on."""
        return survival(self.log_duration)[:, : self.longest].mT.contiguous() if self.censored else self.durations()

    @property
    def cut(self) -> bool:
        """Whether the last segment may go on beyond the end."""
        return self.censored or self.ends is not None

    def cuts(self) -> Tensor | None:  # "d z" or "d b z"
        """The log-weights of a last segment that may go on, by its visible length; None: it does not."""
        if self.ends is not None:
            return self.ends[:, : self.longest].transpose(0, 1).contiguous()
        return self.closings() if self.censored else None

    def entry(self) -> Tensor:  # "b z"
        """The log-weights of the last state."""
        return self.log_final if self.ends is None else torch.zeros_like(self.log_final)

    def at_end(self) -> Tensor:  # "d b z"
        """The log-weight of the future of a segment still open at the end, by age: float64."""
        if self.ends is not None:
            return self.ends[:, : self.longest].transpose(0, 1).double()
        return self.closings().double().unsqueeze(1) + self.log_final.double()


def survival(log_duration: Tensor) -> Tensor:  # "z d" -> "z d"
    """log sum_{e >= d} duration[z, e]: the weight of all durations of at least d. Differentiable at -inf, too."""
    columns = list(log_duration.unbind(1))
    for d in reversed(range(len(columns) - 1)):
        columns[d] = log_sum(torch.stack([columns[d], columns[d + 1]], -1))
    return torch.stack(columns, 1)


SegmentLike = SegmentPotentials | Segments


@validates(SegmentPotentials, Segments)
def validate(p: SegmentPotentials) -> Segments:
    """The potentials, completed; raises on any shape, dtype, device or value that does not fit."""
    num_states = expect_transition(p.transition, p.log_obs, needed_by="segments need")
    hint = "One row per state; the first column is duration 1."
    expect(p.log_duration, "z d", name="log_duration", z=num_states, hint=hint)
    num_sequences, num_frames, _ = p.log_obs.shape
    if isinstance(p.log_initial, Tensor) and p.log_initial.ndim == 3:
        num_durations = p.log_duration.shape[1]
        expect(p.log_initial, "b d z", name="log_initial", b=num_sequences, d=num_durations, z=num_states)
    else:
        expect_end(p.log_initial, "log_initial", "z", num_sequences, num_states)
    ends = {"log_initial": p.log_initial}
    if p.log_final is not None:
        expect_end(p.log_final, "log_final", "z", num_sequences, num_states)
        ends["log_final"] = p.log_final
    if not isinstance(p.censored, bool):
        raise DomainError(f"censored is {p.censored!r}, but says whether the end may cut a segment: True or False.")
    factors = {f"transition factor {i}": factor for i, factor in enumerate(p.transition.factors())}
    same_kind(p.log_obs, "log_obs", {**ends, "log_duration": p.log_duration, **factors})
    lengths, ragged = validate_lengths(p.lengths, num_sequences, num_frames, p.log_obs)
    log_final = p.log_obs.new_zeros(()) if p.log_final is None else p.log_final
    log_initial = p.log_initial if p.log_initial.ndim == 3 else p.log_initial.expand(num_sequences, num_states)
    log_final = log_final.expand(num_sequences, num_states)
    segments = Segments(lengths, ragged, log_initial, p.transition, p.log_obs, log_final, p.log_duration, p.censored)
    for name, x in {**ends, "log_duration": p.log_duration}.items():
        expect_logs(x, name=name)
    expect_logs(p.log_obs, name="log_obs", inside=segments.inside() if ragged else None)
    return segments
