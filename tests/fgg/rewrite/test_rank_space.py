"""Rewriting: decompositions, merged factors and rank space keep every sum, and refuse what has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.fgg import (
    Factored,
    Grammar,
    best,
    conjoin,
    count,
    decompose,
    library,
    library_names,
    merge,
    parse,
    rank_space,
    recompose,
    string_query,
    sum_product,
)
from rankfold.fgg.factors import Derived
from tests.fgg.cases import CPD_HMM, TD_PCFG
from tests.fgg.plain import HMM, PCFG, example, random_factors

QUERY = string_query([[0, 1, 2, 0], [1, 1, 2, 2]])


def rand(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts() -> tuple[Tensor, Tensor, Tensor]:
    return rand(2, 3, seed=1), rand(4, 3, seed=2), rand(4, 3, seed=3)


def dense_and_factored() -> tuple[Grammar, Grammar]:
    u, v, w = parts()
    g = example(PCFG)
    return g.with_factors({"rule": torch.einsum("ar,br,cr->abc", u, v, w)}), decompose(g, {"rule": (u, v, w)})


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_decomposition_adds_a_rank_node() -> None:
    _, factored = dense_and_factored()
    rule = factored.rules_of("X")[0]
    assert [edge.label for edge in rule.right.edges] == ["rule_0", "rule_1", "rule_2", "Y", "Y"]
    rank = rule.right.edges[0].nodes[-1]
    assert all(edge.nodes[-1] == rank for edge in rule.right.edges[:3])
    assert factored.domain(rule.right.node(rank).domain).is_rank
    assert "rule" not in factored.factors


@pytest.mark.parametrize("order", ["before the query", "after the query"])
def test_all_forms_have_the_same_sums_and_gradients(order: str) -> None:
    u, v, w = (x.requires_grad_() for x in parts())
    g = example(PCFG)
    dense = g.with_factors({"rule": torch.einsum("ar,br,cr->abc", u, v, w)})
    factored = decompose(g, {"rule": (u, v, w)})
    if order == "before the query":
        forms = [conjoin(x, QUERY) for x in (dense, factored, rank_space(factored))]
    else:
        forms = [conjoin(dense, QUERY), conjoin(factored, QUERY), rank_space(conjoin(factored, QUERY))]
    sums = [sum_product(x) for x in forms]
    slopes = [torch.autograd.grad(x.sum(), (u, v, w), retain_graph=True) for x in sums]
    for k in (1, 2):
        same(sums[k], sums[0])
        for found, wanted in zip(slopes[k], slopes[0], strict=True):
            same(found, wanted)


def test_a_pcfg_has_five_derived_matrices() -> None:
    """H = V^T U, I = W^T U, J = V^T E, K = W^T E, L = U^T s of section 4.2; words have rows of their own in V and W."""
    g = example(TD_PCFG)
    u, v, w, emit, root = (g.tensor(name) for name in ("u", "v", "w", "emit", "root"))
    n = u.shape[0]
    wanted = {"H": v[:n].T @ u, "I": w[:n].T @ u, "J": v[n:].T @ emit, "K": w[n:].T @ emit, "L": u.T @ root}
    for form in (rank_space(g), rank_space(conjoin(g, QUERY))):
        terminal = [label.name for label in form.labels if label.is_terminal]
        assert len(terminal) == 5
        found = [form.tensor(name) for name in terminal]
        for name, matrix in wanted.items():
            assert any(x.shape == matrix.shape and torch.allclose(x, matrix, rtol=1e-12) for x in found), name


def test_without_unions_there_are_five_too() -> None:
    """Spans and words as nonterminals of their own: four rules that share u, v and w by label."""
    text = """
    domain N = 3; domain P = 4; domain R = 2; observed V = 5
    factor vp: P, R
    factor wp: P, R
    S() -> root(n) X(n)
    X(n: N) -> u(n, q: R) v(l: N, q) w(r: N, q) X(l) X(r)
    X(n) -> u(n, q) vp(l, q) w(r, q) T(l) X(r)
    X(n) -> u(n, q) v(l, q) wp(r, q) X(l) T(r)
    X(n) -> u(n, q) vp(l, q) wp(r, q) T(l) T(r)
    T(p: P) -> emit(p, o: V)
    """
    g = example(text)
    form = rank_space(g)
    assert len([label for label in form.labels if label.is_terminal]) == 5
    same(sum_product(conjoin(form, QUERY)), sum_product(conjoin(g, QUERY)))
    assert form.domain("R").is_rank
    with pytest.raises(UnsupportedError, match=r"rank space"):
        count(conjoin(form, QUERY))


def test_an_hmm_over_ranks() -> None:
    g = example(CPD_HMM)
    form = rank_space(g)
    same(sum_product(conjoin(form, QUERY)), sum_product(conjoin(g, QUERY)))
    same(form.tensor("v[u]"), g.tensor("v").T @ g.tensor("u"))
    same(form.tensor("initial[u]"), g.tensor("initial") @ g.tensor("u"))
    assert form.tensor("emit") is g.tensor("emit")


@pytest.mark.parametrize("name", library_names())
def test_rank_space_of_the_library_keeps_sums_or_says_why_not(name: str) -> None:
    sizes = {"Z": 3, "R": 2, "K": 2, "D": 3, "N": 2, "P": 3, "A": 2, "B": 2, "H": 2, "Q": 3, "V": 3}
    open_sizes = [d.name for d in library(name).domains if d.size is None and not d.parts]
    g = random_factors(library(name, **{key: sizes[key] for key in open_sizes}), batch=2)
    if name in {"cpd_hmm", "cpd_hsmm", "lhmm", "td_pcfg", "joint_lexicalised_pcfg", "joint_quasi_synchronous"}:
        same(sum_product(conjoin(rank_space(g), QUERY)), sum_product(conjoin(g, QUERY)))
    else:
        with pytest.raises(UnsupportedError, match=r"rule 'X|Rule 'X"):
            rank_space(g)


def test_equal_factors_share_a_label() -> None:
    u, v, w = parts()
    text = """
    domain N = 2; domain M = 4; observed V = 3
    S() -> root(n) X(n)
    X(n: N) -> left(n, l: M, r: M) Y(l) Y(r) | right(n, l, r) Y(l) Y(r)
    Y(y: M) -> emit(y, w: V)
    """
    g = decompose(example(text), {"left": (u, v, w), "right": (u, w, v)})
    assert sorted(label.name for label in g.labels if "_" in label.name) == ["left_0", "left_1", "left_2"]
    assert len([label for label in rank_space(g).labels if label.is_terminal]) == 3  # root u, v emit, w emit
    short = string_query([0, 1])
    wanted = example(text).with_factors(
        {"left": torch.einsum("ar,br,cr->abc", u, v, w), "right": torch.einsum("ar,br,cr->abc", u, w, v)}
    )
    same(sum_product(conjoin(rank_space(g), short)), sum_product(conjoin(wanted, short)))


def test_factored_factors_are_decomposed_by_themselves() -> None:
    u, v, w = parts()
    given = example(PCFG).with_factors({"rule": Factored.cpd(u, v, w)})
    _, factored = dense_and_factored()
    same(sum_product(conjoin(decompose(given), QUERY)), sum_product(conjoin(factored, QUERY)))
    same(sum_product(conjoin(given, QUERY)), sum_product(conjoin(factored, QUERY)))


def test_matricised_factors_stay_in_state_space() -> None:
    u, body = rand(2, 3), rand(4, 4, 3, seed=5)
    g = decompose(example(PCFG), {"rule": Factored(((u, (0,)), (body, (1, 2))))})
    dense = example(PCFG).with_factors({"rule": torch.einsum("ar,bcr->abc", u, body)})
    same(sum_product(conjoin(g, QUERY)), sum_product(conjoin(dense, QUERY)))
    with pytest.raises(UnsupportedError, match=r"State 'l' of rule 'X.1' is tied to the state 'r' by 'rule_1'"):
        rank_space(g)


def test_best_and_counts_see_through_ranks_but_not_in_rank_space() -> None:
    dense, factored = dense_and_factored()
    short = string_query([0, 1, 2])
    assert count(conjoin(factored, short)) == count(conjoin(dense, short))
    same(sum_product(conjoin(factored, short), "max"), sum_product(conjoin(dense, short), "max"))
    same(sum_product(recompose(conjoin(factored, short), "this")), sum_product(conjoin(dense, short)))
    ranked = conjoin(rank_space(factored), short)
    for ask in (best, count, lambda g: sum_product(g, "max"), lambda g: sum_product(g, "counting")):
        with pytest.raises(UnsupportedError, match=r"rank space.*of ranks"):
            ask(ranked)


def test_merged_factors_are_their_product() -> None:
    g = example(HMM)
    merged = merge(g)
    same(merged.tensor("emit[next]"), torch.einsum("zw,zy->zwy", g.tensor("emit"), g.tensor("next")))
    same(sum_product(conjoin(merged, QUERY)), sum_product(conjoin(g, QUERY)))
    assert [edge.label for edge in merged.rules_of("X")[0].right.edges] == ["emit[next]", "X"]
    assert merge(g, rules=["X.2"]).rules_of("X")[0] == g.rules_of("X")[0]


def test_a_merged_factor_given_by_parts_has_a_rank_space() -> None:
    """Section 4.3: transition and emission as one factor, words written by ranks."""
    u, e, v = rand(2, 3), rand(3, 3, seed=2), rand(2, 3, seed=3)
    g = decompose(merge(example(HMM), rules=["X.1"]), {"emit[next]": (u, e, v)})
    assert not isinstance(g.factors["emit[next]_0"], Derived)
    same(sum_product(conjoin(rank_space(g), QUERY)), sum_product(conjoin(g, QUERY)))


def test_merging_may_not_reorder_words() -> None:
    text = "domain Z = 2; observed V = 2\nS() -> f(z: Z, a: V) X(y: Z) g(z, y, b: V)\nX(z: Z) -> f(z, a)"
    with pytest.raises(UnsupportedError, match=r"rule 'S.1' would name its symbols in another order"):
        merge(example(text))


REFUSED = {
    "X(n: N) -> rule(n, l: N, r: N) X(l) X(r) | e(n, w: V)": r"'X.1' ties its external node 'n' to the states l, r",
    "X(n: N) -> a(n, m: N) X(m) | e(n, w: V)": r"'X.1' has no rank between.*'a'",
    "X(n: N) -> f(n, q: N) Z(n) | e(n, w: V)\nZ(n: N) -> e(n, w)": r"no B-FGG.*'n' of rule 'X.1'.*'Z'",
    "X(n: N) -> e(n, w: V) Z(n, m: N)\nZ(n: N, m: N) -> e(n, w) e(m, w)": r"no B-FGG",
    "X(n: N) -> u(n, q: R) X(l: N) | e(n, w: V)": r"State 'l' of rule 'X.1' touches no factor",
    "X(n: N) -> u(n, q: R) v(l: N, q) x(l, p: R) k(p) X(l) | e(n, w: V)": r"State 'l'.*'v', 'x'.*one rank(?s:.*)merge",
    "X(n: N) -> u(n, q: R) v(l: N, q) X(l) X(l) | e(n, w: V)": r"State 'l'.*several nonterminals",
}


@pytest.mark.parametrize("rules", REFUSED)
def test_what_has_no_rank_space_is_refused_by_rule_and_reason(rules: str) -> None:
    g = example(f"domain N = 2; domain R = 2; observed V = 2\nS() -> root(n: N) X(n)\n{rules}")
    with pytest.raises(UnsupportedError, match=REFUSED[rules]):
        rank_space(g)


def test_parts_that_do_not_fit_are_refused() -> None:
    g = example(PCFG)
    u, v, w = parts()
    with pytest.raises(ShapeError, match=r"'rule' attaches to 3 nodes.*its parts to 2"):
        decompose(g, {"rule": (u, v)})
    with pytest.raises(ShapeError, match=r"at \(1,\) has shape \(2, 3\).*N\+P = 4, rank"):
        decompose(g, {"rule": (u, u, w)})
    with pytest.raises(ShapeError, match=r"ranks \[2, 3\]"):
        decompose(g, {"rule": (u, v, w[:, :2])})
    with pytest.raises(DomainError, match=r"'X' is a nonterminal"):
        decompose(g, {"X": (u,)})
    with pytest.raises(DomainError, match=r"no label 'rul'.*\n.*'rule'"):
        decompose(g, {"rul": (u, v, w)})
    batched = parse("domain N = 2\nfactor f: N batched\nS() -> f(n)")
    with pytest.raises(UnsupportedError, match=r"batched"):
        decompose(batched, {"f": (u,)})


@pytest.mark.parametrize("size", [1e-25, 1e-18, 1e20])
def test_factors_made_of_others_beyond_float32(size: float) -> None:
    """u, v, w and emissions of this size: their products, which rank space makes once, are far out of float32."""
    g = example(TD_PCFG).to(torch.float32)
    weights = {name: size * g.tensor(name) for name in ("u", "v", "w", "emit")}
    small = g.with_factors({name: x.requires_grad_() for name, x in weights.items()})
    query = string_query([0, 3, 1, 2])
    found = sum_product(conjoin(rank_space(small), query))
    truth = sum_product(conjoin(small.to(torch.float64), query))
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=0)
    for mine, its in zip(
        torch.autograd.grad(found, list(weights.values())),
        torch.autograd.grad(truth, list(weights.values())),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=0)
    ranked = Factored.cpd(*(weights[name].detach()[:2] for name in "vvw"))
    cube = parse("domain Z = 2\nfactor f: Z, Z, Z\nS() -> f(x, y, z)")
    log_sum = sum_product(cube.with_factors({"f": ranked}))
    torch.testing.assert_close(
        log_sum, sum_product(cube.with_factors({"f": ranked}).to(torch.float64)), rtol=1e-12, atol=0
    )


def test_factors_made_of_others_beyond_float64_are_an_error() -> None:
    g = example(TD_PCFG)
    g = g.with_factors({name: 1e-200 * g.tensor(name) for name in ("v", "emit")})
    with pytest.raises(DomainError, match=r"leaves the range of float64(?s:.*)largest entries"):
        sum_product(conjoin(rank_space(g), string_query([0, 3])))
