"""The tables of an estimator as attributes, to read and to set; estimators from known tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DomainError, UnsupportedError
from rankfold.estimators.check_parameters import expect_kind, expect_parameters, fixed_parameters
from rankfold.estimators.known_tables import (
    TABLES,
    MissingTableError,
    driven_sizes,
    fill_start,
    is_low_rank,
    known_tables,
    model_of,
    observation_sizes,
    own_names,
    shape_of,
)
from rankfold.models.frame_model import FrameModel
from rankfold.params.prior import Prior
from rankfold.training.em import Running

Array = NDArray[Any]


def _table(public: str, what: str) -> Any:
    """An attribute that reads and sets a table of the model."""

    def read(self: Any) -> Array:
        return self._read_table(public)  # type: ignore[no-any-return]

    def write(self: Any, value: Any) -> None:
        self._write_table(public, value)

    return property(read, write, doc=what)


def _renamed(there: str, here: str) -> Any:
    """A name of hmmlearn's, refused: set in silence, it would count for nothing."""

    def refuse(*_: Any) -> None:
        raise AttributeError(f"there is no {there}; hmmlearn's {there} is {here} here.")

    return property(refuse, refuse, doc=f"Refused: it is `{here}` here.")


class Tables:
    """Attributes by the names of hmmlearn's users; one that is set before a fit counts as a known table.

    As soon as all tables that a model needs are set, it can be asked. A fit then begins with `start`, not with them.
    """

    model_: FrameModel
    history_: list[float]
    _running: Running | None

    initial_ = _table("initial", 'The distribution of the first state, "z".')
    transition_ = _table("transition", 'The transitions, "z z"; of a low rank written out.')
    means_ = _table("means", 'The means, "z f"; of mixtures "z m f".')
    covariances_ = _table("covariances", 'As `covariance_type`: "z f", "z", "z f f", "f f"; of mixtures one each.')
    emission_ = _table("emission", 'The probabilities of symbols "z v", of ones, or of kinds of counts "z f".')
    rates_ = _table("rates", 'The rates of Poisson, gamma, exponential and negative binomial observations, "z f".')
    weights_ = _table("weights", 'The weights of the Gaussians of each state, "z m".')
    coefficients_ = _table(
        "coefficients", 'Of regressions "z o k", of autoregressions "z f (p f)", the last frame first.'
    )
    intercepts_ = _table("intercepts", 'The constants of regressions, "z o".')
    loadings_ = _table("loadings", 'The factors L of low-rank covariances L L^T + diag(noises), "z f r".')
    noises_ = _table("noises", 'The variances next to the factors of low-rank covariances, "z f".')
    scales_ = _table("scales", 'The squared scales of Student\'s t, "z f".')
    degrees_ = _table("degrees", 'The degrees of freedom of Student\'s t, "z f".')
    shapes_ = _table("shapes", 'The shapes of gamma and negative binomial observations, "z f", next to `rates_`.')
    alpha_ = _table("alpha", 'The first parameters of beta observations, "z f".')
    beta_ = _table("beta", 'The second parameters of beta observations, "z f".')
    deviations_ = _table("deviations", 'The deviations of half-normal observations, "z f".')
    zeros_ = _table("zeros", 'The probability "z f" of a zero that zero-inflated observations add.')
    concentrations_ = _table("concentrations", 'The concentrations of angles, "z f"; their directions are `means_`.')

    transition_weights_ = _table("transition_weights", 'The weights "z z k" of inputs that drive transitions.')
    initial_weights_ = _table("initial_weights", 'The weights "z k" of inputs that drive the start.')

    end_ = _table("end", 'The probability of the end after each state, "z".')

    startprob_ = _renamed("startprob_", "initial_")
    transmat_ = _renamed("transmat_", "transition_")
    covars_ = _renamed("covars_", "covariances_")
    emissionprob_ = _renamed("emissionprob_", "emission_")
    lambdas_ = _renamed("lambdas_", "rates_")

    @property
    def durations_(self) -> Array:
        """The probability "z d" of each duration, the first column is that of one frame."""
        self._expect_fitted()  # type: ignore[attr-defined]
        if self.model_.duration is None:
            raise UnsupportedError("an HMM has no table of durations: its states last geometrically.\n  Use HSMM.")
        found: Array = self.model_.duration().detach().double().exp().cpu().numpy()
        return found

    @durations_.setter
    def durations_(self, value: Any) -> None:
        self._write_table("durations", value)

    @property
    def tables_(self) -> dict[str, Array]:
        """All tables of the model by the names that `start` and `fixed` know them by."""
        self._expect_fitted()  # type: ignore[attr-defined]
        return {name: table.value.cpu().numpy().copy() for name, table in known_tables(self.model_).items()}

    @property
    def stationary_distribution_(self) -> Array:
        """The share of frames "z" of each state in the long run; raises where it depends on the first state.

        p = p A; of segments weighted by their mean durations.
        """
        found = _stationary(self.transition_)
        if self.model_.duration is not None:
            table = self.durations_
            found = found * (table @ np.arange(1, table.shape[1] + 1))
        share: Array = found / found.sum()
        return share

    def _read_table(self, public: str) -> Array:
        self._expect_fitted()  # type: ignore[attr-defined]
        if public == "transition":
            dense: Array = self.model_.parts().transition.to_dense().detach().double().cpu().numpy()
            return dense
        if public == "transition_weights" and self.model_.config.drivers_rank:
            return self.model_.dynamics.transition.weight.detach().double().cpu().numpy()  # type: ignore[no-any-return]
        known = known_tables(self.model_)
        try:
            (name,) = own_names({public: None}, known, "the model")
        except DomainError:
            raise AttributeError(
                f"a model of {self.model_.config.observations} observations has no {public}_; it has "
                f"{', '.join(known)} (`tables_`)."
            ) from None
        return known[name].value.cpu().numpy().copy()

    def _write_table(self, public: str, value: Any) -> None:
        self._by_hand = vars(self).get("_by_hand", frozenset()) | {public}
        if self.__sklearn_is_fitted__():  # type: ignore[attr-defined]
            if public == "durations" and self.model_.config.durations != "categorical":
                raise UnsupportedError(
                    f"durations are {self.model_.config.durations!r}, which has a formula and no table to set.\n"
                    '  Use HSMM(durations="categorical"), or HSMM.from_tables(..., durations=).'
                )
            fill_start(self.model_, {public: value}, Prior(), TABLES)
            return
        pending = {**vars(self).get("_pending", {}), public: value}
        self._pending = pending
        try:
            self._take_tables(pending)
        except MissingTableError:
            return

    def _known_model(self, params: Mapping[str, Any], tables: Mapping[str, Any]) -> FrameModel:
        return model_of(params, tables)

    def _take_tables(self, tables: dict[str, Any], symbols: Sequence[Any] | None = None) -> None:
        """Be the estimator with these tables, as if fitted."""
        params = self._fit_params()  # type: ignore[attr-defined]
        expect_parameters(params)
        model = self._known_model(params, tables)
        if params["n_states"] != model.config.num_states:
            raise DomainError(
                f"initial has {model.config.num_states} states, but n_states is {params['n_states']}.\n"
                "  Set n_states, or use from_tables."
            )
        self.model_, self.history_, self.converged_, self.n_iter_ = model, [], False, 0
        self._prior, self._running, self._made_with = Prior(), None, fixed_parameters(params)
        self.n_features_in_ = 1 if model.observation.symbols else model.config.num_features
        if model.observation.symbols:
            size = model.config.num_features
            found = np.arange(size) if symbols is None else np.array(list(symbols))
            if found.shape != (size,) or len(np.unique(found)) < size:
                raise DomainError(
                    f"symbols are {len(found)}, but emission has {size} columns, each a symbol of its own."
                )
            order = np.argsort(found)
            self.symbols_ = found[order]
            if (order != np.arange(size)).any():
                table = known_tables(model)["probability"].value.cpu().numpy()
                fill_start(model, {"probability": table[:, order]}, Prior(), TABLES)
        vars(self).pop("_pending", None)

    @classmethod
    def from_tables(
        cls,
        *,
        initial: Any,
        transition: Any,
        observations: str | Sequence[str] = "gaussian",
        symbols: Sequence[Any] | None = None,
        **given: Any,
    ) -> Self:
        """The estimator with known tables, as if it had been fitted; a fit of it begins with them.

        initial "z"; transition "z z", or a pair p(rank | state) "z r", p(state | rank) "z r". Of the observations
        means=, covariances= (as covariance_type says), rates=, emission=, weights= of mixtures, coefficients= and
        intercepts= of regressions, transition_weights= "z z k" and initial_weights= "z k" of inputs that drive them,
        end= "z", or any name of `tables_`; `symbols` of the columns of emission. HSMM: durations=, a table "z d".
        Further arguments are parameters of the estimator.
        """
        expect_kind(observations)
        known = set(cls._names())  # type: ignore[attr-defined]
        tables = {name: value for name, value in given.items() if name not in known or name == "durations"}
        params: dict[str, Any] = {"n_states": next(iter(shape_of(initial, "initial")), 1)}
        shapes = {name: shape_of(value, name) for name, value in tables.items() if value is not None}
        if driven := driven_sizes(shapes):
            params["input_driven"] = driven["driven"]
        if "end" in shapes:
            params["ends"] = True
        params |= {name: value for name, value in given.items() if name not in tables}
        if "durations" in tables and "durations" not in known:
            raise DomainError("durations are given, but an HMM has none.\n  Use HSMM.from_tables.")
        start = dict(tables)
        if "durations" in tables:
            start["duration"] = start.pop("durations")
            params |= {"max_duration": next(reversed(shapes["durations"]), 1), "durations": "categorical"}
        start["initial"] = initial
        if is_low_rank(transition):
            start["left"], start["right"] = transition
            params["rank"] = np.shape(transition[0])[-1]
        else:
            start["transition"] = transition
        if symbols is not None and "emission" in start:
            start["emission"] = np.asarray(start["emission"])[
                :, np.argsort(list(symbols))[: np.shape(start["emission"])[1]]
            ]
        made = cls(observations=observations, start=start, **params)  # type: ignore[call-arg]
        _, sizes = observation_sizes(made.get_params(), shapes)  # type: ignore[attr-defined]
        made.set_params(  # type: ignore[attr-defined]
            n_mix=sizes["num_components"], order=sizes["order"], n_inputs=sizes["num_covariates"],
            covariance_rank=sizes["covariance_rank"],
        )  # fmt: skip
        made._take_tables({**tables, "initial": initial, "transition": transition}, symbols)
        return made


def _stationary(transition: Array) -> Array:  # "z y" -> "z"
    """The shares p = p A: exactly 0 for states that are left for good, others by elimination without a subtraction."""
    num_states = len(transition)
    reached = (transition > 0) | np.eye(num_states, dtype=bool)
    for _ in range(num_states.bit_length()):
        reached = reached.astype(float) @ reached > 0
    stays = (~reached | reached.T).all(1)
    if not reached[np.ix_(stays, stays)].all():
        raise DomainError("states fall into parts that never meet: the share of each depends on the first state.")
    table = transition[np.ix_(stays, stays)].astype(float)
    for last in range(len(table) - 1, 0, -1):  # the chain seen only while it is in the states before `last`
        table[:last, last] /= table[last, :last].sum()
        table[:last, :last] += np.outer(table[:last, last], table[last, :last])
    shares = np.ones(len(table))
    for state in range(1, len(table)):
        shares[state] = shares[:state] @ table[:state, state]
    found = np.zeros(num_states)
    found[stays] = shares / shares.sum()
    return found
