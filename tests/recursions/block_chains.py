"""Chains of blocks to test on: ragged batches, NaN beyond every length, and their enumeration.

The block of a padded position is a number that no model has.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rankfold import ChainPotentials, Dense
from rankfold.recursions.blocks import BlockPotentials
from tests.recursions.build import INF, NAN, seeded

NUM_BLOCKS = 3
NOWHERE = -(10**9)


def block_chain(
    k: int,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    zeros: float = 0.15,
    spread: float = 2.0,
    dtype: torch.dtype = torch.float64,
) -> BlockPotentials:
    """Random log-weights, of which a share of `zeros` is -inf."""
    g = seeded(seed)
    b, t = len(lengths), max(lengths)

    def logs(*shape: int) -> Tensor:
        x = spread * torch.randn(shape, generator=g, dtype=torch.float64)
        return torch.where(torch.rand(shape, generator=g) < zeros, -INF, x).to(dtype)

    p = BlockPotentials(
        logs(b, k),
        logs(b, t - 1, k, k),
        logs(b, t, k),
        torch.randint(NUM_BLOCKS, (b, t), generator=g),
        torch.tensor(lengths),
    )
    for i, length in enumerate(lengths):
        p.log_obs[i, length:] = NAN
        p.log_transition[i, length - 1 :] = NAN
        p.block[i, length:] = NOWHERE
    return p


def as_lists(p: BlockPotentials, i: int) -> dict[str, Any]:
    """Sequence i as the enumeration takes it."""
    length = p.log_obs.shape[1] if p.lengths is None else int(p.lengths[i])
    return {
        "log_initial": p.log_initial[i].tolist(),
        "log_transition": p.log_transition[i, : length - 1].tolist(),
        "log_obs": p.log_obs[i, :length].tolist(),
    }


def by_sequence(oracle: Callable[..., Any], p: BlockPotentials) -> list[Any]:
    """What the enumeration says of every sequence."""
    return [oracle(**as_lists(p, i)) for i in range(len(p.log_obs))]


def padded(rows: Sequence[Any], like: Tensor) -> Tensor:
    """One nested list for each sequence, as one tensor of this shape that is 0 beyond a length."""
    out = torch.zeros(like.shape, dtype=torch.float64)
    for i, row in enumerate(rows):
        if row:
            out[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return out


def leaves(p: BlockPotentials) -> tuple[BlockPotentials, tuple[Tensor, Tensor, Tensor]]:
    """Potentials whose every tensor asks for a gradient, and those tensors."""
    first, move, obs = (x.detach().clone().requires_grad_() for x in p[:3])
    return rebuilt(p, first, move, obs), (first, move, obs)


def rebuilt(p: BlockPotentials, *tensors: Tensor) -> BlockPotentials:
    return BlockPotentials(*tensors, p.block, p.lengths)


def whole_model(k: int, lengths: Sequence[int], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A model of NUM_BLOCKS * k states: log_initial "z", log_transition "z y", and per position log_obs and block."""
    g = seeded(seed)
    b, t, z = len(lengths), max(lengths), NUM_BLOCKS * k
    log_initial = torch.randn(z, generator=g, dtype=torch.float64)
    log_transition = 2 * torch.randn(z, z, generator=g, dtype=torch.float64)
    log_obs = torch.randn(b, t, k, generator=g, dtype=torch.float64)
    block = torch.randint(NUM_BLOCKS, (b, t), generator=g)
    return log_initial, log_transition, log_obs, block, torch.tensor(lengths)


def in_blocks(
    log_initial: Tensor, log_transition: Tensor, log_obs: Tensor, block: Tensor, lengths: Tensor
) -> BlockPotentials:
    """The model of `whole_model` with the rows and columns of each position's block taken out."""
    k = log_obs.shape[-1]
    states = block.unsqueeze(-1) * k + torch.arange(k)  # "b t k"
    moves = log_transition[states[:, :-1, :, None], states[:, 1:, None, :]]
    return BlockPotentials(log_initial[states[:, 0]], moves, log_obs, block, lengths)


def in_full(
    log_initial: Tensor, log_transition: Tensor, log_obs: Tensor, block: Tensor, lengths: Tensor
) -> ChainPotentials:
    """The same as an ordinary chain, whose observations are impossible outside their block."""
    k = log_obs.shape[-1]
    states = block.unsqueeze(-1) * k + torch.arange(k)
    everywhere = torch.full((*block.shape, len(log_initial)), -INF, dtype=log_obs.dtype)
    return ChainPotentials(
        log_initial, Dense.from_log(log_transition), everywhere.scatter(-1, states, log_obs), lengths=lengths
    )
