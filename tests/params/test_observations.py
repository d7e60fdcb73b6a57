"""Densities and masses as products against plain Python; durations; what a float32 keeps."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from rankfold import DomainError
from rankfold.kernels import dispatch
from rankfold.params import durations
from rankfold.params.observations import bernoulli, gaussian
from rankfold.params.observations.bernoulli import BernoulliObservation
from rankfold.params.observations.gaussian import GaussianObservation
from rankfold.params.prior import Prior
from tests.oracles import frames as oracle
from tests.params.build import close, seeded


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return spread * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def with_holes(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 1] = math.nan
    x[1, 0, 2] = math.nan
    return x


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_gaussian(tied: bool, spread: float) -> None:
    frames, mean = with_holes(drawn(2, 3, 5, spread=spread)), drawn(4, 5, seed=1, spread=spread)
    variance = torch.rand(5 if tied else (4, 5), generator=seeded(2), dtype=torch.float64) + 0.1
    rows = variance.expand(4, 5).tolist()
    want = [
        [[oracle.gaussian(x, m, v) for m, v in zip(mean.tolist(), rows, strict=True)] for x in sequence]
        for sequence in frames.tolist()
    ]
    found = gaussian.log_density(frames, mean, variance)
    torch.testing.assert_close(found, torch.tensor(want, dtype=torch.float64), rtol=1e-11, atol=1e-11)
    assert found[0, 1].tolist() == [0.0] * 4


class Largest(TorchDispatchMode):
    """The most numbers any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            self.most = max(self.most, x.numel() if isinstance(x, Tensor) else 0)
        return out


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", ["z f", "f", "z 1"])
def test_the_steps_of_em_see_the_density(rows: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product with the statistics is the density; where nothing is missing so is one without ones, and the loop."""
    if compiled:
        pytest.importorskip("numba", reason="the extra `fast` is not installed")
    else:
        monkeypatch.setattr(dispatch, "has_numba", lambda: False)
    frames, mean = drawn(2, 3, 5) + 7, drawn(4, 5, seed=1) + 7
    shape = {"z f": (4, 5), "f": (5,), "z 1": (4, 1)}[rows]
    spread = torch.rand(shape, generator=seeded(2), dtype=torch.float64) - 0.5
    kind = GaussianObservation(mean, spread, 0.1, spherical=rows == "z 1")
    for x in (frames, with_holes(frames)):
        statistics = kind.sequence_statistics(x, Prior(centre=7.5))
        assert statistics.shape[1] == (15 if x is not frames else 5 if compiled else 11)
        found = kind.log_obs_of(statistics, Prior(centre=7.5))
        states = list(zip(mean.tolist(), kind.variance.detach().expand(4, 5).tolist(), strict=True))
        want = [[[oracle.gaussian(y, m, v) for m, v in states] for y in sequence] for sequence in x.tolist()]
        close(found.reshape(3, 2, 4).transpose(0, 1), want)
        with torch.no_grad():
            close(kind.log_obs(x), want)
        posterior = torch.rand(6, 4, generator=seeded(3), dtype=torch.float64)
        each = kind.statistics(x.transpose(0, 1).flatten(0, 1), Prior(centre=7.5))
        close(kind.count(statistics, posterior), (posterior.mT @ each).tolist())


@pytest.mark.parametrize("kind", ["gaussian", "tied", "bernoulli"])
def test_no_tensor_of_frames_states_and_features(kind: str) -> None:
    frames, mean = drawn(2, 40, 30), drawn(50, 30).requires_grad_()
    with Largest() as seen:
        if kind == "bernoulli":
            out = bernoulli.log_mass((frames > 0).double(), mean)
        else:
            variance = torch.ones(30 if kind == "tied" else (50, 30), dtype=torch.float64, requires_grad=True)
            out = gaussian.log_density(frames, mean, variance)
        out.sum().backward()
    assert seen.most <= 2 * 40 * 3 * 30  # frames, their squares and whether they are there


@pytest.mark.parametrize("far", [0.0, 1e3, 1e5])
def test_float32_keeps_its_digits_far_from_zero(far: float) -> None:
    """Of numbers that float32 holds exactly; products around 0 in float32 would have errors of about far^2 1e-7."""
    frames, mean = ((x * 16).round() / 16 for x in (drawn(1, 50, 12), drawn(7, 12, seed=1)))
    variance = torch.full((7, 12), 0.25, dtype=torch.float64)
    want = gaussian.log_density(frames, mean, variance)
    found = gaussian.log_density(*((x + far).float() for x in (frames, mean)), variance.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tied", [False, True])
def test_gaussian_gradients(tied: bool) -> None:
    frames = with_holes(drawn(2, 3, 4))
    mean = drawn(2, 4, seed=1).requires_grad_()
    variance = (torch.rand(4 if tied else (2, 4), generator=seeded(2), dtype=torch.float64) + 0.5).requires_grad_()
    inputs = (mean, variance)
    assert gradcheck(lambda m, v: gaussian.log_density(frames, m, v), inputs)
    assert gradgradcheck(lambda m, v: gaussian.log_density(frames, m, v), inputs)


@pytest.mark.parametrize("certain", [False, True])
def test_bernoulli(certain: bool) -> None:
    frames = with_holes((drawn(2, 3, 5) > 0).double())
    logit = drawn(4, 5, seed=1, spread=3.0)
    if certain:
        logit[0, 0], logit[1, 0], logit[2, 4] = math.inf, -math.inf, -math.inf
    found = bernoulli.log_mass(frames, logit)
    rows = torch.sigmoid(logit).tolist()
    want = torch.tensor([[[oracle.bernoulli(x, p) for p in rows] for x in sequence] for sequence in frames.tolist()])
    assert bool((want == -math.inf).any()) == certain
    torch.testing.assert_close(found, want.double(), rtol=1e-6, atol=1e-6)
    assert torch.equal(found == -math.inf, want == -math.inf)


def test_rare_keys_keep_their_digits() -> None:
    """log(1 - p) of log-odds -40 is -4e-18, and 88 of them are 88 times that."""
    found = bernoulli.log_mass(torch.zeros(1, 1, 88), torch.full((1, 88), -40.0))
    assert found.item() == pytest.approx(-88 * math.exp(-40), rel=1e-5)


def test_bernoulli_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a graph is captured the certain ones are always looked for, by the second product."""
    frames, logit = with_holes((drawn(2, 3, 5) > 0).double()), drawn(4, 5, seed=1)
    seen = bernoulli.log_mass(frames, logit)
    monkeypatch.setattr(bernoulli, "may_look", lambda _: False)
    torch.testing.assert_close(bernoulli.log_mass(frames, logit), seen, rtol=1e-14, atol=0)
    logit[0] = math.inf
    assert bool((bernoulli.log_mass(frames, logit)[0, 0, 0] == -math.inf).item())


def test_bernoulli_gradients() -> None:
    frames = with_holes((drawn(2, 3, 4) > 0).double())
    logit = drawn(2, 4, seed=1).requires_grad_()
    assert gradcheck(lambda x: bernoulli.log_mass(frames, x), (logit,))
    certain = torch.where(torch.eye(2, 4, dtype=torch.bool), math.inf, logit.detach()).requires_grad_()
    bernoulli.log_mass(frames, certain)[1].sum().backward()
    assert certain.grad is not None
    assert certain.grad.diagonal().tolist() == [0.0, 0.0]
    assert bool(certain.grad.isfinite().all())


def test_tables_are_kept() -> None:
    variance = torch.tensor([[0.5, 1e-3], [1e6, 2.0]], dtype=torch.float64)
    module = GaussianObservation.of(torch.zeros(2, 2, dtype=torch.float64), variance, 1e-3)
    torch.testing.assert_close(module.variance.detach(), variance, rtol=1e-12, atol=0)
    probability = torch.tensor([[0.0, 0.25], [1.0, 1e-30]], dtype=torch.float64)
    torch.testing.assert_close(
        torch.sigmoid(BernoulliObservation.of(probability).logit.detach()), probability, rtol=1e-12, atol=0
    )
    with pytest.raises(DomainError, match="1 - probability"):
        BernoulliObservation.of(torch.tensor([[1.5]]))


def test_a_start_without_a_floor_needs_variances() -> None:
    module = GaussianObservation(torch.zeros(2, 1), torch.zeros(2, 1))
    with pytest.raises(DomainError, match="min_variance"):
        module.fill(mean=torch.zeros(1), variance=torch.zeros(1))


@pytest.mark.parametrize("longest", [1, 2, 19])
@pytest.mark.parametrize("normalised", [True, False])
def test_poisson(longest: int, normalised: bool) -> None:
    log_rate = torch.tensor([0.0, -3.0, 2.5], dtype=torch.float64)
    found = durations.poisson(log_rate, longest, normalised=normalised)
    close(found, [oracle.poisson(x, longest, normalised=normalised) for x in log_rate.tolist()])
    assert gradcheck(lambda x: durations.poisson(x, longest, normalised=normalised), (log_rate.requires_grad_(),))


@pytest.mark.parametrize("longest", [1, 2, 19])
def test_negative_binomial(longest: int) -> None:
    shape, odds = (torch.tensor(x, dtype=torch.float64) for x in ([0.0, 1.5, -1.0], [0.3, -2.0, 2.0]))
    found = durations.negative_binomial(shape, odds, longest)
    pairs = zip(shape.tolist(), odds.tolist(), strict=True)
    close(found, [oracle.negative_binomial(a, b, longest) for a, b in pairs])
    inputs = (shape.requires_grad_(), odds.requires_grad_())
    assert gradcheck(lambda a, b: durations.negative_binomial(a, b, longest), inputs)


def test_shape_one_is_geometric() -> None:
    found = durations.negative_binomial(torch.zeros(1).double(), torch.zeros(1).double(), 30)
    close(found.diff(), [[math.log(0.5)] * 29])


def test_long_durations_in_float32() -> None:
    """A log of 1000! is 5912, of which float32 has three digits behind the point: the table is made in float64."""
    rate = torch.tensor([6.0])
    found = durations.poisson(rate, 1000)
    torch.testing.assert_close(found.double(), durations.poisson(rate.double(), 1000), rtol=1e-6, atol=1e-6)
    assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_categorical_keeps_zeros() -> None:
    table = torch.tensor([[0.0, -math.inf, 1.0]])
    assert durations.categorical(table)[0, 1].item() == -math.inf
    assert durations.categorical(table).exp().sum().item() == pytest.approx(1.0)
