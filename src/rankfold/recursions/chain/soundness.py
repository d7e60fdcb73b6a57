"""A bound on what underflow took from a scaled forward pass, sequence by sequence.

Linear arithmetic loses entries far below the largest of their vector. That is harmless unless the rest of the sequence
lifts a lost entry above the kept ones; here that is excluded, or detected. Unit: the smallest normal number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.kernels.log_products import BLOCK
from rankfold.numerics.scaled import visible
from rankfold.recursions.chain.potentials import Chain
from rankfold.recursions.chain.scaled import Forward, looped, losses_of_steps, per_entry, scanned, written_loss


def lossless(c: Chain, f: Forward) -> Tensor:  # "b"
    """Whether log_z is free of underflow, to the dtype's round-off.

    First every predicted entry is compared with the most that could be missing from it: no message is
    needed for that, and chains in which all states reach all others pass. Sequences that fail get the
    exact bound, which costs a second forward pass over them.
    """
    sound = far_from_underflow(c, f)
    doubtful = (~sound).nonzero()[:, 0]
    if len(doubtful):
        sound[doubtful] = _noise_is_small(c.take(doubtful), _take(f, doubtful))
    if f.sound is not None:  # messages that overflow end in NaN there
        return sound
    # A weight too large for the dtype makes messages NaN, beyond a length too: none of them may enter a sum.
    return sound & torch.isfinite(f.norm).all(0)


def far_from_underflow(c: Chain, f: Forward) -> Tensor:  # "b"
    """Whether every entry that matters exceeds its possible loss by 1 / round-off."""
    if f.verdict is not None:
        return f.verdict.sound.clone()
    if f.sound is not None:
        return f.sound.clone()
    column, loss = _losses(c, f)  # "1 y", "y"
    least = visible(column.dtype)
    each = per_entry(f.norm, column, c.shard)  # "t b"
    first = (c.log_initial > float("-inf")).to(column.dtype) * f.emission[0] * least
    sound = c.all_states(first <= f.filtered[0] * f.norm[0].unsqueeze(-1))
    sound &= _clear(c, f, each, column, loss)
    at_end = (c.last(each) + 1) * (c.num_states * least)
    return sound & (at_end <= c.sum_states(c.last(f.filtered) * f.final))


def _clear(c: Chain, f: Forward, each: Tensor, column: Tensor, loss: Tensor | float) -> Tensor:  # "b"
    """Whether every entry after the first position exceeds its possible loss."""
    num_positions, num_sequences, num_states = f.filtered.shape
    least = visible(column.dtype)
    inside = c.inside().mT
    clear = torch.ones_like(inside)
    height = max(1, BLOCK // (num_sequences * num_states))
    for start in range(1, num_positions, height):
        at = slice(start, start + height)
        missing = each[start - 1 : start + height - 1][: len(f.norm[at])].unsqueeze(-1) * column + loss
        missing = missing * f.emission[at] * least
        clear[at] = c.all_states(missing <= f.filtered[at] * f.norm[at].unsqueeze(-1))
    return torch.where(inside[1:], clear[1:], True).all(0)


def _noise_is_small(c: Chain, f: Forward) -> Tensor:  # "b"
    """The bound itself: the possible loss travels through the same steps as the message."""
    if (weight := looped(c)) is not None:
        from rankfold.kernels.chain_loops import noise_is_small

        loss = written_loss(c, c.transition.push_loss())
        return noise_is_small(weight, c.log_initial, c.log_obs, c.lengths, f, loss)
    at_end, info = _noise(c, f), torch.finfo(f.norm.dtype)
    missing = (c.sum_states(at_end * f.final) + c.num_states) * info.tiny
    return missing <= info.eps * c.sum_states(c.last(f.filtered) * f.final)


def _noise(c: Chain, f: Forward) -> Tensor:  # "b z"   at the last position
    column, loss = _losses(c, f)
    each = per_entry(f.norm, column, c.shard)
    noise = (c.log_initial > float("-inf")).to(column.dtype)
    if (weight := scanned(c)) is not None:
        from rankfold.kernels.chain_scan import last_noise

        loss = torch.as_tensor(loss, dtype=column.dtype, device=column.device).expand_as(column[0])
        return last_noise(weight, noise, loss, c.log_obs.transpose(0, 1), f.emission, f.norm, each, c.lengths)
    at_end = torch.zeros_like(noise)
    for t in range(len(f.filtered)):
        if t:
            noise = c.transition.push(noise) + loss
        # An observation of weight zero leaves nothing behind, so nothing can be missing there.
        possible = c.log_obs[:, t] > float("-inf")
        noise = noise * f.emission[t] / f.norm[t].unsqueeze(-1) + each[t].unsqueeze(-1)
        noise = torch.where(possible, noise, 0.0)
        at_end = torch.where((c.lengths == t + 1)[:, None], noise, at_end)
    return at_end


def _losses(c: Chain, f: Forward) -> tuple[Tensor, Tensor | float]:  # "1 y", "y"
    if f.losses is not None:
        return f.losses.column, f.losses.push
    return c.transition.push(torch.ones_like(c.log_initial[:1])).to(c.log_obs.dtype), losses_of_steps(c)[0]


def _take(f: Forward, index: Tensor) -> Forward:
    return Forward(
        f.filtered[:, index],
        f.emission[:, index],
        f.norm[:, index],
        f.log_step[:, index],
        f.final[index],
        f.log_z[index],
    )
