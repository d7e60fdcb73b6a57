"""Posteriors, counts, best and sampled segmentations against the enumeration of all of them."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold import (
    Dense,
    DomainError,
    LowRank,
    UnsupportedError,
    expected_counts,
    posterior,
    sample,
    segment_table,
    viterbi,
)
from rankfold.decoding.viterbi import BestPath
from rankfold.recursions import segments as semi_markov
from tests.decoding.build import path_probabilities
from tests.decoding.test_viterbi import NoMaximum
from tests.operators.cases import CASES, Case
from tests.oracles import semi_markov as oracle
from tests.recursions.build import INF, potentials, seeded
from tests.recursions.segment_batches import EXACT, batch, enumerated, padded, true_log_z

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


@settings(max_examples=15)
@given(problem=problems)
def test_posteriors_and_counts(problem: dict) -> None:
    p = batch(**problem)
    found = enumerated(p)
    z, d = p.log_duration.shape
    sizes = [(one, int(n), z) for one, n in zip(found, p.lengths, strict=True)]
    probability = posterior(p)
    frames = p.log_obs.shape[1]
    torch.testing.assert_close(probability.state, padded([oracle.states(*s) for s in sizes], frames), **EXACT)
    starts = padded([oracle.starts(*s) for s in sizes], frames)
    torch.testing.assert_close(probability.start, starts, **EXACT)
    torch.testing.assert_close(probability.boundary, starts.sum(-1), **EXACT)
    ends = probability.end.sum(-1)[:, :-1] * (torch.arange(1, frames) < p.lengths[:, None])
    torch.testing.assert_close(ends, probability.boundary[:, 1:], **EXACT)
    counts = expected_counts(p)
    durations = torch.tensor([oracle.durations(one, z, d) for one in found], dtype=torch.float64).sum(0)
    torch.testing.assert_close(counts.duration, durations, **EXACT)
    moves = torch.tensor([oracle.moves(one, z) for one in found], dtype=torch.float64).sum(0)
    torch.testing.assert_close(counts.transition[0], moves, **EXACT)
    torch.testing.assert_close(counts.initial, starts[:, 0].sum(0), **EXACT)
    torch.testing.assert_close(counts.state, probability.state, **EXACT)


def summed(found: dict[oracle.Segmentation, float], key_of: Callable[[oracle.Segmentation], Any]) -> dict[Any, float]:
    """Log-weights of segmentations that share a key, summed."""
    groups: dict[Any, list[float]] = {}
    for key, weight in found.items():
        groups.setdefault(key_of(key), []).append(weight)
    return {key: oracle.log_sum_exp(weights) for key, weights in groups.items()}


@settings(max_examples=15)
@given(problem=problems)
def test_the_best_segmentation_and_its_table(problem: dict) -> None:
    p = batch(**problem)
    found = enumerated(p)
    best = viterbi(p)
    table = segment_table(p)
    log_z = true_log_z(p)
    for i, one in enumerate(found):
        length = int(p.lengths[i])
        # Where the end may cut the last segment, all its durations count together.
        grouped = summed(one, lambda key: tuple(segment[:3] for segment in key))
        weight = max(grouped.values())
        assert float(best.log_prob[i]) == pytest.approx(weight, rel=1e-12, abs=1e-12)
        assert (best.path[i, length:] == -1).all()
        assert not best.begins[i, length:].any()
        if weight == -INF:
            assert (best.path[i] == -1).all()
            assert table[i] == []
            continue
        cuts = [(row.start, row.end, row.state) for row in table[i]]
        assert cuts == best.segments[i]
        assert [cut[0] for cut in cuts] == best.begins[i].nonzero()[:, 0].tolist()
        assert grouped[tuple(cuts)] == pytest.approx(weight, rel=1e-12, abs=1e-12)
        for row in table[i]:
            share = oracle.log_sum_exp([w for key, w in one.items() if any(s[:3] == row[:3] for s in key)])
            assert row.posterior == pytest.approx(math.exp(share - float(log_z[i])), rel=1e-9)
            frames = posterior(p).state[i, row.start : row.end, row.state]
            assert row.frames == pytest.approx(float(frames.mean()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=4)
@given(
    seed=st.integers(0, 10**6),
    z=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 5), min_size=3, max_size=4),
    final=st.sampled_from(["none", "b z"]),
    spread=st.sampled_from([1.0, 300.0]),
    best=flags,
)
def test_the_table_of_a_chain(
    case: Case, dtype: torch.dtype, seed: int, z: int, lengths: list[int], final: str, spread: float, best: bool
) -> None:
    """Stretches of the best path, or of any other: the probability of all paths that stay as long, before and after."""
    p = potentials(case, z, lengths, seed=seed, dtype=dtype, initial="b z", final=final)
    p = p._replace(log_obs=spread * p.log_obs)
    path = viterbi(p).path
    if not best:
        path = torch.where(path < 0, -1, torch.randint(z, path.shape, generator=seeded(seed)))
    table = segment_table(p, BestPath(path, torch.zeros(len(path))))
    for i, rows in enumerate(table):
        length = lengths[i] if path[i, 0] >= 0 else 0
        assert [row.state for row in rows for _ in range(row.start, row.end)] == path[i, :length].tolist()
        assert all(before.state != after.state for before, after in itertools.pairwise(rows))
        shares = path_probabilities(p, i) if rows else {}
        for row in rows:
            inside = [(share, other[row.start : row.end].count(row.state)) for other, share in shares.items()]
            frames = row.end - row.start
            # Logarithms of some 1,000 nats, of operators in float32 some 1e-6 apart; so is what cancels in ratios.
            close = {"rel": 1e-10, "abs": 1e-12} if dtype == torch.float64 else {"abs": 1e-4}
            assert row.posterior == pytest.approx(math.fsum(x for x, num in inside if num == frames), **close)
            assert row.frames == pytest.approx(math.fsum(x * num for x, num in inside) / frames, **close)


@pytest.mark.parametrize("seed", range(4))
def test_posteriors_of_segments_where_float32_has_few_digits_left(seed: int) -> None:
    """The state all sequences begin in lies 1e5 nats below the others: a Z of float32 is good to a hundredth of one."""
    log_obs = torch.randn(1, 5, 3, generator=seeded(seed))
    log_obs[..., 0] -= 1e5 * (0.5 + 0.1 * seed)
    log_duration = torch.full((3, 6), -INF)
    log_duration[0, 3:5], log_duration[1, 3], log_duration[2, 5] = math.log(0.5), 0.0, 0.0
    moves = (1 - torch.eye(3)) / 2
    start = torch.tensor([0.0, -INF, -INF])
    (one,) = segment_table(semi_markov.SegmentPotentials(start, Dense(moves), log_duration, log_obs))
    wide = (x.double() for x in (start, moves, log_duration, log_obs))
    start, moves, log_duration, log_obs = wide
    (other,) = segment_table(semi_markov.SegmentPotentials(start, Dense(moves), log_duration, log_obs))
    assert [x[:3] for x in one] == [x[:3] for x in other]
    assert [x.posterior for x in one] == pytest.approx([x.posterior for x in other], rel=1e-9)
    assert [x.frames for x in one] == pytest.approx([x.frames for x in other], rel=1e-9)


def test_low_rank_has_the_best_segmentation_of_its_matrix() -> None:
    g = seeded(3)
    left, right = (torch.rand(17, 3, generator=g, dtype=torch.float64) for _ in range(2))
    low = viterbi(batch(17, 5, [9, 4], transition=LowRank(left, right)))
    dense = viterbi(batch(17, 5, [9, 4], transition=Dense(left @ right.mT)))
    assert (low.path == dense.path).all()
    torch.testing.assert_close(low.log_prob, dense.log_prob, rtol=1e-12, atol=0.0)
    assert "low rank by blocks" in low.plan
    assert "dense" in dense.plan


@pytest.mark.parametrize("censored", [False, True])
def test_samples_have_the_posterior(censored: bool) -> None:
    p = batch(2, 3, [3, 2], seed=4, censored=censored)
    p.log_obs[1, :, 0] = -INF
    number = 20_000
    states, begins = sample(p, num_samples=number, generator=seeded(0))
    assert states.shape == (number, 2, 3)
    for i, one in enumerate(enumerated(p)):
        length = int(p.lengths[i])
        assert (states[:, i, length:] == -1).all()
        total = oracle.log_z(one)
        grouped = summed(one, lambda key: tuple(segment[:3] for segment in key))
        truth = {cuts: math.exp(weight - total) for cuts, weight in grouped.items() if weight > -INF}
        seen: dict[tuple, int] = {}
        for row, begin in zip(states[:, i, :length].tolist(), begins[:, i, :length].tolist(), strict=True):
            starts = [t for t, flag in enumerate(begin) if flag]
            cuts = tuple((a, b, row[a]) for a, b in itertools.pairwise([*starts, length]))
            seen[cuts] = seen.get(cuts, 0) + 1
        assert set(seen) <= set(truth)
        for cuts, share in truth.items():
            # Five standard deviations of a share of 20,000 draws.
            spread = 5 * (share * (1 - share) / number) ** 0.5 + 1e-4
            assert seen.get(cuts, 0) / number == pytest.approx(share, abs=spread)


def test_after_a_border() -> None:
    """A stretch that goes on from another has the posteriors, the best segments and the samples of the whole."""
    p = batch(3, 4, [7, 7], seed=8, censored=True)
    first = p._replace(log_obs=p.log_obs[:, :4], lengths=torch.tensor([4, 4]))
    rest = p._replace(
        log_initial=semi_markov.carry(first), log_obs=p.log_obs[:, 4:], lengths=torch.tensor([3, 3]), censored=False
    )
    whole = p._replace(censored=False)
    for one, other in zip(posterior(rest), posterior(whole), strict=True):
        torch.testing.assert_close(one, other[:, 4:], **EXACT)
    # The best of a stretch: what was carried in is summed over all that lies before its open segment.
    best = viterbi(rest)
    for i, one in enumerate(enumerated(whole)):
        grouped = summed(one, lambda key: tuple(segment for segment in key if segment[1] >= 4))
        weight = max(grouped.values())
        assert float(best.log_prob[i] + semi_markov.log_z(first)[i]) == pytest.approx(weight, rel=1e-10)
        (key,) = (key for key, value in grouped.items() if value == weight)
        assert best.begins[i].nonzero()[:, 0].tolist() == [s[0] - 4 for s in key if s[0] >= 4]
        assert best.path[i].tolist() == [s[2] for s in key for t in range(s[0], s[1]) if t >= 4]
    states, begins = sample(rest, num_samples=20_000, generator=seeded(1))
    truth = posterior(whole)
    share = torch.nn.functional.one_hot(states, 3).double().mean(0)
    torch.testing.assert_close(share, truth.state[:, 4:], rtol=0.0, atol=0.02)  # 5 standard deviations: 0.018
    torch.testing.assert_close(begins.double().mean(0), truth.boundary[:, 4:], rtol=0.0, atol=0.02)
    assert expected_counts(rest).initial.eq(0).all()
    table = segment_table(rest)
    assert table[0][0].start == 0
    assert all(0.0 < row.posterior <= 1.0 for row in table[0])


def test_one_sample_and_impossible_sequences() -> None:
    p = batch(2, 2, [4, 3], seed=1)
    p.log_obs[1, 1] = -INF
    states, begins = sample(p, generator=seeded(0))
    assert states.shape == begins.shape == (2, 4)
    assert (states[1] == -1).all()
    assert not begins[1].any()
    assert begins[0, 0]
    assert posterior(p).state[1].eq(0).all()


def test_what_is_refused() -> None:
    p = batch(2, 2, [3])
    with pytest.raises(DomainError, match="num_samples is 0"):
        sample(p, num_samples=0)
    with pytest.raises(UnsupportedError, match=r"NoMaximum.*no push_max"):
        viterbi(p._replace(transition=NoMaximum(p.transition)))
