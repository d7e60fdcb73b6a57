"""The loops over the positions of a chain of few states on a CPU, compiled by numba where it is installed.

A position of few states is a microsecond of arithmetic, and several calls of torch are fifty. Each function stands for
loops in torch, which remain the fallback and the oracle. Sums run along rows, in the order of the states; exponentials
of all positions are torch's, which takes several at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from rankfold.numerics.scaled import visible

compiled = njit(cache=True, nogil=True, error_model="numpy")
# Without the call, passes of 2 to 16 states were 1.1 to 1.4 times as fast.
inlined = njit(cache=True, nogil=True, error_model="numpy", inline="always")
# Sums in any order, so that several terms are added at once; NaN and infinity stay what they are.
compiled_sums = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
# Multiply-adds below which a second thread costs more than it brings, next to libraries whose threads spin: an EM
# step of 64 states, 4 x 64 tokens took two to three times as long by two threads.
SMALL = 2**21
# States below which a product is summed up entry by entry, and goes into what follows without a loop in between: each
# loop waits for the numbers that the one before wrote.
FEW = 8
# States below which rows are shifted column by column, some rows at a time: 0.6 and 0.7 of the time with 2 and 3.
BY_COLUMNS, ROWS = 4, 512
# Products of norms are kept between these: a logarithm is taken once in many steps.
FAR_BELOW, FAR_ABOVE = 2.0**-500, 2.0**500


@compiled
def _shift(n0: int, n1: int, log_obs: Any, first: int, log_scale: float, least: float, shifted: Any, top: Any) -> None:
    """Write rows "n z" less their largest entries, and these; with log_scale but for the `first` of all rows."""
    z = log_obs.shape[1]
    for start in range(n0, n1, ROWS):
        end = min(start + ROWS, n1)
        rows, out, most = log_obs[start:end], shifted[start:end], top[start:end]
        if z < BY_COLUMNS:
            for n in range(len(most)):
                most[n] = -np.inf
            for j in range(z):
                for n in range(len(most)):
                    most[n] = rows[n, j] if rows[n, j] > most[n] else most[n]
            for n in range(len(most)):
                most[n] = most[n] if most[n] > -np.inf else 0.0
            for j in range(z):
                for n in range(len(most)):
                    one = rows[n, j] - most[n]
                    # What would be below the smallest normal number is lost anyway; its exponential takes long.
                    out[n, j] = one if one >= least else -np.inf
        else:
            for n in range(len(most)):
                here = -np.inf
                for j in range(z):
                    here = rows[n, j] if rows[n, j] > here else here
                most[n] = here = here if here > -np.inf else 0.0
                for j in range(z):
                    one = rows[n, j] - here
                    out[n, j] = one if one >= least else -np.inf
        for n in range(max(start, first), end):
            top[n] += log_scale


@compiled
def _exp(b: int, log_x: Any, x: Any) -> float:
    """Write the exponentials of row b over the largest, and return its logarithm; 0 of a row of -inf."""
    top = -np.inf
    for j in range(log_x.shape[1]):
        top = max(top, log_x[b, j])
    if top == -np.inf:
        top = 0.0
    for j in range(log_x.shape[1]):
        x[b, j] = math.exp(log_x[b, j] - top)
    return top


@inlined
def _entry(x: Any, weight: Any, j: int) -> Any:
    """Entry j of x weight."""
    total = x[0] * weight[0, j]
    for i in range(1, len(x)):
        total += x[i] * weight[i, j]
    return total


@inlined
def _times(x: Any, weight: Any, y: Any) -> None:
    """Write x weight to y: few states entry by entry, which keeps a sum in a register, more of them by rows."""
    z = len(x)
    if z < FEW:
        for j in range(z):
            y[j] = _entry(x, weight, j)
        return
    for j in range(z):
        y[j] = x[0] * weight[0, j]
    done = 1
    while done + 4 <= z:
        first, second, third, fourth = x[done], x[done + 1], x[done + 2], x[done + 3]
        for j in range(z):
            y[j] += (first * weight[done, j] + second * weight[done + 1, j]) + (
                third * weight[done + 2, j] + fourth * weight[done + 3, j]
            )
        done += 4
    while done < z:
        for j in range(z):
            y[j] += x[done] * weight[done, j]
        done += 1


@compiled
def _forward(
    b0: int, b1: int, weight: Any, log_initial: Any, emission: Any, top: Any, log_final: Any, lengths: Any,
    column: Any, loss: Any, log_scale: float, tiny: float, least: float, filtered: Any, norm: Any, final: Any,
    log_z: Any, sound: Any,
) -> None:  # fmt: skip
    num, _, z = emission.shape
    x, y = np.empty(z, emission.dtype), np.empty(z, emission.dtype)
    largest = 0.0
    for j in range(z):
        largest = max(largest, column[j])
    for b in range(b0, b1):
        top[0, b] += _exp(b, log_initial, final)
        # A product that overflows leaves NaN in its vector, and so in all that follow, up to the last one's mass.
        fine, each, product, total = True, 0.0, 1.0, 0.0
        for t in range(lengths[b]):
            peak = 0.0
            if t > 0 and z < FEW:
                for j in range(z):
                    here = _entry(x, weight, j) * emission[t, b, j]
                    fine &= (each * column[j] + loss[j]) * least * emission[t, b, j] <= here
                    y[j] = here
                    if here > peak:
                        peak = here
            else:
                if t == 0:
                    for j in range(z):
                        y[j] = final[b, j]
                        fine &= log_initial[b, j] == -np.inf or least * emission[t, b, j] <= y[j] * emission[t, b, j]
                else:
                    _times(x, weight, y)
                    for j in range(z):
                        missing = (each * column[j] + loss[j]) * least
                        fine &= missing * emission[t, b, j] <= y[j] * emission[t, b, j]
                for j in range(z):
                    here = y[j] * emission[t, b, j]
                    y[j] = here
                    if here > peak:
                        peak = here
            norm[t, b] = peak
            by = 1.0 / max(peak, tiny)
            for j in range(z):
                x[j] = y[j] * by
                filtered[t, b, j] = x[j]
            each = (1.0 + largest if t > 0 else 2.0) * by + 1.0
            if FAR_BELOW < peak < FAR_ABOVE:
                product *= peak
                if not FAR_BELOW < product < FAR_ABOVE:
                    total += np.log(product)
                    product = 1.0
            else:
                total += np.log(peak)
            total += top[t, b]
        for t in range(lengths[b], num):
            norm[t, b], top[t, b] = 1.0, log_scale
            for j in range(z):
                emission[t, b, j], filtered[t, b, j] = 1.0, 0.0
        total += _exp(b, log_final, final)
        mass = 0.0
        for j in range(z):
            mass += x[j] * final[b, j]
        log_z[b] = np.log(mass) + np.log(product) + total
        sound[b] = fine and (each + 1.0) * (z * least) <= mass


@compiled
def _noise(
    b0: int, b1: int, weight: Any, log_initial: Any, log_obs: Any, filtered: Any, emission: Any, norm: Any, final: Any,
    lengths: Any, column: Any, loss: Any, least: float, small: Any,
) -> None:  # fmt: skip
    z = emission.shape[2]
    noise, x = np.empty(z, emission.dtype), np.empty(z, emission.dtype)
    largest = 0.0
    for j in range(z):
        largest = max(largest, column[j])
    for b in range(b0, b1):
        for t in range(lengths[b]):
            if t > 0:
                _times(noise, weight, x)
            for j in range(z):
                x[j] = x[j] + loss[j] if t > 0 else 1.0 if log_initial[b, j] > -np.inf else 0.0
            each = (1.0 + largest if t > 0 else 2.0) / norm[t, b] + 1.0
            for j in range(z):
                # An observation of weight zero leaves nothing behind, so nothing can be missing there.
                possible = log_obs[t, b, j] > -np.inf
                noise[j] = x[j] * emission[t, b, j] / norm[t, b] + each if possible else 0.0
        missing, mass = 1.0 * z, 0.0
        for j in range(z):
            missing += noise[j] * final[b, j]
            mass += filtered[lengths[b] - 1, b, j] * final[b, j]
        small[b] = missing * least <= mass


@compiled
def _backward(
    b0: int, b1: int, transposed: Any, filtered: Any, emission: Any, norm: Any, final: Any, lengths: Any,
    weight: Any, tiny: float, low: float, high: float, least: float, posterior: Any, target: Any, trusted: Any,
) -> None:  # fmt: skip
    num, _, z = emission.shape
    y, ahead = np.empty(z, emission.dtype), np.empty(z, emission.dtype)
    for b in range(b0, b1):
        last = lengths[b] - 1
        for j in range(z):
            y[j] = final[b, j]
        fine, gap, known = True, 1.0, 1.0
        for t in range(last + 1, num):
            for j in range(z):
                posterior[t, b, j] = 0.0
                target[t, b, j] = 0.0
        for t in range(last, -1, -1):
            peak, by = 1.0, 1.0
            if t < last:
                peak = 0.0
                if z < FEW:
                    for j in range(z):
                        one = _entry(ahead, transposed, j)
                        y[j] = one
                        if one > peak:
                            peak = one
                else:
                    _times(ahead, transposed, y)
                    for j in range(z):
                        if y[j] > peak:
                            peak = y[j]
                by = 1.0 / max(peak, tiny)
            mass = 0.0
            for j in range(z):
                y[j] *= by
                mass += filtered[t, b, j] * y[j]
                ahead[j] = emission[t, b, j] * y[j]
            # Z is filtered times future at every position: so the ratio of two neighbours' is known without logarithms.
            here = peak * mass
            if t < last:
                gap *= here / known
            fine = fine and low <= gap <= high and here > least
            known = norm[t, b] * mass
            by_state, by_step = weight[b] / mass, weight[b] / known
            for j in range(z):  # last: the posteriors may take the emissions' place
                target[t, b, j] = ahead[j] * by_step
                posterior[t, b, j] = filtered[t, b, j] * y[j] * by_state
        trusted[b] = fine


@compiled
def _ahead(
    b0: int, b1: int, transposed: Any, emission: Any, final: Any, lengths: Any, tiny: float,
    future: Any, target: Any, norm: Any,
) -> None:  # fmt: skip
    num, _, z = emission.shape
    x, y = np.empty(z, emission.dtype), np.empty(z, emission.dtype)
    for b in range(b0, b1):
        for t in range(num - 1, -1, -1):
            norm[t, b] = 1.0
            if t >= lengths[b] - 1:
                for j in range(z):
                    y[j] = final[b, j]
            else:
                _times(x, transposed, y)
                peak = 0.0
                for j in range(z):
                    if y[j] > peak:
                        peak = y[j]
                norm[t, b] = peak
                by = 1.0 / max(peak, tiny)
                for j in range(z):
                    y[j] *= by
            for j in range(z):
                future[t, b, j] = y[j]
                x[j] = emission[t, b, j] * y[j]
                target[t, b, j] = x[j]


@compiled
def _lost(
    b0: int, b1: int, reaches: Any, log_initial: Any, log_obs: Any, filtered: Any, emission: Any, norm: Any,
    lengths: Any, least: float, lost: Any,
) -> None:  # fmt: skip
    z = emission.shape[2]
    before, here = np.empty(z, np.bool_), np.empty(z, np.bool_)
    for b in range(b0, b1):
        lost[b] = False
        for t in range(lengths[b]):
            share = min(norm[t, b], 1.0)
            for j in range(z):
                here[j] = t == 0 and log_initial[b, j] > -np.inf
            if t > 0:
                for i in range(z):
                    if before[i]:
                        for j in range(z):
                            here[j] |= reaches[i, j]
            for j in range(z):
                here[j] &= log_obs[t, b, j] > -np.inf
                if here[j] and not (filtered[t, b, j] * share >= least and emission[t, b, j] >= least):
                    lost[b] = True
                if filtered[t, b, j] != filtered[t, b, j]:  # an overflow, reached or not
                    lost[b] = True
            if not norm[t, b] < np.inf:
                lost[b] = True
            before, here = here, before


@compiled_sums
def _density(t0: int, t1: int, frames: Any, mean: Any, variance: Any, log_obs: Any) -> None:
    z, f = mean.shape
    half, level = np.empty((z, f)), np.empty(z)
    for j in range(z):
        level[j] = 0.0
        for i in range(f):
            half[j, i] = 0.5 / variance[j, i]
            level[j] -= 0.5 * math.log(2.0 * math.pi * variance[j, i])
    for t in range(t0, t1, 2):  # two frames at a time, the last of an odd number twice
        u = min(t + 1, t1 - 1)
        for j in range(z):
            total = other = 0.0
            for i in range(f):
                gap, second = frames[t, i] - mean[j, i], frames[u, i] - mean[j, i]
                total += gap * gap * half[j, i]
                other += second * second * half[j, i]
            log_obs[t, j] = level[j] - total
            log_obs[u, j] = level[j] - other


@compiled_sums
def _moments(weight: Any, frames: Any, sums: Any) -> None:
    (num, z), f = weight.shape, frames.shape[1]
    square = np.empty((4, f))
    for start in range(0, num, 4):  # four frames are added at once, which reads and writes the sums once
        w, x = weight[start : start + 4], frames[start : start + 4]
        for k in range(len(x)):
            for i in range(f):
                square[k, i] = x[k, i] * x[k, i]
        for j in range(z):
            if len(x) < 4:
                for k in range(len(x)):
                    one = w[k, j]
                    for i in range(f):
                        sums[j, i] += one * square[k, i]
                        sums[j, f + i] += one * x[k, i]
                    sums[j, 2 * f] += one
                continue
            first, second, third, fourth = w[0, j], w[1, j], w[2, j], w[3, j]
            for i in range(f):
                sums[j, i] += (first * square[0, i] + second * square[1, i]) + (
                    third * square[2, i] + fourth * square[3, i]
                )
            for i in range(f):
                sums[j, f + i] += (first * x[0, i] + second * x[1, i]) + (third * x[2, i] + fourth * x[3, i])
            sums[j, 2 * f] += (first + second) + (third + fourth)
    for j in range(z):
        sums[j, 2 * f + 1 :] = sums[j, 2 * f]


def log_density(frames: Tensor, mean: Tensor, variance: Tensor) -> Tensor:  # "n f", "z f", "z f" -> "n z"   float64
    """The log-density of each frame under normal distributions of independent features; NaN where a feature is."""
    given = arrays(frames, mean, variance)
    log_obs = np.empty((len(frames), len(mean)))
    share_out(_density, log_obs[None], *given, log_obs)
    return torch.from_numpy(log_obs)


def moments(frames: Tensor, weight: Tensor) -> Tensor:  # "n f", "n z" -> "z 3f"   float64
    """The weighted sums of the squares of all features, of the features, and for each of them of the weights."""
    sums = np.zeros((weight.shape[1], 3 * frames.shape[1]))
    weights, rows = arrays(weight, frames)
    _moments(weights, rows, sums)
    return torch.from_numpy(sums)


def forward(
    weight: Tensor, log_scale: float, log_initial: Tensor, log_obs: Tensor, log_final: Tensor, lengths: Tensor,
    push_loss: Tensor | float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The fields of `recursions.chain.scaled.Forward` up to `sound`, of weights exp(log_scale) weight.

    Filtered messages and norms are 0 and 1 beyond a length.
    """
    matrix, initial, obs, end, ends = arrays(weight, log_initial, log_obs.transpose(0, 1), log_final, lengths)
    emission, filtered = np.empty_like(obs), np.empty_like(obs)
    found = _filter(matrix, log_scale, initial, obs, end, ends, push_loss, emission, filtered)
    return (*map(torch.from_numpy, (filtered, emission, *found)),)  # type: ignore[return-value]


def _filter(
    matrix: Any, log_scale: float, initial: Any, obs: Any, end: Any, ends: Any, push_loss: Tensor | float,
    emission: Any, filtered: Any,
) -> tuple[Any, Any, Any, Any, Any]:  # fmt: skip
    """Write emissions, 1 beyond a length, and filtered messages; norm, log_step, final, log_z, sound.

    `emission` may be `obs` itself.
    """
    info = torch.finfo(torch.from_numpy(obs).dtype)
    _, num, z = obs.shape
    norm, log_step = np.empty(obs.shape[:2], obs.dtype), np.empty(obs.shape[:2])
    rows, out, top = obs.reshape(1, -1, z), emission.reshape(-1, z), log_step.reshape(-1)
    share_out(_shift, rows[..., :1], rows[0], num, log_scale, math.log(info.tiny), out, top)
    torch.from_numpy(emission).exp_()
    final, log_z, sound = np.empty(obs.shape[1:], obs.dtype), np.empty(len(ends)), np.empty(len(ends), np.bool_)
    given = matrix, initial, emission, log_step, end, ends, matrix.sum(0), _vector(push_loss, matrix), log_scale
    least = visible(torch.from_numpy(obs).dtype)
    share_out(_forward, emission, *given, info.tiny, least, filtered, norm, final, log_z, sound)
    return norm, log_step, final, log_z, sound


def noise_is_small(
    weight: Tensor, log_initial: Tensor, log_obs: Tensor, lengths: Tensor, f: Any, push_loss: Tensor | float
) -> Tensor:  # "b"
    """Whether what may be missing, on its way through the steps of the forward pass f, is below the round-off of Z."""
    matrix, *given = arrays(
        weight, log_initial, log_obs.transpose(0, 1), f.filtered, f.emission, f.norm, f.final, lengths
    )
    small = np.empty(len(lengths), np.bool_)
    losses = matrix.sum(0), _vector(push_loss, matrix)
    share_out(_noise, given[2], matrix, *given, *losses, visible(f.norm.dtype), small)
    return torch.from_numpy(small)


def backward(
    weight: Tensor, lengths: Tensor, f: Any, share: Tensor, pull_loss: Tensor | float, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:  # "t b z", "t b z", "b"
    """Posteriors times `share` "b"; the targets of all transitions; and whether both passes agree on Z.

    E[use of z -> y at t] = filtered_t-1[z] weight[z, y] target_t[y]. The passes agree within `tolerance` nats where no
    mass is so small that underflow could be seen in it.
    """
    matrix, filtered, emission, norm, final, ends, each = arrays(
        weight.mT, f.filtered, f.emission, f.norm, f.final, lengths, share
    )
    posterior, target = np.empty_like(filtered), np.empty_like(filtered)
    given = filtered, emission, norm, final, ends, each, pull_loss, tolerance
    trusted = _smooth(matrix, *given, posterior, target)
    return torch.from_numpy(posterior), torch.from_numpy(target), torch.from_numpy(trusted)


def _smooth(
    matrix: Any, filtered: Any, emission: Any, norm: Any, final: Any, ends: Any, share: Any,
    pull_loss: Tensor | float, tolerance: float, posterior: Any, target: Any,
) -> Any:  # fmt: skip
    """Write posteriors and targets, and return which are trusted. `posterior` may be `emission` itself."""
    dtype = torch.from_numpy(norm).dtype
    info, trusted = torch.finfo(dtype), np.empty(len(ends), np.bool_)
    lost = float(2 * matrix.sum() + _vector(pull_loss, matrix).sum())
    # A step loses the entries of its source below the smallest normal number, and what the product loses. The power
    # keeps a message over norm times mass from overflow.
    least = max(lost * visible(dtype), info.tiny**0.75)
    bounds = info.tiny, math.exp(-tolerance), math.exp(tolerance), least
    given = filtered, emission, norm, final, ends, share
    share_out(_backward, posterior, matrix, *given, *bounds, posterior, target, trusted)
    return trusted


def expected_uses(
    weight: Tensor, log_scale: float, log_initial: Tensor, log_obs: Tensor, log_final: Tensor, lengths: Tensor,
    share: Tensor, losses: tuple[Tensor | float, Tensor | float], tolerance: float, room: tuple[Any, Any],
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Posteriors "t b z", the uses "z y" of all transitions, log Z; None where a sequence needs wider arithmetic.

    `forward` and `backward` with `losses` of a push and of a pull, without new tables: log_obs "t b z" becomes the
    posteriors, and `room`, two arrays of its shape, is written over.
    """
    matrix, initial, obs, end, ends, each = arrays(weight, log_initial, log_obs, log_final, lengths, share)
    filtered, target = room
    norm, _, final, log_z, sound = _filter(matrix, log_scale, initial, obs, end, ends, losses[0], obs, filtered)
    if not sound.all():
        return None
    transposed = np.ascontiguousarray(matrix.T)
    if not _smooth(transposed, filtered, obs, norm, final, ends, each, losses[1], tolerance, obs, target).all():
        return None
    z = obs.shape[2]
    source, end_of = (torch.from_numpy(x.reshape(-1, z)) for x in (filtered[:-1], target[1:]))
    return torch.from_numpy(obs), (source.mT @ end_of).mul_(weight), torch.from_numpy(log_z)


def future_messages(weight: Tensor, emission: Tensor, final: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The future messages and their products with the emissions "t b z", and the divisors "t b"."""
    matrix, *given = arrays(weight.mT, emission, final, lengths)
    future, target, norm = np.empty_like(given[0]), np.empty_like(given[0]), np.empty_like(given[0][..., 0])
    share_out(_ahead, future, matrix, *given, torch.finfo(emission.dtype).tiny, future, target, norm)
    return torch.from_numpy(future), torch.from_numpy(target), torch.from_numpy(norm)


def lost_entries(
    reaches: Tensor, log_initial: Tensor, log_obs: Tensor, lengths: Tensor, f: Any, least: float
) -> Tensor:  # "z y" bool -> "b"
    """Whether some state that can be reached has an entry of the forward pass f without all its digits."""
    given = arrays(reaches, log_initial, log_obs.transpose(0, 1), f.filtered, f.emission, f.norm, lengths)
    lost = np.empty(len(lengths), np.bool_)
    share_out(_lost, given[3], *given, least, lost)
    return torch.from_numpy(lost)


def arrays(*tensors: Tensor) -> list[Any]:
    """The numbers of tensors, contiguous, for a compiled loop."""
    return [np.ascontiguousarray(x.detach().numpy()) for x in tensors]


def _vector(loss: Tensor | float, like: Any) -> Any:  # "z"
    return np.full(len(like), loss.numpy() if isinstance(loss, Tensor) else loss, like.dtype)


def share_out(loop: Callable[..., None], like: Any, *given: Any) -> None:
    """Run a loop over all sequences of `like` "t b z", by torch's number of threads where the work is worth it."""
    _, num, num_states = like.shape
    parts = min(torch.get_num_threads(), num, max(1, like.size * num_states // SMALL))
    if parts == 1:
        loop(0, num, *given)
        return
    borders = [num * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        for done in [pool.submit(loop, *ends, *given) for ends in pairwise(borders)]:
            done.result()
