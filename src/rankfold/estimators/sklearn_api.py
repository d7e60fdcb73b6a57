"""What scikit-learn asks of an estimator, without scikit-learn: parameters, copies, tags, "not fitted yet"."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Self

from rankfold.params.observations import OBSERVATIONS


class NotFittedError(ValueError, AttributeError):
    """A question to an estimator that has seen no data."""


class ScikitLearnMethods:
    """Parameters are the arguments of `__init__`, kept under their own names and not touched before `fit`."""

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters and their values."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; what was fitted stays until the next fit."""
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
        """What scikit-learn may expect: asked for by scikit-learn alone."""
        from sklearn.utils import InputTags, Tags, TargetTags

        kind = OBSERVATIONS.get(getattr(self, "observations", "gaussian"))
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

    def _expect_fitted(self) -> None:
        if self.__sklearn_is_fitted__():
            return
        # scikit-learn knows its own error alone; where it is loaded, that one is raised.
        theirs = sys.modules.get("sklearn.exceptions")
        kind = NotFittedError if theirs is None else theirs.NotFittedError
        raise kind(f"this {type(self).__name__} is not fitted yet: call fit(...) first.")


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float | bool) and bool(value == default))
