"""The emission step: values at any magnitude, and gradients that are right at exact zeros.

The wrong versions that other code uses (a patched log, a floor) stand beside the right one, and the tests
show by how much they miss.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold.numerics.scaled import Scaled
from rankfold.numerics.times_log import times_log
from tests.oracles import chain

INF = float("inf")


def with_scale(mantissa: Tensor, log_scale: float = 0.0) -> Scaled:
    return Scaled(mantissa, torch.full(mantissa.shape[:-1], log_scale, dtype=torch.float64))


def log_total(x: Scaled) -> Tensor:
    """The logarithm of the sum of a scaled vector."""
    return x.mantissa.double().sum(-1).log() + x.log_scale


def check_value(x: Scaled, log_w: Tensor) -> None:
    """times_log against the exact product of the same numbers in float64: the largest entry 1, all of it right."""
    y = times_log(x, log_w)
    truth = x.mantissa.double().log() + x.log_scale.unsqueeze(-1) + log_w.double()
    empty = (truth == -INF).all(-1)
    assert y.log_scale.dtype == torch.float64
    assert y.mantissa.dtype == x.mantissa.dtype
    assert (y.mantissa[empty] == 0).all()
    eps = torch.finfo(x.mantissa.dtype).eps
    # Log scales carry one float64 rounding of a number near |log_w|.
    noise = 4 * 2.0**-52 * max(1.0, truth[truth > -INF].abs().max().item() if not empty.all() else 0.0)
    top = y.mantissa.amax(-1)[~empty]
    torch.testing.assert_close(top, torch.ones_like(top), rtol=4 * eps, atol=0.0)
    want = torch.where(empty.unsqueeze(-1), 0.0, torch.exp(truth - y.log_scale.unsqueeze(-1)))
    # One division, one exponential of an argument of up to 30 and one product in the dtype. What is smaller
    # than the smallest normal number keeps fewer digits.
    near = want > torch.finfo(x.mantissa.dtype).tiny
    torch.testing.assert_close(y.mantissa.double()[near], want[near], rtol=64 * eps + noise, atol=0.0)
    assert (y.mantissa[truth == -INF] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("shift", [0.0, -10_000.0, 10_000.0, -1e6])
@pytest.mark.parametrize("size", [1, 2, 3, 17, 129])
def test_value(dtype: torch.dtype, shift: float, size: int, generator: torch.Generator) -> None:
    mantissa = torch.rand(8, size, generator=generator, dtype=torch.float64).to(dtype)
    log_w = (3.0 * torch.randn(8, size, generator=generator, dtype=torch.float64) + shift).to(dtype)
    check_value(with_scale(mantissa, -123.0), log_w)


def test_digits_are_kept_when_logs_are_large() -> None:
    """At -10000 float32 steps by 0.001: log x + log_w says too little about which entry is the largest."""
    mantissa = torch.tensor([[0.9996, 1.0], [1.0, 0.9996]])
    y = times_log(with_scale(mantissa), torch.full((2, 2), -10_000.0))
    # x itself, to a rounding error of float32; the sum's log to one of float64 near 10000.
    torch.testing.assert_close(y.mantissa, mantissa, rtol=2e-7, atol=0.0)
    want = mantissa.double().sum(-1).log() - 10_000.0
    torch.testing.assert_close(log_total(y), want, rtol=0.0, atol=1e-7)


@given(
    size=st.integers(1, 6),
    seed=st.integers(0, 2**31),
    zeros=st.floats(0, 1),
    impossible=st.floats(0, 1),
    spread=st.sampled_from([1.0, 30.0, 1000.0]),
)
def test_value_with_zeros(size: int, seed: int, zeros: float, impossible: float, spread: float) -> None:
    g = torch.Generator().manual_seed(seed)
    mantissa = torch.rand(3, size, generator=g, dtype=torch.float64)
    mantissa = torch.where(torch.rand(3, size, generator=g) < zeros, 0.0, mantissa)
    log_w = spread * torch.randn(3, size, generator=g, dtype=torch.float64)
    log_w = torch.where(torch.rand(3, size, generator=g) < impossible, -INF, log_w)
    for dtype in (torch.float32, torch.float64):
        y = times_log(with_scale(mantissa.to(dtype)), log_w.to(dtype))
        truth = mantissa.to(dtype).double().log() + log_w.to(dtype).double()
        # log of the sum: a few rounding errors of the dtype, and of float64 at the magnitude of the logs.
        tolerance = 64 * torch.finfo(dtype).eps + 1e-15 * spread
        torch.testing.assert_close(log_total(y), torch.logsumexp(truth, -1), rtol=1e-15, atol=tolerance)
        assert (y.mantissa[truth == -INF] == 0).all()
        assert y.mantissa.amax() <= 1


def test_all_zero_vectors_and_their_gradients() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.5], [1.0, 0.0]], requires_grad=True)
    log_w = torch.tensor([[1.0, 2.0], [-INF, -INF], [-INF, 3.0]], requires_grad=True)
    y = times_log(with_scale(x, 7.0), log_w)
    assert y.mantissa.tolist() == [[0.0, 0.0]] * 3
    assert y.log_scale.isfinite().all()
    grad_x, grad_w = torch.autograd.grad(y.mantissa.sum(), (x, log_w))
    assert grad_x.isfinite().all()
    assert (grad_x[1] == 0).all()
    assert grad_w.tolist() == [[0.0, 0.0]] * 3


def test_weights_are_shared_over_leading_axes(generator: torch.Generator) -> None:
    mantissa = torch.rand(2, 3, 4, generator=generator, dtype=torch.float64)
    log_w = torch.randn(4, generator=generator, dtype=torch.float64, requires_grad=True)
    wide = log_w.detach().expand(2, 3, 4).clone().requires_grad_()
    shared, apart = times_log(with_scale(mantissa), log_w), times_log(with_scale(mantissa), wide)
    assert torch.equal(shared.mantissa, apart.mantissa)
    assert torch.equal(shared.log_scale, apart.log_scale)
    (one,) = torch.autograd.grad(log_total(shared).sum(), log_w)
    (many,) = torch.autograd.grad(log_total(apart).sum(), wide)
    torch.testing.assert_close(one, many.sum((0, 1)), rtol=1e-14, atol=0.0)


def test_gradients(generator: torch.Generator) -> None:
    mantissa = torch.rand(2, 4, generator=generator, dtype=torch.float64) + 0.1
    log_w = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    log_w[1, 2] = -INF
    inputs = (mantissa.requires_grad_(), log_w.requires_grad_())

    def total(x: Tensor, log_w: Tensor) -> Tensor:
        return log_total(times_log(with_scale(x), log_w))

    assert gradcheck(total, inputs)
    assert gradgradcheck(total, inputs)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_gradients_at_zeros(num_steps: int, generator: torch.Generator) -> None:
    """First and second derivatives of log sum against the product written out, whose gradient has no branches."""
    x = torch.rand(4, generator=generator, dtype=torch.float64)
    x[1] = 0.0
    log_w = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    log_w[0, 2] = log_w[1, 3] = -INF
    mix = torch.rand(4, 4, generator=generator, dtype=torch.float64)
    mix[0] = 0.0  # state 0 leads nowhere
    mix[:, 1] = 0.0  # state 1 is not reached at the second step

    def ours(x: Tensor, log_w: Tensor, mix: Tensor) -> Tensor:
        y = times_log(with_scale(x), log_w[0])
        if num_steps == 2:
            y = times_log(Scaled(y.mantissa @ mix, y.log_scale), log_w[1])
        return log_total(y)

    def plain(x: Tensor, log_w: Tensor, mix: Tensor) -> Tensor:
        y = x * log_w[0].exp()
        if num_steps == 2:
            y = (y @ mix) * log_w[1].exp()
        return y.sum().log()

    results = []
    for function in (ours, plain):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, log_w, mix)]
        out = function(*inputs)
        first = torch.autograd.grad(out, inputs, create_graph=True, materialize_grads=True)
        mixed = sum((torch.arange(1, grad.numel() + 1) * grad.reshape(-1).sin()).sum() for grad in first)
        second = torch.autograd.grad(mixed, inputs, materialize_grads=True)
        results.append([out, *first, *second])
    for got, want in zip(*results, strict=True):
        # Some ten operations in float64 on numbers of up to 100.
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_gradient_of_an_entry_that_is_zero() -> None:
    x = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    log_w = torch.tensor([1.0, 3.0, -INF], dtype=torch.float64, requires_grad=True)
    y = times_log(with_scale(x), log_w)
    shift = y.log_scale  # m = max(log x + log_w)
    grad_x, grad_w = torch.autograd.grad(y.mantissa.sum(), (x, log_w))
    torch.testing.assert_close(grad_x, torch.exp(log_w.detach() - shift), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(grad_w, y.mantissa.detach(), rtol=1e-14, atol=0.0)


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 200.0), (torch.float64, 1000.0)])
def test_an_unused_zero_entry_of_large_weight_gets_no_gradient(dtype: torch.dtype, gap: float) -> None:
    """The derivative of the first entry by the second is 0, even where exp(log_w - m) overflows."""
    x = torch.tensor([1.0, 0.0], dtype=dtype, requires_grad=True)
    log_w = torch.tensor([0.0, gap], dtype=dtype, requires_grad=True)
    y = times_log(with_scale(x), log_w)
    grad_x, grad_w = torch.autograd.grad(y.mantissa[0], (x, log_w))
    assert grad_x.tolist() == [1.0, 0.0]
    assert grad_w.tolist() == [1.0, 0.0]


# A chain of two states and three positions in which two moves have weight exactly 0.
INITIAL = [0.0, -INF]
TRANSITION = [[1.0, 0.0], [0.0, 1.0]]
LOG_OBS = [[0.0, 0.0], [-1.0, 2.0], [-1.0, 1.5]]


def gradient_through(emit: object) -> Tensor:
    """d log Z / d transition of the chain above, its emission steps taken by `emit`."""
    transition = torch.tensor(TRANSITION, dtype=torch.float64, requires_grad=True)
    log_obs = torch.tensor(LOG_OBS, dtype=torch.float64)
    x = emit(Scaled.from_log(torch.tensor(INITIAL, dtype=torch.float64)), log_obs[0])
    for t in (1, 2):
        x = emit(Scaled(x.mantissa @ transition, x.log_scale), log_obs[t])
    (grad,) = torch.autograd.grad(log_total(x), transition)
    return grad


def times_log_patched(x: Scaled, log_w: Tensor) -> Scaled:
    """The step as it is often written: a log whose gradient is patched to 0 where x is 0."""
    nothing = x.mantissa == 0
    log_x = torch.where(nothing, -INF, torch.where(nothing, 1.0, x.mantissa).log())
    y = Scaled.from_log(log_x + log_w)
    return Scaled(y.mantissa, y.log_scale + x.log_scale)


def test_weight_gradient_at_zero_where_a_patched_log_is_wrong() -> None:
    want = torch.tensor(chain.grad_transition(INITIAL, TRANSITION, LOG_OBS), dtype=torch.float64)
    # Six operations in float64.
    torch.testing.assert_close(gradient_through(times_log), want, rtol=1e-13, atol=1e-13)
    wrong = gradient_through(times_log_patched)
    zero = torch.tensor(TRANSITION) == 0
    torch.testing.assert_close(wrong[~zero], want[~zero], rtol=1e-13, atol=1e-13)
    # The log weights lie 5.5 nats above those of the only path: a gradient of exp(5.5) is lost.
    assert (want - wrong).abs().max() > 100.0


def log_z_through(emit: object, log_obs: Tensor) -> float:
    x = emit(with_scale(torch.tensor([1.0, 0.0], dtype=torch.float64)), log_obs[0])
    for row in log_obs[1:]:
        x = emit(Scaled(x.mantissa @ torch.eye(2, dtype=torch.float64), x.log_scale), row)
    return log_total(x).item()


def times_log_floored(x: Scaled, log_w: Tensor) -> Scaled:
    """The step with a floor of 1e-9, as in published code."""
    return times_log(Scaled(x.mantissa + 1e-9, x.log_scale), log_w)


def test_no_floor() -> None:
    """A state nobody reaches explains the word far better; a floor lets it in."""
    log_obs = torch.tensor([[0.0, 0.0], [-30.0, 0.0], [-1.0, -1.0]], dtype=torch.float64)
    want = chain.log_z([0.0, -INF], [[1.0, 0.0], [0.0, 1.0]], log_obs.tolist())
    assert want == -31.0
    assert log_z_through(times_log, log_obs) == pytest.approx(want, abs=1e-13)
    assert abs(log_z_through(times_log_floored, log_obs) - want) > 1.0


def test_scales_add_up_over_many_steps() -> None:
    """3000 steps in float32 lose nothing: each scale is added in float64."""
    x = with_scale(torch.ones(1, 2))
    log_w = torch.tensor([[-0.1, -0.1]])
    for _ in range(3000):
        x = times_log(x, log_w)
    want = 3000 * log_w[0, 0].double().item() + math.log(2.0)
    assert log_total(x).item() == pytest.approx(want, rel=1e-12)
