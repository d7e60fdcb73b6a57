"""The product whose rows become distributions, against one softmax that autograd follows by itself."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold.kernels.linear_softmax import linear_softmax
from tests.kernels.device import close

SHAPES = [(1, 1, 1), (3, 5, 2), (5, 3, 7)]


def drawn(m: int, n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    query, key, bias = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((m, d), (n, d), (n,)))
    return query, key, bias


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_values(shape: tuple[int, int, int], with_bias: bool) -> None:
    query, key, bias = drawn(*shape)
    logits = query @ key.T + (bias if with_bias else 0)
    table = linear_softmax(query, key, bias if with_bias else None)
    # Sums of a handful of float64 numbers.
    torch.testing.assert_close(table.share, torch.softmax(logits, 1), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(table.log_total, torch.logsumexp(logits, 1), rtol=1e-13, atol=1e-13)


def test_a_range_of_1000_nats() -> None:
    query, key, bias = drawn(3, 17, 2)
    bias = torch.linspace(-900.0, 100.0, 17, dtype=torch.float64)
    bias[4] = -float("inf")
    table = linear_softmax(query, key, bias)
    logits = query @ key.T + bias
    torch.testing.assert_close(table.share, torch.softmax(logits, 1), rtol=1e-11, atol=0.0)
    torch.testing.assert_close(table.log_total, torch.logsumexp(logits, 1), rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("with_bias", [False, True])
def test_derivatives(shape: tuple[int, int, int], dropout: float, with_bias: bool) -> None:
    inputs = tuple(x.requires_grad_() for x in drawn(*shape)[: 3 if with_bias else 2])

    def both(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return linear_softmax(*inputs, dropout=dropout, generator=seeded())[:2]

    assert gradcheck(both, inputs)
    assert gradgradcheck(both, inputs)


@pytest.mark.parametrize("num_mixtures", [1, 2])
def test_derivatives_of_mixtures(num_mixtures: int) -> None:
    """Of the mixtures, of the table itself and of its normalisers at once."""
    inputs = tuple(x.requires_grad_() for x in drawn(3, 5, 2))
    weights = tuple(torch.rand(3, generator=seeded(i), dtype=torch.float64).requires_grad_() for i in range(2))

    def mixed(*tensors: Tensor) -> tuple[Tensor, ...]:
        table = linear_softmax(*tensors[:3])
        return (*(table.mix(w) for w in tensors[3:]), table.share**2, table.log_total)

    query, key, bias, *rest = (*inputs, *weights[:num_mixtures])
    found = mixed(query, key, bias, *rest)
    share = torch.softmax(query @ key.T + bias, 1)
    for one, w in zip(found, rest, strict=False):
        torch.testing.assert_close(one, w @ share, rtol=1e-13, atol=0.0)
    assert gradcheck(mixed, (query, key, bias, *rest))
    assert gradgradcheck(mixed, (query, key, bias, *rest))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_to_be_differentiated_are_the_same(dropout: float) -> None:
    inputs = [x.requires_grad_() for x in drawn(3, 5, 2)]
    weights = torch.rand(3, generator=seeded(), dtype=torch.float64).requires_grad_()
    table = linear_softmax(*inputs, dropout=dropout, generator=seeded())
    out = (table.mix(weights) ** 2).sum() + (table.share**3).sum() + table.log_total.sum()
    plain = torch.autograd.grad(out, (*inputs, weights), retain_graph=True)
    followed = torch.autograd.grad(out, (*inputs, weights), create_graph=True)
    for one, other in zip(plain, followed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


def test_a_mixture_alone() -> None:
    """Nothing but the mixture depends on the table, and its gradient is an expanded number."""
    query, key, bias = (x.requires_grad_() for x in drawn(3, 5, 2))
    weights = torch.rand(3, dtype=torch.float64, generator=seeded())
    found = torch.autograd.grad((linear_softmax(query, key, bias).mix(weights) ** 2).sum(), (query, key, bias))
    share = torch.softmax(query @ key.T + bias, 1)
    expected = torch.autograd.grad(((weights @ share) ** 2).sum(), (query, key, bias))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_are_the_same_again(create_graph: bool) -> None:
    """What one backward pass left with the table is not counted by the next, even if it never reached the table."""
    query, key, bias = (x.requires_grad_() for x in drawn(3, 5, 2))
    weights = torch.rand(3, dtype=torch.float64, generator=seeded()).requires_grad_()
    table = linear_softmax(query, key, bias)
    out = (table.mix(weights) ** 2).sum() + table.log_total.sum()
    first = torch.autograd.grad(out, (query, key, bias), retain_graph=True)
    torch.autograd.grad(out, weights, retain_graph=True, create_graph=create_graph)
    again = torch.autograd.grad(out, (query, key, bias))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("create_graph", [False, True])
def test_only_what_is_asked_for(asked: tuple[int, ...], create_graph: bool) -> None:
    inputs = drawn(3, 5, 2)
    leaves = [inputs[i].requires_grad_() for i in asked]
    table = linear_softmax(*inputs)
    found = torch.autograd.grad((table.share**2).sum(), leaves, create_graph=create_graph)
    expected = torch.autograd.grad((torch.softmax(inputs[0] @ inputs[1].T + inputs[2], 1) ** 2).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


def test_one_tensor_as_query_and_key() -> None:
    x = drawn(5, 3, 2)[0].requires_grad_()
    expected = torch.autograd.grad((torch.softmax(x @ x.T, 1) ** 2).sum(), x)[0]
    for create_graph in (False, True):
        found = torch.autograd.grad((linear_softmax(x, x).share ** 2).sum(), x, create_graph=create_graph)[0]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_dropout_takes_entries_out_of_the_softmax() -> None:
    query, key, bias = drawn(40, 50, 2)
    table = linear_softmax(query, key, bias, dropout=0.3, generator=seeded())
    gone = table.share == 0
    assert 0.25 < float(gone.double().mean()) < 0.35  # five standard deviations of 2000 draws
    logits = (query @ key.T + bias).masked_fill(gone, -float("inf"))
    torch.testing.assert_close(table.share, torch.softmax(logits, 1), rtol=1e-13, atol=0.0)
    torch.testing.assert_close(table.log_total, torch.logsumexp(logits, 1), rtol=1e-13, atol=1e-13)
    again = linear_softmax(query, key, bias, dropout=0.3, generator=seeded())
    other = linear_softmax(query, key, bias, dropout=0.3, generator=seeded(6))
    assert torch.equal(again.share, table.share)
    assert not torch.equal(other.share, table.share)


@pytest.mark.parametrize("dropout", [0.0, 1.0])
def test_a_row_that_would_lose_everything_is_left_whole(dropout: float) -> None:
    query, key, bias = drawn(3, 5, 2)
    whole = linear_softmax(query, key, bias)
    found = linear_softmax(query, key, bias, dropout=dropout, generator=seeded())
    assert torch.equal(found.share, whole.share)
    assert torch.equal(found.log_total, whole.log_total)


def test_without_a_generator_nothing_is_dropped() -> None:
    query, key, bias = drawn(3, 5, 2)
    assert torch.equal(linear_softmax(query, key, bias, dropout=0.9).share, linear_softmax(query, key, bias).share)


def test_nothing_is_written_into_the_arguments() -> None:
    inputs = drawn(3, 5, 2)
    before = [x.clone() for x in inputs]
    leaves = [x.requires_grad_() for x in inputs]
    table = linear_softmax(*leaves, dropout=0.5, generator=seeded())
    torch.autograd.grad((table.share**2).sum() + table.mix(torch.ones(3).double()).sum(), leaves)
    for x, y in zip(inputs, before, strict=True):
        close(x, y, 0.0)


def test_an_infinite_gradient_of_a_share_of_zero_is_none() -> None:
    """A key so far away that its share underflows, and what a recursion may say of weights of 0."""
    query = torch.tensor([[1.0, 0.0], [0.5, 0.5]], requires_grad=True)
    key = torch.tensor([[0.0, 1.0], [-200.0, 0.0], [1.0, 0.0]], requires_grad=True)
    grad = torch.tensor([[1.0, float("inf"), 2.0], [3.0, -1.0, 0.5]])
    share = linear_softmax(query, key).share
    assert share[0, 1] == 0
    found = torch.autograd.grad(share, (query, key), grad)
    plain = torch.softmax(query @ key.T, 1)
    expected = torch.autograd.grad(plain, (query, key), torch.where(plain == 0, 0.0, grad))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
