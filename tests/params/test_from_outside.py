"""An observation and an operator from outside the package: a class each, a line of the catalogue; they train."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankfold.estimators import HMM, HSMM
from rankfold.models.config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.operators import Dense
from rankfold.operators.row_operator import RowOperator
from rankfold.params.dynamics.free_tables import Dynamics
from rankfold.params.observations import OBSERVATIONS, ObservationModule
from rankfold.params.prior import Prior
from rankfold.training.loop import train
from tests.training.recordings import tiny
from tests.training.runs import metrics


class Geometric(NamedTuple):
    logit: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        there = ~frames.isnan()
        log_p, log_q = nn.functional.logsigmoid(self.logit), nn.functional.logsigmoid(-self.logit)
        return there.to(self.logit) @ log_q.mT + torch.where(there, frames, 0.0).to(self.logit) @ log_p.mT

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        noise = torch.rand(states.shape + self.logit.shape[1:], generator=generator, dtype=self.logit.dtype)
        return (noise.log() / nn.functional.logsigmoid(self.logit[states])).floor()


class GeometricObservation(ObservationModule):
    """Counts: p(x | z) = (1 - q) q^x of each feature, q = sigmoid(logit)."""

    values = "whole numbers from 0 on"

    def __init__(self, logit: Tensor) -> None:
        super().__init__()
        self.logit = nn.Parameter(logit)

    @classmethod
    def draw(cls, sizes: Any, generator: torch.Generator) -> Self:
        return cls(torch.randn(sizes.num_states, sizes.num_features, generator=generator, dtype=torch.float32))

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return ~(((frames >= 0) & (frames == frames.floor())) | frames.isnan())

    def forward(self, keep: Tensor | None = None) -> Geometric:
        return Geometric(self.logit if keep is None else self.logit.index_select(0, keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:
        here = ~frames.isnan()
        return torch.cat([torch.where(here, frames, 0.0), here.to(frames.dtype)], 1).double()

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:
        total, number = (x + prior.smoothing for x in counts.chunk(2, 1))
        self.logit.copy_(torch.where(number > 0, total.log() - number.log(), self.logit.double()))


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBSERVATIONS, "geometric", GeometricObservation)


def counts(num: int = 5, seed: int = 0) -> list[Any]:
    """Two states, one with small and one with large counts; a frame nobody saw."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(num):
        states = np.repeat([0, 1, 0, 1], rng.integers(4, 9, 4))
        found.append(rng.geometric(np.array([0.7, 0.1])[states][:, None], (len(states), 2)).astype(float) - 1)
    found[0][3] = np.nan
    return found


@pytest.mark.parametrize("made", [HMM(2, max_iter=12), HSMM(2, max_duration=10, max_iter=12)], ids=repr)
def test_an_estimator_fits_it(made: Any) -> None:
    x = counts()
    model = made.set_params(observations="geometric", tol=None, random_state=0).fit(x)
    assert (np.diff(model.history_) >= -1e-9 * abs(model.history_[-1])).all()
    assert model.history_[-1] > model.history_[0] + 5
    mean = np.sort(np.exp(model.model_.observation.logit.detach().numpy()).mean(1))
    assert mean[0] < 1 < 5 < mean[1]
    frames, states = model.sample(30, random_state=0)
    assert np.isfinite(model.score([frames]))
    assert states.shape == (30,)
    assert model.partial_fit(x).score(x) > model.history_[0]
    slow = made.set_params(max_iter=3, random_state=0).fit(x, algorithm="sgd")
    assert slow.history_[-1] > slow.history_[0]
    with pytest.raises(ValueError, match=r"feature 1 is 0.5, but observations=\"geometric\" are whole"):
        model.predict(np.array([[1.0, 0.5]]))


def test_its_steps_are_those_of_the_enumeration() -> None:
    """One state: the posterior is 1, and the maximum is the mean of each feature."""
    x = counts()
    model = HMM(1, observations="geometric", max_iter=2, tol=None).fit(x).model_
    mean = np.nanmean(np.concatenate(x), 0)
    np.testing.assert_allclose(np.exp(model.observation.logit.detach().numpy()[0]), mean, rtol=1e-12)
    p = 1 / (1 + mean)
    frames = np.concatenate(x)
    expected = np.nansum(np.log(p) + frames * np.log1p(-p))
    assert float(model.log_likelihood(model.batch(x)).detach().sum()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "em"])
@pytest.mark.parametrize("family", ["frame_hmm", "lhsmm"])
def test_a_run_trains_it(optimizer: str, family: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "counts.npz", *counts(8))
    config = tiny(
        family=family, observations="geometric", optimizer=optimizer, num_states=2, max_duration=10, log_every=1
    )
    result = train(config, tmp_path / "counts.npz", tmp_path / "run")
    values = [record["train_nats"] for record in metrics(result.run) if "train_nats" in record]
    assert values[-1] < values[0]
    model = FrameModel.from_pretrained(tmp_path / "run" / "best")
    assert isinstance(model.observation, GeometricObservation)


def test_names_that_are_not_in_the_catalogue() -> None:
    with pytest.raises(
        ValueError, match="observations is 'poison', but must be one of gaussian, bernoulli, categorical"
    ):
        FrameConfig(observations="poison")
    config = FrameConfig(observations="geometric", num_features=2)
    assert dataclasses.replace(config, num_states=3).observation is GeometricObservation


class Sticky(RowOperator):
    """A[z, y] = stay[z] for y = z, and (1 - stay[z]) target[y] on top: rows sum to 1 where the target does."""

    def __init__(self, stay: Tensor, target: Tensor) -> None:  # "z", "z"
        self._stay, self._target = stay, target

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._stay), len(self._stay)

    def factors(self) -> tuple[Tensor, ...]:
        return self._stay, self._target

    def with_factors(self, *factors: Tensor) -> Sticky:
        return Sticky(*factors)

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return x * self._stay + (x * (1 - self._stay)).sum(-1, keepdim=True) * self._target

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return x * self._stay + (1 - self._stay) * (x * self._target).sum(-1, keepdim=True)

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        stay = self._stay[index, None]
        return (index[:, None] == torch.arange(len(self._stay))) * stay + (1 - stay) * self._target


class StickyDynamics(nn.Module):
    """Logits of staying and of where to go."""

    def __init__(self, num_states: int) -> None:
        super().__init__()
        self.stay, self.target = nn.Parameter(torch.zeros(num_states)), nn.Parameter(torch.zeros(num_states))

    def forward(self, keep: Any = None, keep_features: Any = None, stays: Any = None) -> Dynamics:
        return Dynamics(self.target.log_softmax(0), Sticky(self.stay.sigmoid(), self.target.softmax(0)))


def test_an_operator_trains() -> None:
    """Gradients are those of the matrix written out, and steps along them raise the likelihood."""
    x = counts()
    config = FrameConfig(family="frame_hmm", observations="geometric", num_states=3, num_features=2)
    dynamics: Any = StickyDynamics(3)
    model = FrameModel(config, dynamics, GeometricObservation.draw(config, torch.Generator().manual_seed(0)), None)
    model = model.double()
    batch = model.batch(x)
    parts = model.parts(torch.Generator())
    written = parts._replace(transition=Dense.unchecked(parts.transition.to_dense()))
    names = [name for name, _ in model.named_parameters()]
    grads = [
        torch.autograd.grad(model.log_likelihood(batch, parts=one).sum(), list(model.parameters()), retain_graph=True)
        for one in (parts, written)
    ]
    for name, own, dense in zip(names, *grads, strict=True):
        torch.testing.assert_close(own, dense, rtol=1e-9, atol=1e-9, msg=name)
    optimiser, values = torch.optim.Adam(model.parameters(), lr=0.1), []
    for _ in range(40):
        loss = -model.log_likelihood(batch).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(-float(loss.detach()))
    assert values[-1] > values[0] + 20
    assert float(dynamics.stay.detach().sigmoid().max()) > 0.7
    assert model.states(batch).shape == batch.values.shape[:2]
