"""A map of states in two dimensions, from their emissions and the emissions they lead to.

Features are exact up to a random projection; on the map near states attract, and random pairs repel each other.
`trustworthiness` says how far neighbours on the map are neighbours in the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

SKETCH = 96  # dimensions of the projected emissions
NEAR, FAR = 12, 16  # neighbours of each state, and random others of each step
REPEL, EARLY = 50.0, 4.0  # of 20 to 100 and 1 to 4 the best trustworthiness, 0.94, at 16,384 states (2026-11-17)
STEPS = 600
LEADS = 0.5  # weight of the emissions that follow, next to a state's own
ROWS = 1024  # of a table of distances at a time
SAMPLE = 4096  # states whose neighbours are checked, where there are more
KINDS = 12


class StateMap(NamedTuple):
    """Places of states, their groups and nearest others."""

    place: Tensor  # "z 2"   within 0..1
    kind: Tensor  # "z"      0..KINDS-1: regions of the map (k-means)
    nearest: Tensor  # "z k"   the nearest states in the features, the nearest first
    trust: float  # trustworthiness at k
    num_checked: int  # states it is the mean of
    k: int  # 10, fewer with few states


def features(emit: Tensor, lead: Tensor) -> Tensor:  # "z d", "z d" -> "z 2d"
    """Both sketches, centred and scaled to mean square length 1 and LEADS^2."""
    return torch.cat([_scaled(emit), LEADS * _scaled(lead)], 1)


def sketch_matrix(num_words: int, *, seed: int = 0) -> Tensor:  # "v d"
    """Random directions: products with them keep the distances of square-root emissions (Johnson, Lindenstrauss)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_words, SKETCH, generator=generator) / math.sqrt(SKETCH)


def state_map(feature: Tensor, *, seed: int = 0, say: Callable[[str], None] = lambda line: None) -> StateMap:  # "z d"
    """The map of states with these features, the same for the same seed. Cost: O(z^2 d), never z x z in memory."""
    num = len(feature)
    generator = torch.Generator().manual_seed(seed)
    nearest = _nearest(feature, min(NEAR, num - 1))
    say("map: neighbours found")
    place = _embed(feature, nearest[:, : max(2, num // 8)], generator)  # few states: not all are near
    say("map: states placed")
    trust = trustworthiness(feature, place)
    return StateMap(_to_square(place), _kinds(place, generator), nearest, trust, min(num, SAMPLE), _near(num))


def trustworthiness(feature: Tensor, place: Tensor, k: int = 10, *, seed: int = 0) -> float:  # "z d", "z 2"
    """1 minus the normalised sum of excess ranks, in the features, of the k nearest states on the map; 1 is perfect.

        T = 1 - 2 / (n k (2 n - 3 k - 1))  sum_i  sum_{j near i on the map}  max(0, rank_i(j) - k)

    The mean over all states i, or over SAMPLE random ones where there are more; neighbours and ranks are always among
    all states. With few states k is at most (n - 1) / 2. Source: Venna, Kaski 2001.
    """
    num = len(feature)
    k = _near(num, k)
    if k < 1:
        return 1.0
    checked = torch.randperm(num, generator=torch.Generator().manual_seed(seed))[:SAMPLE]
    excess = 0.0
    for rows, distance in _distances(feature, checked):
        on_map = torch.cdist(place[rows], place)
        on_map[torch.arange(len(rows)), rows] = float("inf")
        chosen = distance.gather(1, on_map.topk(k, largest=False).indices)
        for column in chosen.T:  # rank 1: the nearest
            rank = 1 + (distance < column[:, None]).count_nonzero(1)
            excess += float(torch.relu((rank - k).double()).sum())
    return 1 - 2 * excess / (len(checked) * k * (2 * num - 3 * k - 1))


def _near(num: int, k: int = 10) -> int:
    return min(k, (num - 1) // 2)


def _scaled(x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    size = centred.square().sum(1).mean().sqrt()
    return centred / size if size > 0 else centred


def _distances(feature: Tensor, states: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of some states, and their squared distances to all; infinite to themselves."""
    square = feature.square().sum(1)
    for rows in torch.split(states, ROWS):
        distance = square[rows, None] + square - 2 * feature[rows] @ feature.T
        distance[torch.arange(len(rows)), rows] = float("inf")
        yield rows, distance


def _nearest(feature: Tensor, k: int) -> Tensor:  # "z k"
    if k < 1:
        return torch.zeros(len(feature), 0, dtype=torch.long)
    return torch.cat(
        [distance.topk(k, largest=False).indices for _, distance in _distances(feature, torch.arange(len(feature)))]
    )


def _embed(feature: Tensor, nearest: Tensor, generator: torch.Generator) -> Tensor:  # "z 2"
    """Places where near states attract each other and random pairs repel each other, from the first two components.

        sum_{j near i}  log(1 + d_ij)  +  REPEL / 2  sum_{j random}  1 / (1 + d_ij)            d_ij = |y_i - y_j|^2

    minimised by Adam, whose steps shrink from the middle on; attraction is EARLY times as strong at first. Random pairs
    are drawn anew for every step. Source: the forces are those of t-SNE with sampled repulsion (Boehm, Berens, Kobak
    2022, on the spectrum between UMAP and t-SNE).
    """
    num = len(feature)
    y = _first_plane(feature).T.contiguous()  # "2 z"
    if num < 4:
        return y.T
    y = y / y.std() if float(y.std()) > 0 else y
    near = nearest.flatten()
    mean, square = torch.zeros_like(y), torch.zeros_like(y)
    for step in range(1, STEPS + 1):
        done = step / STEPS
        difference = y[:, :, None] - y[:, near].view(2, num, -1)
        pull = difference / (1 + difference.square().sum(0)) * (EARLY if done < 0.3 else 1.0)
        gradient = pull.sum(2)
        for axis in range(2):
            gradient[axis].index_add_(0, near, -pull[axis].flatten())
        others = torch.randint(num, (num * FAR,), generator=generator)
        difference = y[:, :, None] - y[:, others].view(2, num, -1)
        gradient -= REPEL * (difference / (1 + difference.square().sum(0)).square()).sum(2)
        mean = mean + 0.1 * (gradient - mean)
        square = square + 0.001 * (gradient.square() - square)
        size = (square / (1 - math.pow(0.999, step))).sqrt()
        rate = 1.0 if done < 0.5 else 2 * (1 - done)
        y = y - rate * torch.where(size > 0, mean / (1 - math.pow(0.9, step)) / size, 0.0)
    return y.T


def _first_plane(feature: Tensor) -> Tensor:  # "z 2"
    """The two first principal components; their signs are set by the largest entry, so that runs agree."""
    centred = (feature - feature.mean(0)).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    plane = vectors[:, -2:].flip(1)
    if plane.shape[1] < 2:
        plane = torch.cat([plane, torch.zeros(len(plane), 2 - plane.shape[1], dtype=plane.dtype)], 1)
    sign = plane.gather(0, plane.abs().argmax(0, keepdim=True)).sign()
    turned: Tensor = centred @ (plane * torch.where(sign == 0, 1.0, sign))
    return turned.float()


def _to_square(place: Tensor) -> Tensor:
    """The places within 0..1, one scale for both axes."""
    low, high = place.min(0).values, place.max(0).values
    size = float((high - low).max()) or 1.0
    within: Tensor = (place - (low + high) / 2) / size + 0.5
    return within


def _kinds(place: Tensor, generator: torch.Generator) -> Tensor:  # "z"
    """The groups of k-means, from starts that are drawn far apart."""
    num = len(place)
    centres = place[torch.randint(num, (1,), generator=generator)]
    while len(centres) < min(KINDS, num):
        far = torch.cdist(place, centres).min(1).values.square()
        if float(far.sum()) == 0:
            break
        centres = torch.cat([centres, place[torch.multinomial(far, 1, generator=generator)]])
    for _ in range(25):
        kind = torch.cdist(place, centres).argmin(1)
        size = torch.bincount(kind, minlength=len(centres))[:, None]
        total = torch.zeros_like(centres).index_add_(0, kind, place)
        centres = torch.where(size > 0, total / size.maximum(torch.ones_like(size)), centres)
    return kind
