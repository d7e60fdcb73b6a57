"""k-means with a k-means++ start, for the first means of the states.

Source: Arthur, Vassilvitskii 2007. Distances are matrix products. Read next: `start.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Frames that means are looked for in, for each of them: more change the start by less than its own chance does.
FRAMES_EACH = 200


def kmeans(
    x: Tensor, num_means: int, rng: np.random.Generator, *, given: Tensor | None = None, num_rounds: int = 20
) -> Tensor:  # "n f" -> "k f"
    """Means of `num_means` groups of frames; the first ones are those `given` "k f", if any, and stay where they are.

    Cost: n k f multiply-adds for each round, at most `num_rounds`, over at most 200 frames a mean.
    """
    most = max(FRAMES_EACH * num_means, 1000)
    if len(x) > most:
        x = x[torch.from_numpy(np.sort(rng.choice(len(x), most, replace=False)))]
    means = _spread(x, num_means, rng, given)
    num_given = 0 if given is None else len(given)
    before = torch.full((len(x),), -1, device=x.device)
    for _ in range(num_rounds):
        nearest = assign(x, means)
        if bool((nearest == before).all()):
            break
        before = nearest
        sums = torch.zeros_like(means).index_add_(0, nearest, x)
        number = torch.bincount(nearest, minlength=num_means).to(x.dtype)[:, None]
        moved = torch.where(number > 0, sums / torch.where(number > 0, number, 1), means)
        means = torch.cat([means[:num_given], moved[num_given:]])
    return means


def assign(x: Tensor, means: Tensor) -> Tensor:  # "n f", "k f" -> "n"
    """The nearest mean of every frame."""
    return (means.square().sum(1) - 2 * (x @ means.mT)).argmin(1)


def _spread(x: Tensor, num_means: int, rng: np.random.Generator, given: Tensor | None) -> Tensor:
    """The start: each further mean is a frame, drawn by its squared distance to the nearest mean so far."""
    chosen = [] if given is None else list(given.unbind(0))
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
