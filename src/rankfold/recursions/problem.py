"""Validated potentials of any structure: no field is None, each has its batch axis.

Public functions validate once; all functions below them take a `Problem`. Checks of several structures are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, UnsupportedError, expect, may_look
from rankfold.numerics.scaled import largest
from rankfold.numerics.shard import Shard
from rankfold.operators.protocol import Operator, expect_operator
from rankfold.operators.sharded import whole_shard

P = TypeVar("P", bound="Problem")


@dataclass(frozen=True, eq=False)
class Problem:
    """The validated potentials of any structure: the members that all recursions and the ladder use."""

    lengths: Tensor  # "b" int64, on the device of the rest
    ragged: bool  # whether some length is below t

    fields: ClassVar[tuple[str, ...]]  # the log-weights, in the order of `tensors`
    shared: ClassVar[tuple[str, ...]] = ()  # those of them that all sequences share

    @property
    def positions(self) -> Tensor:  # "b t ..."
        """The log-weights of every position."""
        raise NotImplementedError

    def factors(self) -> tuple[Tensor, ...]:
        """The tensors of the operator, each once."""
        return ()

    def linear_factors(self) -> tuple[Tensor, ...]:
        """The factors that are weights, not logarithms of weights."""
        return ()

    def with_factors(self: P, *factors: Tensor) -> P:
        """The same problem with other tensors in its operator."""
        assert not factors
        return self

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that log Z is differentiable in: `fields`, then the operator's factors."""
        return (*(getattr(self, name) for name in self.fields), *self.factors())

    def with_tensors(self: P, *tensors: Tensor) -> P:
        """The same problem with other tensors, in the order of `tensors`."""
        num = len(self.fields)
        return self.with_factors(*tensors[num:]).replace(**dict(zip(self.fields, tensors[:num], strict=True)))

    def replace(self: P, **changes: Any) -> P:
        """The same problem with some fields changed; they are not validated."""
        return replace(self, **changes)

    def take(self: P, index: Tensor) -> P:  # "k"
        """Some of the sequences; differentiable."""
        own = {name: getattr(self, name)[index] for name in self.fields if name not in self.shared}
        return self.replace(lengths=self.lengths[index], **own)

    def double(self: P) -> P:
        """The same in float64; differentiable."""
        return self.with_tensors(*(x.double() for x in self.tensors()))

    def detach(self: P) -> P:
        """The same values without history."""
        if not any(x.requires_grad for x in self.tensors()):
            return self
        return self.with_tensors(*(x.detach() for x in self.tensors()))

    def hollow(self: P) -> P:
        """The problem to keep after a backward pass: itself, or without its tensors where they are too large."""
        return self

    def inside(self) -> Tensor:  # "b t"
        """Which positions are below their sequence's length."""
        return torch.arange(self.positions.shape[1], device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True, eq=False)
class Sequences(Problem):
    """Sequences of states whose transition is an operator: chains, segments."""

    log_initial: Tensor  # "b z"
    transition: Operator
    log_obs: Tensor  # "b t z"
    log_final: Tensor  # "b z"

    @property
    def positions(self) -> Tensor:  # "b t z"
        """log_obs."""
        return self.log_obs

    def factors(self) -> tuple[Tensor, ...]:
        """The factors of the transition."""
        return self.transition.factors()

    def linear_factors(self) -> tuple[Tensor, ...]:
        """The transition's factors that are weights, not logarithms of weights."""
        pairs = zip(self.transition.factors(), self.transition.log_factors, strict=True)
        return tuple(factor for factor, is_log in pairs if not is_log)

    def with_factors(self: S, *factors: Tensor) -> S:
        """The same with another transition."""
        return self.replace(transition=self.transition.with_factors(*factors))

    def observations(self) -> Tensor:  # "t b z"
        """log_obs, 0 beyond the length."""
        if not self.ragged:
            return self.log_obs.transpose(0, 1)
        return torch.where(self.inside().unsqueeze(-1), self.log_obs, 0.0).transpose(0, 1)

    @property
    def shard(self) -> Shard | None:
        """The share of this process in the states, where several processes hold them."""
        return whole_shard(self.transition)

    @property
    def num_states(self) -> int:
        """The number of states, those of other processes included."""
        return self.log_obs.shape[-1] if self.shard is None else self.shard.size

    def sum_states(self, x: Tensor) -> Tensor:  # "... z" -> "..."
        """The sum over all states."""
        return x.sum(-1) if self.shard is None else self.shard.total(x.sum(-1))

    def all_states(self, x: Tensor) -> Tensor:  # "... z" -> "..."
        """Whether it is true of all states."""
        return x.all(-1) if self.shard is None else self.shard.most((~x.all(-1)).float()) == 0

    def any_state(self, x: Tensor) -> Tensor:  # "... z" -> "..."
        """Whether it is true of some state."""
        return x.any(-1) if self.shard is None else self.shard.most(x.any(-1).float()) > 0

    def largest(self, log_x: Tensor) -> Tensor:  # "... z" -> "... 1"
        """The largest entry over all states, a constant to autograd; 0 for a vector of -inf."""
        if self.shard is None:
            return largest(log_x)
        top = self.shard.most(log_x.amax(-1, keepdim=True))
        return torch.where(top > float("-inf"), top, 0.0)

    def last(self, x: Tensor) -> Tensor:  # "t b ..." -> "b ..."
        """The entry of each sequence at its last position."""
        return x[self.lengths - 1, torch.arange(x.shape[1], device=x.device)]


S = TypeVar("S", bound=Sequences)


T = TypeVar("T")


def validates(kind: type[T], problem: type[P]) -> Callable[[Callable[[T], P]], Callable[[T | P], P]]:
    """Decorates the validation of potentials of a `kind`: a `problem` is returned as it is, other types are refused."""

    def decorate(validate: Callable[[T], P]) -> Callable[[T | P], P]:
        @wraps(validate)
        def once(p: T | P) -> P:
            if isinstance(p, problem):
                return p
            if not isinstance(p, kind):
                raise ShapeError(f"expected {kind.__name__}, but got a {type(p).__name__}.")
            return validate(p)

        return once

    return decorate


def expect_transition(transition: Operator, log_obs: Tensor, *, needed_by: str) -> int:
    """The number of states; raises unless the transition is a square operator over the states of log_obs "b t z"."""
    expect_operator(transition, name="transition")
    num_states, num_targets = transition.shape
    if num_states != num_targets:
        raise ShapeError(f"{needed_by} a square transition, but this one maps {num_states} -> {num_targets}.")
    expect(log_obs, "b t z", name="log_obs", z=num_states, hint=_hint(log_obs, num_states))
    return num_states


def expect_end(x: Tensor, name: str, letter: str, num_sequences: int, size: int) -> None:
    """Raise unless an end of the sequences (log_initial, log_final) is one vector for all of them or one for each."""
    if isinstance(x, Tensor) and x.ndim == 2:
        expect(x, f"b {letter}", name=name, hint="", **{"b": num_sequences, letter: size})
    else:
        expect(x, letter, name=name, hint="", **{letter: size})


def _hint(log_obs: Tensor, num_states: int) -> str:
    """A remedy for a log_obs of the wrong shape."""
    shape = tuple(getattr(log_obs, "shape", ()))
    if len(shape) == 2 and shape[1] == num_states:
        return "For one sequence add a batch axis: log_obs[None]."
    if 0 in shape:
        return "An empty batch or sequence has nothing to sum over: leave it out."
    if len(shape) == 3 and shape[2] != num_states and num_states in shape:
        return f"The axis of {num_states} states comes last: permute the others to the front."
    return f"The transition maps {num_states} -> {num_states}: did both see the same states?"


def validate_lengths(
    lengths: Tensor | None, num_sequences: int, num_positions: int, like: Tensor
) -> tuple[Tensor, bool]:  # "b"
    """Lengths as int64 on the device of `like`, and whether any is below `num_positions`; raises on invalid ones."""
    if lengths is None:
        return torch.full((num_sequences,), num_positions, device=like.device), False
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (num_sequences,):
        raise ShapeError(f'lengths has shape {tuple(lengths.shape)}, but "b" was expected with b = {num_sequences}.')
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype == torch.bool:
        raise DomainError(f"lengths has dtype {lengths.dtype}, but lengths are integers.\n  Convert it with .long().")
    if not may_look(like):
        if lengths.device != like.device:
            raise UnsupportedError("lengths must be on the device of log_obs while a CUDA graph is captured.")
        return lengths.long(), True
    lengths = lengths.long()
    wrong = (lengths < 1) | (lengths > num_positions)
    if wrong.any():
        where = int(wrong.nonzero()[0])
        raise DomainError(
            f"lengths[{where}] is {int(lengths[where])}, but there are {num_positions} positions: "
            f"lengths run from 1 to {num_positions}.\n  Leave empty sequences out."
        )
    return lengths.to(like.device, torch.int64), bool((lengths < num_positions).any())


def sum_out_last(
    log_obs: Tensor, lengths: Tensor | None, ahead: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:  # "b t z", "b" -> "b t-1 z" float64, "b"
    """The positions but the last of each sequence, and the lengths.

    `ahead(each, last, log_end)` is the log-weight "b z" of all that the last position is about, by the state before it.
    """
    num, most, _ = log_obs.shape
    each = torch.arange(num, device=log_obs.device)
    last = (torch.full_like(each, most) if lengths is None else lengths.to(each.device)) - 1
    wide = log_obs.double()
    before = wide[:, :-1].clone()
    before[each, last - 1] += ahead(each, last, wide[each, last])
    return before, last
