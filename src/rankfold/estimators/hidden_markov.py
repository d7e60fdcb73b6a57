"""Hidden Markov and semi-Markov models as estimators: their parameters are fields, as scikit-learn wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from numpy.typing import ArrayLike

from rankfold.estimators.base import Estimator


@dataclass(eq=False, repr=False, kw_only=True)
class Fitted(Estimator):
    """The parameters of every estimator that EM fits, next to its own."""

    min_variance: float = 1e-4
    variance_prior: float = 0.0
    covariance_type: Literal["diag", "full", "tied", "spherical", "low_rank"] = "diag"
    covariance_rank: int = 1
    n_mix: int = 2
    smoothing: float = 0.0
    emission_prior: ArrayLike | None = None
    init: Literal["kmeans", "random"] = "kmeans"
    start: Mapping[str, Any] | None = None
    tol: float | None = 1e-5
    learning_rate: float = 0.05
    batch_size: int = 16
    momentum: float = 0.9
    n_symbols: int | None = None
    missing: Literal["feature", "row", "error"] = "feature"
    random_state: Any = None
    dtype: Literal["float64", "float32"] = "float64"
    device: str = "cpu"
    verbose: bool = False


@dataclass(eq=False, repr=False)
class OfStates(Fitted):
    """The parameters of `HMM` and `HSMM`."""

    n_states: int = 2
    _: KW_ONLY
    observations: str | Sequence[str] = "gaussian"
    rank: int | None = None
    tied_variance: bool = False
    tied_states: Sequence[int] | None = None
    n_inputs: int = 0
    order: int = 1
    initial_prior: ArrayLike | None = None
    transition_prior: ArrayLike | None = None
    ends: bool = False
    end_prior: ArrayLike | None = None
    sticky: float = 0.0
    mean_prior: ArrayLike | None = None
    mean_weight: float = 0.0
    fixed: Sequence[str] | Mapping[str, Any] | None = None
    forbidden: ArrayLike | str | None = None
    n_init: int = 1
    max_iter: int = 100


@dataclass(eq=False, repr=False, kw_only=True)
class HMM(OfStates):
    """A hidden Markov model of feature vectors, of 0/1 vectors or of symbols, fitted by exact EM.

    n_states            how many states
    observations        "gaussian", "gaussian_mixture", "student_t"; "gamma", "exponential", "half_normal",
                        "log_normal", "beta"; "von_mises": angles in radians; "poisson", "negative_binomial",
                        "multinomial": counts; "zero_inflated_poisson", "..._gamma", "..._log_normal",
                        "..._negative_binomial"; "bernoulli": 0 or 1; "categorical": symbols; "regression" on inputs,
                        "logistic" for symbols; "autoregressive"; both of numbers with heavy tails:
                        "regression_student_t", "autoregressive_student_t"; a list: one for each column;
                        or a name of one's own in `rankfold.params.observations.OBSERVATIONS`
    covariance_type     "diag", "spherical", "full", "tied" (one full matrix for all states), or "low_rank", of
                        `covariance_rank`, plus a diagonal
    n_mix               gaussian_mixture: Gaussians of each state
    n_inputs            regression, logistic: the last so many columns of X are inputs; 0: they come as `inputs=`
    input_driven        what `inputs=` drive besides: ("transition",), ("start",) or both, by softmax regressions; or a
                        dict with a torch.nn.Module of one's own for each, from inputs "n k" to logits "n z z" or "n z";
                        "observations": one for logistic observations, to logits "n z c"
    input_rank          None: any weights "z z k" of transitions; else weights of this rank
    input_prior         the precision of a normal prior of these weights, and of logistic coefficients; 0: none
    order               autoregressive: how many frames before count; zeros stand before the first
    rank                None: a dense transition; else one of this rank: O(t z r) instead of O(t z^2)
    tied_variance       one variance per feature for all states
    tied_states         the group of each state, [0, 0, 1, ...]: the states of a group share their observations, whose
                        tables have a row for each group
    min_variance        the least variance, as a share of the feature's variance in all frames; 0: none
    variance_prior      as if each state had seen so many frames of the variance of all; 0: none
    smoothing           added to the expected count of every start, transition, symbol, 0 and 1; 0: maximum likelihood
    initial_prior, transition_prior, emission_prior     concentrations of Dirichlet priors, numbers or arrays, from 1 on
    ends                whether sequences end by themselves: each state has a probability `end_` to be the last (of an
                        HSMM after each segment); else lengths are given
    end_prior           ends: concentrations (end, go on) of beta priors, "2" or "z 2", from 1 on
    sticky              added to the count of every transition of a state to itself
    mean_prior, mean_weight     as if each mean had seen `mean_weight` frames at `mean_prior` (None: the mean of all)
    fixed               tables of `start` that stay as they are, ("transition", ...); {"transition": "z z"}: entries
    forbidden           true where a state may not follow another, "z z"; "left_to_right", "linear", "band:2" (states
                        at most 2 apart in number follow one another); dense alone
    init                "kmeans" or "random" means; `start` gives tables instead: initial, transition, mean, ...
    n_init, max_iter    the best of so many starts; at most so many EM steps (or passes of gradient steps) each
    tol                 stop when a step gains less than this, in nats per frame; None: never
    learning_rate       of algorithm="sgd"; `batch_size`: how many sequences per step, also of "minibatch"
    momentum            minibatch: the share of the running counts that stays at a step of the first pass
    n_symbols           categorical: symbols are 0..n_symbols - 1; None: the symbols of the data
    missing             of a frame with some features NaN: "feature" sums over those alone, exactly; "row" takes the
                        whole frame for missing; "error" refuses it
    verbose             a line for each step on standard error
    """

    input_driven: str | Sequence[str] | Mapping[str, Any] = ()
    input_rank: int | None = None
    input_prior: float = 0.0


@dataclass(eq=False, repr=False, kw_only=True)
class HSMM(OfStates):
    """A hidden semi-Markov model: segments with a state and a duration; fitted by exact EM.

    max_duration        the longest segment, in frames; None: 20, doubled as long as longer segments would gain
                        likelihood, up to 1,280 and the longest sequence. `fit` and `segment` warn where they would
    min_duration        the shortest segment, in frames
    durations           "poisson" (its rate is found exactly), "negative_binomial" (by steps that never lose) or
                        "categorical", a table; all cut to `min_duration` .. `max_duration` and normalised
    self_transitions    whether a segment may follow one of its own state
    censored            whether the end of a sequence may cut its last segment

    and everything that `HMM` has, but for transitions and starts that inputs drive.
    """

    max_duration: int | None = None
    min_duration: int = 1
    durations: Literal["poisson", "negative_binomial", "categorical"] = "poisson"
    self_transitions: bool = False
    censored: bool = False
