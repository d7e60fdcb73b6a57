"""The two passes over a table of distributions against float64: whole rows and long ones, dropout, rounding."""

import weakref

import pytest
import torch
from torch import Tensor

from tests.kernels.device import DEVICE, HERE, close

pytest.importorskip("triton")

from rankfold.kernels import linear_softmax as reference
from rankfold.kernels.linear_softmax import linear_softmax
from rankfold.kernels.linear_softmax import triton as kernel

pytestmark = HERE
INF = float("inf")


@pytest.fixture(params=["whole", "long"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Rows in registers, or in pieces of 16 entries."""
    if request.param == "long":
        monkeypatch.setattr(kernel, "WHOLE", 2)
        monkeypatch.setattr(kernel, "PIECE", 16)
    return str(request.param)


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return (spread * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(DEVICE)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator(device=DEVICE).manual_seed(seed)


def check(table: Tensor, log_total: Tensor, logits: Tensor) -> None:
    """Distributions and normalisers of logits, to the rounding of float32."""
    expected = torch.softmax(logits, 1)
    # An exponential of a number of up to 20, rounded; 0 below the smallest number.
    close(table, expected, 1e-5 * expected + 1e-38)
    close(log_total, torch.logsumexp(logits, 1), 1e-5)


@pytest.mark.parametrize(("m", "n", "bias"), [(1, 1, False), (3, 17, True), (2, 33, False), (2, 16, True)])
def test_rows_become_distributions(rows: str, m: int, n: int, bias: bool) -> None:
    x, own = drawn(m, n, spread=3.0), drawn(n, seed=1) if bias else None
    table, log_total = kernel._normalised(x.clone(), None, own, 0.0, None, rounded=False)
    check(table, log_total, x.double() + (0 if own is None else own.double()))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter has no bfloat16")
def test_a_copy_in_bfloat16(rows: str) -> None:
    x = drawn(3, 33, spread=3.0)
    half = torch.full_like(x, -1.0, dtype=torch.bfloat16)
    table, _ = kernel._normalised(x.clone(), None, None, 0.0, None, rounded=True, half=half)
    assert torch.equal(half, table.bfloat16())


def test_scale_and_bias(rows: str) -> None:
    x, own = drawn(2, 17), drawn(17, seed=1)
    own[3] = -INF
    own[4] = -400.0
    table, log_total = kernel._normalised(x.clone(), torch.full_like(x[0, :1], 3.0), own, 0.0, None, rounded=False)
    assert (table[:, 3] == 0).all()
    check(table, log_total, 3 * x.double() + own.double())


def test_bias_of_any_layout(rows: str) -> None:
    x, own = drawn(2, 5), drawn(5, 2, seed=1)[:, 0]
    assert not own.is_contiguous()
    check(*kernel._normalised(x.clone(), None, own, 0.0, None, rounded=False), x.double() + own.double())


def test_dropout(rows: str) -> None:
    x, own = drawn(4, 50), drawn(50, seed=1)
    table, log_total = kernel._normalised(x.clone(), None, own, 0.4, seeded(), rounded=False)
    gone = table == 0
    assert 0.2 < float(gone.double().mean()) < 0.6  # five standard deviations of 200 draws
    assert not (gone == gone[0]).all()  # rows have streams of their own
    check(table, log_total, (x.double() + own.double()).masked_fill(gone, -INF))
    again = kernel._normalised(x.clone(), None, own, 0.4, seeded(), rounded=False)[0]
    other = kernel._normalised(x.clone(), None, own, 0.4, seeded(1), rounded=False)[0]
    assert torch.equal(again, table)
    assert not torch.equal(other == 0, gone)


def test_long_rows_drop_what_whole_rows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(3, 50)
    whole = kernel._normalised(x.clone(), None, None, 0.4, seeded(), rounded=False)[0]
    monkeypatch.setattr(kernel, "WHOLE", 2)
    monkeypatch.setattr(kernel, "PIECE", 16)
    assert torch.equal(kernel._normalised(x.clone(), None, None, 0.4, seeded(), rounded=False)[0] == 0, whole == 0)


def test_a_row_that_would_lose_everything_is_left_whole(rows: str) -> None:
    x, own = drawn(2, 17), drawn(17, seed=1)
    table, log_total = kernel._normalised(x.clone(), None, own, 1.0, seeded(), rounded=False)
    assert (table > 0).all()
    check(table, log_total, x.double() + own.double())


def test_rounded_numbers_have_ten_fraction_bits(rows: str) -> None:
    x = drawn(3, 17)
    exact = kernel._normalised(x.clone(), None, None, 0.0, None, rounded=False)[0]
    table = kernel._normalised(x.clone(), None, None, 0.0, None, rounded=True)[0]
    assert (exact.view(torch.int32) & 0x1FFF != 0).any()
    assert (table.view(torch.int32) & 0x1FFF == 0).all()
    close(table, exact, 2.0**-11 * exact)  # to nearest: half of the last bit
    # Errors of both signs: a sum of many loses no mass.
    assert (table > exact).any()
    assert (table < exact).any()


@pytest.mark.parametrize(("height", "pieces"), [(5, 3), (16, 8), (17, 6), (40, 8)])  # of two rows, or eight at most
def test_one_piece_of_the_gradient_is_there_at_a_time(
    height: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, made = kernel._logit_gradient, []

    def watched(*given: object) -> Tensor:
        assert all(piece() is None for piece in made)
        found = honest(*given)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(kernel, "_logit_gradient", watched)
    monkeypatch.setattr(kernel, "PIECE_OF_LOGITS", 4 * 34)  # two rows
    query, key = drawn(height, 3), drawn(17, 3, seed=1)
    table, grad = torch.softmax(query @ key.T, 1), drawn(height, 17, seed=3)
    kernel.gradients(query, key, table, grad, drawn(height, seed=4), [], (True, True, False), "tf32")
    assert len(made) == pieces


@pytest.mark.parametrize("num_mixtures", [0, 1, 2])
@pytest.mark.parametrize("piece", [2**26, 4 * 34, 1])  # rows at a time: all, two, one
def test_gradients(rows: str, num_mixtures: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "PIECE_OF_LOGITS", piece)
    m, n, d = 5, 17, 3
    query, key, bias = drawn(m, d), drawn(n, d, seed=1), drawn(n, seed=2)
    grad, grad_total = drawn(m, n, seed=3), drawn(m, seed=4)
    mixtures = [(drawn(m, seed=5 + i), drawn(n, seed=7 + i)) for i in range(num_mixtures)]
    table = torch.softmax(query @ key.T + bias, 1)
    for wanted in [(True, True, True), (True, False, False), (False, True, False), (False, False, True)]:
        found = kernel.gradients(query, key, table, grad, grad_total, mixtures, wanted, "tf32")
        leaves = [x.double().requires_grad_() for x in (query, key, bias)]
        logits = leaves[0] @ leaves[1].T + leaves[2]
        share = torch.softmax(logits, 1)
        total = (share * grad.double()).sum() + (torch.logsumexp(logits, 1) * grad_total.double()).sum()
        for weights, own in mixtures:
            total = total + (weights.double() @ share * own.double()).sum()
        expected = torch.autograd.grad(total, leaves)
        for one, other, want in zip(found, expected, wanted, strict=True):
            if want:
                close(one, other, 1e-4)  # sums of up to 85 float32 terms of a few units; TF32 products on a GPU
            else:
                assert one is None


def test_half_operands_of_mixed_precision(rows: str) -> None:
    query, key, bias = drawn(3, 5, spread=1e4), drawn(17, 5, seed=1, spread=1e-4), drawn(17, seed=2)
    table, log_total, _ = kernel.shares(query, key, bias, 0.0, None, "mixed")
    logits = query.double() @ key.double().T + bias.double()
    bound = 2.1 * 2.0**-11 * (query.abs().double() @ key.abs().double().T).amax()  # both operands are rounded
    close(log_total, torch.logsumexp(logits, 1), bound)
    close(table.log(), torch.log_softmax(logits, 1), 2 * bound + 2.0**-11)
    assert (table.view(torch.int32) & 0x1FFF == 0).all()


def test_queries_of_zeros_in_mixed_precision(rows: str) -> None:
    """Their scale is 0, and nothing is made of what lies beyond the end of a row."""
    table, log_total, _ = kernel.shares(torch.zeros(2, 3, device=DEVICE), drawn(5, 3), None, 0.0, None, "mixed")
    close(table, torch.full((2, 5), 0.2), 2.0**-11)
    close(log_total, torch.full((2,), 5.0).log(), 1e-6)


@pytest.fixture
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public function takes the kernels, as it does on a GPU."""
    monkeypatch.setattr(reference, "triton_serves", lambda *tensors: True)
    monkeypatch.setattr(reference, "current_precision", lambda device: "float32")


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("create_graph", [False, True])
def test_the_whole_function(rows: str, create_graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table, normalisers and two mixtures, one of whose gradients is an expanded number; twice the same."""
    calls = []
    made = kernel.shares
    monkeypatch.setattr(kernel, "shares", lambda *args: calls.append(1) or made(*args))
    query, key, bias, first, second = (
        drawn(*shape, seed=i) for i, shape in enumerate([(5, 3), (17, 3), (17,), (5,), (5, 2)])
    )
    inputs = (query, key, bias, first, second[:, 0])
    pick = drawn(17, seed=9)

    def scalar(table: reference.SoftmaxTable, first: Tensor, second: Tensor, pick: Tensor) -> Tensor:
        mixed = table.mix(first).sum() + table.mix(second) @ pick
        return mixed + (table.share**2).sum() + table.log_total.sum()

    leaves = [x.requires_grad_() for x in inputs]
    out = scalar(linear_softmax(*leaves[:3]), *leaves[3:], pick)
    assert calls == [1]
    found = torch.autograd.grad(out, leaves, create_graph=create_graph, retain_graph=True)
    again = torch.autograd.grad(out, leaves, create_graph=create_graph)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    logits = doubles[0] @ doubles[1].T + doubles[2]
    exact = reference.SoftmaxTable(torch.softmax(logits, 1), torch.logsumexp(logits, 1))
    expected = torch.autograd.grad(scalar(exact, *doubles[3:], pick.double()), doubles)
    for one, two, other in zip(found, again, expected, strict=True):
        assert torch.equal(one, two)
        close(one, other, 1e-5)  # float32 sums of up to 85 terms around 1


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("create_graph", [False, True])
def test_derivatives_with_dropout(rows: str, create_graph: bool) -> None:
    leaves = [drawn(*shape, seed=i).requires_grad_() for i, shape in enumerate([(5, 3), (17, 3)])]
    table = linear_softmax(*leaves, dropout=0.5, generator=seeded())
    found = torch.autograd.grad((table.share**2).sum() + table.log_total.sum(), leaves, create_graph=create_graph)
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    logits = (doubles[0] @ doubles[1].T).masked_fill(table.share == 0, -INF)
    exact = (torch.softmax(logits, 1) ** 2).sum() + torch.logsumexp(logits, 1).sum()
    for one, other in zip(found, torch.autograd.grad(exact, doubles), strict=True):
        close(one, other, 1e-5)


def test_an_infinite_gradient_of_a_share_of_zero_is_none(rows: str) -> None:
    """As a recursion gives it whose weight underflew: nobody uses the entry. Of others, infinity stays."""
    query, key = drawn(2, 3), drawn(17, 3, seed=1)
    table = torch.softmax(query @ key.T, 1)
    table[0, 4] = 0.0
    grad = drawn(2, 17, seed=2)
    plain = kernel.gradients(query, key, table, grad, drawn(2, seed=3), [], (True, True, False), "tf32")
    grad[0, 4] = INF
    found = kernel.gradients(query, key, table, grad, drawn(2, seed=3), [], (True, True, False), "tf32")
    for one, other in zip(found[:2], plain[:2], strict=True):
        assert torch.equal(one, other)
    grad[0, 5] = INF
    found = kernel.gradients(query, key, table, grad, drawn(2, seed=3), [], (True, False, False), "tf32")
    assert not found[0][0].isfinite().any()
    assert found[0][1].isfinite().all()
