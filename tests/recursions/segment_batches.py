"""Semi-Markov chains to test on: ragged batches with everything that may go wrong in them, and their enumeration.

Frames beyond a length always hold NaN, so that whoever reads one is found out.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankfold import Dense, Operator, SegmentPotentials
from tests.oracles import semi_markov as oracle
from tests.recursions.build import INF, pad_with_nan, seeded

# float64 sums of at most a few thousand terms; at 1000 nats log-weights themselves are rounded at 1e-12.
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def batch(
    z: int,
    d: int,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    spread: float = 2.0,
    zeros: bool = False,
    censored: bool = False,
    final: bool = False,
    transition: Operator | None = None,
    dtype: torch.dtype = torch.float64,
) -> SegmentPotentials:
    """A ragged batch. With `zeros`: no self-transitions, impossible frames, states, starts, ends and durations."""
    g = seeded(seed)
    num = len(lengths)
    weight = torch.rand(z, z, generator=g, dtype=torch.float64) + 0.05
    log_obs = spread * torch.randn(num, max(lengths), z, generator=g, dtype=torch.float64)
    log_duration = torch.randn(z, d, generator=g, dtype=torch.float64)
    log_initial = torch.randn(z, generator=g, dtype=torch.float64)
    log_final = torch.randn(num, z, generator=g, dtype=torch.float64) if final else None
    if zeros:
        weight *= 1 - torch.eye(z, dtype=torch.float64)
        log_obs[torch.rand(log_obs.shape, generator=g) < 0.1] = -INF
        log_duration[torch.rand(log_duration.shape, generator=g) < 0.25] = -INF
        log_initial[int(torch.randint(z, (), generator=g))] = -INF if z > 1 else 0.0
        if log_final is not None:
            log_final[torch.rand(log_final.shape, generator=g) < 0.4] = -INF
    op = Dense(weight.to(dtype)) if transition is None else transition
    return SegmentPotentials(
        log_initial.to(dtype),
        op,
        log_duration.to(dtype),
        pad_with_nan(log_obs, lengths).to(dtype),
        None if log_final is None else log_final.to(dtype),
        torch.tensor(lengths),
        censored,
    )


def as_lists(p: SegmentPotentials, i: int) -> dict[str, Any]:
    """Sequence i as the enumeration takes it."""
    assert p.lengths is not None
    log_initial = p.log_initial if p.log_initial.ndim == 1 else p.log_initial[i]
    return {
        "log_initial": log_initial.detach().double().tolist(),
        "transition": p.transition.to_dense().detach().double().tolist(),
        "log_duration": p.log_duration.detach().double().tolist(),
        "log_obs": p.log_obs[i, : int(p.lengths[i])].detach().double().tolist(),
        "log_final": None if p.log_final is None else p.log_final[i].detach().double().tolist(),
        "censored": p.censored,
    }


def enumerated(p: SegmentPotentials) -> list[dict[oracle.Segmentation, float]]:
    """The log-weights of all segmentations of every sequence."""
    return [oracle.weights(**as_lists(p, i)) for i in range(len(p.log_obs))]


def true_log_z(p: SegmentPotentials) -> Tensor:  # "b"
    return torch.tensor([oracle.log_z(found) for found in enumerated(p)], dtype=torch.float64)


def leaves(p: SegmentPotentials) -> tuple[SegmentPotentials, tuple[Tensor, ...]]:
    """The same potentials of fresh leaves: log_initial, log_duration, log_obs, log_final if any, factors."""
    parts = [p.log_initial, p.log_duration, p.log_obs, *([] if p.log_final is None else [p.log_final])]
    tensors = tuple(x.detach().clone().requires_grad_() for x in (*parts, *p.transition.factors()))
    return rebuilt(p, tensors), tensors


def rebuilt(p: SegmentPotentials, tensors: Sequence[Tensor]) -> SegmentPotentials:
    """The same potentials of other tensors, in the order of `leaves`."""
    some = 3 + (p.log_final is not None)
    return p._replace(
        log_initial=tensors[0],
        log_duration=tensors[1],
        log_obs=tensors[2],
        log_final=None if p.log_final is None else tensors[3],
        transition=p.transition.with_factors(*tensors[some:]),
    )


def doubled(p: SegmentPotentials) -> SegmentPotentials:
    """The same values in float64."""
    return rebuilt(p, [x.detach().double() for x in leaves(p)[1]])


def padded(rows: list[list[list[float]]], num_frames: int) -> Tensor:  # "b t z"
    out = torch.zeros(len(rows), num_frames, len(rows[0][0]), dtype=torch.float64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return out
