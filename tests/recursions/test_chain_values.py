"""log Z and its gradients against the enumeration of all paths, for every operator."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold import Banded, ChainPotentials, Dense, LowRank
from rankfold.recursions.chain import log_z
from tests.operators.cases import CASES, Case
from tests.oracles import chain as oracle
from tests.recursions.build import (
    BY_NAME,
    ENDS,
    INF,
    Leaves,
    as_lists,
    by_sequence,
    factor_gradients,
    leaves,
    padded,
    potentials,
    rebuilt,
    seeded,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_size = pytest.mark.parametrize("z", [1, 2, 3, 4])
both_arithmetics = pytest.mark.parametrize("arithmetic", ["scaled", "log"])

seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)
initials, finals = st.sampled_from(ENDS[1:]), st.sampled_from(ENDS)

# float64 sums of at most 256 positive terms: 1e-10 leaves four digits to spare.
EXACT = {"rtol": 1e-10, "atol": 1e-10}
# float32 rounds each of at most 4 steps and the inputs' sums at 1e-7; log Z itself is below 100.
SINGLE = {"rtol": 0.0, "atol": 1e-4}


@every_case
@every_size
@settings(max_examples=5)
@given(seed=seeds, lengths=ragged, initial=initials, final=finals)
def test_log_z_is_the_sum_over_all_paths(
    case: Case, z: int, seed: int, lengths: list[int], initial: str, final: str
) -> None:
    p = potentials(case, z, lengths, seed=seed, initial=initial, final=final)
    expected = torch.tensor(by_sequence(oracle.log_z, p), dtype=torch.float64)
    for arithmetic in ("scaled", "log"):
        found = log_z(p, arithmetic)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, **EXACT)


@every_case
@settings(max_examples=5)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged, initial=initials, final=finals)
def test_log_z_in_float32(case: Case, z: int, seed: int, lengths: list[int], initial: str, final: str) -> None:
    p = potentials(case, z, lengths, seed=seed, dtype=torch.float32, initial=initial, final=final)
    expected = torch.tensor(by_sequence(oracle.log_z, p), dtype=torch.float64)
    for arithmetic in ("scaled", "log"):
        found = log_z(p, arithmetic)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, **SINGLE)


def enumerated_gradients(p: ChainPotentials, weight: Tensor) -> list[Tensor]:
    """d (weight . log Z) in the order of `Leaves.tensors`, float64."""
    rows = by_sequence(oracle.posterior, p)
    states = padded(rows, p.log_obs.shape[1]) * weight[:, None, None]
    first = states[:, 0]
    last = torch.stack([torch.tensor(row[-1], dtype=torch.float64) for row in rows]) * weight[:, None]
    by_cell = torch.tensor(by_sequence(oracle.grad_transition, p), dtype=torch.float64)
    out = [first if p.log_initial.ndim == 2 else first.sum(0), states]
    if p.log_final is not None:
        out.append(last if p.log_final.ndim == 2 else last.sum(0))
    return [*out, *factor_gradients(p.transition, (by_cell * weight[:, None, None]).sum(0))]


def gradients(at: Leaves, arithmetic: str, weight: Tensor, *, create_graph: bool = False) -> tuple[Tensor, ...]:
    """Impossible sequences get their share of `weight` too, and must not pass it on."""
    return torch.autograd.grad(log_z(at.potentials, arithmetic), at.tensors, weight, create_graph=create_graph)


@every_case
@both_arithmetics
@settings(max_examples=5)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged, initial=initials, final=finals)
def test_gradients_are_those_of_the_enumeration(
    case: Case, arithmetic: str, z: int, seed: int, lengths: list[int], initial: str, final: str
) -> None:
    p = potentials(case, z, lengths, seed=seed, initial=initial, final=final)
    weight = torch.randn(len(lengths), generator=seeded(seed), dtype=torch.float64)
    found = gradients(leaves(p), arithmetic, weight)
    for grad, expected in zip(found, enumerated_gradients(p, weight), strict=True):
        torch.testing.assert_close(grad, expected, **EXACT)
    for i, length in enumerate(lengths):
        assert (found[1][i, length:] == 0).all()  # exactly: nothing beyond a length was read


@every_case
@settings(max_examples=3)
@given(seed=seeds, z=st.integers(2, 4), lengths=ragged)
def test_gradients_in_float32(case: Case, z: int, seed: int, lengths: list[int]) -> None:
    p = potentials(case, z, lengths, seed=seed, dtype=torch.float32, final="z")
    weight = torch.ones(len(lengths), dtype=torch.float64)
    at = leaves(p)
    # The log-weights of `sum_scales_apart` reach 30 nats, which float32 holds to 2e-6; the rest is round-off.
    for x, grad, expected in zip(
        at.tensors, gradients(at, "scaled", weight), enumerated_gradients(p, weight), strict=True
    ):
        assert grad.dtype == x.dtype == torch.float32
        torch.testing.assert_close(grad.double(), expected, rtol=1e-4, atol=1e-5)


@every_case
@both_arithmetics
def test_a_gradient_that_will_be_differentiated_has_the_same_value(case: Case, arithmetic: str) -> None:
    p = potentials(case, 3, [4, 2, 1, 3], seed=5, final="b z")
    weight = torch.tensor([1.0, -0.5, 2.0, 0.25], dtype=torch.float64)
    at = leaves(p)
    plain = gradients(at, arithmetic, weight)
    followed = gradients(at, arithmetic, weight, create_graph=True)
    for a, b in zip(plain, followed, strict=True):
        torch.testing.assert_close(b, a, **EXACT)


ZERO_WEIGHTS = {
    "dense": lambda: Dense(torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 0.3], [0.0, 0.9, 0.0]], dtype=torch.float64)),
    "low rank": lambda: LowRank(
        torch.tensor([[0.5, 0.0], [0.0, 0.0], [0.7, 0.2]], dtype=torch.float64),
        torch.tensor([[0.0, 0.4], [0.6, 0.0], [0.0, 0.3]], dtype=torch.float64),
    ),
    "banded": lambda: Banded(torch.tensor([[0.5, 0.0], [0.0, 0.6], [0.9, 0.1]], dtype=torch.float64), 0),
}


@both_arithmetics
@pytest.mark.parametrize("name", ZERO_WEIGHTS)
@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_of_weights_that_are_exactly_zero(name: str, arithmetic: str, create_graph: bool) -> None:
    g = seeded(11)
    log_obs = torch.randn(2, 4, 3, generator=g, dtype=torch.float64)
    p = ChainPotentials(torch.tensor([0.3, -INF, 0.1], dtype=torch.float64), ZERO_WEIGHTS[name](), log_obs)
    weight = torch.ones(2, dtype=torch.float64)
    expected = enumerated_gradients(p, weight)
    assert any(
        (grad[factor == 0] > 0.1).any() for factor, grad in zip(p.transition.factors(), expected[2:], strict=True)
    )
    for grad, value in zip(gradients(leaves(p), arithmetic, weight, create_graph=create_graph), expected, strict=True):
        torch.testing.assert_close(grad, value, **EXACT)


@both_arithmetics
def test_a_state_nobody_reaches_gets_no_mass_but_its_entrance_gets_a_gradient(arithmetic: str) -> None:
    weight = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.3, 0.3, 0.4]], dtype=torch.float64)
    log_initial = torch.tensor([-0.1, -2.0, -INF], dtype=torch.float64)
    p = ChainPotentials(log_initial, Dense(weight), torch.zeros(1, 3, 3, dtype=torch.float64))
    grad_initial, grad_obs, grad_weight = gradients(leaves(p), arithmetic, torch.ones(1, dtype=torch.float64))
    assert (grad_obs[..., 2] == 0).all()
    assert grad_initial[2] == 0
    expected = torch.tensor(oracle.grad_transition(**as_lists(p, 0)), dtype=torch.float64)
    assert expected[0, 2] > 0.1
    torch.testing.assert_close(grad_weight, expected, **EXACT)


POSITIVE = [case for case in CASES if case.positive]
every_positive_case = pytest.mark.parametrize("case", POSITIVE, ids=lambda case: case.name)


@every_positive_case
@both_arithmetics
def test_gradcheck(case: Case, arithmetic: str) -> None:
    p = potentials(case, 3, [3, 1, 2], seed=2, initial="b z", final="z", zeros=False)
    at = leaves(p)
    assert gradcheck(lambda *tensors: log_z(rebuilt(p, tensors), arithmetic), at.tensors)


TWICE = ["dense", "dense_log", "low_rank_2", "low_rank_log", "banded_near", "banded_log", "sum", "row_scaled"]


@pytest.mark.parametrize("name", TWICE)
@both_arithmetics
def test_gradgradcheck(name: str, arithmetic: str) -> None:
    p = potentials(BY_NAME[name], 2, [3, 1], seed=3, final="b z", zeros=False)
    at = leaves(p)
    assert gradgradcheck(lambda *tensors: log_z(rebuilt(p, tensors), arithmetic), at.tensors)


@pytest.mark.parametrize("name", ["dense", "low_rank_log", "banded_log"])
def test_gradgradcheck_of_sequences_on_different_rungs(name: str) -> None:
    """800 nats between the states of one sequence: it needs logarithms, its neighbour does not."""
    p = potentials(BY_NAME[name], 2, [3, 3], seed=4, zeros=False)
    log_obs = p.log_obs.clone()
    log_obs[1, 0] = torch.tensor([0.0, -800.0])
    log_obs[1, 2] = torch.tensor([-800.0, 0.0])
    p = p._replace(log_obs=log_obs)
    at = leaves(p)
    assert gradgradcheck(lambda *tensors: log_z(rebuilt(p, tensors)), at.tensors)


def test_the_second_derivative_is_not_lost() -> None:
    """The posterior's own derivative: d2 log Z / d log_obs2 is its covariance, here p (1 - p)."""
    log_obs = torch.tensor([[[0.3, -0.4]]], dtype=torch.float64, requires_grad=True)
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), Dense(torch.ones(2, 2, dtype=torch.float64)), log_obs)
    (posterior,) = torch.autograd.grad(log_z(p).sum(), log_obs, create_graph=True)
    (second,) = torch.autograd.grad(posterior[0, 0, 0], log_obs)
    share = torch.softmax(log_obs[0, 0].detach(), -1)
    expected = torch.stack([share[0] * (1 - share[0]), -share[0] * share[1]])
    torch.testing.assert_close(second[0, 0], expected, **EXACT)


def test_two_backward_passes_through_one_forward_pass_agree() -> None:
    p = potentials(BY_NAME["low_rank_2"], 3, [4, 2, 3], seed=6, dtype=torch.float32)
    at = leaves(p)
    total = log_z(at.potentials).sum()
    first = torch.autograd.grad(total, at.tensors, retain_graph=True)
    second = torch.autograd.grad(total, at.tensors)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_only_the_gradients_asked_for(position: int) -> None:
    p = potentials(BY_NAME["dense"], 3, [3, 2], seed=7, final="z")
    at = leaves(p)
    everything = torch.autograd.grad(log_z(at.potentials).sum(), at.tensors)
    tensors = [x.detach().requires_grad_(i == position) for i, x in enumerate(at.tensors)]
    (alone,) = torch.autograd.grad(log_z(rebuilt(p, tensors)).sum(), tensors[position])
    torch.testing.assert_close(alone, everything[position], **EXACT)


def summed_over_paths(log_initial: Tensor, weight: Tensor, log_obs: Tensor) -> Tensor:
    """log Z of one sequence as one polynomial in the weights, which autograd differentiates as often as it likes."""
    total = torch.zeros((), dtype=torch.float64)
    for path in itertools.product(range(len(weight)), repeat=len(log_obs)):
        term = log_initial[path[0]].exp() * log_obs[0, path[0]].exp()
        for t in range(1, len(path)):
            term = term * weight[path[t - 1], path[t]] * log_obs[t, path[t]].exp()
        total = total + term
    return total.log()


@both_arithmetics
def test_second_derivatives_at_exact_zeros(arithmetic: str) -> None:
    g = seeded(12)
    weight = torch.tensor([[0.5, 0.0, 0.7], [0.0, 0.0, 0.3], [0.4, 0.9, 0.0]], dtype=torch.float64)
    log_obs = torch.randn(3, 3, generator=g, dtype=torch.float64)
    log_obs[1, 0] = -INF
    log_initial = torch.tensor([0.2, -INF, -0.3], dtype=torch.float64)
    direction = [torch.randn(x.shape, generator=g, dtype=torch.float64) for x in (log_initial, weight, log_obs)]

    def second(value: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        inputs = [x.clone().requires_grad_() for x in (log_initial, weight, log_obs)]
        first = torch.autograd.grad(value(*inputs), inputs, create_graph=True)
        along = sum((grad * way).sum() for grad, way in zip(first, direction, strict=True))
        return torch.autograd.grad(along, inputs)

    found = second(lambda a, w, x: log_z(ChainPotentials(a, Dense(w), x[None]), arithmetic).sum())
    for a, b in zip(found, second(summed_over_paths), strict=True):
        torch.testing.assert_close(a, b, **EXACT)
