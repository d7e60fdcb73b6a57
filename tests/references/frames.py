"""Models of frames the plain way: densities written out, Python loops over frames and durations, autograd through all.

It reads a model's parameters by their names and shares no line with the rooms that are measured. Without dropout.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.references.chains import Tensors, log_features, log_phi, network, start_vector


def reference_frame_log_z(tensors: Tensors, config: Any, batch: Any) -> Tensor:  # "b"
    """The log-density of each sequence, in the dtype of the parameters.

    Cost: t f z for the densities, t z^2 for a chain, t (z^2 + d z) for segments, all held for the backward pass.
    """
    log_obs = _log_obs(tensors, config, batch)
    log_initial, log_transition = _dynamics(tensors, config)
    if not config.has_segments:
        return _chain(log_initial, log_transition, log_obs, batch.lengths)
    return _segments(log_initial, log_transition, _durations(tensors, config), log_obs, batch.lengths)


def _chain(log_initial: Tensor, log_transition: Tensor, log_obs: Tensor, lengths: Tensor) -> Tensor:  # "b"
    transition = log_transition.exp()
    message = log_initial + log_obs[:, 0]
    for t in range(1, log_obs.shape[1]):
        top = message.detach().amax(1, keepdim=True)
        moved = (torch.exp(message - top) @ transition).log() + top + log_obs[:, t]
        message = torch.where((t < lengths)[:, None], moved, message)
    return torch.logsumexp(message, 1)


def _segments(
    log_initial: Tensor, log_transition: Tensor, log_duration: Tensor, log_obs: Tensor, lengths: Tensor
) -> Tensor:  # "b"
    """closed_t = logsum_d opened_t-d+1 + log_duration_d + the observations of d frames."""
    transition = log_transition.exp()
    opened = [log_initial.expand(len(log_obs), -1)]
    last = torch.zeros_like(lengths, dtype=log_obs.dtype)
    for t in range(log_obs.shape[1]):
        seen, terms = torch.zeros_like(log_obs[:, 0]), []
        for d in range(min(log_duration.shape[1], t + 1)):
            seen = seen + log_obs[:, t - d]
            terms.append(opened[t - d] + seen + log_duration[:, d])
        closed = torch.logsumexp(torch.stack(terms), 0)
        last = torch.where(lengths == t + 1, torch.logsumexp(closed, 1), last)
        top = closed.detach().amax(1, keepdim=True)
        opened.append((torch.exp(closed - top) @ transition).log() + top)
    return last


def _log_obs(tensors: Tensors, config: Any, batch: Any) -> Tensor:  # "b t z"
    frames = batch.values.to(next(iter(tensors.values())).dtype)
    if config.observations == "gaussian":
        mean, spread = tensors["observation.mean"], tensors["observation.log_spread"]
        variance = (spread.exp() + config.min_variance).expand_as(mean)
        rows = []
        for m, v in zip(mean, variance, strict=True):  # a state at a time: "b t z f" would be too large
            rows.append(-((frames - m) ** 2 / v + v.log() + math.log(2 * math.pi)).sum(-1) / 2)
        return torch.stack(rows, -1)
    if config.neural:
        states = network(tensors, "observation.mlp", tensors["observation.state"])
        logits = states @ tensors["observation.value"].mT + tensors["observation.bias"]
        off, on = torch.log_softmax(logits.reshape(len(states), 2, -1), 1).unbind(1)
    else:
        logit = tensors["observation.logit"]
        off, on = torch.nn.functional.logsigmoid(-logit), torch.nn.functional.logsigmoid(logit)
    log_obs: Tensor = frames @ on.mT + (1 - frames) @ off.mT
    return log_obs


def _durations(tensors: Tensors, config: Any) -> Tensor:  # "z d"
    if config.durations == "categorical":
        return tensors["duration.logits"].log_softmax(1)
    like = next(iter(tensors.values()))
    count = torch.arange(1, config.max_duration + 1, dtype=like.dtype, device=like.device)
    if config.durations == "poisson":
        log_rate = tensors["duration.log_rate"][:, None]
        log_mass = log_rate * count - torch.lgamma(count + 1) - log_rate.exp()
        return log_mass.log_softmax(1) if config.normalised_durations else log_mass
    shape, odds = tensors["duration.log_shape"].exp()[:, None], tensors["duration.log_odds"][:, None]
    ways = torch.lgamma(count - 1 + shape) - torch.lgamma(shape) - torch.lgamma(count)
    return (ways + (count - 1) * torch.nn.functional.logsigmoid(odds)).log_softmax(1)


def _dynamics(tensors: Tensors, config: Any) -> tuple[Tensor, Tensor]:  # "z", "z z"
    """Start and transition as logarithms, every entry written."""
    log_initial = tensors.get("dynamics.log_initial")
    if not config.neural:
        assert log_initial is not None
        if config.own_rank is None:
            logits = tensors["dynamics.log_transition"]
        else:
            left, right = tensors["dynamics.log_left"].softmax(1), tensors["dynamics.log_right"].softmax(0)
            logits = (left @ right.mT).log()
    elif config.own_rank is None:
        source, target = (tensors[f"dynamics.transition.{name}"] for name in ("source", "target"))
        logits = source @ target.mT
        log_initial = (
            target @ start_vector(tensors, "dynamics.transition.start") if log_initial is None else log_initial
        )
    else:
        log_source, log_target = log_features(tensors, config.feature_map, "dynamics.transition")
        logits = torch.log(torch.exp(log_source) @ torch.exp(log_target).mT)
        if log_initial is None:
            log_start = log_phi(
                tensors, config.feature_map, "dynamics.transition", start_vector(tensors, "dynamics.transition.start")
            )
            log_initial = torch.logsumexp(log_start + log_target, 1)
    if not config.may_repeat:
        logits = logits.masked_fill(torch.eye(len(logits), dtype=torch.bool, device=logits.device), float("-inf"))
    return log_initial.log_softmax(0), logits.log_softmax(1)
