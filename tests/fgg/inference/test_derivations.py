"""Posteriors, best derivations and samples, against the weights of all derivations."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from rankfold.errors import DomainError
from rankfold.fgg import Derivation, Grammar, best, conjoin, marginals, parse, sample, string_query, sum_product
from tests.fgg.cases import CPD_HMM, TEXTS, asked, undecided
from tests.fgg.plain import HMM, PCFG, example, plain
from tests.oracles import fgg as oracle


def weight_of(g: Grammar, derivation: Derivation, sentence: int) -> float:
    """The product of all factors of a derivation, from the grammar's own tensors."""
    weight = 1.0
    for part in derivation:
        rule = g.hrg.rule(part.rule)
        for edge in g.hrg.terminal_edges(rule):
            x = g.tensor(edge.label)
            x = x[sentence] if g.label(edge.label).is_batched else x
            weight *= float(x[tuple(part.values[name] for name in edge.nodes)])
        for child, edge in zip(part.children, g.hrg.nonterminal_edges(rule), strict=True):
            below = g.hrg.rule(child.rule)
            assert below.left == edge.label
            assert [child.values[x] for x in below.right.externals] == [part.values[x] for x in edge.nodes]
    return weight


@pytest.mark.parametrize("name", TEXTS)
def test_the_best_derivation_is_the_best_enumerated(name: str) -> None:
    g = asked(name)
    found = best(g)
    assert isinstance(found, list)
    for sentence, derivation in enumerate(found):
        wanted = oracle.best(*plain(g, sentence))
        assert weight_of(g, derivation, sentence) == pytest.approx(wanted, rel=1e-12)
        assert derivation.log_weight == pytest.approx(math.log(wanted), rel=1e-12)


def test_without_a_batch_there_is_one() -> None:
    g = undecided()
    found = best(g)
    assert isinstance(found, Derivation)
    assert found.log_weight == pytest.approx(float(sum_product(g, "max")), rel=1e-12)


def test_samples_have_the_posterior_frequencies(generator: torch.Generator) -> None:
    num = 800
    g = conjoin(example(HMM), string_query([["a", "b"]] * num))
    z = oracle.total(*plain(g))
    drawn: Counter[tuple[int, ...]] = Counter()
    found = sample(g, generator=generator)
    assert isinstance(found, list)
    for one in found:
        drawn[tuple(part.values["z"] for part in one if "w" in part.values)] += 1
        assert weight_of(g, one, 0) == pytest.approx(math.exp(one.log_weight or 0.0), rel=1e-12)
    initial, emit, move = (g.tensor(name) for name in ("initial", "emit", "next"))
    for y, z2 in itertools.product(range(2), repeat=2):
        p = float(initial[y] * emit[y, 0] * move[y, z2] * emit[z2, 1]) / z
        # Five standard deviations: the generator is seeded, and another seed would fail once in two million times.
        assert abs(drawn[y, z2] / num - p) < 5 * math.sqrt(p * (1 - p) / num)


def test_samples_of_scaled_and_of_log_tables(generator: torch.Generator) -> None:
    """Where a sum needs logarithms (the likeliest state has no beginning), a sample goes by them."""
    g = parse(
        "domain Z = 2; observed V = 1\n"
        "S() -> initial(z) X(z)\nX(z: Z) -> emit(z, w: V) next(z, y: Z) X(y) | emit(z, w) end(z)"
    ).with_factors(
        {
            "initial": torch.tensor([0.0, 1.0], dtype=torch.float64),
            "emit": torch.tensor([[1.0], [1e-250]], dtype=torch.float64),
            "next": torch.eye(2, dtype=torch.float64),
            "end": torch.ones(2, dtype=torch.float64),
        }
    )
    one = sample(conjoin(g, string_query([0] * 5)), generator=generator)
    assert isinstance(one, Derivation)
    assert [part.values["z"] for part in one] == [1] * 6


def test_long_chains_need_no_deep_stack() -> None:
    lines = [f"X{k}(z: Z) -> next(z, y: Z) X{k + 1}(y)" for k in range(1100)]
    g = example("\n".join(["domain Z = 2", "S() -> next(z, z) X0(z)", *lines, "X1100(z: Z) -> next(z, z)"]))
    found = best(g)
    assert isinstance(found, Derivation)
    assert sum(1 for _ in found) == 1102


def test_nothing_to_choose_from_is_an_error(generator: torch.Generator) -> None:
    g = example(HMM)
    impossible = conjoin(g.with_factors({"emit": torch.zeros(2, 3, dtype=torch.float64)}), string_query([[0], [1]]))
    with pytest.raises(DomainError, match=r"No derivation of sentence 0 has any weight"):
        best(impossible)
    with pytest.raises(DomainError, match=r"No derivation of sentence 0"):
        sample(impossible, generator=generator)


def test_posteriors_are_those_of_enumeration() -> None:
    """Each rule's share of the total, by leaving it out; each nonterminal's is that of its rules."""
    g = asked("pcfg")
    found = marginals(g)
    for sentence in range(2):
        rules, factors, start = plain(g, sentence)
        z = oracle.total(rules, factors, start)
        names = {rule.name: (rule.left, k) for label in rules for k, rule in enumerate(g.rules_of(label))}
        for name, (left, k) in names.items():
            without = {**rules, left: [own for j, own in enumerate(rules[left]) if j != k]}
            share = 1 - oracle.total(without, factors, start) / z
            assert float(found.rules[name][sentence]) == pytest.approx(share, abs=1e-12)
        for label, posterior in found.nonterminals.items():
            own = sum(float(found.rules[rule.name][sentence]) for rule in g.rules_of(label))
            assert float(posterior[sentence].sum()) == pytest.approx(own, abs=1e-12)
    assert found.nonterminals["X[0,3]"].shape == (2, 2)


def test_posteriors_of_nodes_and_factors() -> None:
    g = conjoin(example(PCFG), string_query([0, 1, 2]))
    asked_for = [("X.1[0,1,3]", "l"), ("X.1[0,1,3]", "n"), ("Y.2[0,1]", "y1")]
    found = marginals(g, nodes=asked_for)
    for rule, node in asked_for:
        torch.testing.assert_close(found.nodes[rule, node].sum(), found.rules[rule], rtol=1e-12, atol=0)
    assert (found.nodes["X.1[0,1,3]", "l"][:2] == 0).all()  # one word: only symbols of words
    torch.testing.assert_close(found.nodes["Y.2[0,1]", "y1"], found.factors["emit"][:, 0], rtol=1e-12, atol=0)
    assert float(found.factors["rule"].sum()) == pytest.approx(2.0, rel=1e-12)  # three words: two binary rules
    torch.testing.assert_close(found.log_z, sum_product(g), rtol=1e-13, atol=0)


def test_of_a_batch_all_but_the_counts_of_factors_are_by_sentence() -> None:
    g = example(HMM)
    sentences = [[0, 1, 2], [2, None, 0]]
    both = marginals(conjoin(g, string_query(sentences)), nodes=[("S.1[0,3]", "z")])
    alone = [marginals(conjoin(g, string_query(words)), nodes=[("S.1[0,3]", "z")]) for words in sentences]
    for k, own in enumerate(alone):
        torch.testing.assert_close(both.log_z[k], own.log_z, rtol=1e-12, atol=0)
        for found, wanted in ((both.nonterminals, own.nonterminals), (both.rules, own.rules), (both.nodes, own.nodes)):
            for name in wanted:
                torch.testing.assert_close(found[name][k], wanted[name], rtol=1e-12, atol=0)
    for name in ("initial", "next", "emit"):
        counts = alone[0].factors[name] + alone[1].factors[name]
        torch.testing.assert_close(both.factors[name], counts, rtol=1e-12, atol=1e-15)
    assert both.factors["arc[V,1,2]"].shape == (2, 3)


def test_posteriors_are_differentiable_where_factors_are() -> None:
    emit = example(HMM).tensor("emit").clone().requires_grad_()

    def posterior(x: torch.Tensor) -> torch.Tensor:
        g = conjoin(example(HMM).with_factors({"emit": x}), string_query([0, 2]))
        return marginals(g).nonterminals["X[1,2]"]

    assert torch.autograd.gradcheck(posterior, emit)
    assert not marginals(conjoin(example(HMM), string_query([0]))).log_z.requires_grad


def test_impossible_sentences_have_no_posterior() -> None:
    g = example(HMM)
    emit = g.tensor("emit").clone()
    emit[:, 2] = 0
    found = marginals(conjoin(g.with_factors({"emit": emit}), string_query([[0, 2], [0, 1]])))
    assert all((x[0] == 0).all() for x in found.nonterminals.values())
    assert float(found.nonterminals["X[0,2]"][1].sum()) == pytest.approx(1.0, rel=1e-12)


def test_posteriors_of_a_grammar_with_ranks() -> None:
    g = conjoin(example(CPD_HMM), string_query([0, 1, 2]))
    posterior = marginals(g).nonterminals["X[1,3]"]
    assert posterior.shape == (4,)
    assert float(posterior.sum()) == pytest.approx(1.0, rel=1e-12)


def test_nodes_that_are_not_there_are_refused() -> None:
    g = conjoin(example(HMM), string_query([0]))
    with pytest.raises(DomainError, match=r"Rule 'X.2\[0,1\]' has no node 'q'; it has z, w"):
        marginals(g, nodes=[("X.2[0,1]", "q")])
    with pytest.raises(DomainError, match=r"'w' of rule 'X.2\[0,1\]' is observed"):
        marginals(g, nodes=[("X.2[0,1]", "w")])
