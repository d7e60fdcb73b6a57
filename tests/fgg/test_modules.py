"""Factors that modules give: their weights are checked when they are asked for, in whatever form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rankfold.errors import DomainError
from rankfold.fgg import (
    Factored,
    Grammar,
    best,
    conjoin,
    decompose,
    marginals,
    merge,
    rank_space,
    string_query,
    sum_product,
)
from tests.fgg.plain import HMM, example


class Given(torch.nn.Module):
    def __init__(self, value: torch.Tensor | Factored) -> None:
        super().__init__()
        self.value = value

    def forward(self) -> torch.Tensor | Factored:
        return self.value


BAD = torch.tensor([[1.0, -0.5], [0, 2]], dtype=torch.float64)


@pytest.mark.parametrize("ask", [sum_product, best, marginals, lambda g: sum_product(merge(g))])
@pytest.mark.parametrize("module", [Given(BAD), Given(Factored.cpd(BAD, BAD.abs()))])
def test_weights_of_modules_are_checked_when_they_are_asked_for(
    ask: Callable[[Grammar], object], module: Given
) -> None:
    asked = conjoin(example(HMM).with_factors({"next": module}), string_query([0, 1]))
    with pytest.raises(DomainError, match=r"factor '\w+.*\[0,\d\] is -.*, but weights(.|\n)*log_weights.exp\(\)"):
        ask(asked)


def test_weights_of_modules_are_checked_in_rank_space() -> None:
    g = decompose(example(HMM), {"next": [Given(BAD), Given(BAD.abs())]})
    query = string_query([0, 1])
    for asked in (conjoin(g, query), conjoin(rank_space(g), query), rank_space(conjoin(g, query))):
        with pytest.raises(DomainError, match=r"next_0.*\[0,1\] is -0.5, but weights"):
            sum_product(asked)


def test_negative_weights_are_told_what_to_do() -> None:
    with pytest.raises(DomainError, match=r"'next'\[0,1\] is -0.5(.|\n)*give the exponential"):
        example(HMM).with_factors({"next": BAD})
