"""Posteriors, best derivations and samples of recursive grammars without a query, against all derivations."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from rankfold.errors import DomainError
from rankfold.fgg import Derivation, Grammar, best, conjoin, marginals, parse, sample, string_query, sum_product
from tests.fgg.plain import plain, random_factors
from tests.oracles import fgg as oracle

LOOP = """
domain Z = 2
S() -> first(z) X(z)
X(z: Z) -> stop(z) | step(z, y: Z) X(y) | turn(z, y: Z) W(y)
W(y: Z) -> back(y, z: Z) X(z) | stop(y)
"""
TREE = "domain Z = 1\nS() -> X(z)\nX(z: Z) -> stop(z) | pair(z, y: Z) X(y) X(z)"


def small(text: str, by: float) -> Grammar:
    g = random_factors(parse(text))
    return g.with_factors({x: by * g.tensor(x) for x in ("step", "turn", "back", "pair") if x in g.factors})


@pytest.mark.parametrize(("text", "by", "depth"), [(LOOP, 0.002, 6), (TREE, 0.0001, 5)])
def test_posteriors_are_those_of_all_derivations(text: str, by: float, depth: int) -> None:
    g = small(text, by)
    found = list(oracle.trees(*plain(g), depth))
    z = math.fsum(weight for weight, _ in found)
    rules: Counter[str] = Counter()
    nonterminals: Counter[tuple[str, tuple[int, ...]]] = Counter()
    nodes: Counter[int] = Counter()
    for weight, uses in found:
        for (left, place), values in uses:
            rule = g.rules_of(left)[place]
            rules[rule.name] += weight / z  # type: ignore[assignment]
            nonterminals[left, tuple(values[x] for x in rule.right.externals)] += weight / z  # type: ignore[assignment]
            if rule.name == "X.2":
                nodes[values["y"]] += weight / z  # type: ignore[assignment]
    posterior = marginals(g, nodes=[("X.2", "y")])
    tail = 1e-8  # what deeper derivations weigh
    assert float(posterior.log_z) == pytest.approx(math.log(z), abs=tail)
    assert {k: float(x) for k, x in posterior.rules.items()} == pytest.approx(dict(rules), rel=tail)
    for (name, values), expected in nonterminals.items():
        assert float(posterior.nonterminals[name][values]) == pytest.approx(expected, rel=tail)
    for value, expected in nodes.items():
        assert float(posterior.nodes["X.2", "y"][value]) == pytest.approx(expected, rel=tail)
    for name in g.factors:
        x = g.tensor(name).clone().requires_grad_()
        (grad,) = torch.autograd.grad(sum_product(g.with_factors({name: x})), x)
        torch.testing.assert_close(posterior.factors[name], x.detach() * grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("text", "by", "depth"), [(LOOP, 0.5, 7), (TREE, 0.5, 4)])
def test_the_best_derivation_is_the_best_of_all(text: str, by: float, depth: int) -> None:
    g = small(text, by)
    found = best(g)
    assert isinstance(found, Derivation)
    weight, uses = max(oracle.trees(*plain(g), depth), key=lambda own: own[0])
    assert found.log_weight == pytest.approx(math.log(weight), rel=1e-12)
    assert float(sum_product(g, "max")) == pytest.approx(math.log(weight), rel=1e-12)
    assert [(x.rule, x.values) for x in found] == [
        (g.rules_of(left)[place].name, values) for (left, place), values in uses
    ]


def test_spans_of_a_query_whose_symbols_come_back_to_themselves() -> None:
    """X may turn into W and back over the same words: with probability 1 it is used at least once, W less often."""
    g = parse("""
domain Z = 1; observed V = 2
S() -> X(z: Z)
X(z: Z) -> pair(z) X(z) X(z) | turn(z) W(z) | word(z, o: V)
W(z: Z) -> back(z) X(z)
""")
    numbers = {"pair": [1.0], "turn": [0.5], "back": [0.5], "word": [[1.0, 2.0]]}
    g = g.with_factors({name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()})
    for words in ([0, 1], [[0, 1], [1, 1]]):
        posterior = marginals(conjoin(g, string_query(words)))
        # Each turn and return has weight 1/4: X is used 1 / (1 - 1/4) times, W once less.
        expected = torch.zeros(3, 3, dtype=torch.float64)
        expected[[0, 0, 1], [1, 2, 2]] = 4 / 3
        spans = {name: posterior.spans[name][..., 0].reshape(-1, 3, 3) for name in ("X", "W")}
        for name, by in (("X", 1.0), ("W", 0.25)):
            wanted = (by * expected).expand_as(spans[name])
            torch.testing.assert_close(spans[name], wanted, rtol=1e-10, atol=1e-12)


def test_the_best_derivation_may_be_deep() -> None:
    """It pays to go through all states before the end, and a loop of weight 1 is never gone through."""
    g = parse("domain Z = 4\nS() -> first(z) X(z)\nX(z: Z) -> stop(z) | step(z, y: Z) X(y)").with_factors(
        {
            "first": torch.tensor([1.0, 0.0, 0.0, 0.0]),
            "stop": torch.tensor([0.01, 0.01, 0.01, 1.0]),
            "step": torch.diag(torch.full((3,), 0.9), 1) + torch.eye(4),
        }
    )
    found = best(g)
    assert isinstance(found, Derivation)
    assert [x.values["z"] for x in found][1:] == [0, 1, 2, 3]
    assert found.log_weight == pytest.approx(3 * math.log(0.9), rel=1e-6)


def test_derivations_that_gain_weight_have_no_best() -> None:
    with pytest.raises(DomainError, match="no best derivation: those of X gain weight"):
        best(
            parse("S() -> X()\nX() -> stop() | go() X()").with_factors(
                {"stop": torch.tensor(0.5), "go": torch.tensor(1.5)}
            )
        )


def test_samples_have_the_frequencies_of_all_derivations(generator: torch.Generator) -> None:
    g, num = small(LOOP, 0.3), 4000
    every = [(weight, [(left, values) for (left, _), values in uses]) for weight, uses in oracle.trees(*plain(g), 5)]
    z = float(sum_product(g).exp())
    drawn: Counter[str] = Counter()
    found = sample(g, num=num, generator=generator)
    assert isinstance(found, list)
    assert len(found) == num
    for one in found:
        assert isinstance(one, Derivation)
        drawn[repr([(g.hrg.rule(x.rule).left, x.values) for x in one])] += 1
    likely = [(weight / z, uses) for weight, uses in every if weight / z > 0.01]
    assert sum(p for p, _ in likely) > 0.5
    for p, uses in likely:
        assert abs(drawn[repr(uses)] / num - p) < 5 * math.sqrt(p * (1 - p) / num)
