"""Stretches, ends that only some states may have, and products that overflow: against enumeration and known sums."""

import math

import pytest
import torch
from torch import Tensor

from rankfold import (
    Dense,
    DomainError,
    LowRank,
    Operator,
    RowScaled,
    SegmentPotentials,
    Sum,
    WithoutDiagonal,
    expected_counts,
    posterior,
    sample,
    viterbi,
)
from rankfold.recursions import segments
from tests.oracles import semi_markov as oracle
from tests.recursions.build import INF, seeded
from tests.recursions.segment_batches import EXACT, batch, enumerated, leaves, padded, true_log_z

STRETCHES = [None, 1, 2, 3, 5, 7]


def in_a_row(num_states: int, longest: int, num_frames: int, dtype: torch.dtype) -> SegmentPotentials:
    """From the first state to the last, one after the other: every duration has weight 1."""
    start, end = torch.full((2, num_states), -INF, dtype=dtype)
    start[0], end[-1] = 0.0, 0.0
    moves = torch.eye(num_states, dtype=dtype).roll(1, 1)
    moves[-1] = 0.0
    return SegmentPotentials(
        start,
        Dense(moves),
        torch.zeros(num_states, longest, dtype=dtype),
        torch.zeros(1, num_frames, num_states, dtype=dtype),
        log_final=end,
    )


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@pytest.mark.parametrize("stretch", STRETCHES)
def test_the_end_belongs_to_the_last_stretch(stretch: int | None, arithmetic: str) -> None:
    p, tensors = leaves(in_a_row(4, 3, 8, torch.float64))
    value = segments.log_z(p, arithmetic, strict=True, stretch=stretch)  # type: ignore[arg-type]
    assert value.item() == pytest.approx(math.log(19), rel=1e-12)
    for one, other in zip(
        torch.autograd.grad(value, tensors), torch.autograd.grad(segments.log_z(p), tensors), strict=True
    ):
        torch.testing.assert_close(one, other, **EXACT)
    with pytest.raises(DomainError, match="sequence 0 is impossible"):
        segments.log_z(in_a_row(9, 3, 8, torch.float64), strict=True, stretch=stretch)


def test_large_batches_that_must_end_in_one_state() -> None:
    """2^23 entries are cut without being asked: after 16 frames, when nothing has come near the end."""
    p = in_a_row(18, 1, 18, torch.float32)
    found = segments.log_z(p._replace(log_obs=torch.full((26_000, 18, 18), -0.5)), strict=True)
    torch.testing.assert_close(found, torch.full_like(found, -9.0), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("seed", range(4))
def test_against_enumeration(seed: int) -> None:
    p = batch(3, 3, [6, 5, 1, 4], seed=seed, spread=[2.0, 900.0][seed % 2], zeros=True, censored=seed > 1, final=True)
    truth = true_log_z(p)
    states = padded([oracle.states(x, int(n), 3) for x, n in zip(enumerated(p), p.lengths, strict=True)], 6)
    for arithmetic in ("scaled", "log"):
        for stretch in STRETCHES:
            q, tensors = leaves(p)
            found = segments.log_z(q, arithmetic, stretch=stretch)  # type: ignore[arg-type]
            torch.testing.assert_close(found.detach(), truth, **EXACT)
            torch.testing.assert_close(torch.autograd.grad(found.sum(), tensors[2])[0], states, rtol=1e-9, atol=1e-9)


def huge(kind: str, dtype: torch.dtype) -> Operator:
    """Three states; every factor fits its dtype, a product of two does not."""
    size = 1e30 if dtype == torch.float32 else 1e200
    left = size * (torch.rand(3, 2, generator=seeded(1), dtype=dtype) + 0.5)
    left[1, 0] = 0.0
    right = size * (torch.rand(3, 2, generator=seeded(2), dtype=dtype) + 0.5)
    low = LowRank(left, right)
    scale = torch.tensor([1e3, 1.0, 1e5], dtype=dtype)
    some = torch.tensor([1.0, 0.0, 1.0], dtype=dtype)
    return {
        "low rank": low,
        "rows": RowScaled(LowRank(left, right / 1e3), scale),
        "rows of a matrix": RowScaled(Dense(left @ torch.ones(2, 3, dtype=dtype)), size / scale),
        "sum": Sum([low, Dense(torch.ones(3, 3, dtype=dtype))]),
        "no diagonal": WithoutDiagonal(low),
        "rows of no diagonal": RowScaled(WithoutDiagonal(low), some),
    }[kind]


def divided(op: Operator) -> tuple[Operator, list[Tensor]]:
    """The same operator in float64, each factor divided by its largest entry, and these; of a sum the first term."""
    op = op.terms[0] if isinstance(op, Sum) else op
    factors = [x.double() for x in op.factors()]
    tops = [x.amax() for x in factors]
    return op.with_factors(*(x / top for x, top in zip(factors, tops, strict=True))), tops


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["low rank", "rows", "rows of a matrix", "sum", "no diagonal", "rows of no diagonal"])
def test_products_that_overflow(kind: str, dtype: torch.dtype) -> None:
    """Beside sequences that never move, and impossible ones: values, posteriors, counts and gradients, never NaN."""
    op = huge(kind, dtype)
    small, tops = divided(op)
    # With durations of 1, n frames have n - 1 moves: so many times the factors that were taken out.
    p = batch(3, 1, [4, 1, 5, 5, 1], transition=op, dtype=dtype, final=True)
    p.log_obs[2, 2] = -INF
    p.log_obs[4, 0] = -INF
    q = p._replace(transition=small, **{x: getattr(p, x).double() for x in ("log_initial", "log_duration", "log_obs")})
    q = q._replace(log_final=p.log_final.double())
    truth = true_log_z(q) + (q.lengths - 1) * torch.stack(tops).log().sum()
    states = padded([oracle.states(x, int(n), 3) for x, n in zip(enumerated(q), q.lengths, strict=True)], 5)
    bounds = EXACT if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    q, fields = leaves(q)
    uses = torch.autograd.grad(segments.log_z(q).sum(), fields)[4:]
    for arithmetic in ("scaled", "log"):
        for stretch in STRETCHES:
            p, tensors = leaves(p)
            found = segments.log_z(p, arithmetic, stretch=stretch)  # type: ignore[arg-type]
            torch.testing.assert_close(found.detach(), truth, **bounds)
            grads = torch.autograd.grad(found.sum(), tensors)
            torch.testing.assert_close(grads[2].double(), states, **bounds)
            for one, other, top in zip(grads[4:], uses, tops, strict=kind != "sum"):
                torch.testing.assert_close(one.double() * top, other, **bounds)
            assert not any(bool(x.isnan().any()) for x in grads)
    with torch.no_grad():  # second derivatives are not defined there
        probability, counts = posterior(p), expected_counts(p)
    for one in (probability.state, counts.state):
        torch.testing.assert_close(one.double(), states, **bounds)
    assert not any(bool(x.isnan().any()) for x in (*probability, *counts.transition))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_state(dtype: torch.dtype) -> None:
    size = torch.full((1, 1), 1e30, dtype=dtype)
    p = SegmentPotentials(
        torch.zeros(1, dtype=dtype),
        LowRank(size, size),
        torch.zeros(1, 1, dtype=dtype),
        torch.zeros(1, 3, 1, dtype=dtype),
    )
    for stretch in STRETCHES:
        assert segments.log_z(p, stretch=stretch).item() == pytest.approx(4 * math.log(1e30), rel=1e-6)


@pytest.mark.parametrize("frame", [0, 1])
def test_what_only_the_ends_decide(frame: int) -> None:
    """The state that a sequence must begin or end in lies far below another: posteriors and samples know it."""
    log_obs = torch.zeros(1, 2, 3, dtype=torch.float64)
    log_obs[0, frame, 0] = 1e6
    first, last = torch.full((2, 3), -INF, dtype=torch.float64)
    first[1], last[2] = 2e6, 0.0
    weight, duration = torch.ones(3, 3, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    p = SegmentPotentials(first, Dense(weight), duration, log_obs, log_final=last)
    path = torch.nn.functional.one_hot(torch.tensor([[1, 2]]), 3).double()
    for one in posterior(p):
        torch.testing.assert_close(one, path, rtol=0.0, atol=0.0)
    states, _ = sample(p, num_samples=20, generator=seeded(0))
    assert states.tolist() == [[[1, 2]]] * 20


def test_an_impossible_sequence_carries_nothing() -> None:
    """A segment is open, but has no duration left."""
    duration = torch.tensor([[0.0, -INF]])
    p = SegmentPotentials(torch.zeros(1), Dense(torch.zeros(1, 1)), duration, torch.zeros(1, 2, 1), censored=True)
    assert segments.log_z(p).item() == -INF
    assert segments.carry(p).eq(-INF).all()


def test_second_derivatives_of_impossible_sequences() -> None:
    """Zeros, as of chains, also where nothing in the batch is possible."""
    p = batch(2, 2, [3, 2])
    p.log_obs[:, 1] = -INF
    p, tensors = leaves(p)
    first = torch.autograd.grad(segments.log_z(p).sum(), tensors, create_graph=True)
    for grad in (*first, *torch.autograd.grad(sum((x**2).sum() for x in first), tensors)):
        assert (grad == 0).all()


def test_a_low_rank_move_whose_terms_differ_by_more_than_float64_holds() -> None:
    """The best segmentation takes it all the same: 1e-300 through the one rank, beside 1e300 through the other."""
    left = torch.tensor([[1e-300, 1e300], [1.0, 1.0]], dtype=torch.float64)
    right = torch.tensor([[0.0, 1.0], [1e-300, 0.0]], dtype=torch.float64)
    log_obs = torch.zeros(1, 2, 2, dtype=torch.float64)
    log_obs[0, 0, 1] = log_obs[0, 1, 0] = -1e6
    p = SegmentPotentials(
        torch.zeros(2, dtype=torch.float64), LowRank(left, right), torch.zeros(2, 1, dtype=torch.float64), log_obs
    )
    best = viterbi(p)
    assert best.path.tolist() == [[0, 1]]
    assert best.log_prob.item() == pytest.approx(2 * math.log(1e-300), rel=1e-12)
    states, _ = sample(p, generator=seeded(0))
    assert states.tolist() == [[0, 1]]
