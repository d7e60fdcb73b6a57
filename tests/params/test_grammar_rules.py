"""Rules, roots and words of grammars against their formulas, written out."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold.operators import BinaryDense, Branch
from rankfold.params.networks import Drawing
from rankfold.params.rules.factored import FactoredRules, FreeFactors, SimpleRules
from rankfold.params.rules.low_rank import Form, LowRankRules
from rankfold.params.rules.root_leaves import PreterminalWords, Root
from rankfold.params.rules.softmax import FreeRules, SoftmaxRules, by_kind, from_dense, to_dense
from tests.params.build import EXACT, seeded, stirred

N, P, D = 2, 3, 4
KINDS = Branch._fields


def drawing() -> Drawing:
    return Drawing("xavier", seeded(3))


def expect_rules(rules: Branch, expected: Tensor) -> None:
    torch.testing.assert_close(to_dense(rules), expected, **EXACT)
    torch.testing.assert_close(expected.sum((1, 2)), torch.ones(N, dtype=torch.float64), **EXACT)


def in_order(table: Tensor) -> Tensor:  # "n (n+p)^2" -> "n (n+p) (n+p)"
    """Pairs numbered by kind, put where their symbols are."""
    out = table.new_zeros(N, N + P, N + P)
    at = 0
    for left, right in ((0, 0), (0, N), (N, 0), (N, N)):
        for i, j in itertools.product(range(P if left else N), range(P if right else N)):
            out[:, left + i, right + j] = table[:, at]
            at += 1
    return out


def test_softmax_rules() -> None:
    rules = stirred(SoftmaxRules(N, P, D, drawing()))
    table = torch.softmax(rules.parent @ rules.pair.mT + rules.bias, 1)
    expect_rules(rules(), in_order(table))
    free = stirred(FreeRules.draw(N, P, drawing=drawing()))
    expect_rules(free(), in_order(torch.softmax(free.log_rules, 1)))


def test_kinds_are_views() -> None:
    table = torch.rand(N, (N + P) ** 2, generator=seeded(), dtype=torch.float64)
    dense = in_order(table)
    parts = by_kind(table, P)
    assert all(part.untyped_storage().data_ptr() == table.untyped_storage().data_ptr() for part in parts)
    assert torch.equal(to_dense(Branch(*map(BinaryDense, parts))), dense)
    assert torch.equal(from_dense(dense), table)


@pytest.mark.parametrize(("shared", "shallow"), [(True, False), (True, True), (False, True)])
def test_factored_rules(shared: bool, shallow: bool) -> None:
    rules = stirred(FactoredRules(N, P, 3, D, 1, shared=shared, shallow=shallow, drawing=drawing()))
    ranks = list(rules.ranks) * (3 if shared else 1)
    assert len(ranks) == 3
    assert len({id(x) for x in ranks}) == (1 if shared else 3)
    assert (rules.bias is None) == shared
    bias = 0 if rules.bias is None else rules.bias
    head = torch.softmax(rules.parent(rules.symbol[:N]) @ ranks[0].mT + bias, 1)
    left = torch.softmax(rules.left(rules.symbol) @ ranks[1].mT, 0)
    right = torch.softmax(rules.right(rules.symbol) @ ranks[2].mT, 0)
    expect_rules(rules(), torch.einsum("ak,lk,rk->alr", head, left, right))
    assert torch.equal(rules.preterminals, rules.symbol[N:])
    assert (len(rules.parent) == 2 and isinstance(rules.parent[1], torch.nn.ReLU)) == shallow


def test_simple_rules() -> None:
    rules = stirred(SimpleRules(N, P, D, 1, drawing()))
    parent = rules.parent(rules.symbol[:N]) * D**-0.5
    left, right = (torch.softmax(parent @ side(rules.symbol).mT, 1) for side in (rules.left, rules.right))
    expect_rules(rules(), torch.einsum("al,ar->alr", left, right))


@pytest.mark.parametrize("rank", [None, 4])
def test_free_factors(rank: int | None) -> None:
    rules = stirred(FreeFactors.draw(N, P, rank, drawing=drawing()))
    head = torch.eye(N, dtype=torch.float64) if rules.log_head is None else torch.softmax(rules.log_head, 1)
    assert (rules.log_head is None) == (rank is None)
    sides = (torch.softmax(x, 0) for x in (rules.log_left, rules.log_right))
    expect_rules(rules(), torch.einsum("ak,lk,rk->alr", head, *sides))


@pytest.mark.parametrize("form", ["paper", "released", "free"])
@pytest.mark.parametrize("num", range(5))
def test_low_rank_rules_for_every_choice_of_kinds(form: Form, num: int) -> None:
    for low_rank in itertools.combinations(KINDS, num):
        rules = stirred(LowRankRules(N, P, 3, D, low_rank, form=form, drawing=drawing()))
        expect_rules(rules(), _written_out(rules, low_rank, form))


def _written_out(rules: Any, low_rank: tuple[str, ...], form: Form) -> Tensor:
    """Every weight by its formula, divided by the sum over all pairs of a parent."""
    sizes = dict(zip(KINDS, ((N, N), (N, P), (P, N), (P, P)), strict=True))
    thick = iter(()) if rules.parent is None else _thick(rules, form)
    thin = iter(()) if rules.thin_parent is None else _thin(rules, form)
    weights = []
    for kind in KINDS:
        source = thin if kind in low_rank else thick
        weights += list(itertools.islice(source, sizes[kind][0] * sizes[kind][1]))
    assert next(thick, None) is next(thin, None) is None
    table = torch.stack(weights, 1)
    return in_order(table / table.sum(1, keepdim=True))


def _thick(rules: Any, form: Form) -> Any:
    logits = rules.parent if form == "free" else rules.parent @ rules.pair.mT + rules.bias
    return iter(logits.exp().unbind(1))


def _thin(rules: Any, form: Form) -> Any:
    parent, pair = rules.thin_parent, rules.thin_pair
    if form == "paper":
        one, other = (
            torch.exp(x @ rules.features.projection - x.square().sum(1, keepdim=True) / 2) for x in (parent, pair)
        )
    else:
        one, other = parent.exp(), (pair + rules.thin_bias[:, None]).exp()
    return iter((one @ other.mT).unbind(1))


@pytest.mark.parametrize("single", [False, True])
def test_root(single: bool) -> None:
    root = stirred(Root(N, P, D, 1, single_words=single, drawing=drawing()))
    found = root()
    log_root = torch.log_softmax(root.out(root.mlp(root.embedding))[0], 0)
    torch.testing.assert_close(found.log_root, log_root[:N], **EXACT)
    if single:
        torch.testing.assert_close(found.log_root_leaf, log_root[N:], **EXACT)
    assert (found.log_root_leaf is None) == (not single)


@pytest.mark.parametrize("own", [False, True])
def test_words(own: bool) -> None:
    words = stirred(PreterminalWords(P if own else None, 5, D, 1, drawing()))
    other = torch.randn(P, D, generator=seeded(1), dtype=torch.float64)
    symbol = words.symbol if own else other
    emission = words(None if own else other)
    table = torch.log_softmax(words.mlp(symbol) @ words.word.mT + words.bias, 1)
    torch.testing.assert_close(emission.log_rows(torch.arange(P)), table, **EXACT)
    ids = torch.tensor([[0, 4], [2, 2]])
    torch.testing.assert_close(emission.log_obs(ids), table.mT[ids], **EXACT)
