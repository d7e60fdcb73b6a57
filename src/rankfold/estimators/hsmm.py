"""The hidden semi-Markov model as an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from numpy.typing import ArrayLike

from rankfold.estimators.base import Estimator


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
