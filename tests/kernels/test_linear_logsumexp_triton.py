"""The fused normaliser against float64: tiles, shares of the keys, blocks of rows, right at -inf.

Truth is computed from operands as float16 holds them, so that bounds need to allow for later rounding only.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.kernels.device import DEVICE, HERE, close

pytest.importorskip("triton")

from rankfold.kernels import linear_logsumexp as reference
from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.kernels.linear_logsumexp import triton as kernel
from rankfold.kernels.rounding import Half, to_half

pytestmark = HERE
INF = float("inf")
ROUND = 2.0**-11 * 1.01  # of float16, and a little for float32


class Drawn(NamedTuple):
    query: Tensor  # "z d"
    key: Tensor  # "v d"
    bias: Tensor | None  # "v"
    grad: Tensor  # "z"


def drawn(z: int, v: int, d: int, *, bias: bool = True, seed: int = 0) -> Drawn:
    g = torch.Generator().manual_seed(seed)
    shapes = ((z, d), (v, d), (v,), (z,))
    query, key, own, grad = (torch.randn(shape, generator=g).to(DEVICE) for shape in shapes)
    return Drawn(query, 0.5 * key, own if bias else None, 1e-3 * grad)


def exact(x: Half) -> Tensor:
    return x.half.double() * x.scale.double()


def check(x: Drawn) -> None:
    """Value and gradients, each entry within the rounding of its own terms."""
    halves = to_half(x.query), to_half(x.key)
    q, k = (exact(half) for half in halves)
    logits = q @ k.T + (0 if x.bias is None else x.bias.double())
    out = kernel.log_normalisers(*halves, x.bias)
    truth = torch.logsumexp(logits, 1)
    assert out.dtype == torch.float32
    # float32 sums of d products, and of v exponentials.
    close(out, truth, 1e-5 * (1 + q.abs() @ k.abs().amax(0)))
    share = torch.exp(logits - torch.where(truth == -INF, 0.0, truth)[:, None])
    g = x.grad.double()
    wanted = (True, True, x.bias is not None)
    grads = kernel.gradients(x.query, x.key, x.bias, halves, out, x.grad, wanted)
    slack = 1e-4  # relative error of a share: that of a logit, absolute
    close(grads[0], (share @ k) * g[:, None], (ROUND + slack) * (share @ k.abs()) * g.abs()[:, None])
    by_key = share.T @ (g[:, None] * x.query.double())
    top = (g[:, None] * x.query.double()).abs().max()
    weights = share.T @ (g[:, None] * x.query.double()).abs()
    close(grads[1], by_key, (2 * ROUND + slack) * weights + 2.0**-24 * top * share.sum(0)[:, None] + 1e-12)
    if x.bias is None:
        assert grads[2] is None
    else:
        close(grads[2], share.T @ g, (ROUND + slack) * (share.T @ g.abs()) + 1e-12)


@pytest.mark.parametrize(
    ("z", "v", "d", "bias"),
    [
        (1, 1, 1, True),
        (5, 7, 3, False),
        (17, 129, 70, True),  # a second tile of one key, and a second stretch of the inner axis
        (130, 300, 17, True),  # two tiles of rows, three shares of the keys
    ],
)
def test_sizes(z: int, v: int, d: int, bias: bool) -> None:
    check(drawn(z, v, d, bias=bias))


def test_one_program_takes_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "PROGRAMS", 1)
    check(drawn(3, 300, 5))


def test_the_softmax_is_made_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 1)
    check(drawn(130, 5, 3))


@pytest.mark.parametrize("programs", [1, 264])
def test_keys_taken_out(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole tile of keys at -inf, as a share of its own or as the first that a program sees."""
    monkeypatch.setattr(kernel, "PROGRAMS", programs)
    x = drawn(3, 150, 5)
    assert x.bias is not None
    x.bias[:128] = -INF
    x.bias[140] = -INF
    check(x)
    grads = fused_gradients(x, (True, True, True))
    assert (grads[1][:128] == 0).all()
    assert (grads[2][:128] == 0).all()


def test_rows_without_any_key() -> None:
    x = drawn(3, 5, 2)
    assert x.bias is not None
    x.bias[:] = -INF
    halves = to_half(x.query), to_half(x.key)
    assert (kernel.log_normalisers(*halves, x.bias) == -INF).all()
    for grad in fused_gradients(x, (True, True, True)):
        assert (grad == 0).all()


def test_a_range_of_1000_nats() -> None:
    x = drawn(3, 17, 2)
    assert x.bias is not None
    x.bias[:] = torch.linspace(-900.0, 100.0, 17)
    out = kernel.log_normalisers(to_half(x.query), to_half(x.key), x.bias)
    close(out, torch.logsumexp(x.query.double() @ x.key.double().T + x.bias.double(), 1), 2e-3)


def test_bias_of_any_layout() -> None:
    x = drawn(3, 9, 2)
    assert x.bias is not None
    strided = torch.stack([x.bias, torch.full_like(x.bias, 50.0)], 1)[:, 0]
    assert not strided.is_contiguous()
    check(x._replace(bias=strided))
    check(x._replace(bias=torch.zeros(1, device=DEVICE).expand(9)))


def fused_gradients(x: Drawn, wanted: tuple[bool, ...]) -> list[Tensor]:
    halves = to_half(x.query), to_half(x.key)
    out = kernel.log_normalisers(*halves, x.bias)
    found = kernel.gradients(x.query, x.key, x.bias, halves, out, x.grad, wanted)
    return [grad for grad in found if grad is not None]


@pytest.fixture
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public function takes the kernel, as it does on a GPU in TF32."""
    monkeypatch.setattr(reference, "triton_serves", lambda *tensors: True)
    monkeypatch.setattr(reference, "current_precision", lambda device: "tf32")


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("create_graph", [False, True])
def test_only_what_is_asked_for(asked: tuple[int, ...], create_graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    made = kernel.log_normalisers
    monkeypatch.setattr(kernel, "log_normalisers", lambda *args: calls.append(1) or made(*args))
    x = drawn(3, 9, 2)
    inputs = [y for y in x[:3] if y is not None]
    leaves = [inputs[i].requires_grad_() for i in asked]
    out = linear_logsumexp(*inputs)
    assert calls == [1]
    found = torch.autograd.grad(out, leaves, x.grad, create_graph=create_graph, retain_graph=True)
    again = torch.autograd.grad(out, leaves, x.grad, create_graph=create_graph)
    doubles = [y.detach().double().requires_grad_() for y in inputs]
    truth = torch.logsumexp(doubles[0] @ doubles[1].T + doubles[2], 1)
    expected = torch.autograd.grad(truth, [doubles[i] for i in asked], x.grad.double())
    close(out, truth, 2e-3)  # operands rounded to 2**-11, two terms a logit
    for one, two, want in zip(found, again, expected, strict=True):
        assert torch.equal(one, two)
        close(one, want, 2e-3 * want.abs().max())


@pytest.mark.usefixtures("_fused")
def test_autocast_does_not_round_gradients() -> None:
    """A backward pass inside the region of autocast gives the numbers of one outside."""
    x = drawn(3, 9, 2)
    leaves = [y.requires_grad_() for y in x[:3] if y is not None]
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out = linear_logsumexp(*leaves)
        inner = torch.autograd.grad(out, leaves, x.grad, retain_graph=True)
    outer = torch.autograd.grad(out, leaves, x.grad)
    for one, other in zip(inner, outer, strict=True):
        assert torch.equal(one, other)
