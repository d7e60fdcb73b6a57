"""Chains: log Z over all state paths, its messages, and the state carried to the next stretch.

| file | in it |
|---|---|
| `potentials` | `ChainPotentials`, and their validation |
| `rungs` | the arithmetics in which a chain is solved, for the ladder |
| `scaled` | forward-backward on scaled vectors, the loop over positions |
| `soundness` | the bound on what underflow took |
| `plain` | the same as plain loops for second derivatives, and in logarithms |
| `filtering` | the state after the last position, for streams |
| `paths` | best and sampled state paths |
| `in_chunks` | the same of long sequences on a GPU, all chunks at once |
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.numerics.precision import Precision
from rankfold.numerics.scaled import Scaled
from rankfold.recursions import ladder
from rankfold.recursions.chain.filtering import Advanced, advance, carry
from rankfold.recursions.chain.potentials import Chain, ChainLike, ChainPotentials, validate
from rankfold.recursions.chain.rungs import dead_end, solve
from rankfold.recursions.ladder import Arithmetic, Impossible, check_arithmetic

__all__ = [
    "Advanced",
    "Chain",
    "ChainPotentials",
    "Messages",
    "advance",
    "carry",
    "log_z",
    "messages",
    "solve",
    "validate",
]


class Messages(NamedTuple):
    """The forward and backward messages of every position."""

    filtered: Scaled  # "b t z"   p(x_1..t, z_t)
    future: Scaled  # "b t z"     p(x_t+1..T | z_t), log_final included


def log_z(
    p: ChainLike, arithmetic: Arithmetic = "scaled", precision: Precision = "float32", *, strict: bool = False
) -> Tensor:  # "b"   float64
    """Log-probability of each observed sequence, summed over all state paths.

        log Z = log  sum_{z_1..z_T}  initial[z_1] obs_1[z_1]  prod_{t>1}  A[z_{t-1}, z_t] obs_t[z_t]  final[z_T]

    Cost: T calls of `transition.push`; O(b t z r) for a low-rank transition. Memory O(b t z).
    Differentiable in every field, twice; d log Z / d log_obs is the state posterior. Not the best path:
    see `viterbi`. Always float64, because it may be a large number of which small differences matter.

    In scaled arithmetic the loss to underflow is bounded; sequences that exceed the bound are repeated in float64,
    then in log arithmetic. An impossible sequence has -inf and zero gradients; `strict` raises instead.
    While a CUDA graph is captured nothing can be repeated: such sequences are NaN, never wrong.
    Source: Chiu, Deng, Rush 2021, Alg. 2; in rank space Yang, Liu, Tu 2022, sec. 4.3.
    """
    c = validate(p)
    hint = "Look for observations of weight zero in every state that can be reached there."
    impossible = Impossible("sequence", lambda first: _reason(c, first), hint) if strict else None
    return ladder.log_z(
        c, lambda problem, both: solve(problem, arithmetic, precision, both=both), arithmetic, precision, impossible
    )


def _reason(c: Chain, sequence: int) -> str:
    position = dead_end(c, sequence)
    at = f"at position {position}" if position < int(c.lengths[sequence]) else "at its end (log_final)"
    return f"no state path has any weight {at}"


def messages(p: ChainPotentials | Chain, arithmetic: Arithmetic = "scaled") -> Messages:
    """The filtered and future messages at every position, 0 beyond a length; differentiable.

        filtered_t[z] = p(x_1..t, z_t = z)        future_t[z] = p(x_t+1..T | z_t = z) final
        log Z = log sum_z filtered_t[z] future_t[z]   at every t

    Sequences are computed in the arithmetic they need, as in `log_z`; the mantissas returned have the
    dtype of the potentials, so entries far below the largest of their vector are 0 (see `Scaled`).
    """
    check_arithmetic(arithmetic)
    c = validate(p)
    with torch.no_grad():
        solution = solve(c.detach(), arithmetic)
    # Rebuilt from its tensors: the operator may have cached tables of them before an optimiser changed them in place.
    c = c.with_tensors(*c.tensors())
    inside = c.inside()
    return Messages(*(_inside(solution.message(c, which), inside, c.log_obs.dtype) for which in ("filtered", "future")))


def _inside(x: Scaled, inside: Tensor, dtype: torch.dtype) -> Scaled:  # "t b z", "b t" -> "b t z"
    """Batch first, 0 beyond a length."""
    mantissa, log_scale = x.mantissa.to(dtype).transpose(0, 1), x.log_scale.transpose(0, 1)
    return Scaled(torch.where(inside.unsqueeze(-1), mantissa, 0.0), torch.where(inside, log_scale, 0.0))
