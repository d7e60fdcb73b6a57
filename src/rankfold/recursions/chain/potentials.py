"""What a chain is made of, and the checks at the door of every function that takes one.

Read next: `recursions/chain`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import ShapeError, expect, expect_logs, same_kind
from rankfold.operators.protocol import Operator, expect_operator
from rankfold.recursions.problem import validate_lengths


class ChainPotentials(NamedTuple):
    """The weights of all state paths of a batch of sequences.

        weight(z_1..z_T) = initial[z_1] obs_1[z_1]  prod_{t>1} transition[z_{t-1}, z_t] obs_t[z_t]  final[z_T]

    A missing observation is a row of zeros in `log_obs`. Positions beyond a length are never used.
    `log_initial` "b z" carries a state in from an earlier stretch: see `chain.carry`.
    """

    log_initial: Tensor  # "z" or "b z": before the first emission
    transition: Operator  # "z z"
    log_obs: Tensor  # "b t z"
    log_final: Tensor | None = None  # "z" or "b z"; None means zeros
    lengths: Tensor | None = None  # "b" integers; None means all of t


class Chain(NamedTuple):
    """Potentials that passed the door: every field there, every one with its batch axis."""

    log_initial: Tensor  # "b z"
    transition: Operator
    log_obs: Tensor  # "b t z"
    log_final: Tensor  # "b z"
    lengths: Tensor  # "b" int64, on the device of log_obs
    ragged: bool  # whether some length is below t

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything a gradient may be asked of, transition factors last."""
        return (self.log_initial, self.log_obs, self.log_final, *self.transition.factors())

    def with_tensors(self, log_initial: Tensor, log_obs: Tensor, log_final: Tensor, *factors: Tensor) -> Chain:
        """The same chain of other tensors."""
        transition = self.transition.with_factors(*factors)
        return self._replace(log_initial=log_initial, log_obs=log_obs, log_final=log_final, transition=transition)

    def take(self, index: Tensor) -> Chain:  # "k"
        """Some of the sequences; differentiable."""
        return self._replace(
            log_initial=self.log_initial[index],
            log_obs=self.log_obs[index],
            log_final=self.log_final[index],
            lengths=self.lengths[index],
        )

    def double(self) -> Chain:
        """The same chain in float64; differentiable."""
        return self.with_tensors(*(x.double() for x in self.tensors()))

    def detach(self) -> Chain:
        """The same values without history."""
        return self.with_tensors(*(x.detach() for x in self.tensors()))

    def inside(self) -> Tensor:  # "b t"
        """Which positions lie inside their sequence."""
        return torch.arange(self.log_obs.shape[1], device=self.lengths.device) < self.lengths[:, None]

    def observations(self) -> Tensor:  # "t b z"
        """log_obs, 0 beyond the length."""
        return torch.where(self.inside().unsqueeze(-1), self.log_obs, 0.0).transpose(0, 1)

    def last(self, x: Tensor) -> Tensor:  # "t b ..." -> "b ..."
        """The entry of each sequence at its last position."""
        return x[self.lengths - 1, torch.arange(x.shape[1], device=x.device)]


def validate(p: ChainPotentials) -> Chain:
    """The potentials, completed; raises on any shape, dtype, device or value that does not fit."""
    if not isinstance(p, ChainPotentials):
        raise ShapeError(f"expected ChainPotentials, but got a {type(p).__name__}.")
    expect_operator(p.transition, name="transition")
    num_states, num_targets = p.transition.shape
    if num_states != num_targets:
        raise ShapeError(f"a chain needs a square transition, but this one maps {num_states} -> {num_targets}.")
    expect(
        p.log_obs,
        "b t z",
        name="log_obs",
        z=num_states,
        hint=_hint(p.log_obs, num_states),
    )
    num_sequences, num_positions, _ = p.log_obs.shape
    ends: dict[str, Tensor] = {"log_initial": p.log_initial}
    if p.log_final is not None:
        ends["log_final"] = p.log_final
    for name, end in ends.items():
        if isinstance(end, Tensor) and end.ndim == 2:
            expect(end, "b z", name=name, b=num_sequences, z=num_states)
        else:
            expect(end, "z", name=name, z=num_states)
    factors = {f"transition factor {i}": factor for i, factor in enumerate(p.transition.factors())}
    same_kind(p.log_obs, "log_obs", {**ends, **factors})
    lengths, ragged = validate_lengths(p.lengths, num_sequences, num_positions, p.log_obs)
    log_final = p.log_obs.new_zeros(()) if p.log_final is None else p.log_final
    chain = Chain(
        p.log_initial.expand(num_sequences, num_states),
        p.transition,
        p.log_obs,
        log_final.expand(num_sequences, num_states),
        lengths,
        ragged,
    )
    for name, end in ends.items():
        expect_logs(end, name=name)
    expect_logs(p.log_obs, name="log_obs", inside=chain.inside() if ragged else None)
    return chain


def _hint(log_obs: Tensor, num_states: int) -> str:
    """What to do about a log_obs of another shape."""
    shape = tuple(getattr(log_obs, "shape", ()))
    if len(shape) == 2 and shape[1] == num_states:
        return "For one sequence add a batch axis: log_obs[None]."
    if 0 in shape:
        return "An empty batch or sequence has nothing to sum over: leave it out."
    if len(shape) == 3 and shape[2] != num_states and num_states in shape:
        return f"The axis of {num_states} states comes last: permute the others to the front."
    return f"The transition maps {num_states} -> {num_states}: did both see the same states?"
