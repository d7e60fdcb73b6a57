"""The loops over the positions of a chain of few states on a CPU, compiled by numba where it is installed.

A position of few states is a microsecond of arithmetic, and several calls of torch are fifty. Each function stands for
a loop in torch, which remains the fallback and the oracle. Sums run along rows, in the order of the states.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

compiled = njit(cache=True, nogil=True, error_model="numpy")
# Multiply-adds below which a second thread costs more than it brings: about a tenth of a millisecond.
SMALL = 2**18


@compiled
def _filter(b0: int, b1: int, weight: Any, start: Any, emission: Any, tiny: float, filtered: Any, norm: Any) -> None:
    num, _, z = emission.shape
    x = np.empty_like(start[0])
    for b in range(b0, b1):
        for t in range(num):
            if t == 0:
                for j in range(z):
                    x[j] = start[b, j]
            else:
                for j in range(z):
                    x[j] = 0.0
                for i in range(z):
                    source = filtered[t - 1, b, i]
                    for j in range(z):
                        x[j] += source * weight[i, j]
            top = x[0] * emission[t, b, 0]
            for j in range(z):
                x[j] *= emission[t, b, j]
                # A NaN stays one, as in torch's maximum.
                if x[j] > top or x[j] != x[j]:
                    top = x[j]
            norm[t, b] = top
            by = top if top > tiny or top != top else tiny
            for j in range(z):
                filtered[t, b, j] = x[j] / by


@compiled
def _ahead(
    b0: int, b1: int, transposed: Any, emission: Any, final: Any, ends: Any, tiny: float,
    future: Any, target: Any, norm: Any,
) -> None:  # fmt: skip
    num, _, z = emission.shape
    x = np.empty_like(final[0])
    for b in range(b0, b1):
        for t in range(num - 1, -1, -1):
            if t < num - 1:
                for j in range(z):
                    x[j] = 0.0
                for i in range(z):
                    source = target[t + 1, b, i]
                    for j in range(z):
                        x[j] += source * transposed[i, j]
                top = x[0]
                for j in range(z):
                    if x[j] > top or x[j] != x[j]:
                        top = x[j]
                norm[t, b] = top
                by = top if top > tiny or top != top else tiny
                for j in range(z):
                    future[t, b, j] = x[j] / by
            if t >= ends[b]:
                for j in range(z):
                    future[t, b, j] = final[b, j]
            for j in range(z):
                target[t, b, j] = emission[t, b, j] * future[t, b, j]


@compiled
def _clear(
    b0: int, b1: int, filtered: Any, emission: Any, norm: Any, each: Any, column: Any, loss: Any, lengths: Any,
    least: float, clear: Any,
) -> None:  # fmt: skip
    z = emission.shape[2]
    for b in range(b0, b1):
        fine = True
        for t in range(1, lengths[b]):
            for j in range(z):
                missing = (each[t - 1, b] * column[j] + loss[j]) * emission[t, b, j] * least
                fine = fine and missing <= filtered[t, b, j] * norm[t, b]
        clear[b] = fine


@compiled
def _best(
    b0: int, b1: int, log_weight: Any, log_initial: Any, log_obs: Any, log_final: Any, lengths: Any,
    came: Any, path: Any, log_prob: Any,
) -> None:  # fmt: skip
    z = log_obs.shape[2]
    score, moved = np.empty(z, np.float64), np.empty(z, np.float64)
    for b in range(b0, b1):
        for j in range(z):
            score[j] = log_initial[b, j] + log_obs[b, 0, j]
        for t in range(1, lengths[b]):
            for j in range(z):
                moved[j] = score[0] + log_weight[0, j]
                came[b, t, j] = 0
            for i in range(1, z):
                for j in range(z):
                    one = score[i] + log_weight[i, j]
                    if one > moved[j]:
                        moved[j] = one
                        came[b, t, j] = i
            for j in range(z):
                score[j] = moved[j] + log_obs[b, t, j]
        state = 0
        top = score[0] + log_final[b, 0]
        for j in range(1, z):
            if score[j] + log_final[b, j] > top:
                state, top = j, score[j] + log_final[b, j]
        log_prob[b] = top
        if top > -np.inf:
            for t in range(lengths[b] - 1, -1, -1):
                path[b, t] = state
                state = came[b, t, state]


def filter_messages(weight: Tensor, start: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:
    """The filtered messages "t b z" and their divisors "t b"; weight "z y", start "b z", emission "t b z"."""
    filtered, norm = torch.empty_like(emission), emission.new_empty(emission.shape[:2])
    tiny = torch.finfo(emission.dtype).tiny
    _share_out(_filter, filtered, (weight, start, emission), tiny, filtered, norm)
    return filtered, norm


def future_messages(weight: Tensor, emission: Tensor, final: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The future messages and their products with the emissions "t b z", and the divisors "t b"."""
    future, target = torch.empty_like(emission), torch.empty_like(emission)
    norm = emission.new_ones(emission.shape[:2])
    tiny = torch.finfo(emission.dtype).tiny
    _share_out(_ahead, future, (weight.mT, emission, final, lengths - 1), tiny, future, target, norm)
    return future, target, norm


def far_from_loss(
    filtered: Tensor, emission: Tensor, norm: Tensor, each: Tensor, column: Tensor, loss: Tensor, lengths: Tensor,
    least: float,
) -> Tensor:  # "b"  # fmt: skip
    """Whether every entry after the first position exceeds its possible loss."""
    clear = torch.empty(emission.shape[1], dtype=torch.bool)
    _share_out(_clear, filtered, (filtered, emission, norm, each, column, loss, lengths), least, clear)
    return clear


def best_states(
    log_weight: Tensor, log_initial: Tensor, log_obs: Tensor, log_final: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:  # "b t", "b"
    """The best path of each sequence, -1 beyond its length and for one that is impossible, and its log-weight.

    Scores are float64; ties go to the smallest state. Memory: b t z numbers of one byte.
    """
    came = torch.empty(log_obs.shape, dtype=torch.uint8)
    path, log_prob = torch.full(log_obs.shape[:2], -1), torch.empty(len(log_obs), dtype=torch.float64)
    given = (log_weight, log_initial, log_obs, log_final, lengths)
    _share_out(_best, log_obs.transpose(0, 1), given, came, path, log_prob)
    return path, log_prob


def _share_out(loop: Callable[..., None], like: Tensor, given: tuple[Tensor, ...], *more: Tensor | float) -> None:
    """Run a loop over all sequences of `like` "t b z", by torch's number of threads where the work is worth it."""
    arrays = [x.detach().contiguous().numpy() for x in given]
    rest = [x.numpy() if isinstance(x, Tensor) else x for x in more]
    _, num, num_states = like.shape
    parts = min(torch.get_num_threads(), num, max(1, like.numel() * num_states // SMALL))
    if parts == 1:
        loop(0, num, *arrays, *rest)
        return
    borders = [num * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        for done in [pool.submit(loop, *ends, *arrays, *rest) for ends in pairwise(borders)]:
            done.result()
