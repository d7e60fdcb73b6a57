"""Many small cases in one test: pytest and its workers take longer over a test than most of these cases do."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any


def folded(names: str, values: Collection[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but a loop within the test; an error says for which value it came.

    Fixtures are set up once for all values; a `generator` is seeded anew for each. Not for tests that skip or patch.
    """
    keys = names.split(", ")

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        rest = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        assert len(rest) == len(signature.parameters) - len(keys), f"{test.__name__} does not take {names}"

        @functools.wraps(test)
        def every(**fixtures: Any) -> None:
            assert len(values), f"{names}: no values"
            for value in values:
                if "generator" in fixtures:
                    fixtures["generator"].manual_seed(0)
                given = dict(zip(keys, value if len(keys) > 1 else [value], strict=True))
                try:
                    test(**given, **fixtures)
                except Exception as error:
                    error.add_note(f"where {', '.join(f'{key} is {x!r}' for key, x in given.items())}")
                    raise

        every.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return every

    return decorate
