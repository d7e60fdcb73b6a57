"""Transitions against tables made entry by entry: all states, a kept subset, kept features, edges of a band."""

import pytest
import torch

from rankfold.operators import Banded, LowRank, Sum
from rankfold.params.dynamics.features import FeatureKind, FeatureMap
from rankfold.params.dynamics.free_tables import FreeDense
from rankfold.params.dynamics.transitions import (
    BandedTransition,
    Dynamics,
    LowRankTransition,
    SoftmaxTransition,
    Start,
)
from tests.oracles import tables
from tests.params.build import EXACT, close, seeded, stirred, through

INF = float("inf")
KEPT = {1: [0], 2: [1], 3: [0, 2], 5: [1, 2, 4]}
sizes = pytest.mark.parametrize("num_states", [1, 2, 3, 5])
kept_or_not = pytest.mark.parametrize("dropped", [False, True])


def subset(num_states: int, dropped: bool) -> tuple[torch.Tensor | None, list[int]]:
    """The states that are kept, as the modules and as the oracles take them."""
    keep = KEPT[num_states] if dropped else list(range(num_states))
    return torch.tensor(keep) if dropped else None, keep


def is_distribution(dynamics: Dynamics) -> None:
    rows = dynamics.transition.to_dense()
    one = torch.ones(len(rows), dtype=torch.float64)
    torch.testing.assert_close(rows.sum(1), one, **EXACT)
    torch.testing.assert_close(dynamics.log_initial.exp().sum(), one[0], **EXACT)
    torch.testing.assert_close(dynamics.transition.pull_log(0 * one), 0 * one, **EXACT)


@sizes
@kept_or_not
def test_softmax(num_states: int, dropped: bool) -> None:
    module = stirred(SoftmaxTransition(num_states, 3, 2, generator=seeded()))
    index, keep = subset(num_states, dropped)
    source, target = ([x.tolist()[z] for z in keep] for x in (module.source, module.target))
    start = through(module.start.mlp, module.start.embedding.tolist())
    dynamics = module(index)
    is_distribution(dynamics)
    close(dynamics.log_initial.exp(), tables.softmax([tables.dot(start, v) for v in target]))
    close(dynamics.transition.to_dense(), [tables.softmax([tables.dot(u, v) for v in target]) for u in source])


@sizes
@kept_or_not
def test_free(num_states: int, dropped: bool) -> None:
    module = stirred(FreeDense.draw(num_states, generator=seeded()))
    index, keep = subset(num_states, dropped)
    dynamics = module(index)
    is_distribution(dynamics)
    close(dynamics.log_initial.exp(), tables.softmax([module.log_initial.tolist()[z] for z in keep]))
    logits = module.log_transition.tolist()
    close(dynamics.transition.to_dense(), [tables.softmax([logits[z][y] for y in keep]) for z in keep])


def test_free_begins_at_a_uniform_start() -> None:
    module = FreeDense.draw(5, generator=seeded())
    torch.testing.assert_close(module().log_initial.exp(), torch.full((5,), 0.2))


def test_start() -> None:
    module = stirred(Start(3, 2, generator=seeded()))
    close(module(), through(module.mlp, module.embedding.tolist()))


def log_tables(
    module: LowRankTransition, keep: list[int], features: list[int] | None
) -> tuple[list[float], list[list[float]], list[list[float]]]:
    """log phi of start, sources and targets, by the oracle."""
    source, target = ([x.tolist()[z] for z in keep] for x in (module.source, module.target))
    if isinstance(module.features, FeatureMap):
        projection, kind = module.features.projection.tolist(), module.features.kind
        assert isinstance(module.start, Start)
        start = through(module.start.mlp, module.start.embedding.tolist())
        every = [[tables.log_features(x, projection, kind) for x in xs] for xs in ([start], source, target)]
    else:
        every = [[module.start.embedding.tolist()], source, target]
    if features is not None:
        every = [[[x[r] for r in features] for x in xs] for xs in every]
    return every[0][0], every[1], every[2]


@sizes
@pytest.mark.parametrize("rank", [1, 2, 7])
@pytest.mark.parametrize("kind", ["exp", "positive", "free"])
@kept_or_not
def test_low_rank(num_states: int, rank: int, kind: str, dropped: bool) -> None:
    feature_map: FeatureKind = "positive" if kind == "positive" else "exp"
    module = LowRankTransition(
        num_states, rank, 3, 1, feature_map=feature_map, neural=kind != "free", generator=seeded()
    )
    stirred(module, scale=0.3)
    index, keep = subset(num_states, dropped)
    features = [rank - 1] if dropped else None
    dynamics = module(index, None if features is None else torch.tensor(features))
    is_distribution(dynamics)
    assert isinstance(dynamics.transition, LowRank)
    assert dynamics.transition.rank == (1 if dropped else rank)
    start, source, target = log_tables(module, keep, features)
    close(dynamics.log_initial.exp(), tables.generalised_softmax([start], target)[0])
    close(dynamics.transition.to_dense(), tables.generalised_softmax(source, target))


def test_the_factors_are_distributions() -> None:
    left, right = stirred(LowRankTransition(5, 3, 2, 1, generator=seeded()))().transition.factors()
    torch.testing.assert_close(left.sum(1), torch.ones(5, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(right.sum(0), torch.ones(3, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("neural", [True, False])
@pytest.mark.parametrize(("num_states", "band"), [(1, 0), (1, 3), (2, 1), (3, 0), (3, 1), (3, 9), (5, 2)])
@kept_or_not
def test_banded(num_states: int, band: int, neural: bool, dropped: bool) -> None:
    module = BandedTransition(num_states, 2, 3, 1, band=band, neural=neural, generator=seeded())
    stirred(module, scale=0.4)
    index, keep = subset(num_states, dropped)
    features = [1] if dropped else None
    dynamics = module(index, None if features is None else torch.tensor(features))
    is_distribution(dynamics)  # nothing beyond the edges was counted, or rows would fall short of 1
    start, source, target = log_tables(module.low_rank, list(range(num_states)), features)
    reach = min(band, num_states - 1)
    assert module.log_band.shape == (num_states, 2 * reach + 1)
    rows = tables.generalised_softmax(source, target, module.log_band.tolist(), keep)
    close(dynamics.transition.to_dense(), rows)
    first = [w if y in keep else 0.0 for y, w in enumerate(tables.generalised_softmax([start], target)[0])]
    close(dynamics.log_initial.exp(), tables.normalised(first))
    gone = [y for y in range(num_states) if y not in keep]
    assert (dynamics.log_initial[gone] == -INF).all()
    assert (dynamics.transition.to_dense()[:, gone] == 0).all()
    assert (dynamics.transition.push(torch.ones(num_states, dtype=torch.float64))[gone] == 0).all()


def test_band_and_low_rank_begin_with_about_the_same_mass() -> None:
    module = BandedTransition(63, 16, 8, 1, band=3, generator=seeded())
    transition = module().transition
    assert isinstance(transition, Sum)
    banded = transition.terms[1]
    assert isinstance(banded, Banded)
    share = float(banded.pull(torch.ones(63)).mean().detach())
    assert 0.3 < share < 0.7
    given = BandedTransition(5, 2, 3, 1, band=1, band_init=-2.5, generator=seeded()).log_band.detach()
    bound = (6 / 8) ** 0.5
    assert -2.5 - bound <= float(given.min()) < -2.5 < float(given.max()) <= -2.5 + bound


@pytest.mark.parametrize("dropped", [False, True])
def test_a_band_of_no_weight_is_low_rank(dropped: bool) -> None:
    banded = stirred(BandedTransition(5, 2, 3, 1, band=2, generator=seeded()))
    with torch.no_grad():
        banded.log_band.fill_(-INF)
    index, keep = subset(5, dropped)
    plain = banded.low_rank(index).transition.to_dense()
    torch.testing.assert_close(banded(index).transition.to_dense()[keep][:, keep], plain, **EXACT)


@pytest.mark.parametrize("dropped", [False, True])
def test_gradients_with_masks_are_finite(dropped: bool) -> None:
    module = stirred(BandedTransition(3, 2, 2, 1, band=1, generator=seeded()))
    dynamics = module(subset(3, dropped)[0])
    weight = torch.randn(3, 3, generator=seeded(1), dtype=torch.float64)
    (dynamics.transition.to_dense() * weight).sum().backward()
    dynamics = module(subset(3, dropped)[0])
    dynamics.log_initial[[0, 2]].sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
