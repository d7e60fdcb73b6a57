"""Derivatives of trees as autograd wants them: numerically right, twice, again and again, and only where asked."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from rankfold import Branch, TreePotentials
from rankfold.recursions.tree import log_z
from tests.recursions.trees import distinct, leaves, potentials

GRAMMARS = ["dense", "dense log batched", "shared", "shared log", "shared batched", "matricised", "mixed", "one head"]
every_grammar = pytest.mark.parametrize("name", GRAMMARS)


def function(name: str, lengths: Sequence[int], **options: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """log Z as a function of its tensors, and those tensors."""
    p = potentials(name, lengths, **options)
    clean = p._replace(log_leaf=torch.nan_to_num(p.log_leaf))  # numerical derivatives move what is not used, too
    at = leaves(clean)

    def of(*tensors: Tensor) -> Tensor:
        fields = dict(zip(at.fields, tensors, strict=False))
        new = {id(old): x for old, x in zip(at.factors, tensors[len(fields) :], strict=True)}
        rules = at.potentials.rules.with_factors(*(new[id(x)] for x in at.potentials.rules.factors()))
        return log_z(at.potentials._replace(rules=rules, **fields))

    return of, [*at.fields.values(), *at.factors]


@every_grammar
def test_the_gradient_is_the_slope(name: str) -> None:
    assert torch.autograd.gradcheck(*function(name, (5, 1, 3), p=2), fast_mode=True)


@every_grammar
def test_the_second_derivative_is_the_slope_of_the_first(name: str) -> None:
    # Four words have every kind of rule; projected along a random vector, or it takes seconds a grammar.
    assert torch.autograd.gradgradcheck(*function(name, (4, 1, 3), p=2, seed=1), fast_mode=True)


@every_grammar
def test_a_gradient_that_is_followed_is_the_same(name: str) -> None:
    of, tensors = function(name, (4, 2, 3), seed=2)
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    plain = torch.autograd.grad((weight * of(*tensors)).sum(), tensors)
    followed = torch.autograd.grad((weight * of(*tensors)).sum(), tensors, create_graph=True)
    for x, y in zip(plain, followed, strict=True):
        torch.testing.assert_close(x, y.detach(), rtol=1e-10, atol=1e-12)
        assert y.requires_grad


@every_grammar
def test_each_sentence_weighs_as_much_as_the_loss_says(name: str) -> None:
    of, tensors = function(name, (4, 1, 3), seed=3)
    each = [torch.autograd.grad(of(*tensors)[i], tensors) for i in range(3)]
    both = torch.autograd.grad(3.0 * of(*tensors)[0] - 0.25 * of(*tensors)[2], tensors)
    for zero, two, found in zip(each[0], each[2], both, strict=True):
        torch.testing.assert_close(found, 3.0 * zero - 0.25 * two, rtol=1e-10, atol=1e-12)
    assert all(not torch.equal(x, torch.zeros_like(x)) for x in each[0][4:])


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_twice_through_the_same_graph(arithmetic: str) -> None:
    at = leaves(potentials("shared", (4, 1, 3), seed=4))
    tensors = [*at.fields.values(), *at.factors]
    out = log_z(at.potentials, arithmetic).sum()
    first = torch.autograd.grad(out, tensors, retain_graph=True)
    assert any(x.any() for x in first)
    for x, y in zip(first, torch.autograd.grad(out, tensors), strict=True):
        assert torch.equal(x, y)


def test_twice_through_the_same_graph_on_wider_rungs() -> None:
    p = potentials("shared", (4, 2, 3), seed=5)
    p.log_leaf[0, :, 0] += 3000.0
    p.rules.leaf_leaf.factors()[1][0] = p.rules.leaf_leaf.factors()[2][0] = 0.0
    at = leaves(p)
    tensors = [*at.fields.values(), *at.factors]
    out = log_z(at.potentials).sum()
    first = torch.autograd.grad(out, tensors, retain_graph=True)
    for x, y in zip(first, torch.autograd.grad(out, tensors), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("only", range(9))
def test_inputs_that_need_no_gradient_get_none(only: int) -> None:
    """Each tensor alone has the gradient that it has among all."""
    of, tensors = function("shared", (4, 1, 3), seed=6)
    assert len(tensors) == 9
    wanted = torch.autograd.grad(of(*tensors).sum(), tensors)[only]
    some = [x if i == only else x.detach() for i, x in enumerate(tensors)]
    of(*some).sum().backward()
    assert [x.grad is None for x in some] == [i != only for i in range(9)]
    assert tensors[only].grad is not None
    assert torch.equal(tensors[only].grad, wanted)


def test_no_graph_where_none_is_wanted() -> None:
    at = leaves(potentials("shared", (4, 1, 3), seed=7))
    wanted = log_z(at.potentials)
    assert wanted.requires_grad
    with torch.no_grad():
        found = log_z(at.potentials)
    assert not found.requires_grad
    assert torch.equal(found, wanted.detach())
    assert not log_z(potentials("shared", (4, 1, 3), seed=7)).requires_grad


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_inference_mode(arithmetic: str, dtype: torch.dtype) -> None:
    p = potentials("mixed", (4, 1, 3), seed=8, dtype=dtype)
    p.log_leaf[2, 1] = -float("inf")  # impossible: every rung is tried
    wanted = log_z(p, arithmetic)
    with torch.inference_mode():
        found = log_z(p, arithmetic)
        made_here = log_z(potentials("mixed", (4, 1, 3), seed=8, dtype=dtype), arithmetic)
    assert torch.equal(found, wanted)
    assert torch.equal(made_here[:2], wanted[:2])


def test_factors_made_of_one_another() -> None:
    """Slices of one parameter, as models give them: gradients add up in it."""
    p = potentials("shared", (4, 3), n=2, p=3, seed=9)
    head, span_left, span_right = p.rules.span_span.factors()
    _, leaf_left, leaf_right = p.rules.leaf_leaf.factors()
    one = torch.cat([head, span_left, leaf_left, span_right, leaf_right]).requires_grad_()
    parts = one.split([2, 2, 3, 2, 3])
    order = [0, 1, 3, 0, 1, 4, 0, 2, 3, 0, 2, 4]
    whole = p._replace(rules=p.rules.with_factors(*(parts[i] for i in order)))
    at = leaves(p)
    grads = torch.autograd.grad(log_z(at.potentials).sum(), at.factors)
    wanted = {id(x): grad for x, grad in zip(distinct(p.rules), grads, strict=True)}
    (found,) = torch.autograd.grad(log_z(whole).sum(), one)
    joined = torch.cat([wanted[id(x)] for x in (head, span_left, leaf_left, span_right, leaf_right)])
    torch.testing.assert_close(found, joined, rtol=1e-12, atol=1e-14)
    (followed,) = torch.autograd.grad(log_z(whole).sum(), one, create_graph=True)
    torch.testing.assert_close(followed.detach(), joined, rtol=1e-10, atol=1e-12)


def test_fields_made_of_factors() -> None:
    """A path from one input to another is autograd's to follow, once."""
    p = potentials("shared", (4, 3), seed=12)
    at = leaves(p)
    head = at.factors[0]
    joined = at.potentials._replace(log_root=head.sum(1).log(), log_span=None)
    (plain,) = torch.autograd.grad(log_z(joined).sum(), head, retain_graph=True)
    (followed,) = torch.autograd.grad(log_z(joined).sum(), head, create_graph=True)
    torch.testing.assert_close(followed.detach(), plain, rtol=1e-10, atol=1e-12)
    root = head.detach().sum(1).log().requires_grad_()
    apart = log_z(joined._replace(log_root=root)).sum()
    of_rules, of_root = torch.autograd.grad(apart, [head, root])
    torch.testing.assert_close(plain, of_rules + (of_root / head.detach().sum(1))[:, None], rtol=1e-10, atol=1e-12)


def test_nothing_is_written_into_the_arguments() -> None:
    p = potentials("shared batched", (4, 2, 3), seed=10, dtype=torch.float32)
    p.log_leaf[0, 1] = -float("inf")
    at = leaves(p)
    parts = [*at.fields.values(), *at.factors]
    before = [x.detach().clone() for x in parts]
    log_z(at.potentials).sum().backward()
    for x, y in zip(parts, before, strict=True):
        torch.testing.assert_close(x.detach(), y, rtol=0.0, atol=0.0, equal_nan=True)


def test_rules_that_change_under_the_graph_are_noticed() -> None:
    at = leaves(potentials("dense", (4, 3), seed=11))
    out = log_z(at.potentials).sum()
    with torch.no_grad():
        at.factors[0].mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_branches_and_potentials_are_plain_tuples() -> None:
    p = potentials("dense")
    assert isinstance(p, TreePotentials)
    assert isinstance(p.rules, Branch)
    assert TreePotentials(*p) == p
