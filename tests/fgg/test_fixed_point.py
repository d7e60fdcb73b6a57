"""Recursive grammars: least fixed points, their gradients, and sums that are infinite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.fgg import Grammar, automaton_query, best, conjoin, count, parse, string_query, sum_product
from tests.fgg.plain import HMM, PCFG, example

BRANCHING = parse("S() -> Y()\nY() -> p() Y() Y() | q()")


def branching(p: Tensor | float, q: float) -> Grammar:
    p = p if isinstance(p, Tensor) else torch.tensor(p, dtype=torch.float64)
    return BRANCHING.with_factors({"p": p, "q": torch.tensor(q, dtype=torch.float64)})


@pytest.mark.parametrize(("p", "q"), [(0.3, 0.7), (0.7, 0.3), (0.1, 0.1), (0.0, 0.5)])
def test_the_least_of_two_solutions(p: float, q: float) -> None:
    """y = p y^2 + q has the solutions (1 +- sqrt(1 - 4 p q)) / 2 p."""
    least = q if p == 0 else (1 - math.sqrt(1 - 4 * p * q)) / (2 * p)
    assert sum_product(branching(p, q), "real").item() == pytest.approx(least, rel=1e-13)
    assert sum_product(branching(p, q)).item() == pytest.approx(math.log(least), abs=1e-13)


def test_at_the_double_root() -> None:
    # The solution moves by the square root of an error there: half of float64's digits are all there are.
    assert sum_product(branching(0.5, 0.5), "real").item() == pytest.approx(1.0, rel=1e-7)


def test_gradients_of_the_solution() -> None:
    p = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sum_product(branching(x, 0.6)), p)


def test_a_normalised_hmm_with_an_end_sums_to_one() -> None:
    g = example(HMM.replace("| emit(z, w)", "| emit(z, w) end(z)"))
    emit, move, end = (g.tensor(name) for name in ("emit", "next", "end"))
    total = move.sum(1) + end
    g = g.with_factors(
        {
            "initial": torch.tensor([0.25, 0.75], dtype=torch.float64),
            "emit": emit / emit.sum(1, keepdim=True),
            "next": move / total[:, None],
            "end": end / total,
        }
    )
    assert sum_product(g, "real").item() == pytest.approx(1.0, rel=1e-12)
    lengths = torch.stack([sum_product(conjoin(g, string_query([None] * n)), "real") for n in range(1, 40)])
    assert float(lengths.sum()) == pytest.approx(1.0, abs=1e-6)


def test_gradients_through_a_set_of_states() -> None:
    g = example(PCFG)
    rule = (g.tensor("rule") * 0.02).requires_grad_()

    def total(x: Tensor) -> Tensor:
        return sum_product(g.with_factors({"rule": x}))

    assert torch.autograd.gradcheck(total, rule, fast_mode=True)


def test_states_without_weight_do_not_make_it_singular() -> None:
    """State 0 only comes back to itself, with weight 1, and ends nowhere: its sum is 0, not infinite."""
    g = parse("domain Z = 2\nS() -> i(z) X(z)\nX(z: Z) -> next(z, y: Z) X(y) | end(z)").with_factors(
        {
            "i": torch.ones(2, dtype=torch.float64),
            "next": torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64)),
            "end": torch.tensor([0.0, 1.0], dtype=torch.float64),
        }
    )
    assert sum_product(g, "real").item() == pytest.approx(2.0, rel=1e-13)


def test_an_automaton_with_a_loop() -> None:
    """Strings a* b of one state: sum over n of (emit a)^n emit b."""
    g = parse(
        "domain Z = 1; observed V = 2\nfactor e: Z, V\nS() -> X(z: Z)\nX(z: Z) -> e(z, w) X(z) | e(z, w)"
    ).with_factors({"e": torch.tensor([[0.25, 0.5]], dtype=torch.float64)})
    h = conjoin(g, automaton_query([(0, 0, [0]), (0, 1, [1])], finals=[1]))
    assert sum_product(h, "real").item() == pytest.approx(0.5 / 0.75, rel=1e-13)


@pytest.mark.parametrize(("p", "q"), [(0.6, 0.6), (1.0, 1.0), (3.0, 2.0)])
def test_an_infinite_sum_is_an_error(p: float, q: float) -> None:
    with pytest.raises(DomainError, match=r"The sum is infinite.* Y "):
        sum_product(branching(p, q))


def test_a_loop_of_weight_one_is_an_error() -> None:
    g = parse("S() -> Y()\nY() -> one() Y() | one()").with_factors({"one": torch.ones((), dtype=torch.float64)})
    with pytest.raises(DomainError, match=r"infinite"):
        sum_product(g)


def test_counts_and_best_derivations_want_a_query() -> None:
    g = branching(0.3, 0.7)
    with pytest.raises(DomainError, match=r"infinite: counting.*Y needs Y"):
        count(g)
    with pytest.raises(UnsupportedError, match=r"recursive: Y needs Y(?s:.*)string_query"):
        best(g)
    with pytest.raises(UnsupportedError, match=r"recursive"):
        sum_product(g, "max")


def test_a_cycle_that_a_query_leaves_is_not_told_to_ask_one() -> None:
    g = example("domain Z = 2; observed V = 2; S() -> X(z: Z); X(z: Z) -> n(z, y: Z) X(y) | e(z, w: V)")
    asked = conjoin(g, string_query([0]))
    for ask, error in ((count, DomainError), (best, UnsupportedError)):
        with pytest.raises(error, match=r"X\[0,1\] needs X\[0,1\](.|\n)*remove rules that come back") as caught:
            ask(asked)
        assert "query first" not in str(caught.value)
