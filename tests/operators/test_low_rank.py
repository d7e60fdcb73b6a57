"""What is special to low rank: its factors, logs of any range, ranks jointly, and fitting."""

import math

import pytest
import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.operators import Dense, LowRank

INF = float("inf")


def random_pair(num_sources: int, num_targets: int, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    left = torch.rand(num_sources, rank, generator=generator, dtype=torch.float64)
    right = torch.rand(num_targets, rank, generator=generator, dtype=torch.float64)
    return left, right


@pytest.mark.parametrize(("num_sources", "num_targets", "rank"), [(1, 1, 1), (3, 5, 1), (5, 3, 2), (2, 3, 7)])
@pytest.mark.parametrize("is_log", [False, True])
def test_literal(num_sources: int, num_targets: int, rank: int, is_log: bool, generator: torch.Generator) -> None:
    left, right = random_pair(num_sources, num_targets, rank, generator)
    op = LowRank.from_log(left.log(), right.log()) if is_log else LowRank(left, right)
    assert op.shape == (num_sources, num_targets)
    assert op.rank == rank
    want = [
        [sum(left[z, r].item() * right[y, r].item() for r in range(rank)) for y in range(num_targets)]
        for z in range(num_sources)
    ]
    want = torch.tensor(want, dtype=torch.float64)
    # Up to 7 positive terms, through logs and back.
    torch.testing.assert_close(op.to_dense(), want, rtol=1e-14, atol=0.0)
    x = torch.rand(2, num_sources, generator=generator, dtype=torch.float64)
    y = torch.rand(2, num_targets, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(op.push_log(x), torch.logsumexp(x[..., None] + want.log(), 1), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(op.pull_log(y), torch.logsumexp(y[..., None] + want.mT.log(), 1), rtol=1e-14, atol=1e-14)
    scale = math.exp(op.log_scale)
    torch.testing.assert_close(op.push(x) * scale, x @ want, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(op.pull(y) * scale, y @ want.mT, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17])
def test_full_rank_is_dense(size: int, generator: torch.Generator) -> None:
    weight, _ = random_pair(size, size, size, generator)
    op, dense = LowRank(weight, torch.eye(size, dtype=torch.float64)), Dense(weight)
    x = torch.rand(2, size, generator=generator, dtype=torch.float64)
    assert torch.equal(op.to_dense(), weight)
    for method in ("push", "pull", "push_log", "pull_log", "push_log_weighted"):
        # The same terms summed in another order.
        torch.testing.assert_close(getattr(op, method)(x), getattr(dense, method)(x), rtol=1e-13, atol=1e-13)
    assert torch.equal(op.push_max(x)[1], dense.push_max(x)[1])


@pytest.mark.parametrize("is_log", [False, True])
def test_products_smaller_than_the_dtype_holds(is_log: bool) -> None:
    """Factors of 1e-25 are ordinary float32 numbers; their product 1e-50 is not, but its log is."""
    left, right = torch.full((2, 1), 1e-25), torch.full((2, 1), 1e-25)
    op = LowRank.from_log(left.log(), right.log()) if is_log else LowRank(left, right)
    want = 2 * math.log(1e-25)
    # Logs near 115 in float32: rounding errors of 1e-5.
    tolerance = {"rtol": 0.0, "atol": 5e-5}
    torch.testing.assert_close(op.log_rows(torch.arange(2)), torch.full((2, 2), want), **tolerance)
    torch.testing.assert_close(op.push_log(torch.zeros(1, 2)), torch.full((1, 2), want + math.log(2)), **tolerance)
    value, index = op.push_max(torch.tensor([[-1.0, 0.0]]))
    torch.testing.assert_close(value, torch.full((1, 2), want), **tolerance)
    assert index.tolist() == [[1, 1]]


@pytest.mark.parametrize("is_log", [False, True])
def test_states_and_ranks_jointly(is_log: bool, generator: torch.Generator) -> None:
    left, right = random_pair(3, 4, 2, generator)
    left[1, 0] = 0.0
    op = LowRank.from_log(left.log() - 3.0, right.log() + 1.0) if is_log else LowRank(left, right)
    log_left, log_right = op.log_pair()
    shift = (-3.0, 1.0) if is_log else (0.0, 0.0)
    torch.testing.assert_close(log_left, left.log() + shift[0], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(log_right, right.log() + shift[1], rtol=1e-14, atol=1e-14)
    x = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    by_rank = torch.exp(log_left[:, None, :] + log_right[None, :, :] - op.log_scale)  # "z y r"
    want = x @ torch.special.xlogy(by_rank, by_rank).sum(-1)
    # Terms of both signs, each of size 1 at most.
    torch.testing.assert_close(op.push_joint_log_weighted(x), want, rtol=1e-13, atol=1e-13)


def test_gradient_at_zero_weight() -> None:
    left = torch.tensor([[0.0], [2.0]], requires_grad=True)
    right = torch.tensor([[3.0], [0.0]], requires_grad=True)
    LowRank(left, right).push(torch.tensor([1.0, 10.0])).sum().backward()
    assert left.grad.tolist() == [[3.0], [30.0]]
    assert right.grad.tolist() == [[20.0], [20.0]]


def true_errors(target: Tensor, op: LowRank) -> tuple[float, float]:
    """The relative and the largest error of the operator that was returned, in float64."""
    left, right = (factor.double() for factor in op.factors())
    error = target.double() - left @ right.mT
    return (error.norm() / target.double().norm()).item(), error.abs().max().item()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fit_recovers_a_low_rank_matrix(seed: int, generator: torch.Generator) -> None:
    left, right = random_pair(6, 7, 2, generator)
    left[2], right[4] = 0.0, 0.0
    target = left @ right.mT
    fit = LowRank.fit(target, 2, seed=seed)
    # The updates converge linearly and stop where the divergence, quadratic in the error, no longer moves.
    assert fit.relative_error < 1e-6
    assert fit.operator.rank == 2
    dense = fit.operator.to_dense()
    assert (dense[2] == 0).all()
    assert (dense[:, 4] == 0).all()
    # Row sums are kept by the last update.
    torch.testing.assert_close(dense.sum(1), target.sum(1), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_fit_reports_the_error_of_what_it_returns(dtype: torch.dtype, rank: int, generator: torch.Generator) -> None:
    left, right = random_pair(6, 7, 2, generator)
    target = (left @ right.mT).to(dtype)
    fit = LowRank.fit(target, rank)
    relative, largest = true_errors(target, fit.operator)
    assert fit.operator.factors()[0].dtype == dtype
    # Computed twice in float64 from the same factors; atol is the noise of the subtraction.
    assert fit.relative_error == pytest.approx(relative, rel=1e-6, abs=1e-14)
    assert fit.largest_error == pytest.approx(largest, rel=1e-6, abs=1e-14)


def test_fit_stops_when_told_and_repeats_itself(generator: torch.Generator) -> None:
    left, right = random_pair(6, 7, 4, generator)
    target = left @ right.mT
    short, longer = LowRank.fit(target, 2, num_steps=10), LowRank.fit(target, 2, num_steps=4000)
    assert short.num_steps == 10
    assert 50 < longer.num_steps < 4000
    assert longer.relative_error < short.relative_error
    again = LowRank.fit(target, 2, num_steps=10)
    other = LowRank.fit(target, 2, num_steps=10, seed=1)
    assert torch.equal(again.operator.to_dense(), short.operator.to_dense())
    assert not torch.equal(other.operator.to_dense(), short.operator.to_dense())


def test_fit_of_nothing() -> None:
    fit = LowRank.fit(torch.zeros(3, 3), 2)
    assert fit.relative_error == 0.0
    assert fit.operator.to_dense().tolist() == [[0.0] * 3] * 3


def test_fit_refuses() -> None:
    with pytest.raises(DomainError, match="rank is 0"):
        LowRank.fit(torch.ones(3, 3), 0)
    with pytest.raises(DomainError, match=r"dense\[0,0\] is -1"):
        LowRank.fit(-torch.ones(3, 3), 1)


def test_log_rows_of_inference_mode_can_be_followed(generator: torch.Generator) -> None:
    """One factor is learned; what was kept of the other is not in autograd's way."""
    left, right = (torch.rand(5, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    op, rows = LowRank(left.requires_grad_(), right), torch.tensor([3, 1])
    with torch.inference_mode():
        before = op.log_rows(rows).clone()
    after = op.log_rows(rows)
    assert torch.equal(after.detach(), before)
    (found,) = torch.autograd.grad(after.sum(), left)
    (expected,) = torch.autograd.grad((left[rows] @ right.T).log().sum(), left)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)
