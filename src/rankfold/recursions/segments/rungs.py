"""The rungs of segments: linear products in the caller's dtype or in float64, and logarithms."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.precision import matmul_precision
from rankfold.recursions.ladder import Arithmetic, Backward, Ladder
from rankfold.recursions.segments import passes
from rankfold.recursions.segments.plain import Retraced
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


class SegmentRung:
    """A batch in one arithmetic: the passes are the same, but for the product with the transition."""

    log_onward: Tensor | None = None  # "d b z"   after a backward pass: what follows segments carried in, by age

    def __init__(self, c: Segments, *, in_logs: bool = False) -> None:
        self.problem, self.in_logs = c, in_logs
        with self._products():
            self.run = passes.forward(c, log=in_logs)
        self.log_z = self.run.log_z

    def _products(self) -> AbstractContextManager[None]:
        if self.problem.log_obs.dtype == torch.float64:
            return nullcontext()
        return matmul_precision("float32", self.problem.log_obs.device)

    def sound(self) -> Tensor:  # "b"
        with self._products():
            return lossless(self.problem, self.run)

    def repeat(self, part: Segments, *, in_logs: bool) -> SegmentRung:
        return SegmentRung(part, in_logs=in_logs)

    def forget(self, index: Tensor) -> None:
        """Does nothing: gradients leave out the sequences of wider rungs."""

    def uses(self) -> passes.Uses:
        """The backward pass: posteriors of everything."""
        with self._products():
            return passes.backward(self.problem, self.run._replace(log_z=self.log_z), log=self.in_logs)

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:
        uses = self.uses()
        self.log_onward = uses.log_onward

        def gradients(elsewhere: Tensor | None) -> list[Tensor]:
            by = weight if may_look(weight) else torch.where(uses.trusted, weight, float("nan"))
            run, log = self.run._replace(log_z=self.log_z), self.in_logs
            with self._products():
                return passes.gradients(self.problem, run, uses, by, elsewhere, log=log, of_factors=of_factors)

        return Backward(None if self.in_logs else uses.trusted, gradients)

    def retrace(self, c: Segments, index: Tensor | None) -> Tensor:
        raise AssertionError("segments are retraced all together")


class SegmentSolution(Retraced, Ladder[Segments, SegmentRung]):
    """A batch of segmentations, each sequence on the rung it needs."""

    log_onward: Tensor | None = None  # "d b z"   once there are gradients: what follows segments carried in, by age

    def gradients(self, weight: Tensor, *, of_factors: bool) -> list[Tensor]:
        """d (weight . log_z) / d (log_initial, log_duration, log_obs, log_final, *factors); no factors if not asked."""
        grads = super().gradients(weight, of_factors=of_factors)
        self.log_onward = self.rung.log_onward
        for index, wider in self.wider:
            if self.log_onward is not None and wider.log_onward is not None:
                self.log_onward[:, index] = wider.log_onward
        return grads

    def posteriors(self) -> Posteriors:
        """Posteriors and messages of every frame, each sequence from its own rung: one backward pass."""
        c, frames, uses = self.problem, self.rung.run.frames, self.rung.uses()
        if not self.settled:
            self.repeat_untrusted(uses.trusted)
            self.settled = True
        opened = frames.opened.double() + frames.log_before.unsqueeze(-1)
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


def solve(c: Segments, arithmetic: Arithmetic) -> SegmentSolution:
    """Run the forward pass; it keeps O(b t z) for the gradient."""
    if arithmetic == "log":
        return SegmentSolution(SegmentRung(c.double(), in_logs=True))
    return SegmentSolution(SegmentRung(c))
