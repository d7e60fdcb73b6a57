"""Path entropies against the enumeration."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from rankfold import (
    ChainPotentials,
    Dense,
    LowRank,
    Operator,
    RowScaled,
    UnsupportedError,
    WithoutDiagonal,
    entropy,
)
from tests.decoding.build import LOW_RANK, ranks_as_lists
from tests.operators.cases import CASES, Case
from tests.oracles import chain as oracle
from tests.recursions.build import BY_NAME, ENDS, INF, by_sequence, leaves, potentials, rebuilt

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)

# log Z minus an expectation: a difference of float64 numbers of up to 100.
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@every_case
@settings(max_examples=4)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged, final=st.sampled_from(ENDS))
def test_entropy_of_states(case: Case, seed: int, z: int, lengths: list[int], final: str) -> None:
    p = potentials(case, z, lengths, seed=seed, initial="b z", final=final)
    found = entropy(p)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(by_sequence(oracle.entropy, p), dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("name", LOW_RANK)
@settings(max_examples=4)
@given(seed=seeds, z=st.integers(1, 3), lengths=st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_entropy_of_states_and_ranks(name: str, seed: int, z: int, lengths: list[int]) -> None:
    p = potentials(BY_NAME[name], z, lengths, seed=seed, final="z")
    expected = [oracle.joint_entropy(**ranks_as_lists(p, i)) for i in range(len(lengths))]
    found = entropy(p, of="joint")
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **EXACT)
    assert (found >= entropy(p) - 1e-9).all()  # there is more to be unsure of


def test_float32_potentials_give_a_float64_entropy() -> None:
    p = potentials(BY_NAME["low_rank_2"], 3, [4, 2, 3], seed=60, dtype=torch.float32)
    found = entropy(p)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(by_sequence(oracle.entropy, p), dtype=torch.float64), **EXACT)


def test_a_uniform_chain() -> None:
    p = ChainPotentials(torch.zeros(4), Dense(torch.ones(4, 4)), torch.zeros(1, 5, 4))
    assert float(entropy(p)) == pytest.approx(5 * math.log(4), rel=1e-12)


def test_impossible_sequences_have_none() -> None:
    p = potentials(BY_NAME["dense"], 3, [3, 2, 3], seed=61, zeros=False)
    log_obs = p.log_obs.clone()
    log_obs[1, 0] = -INF
    at = leaves(p._replace(log_obs=log_obs))
    found = entropy(at.potentials)
    assert found[1] == 0
    torch.testing.assert_close(found[[0, 2]], entropy(p)[[0, 2]], **EXACT)
    grads = torch.autograd.grad(found.sum(), at.tensors)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[1][1] == 0).all()


@pytest.mark.parametrize("case", [case for case in CASES if case.positive], ids=lambda case: case.name)
def test_gradcheck(case: Case) -> None:
    p = potentials(case, 2, [3, 1], seed=62, final="z", zeros=False)
    at = leaves(p)
    assert gradcheck(lambda *tensors: entropy(rebuilt(p, tensors)), at.tensors)


@pytest.mark.parametrize("name", ["low_rank_2", "low_rank_log"])
def test_gradcheck_of_the_joint(name: str) -> None:
    p = potentials(BY_NAME[name], 2, [3, 2], seed=63, final="b z", zeros=False)
    at = leaves(p)
    assert gradcheck(lambda *tensors: entropy(rebuilt(p, tensors), of="joint"), at.tensors)


@pytest.mark.parametrize("name", ["dense_zero_row_column", "low_rank_2_zeros", "banded_upper_zeros", "dense_log_zeros"])
def test_gradients_at_zero_weights_are_finite(name: str) -> None:
    p = potentials(BY_NAME[name], 3, [3, 2], seed=64)
    at = leaves(p)
    grads = torch.autograd.grad(entropy(at.potentials).sum(), at.tensors)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("name", ["dense", "banded_near", "sum", "row_scaled"])
def test_ranks_are_asked_of_low_rank_alone(name: str) -> None:
    p = potentials(BY_NAME[name], 3, [2, 2], seed=65)
    with pytest.raises(
        UnsupportedError, match=rf'of="joint" asks for ranks, but a {type(p.transition).__name__} has none'
    ):
        entropy(p, of="joint")


@pytest.mark.parametrize("far", [800.0, 1e6])
@pytest.mark.parametrize("of", ["states", "joint"])
def test_a_posterior_that_float64_cannot_hold(of: str, far: float) -> None:
    """Two paths of equal weight, of which one is far below the other at both ends; a neighbour has one path."""
    log_obs = torch.tensor([[[0.0, -far], [0.0, 2 * far], [0.0, -far]], [[0.0, -INF]] * 3], dtype=torch.float64)
    log_obs = log_obs.requires_grad_()
    eye = torch.eye(2, dtype=torch.float64)
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), LowRank(eye, eye), log_obs)
    found = entropy(p, of=of)
    torch.testing.assert_close(found, torch.tensor([math.log(2), 0.0], dtype=torch.float64), **EXACT)
    (grad,) = torch.autograd.grad(found.sum(), log_obs)
    torch.testing.assert_close(grad, torch.zeros_like(grad), **EXACT)


@pytest.mark.parametrize("small", [1e-320, 1e-300])
@pytest.mark.parametrize("kind", ["dense", "low rank", "row scaled", "joint"])
def test_weights_near_the_smallest_number(kind: str, small: float) -> None:
    """Ratios of weights decide, not their size; weights of whole multiples of the smallest number are exact."""
    unit = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    one = torch.tensor(small, dtype=torch.float64)
    eye, scale = torch.eye(2, dtype=torch.float64), torch.tensor([2.0, 5.0], dtype=torch.float64)

    def operator(by: torch.Tensor) -> Operator:
        if kind == "row scaled":
            return RowScaled(Dense(unit), by * scale)
        return Dense(by * unit) if kind == "dense" else LowRank(by * unit, eye + 1)

    of = "joint" if kind == "joint" else "states"
    found, want = (
        entropy(
            ChainPotentials(torch.zeros(2, dtype=torch.float64), operator(by), torch.zeros(1, 3, 2).double()), of=of
        )
        for by in (one, torch.ones_like(one))
    )
    torch.testing.assert_close(found, want, **EXACT)


def test_wide_observations_that_float64_can_hold() -> None:
    log_obs = torch.tensor([[[0.0, -300.0], [0.0, 600.0], [0.0, -300.0]]])
    p = ChainPotentials(torch.zeros(2), Dense(torch.eye(2)), log_obs)
    assert float(entropy(p)) == pytest.approx(math.log(2), rel=1e-9)


@pytest.mark.parametrize("of", ["states", "joint"])
def test_a_move_far_below_the_best_on_both_sides(of: str) -> None:
    """State 0 leads nowhere but is 400 nats above state 1 on both sides of the only move, 1 -> 1."""
    log_obs = torch.tensor([[[0.0, -400.0], [0.0, -400.0]]], dtype=torch.float64)
    left = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), LowRank(left, left), log_obs)
    assert float(entropy(p, of=of)) == pytest.approx(0.0, rel=0.0, abs=1e-9)


@pytest.mark.parametrize("far", [300.0, 800.0])
def test_a_state_out_of_reach_far_above(far: float) -> None:
    """Nobody gets to state 1, whatever its observation would weigh."""
    log_obs = torch.tensor([[[0.0, 0.0], [0.0, far]]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), Dense(weight), log_obs)
    assert float(entropy(p)) == pytest.approx(math.log(2), rel=1e-9)


@pytest.mark.parametrize("far", [300.0, 800.0])
def test_the_only_move_weighs_far_less_than_others_would(far: float) -> None:
    """The entropy of one path is 0, within float64's range and beyond."""
    log_weight = torch.tensor([[0.0, -far], [-INF, -INF]], dtype=torch.float64)
    log_obs = torch.tensor([[[0.0, 0.0], [-INF, 0.0]]], dtype=torch.float64)
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), Dense.from_log(log_weight), log_obs)
    assert float(entropy(p)) == pytest.approx(0.0, rel=0.0, abs=1e-9)


def test_a_state_out_of_reach_scales_nothing() -> None:
    weight, log_obs = torch.tensor([[0.5, 0.0], [0.5, 0.0]]), torch.tensor([[[0.0, 0.0], [-800.0, 0.0]]])
    assert float(entropy(ChainPotentials(torch.zeros(2), Dense(weight), log_obs))) == pytest.approx(
        math.log(2), rel=1e-6
    )


@pytest.mark.parametrize("seed", range(60))
def test_wide_ranges_are_right_or_refused(seed: int) -> None:
    """Sparse chains with hundreds of nats between observations, against enumeration: never NaN, never wrong."""
    g = torch.Generator().manual_seed(seed)
    weight = torch.rand(3, 3, generator=g, dtype=torch.float64)
    weight[torch.rand(3, 3, generator=g) < 0.4] = 0.0
    log_obs = 100.0 * torch.randint(-8, 9, (1, 4, 3), generator=g).double()
    p = ChainPotentials(torch.zeros(3, dtype=torch.float64), Dense(weight), log_obs)
    try:
        found = float(entropy(p))
    except UnsupportedError:
        return
    lists = (p.log_initial.tolist(), weight.tolist(), log_obs[0].tolist(), None)
    truth = oracle.entropy(*lists) if oracle.log_z(*lists) > -INF else 0.0
    assert found == pytest.approx(truth, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("lengths", [[3, 3], [3, 1], [3, 2]])
def test_products_of_factors_beyond_float64(lengths: list[int]) -> None:
    """Rows of an infinite product, scaled back: entropies and their gradients are those of ordinary numbers.

    An impossible sequence beside them disturbs nothing.
    """
    g = torch.Generator().manual_seed(66)
    left, right = (torch.rand(3, 2, generator=g, dtype=torch.float64) + 0.1 for _ in range(2))
    log_obs = torch.randn(2, 3, 3, generator=g, dtype=torch.float64)
    if lengths[1] == 2:
        log_obs[1, 1] = -INF
    log_obs.requires_grad_()
    found = []
    for by in (1.0, 1e200):
        log_scale = torch.full((3,), -2 * math.log(by), dtype=torch.float64)
        operator = RowScaled.from_log(WithoutDiagonal(LowRank(left * by, right * by)), log_scale)
        p = ChainPotentials(torch.zeros(3, dtype=torch.float64), operator, log_obs, lengths=torch.tensor(lengths))
        value = entropy(p)
        found.append((value.detach(), *torch.autograd.grad(value.sum(), log_obs)))
    torch.testing.assert_close(found[1], found[0], **EXACT)
