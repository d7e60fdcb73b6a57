"""The M step of each module: the maximum of expected counts, and nothing else moves."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.params.durations import NegativeBinomialDuration, PoissonDuration
from rankfold.params.dynamics.free_tables import FreeDense, FreeLowRank
from rankfold.params.observations import BernoulliObservation, CategoricalObservation, GaussianObservation
from rankfold.params.observations.beta import BetaObservation
from rankfold.params.observations.categorical import FreeEmission
from rankfold.params.observations.exponential import ExponentialObservation, HalfNormalObservation
from rankfold.params.observations.factor_gaussian import FactorGaussianObservation
from rankfold.params.observations.gamma import GammaObservation, _digamma_inverse
from rankfold.params.observations.negative_binomial import NegativeBinomialObservation
from rankfold.params.observations.poisson import PoissonObservation
from rankfold.params.observations.von_mises import VonMisesObservation
from rankfold.params.observations.zero_inflated import (
    ZeroInflatedNegativeBinomialObservation,
    ZeroInflatedPoissonObservation,
)
from rankfold.params.prior import Prior


def test_gaussian() -> None:
    """Means and variances of weighted frames, feature by feature, where some are missing."""
    rng = np.random.default_rng(0)
    frames = rng.standard_normal((9, 2)) + 50.0
    frames[2, 1] = np.nan
    weight = rng.random((9, 2))
    x = torch.from_numpy(frames)
    module = GaussianObservation(torch.zeros(2, 2).double(), torch.zeros(2, 2).double())
    prior = Prior(centre=x.nanmean(0))
    counts = module.count(module.statistics(x, prior), torch.from_numpy(weight))
    module.maximise(counts, prior)
    found = module.variance.detach().clone()
    for z, f in itertools.product(range(2), range(2)):
        there = ~np.isnan(frames[:, f])
        mean = np.average(frames[there, f], weights=weight[there, z])
        assert float(module.mean.detach()[z, f]) == pytest.approx(mean)
        spread = np.average((frames[there, f] - mean) ** 2, weights=weight[there, z])
        assert float(found[z, f]) == pytest.approx(spread)
    module.maximise(counts, prior._replace(spread=torch.tensor([2.0, 3.0]).double(), variance_frames=4.0))
    total = float(weight[:, 0].sum())
    assert float(module.variance.detach()[0, 0]) == pytest.approx((total * float(found[0, 0]) + 4 * 2.0) / (total + 4))


def test_a_shared_variance_has_seen_the_prior_once() -> None:
    module = GaussianObservation(torch.zeros(3, 1).double(), torch.zeros(1).double())
    x, prior = torch.tensor([[-1.0], [1.0]]).double(), Prior(spread=5.0, variance_frames=6.0)
    module.maximise(module.count(module.statistics(x, prior), torch.tensor([[1.0, 0, 0]] * 2).double()), prior)
    assert float(module.variance.detach()) == pytest.approx((2 + 6 * 5) / (2 + 6))
    best = float((module.log_prior(prior) + module.log_obs(x[None])[0, :, 0].sum()).detach())
    for step in (-0.01, 0.01):
        near = GaussianObservation(module.mean.detach(), module.log_spread.detach() + step)
        assert float((near.log_prior(prior) + near.log_obs(x[None])[0, :, 0].sum()).detach()) < best


def test_certain_bernoullis_are_exact() -> None:
    """A probability of 0 or 1 gives -inf where it is contradicted, and nothing where the feature is missing."""
    module = BernoulliObservation(torch.zeros(2, 2).double())
    module.maximise(torch.tensor([[0.0, 3.0, 2.0, 0.0], [2.0, 1.0, 2.0, 3.0]]).double(), Prior())
    frames = torch.tensor([[[0.0, 1.0], [1.0, 1.0], [np.nan, 0.0], [np.nan] * 2]]).double()
    expected = torch.tensor(
        [[0.0, np.log(0.125)], [-np.inf, np.log(0.125)], [-np.inf, np.log(0.75)], [0.0, 0.0]], dtype=torch.float64
    )
    torch.testing.assert_close(module.log_obs(frames)[0], expected)


def test_states_without_a_frame_keep_their_own() -> None:
    nothing = torch.zeros(1, 4).double()
    bernoulli = BernoulliObservation(torch.tensor([[0.5, -1.0]]).double())
    bernoulli.maximise(nothing, Prior())
    assert bernoulli.logit.tolist() == [[0.5, -1.0]]
    symbols = CategoricalObservation(FreeEmission(torch.tensor([[0.0, -1.0, 0.5, 0.25]]).double()))
    symbols.maximise(nothing, Prior())
    assert symbols.emission.log_emission.tolist() == [[0.0, -1.0, 0.5, 0.25]]
    dense = FreeDense(torch.zeros(2).double(), torch.tensor([[0.0, 1.0], [0.5, 0.0]]).double())
    dense.maximise((torch.tensor([3.0, 1.0]).double(), torch.tensor([[0.0, 0.0], [1.0, 3.0]]).double()), Prior())
    assert dense.log_transition[0].tolist() == [0.0, 1.0]
    torch.testing.assert_close(dense.log_transition.detach()[1].exp(), torch.tensor([0.25, 0.75]).double())
    torch.testing.assert_close(dense.log_initial.detach().exp(), torch.tensor([0.75, 0.25]).double())


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("rank", [None, 2])
def test_priors_are_those_of_the_tables(rank: int | None, repeats: bool) -> None:
    """smoothing times the logs of all that may be used; transitions without weight are no part of it."""
    g = torch.Generator().manual_seed(0)
    start, shape = torch.zeros(3).double(), (3, 3 if rank is None else rank)
    logits = [torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2)]
    kind: Any = FreeDense(start, logits[0], self_transitions=repeats)
    if rank is not None:
        kind = FreeLowRank(start, *logits, self_transitions=repeats)
    logs = [table.value.log() for table in kind.tables().values()]
    total = sum(float(x[x > -np.inf].sum()) for x in logs)
    assert float(kind.log_prior(Prior(0.3)).detach()) == pytest.approx(0.3 * total, rel=1e-12)
    assert float(kind.log_prior(Prior())) == 0.0


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial"])
def test_durations(kind: Any) -> None:
    """No rate nearby is better; counts of the shortest or of the longest alone end at a finite rate."""
    counts = torch.tensor([[5.0, 3.0, 1.0, 0.5], [9.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0], [0.0] * 4]).double()
    rate = torch.full((4,), -0.5).double()
    module: Any = PoissonDuration(rate.clone(), 4)
    if kind == "negative_binomial":
        module = NegativeBinomialDuration(torch.zeros(4).double(), rate.clone(), 4)
    before, was = module().detach(), module.tables()["log_rate"].value.clone()
    module.maximise(counts, Prior())
    table, found = module().detach(), module.tables()["log_rate"].value.clone()
    assert bool(found.isfinite().all())
    value = (counts * table).sum(1)
    assert bool((value >= (counts * before).sum(1) - 1e-12).all())
    assert float(found[3]) == float(was[3])
    for step in (-1e-3, 1e-3):
        module.fill(log_rate=found + step)
        assert float((counts * module().detach()).sum(1)[0]) < float(value[0])
    torch.testing.assert_close(table.exp().sum(1), torch.ones(4).double())


def test_inverse_of_digamma_at_every_size() -> None:
    shape = torch.logspace(-90, 14, 209, dtype=torch.float64)
    torch.testing.assert_close(_digamma_inverse(torch.digamma(shape)), shape, rtol=1e-13, atol=0)


def test_equal_variances_leave_factors_without_loadings() -> None:
    """Where no direction stands out, as in 0.1 times the identity, rounding makes no NaN of a loading."""
    module = FactorGaussianObservation(
        torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 4, 1, dtype=torch.float64)
    )
    module.fill_covariance(0.1 * torch.eye(4, dtype=torch.float64)[None])
    assert module.loading.abs().max() == 0
    torch.testing.assert_close(module.noise, torch.full((1, 4), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("fixed", [(), ("shape",), ("rate",)])
def test_gamma(fixed: tuple[str, ...]) -> None:
    """No shape or rate nearby is better; what is fixed stays."""
    x = torch.from_numpy(np.random.default_rng(0).gamma(3.0, 0.5, (40, 1)))
    module = GammaObservation(torch.zeros(1, 1).double(), torch.zeros(1, 1).double())
    prior = Prior(fixed=frozenset(fixed))
    module.maximise(module.count(module.statistics(x, prior), torch.ones(40, 1)), prior)
    best = float(module.log_obs(x[None]).detach().sum())
    found = {name: table.value.clone() for name, table in module.tables().items()}
    for name in ("shape", "rate"):
        if name in fixed:
            assert float(found[name]) == 1.0
            continue
        for factor in (0.99, 1.01):
            module.fill(**{**found, name: found[name] * factor})
            assert float(module.log_obs(x[None]).detach().sum()) < best


@pytest.mark.parametrize("fixed", [(), ("mean",), ("concentration",)])
@pytest.mark.parametrize("concentration", [0.01, 0.5, 3.0, 1e3, 1e6])
def test_angles(fixed: tuple[str, ...], concentration: float) -> None:
    """At the maximum, with a prior, the derivatives are 0 at any size, also across pi; what is fixed stays."""
    x = torch.from_numpy(np.random.default_rng(0).vonmises(3.1, concentration, (60, 1)))
    module = VonMisesObservation(torch.tensor([[3.1]]).double(), torch.tensor([[0.75]]).double())
    prior = Prior(smoothing=0.5, fixed=frozenset(fixed))
    module.maximise(module.count(module.statistics(x, prior), torch.ones(60, 1)), prior)
    value = module.log_obs(x[None]).sum() + module.log_prior(prior)
    slopes = torch.autograd.grad(value, [module.mean, module.log_concentration])
    for name, slope, own, was in zip(
        ("mean", "concentration"), slopes, module.parameters(), (torch.tensor(3.1), 0.75), strict=True
    ):
        if name in fixed:
            assert float(own.detach()) == float(was)
        elif float(own.detach()) > -math.inf:
            assert abs(float(slope)) < 1e-8 * (1 + concentration)


def test_uniform_angles_have_no_direction() -> None:
    """Points that cancel give concentration 0, whose log-weights and gradients are finite."""
    x = torch.tensor([[0.0], [math.pi]]).double()
    module = VonMisesObservation(torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    module.fill(concentration=torch.zeros(1, 1).double())
    value = module.log_obs(x[None]).sum()
    assert value.detach().item() == pytest.approx(-2 * math.log(2 * math.pi), rel=1e-15)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(value, list(module.parameters())))
    with torch.no_grad():
        drawn = module().sample(torch.zeros(4000, dtype=torch.long), torch.Generator().manual_seed(0))
    assert float(drawn.cos().mean().hypot(drawn.sin().mean())) < 0.06


@pytest.mark.parametrize("concentration", [1e-8, 0.3, 4.0, 1e4])
def test_drawn_angles(concentration: float) -> None:
    """The mean of cos(x - m) is I1 / I0."""
    module = VonMisesObservation(torch.full((1, 1), 3.0).double(), torch.zeros(1, 1).double())
    module.fill(concentration=torch.full((1, 1), concentration).double())
    with torch.no_grad():
        drawn = module().sample(torch.zeros(40000, dtype=torch.long), torch.Generator().manual_seed(0))
    assert float(drawn.abs().max()) <= math.pi
    k = torch.tensor(concentration).double()
    expected = float(torch.special.i1e(k) / torch.special.i0e(k))
    near = (drawn - 3.0).cos()
    assert float(near.mean()) == pytest.approx(expected, abs=4 * float(near.std()) / 200)
    assert abs(float((drawn - 3.0).sin().mean())) < 4 * float((drawn - 3.0).sin().std()) / 200


@pytest.mark.parametrize("fixed", [(), ("alpha",), ("beta",)])
def test_beta(fixed: tuple[str, ...]) -> None:
    """At the maximum the derivatives are 0, from any start and at any size; what is fixed stays."""
    rng = np.random.default_rng(0)
    for alpha, beta, start in ((3.0, 0.5, 1.0), (400.0, 900.0, 0.01), (0.05, 0.08, 50.0), (2.0, 3.0, 1.0)):
        x = torch.from_numpy(rng.beta(alpha, beta, (60, 1)).clip(1e-12, 1 - 1e-12))
        first = torch.full((1, 1), start).double().log()
        module = BetaObservation(first.clone(), first.clone())
        prior = Prior(smoothing=0.5 if start == 50.0 else 0.0, fixed=frozenset(fixed))
        module.maximise(module.count(module.statistics(x, prior), torch.ones(60, 1)), prior)
        (module.log_obs(x[None]).sum() + module.log_prior(prior)).backward()
        for name, own in (("alpha", module.log_alpha), ("beta", module.log_beta)):
            if name in fixed:
                assert float(own.detach()) == float(first)
            else:
                assert own.grad is not None
                assert abs(float(own.grad)) < 1e-6 * float(own.detach().exp() + 1) * 60


def test_samples_of_extreme_shapes_stay_between_0_and_1() -> None:
    module = BetaObservation(torch.full((1, 1), -6.0), torch.full((1, 1), -7.0))
    x = module().sample(torch.zeros(2000, dtype=torch.int64), torch.Generator().manual_seed(0))
    assert bool(((x > 0) & (x < 1)).all())
    assert abs(float(x.detach().mean()) - 1 / (1 + np.exp(-1))) < 0.05


@pytest.mark.parametrize("kind", [ExponentialObservation, HalfNormalObservation])
def test_numbers_that_fall_off_from_zero(kind: Any) -> None:
    """The rate is 1 / mean, the deviation the root of the mean square; at the maximum with a prior no slope is left."""
    x = torch.from_numpy(np.random.default_rng(0).exponential(3.0, (40, 1)))
    x[0] = 0.0
    module = kind(torch.zeros(1, 1).double())
    counts = module.count(module.statistics(x, Prior()), torch.ones(40, 1))
    module.maximise(counts, Prior())
    expected = {"rate": 1 / float(x.mean()), "deviation": float(x.square().mean().sqrt())}
    for name, table in module.tables().items():
        assert float(table.value) == pytest.approx(expected[name], rel=1e-12)
    prior = Prior(smoothing=3.0, centre=x.mean(0) + 1, spread=x.var(0))
    module.maximise(counts, prior)
    (module.log_obs(x[None]).sum() + module.log_prior(prior)).backward()
    assert abs(float(module.log_mean.grad)) < 1e-12
    found = float(module.log_mean.detach())
    module.maximise(2 * counts, Prior(fixed=frozenset(module.tables())))
    assert float(module.log_mean.detach()) == found


def climbed(module: Any, x: torch.Tensor, steps: int) -> list[float]:
    """The log-likelihood before each step of EM of one state."""
    found = []
    for _ in range(steps):
        found.append(float(module.log_obs(x[None]).detach().sum()))
        module.maximise(module.count(module.statistics(x, Prior()), torch.ones(len(x), 1)), Prior())
    return found


@pytest.mark.parametrize(
    "module",
    [
        NegativeBinomialObservation(torch.zeros(1, 1).double(), torch.zeros(1, 1).double()),
        ZeroInflatedPoissonObservation(torch.zeros(1, 1).double(), PoissonObservation(torch.zeros(1, 1).double())),
        ZeroInflatedNegativeBinomialObservation(
            torch.zeros(1, 1).double(),
            NegativeBinomialObservation(torch.zeros(1, 1).double(), torch.zeros(1, 1).double()),
        ),
    ],
    ids=lambda module: type(module).__name__,
)
def test_counts_with_hidden_parts(module: Any) -> None:
    """Steps of EM never lose, and end where no slope is left."""
    rng = np.random.default_rng(1)
    counts = rng.negative_binomial(3, 0.4, (400, 1)) * (rng.random((400, 1)) < 0.6)
    x = torch.from_numpy(counts).double()
    history = np.array(climbed(module, x, 1500))
    assert (np.diff(history) >= -1e-10).all()
    module.log_obs(x[None]).sum().backward()
    slopes = [float(p.grad.abs().max()) for p in module.parameters() if p.grad is not None]
    assert len(slopes) == len(list(module.parameters()))
    assert max(slopes) < 1e-3
