"""The product in log arithmetic against one large logsumexp: any range, any blocks, right at -inf."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold.kernels import log_products as blocks_module
from rankfold.kernels.log_products import log_matmul

INF = float("inf")
SIZES = st.sampled_from([1, 2, 3, 5, 17])


def by_broadcast(log_x: Tensor, log_w: Tensor) -> Tensor:
    return torch.logsumexp(log_x.unsqueeze(-1) + log_w.unsqueeze(-3), -2)


def random_logs(*shape: int, seed: int, spread: float = 1.0, zeros: float = 0.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = spread * torch.randn(shape, generator=g, dtype=torch.float64)
    return torch.where(torch.rand(shape, generator=g) < zeros, -INF, x)


@given(
    lead=st.lists(st.integers(1, 3), max_size=2),
    n=SIZES,
    z=SIZES,
    y=SIZES,
    spread=st.sampled_from([1.0, 1000.0]),
    zeros=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_value(lead: list[int], n: int, z: int, y: int, spread: float, zeros: float, seed: int) -> None:
    log_x = random_logs(*lead, n, z, seed=seed, spread=spread, zeros=zeros)
    log_w = random_logs(*lead, z, y, seed=seed + 1, spread=spread, zeros=zeros)
    # The same operations in another layout: a few rounding errors of the result.
    torch.testing.assert_close(log_matmul(log_x, log_w), by_broadcast(log_x, log_w), rtol=1e-14, atol=1e-14)
    single = log_matmul(log_x.float(), log_w.float())
    assert single.dtype == torch.float32
    truth = by_broadcast(log_x.float().double(), log_w.float().double())
    # Sums of logs of up to 5000 in float32, each entry to 2**-24 of that.
    torch.testing.assert_close(single.double(), truth, rtol=1e-6, atol=1e-6 * spread)


@pytest.mark.parametrize("block", [1, 4, 7, 20, 63, 10**9])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_blocks_change_nothing(block: int, lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    log_x, log_w = random_logs(*lead, 5, 3, seed=0, zeros=0.3), random_logs(*lead, 3, 7, seed=1, zeros=0.3)
    weight = torch.rand(*lead, 5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def value_and_gradients() -> tuple[Tensor, ...]:
        inputs = (log_x.clone().requires_grad_(), log_w.clone().requires_grad_())
        out = log_matmul(*inputs)
        reached = torch.where(out > -INF, out, 0.0)
        first = torch.autograd.grad((weight * reached).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum((grad**2).sum() for grad in first), inputs)
        return out.detach(), *(grad.detach() for grad in first), *second

    whole = value_and_gradients()
    monkeypatch.setattr(blocks_module, "BLOCK", block)
    for want, got in zip(whole, value_and_gradients(), strict=True):
        # Gradients are summed in another order.
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize(("n", "z", "y"), [(1, 1, 1), (2, 3, 4), (3, 1, 2)])
def test_gradients(lead: tuple[int, ...], n: int, z: int, y: int) -> None:
    inputs = (
        random_logs(*lead, n, z, seed=0).requires_grad_(),
        random_logs(*lead, z, y, seed=1).requires_grad_(),
    )
    assert gradcheck(log_matmul, inputs)
    assert gradgradcheck(log_matmul, inputs)


def test_gradients_at_a_range_of_1000_nats() -> None:
    """Each term's share of its sum, wherever the sum lies."""
    log_x, log_w = random_logs(3, 4, seed=0, spread=500.0), random_logs(4, 5, seed=1, spread=500.0)
    inputs = (log_x.requires_grad_(), log_w.requires_grad_())
    grads = torch.autograd.grad(log_matmul(*inputs).sum(), inputs)
    wants = torch.autograd.grad(by_broadcast(*inputs).sum(), inputs)
    for got, want in zip(grads, wants, strict=True):
        # Shares come from differences of logs near 1000.
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)


def test_terms_without_weight() -> None:
    """-inf entries, rows and columns: no NaN, and no gradient for what has no weight."""
    log_x, log_w = random_logs(4, 3, seed=0), random_logs(3, 5, seed=1)
    log_x[0] = -INF
    log_x[1, 2] = -INF
    log_w[:, 0] = -INF
    log_w[1, 1] = -INF
    inputs = (log_x.requires_grad_(), log_w.requires_grad_())
    out = log_matmul(*inputs)
    assert (out[0] == -INF).all()
    assert (out[:, 0] == -INF).all()
    grad_x, grad_w = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    for grad, value in ((grad_x, log_x), (grad_w, log_w)):
        assert grad.isfinite().all()
        assert (grad[value == -INF] == 0).all()
    # Every finite output shares out 1 among its terms: 3 rows by 4 columns.
    assert grad_x.sum().item() == pytest.approx(12.0, rel=1e-13)
    assert grad_w.sum().item() == pytest.approx(12.0, rel=1e-13)
    for second in torch.autograd.grad((grad_x**2).sum() + (grad_w**2).sum(), inputs):
        assert second.isfinite().all()
