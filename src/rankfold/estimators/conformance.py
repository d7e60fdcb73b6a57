"""A suite for observations of one's own: every law that the library relies on, checked on some sequences."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankfold.data.batch import Batch
from rankfold.errors import DomainError
from rankfold.estimators.check_parameters import heeded_priors
from rankfold.estimators.hidden_markov import HMM, HSMM
from rankfold.models.frame_model import FrameModel
from rankfold.params.prior import Prior

STATES = 3
SEQUENCES, FRAMES = 40, 30  # that are drawn
ROUNDING = 1e-8  # of a log-likelihood, relative


class ConformanceError(DomainError):
    """An observation that breaks a law; the text names it."""


def check_observation(observations: str | Sequence[str], x: Sequence[Any], **params: Any) -> list[str]:
    """The names of the checks that an observation of the catalogue passes on these sequences; raises at the first
    that fails.

    `x` are sequences of valid frames, at least three of at least eight; `params` are further ones of an estimator. An
    observation without a step of EM is checked without those.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "EM has not converged|too little data|segments last at most")
        made = HMM(STATES, observations=observations, max_iter=4, tol=None, random_state=0, **params)
        fitted = made.fit(list(x))
        passed = []
        for check in CHECKS:
            check(fitted, list(x), params)
            passed.append(check.__name__)
    return passed


def _expect(good: bool, what: str) -> None:
    if not good:
        raise ConformanceError(f"an observation breaks a law: {what}.")


def _close(a: Tensor, b: Tensor, what: str, tolerance: float = ROUNDING) -> None:
    _expect(a.shape == b.shape, f"{what}: shapes {tuple(a.shape)} and {tuple(b.shape)}")
    _expect(bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance)), what)


def _batch(model: FrameModel, x: Sequence[Any]) -> Any:
    rows = [torch.as_tensor(one) for one in x]
    values = pad_sequence(rows, batch_first=True, padding_value=model.filler)
    return Batch(values, torch.tensor([len(one) for one in rows]))


def log_weights_are_finite(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """log_obs has a finite number for each frame and state."""
    model, batch = made.model_, _batch(made.model_, _ids(made, x))
    found = model.observation.log_obs(batch.values)
    _expect(found.shape == (*batch.shape, STATES), f"log_obs has shape {tuple(found.shape)}, not frames and states")
    inside = torch.arange(batch.shape[1]) < batch.lengths[:, None]
    _expect(bool(found[inside].isfinite().all()), "log_obs of a frame it was fitted to is not finite")


def missing_frames_weigh_nothing(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """A frame of NaN (a symbol of -1) has log-weight 0 in every state."""
    model = made.model_
    if model.observation.needs == "all":
        return
    values = _batch(model, _ids(made, x)).values[:1, :1].clone()
    values.fill_(-1 if model.observation.symbols else float("nan"))
    _expect(not bool(model.observation.log_obs(values).any()), "a missing frame has a log-weight that is not 0")


def kept_states_are_rows(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """forward(keep) is the distribution of those states."""
    model = made.model_
    values, keep = _batch(model, _ids(made, x)).values, torch.tensor([2, 0])
    with torch.no_grad():
        whole, some = (model.observation(k).log_obs(values) for k in (None, keep))
    _close(some, whole[..., keep], "forward(keep) is not that of the kept states")


def gradients_are_derivatives(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """autograd agrees with differences, in a random direction of all parameters."""
    observation = made.model_.observation
    values = _batch(made.model_, _ids(made, x[:1])).values[:, :8]
    parameters = list(observation.parameters())
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(*values.shape[:2], STATES, generator=generator, dtype=torch.float64)
    way = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    grads = torch.autograd.grad(
        (observation.log_obs(values).masked_fill(weight == 0, 0.0) * weight).sum(), parameters, allow_unused=True
    )
    slope = sum(float((g * w).sum()) for g, w in zip(grads, way, strict=True) if g is not None)
    sides, step = [], 1e-6
    before = [p.detach().clone() for p in parameters]
    for sign in (1, -1):
        with torch.no_grad():
            for p, b, w in zip(parameters, before, way, strict=True):
                p.copy_(b + sign * step * w)
            sides.append(float((observation.log_obs(values) * weight).sum()))
    with torch.no_grad():
        for p, b in zip(parameters, before, strict=True):
            p.copy_(b)
    found = (sides[0] - sides[1]) / (2 * step)
    _expect(abs(found - slope) <= 1e-4 * (1 + abs(slope)), f"the gradient is {slope:g}, but differences give {found:g}")


def samples_are_of_the_density(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """Samples of a state are valid, and more probable there than elsewhere, in the mean: E_z log p_z >= E_z log p_y."""
    model = made.model_
    inputs = None
    if model.config.num_covariates:
        rows = np.concatenate(x)[:, -model.config.num_covariates :]
        rows = rows[np.isfinite(rows).all(1)]
        inputs = [torch.from_numpy(rows[np.arange(FRAMES) % len(rows)])] * SEQUENCES
    drawn = model.sample(FRAMES, SEQUENCES, inputs=inputs, generator=torch.Generator().manual_seed(0))
    values, states = torch.stack([x for x, _ in drawn]), torch.cat([y for _, y in drawn])
    if not model.observation.symbols:
        _expect(model.config.invalid(values) is None, "a sample is not valid for its own observation")
    with torch.no_grad():
        log_obs = model.observation.log_obs(values).flatten(0, 1)
    own = log_obs.gather(1, states[:, None])
    _expect(not bool(own.isinf().any()), "a sample is impossible in its own state")
    for z in range(STATES):
        own = log_obs[states == z]
        for y in range(STATES if len(own) > 30 else 0):
            gap = (own[:, z] - own[:, y]).clamp(max=1e6)
            error = float(gap.std()) / len(own) ** 0.5
            _expect(float(gap.mean()) >= -5 * error, f"samples of state {z} are more probable in state {y}")


def tables_are_kept(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """fill(**tables) changes nothing."""
    observation = made.model_.observation
    values = _batch(made.model_, _ids(made, x)).values
    tables = {name: table.value for name, table in observation.tables().items()}
    if not tables:
        return
    with torch.no_grad():
        before = observation.log_obs(values)
        observation.fill(**tables)
        _close(observation.log_obs(values), before, "fill(**tables()) changes log_obs")


def counts_add_up(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """The counts of two halves are those of the whole, and a state without any keeps its parameters."""
    model, prior = made.model_, made._prior
    sequences = _ids(made, x)
    parts, posteriors = [], []
    generator = torch.Generator().manual_seed(0)
    for one in sequences:
        values = _batch(model, [one]).values
        parts.append(model.observation.sequence_statistics(values, prior))
        posteriors.append(torch.rand(len(one), STATES, generator=generator, dtype=torch.float64))
    count = model.observation.count
    for own, posterior in zip(parts, posteriors, strict=True):
        at = len(own) // 2
        halves = count(own[:at], posterior[:at]) + count(own[at:], posterior[at:])
        _close(halves, count(own, posterior), "counts of parts do not add up to those of the whole")
    whole = torch.stack([count(s, p) for s, p in zip(parts, posteriors, strict=True)]).sum(0)
    values = _batch(model, sequences).values
    with torch.no_grad():
        before = model.observation.log_obs(values)
        model.observation.maximise(torch.zeros_like(whole), Prior(centre=prior.centre, spread=prior.spread))
        _close(model.observation.log_obs(values), before, "states without counts do not keep their parameters")


def em_never_loses(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """Steps of EM of an HMM and an HSMM never lower the objective, with and without priors and labels."""
    longest = min(5, *map(len, x))
    observations = made.observations
    both = {"variance_prior": 2.0, "mean_weight": 1.0}
    priors = {"smoothing": 0.3, **{name: both[name] for name in both.keys() & heeded_priors(observations)}}
    kinds: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (HMM, {}, {}),
        (HMM, {}, priors),
        (HSMM, {"max_duration": longest}, {}),
    ]
    for kind, more, settings in kinds:
        model: Any = kind(
            STATES, observations=observations, max_iter=4, tol=None, random_state=1, **params, **settings, **more
        )
        for labels in (None, [np.where(np.arange(len(s)) % 4 == 0, i % STATES, -1) for i, s in enumerate(x)]):
            if labels is not None and kind is HSMM:
                continue
            history = np.array(model.fit(x, labels=labels).history_)
            low = float(np.diff(history).min())
            what = f"a step of EM of an {kind.__name__} lost {-low:g} nats ({settings or 'no prior'})"
            _expect(low >= -ROUNDING * float(np.abs(history).max()), what)
            _expect(history[-1] > history[0], f"EM of an {kind.__name__} gains nothing")


def gradient_steps_climb(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """Some passes of gradient steps raise the objective."""
    model = HMM(
        STATES, observations=made.observations, max_iter=3, tol=None, random_state=1, learning_rate=0.02, **params
    )
    history = model.fit(x, algorithm="sgd").history_
    _expect(max(history) > history[0], "gradient steps do not raise the likelihood")


def partial_fits_go_on(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """Stepwise EM takes sequences a few at a time."""
    model = HMM(STATES, observations=made.observations, random_state=0, **params)
    model.partial_fit(x[:2]).partial_fit(x[2:])
    _expect(bool(np.isfinite(model.score(x))), "partial_fit ends without a finite likelihood")


def models_are_saved(made: Any, x: list[Any], params: dict[str, Any]) -> None:
    """A saved model has the same likelihood."""
    model = made.model_
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        again = FrameModel.from_pretrained(folder)
        batch = _batch(model, _ids(made, x))
        _close(again.log_likelihood(batch), model.log_likelihood(batch), "a saved model has another likelihood")


def _ids(made: Any, x: list[Any]) -> list[Any]:
    """Symbols as their numbers."""
    if not made.model_.observation.symbols:
        return x
    return [torch.as_tensor(np.searchsorted(made.symbols_, np.asarray(s))) for s in x]


CHECKS: tuple[Callable[[Any, list[Any], dict[str, Any]], None], ...] = (
    log_weights_are_finite,
    missing_frames_weigh_nothing,
    kept_states_are_rows,
    gradients_are_derivatives,
    samples_are_of_the_density,
    tables_are_kept,
    counts_add_up,
    em_never_loses,
    gradient_steps_climb,
    partial_fits_go_on,
    models_are_saved,
)
