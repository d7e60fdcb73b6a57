"""The normaliser of a linear map against one large logsumexp: any blocks, any range, right at -inf."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold.kernels import linear_logsumexp as kernel
from rankfold.kernels.linear_logsumexp import linear_logsumexp

INF = float("inf")
SIZES = st.sampled_from([1, 2, 3, 17])
# Entries of a block, entries of a kept table: everything kept; nothing kept in one block; rows one by one; two rows.
CUTS = [(10**9, 10**9), (10**9, 0), (1, 0), (34, 0), (34, 10**9)]
every_cut = pytest.mark.parametrize("cut", CUTS)


def by_table(query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
    logits = query @ key.T
    return torch.logsumexp(logits if bias is None else logits + bias, 1)


def drawn(z: int, v: int, d: int, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    query, key, bias = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((z, d), (v, d), (v,)))
    return query * spread, key, bias * spread


def set_cut(monkeypatch: pytest.MonkeyPatch, cut: tuple[int, int]) -> None:
    for table, size in zip((kernel.BLOCK, kernel.KEPT), cut, strict=True):
        for device in table:
            monkeypatch.setitem(table, device, size)


def value_and_gradients(function: object, inputs: tuple[Tensor, ...], weight: Tensor) -> list[Tensor]:
    assert callable(function)
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight)]


@given(
    z=SIZES,
    v=SIZES,
    d=SIZES,
    spread=st.sampled_from([1.0, 1000.0]),
    with_bias=st.booleans(),
    cut=st.sampled_from(CUTS),
    seed=st.integers(0, 2**31),
)
def test_value_and_gradients(z: int, v: int, d: int, spread: float, with_bias: bool, cut: tuple[int, int], seed: int):
    inputs = drawn(z, v, d, seed, spread)[: 3 if with_bias else 2]
    weight = torch.randn(z, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_cut(monkeypatch, cut)
        found = value_and_gradients(linear_logsumexp, inputs, weight)
        single = value_and_gradients(linear_logsumexp, tuple(x.float() for x in inputs), weight.float())
    for got, want in zip(found, value_and_gradients(by_table, inputs, weight), strict=True):
        # Shares come from differences of logits of up to 10 * spread; gradients grow with the queries.
        torch.testing.assert_close(got, want, rtol=1e-13 * spread, atol=1e-13 * spread)
    rounded = tuple(x.float().double() for x in inputs)
    for got, want in zip(single, value_and_gradients(by_table, rounded, weight.float().double()), strict=True):
        assert got.dtype == torch.float32
        if spread == 1.0:  # beyond, float32 cannot hold the logits' differences, and a softmax may tip over
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


@every_cut
def test_rows_without_any_key(cut: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_cut(monkeypatch, cut)
    query, key, bias = drawn(3, 17, 2)
    everywhere = value_and_gradients(
        linear_logsumexp, (query, key, torch.full_like(bias, -INF)), torch.ones(3).double()
    )
    assert (everywhere[0] == -INF).all()
    assert all((grad == 0).all() for grad in everywhere[1:])
    bias[5] = -INF
    out, *grads = value_and_gradients(linear_logsumexp, (query, key, bias), torch.ones(3).double())
    rest = [i for i in range(17) if i != 5]
    # The same terms without the one that is 0.
    torch.testing.assert_close(out, by_table(query, key[rest], bias[rest]), rtol=1e-14, atol=1e-14)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[1][5] == 0).all()
    assert grads[2][5] == 0


@every_cut
@pytest.mark.parametrize("value", [INF, float("nan")])
def test_what_is_not_a_number_stays_so(value: float, cut: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_cut(monkeypatch, cut)
    query, key, bias = drawn(3, 17, 2)
    bias[4] = value
    bias[5] = -INF
    want = by_table(query, key, bias)
    assert not want.isfinite().any()
    torch.testing.assert_close(linear_logsumexp(query, key, bias), want, equal_nan=True)
    query[1] = value
    want = by_table(query, key.abs(), torch.zeros_like(bias))
    torch.testing.assert_close(linear_logsumexp(query, key.abs()), want, rtol=1e-14, atol=1e-14, equal_nan=True)


@every_cut
@pytest.mark.parametrize(("z", "v", "d"), [(1, 1, 1), (3, 17, 2), (2, 1, 3)])
def test_second_derivatives(z: int, v: int, d: int, cut: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_cut(monkeypatch, cut)
    inputs = tuple(x.requires_grad_() for x in drawn(z, v, d))
    assert gradcheck(linear_logsumexp, inputs)
    assert gradgradcheck(linear_logsumexp, inputs)
    assert gradgradcheck(linear_logsumexp, inputs[:2])


def test_second_derivatives_without_any_key() -> None:
    query, key, bias = drawn(3, 5, 2)
    inputs = (query.requires_grad_(), key.requires_grad_(), torch.full_like(bias, -INF).requires_grad_())
    grads = torch.autograd.grad(linear_logsumexp(*inputs).sum(), inputs, create_graph=True)
    seconds = torch.autograd.grad(sum((x**2).sum() for x in grads), inputs, allow_unused=True)
    for x in (*grads, *seconds):
        assert x is None or (x == 0).all()


@every_cut
@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 2)])
def test_only_what_is_asked_for(asked: tuple[int, ...], cut: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_cut(monkeypatch, cut)
    for create_graph in (False, True):
        inputs = drawn(3, 17, 2)
        leaves = [inputs[i].requires_grad_() for i in asked]
        found = torch.autograd.grad(linear_logsumexp(*inputs).sum(), leaves, create_graph=create_graph)
        for got, want in zip(found, torch.autograd.grad(by_table(*inputs).sum(), leaves), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


def test_one_tensor_as_query_and_key() -> None:
    x = drawn(5, 3, 2)[0].requires_grad_()
    want = torch.autograd.grad(by_table(x, x).sum(), x)[0]
    for create_graph in (False, True):
        found = torch.autograd.grad(linear_logsumexp(x, x).sum(), x, create_graph=create_graph)[0]
        torch.testing.assert_close(found, want, rtol=1e-13, atol=1e-13)


@every_cut
def test_the_same_twice_and_nothing_written(cut: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_cut(monkeypatch, cut)
    inputs = tuple(x.float() for x in drawn(17, 17, 3))
    before = [x.clone() for x in inputs]
    leaves = [x.requires_grad_() for x in inputs]
    out = linear_logsumexp(*leaves)
    first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    again = torch.autograd.grad(out.sum(), leaves)  # a kept table serves more than once
    anew = torch.autograd.grad(linear_logsumexp(*leaves).sum(), leaves)
    for x, y, z in zip(first, again, anew, strict=True):
        assert torch.equal(x, y)
        assert torch.equal(x, z)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_keeps_sums_in_float32(dtype: torch.dtype) -> None:
    query, key, bias = (x.float() for x in drawn(3, 17, 5))
    want = by_table(query.to(dtype).double(), key.double(), bias.double())
    leaves = (query.to(dtype).requires_grad_(), key.requires_grad_(), bias.requires_grad_())
    with torch.autocast("cpu", torch.bfloat16):
        out = linear_logsumexp(*leaves)
        inner = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    assert out.dtype == torch.float32
    # Autocast would have rounded logits to 2**-9 of themselves.
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)
    outer = torch.autograd.grad(out.sum(), leaves)
    for x, y, leaf in zip(inner, outer, leaves, strict=True):
        assert x.dtype == leaf.dtype
        assert torch.equal(x, y)


def test_the_table_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor made in either pass has as many entries as a block."""
    set_cut(monkeypatch, (34, 0))
    sizes = []
    make = torch.Tensor.new_empty

    def seen(self: Tensor, *size: int) -> Tensor:
        fresh = make(self, *size)
        sizes.append(fresh.numel())
        return fresh

    monkeypatch.setattr(torch.Tensor, "new_empty", seen)
    value_and_gradients(linear_logsumexp, drawn(17, 17, 2), torch.ones(17).double())
    assert max(sizes) == 34


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_cut
@pytest.mark.parametrize("mode", ["float32", "bf16"])
def test_on_a_gpu_and_in_a_graph(cut: tuple[int, int], mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_cut(monkeypatch, cut)
    inputs = drawn(17, 17, 8)
    want = value_and_gradients(by_table, inputs, torch.ones(17).double())
    leaves = [x.float().cuda().requires_grad_() for x in inputs]

    def both() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=mode == "bf16"):
            out = linear_logsumexp(*leaves)
        return [out.detach(), *torch.autograd.grad(out.sum(), leaves)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            plain = both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    graph.replay()
    torch.cuda.synchronize()
    # bfloat16 operands are rounded to 2**-9 of themselves, 8 of them to a logit of a few units.
    close = {"rtol": 1e-5, "atol": 1e-5} if mode == "float32" else {"rtol": 2e-2, "atol": 5e-2}
    for got, replayed, truth in zip(plain, captured, want, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.cpu().double(), truth, **close)
        torch.testing.assert_close(replayed, got)


def test_no_query_at_all() -> None:
    query, key = torch.zeros(0, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    found = linear_logsumexp(query, key)
    assert found.shape == (0,)
    found.sum().backward()
    assert key.grad is not None
    assert not key.grad.any()
