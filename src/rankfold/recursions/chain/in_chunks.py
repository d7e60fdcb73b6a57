"""Paths of long sequences in chunks that run at the same time: about the root of the length in steps, not the length.

Of each chunk first what it does to every state at its start; then the state or score at every border, one after the
other; then all chunks from their borders. Worth its z-fold work where calls are the cost: few states on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankfold.kernels.dispatch import triton_serves
from rankfold.numerics.log_space import pick
from rankfold.recursions.chain.potentials import Chain

# Positions from which, and states up to which, chunks pay; entries of a block of draws.
SHORT, FEW_STATES, BLOCK = 512, 64, 2**24


def chunks_serve(c: Chain) -> bool:
    """Whether paths of this chain are followed in chunks."""
    _, num_positions, num_states = c.log_obs.shape
    return num_positions >= SHORT and num_states <= FEW_STATES and triton_serves(c.log_obs)


def best_states(c: Chain, push_max: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:  # "b t", "b"
    """The best path of each sequence and its log-weight, as `paths.best_path`; -1 where there is none.

    Scores are float64. At a border they are sums in another order: of paths that are equally good to the last
    digits, another one may be found.
    """
    num, num_positions, num_states = c.log_obs.shape
    size, num_chunks = _cut(num_positions - 1)
    step = torch.arange(1, 1 + size * num_chunks, device=c.lengths.device)
    inside = (step[:, None] < c.lengths).reshape(num_chunks, size, num, 1)
    log_obs = c.observations().double()[step.clamp(max=num_positions - 1)].reshape(num_chunks, size, num, num_states)

    def advance(score: Tensor, at: int) -> tuple[Tensor, Tensor]:  # "k b ... z"
        moved, came = (x.reshape(score.shape) for x in push_max(score.reshape(-1, num_states)))
        here, obs = inside[:, at], log_obs[:, at]
        if score.ndim == 4:
            here, obs = here[:, :, None], obs[:, :, None]
        return torch.where(here, moved + obs, score), came

    eye = torch.eye(num_states, dtype=torch.float64, device=log_obs.device).log()
    whole = eye.expand(num_chunks, num, num_states, num_states)
    for at in range(size):
        whole = advance(whole, at)[0]
    score = c.log_initial.double() + c.log_obs[:, 0]
    starts = torch.empty_like(log_obs[:, 0])
    for k in range(num_chunks):
        starts[k] = score
        score = (score.unsqueeze(-1) + whole[k]).amax(1)
    score, state = starts, torch.arange(num_states, device=starts.device)
    came = torch.empty(num_chunks, size, num, num_states, dtype=torch.int64, device=starts.device)
    for at in range(size):
        score, own = advance(score, at)
        came[:, at] = torch.where(inside[:, at], own, state)
    log_prob, last = (score[-1] + c.log_final).max(-1)
    back = came.flatten(0, 1)[: num_positions - 1].flip(0)
    path = torch.cat([walk(back, last).flip(0), last[None]]).mT
    return torch.where(c.inside() & (log_prob > float("-inf"))[:, None], path, -1), log_prob


def draw(c: Chain, log_rows: Tensor, log_ahead: Tensor, generator: torch.Generator | None) -> Tensor:  # "b t"
    """One sample of each sequence: a draw for every state at every position, of which the path takes those it meets.

    log_rows "z y", log_ahead "t b z": logarithms of the transition, and of observation times future.
    """
    num_positions, num, num_states = log_ahead.shape
    state = pick(c.log_initial + log_ahead[0], generator)
    own = torch.arange(num_states, device=state.device)
    maps = torch.empty(num_positions - 1, num, num_states, dtype=torch.int64, device=state.device)
    height = max(1, BLOCK // (num * num_states**2))
    for at in range(1, num_positions, height):
        part = pick(log_rows + log_ahead[at : at + height].unsqueeze(-2), generator)
        step = torch.arange(at, at + len(part), device=state.device)
        maps[at - 1 : at - 1 + len(part)] = torch.where((step[:, None] < c.lengths)[:, :, None], part, own)
    return torch.cat([state[None], walk(maps, state)]).mT


def walk(maps: Tensor, start: Tensor) -> Tensor:  # "m n z", "n" -> "m n"
    """The state after each of the maps, which are applied one after the other."""
    num_maps, num, num_states = maps.shape
    size, num_chunks = _cut(num_maps)
    same = torch.arange(num_states, device=maps.device).expand(size * num_chunks - num_maps, num, num_states)
    maps = torch.cat([maps, same]).reshape(num_chunks, size, num, num_states)
    whole = torch.arange(num_states, device=maps.device).expand(num_chunks, num, num_states)
    for at in range(size):
        whole = maps[:, at].gather(-1, whole)
    starts = torch.empty(num_chunks, num, 1, dtype=torch.int64, device=maps.device)
    state = start[:, None]
    for k in range(num_chunks):
        starts[k] = state
        state = whole[k].gather(-1, state)
    found, state = torch.empty(num_chunks, size, num, dtype=torch.int64, device=maps.device), starts
    for at in range(size):
        state = maps[:, at].gather(-1, state)
        found[:, at] = state[..., 0]
    return found.flatten(0, 1)[:num_maps]


def _cut(num_steps: int) -> tuple[int, int]:
    """Steps of a chunk, and how many chunks: two passes run along a chunk, one along the borders."""
    num_chunks = max(1, int((2 * num_steps) ** 0.5))
    size = -(-num_steps // num_chunks)
    return size, -(-num_steps // max(1, size))
