"""Initialisation from recordings: means by k-means, transitions and durations from runs of the nearest means.

Labels count where there are some. Of networks only means and variances can be set. k-means: Arthur, Vassilvitskii 2007,
distances by matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rankfold.models.frame_model import FrameModel
from rankfold.params.dynamics.transitions import NeuralDynamics
from rankfold.params.observations.tied import members_in_order
from rankfold.params.prior import Prior

# Frames that means are looked for in, for each of them: more change the start by less than its own chance does.
FRAMES_EACH = 200


def initialise(
    model: FrameModel,
    sequences: Sequence[Tensor],  # "t f" or "t" each
    labels: Sequence[Tensor] | None,  # "t" each, -1: not known
    prior: Prior,
    rng: np.random.Generator,
    *,
    near: bool,
) -> None:
    """Initialise the model's distributions from the frames: means by k-means (`near`), else frames drawn at random."""
    observation, num_states = model.observation, model.config.num_states
    num_groups, index = model.config.num_groups, torch.arange(num_states)
    if model.config.tied_states:
        index = torch.tensor(model.config.tied_states)
    frames = torch.cat(list(sequences))
    frames = frames.double() if frames.is_floating_point() else frames
    known = torch.full((len(frames),), -1, device=frames.device) if labels is None else torch.cat(list(labels))
    runs = () if labels is None else tuple(labels)
    groups = torch.where(known >= 0, index.to(known)[known], -1)  # of the labels
    free = not model.config.neural
    if observation.symbols:
        if free:
            observation.initialise(frames, groups, frames.new_zeros(num_groups, 0), prior, rng, near=near)
    else:
        here = ~frames.isnan().all(1)
        seen, marks = frames[here], groups[here]
        seen = torch.where(seen.isnan(), seen.nanmean(0), seen)  # for the start alone
        places = observation.coordinates(seen)
        spread = torch.as_tensor(prior.spread).to(seen).expand_as(seen[0])
        scale = torch.where(spread > 0, spread.sqrt(), 1.0) if observation.measured else torch.ones_like(places[0])
        means = _means(places / scale, marks, num_groups, rng, near=near)
        nearest = torch.where(marks >= 0, marks, assign(places / scale, means))
        if free or observation.measured:
            observation.initialise(seen, nearest, means * scale, prior, rng, near=near)
        guess = torch.full((len(frames),), -1, device=frames.device)
        guess[here] = nearest
        if model.config.tied_states:
            each = guess.split([len(x) for x in sequences])  # type: ignore[no-untyped-call]
            guess = torch.cat([members_in_order(one, index) for one in each])
        runs = torch.where(known >= 0, known, guess).split([len(x) for x in sequences])  # type: ignore[no-untyped-call]
    if not free or isinstance(model.dynamics, NeuralDynamics):
        return
    model.dynamics.initialise(runs, prior, rng)
    if model.ending is not None:
        share = 0.5 if model.config.has_segments else len(sequences) / len(frames)
        model.ending.fill(end=torch.full((num_states,), share, dtype=torch.float64, device=frames.device))
    if model.duration is not None:
        model.duration.initialise(_mean_runs(runs, num_states, model.config.max_duration, frames.device))


def _means(
    x: Tensor, known: Tensor, num_states: int, rng: np.random.Generator, *, near: bool
) -> Tensor:  # "n f", "n" -> "z f"
    """A mean for each state: that of its labels; the others in the order in which they are found."""
    labelled = known >= 0
    number = torch.bincount(known[labelled], minlength=num_states).to(x.dtype)[:, None]
    sums = x.new_zeros(num_states, x.shape[1]).index_add_(0, known[labelled], x[labelled])
    with_label = number[:, 0] > 0
    own = (sums / torch.where(number > 0, number, 1))[with_label]
    if near:
        found = kmeans(x, num_states, rng, fixed=own if len(own) else None)
    else:
        some = x[torch.from_numpy(rng.choice(len(x), num_states, replace=len(x) < num_states))]
        found = torch.cat([own, some])[:num_states]
    means = torch.empty_like(found)
    means[with_label], means[~with_label] = found[: len(own)], found[len(own) :]
    return means


def _mean_runs(
    runs: Sequence[Tensor], num_states: int, longest: int, device: torch.device
) -> Tensor:  # "t" each -> "z"
    """The mean length of runs of a state, but at least a quarter of the longest: nearest means change too often."""
    frames, number = torch.zeros(2, num_states, dtype=torch.float64, device=device)
    for states in runs:
        frames += torch.bincount(states[states >= 0], minlength=num_states)
        begins = torch.cat([torch.ones_like(states[:1], dtype=torch.bool), states[1:] != states[:-1]]) & (states >= 0)
        number += torch.bincount(states[begins], minlength=num_states)
    mean = torch.where(number > 0, frames / torch.where(number > 0, number, 1), 0.0)
    return mean.clamp(max(1.0, longest * 0.25), max(1.0, longest * 0.9))


def kmeans(
    x: Tensor, num_means: int, rng: np.random.Generator, *, fixed: Tensor | None = None, num_rounds: int = 20
) -> Tensor:  # "n f" -> "k f"
    """Means of `num_means` groups of frames; the first ones are those `fixed` "k f", if any, and stay where they are.

    Cost: n k f multiply-adds for each round, at most `num_rounds`, over at most 200 frames per mean.
    """
    most = max(FRAMES_EACH * num_means, 1000)
    if len(x) > most:
        x = x[torch.from_numpy(np.sort(rng.choice(len(x), most, replace=False)))]
    means = _spread_out(x, num_means, rng, fixed)
    num_fixed = 0 if fixed is None else len(fixed)
    before = torch.full((len(x),), -1, device=x.device)
    for _ in range(num_rounds):
        nearest = assign(x, means)
        if bool((nearest == before).all()):
            break
        before = nearest
        sums = torch.zeros_like(means).index_add_(0, nearest, x)
        number = torch.bincount(nearest, minlength=num_means).to(x.dtype)[:, None]
        moved = torch.where(number > 0, sums / torch.where(number > 0, number, 1), means)
        means = torch.cat([means[:num_fixed], moved[num_fixed:]])
    return means


def assign(x: Tensor, means: Tensor) -> Tensor:  # "n f", "k f" -> "n"
    """The nearest mean of every frame."""
    return (means.square().sum(1) - 2 * (x @ means.mT)).argmin(1)


def _spread_out(x: Tensor, num_means: int, rng: np.random.Generator, fixed: Tensor | None) -> Tensor:
    """k-means++: each further mean is a frame, drawn by its squared distance to the nearest mean so far."""
    chosen = [] if fixed is None else list(fixed.unbind(0))
    if not chosen:
        chosen.append(x[int(rng.integers(len(x)))])
    distance = torch.stack([(x - mean).square().sum(1) for mean in chosen]).amin(0)
    while len(chosen) < num_means:
        total = distance.cumsum(0)
        if float(total[-1]) > 0:
            at = int(torch.searchsorted(total, float(rng.random()) * float(total[-1])).clamp(max=len(x) - 1))
        else:  # fewer different frames than means
            at = int(rng.integers(len(x)))
        chosen.append(x[at])
        distance = torch.minimum(distance, (x - x[at]).square().sum(1))
    return torch.stack(chosen)
