"""Cases folded into one test: all of them run, each with a fresh generator, and one that fails is named."""

import pytest
import torch

from tests.folded import folded


def test_every_case_runs_and_the_one_that_fails_is_named(generator: torch.Generator) -> None:
    seen = []

    @folded("size", [1, 2])
    @folded("name, low", [("a", 0.0), ("b", 1.0)])
    def check(size: int, name: str, low: float, generator: torch.Generator) -> None:
        seen.append((size, name, float(torch.rand((), generator=generator))))
        assert size + low < limit

    limit = 9
    check(generator=generator)
    first = seen[0][2]
    assert seen == [(size, name, first) for size in (1, 2) for name in "ab"]
    limit = 3
    with pytest.raises(AssertionError) as caught:
        check(generator=generator)
    assert caught.value.__notes__ == ["where name is 'b', low is 1.0", "where size is 2"]
    with pytest.raises(AssertionError, match="does not take width"):
        folded("width", [1])(check)
