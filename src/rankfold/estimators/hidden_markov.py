"""Hidden Markov and semi-Markov models as estimators, their parameters written out as scikit-learn wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from numpy.typing import ArrayLike

from rankfold.estimators.base import Estimator


class HMM(Estimator):
    """A hidden Markov model of feature vectors, of 0/1 vectors or of symbols, fitted by exact EM.

    n_states            how many states
    observations        "gaussian": independent normal features; "bernoulli": features 0 or 1; "categorical": symbols;
                        or another name in the catalogue `rankfold.params.observations.OBSERVATIONS`
    rank                None: a dense transition; else one of this rank: O(t z r) instead of O(t z^2)
    tied_variance       one variance per feature for all states
    min_variance        the least variance, as a share of the feature's variance in all frames; 0: none
    variance_prior      as if each state had seen so many frames of the variance of all; 0: none
    smoothing           added to the expected count of every start, transition, symbol, 0 and 1; 0: maximum likelihood
    forbidden           true where a state may not follow another, "z z"; dense transitions alone
    init                "kmeans" or "random" means; `start` gives tables instead: initial, transition, mean, ...
    n_init, max_iter    the best of so many starts; at most so many EM steps (or passes of gradient steps) each
    tol                 stop when a step gains less than this, in nats per frame; None: never
    learning_rate       of algorithm="sgd"; `batch_size`: how many sequences per gradient step
    n_symbols           categorical: symbols are 0..n_symbols - 1; None: the symbols of the data
    missing             of a frame with some features NaN: "feature" sums over those alone, exactly; "row" takes the
                        whole frame for missing; "error" refuses it
    """

    def __init__(
        self,
        n_states: int = 2,
        *,
        observations: str = "gaussian",
        rank: int | None = None,
        tied_variance: bool = False,
        min_variance: float = 1e-4,
        variance_prior: float = 0.0,
        smoothing: float = 0.0,
        forbidden: ArrayLike | None = None,
        init: Literal["kmeans", "random"] = "kmeans",
        start: Mapping[str, Any] | None = None,
        n_init: int = 1,
        max_iter: int = 100,
        tol: float | None = 1e-5,
        learning_rate: float = 0.05,
        batch_size: int = 16,
        n_symbols: int | None = None,
        missing: Literal["feature", "row", "error"] = "feature",
        random_state: Any = None,
        dtype: Literal["float64", "float32"] = "float64",
        device: str = "cpu",
    ) -> None:
        self.n_states = n_states
        self.observations = observations
        self.rank = rank
        self.tied_variance = tied_variance
        self.min_variance = min_variance
        self.variance_prior = variance_prior
        self.smoothing = smoothing
        self.forbidden = forbidden
        self.init = init
        self.start = start
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_symbols = n_symbols
        self.missing = missing
        self.random_state = random_state
        self.dtype = dtype
        self.device = device


class HSMM(Estimator):
    """A hidden semi-Markov model: segments with a state and a duration; fitted by exact EM.

    max_duration        the longest segment, in frames; None: 20, doubled as long as longer segments would gain
                        likelihood, up to 1,280 and the longest sequence. `fit` and `segment` warn where they would
    durations           "poisson" (its rate is found exactly), "negative_binomial" (by steps that never lose) or
                        "categorical", a table; all cut at `max_duration` and normalised
    self_transitions    whether a segment may follow one of its own state
    censored            whether the end of a sequence may cut its last segment

    and everything that `HMM` has.
    """

    def __init__(
        self,
        n_states: int = 2,
        *,
        max_duration: int | None = None,
        durations: Literal["poisson", "negative_binomial", "categorical"] = "poisson",
        self_transitions: bool = False,
        censored: bool = False,
        observations: str = "gaussian",
        rank: int | None = None,
        tied_variance: bool = False,
        min_variance: float = 1e-4,
        variance_prior: float = 0.0,
        smoothing: float = 0.0,
        forbidden: ArrayLike | None = None,
        init: Literal["kmeans", "random"] = "kmeans",
        start: Mapping[str, Any] | None = None,
        n_init: int = 1,
        max_iter: int = 100,
        tol: float | None = 1e-5,
        learning_rate: float = 0.05,
        batch_size: int = 16,
        n_symbols: int | None = None,
        missing: Literal["feature", "row", "error"] = "feature",
        random_state: Any = None,
        dtype: Literal["float64", "float32"] = "float64",
        device: str = "cpu",
    ) -> None:
        self.n_states = n_states
        self.max_duration = max_duration
        self.durations = durations
        self.self_transitions = self_transitions
        self.censored = censored
        self.observations = observations
        self.rank = rank
        self.tied_variance = tied_variance
        self.min_variance = min_variance
        self.variance_prior = variance_prior
        self.smoothing = smoothing
        self.forbidden = forbidden
        self.init = init
        self.start = start
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_symbols = n_symbols
        self.missing = missing
        self.random_state = random_state
        self.dtype = dtype
        self.device = device
