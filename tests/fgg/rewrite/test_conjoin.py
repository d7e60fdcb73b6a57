"""The conjunction of two grammars: derivations of both, weights multiplied, and when it is refused."""

from __future__ import annotations

import pytest
import torch

from rankfold.errors import DomainError
from rankfold.fgg import conjoin, parse
from tests.fgg.plain import example, plain
from tests.oracles import fgg as oracle

# Two unary chains over the same nodes: one of at most two steps, one that marks each step as even or odd.
CHAIN = """
domain Z = 2
S() -> first(z) One(z)
One(z: Z) -> stop(z) | step(z, y: Z) Two(y)
Two(z: Z) -> stop(z) | step(z, y) Three(y)
Three(z: Z) -> stop(z)
"""
PARITY = """
domain Z = 2; domain W = 3
S() -> Even(z: Z)
Even(z: Z) -> mark(z, w: W) Odd(y: Z) | even(z)
Odd(z: Z) -> mark(z, w: W) Even(y: Z)
"""


def test_the_sum_is_over_common_derivations() -> None:
    g, h = example(CHAIN, seed=1), example(PARITY, seed=2)
    both = conjoin(g, h)
    first, step, stop = (g.tensor(name) for name in ("first", "step", "stop"))
    mark, even = h.tensor("mark").sum(1), h.tensor("even")
    # Stopping at once, or after two steps; one step is odd.
    expected = (first * stop) @ even + ((first * mark) @ step * mark) @ step @ (stop * even)
    assert oracle.total(*plain(both)) == pytest.approx(float(expected), rel=1e-12)
    assert {label.name for label in both.labels if not label.is_terminal} == {
        "S[S]",
        "One[Even]",
        "Two[Odd]",
        "Three[Even]",
    }
    assert both.label("Two[Odd]").origin == "Two"


def test_the_order_of_two_grammars_does_not_matter_for_the_sum() -> None:
    g, h = example(CHAIN, seed=1), example(PARITY, seed=2)
    one, two = oracle.total(*plain(conjoin(g, h))), oracle.total(*plain(conjoin(h, g)))
    assert one == pytest.approx(two, rel=1e-12)


def test_observed_nodes_meet() -> None:
    g = example("domain Z = 3; S() -> f(z: Z)")
    h = example("domain Z = 3; S() -> g(z: Z = 2)\nS() -> g(z: Z = 0)")
    expected = sum(float(g.tensor("f")[k] * h.tensor("g")[k]) for k in (0, 2))
    assert oracle.total(*plain(conjoin(g, h))) == pytest.approx(expected, rel=1e-12)
    fixed = example("domain Z = 3; S() -> f(z: Z = 2)")
    expected = float(fixed.tensor("f")[2] * h.tensor("g")[2])
    assert oracle.total(*plain(conjoin(fixed, h))) == pytest.approx(expected, rel=1e-12)


def test_nothing_in_common_is_a_sum_of_zero() -> None:
    g = example("domain Z = 2; S() -> f(z: Z) X(z); X(z: Z) -> f(z)")
    h = example("domain Z = 2; S() -> X(z: Z); X(z: Z) -> h(z) X(z) | Y(z) Y(z); Y(z: Z) -> h(z)", seed=3)
    both = conjoin(g, h)
    assert both.rules == ()
    assert oracle.total(*plain(both)) == 0


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("domain Z = 2; S() -> One(y: Z); One(y: Z) -> g(y)", r"nonterminals of rule 'S.1' attach to \[\('z',\)\]"),
        ("domain Z = 3; S() -> g(z: Z)", "different domains 'Z': of 2 and 3 values"),
        (
            "domain Z = 2; domain W = 2; factor step: Z, W; S() -> step(z, w)",
            r"different factors 'step': over \(Z, Z\)",
        ),
        ("domain W = 2; S() -> Q(z: W); Q(z: W) -> g(z)", "rules 'S.1' and 'S.1' have different domains or values"),
    ],
)
def test_grammars_that_do_not_conjoin_say_why(second: str, message: str) -> None:
    with pytest.raises(DomainError, match=message):
        conjoin(parse(CHAIN), parse(second))


def test_two_tensors_of_one_name_are_refused() -> None:
    g = parse("domain Z = 2; S() -> f(z: Z)")
    one, two = g.with_factors({"f": torch.ones(2)}), g.with_factors({"f": torch.ones(2)})
    with pytest.raises(DomainError, match="factor 'f', with different tensors"):
        conjoin(one, two)
    assert oracle.total(*plain(conjoin(one, g))) == 2
