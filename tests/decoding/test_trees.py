"""Brackets' posteriors: against enumeration, in every mode of autograd."""

import pytest
import torch

from rankfold import BinaryCPD, Branch, DomainError, TreePotentials, posterior
from tests.recursions.trees import EVERY, INF, enumerated, leaves, potentials


@pytest.mark.parametrize("name", EVERY)
def test_against_enumeration(name: str) -> None:
    p = potentials(name, (4, 1, 3), p=2)
    torch.testing.assert_close(posterior(p).span, enumerated(p).span, rtol=1e-10, atol=1e-12)


def test_without_brackets_weighed() -> None:
    p = potentials("shared", (4, 2, 3), p=2, seed=1)._replace(log_span=None, lengths=None)
    p = p._replace(log_leaf=torch.nan_to_num(p.log_leaf))
    found = posterior(p).span
    torch.testing.assert_close(found, enumerated(p).span, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.sum((1, 2)), torch.full((3,), 3.0, dtype=torch.float64), rtol=1e-12, atol=0.0)
    assert not found.requires_grad


def test_only_brackets_of_two_words_and_more_inside_a_length() -> None:
    found = posterior(potentials("dense", (4, 1, 3), seed=2)).span
    i, j = torch.arange(5)[:, None], torch.arange(5)[None]
    for b, length in enumerate((4, 1, 3)):
        assert torch.equal(found[b] > 0, (j - i >= 2) & (j <= length))


def test_float32() -> None:
    p = potentials("shared log", (4, 2, 3), p=2, seed=3, dtype=torch.float32)
    found = posterior(p).span
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), enumerated(p).span, rtol=0.0, atol=1e-5)


def test_impossible_sentences_have_no_brackets() -> None:
    p = potentials("dense", (4, 3, 2), seed=4)
    p.log_leaf[1, 0] = -INF
    found = posterior(p).span
    torch.testing.assert_close(
        found.sum((1, 2)), torch.tensor([3.0, 0.0, 1.0], dtype=torch.float64), rtol=1e-12, atol=0.0
    )
    assert not found[1].any()


@pytest.mark.parametrize("only", ["log_leaf", "log_root", "log_span", "factors"])
def test_differentiable_in_each_alone(only: str) -> None:
    """The slope of a bracket's posterior, by finite differences."""
    p = potentials("shared", (4, 3), p=2, seed=5)
    at = leaves(p._replace(log_leaf=torch.nan_to_num(p.log_leaf)))
    x = at.factors[1] if only == "factors" else at.fields[only]

    def of(x: torch.Tensor) -> torch.Tensor:
        q = leaves(at.potentials).potentials
        q = TreePotentials(*(y.detach() if isinstance(y, torch.Tensor) else y for y in q))
        factors = [x if y is at.factors[1] and only == "factors" else y.detach() for y in at.potentials.rules.factors()]
        q = q._replace(rules=q.rules.with_factors(*factors))
        return posterior(q if only == "factors" else q._replace(**{only: x})).span

    assert of(x).requires_grad
    assert torch.autograd.gradcheck(of, (x,))


def test_no_grad_and_inference_mode() -> None:
    p = potentials("shared log", (4, 1, 3), seed=6)
    wanted = posterior(p).span
    at = leaves(p)
    with torch.no_grad():
        found = posterior(at.potentials).span
        assert not found.requires_grad
        assert torch.equal(found, wanted)
    with torch.inference_mode():
        assert torch.equal(posterior(p).span, wanted)
        assert torch.equal(posterior(potentials("shared log", (4, 1, 3), seed=6)).span, wanted)
        far = p._replace(log_leaf=p.log_leaf - 2000.0)
        torch.testing.assert_close(posterior(far).span, wanted, rtol=1e-8, atol=1e-8)


def test_nothing_is_left_in_the_arguments() -> None:
    at = leaves(potentials("dense", (4, 3), seed=7))
    posterior(at.potentials).span.sum()
    assert all(x.grad is None for x in (*at.fields.values(), *at.factors))
    p = potentials("dense", (4, 3), seed=7)
    posterior(p)
    assert p.log_span is not None
    assert not p.log_span.requires_grad


def test_a_grammar_that_branches_to_one_side() -> None:
    """Leaves only on the left: one bracketing is left, whatever the weights."""
    g = torch.Generator().manual_seed(8)
    draw = lambda *shape: torch.rand(shape, generator=g)  # noqa: E731
    none = BinaryCPD(torch.zeros(2, 1), draw(2, 1), draw(2, 1))
    no_leaf = BinaryCPD(torch.zeros(2, 1), draw(2, 1), draw(3, 1))
    rules = Branch(
        none, no_leaf, BinaryCPD(draw(2, 2), draw(3, 2), draw(2, 2)), BinaryCPD(draw(2, 2), draw(3, 2), draw(3, 2))
    )
    found = posterior(TreePotentials(torch.randn(1, 6, 3, generator=g), rules, torch.zeros(2))).span
    wanted = torch.zeros(1, 7, 7)
    wanted[0, :5, 6] = 1.0
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


def test_the_door_is_watched() -> None:
    p = potentials("dense", (4, 3), seed=9)
    p.log_leaf[0, 1, 2] = float("nan")
    with pytest.raises(DomainError, match=r"log_leaf\[0,1,2\] is nan"):
        posterior(p)
