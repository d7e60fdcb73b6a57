"""The potentials of a chain, and their validation."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from rankfold.errors import expect_logs, same_kind
from rankfold.operators.protocol import Operator
from rankfold.recursions.factor_gradients import to_double
from rankfold.recursions.problem import (
    Sequences,
    expect_end,
    expect_transition,
    sum_out_last,
    validate_lengths,
    validates,
)


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

    def sum_out_end(self) -> ChainPotentials:
        """The same sequences without their last position, whose weight goes to the position before it; float64."""
        transition = to_double(self.transition)
        log_final = 0.0 if self.log_final is None else self.log_final
        log_obs, lengths = sum_out_last(
            self.log_obs, self.lengths, lambda each, last, end: transition.pull_log(end + log_final)
        )
        return ChainPotentials(self.log_initial.double(), transition, log_obs, None, lengths)


@dataclass(frozen=True, eq=False)
class Chain(Sequences):
    """A validated chain."""

    fields = ("log_initial", "log_obs", "log_final")


ChainLike = ChainPotentials | Chain


@validates(ChainPotentials, Chain)
def validate(p: ChainPotentials) -> Chain:
    """The potentials, completed; raises on any shape, dtype, device or value that does not fit."""
    num_states = expect_transition(p.transition, p.log_obs, needed_by="a chain needs")
    num_sequences, num_positions, _ = p.log_obs.shape
    ends = {"log_initial": p.log_initial} | ({} if p.log_final is None else {"log_final": p.log_final})
    for name, end in ends.items():
        expect_end(end, name, "z", num_sequences, num_states)
    factors = {f"transition factor {i}": factor for i, factor in enumerate(p.transition.factors())}
    same_kind(p.log_obs, "log_obs", {**ends, **factors})
    lengths, ragged = validate_lengths(p.lengths, num_sequences, num_positions, p.log_obs)
    log_final = p.log_obs.new_zeros(()) if p.log_final is None else p.log_final
    log_initial, log_final = (x.expand(num_sequences, num_states) for x in (p.log_initial, log_final))
    chain = Chain(lengths, ragged, log_initial, p.transition, p.log_obs, log_final)
    with nullcontext() if chain.shard is None else chain.shard.together():
        for name, end in ends.items():
            expect_logs(end, name=name)
        expect_logs(p.log_obs, name="log_obs", inside=chain.inside() if ragged else None)
    return chain
