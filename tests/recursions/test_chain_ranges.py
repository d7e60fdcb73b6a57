"""Numbers that no single float can hold: wide spreads, lost paths, dead ends, very long sequences."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfold import Banded, ChainPotentials, Dense, DomainError, LowRank, Operator, Sum, UnsupportedError
from rankfold.recursions import chain_scaled, underflow
from rankfold.recursions.chain import log_z, messages
from rankfold.recursions.potentials import Chain, checked
from tests.oracles import chain as oracle
from tests.recursions.build import INF, NAN, as_lists, doubled, in_log_space, leaves, pad_with_nan, seeded

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])

# Round-off of a few dozen steps, each 6e-8 (float32) or 1e-16 (float64) of a mantissa.
VALUE = {torch.float32: {"rtol": 1e-6, "atol": 1e-4}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}
POSTERIOR = {torch.float32: {"rtol": 0.0, "atol": 1e-4}, torch.float64: {"rtol": 0.0, "atol": 1e-8}}


def posterior(p: ChainPotentials, arithmetic: str = "scaled") -> Tensor:
    log_obs = p.log_obs.detach().requires_grad_()
    return torch.autograd.grad(log_z(p._replace(log_obs=log_obs), arithmetic).sum(), log_obs)[0]


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


# What state 1 has over state 0 at each position: it wins by 10 in the end, and is lost on both ways there.
LOST_BOTH_WAYS = [(-100.0, 200.0, -90.0), (-300.0, 600.0, -290.0), (-1000.0, 2000.0, -990.0), (-90.0, 190.0, -90.0)]


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


def batch_with_an_impossible_sequence(dtype: torch.dtype) -> ChainPotentials:
    """Five ragged sequences: 1 dies by its observations, 3 by log_final alone."""
    g = seeded(24)
    left, right = torch.rand(6, 2, generator=g), torch.rand(6, 2, generator=g)
    log_obs = torch.randn(5, 5, 6, generator=g)
    log_obs[1, 2] = -INF
    log_final = torch.randn(5, 6, generator=g)
    log_final[3] = -INF
    lengths = [5, 4, 3, 2, 1]
    return ChainPotentials(
        torch.randn(5, 6, generator=g).to(dtype),
        LowRank(left.to(dtype), right.to(dtype)),
        pad_with_nan(log_obs, lengths).to(dtype),
        log_final.to(dtype),
        torch.tensor(lengths),
    )


# The same sums in a product of other height, which may round differently in the last digits.
NEIGHBOURS = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.float64: {"rtol": 1e-12, "atol": 1e-12}}


@both_dtypes
@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_an_impossible_sequence_leaves_its_neighbours_alone(
    arithmetic: str, create_graph: bool, dtype: torch.dtype
) -> None:
    p = batch_with_an_impossible_sequence(dtype)
    assert p.log_final is not None
    assert p.lengths is not None
    good = torch.tensor([0, 2, 4])
    rest = p._replace(
        log_initial=p.log_initial[good], log_obs=p.log_obs[good], log_final=p.log_final[good], lengths=p.lengths[good]
    )
    at, at_rest = leaves(p), leaves(rest)
    total, total_rest = log_z(at.potentials, arithmetic), log_z(at_rest.potentials, arithmetic)
    assert (total == -INF).tolist() == [False, True, False, True, False]
    torch.testing.assert_close(total[good], total_rest, **NEIGHBOURS[dtype])
    grads = torch.autograd.grad(total.sum(), at.tensors, create_graph=create_graph)
    grads_rest = torch.autograd.grad(total_rest.sum(), at_rest.tensors, create_graph=create_graph)
    for i, (grad, alone) in enumerate(zip(grads, grads_rest, strict=True)):
        if i < 3:
            assert (grad[[1, 3]] == 0).all()
            grad = grad[good]
        torch.testing.assert_close(grad, alone, **NEIGHBOURS[dtype])


def test_strict_names_the_sequence_and_the_position() -> None:
    p = batch_with_an_impossible_sequence(torch.float32)
    with pytest.raises(DomainError, match=r"sequence 1 is impossible.*position 2.*1 more"):
        log_z(p, strict=True)
    assert p.log_final is not None
    assert p.lengths is not None
    rest = [0, 2, 3, 4]
    q = p._replace(
        log_initial=p.log_initial[rest], log_obs=p.log_obs[rest], log_final=p.log_final[rest], lengths=p.lengths[rest]
    )
    with pytest.raises(DomainError, match=r"sequence 2 is impossible.*at its end \(log_final\)"):
        log_z(q, strict=True)
    possible = q._replace(log_final=None)
    assert torch.equal(log_z(possible, strict=True), log_z(possible))


@pytest.mark.parametrize("position", [0, 1, 3])
def test_strict_finds_where_the_transitions_end(position: int) -> None:
    """A chain of states that only move right, one step at a time, meets an observation it cannot have reached."""
    weight = torch.eye(5, dtype=torch.float64).roll(1, 1)
    weight[4] = 0.0
    log_obs = torch.zeros(1, 4, 5, dtype=torch.float64)
    log_obs[0, position, position] = -INF
    log_initial = torch.tensor([0.0] + [-INF] * 4, dtype=torch.float64)
    p = ChainPotentials(log_initial, Dense(weight), log_obs)
    assert log_z(p).item() == -INF
    with pytest.raises(DomainError, match=f"sequence 0 is impossible: .* at position {position}"):
        log_z(p, strict=True)


def sparse_chain(seed: int, z: int, t: int, zeros: float, spread: float, *, banded: bool) -> ChainPotentials:
    """A float32 chain in which many states cannot reach each other, its observations up to `spread` apart."""
    g = seeded(seed)
    weight = torch.rand(z, 3 if banded and z > 1 else z, generator=g) + 0.05
    weight[torch.rand(weight.shape, generator=g) < zeros] = 0.0
    transition: Operator = Banded(weight, -1) if banded and z > 1 else Dense(weight)
    log_obs = spread * (torch.rand(3, t, z, generator=g) - 0.5)
    return ChainPotentials(torch.randn(z, generator=g), transition, log_obs)


sparse_chains = given(
    seed=st.integers(0, 10**6),
    z=st.integers(1, 8),
    t=st.integers(1, 12),
    zeros=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    spread=st.floats(0, 400),
    banded=st.booleans(),
)


@settings(max_examples=200)
@sparse_chains
@example(seed=1, z=3, t=6, zeros=0.6, spread=300.0, banded=True)
def test_the_bound_never_calls_a_lossy_forward_pass_lossless(
    seed: int, z: int, t: int, zeros: float, spread: float, banded: bool
) -> None:
    p = sparse_chain(seed, z, t, zeros, spread, banded=banded)
    exact = log_z(p, "log")
    c = checked(p)
    run = chain_scaled.forward(c)
    sure = underflow.lossless(c, run)
    # Rounding alone costs 12 steps of 6e-8 and float32 sums of logs below 1e4.
    torch.testing.assert_close(run.log_z[sure], exact[sure], rtol=1e-6, atol=1e-4)


@settings(max_examples=120)
@sparse_chains
def test_value_and_gradient_are_right_in_any_range(
    seed: int, z: int, t: int, zeros: float, spread: float, banded: bool
) -> None:
    p = sparse_chain(seed, z, t, zeros, spread, banded=banded)
    exact = log_z(p, "log")
    torch.testing.assert_close(log_z(p), exact, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(posterior(p), posterior(p, "log"), rtol=0.0, atol=1e-4)


@settings(max_examples=30)
@sparse_chains
def test_the_bound_does_not_depend_on_the_size_of_its_blocks(
    seed: int, z: int, t: int, zeros: float, spread: float, banded: bool
) -> None:
    c = checked(sparse_chain(seed, z, t, zeros, spread / 4, banded=banded))
    run = chain_scaled.forward(c)
    whole = underflow.far_from_underflow(c, run)
    with pytest.MonkeyPatch.context() as patch:
        for height in (1, 2, 5):
            patch.setattr(underflow, "BLOCK", height * 3 * z)
            assert torch.equal(underflow.far_from_underflow(c, run), whole)


def refuse(chain: Chain) -> Chain:
    raise AssertionError("a sequence was repeated in float64")


@pytest.mark.parametrize("z", [2, 17, 129])
def test_ordinary_chains_take_the_fast_path(z: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stochastic matrices in float32: no sequence is repeated, forward or backward."""
    g = seeded(25)
    weight = torch.randn(z, z, generator=g).softmax(-1)
    left, right = torch.randn(z, 3, generator=g).softmax(-1), torch.randn(z, 3, generator=g).softmax(0)
    log_obs = pad_with_nan(3 * torch.randn(4, 50, z, generator=g), [50, 20, 1, 33])
    for transition in (Dense(weight), LowRank(left, right)):
        p = ChainPotentials(torch.zeros(z), transition, log_obs, lengths=torch.tensor([50, 20, 1, 33]))
        c = checked(p)
        run = chain_scaled.forward(c)
        assert underflow.lossless(c, run).all()
        assert underflow.far_from_underflow(c, run).all()
        tolerance = 16 * 2.0**-23 * (50 + 8)
        assert chain_scaled.backward(c, run, torch.ones(4), tolerance).trusted.all()
        expected = log_z(doubled(p))
        with monkeypatch.context() as patch:
            patch.setattr(Chain, "double", refuse)
            # 50 steps, each rounded at 6e-8 of itself.
            torch.testing.assert_close(log_z(p), expected, rtol=0.0, atol=1e-4)
            assert posterior(p).isfinite().all()


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_three_thousand_positions(shift: float) -> None:
    g = seeded(26)
    weight = torch.randn(3, 3, generator=g).softmax(-1)
    log_obs = 2 * torch.randn(2, 3000, 3, generator=g) + shift
    p = ChainPotentials(torch.zeros(3), Dense(weight), log_obs)
    exact = doubled(p)
    # Each of 3000 steps rounds its mantissa by about 6e-8, mostly in random directions: 1e-3 is five times
    # the sum of all, while a log-scale in float32 would err by 1e-2 at a log Z of 150,000.
    torch.testing.assert_close(log_z(p), log_z(exact), rtol=0.0, atol=1e-3)
    torch.testing.assert_close(posterior(p).double(), posterior(exact), rtol=0.0, atol=1e-3)
    past, future = messages(p)
    both = (past.mantissa * future.mantissa).double().sum(-1).log() + past.log_scale + future.log_scale
    torch.testing.assert_close(both, log_z(exact)[:, None].expand_as(both), rtol=0.0, atol=1e-3)


def test_an_empty_range_of_logs_is_an_ordinary_number() -> None:
    """Equal observations of -5000 nats: nothing is lost, and nothing needs repeating."""
    log_obs = torch.full((1, 20, 4), -5000.0)
    weight = torch.full((4, 4), 0.25)
    p = ChainPotentials(torch.full((4,), math.log(0.25)), Dense(weight), log_obs)
    assert float(log_z(p)) == pytest.approx(-100_000.0, rel=1e-9)
