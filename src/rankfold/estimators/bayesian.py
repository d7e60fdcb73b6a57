"""HMMs whose tables are not points but beliefs: variational Bayes with its lower bound, and Gibbs sampling.

Paths are never approximated: their posterior given the tables (or given expected logarithms of them) is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from rankfold.decoding.counts import expected_counts
from rankfold.decoding.sample import sample
from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.estimators.base import Estimator
from rankfold.estimators.check_parameters import expect_number
from rankfold.estimators.fitting import Fit, prepare_fit, torch_generator
from rankfold.estimators.hidden_markov import HMM
from rankfold.estimators.inputs import lengths_of
from rankfold.models.frame_model import FrameModel
from rankfold.numerics.log_space import log_weights
from rankfold.operators import Dense
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.training.conjugate import Beliefs, Dirichlet, NormalWishart, density_logs, symbol_logs
from rankfold.training.em import Group, expect_possible

KINDS = ("gaussian", "categorical")
COVARIANCES = ("full", "tied", "diag", "spherical")


class Draw(NamedTuple):
    """The tables of one sweep of Gibbs sampling, "z", "z y", and "z v" or means and covariances in blocks."""

    initial: Tensor
    transition: Tensor
    observation: tuple[Tensor, ...]

    def log_obs(self, frames: Tensor) -> Tensor:  # "n" or "n g k" -> "n z"
        if len(self.observation) == 1:
            return symbol_logs(log_weights(self.observation[0]), frames)
        mean, covariance = self.observation
        return density_logs(mean, covariance, frames)


@dataclass(eq=False, repr=False)
class BayesianHMM(Estimator):
    """A hidden Markov model of symbols or Gaussian frames with beliefs about its tables instead of point estimates.

    n_states            how many states; more than needed do little harm: unused ones stay near their prior
    observations        "gaussian" or "categorical"
    covariance_type     "full", "tied" (one matrix for all states), "diag" or "spherical"
    initial_prior, transition_prior, emission_prior     concentrations of Dirichlet priors, numbers or arrays above 0
    mean_prior, mean_weight     the prior of a mean is N(mean_prior, C / mean_weight), C the covariance; None: the mean
                        of all frames
    dof_prior, scale_prior      the precision is Wishart(dof_prior, scale_prior^-1), of "diag" each feature's by itself,
                        of "spherical" that of all features; None: as many as features ("diag", "spherical": 1), and the
                        variances of all frames. Numbers, variances "f", matrices "f f" ("full": or "z f f"), dof "z";
                        "spherical": a scale or "z" of them
    start               vb: the first beliefs, by the names of `beliefs_`; else those after k-means
    max_iter, tol       vb: at most so many steps; fewer where one gains less than `tol` nats per frame (None: never)
    n_draws, burn_in    gibbs: sweeps that are kept, after so many that are not
    n_symbols, missing, random_state, device     as of `HMM`

    After a fit `model_` has the expected tables (vb) or those of the kept sweep of the largest likelihood (gibbs): all
    methods of `HMM` answer by them. `history_` has the lower bound of the log-evidence before each step of vb, which
    never decreases, or the log-likelihood of each sweep. vb: `beliefs_` are the posterior's parameters. gibbs:
    `draws_` has the tables of the kept sweeps, `paths_` the states "s t" of each sequence.
    """

    beliefs_: dict[str, NDArray[np.float64]] = field(init=False)
    draws_: dict[str, NDArray[np.float64]] = field(init=False)
    paths_: list[NDArray[np.int64]] = field(init=False)

    n_states: int = 2
    _: KW_ONLY
    observations: Literal["gaussian", "categorical"] = "gaussian"
    covariance_type: Literal["full", "tied", "diag", "spherical"] = "full"
    initial_prior: ArrayLike = 1.0
    transition_prior: ArrayLike = 1.0
    emission_prior: ArrayLike = 1.0
    mean_prior: ArrayLike | None = None
    mean_weight: ArrayLike = 1.0
    dof_prior: ArrayLike | None = None
    scale_prior: ArrayLike | None = None
    start: Mapping[str, Any] | None = None
    max_iter: int = 100
    tol: float | None = 1e-6
    n_draws: int = 200
    burn_in: int = 100
    n_symbols: int | None = None
    missing: Literal["feature", "row", "error"] = "feature"
    random_state: Any = None
    device: str = "cpu"

    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        labels: Any = None,
        algorithm: Literal["vb", "gibbs"] = "vb",
        sample_weight: Any = None,
        inputs: Any = None,
    ) -> Self:
        """Beliefs after the sequences. "vb": a factorised posterior, by steps that never lower its bound.

        "gibbs": draws of the exact posterior of tables and paths, in the limit of many sweeps: each draws all paths
        given the tables (forwards filtering, backwards sampling), then all tables given the paths.
        """
        if inputs is not None:
            raise UnsupportedError("BayesianHMM takes no inputs: nothing of it depends on them.\n  Use HMM.")
        if sample_weight is not None:
            raise UnsupportedError("BayesianHMM takes no sample_weight: each sequence is seen once.\n  Use HMM.")
        if algorithm not in ("vb", "gibbs"):
            raise UnsupportedError(f'algorithm is {algorithm!r}, but must be "vb" or "gibbs".')
        found = prepare_fit(self._point_model(), X, lengths_of(X, y, lengths), labels)
        prior = self._prior_beliefs(found)
        data = _Data(found, self.covariance_type)
        start = self._start(found, prior, data)
        if algorithm == "vb":
            self._vary(found, data, prior, start)
        else:
            self._sweep(found, data, prior, start)
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, lengths: Any = None, labels: Any = None, inputs: Any = None
    ) -> Self:
        """Refused: beliefs are fitted to all sequences at once."""
        raise UnsupportedError("BayesianHMM has no partial_fit.\n  Use fit with all sequences, or HMM.partial_fit.")

    @classmethod
    def from_tables(cls, *args: Any, **tables: Any) -> Self:
        """Refused: a table is a point, not a belief."""
        raise UnsupportedError("BayesianHMM has beliefs instead of tables.\n  Use HMM.from_tables.")

    def _point_model(self) -> HMM:
        if self.observations not in KINDS:
            raise UnsupportedError(f"observations is {self.observations!r}, but must be one of {', '.join(KINDS)}.")
        if self.covariance_type not in COVARIANCES:
            known = ", ".join(map(repr, COVARIANCES))
            raise UnsupportedError(f"covariance_type is {self.covariance_type!r}, but must be one of {known}.")
        for name in ("n_draws", "max_iter"):
            expect_number(name, getattr(self, name))
        if not isinstance(self.burn_in, int) or self.burn_in < 0:
            raise DomainError(f"burn_in is {self.burn_in!r}, but must be a whole number of at least 0.")
        gaussian: dict[str, Any] = {}
        if self.observations == "gaussian":
            gaussian["covariance_type"] = self.covariance_type
        return HMM(
            self.n_states,
            observations=self.observations,
            n_symbols=self.n_symbols,
            missing=self.missing,
            random_state=self.random_state,
            device=self.device,
            tol=self.tol,
            max_iter=self.max_iter,
            **gaussian,
        )

    def _prior_beliefs(self, found: Fit) -> Beliefs:
        z = self.n_states
        device = found.sequences[0].device

        def concentration(name: str, *shape: int) -> Dirichlet:
            return Dirichlet(_positive(getattr(self, name), name, shape, device))

        initial, transition = concentration("initial_prior", z), concentration("transition_prior", z, z)
        if found.symbols is not None:
            return Beliefs(initial, transition, concentration("emission_prior", z, len(found.symbols)))
        frames = torch.cat(found.sequences).double()
        size = frames.shape[1]
        centre = frames.nanmean(0)
        spread = (frames - centre).square().nanmean(0)
        mean = centre.expand(z, size) if self.mean_prior is None else _array(self.mean_prior, "mean_prior", (z, size))
        kind = self.covariance_type
        groups, k = (1, size) if kind in ("full", "tied") else (size, 1)
        states, own = 1 if kind == "tied" else z, 1 if kind == "spherical" else groups  # of dof and scale
        dof = _array(k if self.dof_prior is None else self.dof_prior, "dof_prior", _public((states, own), kind))
        if not bool((dof > k - 1).all()):
            raise DomainError(f"dof_prior is {float(dof.min()):g}, but of {k} features together must be above {k - 1}.")
        weight = _array(self.mean_weight, "mean_weight", _weights(z, groups, kind)).reshape(z, groups)
        if not bool((weight > 0).all()):
            raise DomainError(f"mean_weight has an entry of {float(weight.min()):g}, but all must be above 0.")
        observation = NormalWishart(
            mean.to(device).reshape(z, groups, k), weight.to(device).clone(), dof.reshape(states, own).to(device),
            self._prior_scale(spread).to(device).expand(states, own, k, k),
        )  # fmt: skip
        return Beliefs(initial, transition, observation)

    def _prior_scale(self, spread: Tensor) -> Tensor:  # "f" -> "z g k k", with 1 where all are alike
        """The scale of the precisions, in blocks."""
        z, size, kind, given = self.n_states, len(spread), self.covariance_type, self.scale_prior
        if kind == "spherical":
            found = spread.mean() if given is None else _array(given, "scale_prior", (z,))
            if not bool((found > 0).all()):
                raise DomainError(f"scale_prior has an entry of {float(found.min()):g}, but all must be above 0.")
            return found.reshape(-1, 1, 1, 1)
        scale = spread if given is None else _array(given, "scale_prior", None)
        if scale.ndim < 2:
            scale = torch.diag(_array(scale, "scale_prior", (size,)))
        shapes = [(size, size), (z, size, size)] if kind == "full" else [(size, size)]
        if tuple(scale.shape) not in shapes:
            raise ShapeError(f"scale_prior has shape {tuple(scale.shape)}, but {shapes[-1]} was expected.")
        if bool((torch.linalg.cholesky_ex(scale).info != 0).any()):
            raise DomainError(f"scale_prior is no positive definite matrix of {size} x {size}, nor its diagonal.")
        return torch.diagonal(scale).reshape(1, size, 1, 1) if kind == "diag" else scale.reshape(-1, 1, size, size)

    def _start(self, found: Fit, prior: Beliefs, data: _Data) -> Beliefs:
        """The beliefs after the path posteriors of the model that k-means makes; or as `start` says."""
        if self.start is None:
            model = found._started()
            with torch.no_grad():
                potentials = [model.potentials(one.batch, allowed=one.allowed) for one in data.groups]
            return data.updated(prior, potentials, model)[0]
        names = _names(prior, self.covariance_type)
        wrong = sorted(set(self.start) ^ set(names))
        if wrong:
            raise DomainError(f"start has {', '.join(self.start)}, but {', '.join(names)} were expected: {wrong[0]!r}.")
        tables = {name: _array(self.start[name], f"start[{name!r}]", tuple(x.shape)) for name, x in names.items()}
        tables = {name: x.to(prior.initial.concentration) for name, x in tables.items()}
        observation: Dirichlet | NormalWishart
        if isinstance(prior.observation, Dirichlet):
            observation = Dirichlet(tables["emission"])
        else:
            like = prior.observation
            observation = NormalWishart(
                tables["mean"].reshape(like.mean.shape), tables["mean_weight"].reshape(like.weight.shape),
                tables["dof"].reshape(like.dof.shape), tables["scale"].reshape(like.scale.shape),
            )  # fmt: skip
        return Beliefs(Dirichlet(tables["initial"]), Dirichlet(tables["transition"]), observation)

    def _vary(self, found: Fit, data: _Data, prior: Beliefs, beliefs: Beliefs) -> None:
        model, history, converged = found._started(), [], False
        num_frames = sum(map(len, found.sequences))
        for _ in range(self.max_iter):
            after, log_z = data.updated(prior, data.expected(beliefs), model)
            history.append(log_z - beliefs.divergence(prior))
            if self.tol is not None and len(history) > 1 and history[-1] - history[-2] < self.tol * num_frames:
                converged = True
                break
            beliefs = after
        observed = beliefs.observation
        if isinstance(observed, Dirichlet):
            tables: tuple[Tensor, ...] = (observed.mean(),)
        else:
            tables = observed.mean, observed.covariance()
        _fill(model, Draw(beliefs.initial.mean(), beliefs.transition.mean(), tables))
        self._take(found, model, history, converged)
        self.beliefs_ = {name: x.cpu().numpy() for name, x in _names(beliefs, self.covariance_type).items()}
        if not converged and self.tol is not None:
            warnings.warn(
                f"variational Bayes has not converged: the last of max_iter = {self.max_iter} steps still gained more "
                "than tol.\n  Raise max_iter, or tol; tol=None takes all steps and says nothing.",
                stacklevel=3,
            )

    def _sweep(self, found: Fit, data: _Data, prior: Beliefs, beliefs: Beliefs) -> None:
        model, rng = found._started(), found.rng
        generator = torch_generator(rng, model.device)
        history: list[float] = []
        kept: list[Draw] = []
        paths: list[list[NDArray[np.int64]]] = [[] for _ in found.sequences]
        for sweep in range(self.burn_in + self.n_draws):
            observed = beliefs.observation
            tables = (observed.draw(rng),) if isinstance(observed, Dirichlet) else observed.draw(rng)
            draw = Draw(beliefs.initial.draw(rng), beliefs.transition.draw(rng), tables)
            states, log_z = data.sample(draw, generator, model)
            history.append(log_z)
            beliefs = data.seen(prior, states)
            if sweep >= self.burn_in:
                kept.append(draw)
                for own, path in zip(paths, states, strict=True):
                    own.append(path.cpu().numpy())
        best = int(np.argmax(history[self.burn_in :]))
        _fill(model, kept[best])
        self._take(found, model, history, False)
        self.draws_ = _stacked(kept, self.covariance_type)
        self.paths_ = [np.stack(own) for own in paths]


class _Data:
    """The sequences in groups, and their frames as beliefs take them: symbols "n", or blocks of features "n g k"."""

    def __init__(self, found: Fit, covariance_type: str) -> None:
        self.groups: list[Group] = found._groups()
        self.found, self.full = found, covariance_type in ("full", "tied") and found.symbols is None
        if self.full:
            for i, x in enumerate(found.sequences):
                partly = x.isnan().any(1) & ~x.isnan().all(1)
                if bool(partly.any()):
                    raise UnsupportedError(
                        f"sequence {i}, frame {int(partly.nonzero()[0])} has some features missing, which beliefs "
                        'about covariance matrices cannot sum out.\n  Use covariance_type="diag", or missing="row".'
                    )

    def frames(self, values: Tensor) -> Tensor:  # "... f" or "..." -> "n g k" or "n"
        if self.found.symbols is not None:
            return values.flatten()
        flat = values.double().flatten(0, -2)
        return flat.unsqueeze(1) if self.full else flat.unsqueeze(2)

    def _potentials(self, one: Group, log_initial: Tensor, log_transition: Tensor, log_obs: Tensor) -> ChainPotentials:
        log_obs = log_obs.reshape(*one.batch.values.shape[:2], -1)
        if one.allowed is not None:
            log_obs = log_obs.masked_fill(~one.allowed, float("-inf"))
        return ChainPotentials(log_initial, Dense.from_log(log_transition), log_obs, lengths=one.batch.lengths)

    def expected(self, beliefs: Beliefs) -> list[ChainPotentials]:
        """The potentials whose logarithms are expected ones."""
        return [self._potentials(one, *beliefs.expected_logs(self.frames(one.batch.values))) for one in self.groups]

    def updated(self, prior: Beliefs, potentials: list[Any], model: FrameModel) -> tuple[Beliefs, float]:
        """The beliefs after the expected uses of all tables, and the sum of log Z."""
        beliefs, total = prior, 0.0
        with torch.no_grad():
            for one, p in zip(self.groups, potentials, strict=True):
                counts = expected_counts(p)
                expect_possible(model, one, counts.log_z)
                posterior, frames = counts.state.double().flatten(0, 1), self.frames(one.batch.values)
                initial, transition = counts.initial.double(), counts.transition[0].double()
                beliefs = beliefs.plus(initial, transition, frames, posterior)
                total += float(counts.log_z.sum())
        return beliefs, total

    def sample(self, draw: Draw, generator: torch.Generator, model: FrameModel) -> tuple[list[Tensor], float]:
        """A path of every sequence, drawn given the tables, and the log-likelihood of all."""
        paths: list[Tensor] = [torch.empty(0)] * len(self.found.sequences)
        total = 0.0
        for one in self.groups:
            log_obs = draw.log_obs(self.frames(one.batch.values))
            p = self._potentials(one, log_weights(draw.initial), log_weights(draw.transition), log_obs)
            log_z = model.log_z(p)
            expect_possible(model, one, log_z)
            total += float(log_z.sum())
            drawn = sample(p, generator=generator).path
            for i, path, length in zip(one.which, drawn, one.batch.lengths.tolist(), strict=True):
                paths[i] = path[:length]
        return paths, total

    def seen(self, prior: Beliefs, paths: list[Tensor]) -> Beliefs:
        """The beliefs after paths that are known."""
        z = len(prior.initial.concentration)
        like = prior.initial.concentration
        first, pairs = torch.zeros_like(like), torch.zeros(z * z, dtype=like.dtype, device=like.device)
        for path in paths:
            first[path[0]] += 1
            pairs += torch.bincount(path[:-1] * z + path[1:], minlength=z * z)
        states = torch.cat(paths)
        posterior = torch.zeros(len(states), z, dtype=like.dtype, device=like.device)
        posterior[torch.arange(len(states)), states] = 1.0
        frames = self.frames(torch.cat(self.found.sequences))
        return prior.plus(first, pairs.reshape(z, z), frames, posterior)


def _names(beliefs: Beliefs, kind: str) -> dict[str, Tensor]:
    """The parameters of beliefs by name, in the shapes a user writes."""
    found = {"initial": beliefs.initial.concentration, "transition": beliefs.transition.concentration}
    if isinstance(beliefs.observation, Dirichlet):
        return {**found, "emission": beliefs.observation.concentration}
    own = beliefs.observation
    shape = _public(tuple(own.dof.shape), kind)
    return {
        **found,
        "mean": own.mean.flatten(1),
        "mean_weight": own.weight.reshape(_weights(len(own.weight), own.weight.shape[1], kind)),
        "dof": own.dof.reshape(shape),
        "scale": own.scale.reshape(*shape, *_matrix(own.scale, kind)),
    }


def _weights(num_states: int, num_blocks: int, kind: str) -> tuple[int, ...]:
    """The shape of `mean_weight` as a user writes it: for each state, or for each state and feature."""
    return (num_states, num_blocks) if kind in ("diag", "spherical") else (num_states,)


def _public(shape: tuple[int, ...], kind: str) -> tuple[int, ...]:  # of dof "z g" -> as a user writes it
    """One number for all states (tied), one for each state and feature (diag), or one for each state."""
    return () if kind == "tied" else shape if kind == "diag" else shape[:1]


def _matrix(covariance: Tensor, kind: str) -> tuple[int, ...]:  # "... k k"
    """The shape of a block as a user writes it: none where it is a number."""
    return () if kind in ("diag", "spherical") else tuple(covariance.shape[-2:])


def _fill(model: FrameModel, draw: Draw) -> None:
    """Set the tables of the model."""
    model.dynamics.fill(initial=draw.initial, transition=draw.transition)
    if len(draw.observation) == 1:
        model.observation.fill(probability=draw.observation[0])
        return
    mean, covariance = draw.observation
    if "covariance" in model.observation.tables():
        model.observation.fill(mean=mean.flatten(1), covariance=covariance[:, 0])
    else:
        model.observation.fill(mean=mean.flatten(1), variance=covariance[..., 0, 0])


def _stacked(draws: list[Draw], kind: str) -> dict[str, NDArray[np.float64]]:
    found = {
        "initial": torch.stack([draw.initial for draw in draws]),
        "transition": torch.stack([draw.transition for draw in draws]),
    }
    if len(draws[0].observation) == 1:
        found["emission"] = torch.stack([draw.observation[0] for draw in draws])
    else:
        covariance = torch.stack([draw.observation[1] for draw in draws])  # "s z g k k"
        found["means"] = torch.stack([draw.observation[0].flatten(1) for draw in draws])
        shape = _public(tuple(covariance.shape[1:3]), kind)
        found["covariances"] = covariance.reshape(len(draws), *shape, *_matrix(covariance, kind))
    return {name: x.cpu().numpy() for name, x in found.items()}


def _array(given: Any, name: str, shape: tuple[int, ...] | None) -> Tensor:
    try:
        x = torch.as_tensor(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise DomainError(f"{name} is no array of numbers ({error}).") from None
    if not bool(x.isfinite().all()):
        raise DomainError(f"{name} has entries that are not finite.")
    if shape is None:
        return x
    try:
        return x.expand(shape)
    except RuntimeError:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}, but {shape} was expected.") from None


def _positive(given: Any, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    x = _array(given, name, shape)
    if not bool((x > 0).all()):
        raise DomainError(f"{name} has an entry of {float(x.min()):g}, but all must be above 0.")
    return x.to(device).clone()
