"""Numbers that no single float can hold: wide spreads, lost paths, dead ends, log-weights out of range."""

import math

import pytest
import torch
from torch import Tensor

from rankfold import (
    Banded,
    ChainPotentials,
    Dense,
    LowRank,
    Operator,
    RowScaled,
    Sum,
    UnsupportedError,
    WithoutDiagonal,
)
from rankfold.operators import Product
from rankfold.recursions.chain import log_z
from tests.oracles import chain as oracle
from tests.recursions.build import INF, NAN, as_lists, in_log_space, leaves, posterior, seeded

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])

# Round-off of a few dozen steps, each 6e-8 (float32) or 1e-16 (float64) of a mantissa.
VALUE = {torch.float32: {"rtol": 1e-6, "atol": 1e-4}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}
POSTERIOR = {torch.float32: {"rtol": 0.0, "atol": 1e-4}, torch.float64: {"rtol": 0.0, "atol": 1e-8}}


def check(p: ChainPotentials, log_transition: Tensor, dtype: torch.dtype) -> None:
    """log Z and posteriors against plain log space in float64."""
    expected = in_log_space(p, log_transition)
    torch.testing.assert_close(log_z(p), expected.log_z, **VALUE[dtype])
    torch.testing.assert_close(posterior(p).double(), expected.posterior, **POSTERIOR[dtype])


def identities(dtype: torch.dtype) -> dict[str, Operator]:
    """Two states that never meet, as every kind of operator."""
    eye, one = torch.eye(2, dtype=dtype), torch.ones(2, 1, dtype=dtype)
    return {
        "dense": Dense(eye),
        "dense log": Dense.from_log(eye.log()),
        "low rank": LowRank(eye, eye),
        "low rank log": LowRank.from_log(eye.log(), eye.log()),
        "banded": Banded(one, 0),
        "banded log": Banded.from_log(one.log(), 0),
        "sum": Sum([Banded(one / 2, 0), LowRank(eye / 2, eye)]),
    }


# What state 1 has over state 0 at each position: it wins by 10 or by 1 in the end, and is lost on both ways there.
LOST_BOTH_WAYS = [(-100.0, 200.0, -90.0), (-300.0, 600.0, -299.0), (-1000.0, 2000.0, -999.0), (-90.0, 190.0, -99.0)]


@both_dtypes
@pytest.mark.parametrize("lead", LOST_BOTH_WAYS)
@pytest.mark.parametrize("name", identities(torch.float64))
def test_the_winner_was_lost_in_both_directions(name: str, lead: tuple[float, ...], dtype: torch.dtype) -> None:
    log_obs = torch.tensor([[[0.0, x] for x in lead], [[x, 0.0] for x in lead], [[0.0, 0.0]] * 3], dtype=dtype)
    transition = identities(dtype)[name]
    p = ChainPotentials(torch.zeros(2, dtype=dtype), transition, log_obs)
    total = log_obs.double().sum(1)  # each state keeps to itself
    torch.testing.assert_close(log_z(p), torch.logsumexp(total, -1), **VALUE[dtype])
    expected = torch.softmax(total, -1)[:, None].expand(3, 3, 2)
    torch.testing.assert_close(posterior(p).double(), expected, **POSTERIOR[dtype])


@both_dtypes
@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@pytest.mark.parametrize("lead", LOST_BOTH_WAYS)
def test_the_winner_was_lost_and_the_posterior_is_differentiated(
    lead: tuple[float, ...], arithmetic: str, dtype: torch.dtype
) -> None:
    log_obs = torch.tensor([[[0.0, x] for x in lead]], dtype=dtype, requires_grad=True)
    p = ChainPotentials(torch.zeros(2, dtype=dtype), Dense(torch.eye(2, dtype=dtype)), log_obs)
    (found,) = torch.autograd.grad(log_z(p, arithmetic).sum(), log_obs, create_graph=True)
    share = torch.softmax(log_obs.detach().double().sum(1), -1)[0]
    torch.testing.assert_close(found.detach().double(), share.expand(1, 3, 2), **POSTERIOR[dtype])
    (second,) = torch.autograd.grad(found[0, 0, 1], log_obs)
    expected = torch.stack([-share[0] * share[1], share[0] * share[1]])
    # Three steps of float32 round-off at most.
    torch.testing.assert_close(second.double(), expected.expand(1, 3, 2), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_weights_between_states_that_never_meet_get_their_huge_gradient(arithmetic: str) -> None:
    log_obs = torch.tensor([[[0.0, x] for x in LOST_BOTH_WAYS[0]]], dtype=torch.float64)
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), Dense(torch.eye(2, dtype=torch.float64)), log_obs)
    at = leaves(p)
    found = torch.autograd.grad(log_z(at.potentials, arithmetic).sum(), at.tensors)[-1]
    expected = torch.tensor(oracle.grad_transition(**as_lists(p, 0)), dtype=torch.float64)
    assert expected[0, 1] > 1e38  # 90 nats: more than float32 can hold
    # Sums of two terms of up to e90: digits, not absolute errors, count.
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)


@both_dtypes
@pytest.mark.parametrize("spread", [100.0, 1000.0])
def test_observations_a_thousand_nats_apart(spread: float, dtype: torch.dtype) -> None:
    g = seeded(20)
    for seed in range(4):
        weight = torch.rand(4, 4, generator=seeded(seed), dtype=torch.float64).to(dtype)
        log_obs = (spread * (torch.rand(3, 6, 4, generator=g, dtype=torch.float64) - 0.5)).to(dtype)
        check(ChainPotentials(torch.zeros(4, dtype=dtype), Dense(weight), log_obs), weight.double().log(), dtype)


@both_dtypes
@pytest.mark.parametrize("std", [1.0, 10.0, 100.0, 300.0])
def test_left_to_right(std: float, dtype: torch.dtype) -> None:
    """Each state may stay or move one to the right: most states are out of reach of most others."""
    g = seeded(21)
    z, t = 64, 60
    band = Banded(torch.rand(z, 2, generator=g, dtype=torch.float64).to(dtype), 0)
    log_obs = (std * torch.randn(3, t, z, generator=g, dtype=torch.float64)).to(dtype)
    log_initial = torch.full((z,), -INF, dtype=dtype)
    log_initial[:3] = 0.0
    check(ChainPotentials(log_initial, band, log_obs), band.to_dense().double().log(), dtype)


@both_dtypes
def test_a_gradient_of_weights_in_a_wide_range(dtype: torch.dtype) -> None:
    """Expected moves of a left-to-right chain with 100 nats between observations, by enumeration."""
    g = seeded(22)
    band = Banded((torch.rand(4, 2, generator=g, dtype=torch.float64) + 0.1).to(dtype), 0)
    log_obs = (100 * torch.randn(2, 4, 4, generator=g, dtype=torch.float64)).to(dtype)
    at = leaves(ChainPotentials(torch.tensor([0.0, -INF, -INF, -INF], dtype=dtype), band, log_obs))
    grad = torch.autograd.grad(log_z(at.potentials).sum(), at.tensors)[-1]
    moves = sum(
        torch.tensor(oracle.expected_transitions(**as_lists(at.potentials, i)), dtype=torch.float64) for i in range(2)
    )
    used = torch.stack([moves.diagonal(), torch.cat([moves.diagonal(1), torch.zeros(1)])], 1)
    found = torch.where(grad.isfinite(), grad.double() * band.factors()[0].double(), -1.0)
    torch.testing.assert_close(found, used, **POSTERIOR[dtype])


@both_dtypes
@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_the_end_of_a_short_sequence_may_lie_far_below_its_messages(arithmetic: str, dtype: torch.dtype) -> None:
    """Only state 1 may end, 800 nats below state 0. Beyond the length nothing is forbidden any more."""
    log_obs = torch.tensor([[[0.0, -800.0], [NAN, NAN]], [[0.0, 0.0], [0.0, 0.0]]], dtype=dtype)
    p = ChainPotentials(
        torch.zeros(2, dtype=dtype),
        Dense(torch.ones(2, 2, dtype=dtype)),
        log_obs,
        torch.tensor([-INF, 0.0], dtype=dtype),
        torch.tensor([1, 2]),
    )
    torch.testing.assert_close(log_z(p, arithmetic), torch.tensor([-800.0, math.log(2)], dtype=torch.float64))
    at = leaves(p)
    grads = torch.autograd.grad(log_z(at.potentials, arithmetic).sum(), at.tensors)
    expected = [[[0.0, 1.0], [0.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]]
    torch.testing.assert_close(grads[1], torch.tensor(expected, dtype=dtype), **POSTERIOR[dtype])
    torch.testing.assert_close(grads[3], torch.tensor([[0.0, 0.5], [0.0, 0.5]], dtype=dtype), **POSTERIOR[dtype])


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_a_zero_weight_beside_a_dead_end_far_above(arithmetic: str) -> None:
    """State 0 is 800 nats above state 1 and leads nowhere; state 2 is nowhere; only 1 -> 1 has weight."""
    log_obs = torch.tensor([[[0.0, -800.0, -INF], [-INF, 0.0, -INF]]], dtype=torch.float64)
    left = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    right = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    at = leaves(ChainPotentials(torch.zeros(3, dtype=torch.float64), LowRank(left, right), log_obs))
    *_, grad_left, grad_right = torch.autograd.grad(log_z(at.potentials, arithmetic).sum(), at.tensors)
    # Row 0 of left and column 0 of right have no use for state 1; what state 0 would gain is above any float.
    assert float(grad_left[1, 1]) == float(grad_right[1, 1]) == pytest.approx(1.0, rel=1e-12)
    assert (grad_right[[0, 2]] == 0).all()
    assert not grad_left.isnan().any()
    assert not grad_right.isnan().any()


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@pytest.mark.parametrize("far", [80.0, 280.0])
def test_a_zero_weight_between_states_far_from_those_that_matter(arithmetic: str, far: float) -> None:
    """From far above to far below: the two sides of A[1, 2] are out of float32's range, their product is 1.

    The stated limit is 283 nats; beyond it the gradient of a weight of exactly zero is cut.
    """
    log_obs = torch.tensor([[[0.0, far, -INF], [0.0, -INF, -far]]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    p = ChainPotentials(torch.zeros(3, dtype=torch.float64), Dense(weight), log_obs)
    expected = torch.tensor(oracle.grad_transition(**as_lists(p, 0)), dtype=torch.float64)
    assert expected[1, 2] == 1.0
    at = leaves(p)
    found = torch.autograd.grad(log_z(at.potentials, arithmetic).sum(), at.tensors)[-1]
    assert float(found[1, 2]) == pytest.approx(1.0, rel=1e-9)
    assert float(found[0, 0]) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_a_gradient_that_will_be_differentiated_keeps_its_digits(arithmetic: str) -> None:
    """Logs of several thousand nats in float32 input: sums of them are exact to 1e-4 only in float64."""
    g = seeded(27)
    log_obs = 1000 * torch.randn(8, 6, 3, generator=g)
    log_obs[..., 1] = log_obs[..., 0]  # the same up to the weights, so that posteriors are not all 0 or 1
    weight = torch.rand(3, 3, generator=g)
    at = leaves(ChainPotentials(torch.zeros(3), Dense(weight), log_obs))
    expected = in_log_space(at.potentials, weight.double().log()).posterior
    (found,) = torch.autograd.grad(log_z(at.potentials, arithmetic).sum(), at.tensors[1], create_graph=True)
    torch.testing.assert_close(found.detach().double(), expected, rtol=0.0, atol=1e-6)


def lost_both_ways(transition: Operator) -> ChainPotentials:
    """Two states that never meet, 800 nats apart and back: a sequence that needs logarithms."""
    log_obs = torch.tensor([[[0.0, x] for x in (-800.0, 1600.0, -790.0)]], dtype=torch.float64)
    return ChainPotentials(torch.zeros(2, dtype=torch.float64), transition, log_obs)


@pytest.mark.parametrize("name", ["dense", "low rank", "sum"])
def test_second_derivatives_at_zero_weights_are_refused_where_only_logarithms_will_do(name: str) -> None:
    at = leaves(lost_both_ways(identities(torch.float64)[name]))
    total = log_z(at.potentials).sum()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(total, at.tensors[:2], retain_graph=True))
    with pytest.raises(UnsupportedError, match=r"exactly zero(.|\n)*from_log"):
        torch.autograd.grad(total, at.tensors, create_graph=True)


@pytest.mark.parametrize("name", identities(torch.float64))
def test_second_derivatives_where_only_logarithms_will_do(name: str) -> None:
    """d posterior / d log_obs of two lone paths is p (1 - p) at every pair of positions."""
    p = lost_both_ways(identities(torch.float64)[name])
    log_obs = p.log_obs.clone().requires_grad_()
    (first,) = torch.autograd.grad(log_z(p._replace(log_obs=log_obs)).sum(), log_obs, create_graph=True)
    (second,) = torch.autograd.grad(first[0, 1, 0], log_obs)
    share = torch.softmax(torch.tensor([0.0, 10.0], dtype=torch.float64), -1)
    expected = torch.stack([share[0] * share[1], -share[0] * share[1]]).expand(1, 3, 2)
    torch.testing.assert_close(second, expected, rtol=1e-8, atol=1e-12)


FAR_LOGS = {
    "all small": (-1000.0, -1000.0),
    "all large": (300.0, 300.0),
    "rows of both": (-1000.0, 300.0),
}


@both_dtypes
@pytest.mark.parametrize("name", FAR_LOGS)
@pytest.mark.parametrize("kind", ["dense", "low rank", "banded"])
def test_log_weights_outside_any_float(kind: str, name: str, dtype: torch.dtype) -> None:
    g = seeded(23)
    shift = torch.tensor(FAR_LOGS[name], dtype=torch.float64).repeat(2)[:, None]  # by row
    log_weight = (torch.randn(4, 4, generator=g, dtype=torch.float64) + shift).to(dtype)
    other = torch.randn(4, 4, generator=g, dtype=torch.float64).to(dtype)
    if kind == "dense":
        transition: Operator = Dense.from_log(log_weight)
        log_dense = log_weight.double()
    elif kind == "low rank":
        transition = LowRank.from_log(log_weight, other)
        log_dense = torch.logsumexp(log_weight.double()[:, None] + other.double()[None], -1)
    else:
        transition = Banded.from_log(log_weight[:, :3], -1)
        log_dense = torch.full((4, 4), -INF, dtype=torch.float64)
        for source in range(4):
            for target in range(max(0, source - 1), min(4, source + 2)):
                log_dense[source, target] = log_weight[source, target - source + 1]
    log_obs = torch.randn(2, 5, 4, generator=g, dtype=torch.float64).to(dtype)
    p = ChainPotentials(torch.zeros(4, dtype=dtype), transition, log_obs)
    check(p, log_dense, dtype)
    at = leaves(p)
    grads = torch.autograd.grad(log_z(at.potentials).sum(), at.tensors)
    assert all(grad.isfinite().all() for grad in grads)
    # Each of the two sequences makes four moves, each through one cell and (low rank) one rank.
    for grad in grads[2:]:
        assert float(grad.double().sum()) == pytest.approx(8, rel=0.0, abs=1e-4)


@both_dtypes
def test_dead_ends_do_not_hold_the_weight_of_others(dtype: torch.dtype) -> None:
    """State 1 looks far better but leads nowhere; state 0 alone survives."""
    weight = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=dtype)
    log_obs = torch.tensor([[[-500.0, 0.0], [-1.0, 0.0], [-2.0, 700.0]]], dtype=dtype)
    p = ChainPotentials(torch.zeros(2, dtype=dtype), Dense(weight), log_obs)
    assert float(log_z(p)) == pytest.approx(-503.0, rel=1e-7)
    assert torch.equal(posterior(p), torch.tensor([[[1.0, 0.0]] * 3], dtype=dtype))


@pytest.mark.parametrize("kind", ["without diagonal", "multiplied"])
@pytest.mark.parametrize("lengths", [[3, 3], [3, 1]])
def test_products_of_factors_beyond_the_dtype(kind: str, lengths: list[int]) -> None:
    """Written out, the factors' product is infinite; its rows, scaled back, are ordinary numbers."""
    big = 1e200
    left, right = (torch.rand(3, 2, generator=seeded(s), dtype=torch.float64).add(0.1).mul(big) for s in (1, 2))
    log_scale = torch.full((3,), -2 * math.log(big), dtype=torch.float64)
    log_obs = torch.randn(2, 3, 3, generator=seeded(3), dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (log_scale, left, right)]
    pair = Product(left, right) if kind == "multiplied" else WithoutDiagonal(LowRank(left, right))
    p = ChainPotentials(
        torch.zeros(3, dtype=torch.float64), RowScaled.from_log(pair, log_scale), log_obs, lengths=torch.tensor(lengths)
    )
    # The same in numbers of ordinary size: only the scale of the three factors is another.
    small = [log_scale.detach() + 2 * math.log(big), left.detach() / big, right.detach() / big]
    small = [x.requires_grad_() for x in small]
    plain = Product(small[1], small[2]) if kind == "multiplied" else WithoutDiagonal(LowRank(small[1], small[2]))
    matrix = (small[1] @ small[2].mT).detach()
    if kind != "multiplied":
        matrix.fill_diagonal_(0.0)
    q = p._replace(transition=RowScaled.from_log(plain, small[0]))
    total = log_z(p)
    want = [oracle.log_z([0.0] * 3, matrix.tolist(), log_obs[i, :length].tolist()) for i, length in enumerate(lengths)]
    torch.testing.assert_close(total, torch.tensor(want, dtype=torch.float64), **VALUE[torch.float64])
    found = torch.autograd.grad(total.sum(), leaves)
    expected = torch.autograd.grad(log_z(q).sum(), small)
    for x, y, by in zip(found, expected, (1.0, big, big), strict=True):
        torch.testing.assert_close(x * by, y, **VALUE[torch.float64])


def test_zeros_beside_weights_near_the_largest_number() -> None:
    """A weight of exactly 0 has a gradient, cut where no number holds it, but never NaN."""
    left = torch.tensor([[1e-97, 0.0, 1e231], [1e-281, 1e138, 1e75], [1e-108, 1e179, 0.0]], dtype=torch.float64)
    right = torch.tensor([[0.0, 1e228, 0.0], [1e21, 1e-9, 1e30], [1e-20, 1e-26, 1e81]], dtype=torch.float64)
    left, right = left.requires_grad_(), right.requires_grad_()
    p = ChainPotentials(
        torch.zeros(3, dtype=torch.float64), LowRank(left, right), torch.zeros(1, 7, 3, dtype=torch.float64)
    )
    for grad in torch.autograd.grad(log_z(p).sum(), [left, right]):
        assert not grad.isnan().any()
