"""What scikit-learn asks of an estimator: parameters, tags, whether it is fitted, metadata routing."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any, Self

from rankfold.estimators.fit_prior import kind_name
from rankfold.params.observations import OBSERVATIONS


class NotFittedError(ValueError, AttributeError):
    """A question to an estimator that has seen no data."""


class ScikitLearnMethods:
    """Parameters are the arguments of `__init__`, kept under their own names and not touched before `fit`."""

    @classmethod
    @functools.cache
    def _names(cls) -> tuple[str, ...]:
        return tuple(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters and their values."""
        return {name: getattr(self, name) for name in self._names()}

    def _fit_params(self) -> dict[str, Any]:
        """The parameters of a fit, by the names that `HMM` and `HSMM` have for them."""
        return self.get_params()

    def set_params(self, **params: Any) -> Self:
        """Change parameters; a fitted model stays until the next fit."""
        names = self._names()
        for name, value in params.items():
            if name not in names:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}; it has {', '.join(names)}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self).__init__).parameters.items()}
        given = [
            f"{name}={getattr(self, name)!r}"
            for name in self._names()
            if not _same(getattr(self, name), defaults[name])
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "history_")

    def __sklearn_tags__(self) -> Any:
        """The tags that scikit-learn reads."""
        from sklearn.utils import InputTags, Tags, TargetTags

        kind = OBSERVATIONS.get(kind_name(getattr(self, "observations", "gaussian")))
        symbols = kind is not None and kind.symbols
        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(
                two_d_array=True,
                allow_nan=not symbols,
                categorical=symbols,
            ),
        )

    def get_metadata_routing(self) -> Any:
        """What scikit-learn's metadata routing passes to each method, as `set_fit_request` and the like have set it."""
        from sklearn.utils.metadata_routing import MetadataRequest

        if "_metadata_request" in vars(self):
            return copy.deepcopy(self._metadata_request)
        found = MetadataRequest(owner=type(self).__name__)
        for method, names in _routed(type(self)).items():
            for name in names:
                getattr(found, method).add_request(param=name, alias=None)
        return found

    def set_fit_request(self, **asked: bool | str | None) -> Self:
        """Let scikit-learn's searches and pipelines pass (True) or keep back (False) arguments of `fit`."""
        return self._request("fit", asked)

    def set_partial_fit_request(self, **asked: bool | str | None) -> Self:
        """The same of `partial_fit`."""
        return self._request("partial_fit", asked)

    def set_score_request(self, **asked: bool | str | None) -> Self:
        """The same of `score`."""
        return self._request("score", asked)

    def set_predict_request(self, **asked: bool | str | None) -> Self:
        """The same of `predict`."""
        return self._request("predict", asked)

    def set_predict_proba_request(self, **asked: bool | str | None) -> Self:
        """The same of `predict_proba`."""
        return self._request("predict_proba", asked)

    def _request(self, method: str, asked: Mapping[str, bool | str | None]) -> Self:
        from sklearn import get_config

        if not get_config().get("enable_metadata_routing", False):
            raise RuntimeError(
                "metadata routing is off, so that requests would do nothing.\n"
                "  Call sklearn.set_config(enable_metadata_routing=True) first."
            )
        names = _routed(type(self)).get(method, ())
        for name in asked:
            if name not in names:
                raise TypeError(
                    f"set_{method}_request got {name!r}, but {type(self).__name__}.{method} has "
                    f"{', '.join(names) or 'nothing'} to pass on."
                )
        routing = self.get_metadata_routing()
        for name, alias in asked.items():
            getattr(routing, method).add_request(param=name, alias=alias)
        self._metadata_request = routing  # scikit-learn's clone copies what has this name
        return self

    def _expect_fitted(self) -> None:
        if self.__sklearn_is_fitted__():
            return
        # scikit-learn knows its own error alone; where it is loaded, that one is raised.
        theirs = sys.modules.get("sklearn.exceptions")
        kind = NotFittedError if theirs is None else theirs.NotFittedError
        raise kind(f"this {type(self).__name__} is not fitted yet: call fit(...) first.")


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float | bool) and bool(value == default))


METADATA = ("lengths", "labels", "inputs", "sample_weight")  # what data may bring along with frames


def _routed(kind: type) -> dict[str, tuple[str, ...]]:
    """The arguments of each method that scikit-learn can pass on."""
    methods = ("fit", "partial_fit", "score", "predict", "predict_proba")
    return {
        method: tuple(x for x in METADATA if x in inspect.signature(getattr(kind, method)).parameters)
        for method in methods
        if hasattr(kind, method)
    }
