"""Where EM begins: means by k-means, moves and durations by what the frames' nearest means do; labels where there are.

Read next: `kmeans.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankfold.estimators.durations import Kind, started
from rankfold.estimators.expectation import Tables
from rankfold.estimators.kmeans import assign, kmeans
from rankfold.estimators.moves import Moves
from rankfold.estimators.observations import Bernoulli, Categorical, Family, Gaussian, Observed, shares


class Shape(NamedTuple):
    """What is to be started."""

    num_states: int
    rank: int | None
    diagonal: bool  # whether a state may follow itself
    forbidden: Tensor | None  # "z y"
    durations: Kind | None
    longest: int
    censored: bool


def drawn(
    shape: Shape,
    family: Family,
    sequences: Sequence[Tensor],  # "t f" or "t" each
    labels: Sequence[Tensor] | None,
    rng: np.random.Generator,
    *,
    spread_out: bool,
) -> Tables:
    """The tables EM begins with. `spread_out`: means by k-means; else frames drawn at random."""
    frames = torch.cat(list(sequences))
    frames = frames.double() if frames.is_floating_point() else frames
    known = torch.full((len(frames),), -1, device=frames.device) if labels is None else torch.cat(list(labels))
    if isinstance(family, Categorical):
        observed, guess = _symbols(family, shape.num_states, frames, known, rng)
    else:
        observed, guess = _features(family, shape.num_states, frames, known, rng, spread_out)
    if guess is not None:
        guess = torch.where(known >= 0, known, guess)
        pieces = guess.split([len(x) for x in sequences])  # type: ignore[no-untyped-call]
    elif labels is not None:
        pieces = tuple(labels)
    else:
        pieces = ()
    like = next(x for x in observed if x is not None)
    z = shape.num_states
    initial = torch.full((z,), 1 / z, dtype=like.dtype, device=like.device)
    durations = None
    if shape.durations is not None:
        durations = started(shape.durations, shape.longest, _mean_runs(pieces, shape, like))
    return Tables(initial, _moves(shape, pieces, like, rng), observed, durations, shape.censored)


def _features(
    family: Family, num_states: int, frames: Tensor, known: Tensor, rng: np.random.Generator, spread_out: bool
) -> tuple[Observed, Tensor]:  # the nearest mean of every frame "n", -1 for a missing one
    here = ~frames.isnan().all(1)
    seen, known = frames[here], known[here]
    seen = torch.where(seen.isnan(), seen.nanmean(0), seen)  # for the start alone
    gaussian = isinstance(family, Gaussian)
    scale = family.spread.sqrt() if isinstance(family, Gaussian) else torch.ones_like(seen[0])
    scale = torch.where(scale > 0, scale, 1.0)
    x = seen / scale
    labelled = known >= 0
    number = torch.bincount(known[labelled], minlength=num_states).to(x.dtype)[:, None]
    of_labels = x.new_zeros(num_states, x.shape[1]).index_add_(0, known[labelled], x[labelled]) / torch.where(
        number > 0, number, 1
    )
    with_label = number[:, 0] > 0
    num_given = int(with_label.sum())
    if spread_out:
        found = kmeans(x, num_states, rng, given=of_labels[with_label] if num_given else None)
    else:
        drawn = x[torch.from_numpy(rng.choice(len(x), num_states, replace=len(x) < num_states))]
        found = torch.cat([of_labels[with_label], drawn])[:num_states]
    # Labelled states have their own places; the others come in the order in which they were found.
    means = torch.empty_like(found)
    means[with_label], means[~with_label] = found[:num_given], found[num_given:]
    nearest = assign(x, means)
    nearest = torch.where(labelled, known, nearest)
    guess = torch.full((len(frames),), -1, device=frames.device)
    guess[here] = nearest
    mean, number, squares = _moments(seen, nearest, means * scale)
    if not gaussian:
        # As if each state had seen one more frame, of the share of ones in all; smoothing leaves no 0 and no 1.
        s = family.smoothing if isinstance(family, Bernoulli) else 0.0
        overall = (seen.sum(0) + s) / (len(seen) + 2 * s)
        return Observed(probability=(mean * number + overall) / (number + 1)), guess
    assert isinstance(family, Gaussian)
    # As if each state had seen one more frame, of the variance of all.
    variance = (squares + family.spread) / (number + 1) if spread_out else family.spread.expand_as(mean)
    if family.tied:
        variance = (variance * (number + 1)).sum(0) / (number + 1).sum(0)
    return Observed(mean=mean, variance=torch.maximum(variance, family.floor).clone()), guess


def _moments(x: Tensor, nearest: Tensor, otherwise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean "k f", number "k 1" and squared deviations "k f" of each group of frames."""
    number = torch.bincount(nearest, minlength=len(otherwise)).to(x.dtype)[:, None]
    sums = torch.zeros_like(otherwise).index_add_(0, nearest, x)
    mean = torch.where(number > 0, sums / torch.where(number > 0, number, 1), otherwise)
    squares = torch.zeros_like(otherwise).index_add_(0, nearest, (x - mean[nearest]).square())
    return mean, number, squares


def _symbols(
    family: Categorical, num_states: int, ids: Tensor, known: Tensor, rng: np.random.Generator
) -> tuple[Observed, None]:
    seen = ids >= 0
    overall = torch.bincount(ids[seen], minlength=family.num_symbols).double()
    overall = (overall + 1) / (overall + 1).sum()
    noise = torch.from_numpy(0.5 + rng.random((num_states, family.num_symbols))).to(ids.device)
    labelled = seen & (known >= 0)
    at = known[labelled] * family.num_symbols + ids[labelled]
    counts = torch.bincount(at, minlength=num_states * family.num_symbols).double().reshape(num_states, -1)
    table = counts + overall * noise
    return Observed(probability=table / table.sum(1, keepdim=True)), None


def _moves(shape: Shape, pieces: Sequence[Tensor], like: Tensor, rng: np.random.Generator) -> Moves:
    z = shape.num_states
    if shape.rank is not None:
        # Ranks are groups of states that stay among themselves, more or less: EM has to find out which.
        group = torch.from_numpy(rng.permutation(z) % shape.rank)
        near = (group[:, None] == torch.arange(shape.rank)).double()
        factors = [torch.from_numpy(rng.random((z, shape.rank))) + near for _ in range(2)]
        left, right = factors[0] / factors[0].sum(1, keepdim=True), factors[1] / factors[1].sum(0)
        return Moves((left.to(like), right.to(like)), shape.diagonal)
    counts = like.new_ones(z, z)
    for piece in pieces:
        source, target = piece[:-1], piece[1:]
        known = (source >= 0) & (target >= 0)
        counts += torch.bincount(source[known] * z + target[known], minlength=z * z).reshape(z, z).to(like)
    if not pieces:
        counts = counts + torch.from_numpy(rng.random((z, z))).to(like)
    if shape.forbidden is not None:
        counts = counts.masked_fill(shape.forbidden, 0.0)
    return Moves((shares(counts, torch.zeros_like(counts)),), shape.diagonal)


def _mean_runs(pieces: Sequence[Tensor], shape: Shape, like: Tensor) -> Tensor:  # "z"
    """The mean length of runs of a state, but at least a quarter of the longest: nearest means change too often."""
    frames, runs = like.new_zeros(shape.num_states), like.new_zeros(shape.num_states)
    for piece in pieces:
        frames += torch.bincount(piece[piece >= 0], minlength=shape.num_states)
        begins = torch.cat([torch.ones_like(piece[:1], dtype=torch.bool), piece[1:] != piece[:-1]]) & (piece >= 0)
        runs += torch.bincount(piece[begins], minlength=shape.num_states)
    mean = torch.where(runs > 0, frames / torch.where(runs > 0, runs, 1), 0.0)
    shortest, longest = (mean.new_tensor(max(1.0, shape.longest * share)) for share in (0.25, 0.9))
    return torch.minimum(torch.maximum(mean, shortest), longest)
