"""log Z over segmentations and its gradient, in the narrowest arithmetic that loses nothing.

A ladder of three rungs, as for chains: linear products in the caller's dtype, the same in float64, logarithms in
float64. Each sequence stays on the first rung that proves sound for it and does not disturb its neighbours.
Read next: `semi_markov_sweep.py` for a pass, `semi_markov_back.py` for the gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.precision import matmul_precision
from rankfold.recursions.ladder import Arithmetic
from rankfold.recursions.segments import passes as back
from rankfold.recursions.segments.passes import forward
from rankfold.recursions.segments.potentials import Segments
from rankfold.recursions.segments.soundness import lossless


class Posteriors(NamedTuple):
    """Posteriors, 0 beyond a length, and log-messages, float64."""

    states: Tensor  # "t b z"           of the state of a frame
    starts: Tensor  # "t b z"           of a segment that begins at a frame
    ends: Tensor  # "t b z"             of a segment that ends at a frame
    opened: Tensor  # "t b z"           log p(x_1..t-1, a segment of z begins at t)
    begun: Tensor  # "t b z"            log p(x_t..T | a segment of z begins at t)
    after: Tensor  # "t b z"            log p(x_t+1..T | a segment of z ends at t)
    carried: Tensor | None  # "d b z"   of the segment that was carried in, by its age


class Solution:
    """One rung of the ladder; `wider` holds the sequences that need the next."""

    log_onward: Tensor | None = None  # "d b z"   once there are gradients: what follows segments carried in, by age

    def __init__(self, c: Segments, *, log: bool = False) -> None:
        self.segments, self.log = c, log
        self.wider: list[tuple[Tensor, Solution]] = []
        self._settled = log
        with matmul_precision("float32", c.log_obs.device):
            self.run = forward(c, log=log)
            self.log_z = self.run.log_z
            if log:
                return
            sound = lossless(c, self.run)
            if may_look(sound):
                self._widen((~sound).nonzero()[:, 0])
            else:  # inside a captured graph nothing can be repeated
                self.log_z = torch.where(sound, self.log_z, float("nan"))
                self.run = self.run._replace(log_z=self.log_z)

    def _widen(self, index: Tensor) -> None:
        if not len(index):
            return
        part = self.segments.take(index)
        wider = Solution(part.double(), log=part.log_obs.dtype == torch.float64)
        self.wider.append((index, wider))
        self.log_z[index] = wider.log_z

    def gradients(self, weight: Tensor, *, of_factors: bool) -> list[Tensor]:
        """d (weight . log_z) / d (log_initial, log_duration, log_obs, log_final, *factors); no factors if not asked."""
        c, run = self.segments, self.run
        with matmul_precision("float32", c.log_obs.device):
            uses = back.backward(c, run, log=self.log)
            if not self._settled and may_look(uses.trusted):
                known = self._elsewhere()
                self._widen((~uses.trusted & ~known).nonzero()[:, 0])
                self._settled = True
            elsewhere = self._elsewhere() if self.wider else None
            if not may_look(weight):  # inside a captured graph: those that cannot be vouched for are NaN
                weight = torch.where(uses.trusted, weight, float("nan"))
            grads = back.gradients(c, run, uses, weight, elsewhere, log=self.log, of_transition=of_factors)
        self.log_onward = uses.log_onward
        for index, wider in self.wider:
            initial, durations, obs, final, *factors = wider.gradients(weight[index], of_factors=of_factors)
            if self.log_onward is not None and wider.log_onward is not None:
                self.log_onward[:, index] = wider.log_onward
            for grad, part in ((grads[0], initial), (grads[2], obs), (grads[3], final)):
                grad[index] = part.to(grad.dtype)
            grads[1] += durations.to(grads[1].dtype)
            # As wide as the widest: where a weight is nearly 0 its gradient may be larger than the narrow dtype holds.
            grads[4:] = [grad + part for grad, part in zip(grads[4:], factors, strict=of_factors)]
        return grads

    def posteriors(self) -> Posteriors:
        """What every frame knows, each sequence from its own rung: one backward pass."""
        c, run, log = self.segments, self.run, self.log
        with matmul_precision("float32", c.log_obs.device):
            uses = back.backward(c, run, log=log)
        if not self._settled:
            self._widen((~uses.trusted & ~self._elsewhere()).nonzero()[:, 0])
            self._settled = True
        opened = run.frames.opened.double() + run.frames.log_before.unsqueeze(-1)
        begun = uses.log_begun.double() + uses.log_begun_scale.unsqueeze(-1)
        after = uses.log_after.double() + uses.log_after_scale.unsqueeze(-1)
        # The last segment ends with the last frame, however far below others before log_final; a cut one does not.
        at = c.lengths - 1, torch.arange(len(c.lengths), device=c.lengths.device)
        uses.ends[at] = 0.0 if c.cut else uses.states[at]
        out = Posteriors(uses.states, uses.starts, uses.ends, opened, begun, after, uses.carried)
        for index, wider in self.wider:
            for mine, theirs in zip(out, wider.posteriors(), strict=True):
                if mine is not None and theirs is not None:
                    mine[:, index] = theirs.to(mine.dtype)
        return out

    def _elsewhere(self) -> Tensor:  # "b"
        """Which sequences are on a wider rung."""
        there = torch.zeros_like(self.segments.lengths, dtype=torch.bool)
        for index, _ in self.wider:
            there[index] = True
        return there


def solve(c: Segments, arithmetic: Arithmetic) -> Solution:
    """Run the forward pass; what is kept for the gradient is O(b t z)."""
    return Solution(c.double(), log=True) if arithmetic == "log" else Solution(c)
