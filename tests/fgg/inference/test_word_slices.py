"""Derived factors are made at the words of a query alone where those are fewer than the vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfold.fgg import (
    Grammar,
    automaton_query,
    conjoin,
    cost,
    marginals,
    merge,
    rank_space,
    string_query,
    sum_product,
)
from rankfold.fgg.factors import Derived
from tests.fgg.cases import TD_PCFG
from tests.fgg.plain import example

MANY = TD_PCFG.replace("V = 5", "V = 50")
BOTH_SIDES = """
domain Z = 3; rank R = 2; observed V = 50
S() -> f(z: Z) T(z)
T(z: Z) -> l(z, w: V) d(z, q: R) e(x: Z, q) T(x) r(z, y: V) | k(z) l(z, w)
"""
ONE, TWO = [7, 30, 7, 49, 0], [[7, 30, 7, 0, 1], [2, 49, 30, 30, 8]]


def given(text: str) -> tuple[Grammar, list[Tensor]]:
    g = example(text)
    leaves = {name: x.detach().requires_grad_() for name, x in g.factors.items() if isinstance(x, Tensor)}
    return g.with_factors(leaves), list(leaves.values())


def largest_derived(g: Grammar, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most entries of any derived factor that a sum makes."""
    found = [0]
    value = Derived.value

    def seen(self: Derived, *args: object) -> Tensor:
        out = value(self, *args)  # type: ignore[arg-type]
        found.append(out.numel())
        return out

    monkeypatch.setattr(Derived, "value", seen)
    sum_product(g)
    monkeypatch.undo()
    return max(found)


@pytest.mark.parametrize("words", [torch.tensor(ONE), torch.tensor(TWO)])
@pytest.mark.parametrize("text", [MANY, BOTH_SIDES])
def test_sums_and_gradients_are_those_of_the_whole_factors(
    text: str, words: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, leaves = given(text)
    asked = conjoin(g, string_query(words))
    wanted = sum_product(asked)
    slopes = torch.autograd.grad(wanted.sum(), leaves)
    for form in (conjoin(rank_space(g), string_query(words)), rank_space(asked)):
        found = sum_product(form)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
        for a, b in zip(torch.autograd.grad(found.sum(), leaves), slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)
        assert largest_derived(form, monkeypatch) <= 4 * words.numel() ** (2 if text is BOTH_SIDES else 1)


def test_factors_of_factors_are_sliced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    g = example("domain Z = 2; observed V = 90\nS() -> f(z: Z) T(z)\nT(z: Z) -> a(z) e(z, w: V)")
    form = conjoin(rank_space(merge(g)), string_query([[80], [3]]))
    torch.testing.assert_close(sum_product(form), sum_product(conjoin(g, string_query([[80], [3]]))))
    assert largest_derived(form, monkeypatch) <= 4


def test_words_that_are_not_one_value_and_expected_counts_need_whole_factors() -> None:
    g, _ = given(MANY)
    arcs = [(0, 1, None), (1, 2, [3, 4]), (2, 3, None)]
    for query in (automaton_query(arcs, finals=[3]), string_query(torch.tensor([[7, -1, 9], [1, 2, 3]]))):
        torch.testing.assert_close(sum_product(conjoin(rank_space(g), query)), sum_product(conjoin(g, query)))
    form = conjoin(rank_space(g), string_query([7, 30, 7]))
    counts = marginals(form).factors["v[in(P,N+P),emit]"]
    assert counts.shape == (2, 50)
    torch.testing.assert_close(counts.sum(0).nonzero()[:, 0], torch.tensor([7, 30]))


def test_costs_do_not_grow_with_the_vocabulary() -> None:
    few, many = (
        cost(conjoin(rank_space(example(TD_PCFG.replace("V = 5", f"V = {n}"))), string_query([0, 5, 1, 2])))
        for n in (6, 5000)
    )
    assert few.multiply_adds == many.multiply_adds
    assert few.bytes == many.bytes
