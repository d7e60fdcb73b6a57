"""Trees against their enumeration: log Z and every derivative, for every kind of rule."""

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, BinaryMatricised, Branch, TreePotentials
from rankfold.recursions.tree import log_z, ranks, rungs
from tests.recursions.trees import EVERY, INF, distinct, enumerated, factor_gradients, leaves, potentials, shapes

# Sums of at most 7,168 positive terms in float64.
EXACT = {"rtol": 1e-10, "atol": 1e-10}
every_grammar = pytest.mark.parametrize("name", EVERY)


@pytest.fixture(autouse=True)
def _first_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is out of range: a sentence that had to be repeated would hide what the first pass got wrong."""

    def refuse(self: object, index: Tensor) -> None:
        assert not len(index), f"sentences {index.tolist()} were repeated"

    monkeypatch.setattr(rungs.TreeSolution, "_widen", refuse)


def check(p: TreePotentials, arithmetic: str = "scaled", *, followed: bool = False, **tolerance: float) -> None:
    """log Z and the gradient of every tensor against the enumeration; `followed`: to be differentiated again."""
    tolerance = tolerance or EXACT
    wanted = enumerated(p)
    at = leaves(p)
    found = log_z(at.potentials, arithmetic)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.detach(), wanted.log_z, **tolerance)
    asked = [*at.fields.values(), *at.factors]
    grads = torch.autograd.grad(found.sum(), asked, materialize_grads=True, create_graph=followed)
    grads = tuple(grad.detach() for grad in grads)
    by_name = dict(zip(at.fields, grads, strict=False))
    close(by_name["log_leaf"], wanted.leaf, tolerance)
    close(by_name["log_root"], wanted.root if p.log_root.ndim == 2 else wanted.root.sum(0), tolerance)
    if p.log_span is not None:
        close(by_name["log_span"], wanted.span, tolerance)
    if p.log_root_leaf is not None:
        of_leaf = wanted.root_leaf if p.log_root_leaf.ndim == 2 else wanted.root_leaf.sum(0)
        close(by_name["log_root_leaf"], of_leaf, tolerance)
    for found_grad, want in zip(grads[len(at.fields) :], factor_gradients(p, wanted.rules), strict=True):
        close(found_grad, want, tolerance)


def close(found: Tensor, wanted: Tensor, tolerance: dict[str, float]) -> None:
    torch.testing.assert_close(found.double(), wanted, **tolerance)


@every_grammar
def test_value_and_all_gradients(name: str) -> None:
    check(potentials(name))


@every_grammar
def test_value_and_all_gradients_in_logarithms(name: str) -> None:
    check(potentials(name, (3, 4, 2), n=3, p=1, seed=1), "log")


@every_grammar
def test_float32(name: str) -> None:
    # A few dozen products, each 6e-8 of a number near 1; gradients of factors of up to 20 weigh in with theirs.
    check(potentials(name, (3, 2, 3), n=3, p=2, seed=2, dtype=torch.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["dense", "shared", "shared log", "mixed"])
def test_five_words_beside_fewer(name: str) -> None:
    check(potentials(name, (2, 5, 1), n=2, p=1, seed=3))


@pytest.mark.parametrize("num_words", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dense batched", "shared batched", "cpd log", "matricised"])
def test_equal_lengths_without_lengths(name: str, num_words: int) -> None:
    p = potentials(name, (num_words,) * 3, p=2, seed=4, own_roots=True)
    check(p._replace(lengths=None))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", ["shared", "mixed"])
def test_few_symbols_and_ranks_above_them(name: str, n: int, p: int) -> None:
    check(potentials(name, (4, 3), n=n, p=p, seed=5))


@pytest.mark.parametrize("name", ["dense", "shared log"])
def test_no_spans_weighed_and_no_roots_of_words(name: str) -> None:
    p = potentials(name, (4, 1, 3), seed=6)
    check(p._replace(log_span=None))
    check(p._replace(log_root_leaf=None))
    without = log_z(p._replace(log_root_leaf=None, log_span=None))
    assert without.isfinite().tolist() == [True, False, True]
    assert float(without[1]) == -INF


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_only_sentences_of_one_word(arithmetic: str) -> None:
    p = potentials("mixed", (1, 1, 1), seed=7)
    check(p, arithmetic)
    check(p._replace(log_root_leaf=None), arithmetic)
    longer = torch.cat([p.log_leaf, torch.full_like(p.log_leaf, float("nan"))], 1)
    check(p._replace(log_leaf=longer, log_span=torch.zeros(3, 3, 3, dtype=torch.float64)), arithmetic)


@pytest.mark.parametrize("name", ["dense", "shared", "matricised", "cpd batched"])
def test_symbols_words_and_brackets_of_weight_zero(name: str) -> None:
    p = potentials(name, (3, 3, 2), seed=8)
    assert p.log_span is not None
    p.log_leaf[0, 1, 0] = p.log_leaf[0, 2, :2] = p.log_leaf[1, 0, 2] = -INF
    p.log_root[1] = -INF
    p.log_span[0, 1, 3] = p.log_span[1, 0, 2] = -INF
    check(p)
    check(p, followed=True)
    check(p, "log")


@pytest.mark.parametrize("name", ["dense", "shared", "matricised", "cpd batched"])
def test_gradients_at_rules_of_weight_zero(name: str) -> None:
    """A weight of 0 has the gradient of the enumeration, not 0."""
    p = potentials(name, (4, 3, 2), seed=9)
    for factor in distinct(p.rules):
        factor.view(-1)[::4] = 0.0
    wanted = factor_gradients(p, enumerated(p).rules)
    assert any((grad[factor == 0] > 0.1).any() for factor, grad in zip(distinct(p.rules), wanted, strict=True))
    check(p)
    check(p, followed=True)


def test_one_pair_factor_with_two_parents() -> None:
    """Rules that share only part of what leads to their parents are not one rule."""
    g = torch.Generator().manual_seed(10)
    draw = lambda *shape: torch.rand(shape, generator=g, dtype=torch.float64)  # noqa: E731
    pair = draw(2, 2, 3)
    rules = Branch(*(BinaryMatricised(draw(2, 3), pair) for _ in range(4)))
    p = potentials("dense", (4, 3), n=2, p=2, seed=11)
    check(p._replace(rules=rules))
    check(p._replace(rules=rules), "log")


def test_one_tensor_as_weights_and_as_logarithms() -> None:
    x = torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    rules = Branch(BinaryDense(x), BinaryDense.from_log(x), BinaryDense(x), BinaryDense.from_log(x))
    p = potentials("dense", (4, 3), n=2, p=2, seed=13)
    check(p._replace(rules=rules))
    check(p._replace(rules=rules), "log")


def test_one_operator_for_every_kind_of_child() -> None:
    x = torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(14), dtype=torch.float64)
    rule = BinaryDense(x)
    p = potentials("dense", (4, 3), n=2, p=2, seed=15)
    check(p._replace(rules=Branch(rule, rule, rule, rule)))


def test_what_lies_outside_the_upper_triangle_and_a_length_weighs_nothing() -> None:
    p = potentials("shared", (4, 2, 3), seed=16)
    assert p.log_span is not None
    found = log_z(p)
    junk = p.log_span.clone()
    edge = torch.arange(5)
    junk[:, edge[:, None] + 1 >= edge[None]] = -INF  # nothing, and single words
    junk[1, :, 3:] = 1000.0
    junk[2, :, 4:] = -INF
    assert torch.equal(log_z(p._replace(log_span=junk)), found)


def test_shapes_of_the_builder() -> None:
    rules = potentials("mixed").rules
    assert tuple(rule.shape for rule in rules) == shapes(2, 3)


def test_a_parent_without_rules_costs_no_second_pass() -> None:
    p = potentials("dense", (4, 3), p=2, seed=17)
    for factor in distinct(p.rules):
        factor[1] = 0.0
    check(p)


def test_padding_does_not_overflow() -> None:
    """Words of one symbol each stay below 3e38 where words of all symbols would not."""
    p = potentials("dense", (2, 4), seed=18, dtype=torch.float32)
    p.rules.leaf_leaf.factors()[0].fill_(1e38)
    p.log_leaf[:, :, 1:] = -INF
    check(p, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["shared", "shared log", "shared batched", "cpd identity"])
def test_rules_that_share_their_factors_as_any_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both recursions over more words than can be enumerated."""
    p = potentials(name, (13, 2, 9), n=5, p=7, seed=19)
    if name == "cpd identity":
        one, four = p.rules.span_span, p.rules.leaf_leaf
        (left, right), (leaf_left, leaf_right) = one.factors(), four.factors()
        p = p._replace(rules=Branch(one, BinaryCPD(None, left, leaf_right), BinaryCPD(None, leaf_left, right), four))
    assert ranks.share_factors(p.rules)
    found = everything(p)
    monkeypatch.setattr(ranks, "share_factors", lambda _: False)
    for x, y in zip(found, everything(p), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def everything(p: TreePotentials) -> list[Tensor]:
    """log Z and all its gradients, each sentence with a weight of its own."""
    at = leaves(p)
    out = log_z(at.potentials)
    weight = torch.arange(1.0, len(out) + 1, dtype=torch.float64)
    return [out, *torch.autograd.grad(out, [*at.fields.values(), *at.factors], weight, materialize_grads=True)]


def test_which_rules_share_their_factors() -> None:
    shared = potentials("shared").rules
    assert ranks.share_factors(shared)
    assert not ranks.share_factors(potentials("cpd").rules)
    assert not ranks.share_factors(potentials("dense").rules)
    head, left, right = shared.span_span.factors()
    leaf_left, leaf_right = shared.leaf_leaf.factors()[1:]
    others = {
        "span_span": [(head.clone(), left, right), (head, left.clone(), right), (head, left, right.clone())],
        "span_leaf": [(head, left.clone(), leaf_right), (head, left, leaf_right.clone())],
        "leaf_span": [(head, leaf_left.clone(), right), (head, leaf_left, right.clone())],
        "leaf_leaf": [(head, leaf_left.clone(), leaf_right), (head, leaf_left, leaf_right.clone())],
    }
    for kind, rules in others.items():
        for factors in rules:
            assert not ranks.share_factors(shared._replace(**{kind: BinaryCPD(*factors)}))
    assert not ranks.share_factors(shared._replace(span_span=BinaryCPD.from_log(head, left, right)))
