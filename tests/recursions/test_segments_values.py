"""Semi-Markov chains against the enumeration of all segmentations: log Z, every gradient, messages."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold import Dense, LowRank, RowScaled, UnsupportedError
from rankfold.recursions import segments
from tests.operators.cases import CASES, Case
from tests.oracles import semi_markov as oracle
from tests.recursions.build import BY_NAME, INF, seeded
from tests.recursions.segment_batches import (
    EXACT,
    as_lists,
    batch,
    enumerated,
    leaves,
    padded,
    rebuilt,
    true_log_z,
)

flags = st.booleans()
problems = st.fixed_dictionaries(
    {
        "z": st.integers(1, 3),
        "d": st.sampled_from([1, 2, 3, 7]),
        "lengths": st.lists(st.integers(1, 5), min_size=2, max_size=3),
        "seed": st.integers(0, 10**6),
        "spread": st.sampled_from([2.0, 1000.0]),
        "zeros": flags,
        "censored": flags,
        "final": flags,
    }
)
WEIGHT = torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64)


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@settings(max_examples=20)
@given(problem=problems)
def test_log_z_and_gradients(arithmetic: str, problem: dict) -> None:
    p, tensors = leaves(batch(**problem))
    found, weight = enumerated(p), WEIGHT[: len(p.log_obs)]
    value = segments.log_z(p, arithmetic)
    torch.testing.assert_close(value.detach(), true_log_z(p), **EXACT)
    assert value.dtype == torch.float64
    initial, durations, states, *rest = torch.autograd.grad(value, tensors, weight)
    z, d = p.log_duration.shape
    by_frame = padded(
        [oracle.states(one, int(n), z) for one, n in zip(found, p.lengths, strict=True)], p.log_obs.shape[1]
    )
    torch.testing.assert_close(states, by_frame * weight[:, None, None], **EXACT)
    torch.testing.assert_close(initial, (by_frame[:, 0] * weight[:, None]).sum(0), **EXACT)
    last = by_frame[torch.arange(len(found)), p.lengths - 1] * weight[:, None]
    if p.log_final is not None:
        torch.testing.assert_close(rest[0], last, **EXACT)
    torch.testing.assert_close(durations, weighed([oracle.durations(one, z, d) for one in found], weight), **EXACT)
    # Derivatives at weights of zero may be of any size; those no float64 product can hold are cut.
    moves = weighed([oracle.grad_transition(**as_lists(p, i)) for i in range(len(found))], weight)
    held = moves.abs() < 1e200
    torch.testing.assert_close(rest[-1][held], moves[held], rtol=1e-9, atol=1e-10)


def weighed(tables: list[list[list[float]]], weight: Tensor) -> Tensor:
    return (torch.tensor(tables, dtype=torch.float64) * weight[:, None, None]).sum(0)


@settings(max_examples=15)
@given(problem=problems)
def test_a_gradient_that_will_be_differentiated_is_the_same(problem: dict) -> None:
    p, tensors = leaves(batch(**{**problem, "spread": 2.0}))
    value, weight = segments.log_z(p), WEIGHT[: len(p.log_obs)]
    plain = torch.autograd.grad(value, tensors, weight, create_graph=True)
    for one, other in zip(torch.autograd.grad(value, tensors, weight), plain, strict=True):
        torch.testing.assert_close(one, other.detach(), **EXACT)


def test_second_derivatives_at_zeros_beside_a_scale() -> None:
    """Rows that are switched off, of a matrix whose largest log-weight is kept apart."""
    g = seeded(6)
    dense = Dense.from_log(torch.randn(3, 3, generator=g, dtype=torch.float64) + 20.0)
    op = RowScaled(dense, torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64))
    p, tensors = leaves(batch(3, 3, [5, 2], seed=7, transition=op))
    value = segments.log_z(p).sum()
    plain = torch.autograd.grad(value, tensors, create_graph=True)
    for one, other in zip(torch.autograd.grad(value, tensors), plain, strict=True):
        torch.testing.assert_close(one, other.detach(), **EXACT)


@pytest.mark.parametrize("power", [-300, -150, 100, 300])
def test_moves_of_weight_zero_beside_huge_and_tiny_ones(power: int) -> None:
    """What a move would add is an ordinary number: the scale of the others takes no part in it but as a factor."""
    weight = torch.rand(3, 3, generator=seeded(3), dtype=torch.float64) + 0.1
    weight[0, 1] = weight[2, 2] = weight[1, 0] = 0.0
    scale = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    p = batch(3, 1, [5, 3], seed=2, transition=RowScaled(Dense(weight), scale))
    p, small = leaves(p)
    q, wide = leaves(p._replace(transition=RowScaled(Dense(weight * 10.0**power), scale)))
    for arithmetic in ("scaled", "log"):
        one = torch.autograd.grad(segments.log_z(p).sum(), small)
        other = torch.autograd.grad(segments.log_z(q, arithmetic).sum(), wide)  # type: ignore[arg-type]
        for x, y in zip(one[:-1], other[:-1], strict=True):
            torch.testing.assert_close(x, y, **EXACT)
        torch.testing.assert_close(one[-1], other[-1] * 10.0**power, **EXACT)


@pytest.mark.parametrize(("name", "censored"), [("dense", True), ("low_rank_2", False), ("banded_log", True)])
def test_numerical_derivatives(name: str, censored: bool) -> None:
    op = BY_NAME[name].build(3, seeded(1), torch.float64)
    p = batch(3, 2, [3, 2], seed=3, censored=censored, final=True, transition=op)
    p = p._replace(log_obs=torch.where(p.log_obs.isnan(), 0.0, p.log_obs))
    _, tensors = leaves(p)

    def log_z(*tensors: Tensor) -> Tensor:
        return segments.log_z(rebuilt(p, tensors))

    assert gradcheck(log_z, tensors)
    assert gradgradcheck(log_z, tensors)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operator(case: Case) -> None:
    p, tensors = leaves(batch(3, 3, [4, 1, 3], seed=5, transition=case.build(3, seeded(2), torch.float64)))
    value = segments.log_z(p)
    torch.testing.assert_close(value.detach(), true_log_z(p), **EXACT)
    known = (value > -INF).detach()
    scaled = torch.autograd.grad(value, tensors, known.double(), retain_graph=True)
    for other in (segments.log_z(p, "log"), value):
        again = torch.autograd.grad(other, tensors, known.double(), create_graph=other is value)
        for one, two in zip(scaled, again, strict=True):
            torch.testing.assert_close(one, two.detach(), rtol=1e-9, atol=1e-10)


@settings(max_examples=15)
@given(problem=problems)
def test_messages(problem: dict) -> None:
    p = batch(**problem)
    found, z = enumerated(p), p.log_duration.shape[0]
    m = segments.messages(p)
    log_z = true_log_z(p)
    for i, one in enumerate(found):
        length = int(p.lengths[i])
        assert (m.opened[i, length:] == -INF).all()
        assert (m.after[i, length:] == -INF).all()
        if log_z[i] == -INF:
            continue
        starts = torch.exp(m.opened[i, :length] + m.begun[i, :length] - log_z[i])
        torch.testing.assert_close(starts, torch.tensor(oracle.starts(one, length, z), dtype=torch.float64), **EXACT)
        if not p.censored:
            closes = torch.logsumexp(m.closed[i, length - 1] + m.after[i, length - 1], -1)
            torch.testing.assert_close(closes, log_z[i], **EXACT)


def test_second_derivatives_beyond_the_range_are_refused() -> None:
    """At weights of zero only: elsewhere logarithms serve at any range."""
    zero = batch(2, 2, [5], seed=0, spread=2000.0, zeros=False)
    weight = torch.tensor([[0.5, 0.0], [0.5, 1.0]], dtype=torch.float64)
    log_obs = torch.tensor([[[0.0, -900.0], [-900.0, 0.0], [0.0, -900.0], [-900.0, 0.0], [0.0, -2000.0]]]).double()
    p, tensors = leaves(zero._replace(transition=type(zero.transition)(weight), log_obs=log_obs))
    value = segments.log_z(p)
    torch.testing.assert_close(value.detach(), true_log_z(p), **EXACT)
    with pytest.raises(UnsupportedError, match="from_log"):
        torch.autograd.grad(value.sum(), tensors, create_graph=True)
    p, tensors = leaves(zero)
    value = segments.log_z(p)
    plain = torch.autograd.grad(value.sum(), tensors, create_graph=True)
    for one, other in zip(torch.autograd.grad(value.sum(), tensors), plain, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)


def test_low_rank_of_many_states_is_dense() -> None:
    g = seeded(0)
    left, right = (torch.rand(17, 3, generator=g, dtype=torch.float64) for _ in range(2))
    low = batch(17, 5, [9, 4], transition=LowRank(left, right))
    dense = batch(17, 5, [9, 4])
    dense = dense._replace(transition=type(dense.transition)(left @ right.mT))
    torch.testing.assert_close(segments.log_z(low), segments.log_z(dense), rtol=1e-12, atol=1e-12)
