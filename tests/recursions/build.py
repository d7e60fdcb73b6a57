"""Chains to test on: ragged batches with everything that may go wrong in them, and their enumeration.

Positions beyond a length always hold NaN, so that whoever reads one is found out.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from rankfold import ChainPotentials, Dense, Operator
from rankfold.recursions.chain import log_z
from tests.operators.cases import CASES, Case

NAN, INF = float("nan"), float("inf")
BY_NAME = {case.name: case for case in CASES}
ENDS = ("none", "z", "b z")  # how log_final may come; log_initial as the last two


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def pad_with_nan(log_obs: Tensor, lengths: Sequence[int]) -> Tensor:  # "b t z"
    """A copy whose positions beyond a length are NaN."""
    out = log_obs.clone()
    for i, length in enumerate(lengths):
        out[i, length:] = NAN
    return out


def ends(kind: str, num_sequences: int, z: int, g: Generator, dtype: torch.dtype) -> Tensor | None:
    """Random log-weights as "z", "b z", or None; with two states or more, some state has weight zero."""
    if kind == "none":
        return None
    shape = (z,) if kind == "z" else (num_sequences, z)
    log_end = torch.randn(shape, generator=g, dtype=torch.float64)
    if z > 1:
        log_end[..., int(torch.randint(z, (), generator=g))] = -INF
    return log_end.to(dtype)


def potentials(
    case: Case,
    z: int,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    initial: str = "z",
    final: str = "none",
    zeros: bool = True,
) -> ChainPotentials:
    """A ragged batch: the first sequence has a missing observation, and (with `zeros`) words of weight zero.

    Without `zeros` every entry is finite, as numerical derivatives need it.
    """
    g = seeded(seed)
    transition = case.build(z, g, dtype)
    log_obs = 2 * torch.randn(len(lengths), max(lengths), z, generator=g, dtype=torch.float64)
    log_initial = ends(initial, len(lengths), z, g, dtype)
    log_final = ends(final, len(lengths), z, g, dtype)
    assert log_initial is not None
    if zeros:
        log_obs[torch.rand(log_obs.shape, generator=g) < 0.15] = -INF
    else:
        log_initial = finite(log_initial)
        log_final = None if log_final is None else finite(log_final)
    log_obs[0, lengths[0] - 1] = 0.0
    return ChainPotentials(
        log_initial, transition, pad_with_nan(log_obs, lengths).to(dtype), log_final, torch.tensor(lengths)
    )


def finite(log_x: Tensor) -> Tensor:
    """The same with -inf replaced by an ordinary number."""
    return torch.where(log_x == -INF, -1.5, log_x)


def doubled(p: ChainPotentials) -> ChainPotentials:
    """The same values in float64, every field there and with its batch axis."""
    b, t, z = p.log_obs.shape
    log_final = torch.zeros(z) if p.log_final is None else p.log_final
    return ChainPotentials(
        p.log_initial.double().expand(b, z),
        p.transition.with_factors(*(x.double() for x in p.transition.factors())),
        p.log_obs.double(),
        log_final.double().expand(b, z),
        torch.full((b,), t) if p.lengths is None else p.lengths,
    )


def as_lists(p: ChainPotentials, i: int, length: int | None = None) -> dict[str, Any]:
    """Sequence i (or its first positions) as the enumeration takes it: nested lists of floats."""
    q = doubled(p)
    assert q.log_final is not None
    assert q.lengths is not None
    length = int(q.lengths[i]) if length is None else length
    return {
        "log_initial": q.log_initial[i].tolist(),
        "transition": q.transition.to_dense().tolist(),
        "log_obs": q.log_obs[i, :length].tolist(),
        "log_final": q.log_final[i].tolist(),
    }


def by_sequence(oracle: Callable[..., Any], p: ChainPotentials) -> list[Any]:
    """What the enumeration says of every sequence of a batch."""
    return [oracle(**as_lists(p, i)) for i in range(len(p.log_obs))]


def padded(rows: list[list[list[float]]], num_positions: int) -> Tensor:  # "b t z"
    """One "t z" list for each sequence, as one tensor that is 0 beyond a length."""
    out = torch.zeros(len(rows), num_positions, len(rows[0][0]), dtype=torch.float64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return out


class Leaves(NamedTuple):
    """Potentials whose every tensor asks for a gradient, and those tensors."""

    potentials: ChainPotentials
    tensors: tuple[Tensor, ...]  # log_initial, log_obs, log_final (unless None), factors


def leaves(p: ChainPotentials) -> Leaves:
    parts = [p.log_initial, p.log_obs] + ([] if p.log_final is None else [p.log_final])
    tensors = tuple(x.detach().clone().requires_grad_() for x in (*parts, *p.transition.factors()))
    return Leaves(rebuilt(p, tensors), tensors)


def rebuilt(p: ChainPotentials, tensors: Sequence[Tensor]) -> ChainPotentials:
    """The same potentials of other tensors, in the order of `Leaves.tensors`."""
    log_initial, log_obs, *rest = tensors
    log_final = None if p.log_final is None else rest.pop(0)
    return ChainPotentials(log_initial, p.transition.with_factors(*rest), log_obs, log_final, p.lengths)


def factor_gradients(transition: Operator, by_cell: Tensor) -> tuple[Tensor, ...]:  # "z y"
    """The gradients of an operator's factors, from those of the cells of its matrix."""
    factors = [x.detach().double().requires_grad_() for x in transition.factors()]
    dense = transition.with_factors(*factors).to_dense()
    return torch.autograd.grad((dense * by_cell).sum(), factors)


def hidden_markov(z: int, v: int, seed: int, transition: Operator | None = None) -> tuple[Tensor, Operator, Tensor]:
    """log_initial "z", transition "z y" and log_emission "z v" of a model that sums to 1, in float64."""
    g = seeded(seed)
    log_initial = torch.randn(z, generator=g, dtype=torch.float64).log_softmax(-1)
    weight = torch.randn(z, z, generator=g, dtype=torch.float64).softmax(-1)
    log_emission = torch.randn(z, v, generator=g, dtype=torch.float64).log_softmax(-1)
    return log_initial, Dense(weight) if transition is None else transition, log_emission


def posterior(p: ChainPotentials, arithmetic: str = "scaled") -> Tensor:
    """d log Z / d log_obs, as one backward pass gives it."""
    log_obs = p.log_obs.detach().requires_grad_()
    return torch.autograd.grad(log_z(p._replace(log_obs=log_obs), arithmetic).sum(), log_obs)[0]


class LogSpace(NamedTuple):
    """Forward-backward in log space by broadcasting: plain, slow, any range."""

    log_z: Tensor  # "b"
    posterior: Tensor  # "b t z"


def in_log_space(p: ChainPotentials, log_transition: Tensor) -> LogSpace:  # "z y"
    """log Z and posteriors in float64 with `torch.logsumexp` alone; equal lengths."""
    q = doubled(p)
    assert q.log_final is not None
    past, future = [q.log_initial + q.log_obs[:, 0]], [q.log_final]
    for t in range(1, q.log_obs.shape[1]):
        past.append(torch.logsumexp(past[-1].unsqueeze(-1) + log_transition.double(), 1) + q.log_obs[:, t])
        ahead = (future[-1] + q.log_obs[:, -t]).unsqueeze(1)
        future.append(torch.logsumexp(log_transition.double() + ahead, 2))
    log_z = torch.logsumexp(past[-1] + q.log_final, -1)
    both = torch.stack(past, 1) + torch.stack(future[::-1], 1)
    return LogSpace(log_z, torch.exp(both - log_z[:, None, None]))
