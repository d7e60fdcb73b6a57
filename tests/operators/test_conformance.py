"""What every operator must do, for every case of `cases.py`: each method against the written-out matrix.

That the written-out matrix is the right one is tested for each operator in the other files here.
"""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold.operators import MaxOperator, Operator
from tests.folded import folded
from tests.operators.cases import CASES, Case

SIZES = [1, 2, 3, 5, 17]
DTYPES = [torch.float32, torch.float64]
INF = float("inf")

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
positive_case = pytest.mark.parametrize("case", [case for case in CASES if case.positive], ids=lambda case: case.name)
every_size = folded("size", SIZES)
every_dtype = folded("dtype", DTYPES)


def log_truth(op: Operator) -> Tensor:  # "z y"
    """log A in float64."""
    exact = op.with_factors(*(factor.double() for factor in op.factors()))
    return torch.log(exact.to_dense())


def scaled_truth(op: Operator) -> Tensor:  # "z y"
    """B = A exp(-log_scale) in float64, the matrix of push and pull."""
    return torch.exp(log_truth(op) - op.log_scale)


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Equal to about ten rounding errors of sums of positive terms; atol for logs near 0."""
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(got.double(), want.double(), **tolerance)


def close_to_zero_too(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """The same for linear sums of positive terms: no atol, zeros are exact."""
    torch.testing.assert_close(got.double(), want, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0.0)


def log_product(log_x: Tensor, log_a: Tensor) -> Tensor:  # "... z", "z y" -> "... y"
    """log(x A) by one large logsumexp."""
    return torch.logsumexp(log_x.double().unsqueeze(-1) + log_a, -2)


@every_case
@every_size
@every_dtype
def test_protocol(case: Case, size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    op = case.build(size, generator, dtype)
    assert isinstance(op, Operator)
    assert isinstance(op, MaxOperator)
    assert op.shape == (size, size)
    assert len(op.log_factors) == len(op.factors())
    assert any(op.log_factors) == isinstance(op.log_scale, Tensor)
    if isinstance(op.log_scale, Tensor):
        assert op.log_scale.dtype == torch.float64
        assert op.log_scale.shape == ()
        assert not op.log_scale.requires_grad
    else:
        assert op.log_scale == 0.0


@every_case
@every_size
@every_dtype
@folded("lead", [(), (4,), (2, 3)])
def test_push_and_pull(
    case: Case, size: int, dtype: torch.dtype, lead: tuple[int, ...], generator: torch.Generator
) -> None:
    op = case.build(size, generator, dtype)
    x = torch.rand(*lead, size, generator=generator, dtype=dtype)
    x[..., size // 2] = 0.0
    truth = scaled_truth(op)
    pushed, pulled = op.push(x), op.pull(x)
    assert pushed.dtype == pulled.dtype == dtype
    close_to_zero_too(pushed, x.double() @ truth, dtype)
    close_to_zero_too(pulled, x.double() @ truth.mT, dtype)


@every_case
@every_size
@every_dtype
@folded("lead", [(), (4,), (2, 3)])
def test_push_log_and_pull_log(
    case: Case, size: int, dtype: torch.dtype, lead: tuple[int, ...], generator: torch.Generator
) -> None:
    op = case.build(size, generator, dtype)
    log_x = torch.randn(*lead, size, generator=generator, dtype=dtype)
    truth = log_truth(op)
    close(op.push_log(log_x), log_product(log_x, truth), dtype)
    close(op.pull_log(log_x), log_product(log_x, truth.mT), dtype)


@every_case
@every_size
def test_logs_at_a_range_of_1000_nats(case: Case, size: int, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    log_x = -1000.0 * torch.rand(3, size, generator=generator, dtype=torch.float64)
    truth = log_truth(op)
    # rtol of about ten rounding errors; atol the same at a magnitude of 1000.
    torch.testing.assert_close(op.push_log(log_x), log_product(log_x, truth), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(op.pull_log(log_x), log_product(log_x, truth.mT), rtol=1e-12, atol=1e-12)


@every_case
@every_size
@every_dtype
def test_logs_of_zero(case: Case, size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    op = case.build(size, generator, dtype)
    log_x = torch.randn(3, size, generator=generator, dtype=dtype)
    log_x[0] = -INF
    log_x[1, 1:] = -INF
    truth = log_truth(op)
    pushed, pulled = op.push_log(log_x), op.pull_log(log_x)
    assert (pushed[0] == -INF).all()
    assert (pulled[0] == -INF).all()
    close(pushed, log_product(log_x, truth), dtype)
    close(pulled, log_product(log_x, truth.mT), dtype)


@every_case
@every_size
@every_dtype
def test_rows(case: Case, size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    op = case.build(size, generator, dtype)
    index = torch.tensor([size - 1, 0, size // 2, 0])
    close_to_zero_too(op.rows(index), scaled_truth(op)[index], dtype)
    close(op.log_rows(index), log_truth(op)[index], dtype)


@every_case
@every_size
@every_dtype
def test_to_dense(case: Case, size: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    op = case.build(size, generator, dtype)
    dense = op.to_dense()
    assert dense.dtype == dtype
    # The exponential of a log of up to 100 turns its rounding into a relative error 100 times larger.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(dense.double(), torch.exp(log_truth(op)), rtol=tolerance, atol=0.0)


@every_case
@every_size
def test_with_factors(case: Case, size: int, generator: torch.Generator) -> None:
    op, other = (case.build(size, generator, torch.float64) for _ in range(2))
    before = op.to_dense()
    same, changed = op.with_factors(*op.factors()), op.with_factors(*other.factors())
    for got, want in ((same, op), (changed, other)):
        assert type(got) is type(op)
        assert got.log_factors == op.log_factors
        assert all(mine is theirs for mine, theirs in zip(got.factors(), want.factors(), strict=True))
        assert torch.equal(got.to_dense(), want.to_dense())
        assert torch.equal(torch.as_tensor(got.log_scale), torch.as_tensor(want.log_scale))
        x = torch.rand(2, size, generator=generator, dtype=torch.float64)
        assert torch.equal(got.push(x), want.push(x))
        assert torch.equal(got.pull_log(x), want.pull_log(x))
    assert torch.equal(op.to_dense(), before)


@every_case
@every_size
@every_dtype
@folded("lead", [(), (2, 3)])
def test_push_log_weighted(
    case: Case, size: int, dtype: torch.dtype, lead: tuple[int, ...], generator: torch.Generator
) -> None:
    op = case.build(size, generator, dtype)
    x = torch.rand(*lead, size, generator=generator, dtype=dtype)
    truth = scaled_truth(op)
    # Terms have both signs and are of the size of B, so atol is set by B. Log-weights of up to 30 carry the
    # rounding of a number 30 times as large.
    scale = truth.max().item() * size
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    want = x.double() @ torch.special.xlogy(truth, truth)
    torch.testing.assert_close(op.push_log_weighted(x).double(), want, rtol=tolerance, atol=tolerance * scale)


def best_by_loops(log_x: Tensor, log_a: Tensor) -> tuple[list[list[float]], list[list[int]]]:
    """The largest log_x[b][z] + log_a[z][y] and the smallest z that has it."""
    values, indices = [], []
    for row in log_x.tolist():
        best = [-INF] * log_a.shape[1]
        where = [0] * log_a.shape[1]
        for z, weights in enumerate(log_a.tolist()):
            for y, weight in enumerate(weights):
                if row[z] + weight > best[y]:
                    best[y], where[y] = row[z] + weight, z
        values.append(best)
        indices.append(where)
    return values, indices


def ones_like_factors(op: Operator) -> list[Tensor]:
    """Factors of weight 1 throughout."""
    return [f.new_full(f.shape, 0.0 if is_log else 1.0) for f, is_log in zip(op.factors(), op.log_factors, strict=True)]


def check_best(op: Operator, log_x: Tensor, log_a: Tensor) -> None:
    """Values and predecessors are those of the loops; an unreachable target has any index of a state."""
    assert isinstance(op, MaxOperator)
    value, index = op.push_max(log_x)
    want_value, want_index = best_by_loops(log_x, log_a)
    # Sums of two numbers in float64: one rounding error.
    torch.testing.assert_close(value, torch.tensor(want_value, dtype=torch.float64), rtol=1e-14, atol=1e-14)
    assert ((index >= 0) & (index < op.shape[0])).all()
    reachable = value > -INF
    assert torch.equal(index[reachable], torch.tensor(want_index)[reachable])


@every_case
@every_size
def test_push_max(case: Case, size: int, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    log_x = torch.randn(3, size, generator=generator, dtype=torch.float64)
    log_x[1, size // 2] = -INF
    log_x[2] = -INF
    check_best(op, log_x, op.log_rows(torch.arange(size)))


@every_case
@every_size
@pytest.mark.parametrize("block", [1, 2**22])
def test_push_max_gives_ties_to_the_smallest_state(
    case: Case, size: int, block: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a block of rows and between blocks of one row."""
    monkeypatch.setattr("rankfold.operators.row_operator.BLOCK", block)
    op = case.build(size, generator, torch.float64)
    op = op.with_factors(*ones_like_factors(op))
    log_x = torch.randint(0, 2, (4, size), generator=generator).double()
    log_x[0] = 0.0
    check_best(op, log_x, op.log_rows(torch.arange(size)))


@every_case
@every_size
def test_push_max_keeps_float64_scores_on_float32_weights(case: Case, size: int, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float32)
    # Equal weights, so that differences decide which float32 cannot see at a score of -5000.
    op = op.with_factors(*ones_like_factors(op))
    log_x = -5000.0 + 1e-6 * torch.rand(3, size, generator=generator, dtype=torch.float64)
    assert op.push_max(log_x)[0].dtype == torch.float64
    check_best(op, log_x, op.log_rows(torch.arange(size)).double())


@every_case
def test_push_max_takes_factors_that_autograd_follows(case: Case, generator: torch.Generator) -> None:
    op = case.build(3, generator, torch.float64)
    log_x = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    want_value, want_index = op.push_max(log_x)
    value, index = op.with_factors(*(factor.clone().requires_grad_() for factor in op.factors())).push_max(log_x)
    assert torch.equal(value.detach(), want_value)
    assert torch.equal(index, want_index)


@every_case
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("method", ["push", "pull"])
def test_gradients_of_products(case: Case, size: int, method: str, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    x = torch.rand(2, size, generator=generator, dtype=torch.float64)
    unit = op.log_scale

    def product(x: Tensor, *factors: Tensor) -> Tensor:
        # The scale is a constant to autograd; the product with it put back does not depend on that.
        moved = op.with_factors(*factors)
        return getattr(moved, method)(x) * torch.exp(torch.as_tensor(moved.log_scale - unit))

    inputs = [tensor.clone().requires_grad_() for tensor in (x, *op.factors())]
    assert gradcheck(product, inputs)


@positive_case
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("method", ["push_log", "pull_log"])
def test_gradients_in_log_space(case: Case, size: int, method: str, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    log_x = torch.randn(2, size, generator=generator, dtype=torch.float64)
    reached = getattr(op, method)(log_x) > -INF

    def product(log_x: Tensor, *factors: Tensor) -> Tensor:
        return getattr(op.with_factors(*factors), method)(log_x)[reached]

    inputs = [tensor.clone().requires_grad_() for tensor in (log_x, *op.factors())]
    assert reached.any()
    assert gradcheck(product, inputs)
    if all(op.log_factors):
        assert gradgradcheck(product, inputs)


@positive_case
@pytest.mark.parametrize("size", [2, 5])
def test_gradients_of_push_log_weighted(case: Case, size: int, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    x = torch.rand(2, size, generator=generator, dtype=torch.float64)
    unit = op.log_scale

    def product(x: Tensor, *factors: Tensor) -> Tensor:
        moved = op.with_factors(*factors)
        shift = torch.as_tensor(moved.log_scale - unit)  # of a constant: see above
        return torch.exp(shift) * (moved.push_log_weighted(x) + shift * moved.push(x))

    inputs = [tensor.clone().requires_grad_() for tensor in (x, *op.factors())]
    assert gradcheck(product, inputs)


@every_case
@every_size
@pytest.mark.parametrize("method", ["push_log", "pull_log"])
def test_log_of_zero_gets_no_gradient(case: Case, size: int, method: str, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    log_x = torch.randn(2, size, generator=generator, dtype=torch.float64)
    log_x[0] = -INF
    log_x[1, 0] = -INF
    inputs = [tensor.clone().requires_grad_() for tensor in (log_x, *op.factors())]
    # Weights in linear space are kept out: the true gradient of a log at weight 0 is infinite.
    watched = [inputs[0], *(f for f, is_log in zip(inputs[1:], op.log_factors, strict=True) if is_log)]
    out = getattr(op.with_factors(*inputs[1:]), method)(inputs[0])
    for grad, value in zip(torch.autograd.grad(out.sum(), watched, allow_unused=True), watched, strict=True):
        assert grad is not None
        assert grad.isfinite().all()
        assert (grad[value == -INF] == 0).all()


@every_case
@pytest.mark.parametrize("size", [5, 17])
def test_small_blocks_change_nothing(
    case: Case, size: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = case.build(size, generator, torch.float64)
    log_x = torch.randn(3, size, generator=generator, dtype=torch.float64)

    def everything() -> list[Tensor]:
        outputs = [op.push_log(log_x), op.pull_log(log_x), op.push_log_weighted(log_x), op.to_dense()]
        best, where = op.push_max(log_x)
        return [*outputs, best, where[best > -INF]]

    whole = everything()
    monkeypatch.setattr("rankfold.operators.row_operator.BLOCK", 2 * size + 1)
    monkeypatch.setattr("rankfold.kernels.log_products.BLOCK", 2 * size + 1)
    cut = everything()
    for want, got in zip(whole, cut, strict=True):
        # Sums in another order: a few rounding errors.
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


@positive_case
def test_small_blocks_keep_gradients(case: Case, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    op = case.build(5, generator, torch.float64)
    log_x = torch.randn(3, 5, generator=generator, dtype=torch.float64)

    def gradients() -> tuple[Tensor, ...]:
        inputs = [tensor.clone().requires_grad_() for tensor in (log_x, *op.factors())]
        moved = op.with_factors(*inputs[1:])
        outputs = torch.stack([moved.push_log(inputs[0]), moved.pull_log(inputs[0])])
        return torch.autograd.grad(outputs[outputs > -INF].square().sum(), inputs)

    whole = gradients()
    monkeypatch.setattr("rankfold.operators.row_operator.BLOCK", 7)
    monkeypatch.setattr("rankfold.kernels.log_products.BLOCK", 7)
    for want, got in zip(whole, gradients(), strict=True):
        # Sums in another order: a few rounding errors.
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12 * math.sqrt(want.numel()))


@every_case
@pytest.mark.parametrize("size", [63, 129])
def test_large_sizes(case: Case, size: int, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    x = torch.rand(2, size, generator=generator, dtype=torch.float64)
    truth, log_a = scaled_truth(op), log_truth(op)
    close_to_zero_too(op.push(x), x @ truth, torch.float64)
    close_to_zero_too(op.pull(x), x @ truth.mT, torch.float64)
    close(op.push_log(x), log_product(x, log_a), torch.float64)
    close(op.pull_log(x), log_product(x, log_a.mT), torch.float64)


@every_case
def test_copies_of_used_operators(case: Case) -> None:
    """Deep copies and pickles are made of the factors, with gradients of their own."""
    built = case.build(3, torch.Generator().manual_seed(3), torch.float64)
    op = built.with_factors(*(x.requires_grad_() for x in built.factors()))
    x = torch.ones(1, 3, dtype=torch.float64)

    def use(op: Operator) -> Tensor:
        op.log_rows(torch.arange(3))
        op.push_log(op.pull_log(x))
        return op.push(op.pull(x)).sum()

    grads = torch.autograd.grad(use(op), op.factors(), allow_unused=True)
    for other in (copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
        torch.testing.assert_close(other.to_dense(), op.to_dense(), rtol=0.0, atol=0.0)
        own = torch.autograd.grad(use(other), other.factors(), allow_unused=True)
        torch.testing.assert_close(own, grads, rtol=0.0, atol=0.0)
        assert all(new is not old for new, old in zip(other.factors(), op.factors(), strict=True))
