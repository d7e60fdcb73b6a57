"""What holds for every semi-Markov chain, whatever its numbers are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold import Banded, ChainPotentials, Dense, LowRank, SegmentPotentials, UnsupportedError
from rankfold.recursions import chain, segments
from rankfold.recursions.segments.passes import forward
from rankfold.recursions.segments.potentials import validate
from rankfold.recursions.segments.soundness import far_from_underflow
from tests.recursions.build import INF, NAN, seeded
from tests.recursions.segment_batches import EXACT, batch, leaves, true_log_z

seeds = st.integers(0, 10**6)
flags = st.booleans()


@settings(max_examples=15)
@given(seed=seeds, zeros=flags, final=flags)
def test_segments_of_one_frame_are_a_chain(seed: int, zeros: bool, final: bool) -> None:
    p = batch(5, 1, [7, 1, 4], seed=seed, zeros=zeros, final=final)
    log_obs = p.log_obs + p.log_duration[:, 0]
    same = ChainPotentials(p.log_initial, p.transition, log_obs, p.log_final, p.lengths)
    torch.testing.assert_close(segments.log_z(p), chain.log_z(same), **EXACT)


def test_geometric_durations_are_self_loops() -> None:
    """A chain that stays with probability s is one of segments: geometric durations, other moves over 1 - s."""
    g = seeded(2)
    z, t = 4, 6
    moves = torch.softmax(torch.randn(z, z, generator=g, dtype=torch.float64), 1)
    stay = moves.diagonal()
    away = (moves - torch.diag(stay)) / (1 - stay)[:, None]
    # Of at least t frames: what lasts longer counts with the last column.
    log_duration = torch.arange(t) * stay.log()[:, None] + torch.log1p(-stay)[:, None]
    log_duration[:, -1] = (t - 1) * stay.log()
    log_obs = 2 * torch.randn(3, t, z, generator=g, dtype=torch.float64)
    log_initial = torch.log_softmax(torch.randn(z, generator=g, dtype=torch.float64), 0)
    lengths = torch.tensor([6, 1, 4])
    p = SegmentPotentials(log_initial, Dense(away), log_duration, log_obs, lengths=lengths, censored=True)
    expected = chain.log_z(ChainPotentials(log_initial, Dense(moves), log_obs, lengths=lengths))
    torch.testing.assert_close(segments.log_z(p), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=15)
@given(seed=seeds, d=st.sampled_from([1, 2, 5, 9]), length=st.integers(1, 7))
def test_all_segmentations_have_probability_one(seed: int, d: int, length: int) -> None:
    g = seeded(seed)
    log_duration, log_initial = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((5, d), (5,)))
    weight = torch.softmax(torch.randn(5, 5, generator=g, dtype=torch.float64), 1)
    p = SegmentPotentials(
        log_initial.log_softmax(0),
        Dense(weight),
        log_duration.log_softmax(1),
        torch.zeros(1, length, 5, dtype=torch.float64),
        censored=True,
    )
    torch.testing.assert_close(segments.log_z(p), torch.zeros(1, dtype=torch.float64), rtol=0.0, atol=1e-13)


@settings(max_examples=10)
@given(seed=seeds, extra=st.integers(1, 6))
def test_durations_longer_than_the_sequence_are_not_used(seed: int, extra: int) -> None:
    p = batch(3, 4, [4, 2], seed=seed)
    more = torch.cat([p.log_duration, torch.randn(3, extra, generator=seeded(seed), dtype=torch.float64)], 1)
    q, tensors = leaves(p._replace(log_duration=more))
    assert validate(q).longest == 4
    value = segments.log_z(q)
    assert (value == segments.log_z(p)).all()
    assert (torch.autograd.grad(value.sum(), tensors[1])[0][:, 4:] == 0).all()


def test_forbidden_moves() -> None:
    """Left to right: the same in a band as in a matrix with zeros; a state nobody may leave or reach."""
    g = seeded(4)
    band = torch.rand(4, 2, generator=g, dtype=torch.float64)
    banded = batch(4, 3, [5, 3], transition=Banded(band, 0))
    dense = banded._replace(transition=Dense(banded.transition.to_dense()))
    torch.testing.assert_close(segments.log_z(banded), segments.log_z(dense), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(segments.log_z(banded), true_log_z(banded), **EXACT)


@settings(max_examples=12)
@given(
    seed=seeds,
    d=st.sampled_from([1, 3, 9]),
    spread=st.sampled_from([2.0, 500.0]),
    zeros=flags,
    censored=flags,
    cuts=st.lists(st.integers(1, 5), min_size=2, max_size=4),
)
def test_stretches_add_up(seed: int, d: int, spread: float, zeros: bool, censored: bool, cuts: list[int]) -> None:
    """log Z, and its gradients in the last stretch, are those of the whole; the last lengths differ."""
    total = sum(cuts)
    p = batch(3, d, [total, total - cuts[-1] + 1], seed=seed, spread=spread, zeros=zeros, censored=censored)
    whole, tensors = leaves(p)
    expected = segments.log_z(whole)
    added, start, log_initial = torch.zeros(2, dtype=torch.float64), 0, p.log_initial
    for cut in cuts[:-1]:
        part = p._replace(
            log_initial=log_initial,
            log_obs=p.log_obs[:, start : start + cut],
            lengths=torch.tensor([cut, cut]),
            censored=True,
        )
        added += segments.log_z(part)
        log_initial, start = segments.carry(part), start + cut
        assert log_initial.shape == (2, d, 3)
    rest = p._replace(log_initial=log_initial, log_obs=p.log_obs[:, start:], lengths=torch.tensor([cuts[-1], 1]))
    rest, ours = leaves(rest)
    last = segments.log_z(rest)
    torch.testing.assert_close(added + last, expected, **EXACT)
    known = (expected > -INF).detach().double()
    obs = torch.autograd.grad(expected, tensors[2], known)[0][:, start:]
    grads = torch.autograd.grad(last, ours, known, retain_graph=True)
    torch.testing.assert_close(grads[2], obs, **EXACT)
    if spread < 10:
        plain = torch.autograd.grad(last, ours, known, create_graph=True)
        for one, other in zip(grads, plain, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-9, atol=1e-10)


def test_only_what_goes_on_is_carried() -> None:
    p = batch(2, 2, [3])
    with pytest.raises(UnsupportedError, match="censored=True"):
        segments.carry(p)
    with pytest.raises(UnsupportedError, match="log_final"):
        segments.carry(p._replace(censored=True, log_final=torch.zeros(2, dtype=torch.float64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_durations_that_nothing_can_close_yet(dtype: torch.dtype) -> None:
    """At least three frames: no segment ends at the first two, none fits into two frames."""
    p = batch(2, 4, [7, 2, 5], dtype=dtype, seed=3)
    p.log_duration[:, :2] = -INF
    value = segments.log_z(p)
    assert value[1] == -INF
    # Rounding of float32 logarithms of a few units.
    close = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else EXACT
    torch.testing.assert_close(value, true_log_z(p), **close)
    # Where nothing closes nothing is pushed, so nothing can be missing: no second look, also where none is possible.
    c = validate(p)
    assert far_from_underflow(c, forward(c, log=False)).tolist() == [True, True, True]


def test_what_is_carried_keeps_every_digit() -> None:
    """800 nats below is beyond float64, and 2,000 nats of the next stretch bring it back."""
    p = SegmentPotentials(
        torch.tensor([0.0, -800.0], dtype=torch.float64),
        Dense(torch.eye(2, dtype=torch.float64)),
        torch.zeros(2, 2, dtype=torch.float64),
        torch.zeros(1, 6, 2, dtype=torch.float64),
    )
    p.log_obs[0, 4, 0] = -2000.0
    first = p._replace(log_obs=p.log_obs[:, :4], censored=True)
    rest = p._replace(log_obs=p.log_obs[:, 4:], log_initial=segments.carry(first))
    together = segments.log_z(first) + segments.log_z(rest)
    torch.testing.assert_close(together, true_log_z(p._replace(lengths=torch.tensor([6]))), **EXACT)


def test_low_rank_takes_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the matrix was written out")

    for name in ("rows", "log_rows", "to_dense"):
        monkeypatch.setattr(LowRank, name, refuse)
    g = seeded(0)
    op = LowRank(*(torch.rand(63, 3, generator=g, dtype=torch.float64) for _ in range(2)))
    p, tensors = leaves(batch(63, 3, [5, 3], transition=op))
    torch.autograd.grad(segments.log_z(p).sum(), tensors)


def test_frames_beyond_a_length_are_not_carried() -> None:
    p = batch(3, 2, [5, 2])
    assert NAN not in segments.carry(p._replace(censored=True)).flatten().tolist()
