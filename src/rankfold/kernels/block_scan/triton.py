"""Forward and backward messages of a chain of blocks: one program per sequence, which runs along its positions.

A step is a table of k x k log-weights, read once, while the next one is already on its way; the message stays in
registers. Log arithmetic throughout.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.offsets import begin


@triton.jit
def _log_sum(x, AXIS: tl.constexpr):
    """The largest entry along an axis, and the log of the sum over it; -inf where every term is."""
    top = tl.max(x, AXIS)
    shift = tl.where(top == float("-inf"), 0.0, top)
    return shift, tl.log(tl.sum(tl.exp(x - tl.expand_dims(shift, AXIS)), AXIS))


@triton.jit
def _normalised(joint):
    """The log-distribution, and its log-normaliser in two parts: a sum of them in float64 keeps every digit."""
    shift, log_total = _log_sum(joint, 0)
    return (joint - shift) - log_total, shift, log_total


@triton.jit
def _table(transition, step, num_steps, k, SIZE: tl.constexpr):
    """The table of a step; -inf beyond its edges, and everywhere for a step that does not exist."""
    at = tl.arange(0, SIZE)
    where = at[:, None] * k + at[None, :]
    limit = tl.where((step >= 0) & (step < num_steps), k, 0)
    return tl.load(
        transition + begin(step, k * k) + where, mask=(at < limit)[:, None] & (at < k)[None, :], other=float("-inf")
    )


@triton.jit
def _forward(initial, transition, obs, messages, shifts, logs, num, num_positions, k, SIZE: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    mask = at < k
    transition += b * (num_positions - 1) * k * k
    obs += b * num_positions * k
    joint = tl.load(initial + b * k + at, mask=mask, other=float("-inf")) + tl.load(obs + at, mask=mask, other=0.0)
    message, shift, log_total = _normalised(joint)
    tl.store(messages + b * k + at, message, mask=mask)
    tl.store(shifts + b, shift)
    tl.store(logs + b, log_total)
    ahead = _table(transition, 0, num_positions - 1, k, SIZE)
    for t in range(1, num_positions):
        table = ahead
        ahead = _table(transition, t, num_positions - 1, k, SIZE)
        message = tl.where(mask, message, float("-inf"))
        shift, log_total = _log_sum(table + message[:, None], 0)
        joint = shift + log_total + tl.load(obs + t * k + at, mask=mask, other=float("-inf"))
        message, shift, log_total = _normalised(joint)
        tl.store(messages + (t * num + b) * k + at, message, mask=mask)
        tl.store(shifts + t * num + b, shift)
        tl.store(logs + t * num + b, log_total)


@triton.jit
def _backward(transition, obs, lengths, messages, num, num_positions, k, SIZE: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    mask = at < k
    transition += b * (num_positions - 1) * k * k
    obs += b * num_positions * k
    length = tl.load(lengths + b)
    message = tl.zeros((SIZE,), tl.float32)
    last = num_positions - 1
    tl.store(messages + (last * num + b) * k + at, message, mask=mask)
    ahead = _table(transition, last - 1, last, k, SIZE)
    for i in range(0, last):
        t = last - i
        table = ahead
        ahead = _table(transition, t - 2, last, k, SIZE)
        weight = tl.load(obs + t * k + at, mask=mask, other=0.0) + message
        shift, log_total = _log_sum(table + tl.where(mask, weight, float("-inf"))[None, :], 1)
        message, _, _ = _normalised(tl.where(mask, shift + log_total, float("-inf")))
        message = tl.where(mask & (t < length), message, 0.0)
        tl.store(messages + ((t - 1) * num + b) * k + at, message, mask=mask)


@triton.jit
def _pair(transition, obs, messages, ahead, weight, out, num, num_positions, k, SIZE: tl.constexpr):
    """weight softmax(table + past + future) of one step, over all its cells."""
    step = tl.program_id(0).to(tl.int64)
    b, s = step // (num_positions - 1), step % (num_positions - 1)
    at = tl.arange(0, SIZE)
    mask = at < k
    past = tl.load(messages + (s * num + b) * k + at, mask=mask, other=float("-inf"))
    following = tl.load(ahead + ((s + 1) * num + b) * k + at, mask=mask, other=float("-inf"))
    following += tl.load(obs + (b * num_positions + s + 1) * k + at, mask=mask, other=0.0)
    joint = _table(transition, step, step + 1, k, SIZE) + past[:, None] + following[None, :]
    joint = tl.exp(joint - tl.max(tl.max(joint, 1), 0))
    share = tl.load(weight + step)
    found = tl.where(share == 0.0, 0.0, joint * (share / tl.sum(tl.sum(joint, 1), 0)))
    tl.store(out + begin(step, k * k) + (at[:, None] * k + at[None, :]), found, mask=mask[:, None] & mask[None, :])


def transition_posteriors(
    log_transition: Tensor, log_obs: Tensor, messages: Tensor, ahead: Tensor, weight: Tensor
) -> Tensor:  # "b s k k", "b t k", "t b k", "t b k", "b s" -> "b s k k"
    """weight times the posterior of every pair of neighbours; 0 where the weight is 0, even if messages are NaN."""
    num, num_positions, k = log_obs.shape
    out = torch.empty_like(log_transition, memory_format=torch.contiguous_format)
    if num_positions > 1:
        size = max(16, triton.next_power_of_2(k))
        _pair[(num * (num_positions - 1),)](
            log_transition.contiguous(), log_obs.contiguous(), messages.contiguous(), ahead.contiguous(),
            weight.contiguous(), out, num, num_positions, k, SIZE=size, num_warps=_warps(size),
        )  # fmt: skip
    return out


def filter_states(
    log_initial: Tensor, log_transition: Tensor, log_obs: Tensor
) -> tuple[Tensor, Tensor]:  # "t b k", "t b"
    """log p(i_t | x_1..t) and, in float64, log p(x_t | x_1..t-1), at every position."""
    num, num_positions, k = log_obs.shape
    messages = log_obs.new_empty(num_positions, num, k)
    shifts, logs = (log_obs.new_empty(num_positions, num) for _ in range(2))
    size = max(16, triton.next_power_of_2(k))
    _forward[(num,)](
        log_initial.contiguous(), log_transition.contiguous(), log_obs.contiguous(), messages, shifts, logs,
        num, num_positions, k, SIZE=size, num_warps=_warps(size),
    )  # fmt: skip
    return messages, shifts.double() + logs.double()


def future(log_transition: Tensor, log_obs: Tensor, lengths: Tensor) -> Tensor:  # "t b k"
    """log p(x_t+1..T | i_t) up to a constant of each position; 0 at the last position and beyond."""
    num, num_positions, k = log_obs.shape
    messages = log_obs.new_empty(num_positions, num, k)
    size = max(16, triton.next_power_of_2(k))
    _backward[(num,)](
        log_transition.contiguous(), log_obs.contiguous(), lengths, messages,
        num, num_positions, k, SIZE=size, num_warps=_warps(size),
    )  # fmt: skip
    return messages


def _warps(size: int) -> int:
    return max(1, min(16, size * size // 1024))
