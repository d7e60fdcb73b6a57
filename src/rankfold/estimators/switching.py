"""Linear dynamics that switch between regimes: an approximation, because the exact posterior has a Gaussian per path.

Two of them, each with what is known about its error. Structured mean field (Ghahramani and Hinton 2000) takes switches
and latent vectors for independent given the frames; its bound never exceeds the log-likelihood, and variational EM
never lowers it. A Rao-Blackwellised particle filter draws switches and keeps latent vectors exact; its estimate of the
likelihood is unbiased.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.decoding.counts import expected_counts
from rankfold.decoding.viterbi import viterbi
from rankfold.errors import DataError, DomainError, ShapeError
from rankfold.estimators.check_parameters import expect_number, expect_seed
from rankfold.estimators.fitting import generator_of
from rankfold.estimators.inputs import Inputs, expect_width, lengths_of, read_features
from rankfold.estimators.scikit_learn import ScikitLearnMethods
from rankfold.numerics.log_space import log_weights
from rankfold.operators import Dense
from rankfold.params.observations.linear_gaussian import raise_to_floor
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.training.initialisation import assign, kmeans

Array = NDArray[Any]
LOG_TWO_PI = math.log(2 * math.pi)
SWEEPS = 20  # of the mean field of an answer; of a fit `n_sweeps`, for the next step goes on from there


class Tables(NamedTuple):
    """s_1 ~ initial, s_t ~ transition[s_t-1], x_1 ~ N(first_mean, first_covariance),

    x_t = dynamics[s_t] x_t-1 + offset[s_t] + N(0, noise[s_t]),    y_t = emission x_t + level + N(0, diag(variance))
    """

    initial: Array  # "k"
    transition: Array  # "k k"
    first_mean: Array  # "d"
    first_covariance: Array  # "d d"
    dynamics: Array  # "k d d"
    offset: Array  # "k d"
    noise: Array  # "k d d"
    emission: Array  # "f d"
    level: Array  # "f"
    variance: Array  # "f"


class Moments(NamedTuple):
    """The approximate posterior of one sequence: of its latent vectors, Gaussian, and of its switches, a chain."""

    mean: Array  # "t d"
    second: Array  # "t d d"     E[x_t x_t^T]
    cross: Array  # "t-1 d d"    E[x_t x_t-1^T]
    switch: Array  # "t k"
    used: Array  # "k k"         expected transitions
    bound: float


@dataclass(eq=False, repr=False)
class SwitchingLDS(ScikitLearnMethods):
    """Frames as noisy linear views of a latent vector, whose linear dynamics switch: approximate, fitted to a bound.

    n_states            how many regimes of dynamics
    n_latent            the size of the latent vector
    n_sweeps            of an E step: how often both halves of the posterior are brought up to date
    n_particles         of the particle filter
    min_variance        the least variance of a feature's noise, as a share of the feature's variance in all frames; of
                        the noise of the dynamics, in units of the latent vector, whose scale begins at that of one
    start               tables to begin with, by the names of `tables_`; all of them
    n_init, max_iter, tol     as of `HMM`; starts differ in k-means

    `bound(X)` is a lower bound of the log-likelihood, by mean field; `estimate(X)` the logarithm of an unbiased
    estimate of the likelihood of each sequence, by particles. Answers by mean field: `predict_proba`, `predict`,
    `latent`; by particles: `filter`. Frames "t f", NaN where a feature is missing, which is summed out.
    """

    tables_: dict[str, Array] = field(init=False)
    history_: list[float] = field(init=False)
    converged_: bool = field(init=False)
    n_iter_: int = field(init=False)
    n_features_in_: int = field(init=False)

    n_states: int = 2
    n_latent: int = 2
    _: KW_ONLY
    n_sweeps: int = 3
    n_particles: int = 256
    min_variance: float = 1e-4
    start: Mapping[str, Any] | None = None
    n_init: int = 1
    max_iter: int = 100
    tol: float | None = 1e-5
    random_state: Any = None

    def fit(self, X: Any, y: Any = None, *, lengths: Any = None) -> Self:
        """Variational EM: no step lowers the bound, whose values before each step are in `history_`."""
        self._expect_parameters()
        rows = self._read(X, lengths_of(X, y, lengths)).sequences
        seen = np.concatenate(rows)
        spread = np.nanvar(seen, 0)
        if not (spread > 0).all():
            raise DataError(f"feature {int((~(spread > 0)).argmax())} never changes, or is missing.\n  Leave it out.")
        rng = generator_of(self.random_state)
        found = [self._once(rows, spread, rng) for _ in range(1 if self.start else self.n_init)]
        tables, self.history_, self.converged_ = max(found, key=lambda one: one[1][-1])
        self.tables_, self.n_iter_, self.n_features_in_ = tables._asdict(), len(self.history_), seen.shape[1]
        if self.tol is not None and not self.converged_:
            warnings.warn(
                f"variational EM has not converged: the last of max_iter = {self.max_iter} steps still gained more "
                "than tol.\n  Raise max_iter, or tol; tol=None takes all steps and says nothing.",
                stacklevel=2,
            )
        return self

    def _once(self, rows: Sequence[Array], spread: Array, rng: np.random.Generator) -> tuple[Tables, list[float], bool]:
        floor = self.min_variance * spread
        if self.start is not None:
            tables, switches = expect_tables(self.start), [self._even(x) for x in rows]
            if len(tables.emission) != rows[0].shape[1]:
                raise ShapeError(f"start has {len(tables.emission)} features, but X has {rows[0].shape[1]}.")
            if (len(tables.initial), len(tables.first_mean)) != (self.n_states, self.n_latent):
                raise ShapeError(
                    f"start has {len(tables.initial)} regimes and {len(tables.first_mean)} latent numbers, but "
                    f"n_states is {self.n_states} and n_latent {self.n_latent}."
                )
        else:
            tables, switches = first_tables(rows, self.n_states, self.n_latent, self.min_variance, rng)
        history: list[float] = []
        for _ in range(self.max_iter):
            posteriors = [mean_field(tables, x, w, self.n_sweeps) for x, w in zip(rows, switches, strict=True)]
            history.append(sum(one.bound for one in posteriors))
            if len(history) > 1 and self.tol is not None and history[-1] - history[-2] < self.tol * sum(map(len, rows)):
                return tables, history, True
            tables = maximise(tables, rows, posteriors, self.min_variance, floor)
            switches = [one.switch for one in posteriors]
        return tables, history, False

    @classmethod
    def from_tables(cls, *, n_particles: int = 256, n_sweeps: int = 3, random_state: Any = None, **tables: Any) -> Self:
        """The estimator with known tables by the names of `tables_`, as if fitted; a fit begins with them."""
        found = expect_tables(tables)
        made = cls(
            len(found.initial), len(found.first_mean), n_particles=n_particles, n_sweeps=n_sweeps, start=tables,
            random_state=random_state,
        )  # fmt: skip
        made._expect_parameters()
        made.tables_, made.history_, made.converged_, made.n_iter_ = found._asdict(), [], False, 0
        made.n_features_in_ = len(found.level)
        return made

    def bound(self, X: Any, lengths: Any = None) -> float:
        """A lower bound of the log-likelihood of all sequences together, in nats."""
        return sum(one.bound for one in self._posteriors(self._ask(X, lengths)))

    def score(self, X: Any, y: Any = None, *, lengths: Any = None) -> float:
        """As `bound`."""
        return self.bound(X, lengths_of(X, y, lengths))

    def estimate(self, X: Any, lengths: Any = None, *, random_state: Any = None) -> Array:
        """Of each sequence the logarithm of an unbiased estimate of its likelihood, by particles."""
        rng = generator_of(self.random_state if random_state is None else random_state)
        rows = self._ask(X, lengths).sequences
        return np.array([particles(self._tables, x, self.n_particles, rng).log_likelihood for x in rows])

    def filter(self, X: Any, lengths: Any = None, *, random_state: Any = None) -> Any:
        """The probability "t k" of every regime given the frames up to it, by particles: an estimate."""
        rng, given = generator_of(self.random_state if random_state is None else random_state), self._ask(X, lengths)
        return given.back([particles(self._tables, x, self.n_particles, rng).filtered for x in given.sequences])

    def predict_proba(self, X: Any, lengths: Any = None) -> Any:
        """The probability "t k" of every regime given the whole sequence, by mean field: an approximation."""
        given = self._ask(X, lengths)
        return given.back([one.switch for one in self._posteriors(given)])

    def predict(self, X: Any, lengths: Any = None) -> Any:
        """The most probable path of regimes "t" under the mean field."""
        given, tables = self._ask(X, lengths), self._tables
        paths = [viterbi(_potentials(tables, one)).path[0].numpy() for one in self._posteriors(given)]
        return given.back(paths)

    def latent(self, X: Any, lengths: Any = None) -> Any:
        """The mean of the latent vector at every frame "t d", given the whole sequence, by mean field."""
        given = self._ask(X, lengths)
        return given.back([one.mean for one in self._posteriors(given)])

    def sample(self, n_samples: int = 1, *, random_state: Any = None) -> tuple[Array, NDArray[np.int64], Array]:
        """Frames "t f", regimes "t" and latent vectors "t d" drawn from the model, exactly."""
        self._expect_fitted()
        expect_number("n_samples", n_samples)
        expect_seed(random_state)
        rng, p = generator_of(self.random_state if random_state is None else random_state), self._tables
        states, latent = np.zeros(n_samples, np.int64), np.zeros((n_samples, len(p.first_mean)))
        for t in range(n_samples):
            states[t] = rng.choice(len(p.initial), p=p.transition[states[t - 1]] if t else p.initial)
            k = states[t]
            mean = p.dynamics[k] @ latent[t - 1] + p.offset[k] if t else p.first_mean
            latent[t] = rng.multivariate_normal(mean, p.noise[k] if t else p.first_covariance, method="cholesky")
        noise = rng.standard_normal((n_samples, len(p.level))) * np.sqrt(p.variance)
        return latent @ p.emission.T + p.level + noise, states, latent

    @property
    def _tables(self) -> Tables:
        return Tables(**self.tables_)

    def _posteriors(self, given: Inputs) -> list[Moments]:
        """The better of two: from switches that may be anything, and from those of particles."""
        found, tables, rng = [], self._tables, np.random.default_rng(0)
        for x in given.sequences:
            starts = self._even(x), particles(tables, x, self.n_particles, rng).smoothed
            found.append(max((mean_field(tables, x, w, SWEEPS) for w in starts), key=lambda one: one.bound))
        return found

    def _even(self, rows: Array) -> Array:
        return np.full((len(rows), self.n_states), 1 / self.n_states)

    def _ask(self, X: Any, lengths: Any) -> Inputs:
        self._expect_fitted()
        given = self._read(X, lengths)
        expect_width(given.sequences[0].shape[1], self)
        return given

    def _read(self, X: Any, lengths: Any) -> Inputs:
        return read_features(X, lengths, None, num_states=self.n_states, missing="feature", dtype="float64")

    def _expect_parameters(self) -> None:
        for name in ("n_states", "n_latent", "n_sweeps", "n_particles", "n_init", "max_iter"):
            expect_number(name, getattr(self, name))
        if not 0 < self.min_variance < 1:
            raise DomainError(f"min_variance is {self.min_variance!r}, but must be above 0 and below 1.")
        expect_seed(self.random_state)


def expect_tables(given: Mapping[str, Any]) -> Tables:
    """The tables of a start, all of them, whose shapes fit together; raises on others."""
    wrong = sorted(set(given) ^ set(Tables._fields))
    if wrong:
        raise DomainError(f"start has {', '.join(given)}, but {', '.join(Tables._fields)} were expected: {wrong[0]!r}.")
    tables = Tables(**{name: np.asarray(given[name], dtype=np.float64) for name in Tables._fields})
    k, d, f = len(tables.initial), len(tables.first_mean), len(tables.level)
    shapes = ((k,), (k, k), (d,), (d, d), (k, d, d), (k, d), (k, d, d), (f, d), (f,), (f,))
    for name, x, shape in zip(Tables._fields, tables, shapes, strict=True):
        if x.shape != shape or not np.isfinite(x).all():
            raise ShapeError(f"start[{name!r}] has shape {x.shape}, but finite numbers of shape {shape} were expected.")
    for name, x in (("initial", tables.initial), ("transition", tables.transition)):
        if (x < 0).any() or not np.allclose(x.sum(-1), 1):
            raise DomainError(f"start[{name!r}] is no distribution: its rows do not sum to 1.")
    for name, x in (("first_covariance", tables.first_covariance), ("noise", tables.noise)):
        if not np.allclose(x, np.swapaxes(x, -1, -2)) or (np.linalg.eigvalsh(x) <= 0).any():
            raise DomainError(f"start[{name!r}] has a matrix that is not positive definite.")
    if (tables.variance <= 0).any():
        raise DomainError("start['variance'] has entries that are not above 0.")
    return tables


def mean_field(p: Tables, frames: Array, switch: Array, sweeps: int) -> Moments:  # "t f", "t k"
    """The posterior q(switches) q(latent) nearest to the true one, from a first guess of the switches; and its bound.

        bound = log Z of the switches' chain, whose weights are E log N(x_t; ...)  +  E log p(x_1) p(y | x)  +  H(q(x))

    Each half is exact given the other, so no sweep lowers the bound. Cost of a sweep: t (k d^3 + f d^2).
    """
    d, precision = len(p.first_mean), np.linalg.inv(p.noise)
    there = ~np.isnan(frames)
    weight = there / p.variance  # "t f"
    away = np.where(there, frames - p.level, 0.0)
    seen = np.einsum("tf,fi,fj->tij", weight, p.emission, p.emission)
    heard = (weight * away) @ p.emission
    first = np.linalg.inv(p.first_covariance)
    back = np.einsum("kji,kjl->kil", p.dynamics, precision)  # F^T P
    for _ in range(sweeps):
        w = switch[1:]
        diagonal, h = seen.copy(), heard.copy()
        diagonal[0] += first
        h[0] += first @ p.first_mean
        diagonal[1:] += np.einsum("tk,kij->tij", w, precision)
        diagonal[:-1] += np.einsum("tk,kij->tij", w, back @ p.dynamics)
        h[1:] += np.einsum("tk,kij,kj->ti", w, precision, p.offset)
        h[:-1] -= np.einsum("tk,kij,kj->ti", w, back, p.offset)
        beside = -np.einsum("tk,kij->tji", w, back)  # between t and t - 1: -P F
        mean, covariance, between, log_det = tridiagonal(diagonal, beside, h)
        second = covariance + mean[:, :, None] * mean[:, None]
        cross = between + mean[1:, :, None] * mean[:-1, None]
        log_obs = np.zeros_like(switch)
        log_obs[1:] = _expected_logs(p, precision, mean, second, cross)
        counts = expected_counts(_chain(p, log_obs))
        switch = counts.state[0].numpy()
    start = second[0] - np.outer(mean[0], p.first_mean) - np.outer(p.first_mean, mean[0])
    start = start + np.outer(p.first_mean, p.first_mean)
    bound = -(d * LOG_TWO_PI + np.linalg.slogdet(p.first_covariance)[1] + (first * start).sum()) / 2
    squares = away**2 - 2 * away * (mean @ p.emission.T) + np.einsum("fi,tij,fj->tf", p.emission, second, p.emission)
    bound -= (weight * squares + there * (np.log(p.variance) + LOG_TWO_PI)).sum() / 2
    bound += (mean.size * (1 + LOG_TWO_PI) - log_det) / 2
    return Moments(mean, second, cross, switch, counts.transition[0].numpy(), float(bound) + float(counts.log_z[0]))


def _expected_logs(p: Tables, precision: Array, mean: Array, second: Array, cross: Array) -> Array:  # "t-1 k"
    """E log N(x_t; F x_t-1 + b, Q) of every regime."""
    found = np.empty((len(cross), len(p.initial)))
    for k, (f, b, q) in enumerate(zip(p.dynamics, p.offset, precision, strict=True)):
        moved = mean[:-1] @ f.T + b
        scatter = second[1:] - cross @ f.T - f @ np.swapaxes(cross, 1, 2)
        scatter -= mean[1:, :, None] * b + b[:, None] * mean[1:, None]
        scatter += f @ second[:-1] @ f.T + moved[:, :, None] * moved[:, None]
        inner = mean[:-1] @ f.T
        scatter -= inner[:, :, None] * inner[:, None]
        found[:, k] = -(np.einsum("ij,tij->t", q, scatter) + len(b) * LOG_TWO_PI - np.linalg.slogdet(q)[1]) / 2
    return found


def tridiagonal(diagonal: Array, beside: Array, h: Array) -> tuple[Array, Array, Array, float]:
    """Means "t d", covariances "t d d", those between t and t - 1 "t-1 d d", and log det J of N(J^-1 h, J^-1).

    J has the blocks `diagonal` "t d d" and, at (t, t - 1), `beside` "t-1 d d". Cost: t d^3.
    """
    inverse, g, log_det = np.empty_like(diagonal), h.copy(), 0.0
    for t in range(len(h)):
        block = diagonal[t]
        if t:
            gain = beside[t - 1] @ inverse[t - 1]
            block, g[t] = block - gain @ beside[t - 1].T, g[t] - gain @ g[t - 1]
        inverse[t] = np.linalg.inv((block + block.T) / 2)
        log_det += np.linalg.slogdet(block)[1]
    mean, covariance, between = np.empty_like(h), np.empty_like(diagonal), np.empty_like(beside)
    mean[-1], covariance[-1] = inverse[-1] @ g[-1], inverse[-1]
    for t in range(len(h) - 1, 0, -1):
        gain = inverse[t - 1] @ beside[t - 1].T
        mean[t - 1] = inverse[t - 1] @ g[t - 1] - gain @ mean[t]
        between[t - 1] = -covariance[t] @ gain.T
        covariance[t - 1] = inverse[t - 1] + gain @ covariance[t] @ gain.T
    return mean, covariance, between, float(log_det)


def _chain(p: Tables, log_obs: Array) -> ChainPotentials:  # "t k"
    initial, transition = (log_weights(torch.from_numpy(x)) for x in (p.initial, p.transition))
    return ChainPotentials(initial, Dense.from_log(transition), torch.from_numpy(log_obs)[None])


def _potentials(p: Tables, one: Moments) -> ChainPotentials:
    log_obs = np.zeros_like(one.switch)
    log_obs[1:] = _expected_logs(p, np.linalg.inv(p.noise), one.mean, one.second, one.cross)
    return _chain(p, log_obs)


def maximise(p: Tables, rows: Sequence[Array], posteriors: Sequence[Moments], least: float, floor: Array) -> Tables:
    """The maximum of the expected log-density in all tables, variances at least `least` and, of frames, `floor` "f"."""
    initial = np.sum([one.switch[0] for one in posteriors], 0)
    used = np.sum([one.used for one in posteriors], 0)
    total = used.sum(1, keepdims=True)
    first_mean = np.mean([one.mean[0] for one in posteriors], 0)
    first = np.mean([one.second[0] for one in posteriors], 0) - np.outer(first_mean, first_mean)
    found = p._replace(
        initial=initial / initial.sum(),
        transition=np.where(total > 0, used / np.where(total > 0, total, 1), p.transition),
        first_mean=first_mean,
        first_covariance=_above(first, least),
        **{name: getattr(p, name).copy() for name in ("dynamics", "offset", "noise", "emission", "level", "variance")},
    )
    _fit_dynamics(found, posteriors, least)
    frames, mean = np.concatenate(rows), np.concatenate([one.mean for one in posteriors])
    second = np.concatenate([one.second for one in posteriors])
    for j, y in enumerate(frames.T):
        here = ~np.isnan(y)
        moments = _moments(second[here].sum(0), mean[here].sum(0), here.sum())
        cross = np.append(y[here] @ mean[here], y[here].sum())[None]
        weights, scatter = _regress((y[here] ** 2).sum()[None, None], cross, moments)
        found.emission[j], found.level[j] = weights[0, :-1], weights[0, -1]
        found.variance[j] = max(scatter[0, 0] / here.sum(), floor[j])
    return found


def _fit_dynamics(found: Tables, posteriors: Sequence[Moments], least: float) -> None:
    """Set the dynamics of every regime to the regression of each latent vector on the one before it."""
    weight, now, before = (
        np.concatenate([getattr(one, name)[cut] for one in posteriors])
        for name, cut in (("switch", slice(1, None)), ("mean", slice(1, None)), ("mean", slice(None, -1)))
    )
    here, old, cross = (
        np.concatenate([getattr(one, name)[cut] for one in posteriors])
        for name, cut in (("second", slice(1, None)), ("second", slice(None, -1)), ("cross", slice(None)))
    )
    for k, own in enumerate(weight.T):
        if not own.sum() > 0:
            continue  # no frame is of this regime: it stays as it is
        here_k, old_k, cross_k = (np.einsum("t,tij->ij", own, x) for x in (here, old, cross))
        moments = _moments(old_k, own @ before, own.sum())
        weights, scatter = _regress(here_k, np.concatenate([cross_k, (own @ now)[:, None]], 1), moments)
        found.dynamics[k], found.offset[k] = weights[:, :-1], weights[:, -1]
        found.noise[k] = _above(scatter / own.sum(), least)


def _moments(second: Array, first: Array, number: Any) -> Array:  # "d d", "d", "" -> "d+1 d+1"
    """The second moments of vectors that end with a 1."""
    return np.block([[second, first[:, None]], [first[None], np.array([[number]])]])


def _regress(yy: Array, yz: Array, zz: Array) -> tuple[Array, Array]:
    """The least squares of y on z from their moments, and the scatter that is left."""
    weights = yz @ np.linalg.pinv(zz, hermitian=True)
    return weights, yy - weights @ yz.T - yz @ weights.T + weights @ zz @ weights.T


def _above(covariance: Array, least: float) -> Array:
    """The maximum among covariances whose eigenvalues are at least `least`."""
    found: Array = raise_to_floor(torch.from_numpy((covariance + covariance.T) / 2)[None], least)[0].numpy()
    return found


def first_tables(
    rows: Sequence[Array], num_states: int, size: int, least: float, rng: np.random.Generator
) -> tuple[Tables, list[Array]]:
    """Latent vectors from principal components (and, for more than features, their changes); regimes by k-means."""
    seen = np.concatenate(rows)
    level, spread = np.nanmean(seen, 0), np.nanvar(seen, 0)
    filled = [np.where(np.isnan(x), 0.0, x - level) for x in rows]
    flat = np.concatenate(filled)
    values, vectors = np.linalg.eigh(flat.T @ flat / len(flat))
    order = np.argsort(-values)[:size]
    unit = np.sqrt(np.maximum(values[order], least * spread.mean()))
    latent = [x @ vectors[:, order] / unit for x in filled]
    while latent[0].shape[1] < size:
        changes = [np.diff(x[:, -len(order) :], axis=0, prepend=x[:1, -len(order) :]) for x in latent]
        latent = [np.concatenate([x, y], 1)[:, :size] for x, y in zip(latent, changes, strict=True)]
    pairs = np.concatenate([np.concatenate([x[:-1], x[1:]], 1) for x in latent])
    if not len(pairs):
        raise DataError("all sequences have one frame, which shows no dynamics.\n  Give sequences of several frames.")
    means = kmeans(torch.from_numpy(pairs), num_states, rng)
    eye = np.eye(size)
    even, emission = np.full(num_states, 1 / num_states), np.zeros((len(level), size))
    emission[:, : len(order)] = vectors[:, order] * unit
    p = Tables(even, (1 + 8 * np.eye(num_states)) / (num_states + 8), np.zeros(size), eye, np.stack([eye] * num_states),
               np.zeros((num_states, size)), np.stack([eye] * num_states), emission, level, spread)  # fmt: skip
    posteriors = []
    for x in latent:
        switch = np.tile(even, (len(x), 1))
        if len(x) > 1:
            nearest = assign(torch.from_numpy(np.concatenate([x[:-1], x[1:]], 1)), means).numpy()
            switch[1:] = (switch[1:] + 4 * (nearest[:, None] == np.arange(num_states))) / 5
        second = x[:, :, None] * x[:, None] + least * eye
        posteriors.append(
            Moments(x, second, x[1:, :, None] * x[:-1, None], switch, np.zeros((num_states, num_states)), 0.0)
        )
    made = maximise(p, rows, posteriors, least, least * spread)
    return made._replace(initial=even), [one.switch for one in posteriors]


class Estimates(NamedTuple):
    """The estimates of a particle filter."""

    log_likelihood: float  # the logarithm of an unbiased estimate of the likelihood
    filtered: Array  # "t k"   of the regime given the frames up to it
    smoothed: Array  # "t k"   given all frames, by the paths of the last particles: rough where few ancestors are left


def particles(p: Tables, frames: Array, num: int, rng: np.random.Generator) -> Estimates:
    """A particle is a path of switches with the exact Gaussian of its latent vector.

    At each frame all continuations of all particles are weighed, and `num` of them kept by systematic resampling,
    regime by regime. Cost: t num k (d^3 + f^3).
    """
    k = len(p.initial)
    mean, covariance = np.tile(p.first_mean, (num, 1)), np.tile(p.first_covariance, (num, 1, 1))
    paths = np.zeros((num, len(frames)), np.int64)
    total, filtered = 0.0, np.empty((len(frames), k))
    for t, frame in enumerate(frames):
        if t:
            mean = (np.einsum("kij,nj->nki", p.dynamics, mean) + p.offset).reshape(num * k, -1)
            moved = np.einsum("kij,njl,kml->nkim", p.dynamics, covariance, p.dynamics) + p.noise
            covariance = moved.reshape(num * k, *moved.shape[2:])
            share = p.transition[paths[:, t - 1]] / num
        else:  # the first latent vector does not depend on the regime
            mean, covariance = np.repeat(mean, k, 0), np.repeat(covariance, k, 0)
            share = np.tile(p.initial / num, (num, 1))
        log_weight, mean, covariance = _condition(p, frame, mean, covariance)
        top = log_weight.max()
        weight = share.ravel() * np.exp(log_weight - top)
        total += top + math.log(weight.sum())
        weight /= weight.sum()
        filtered[t] = weight.reshape(num, k).sum(0)
        edges = np.cumsum(weight.reshape(num, k).T)  # by regime, so that particles alike do not all go one way
        drawn = np.minimum(np.searchsorted(edges, (rng.random() + np.arange(num)) / num * edges[-1]), len(edges) - 1)
        which, regime = drawn % num, drawn // num
        mean, covariance = mean[which * k + regime], covariance[which * k + regime]
        paths = paths[which]
        paths[:, t] = regime
    smoothed = (paths[:, :, None] == np.arange(k)).mean(0)
    return Estimates(total, filtered, smoothed)


def _condition(p: Tables, frame: Array, mean: Array, covariance: Array) -> tuple[Array, Array, Array]:
    """Of Gaussians "n d" the log-density "n" of a frame "f", and the Gaussians given it; missing features left out."""
    here = ~np.isnan(frame)
    if not here.any():
        return np.zeros(len(mean)), mean, covariance
    view = p.emission[here]
    away = frame[here] - p.level[here] - mean @ view.T
    both = covariance @ view.T  # "n d f"
    expected = view @ both + np.diag(p.variance[here])
    gain = np.swapaxes(np.linalg.solve(expected, np.swapaxes(both, 1, 2)), 1, 2)
    squares = (away * np.linalg.solve(expected, away[:, :, None])[:, :, 0]).sum(1)
    log_weight = -(squares + np.linalg.slogdet(expected)[1] + here.sum() * LOG_TWO_PI) / 2
    left = covariance - gain @ np.swapaxes(both, 1, 2)
    return log_weight, mean + (gain @ away[:, :, None])[:, :, 0], (left + np.swapaxes(left, 1, 2)) / 2
