"""Grammars with their words as text: what a query observed is written and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankfold.errors import DataError, DomainError
from rankfold.fgg import (
    Query,
    automaton_query,
    conjoin,
    format_text,
    parse,
    read,
    string_query,
    sum_product,
    write,
)
from tests.fgg.plain import HMM, PCFG, example


@pytest.mark.parametrize(
    "query",
    [
        string_query([2, 0, 1]),
        string_query([[2, 0, 1], [0, None, 1]]),
        string_query([None, 1, 1]),
        automaton_query([(0, 1, 0), (1, 2, [0, 1]), (2, 3, None)], finals=[2, 3]),
    ],
)
@pytest.mark.parametrize("text", [HMM, PCFG, 'observed V = "a" "b" "c"; S() -> f(w: V) S() f("b") | f(w)'])
def test_a_grammar_with_its_query_comes_back(tmp_path: Path, text: str, query: Query) -> None:
    asked = conjoin(example(text), query)
    write(asked, tmp_path / "q.fgg", weights=True)
    again = read(tmp_path / "q.fgg")
    torch.testing.assert_close(sum_product(again), sum_product(asked), rtol=1e-12, atol=0)
    assert {name: table.tolist() for name, table in again.observed.items()} == {
        name: table.tolist() for name, table in asked.observed.items()
    }
    assert format_text(again, weights=True) == format_text(asked, weights=True)


def test_a_grammar_of_no_derivation_comes_back() -> None:
    asked = conjoin(example(HMM), string_query([[], []]))
    assert asked.rules == ()
    with pytest.warns(UserWarning, match="derives nothing"):
        again = parse(format_text(asked, weights=True))
    assert sum_product(again).tolist() == sum_product(asked).tolist() == [float("-inf")] * 2


def test_observed_values_that_nobody_gave_are_an_error() -> None:
    g = example("observed V = 2; factor f: V; S() -> f(w = V[0])")
    with pytest.raises(DomainError, match=r"the grammar has no values 'V'(.|\n)*with_observed"):
        sum_product(g)
    found = sum_product(g.with_observed({"V": torch.tensor([1])}), "real")
    torch.testing.assert_close(found, g.tensor("f")[1], rtol=0, atol=0)


def test_a_constant_of_no_domain_is_told_to_declare_its_factor() -> None:
    with pytest.raises(DataError, match=r"line 2, column 10: the domain of '\"\(\"' is not known; declare its factor"):
        parse('observed V = "(" ")"\nX() -> t("(")')
