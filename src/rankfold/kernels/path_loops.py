"""The paths of a chain of few states on a CPU: the best, the k best, and drawn ones, by compiled loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankfold.kernels.chain_loops import arrays, compiled, share_out


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


@compiled
def _draw(
    b0: int, b1: int, log_weight: Any, log_initial: Any, log_ahead: Any, lengths: Any, uniform: Any, path: Any
) -> None:
    z = log_weight.shape[1]
    share = np.empty(z, np.float64)
    for b in range(b0, b1):
        for n in range(len(path)):
            state = 0
            for t in range(lengths[b]):
                top = -np.inf
                for j in range(z):
                    share[j] = log_ahead[t, b, j] + (log_weight[state, j] if t > 0 else log_initial[b, j])
                    top = max(top, share[j])
                if top == -np.inf:
                    break
                total = 0.0
                for j in range(z):
                    if share[j] > -np.inf:
                        total += math.exp(share[j] - top)
                    share[j] = total
                at, state = uniform[n, b, t] * total, 0
                while share[state] <= at:  # below the total, and so at no state without weight
                    state += 1
                path[n, b, t] = state


@compiled
def _choose(values: Any, num: int, heap: Any, chosen: Any) -> int:
    """Write the places of the largest of num values, in order, and return how many there are above -inf.

    As many as the heap has room for; ties go to the smaller place. The heap's smallest is its first.
    """
    k, size = len(heap), 0
    for i in range(num):
        one = values[i]
        if one > -np.inf and size < k:
            here = size
            size += 1
            while here > 0 and heap[(here - 1) // 2] > one:
                heap[here] = heap[(here - 1) // 2]
                here = (here - 1) // 2
            heap[here] = one
        elif size == k and one > heap[0]:
            here, below = 0, 1
            while below < k:
                if below + 1 < k and heap[below + 1] < heap[below]:
                    below += 1
                if heap[below] >= one:
                    break
                heap[here] = heap[below]
                here, below = below, 2 * below + 1
            heap[here] = one
    least, level, found = heap[0] if size == k else -np.inf, 0, 0
    for i in range(size):
        level += heap[i] == least
    for i in range(num):
        if values[i] > least or (values[i] == least and level > 0):
            level -= values[i] == least
            chosen[found] = i
            found += 1
    return found


@compiled
def _k_best(
    b0: int, b1: int, log_weight: Any, log_initial: Any, log_obs: Any, log_final: Any, lengths: Any,
    past: Any, states: Any, parents: Any, path: Any, log_prob: Any,
) -> None:  # fmt: skip
    k, z = len(path), log_obs.shape[2]
    heap, chosen, rest = np.empty(k, np.float64), np.empty(k, np.int64), np.empty(k, np.float64)
    options, links = np.empty(k * z, np.float64), np.empty(k * z, np.float64)
    for b in range(b0, b1):
        last = lengths[b] - 1
        for j in range(z):
            past[b, 0, j] = log_initial[b, j] + log_obs[b, 0, j]
        for t in range(1, last + 1):
            for j in range(z):
                past[b, t, j] = past[b, t - 1, 0] + log_weight[0, j]
            for i in range(1, z):
                for j in range(z):
                    past[b, t, j] = max(past[b, t, j], past[b, t - 1, i] + log_weight[i, j])
            for j in range(z):
                past[b, t, j] += log_obs[b, t, j]
        for j in range(z):
            options[j], links[j] = past[b, last, j] + log_final[b, j], log_final[b, j]
        num = z
        for t in range(last, -1, -1):
            found = _choose(options, num, heap, chosen)
            for one in range(found):
                states[b, t, one], parents[b, t, one] = chosen[one] % z, chosen[one] // z
                rest[one] = links[chosen[one]]
                log_prob[one, b] = options[chosen[one]]
            num = found * z if t > 0 else found
            if t > 0:
                for one in range(found):
                    here = states[b, t, one]
                    decided = rest[one] + log_obs[b, t, here]
                    for i in range(z):
                        links[one * z + i] = log_weight[i, here] + decided
                        options[one * z + i] = past[b, t - 1, i] + links[one * z + i]
        for one in range(num):
            here = one
            for t in range(last + 1):
                path[one, b, t] = states[b, t, here]
                here = parents[b, t, here]


def best_states(
    log_weight: Tensor, log_initial: Tensor, log_obs: Tensor, log_final: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:  # "b t", "b"
    """The best path of each sequence, -1 beyond its length and for one that is impossible, and its log-weight.

    Scores are float64; ties go to the smallest state. Memory: b t z numbers of one byte.
    """
    given = arrays(log_weight, log_initial, log_obs, log_final, lengths)
    came = np.empty(log_obs.shape, np.uint8)
    path, log_prob = np.full(log_obs.shape[:2], -1), np.empty(len(log_obs))
    share_out(_best, given[2].transpose(1, 0, 2), *given, came, path, log_prob)
    return torch.from_numpy(path), torch.from_numpy(log_prob)


def drawn_states(
    log_weight: Tensor, log_initial: Tensor, log_ahead: Tensor, lengths: Tensor, uniform: Tensor
) -> Tensor:  # "n b t"
    """Paths, each state drawn by its weight and by all that follows, `log_ahead` "t b z"; `uniform` numbers "n b t"."""
    given = arrays(log_weight, log_initial, log_ahead, lengths, uniform)
    path = np.full(uniform.shape, -1)
    share_out(_draw, given[2], *given, path)
    return torch.from_numpy(path)


def k_best_states(
    log_weight: Tensor, log_initial: Tensor, log_obs: Tensor, log_final: Tensor, lengths: Tensor, k: int
) -> tuple[Tensor, Tensor]:  # "k b t", "k b"
    """The k best paths of each sequence, in order: float64; -1 and -inf where there are fewer.

    Ties go to the smallest last state, then to the smallest one before it.
    """
    given = arrays(log_weight, log_initial, log_obs, log_final, lengths)
    num, length, _ = log_obs.shape
    past = np.empty(log_obs.shape)
    states, parents = np.empty((num, length, k), np.uint8), np.empty((num, length, k), np.int32)
    path, log_prob = np.full((k, num, length), -1), np.full((k, num), -np.inf)
    share_out(_k_best, past.transpose(1, 0, 2), *given, past, states, parents, path, log_prob)
    score, order = torch.from_numpy(log_prob).sort(dim=0, descending=True, stable=True)
    return torch.from_numpy(path).gather(0, order.unsqueeze(-1).expand(path.shape)), score
