"""Filtering at once and step by step, and predictions, against the enumeration of prefixes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfold import ChainPotentials, Dense, SegmentPotentials, ShapeError, UnsupportedError
from rankfold.decoding import online
from rankfold.decoding.online import FilterState, predict, step
from rankfold.decoding.online import filter as filter_
from rankfold.decoding.posterior import posterior
from rankfold.recursions import segments
from rankfold.recursions.chain import advance, carry, log_z
from tests.decoding.build import words_to_potentials
from tests.operators.cases import CASES, Case
from tests.oracles import chain as oracle
from tests.recursions import segment_batches
from tests.recursions.build import BY_NAME, INF, as_lists, hidden_markov, potentials

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)

# float64, at most 256 terms; float32 rounds each of four steps at 6e-8, and logs of up to 40 nats to 2e-6.
EXACT = {"rtol": 1e-10, "atol": 1e-10}
SINGLE = {"rtol": 0.0, "atol": 2e-5}


def log_last(p: ChainPotentials, i: int, length: int) -> list[float]:
    """log p(z_t | x_1..t) at the end of a prefix; -inf throughout where the prefix is impossible."""
    prefix = as_lists(p, i, length)
    return [oracle.log(share) for share in oracle.posterior(**prefix)[-1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_case
@settings(max_examples=3)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged)
def test_filter_is_the_enumeration_of_prefixes(
    case: Case, dtype: torch.dtype, seed: int, z: int, lengths: list[int]
) -> None:
    p = potentials(case, z, lengths, seed=seed, dtype=dtype, initial="b z")
    found = filter_(p)
    close = EXACT if dtype == torch.float64 else SINGLE
    assert found.log_filtered.dtype == dtype
    assert found.log_z.dtype == torch.float64
    for i, length in enumerate(lengths):
        for t in range(length):
            expected = torch.tensor(log_last(p, i, t + 1), dtype=torch.float64)
            torch.testing.assert_close(found.log_filtered[i, t].double(), expected, **close)
            so_far = torch.tensor(oracle.log_z(**as_lists(p, i, t + 1)), dtype=torch.float64)
            torch.testing.assert_close(found.log_z[i, t], so_far, **close)
        assert (found.log_filtered[i, length:] == -INF).all()
        assert (found.log_z[i, length:] == found.log_z[i, length - 1]).all()


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_segments_are_filtered_as_their_prefixes(dtype: torch.dtype, zeros: bool) -> None:
    """At each frame the posterior of the prefix that ends there, whose last segment may go on."""
    lengths = (5, 1, 4)
    p = segment_batches.batch(3, 3, lengths, seed=7, zeros=zeros, final=True)
    tables = {name: x.to(dtype) for name in p._fields if isinstance(x := getattr(p, name), torch.Tensor)}
    transition = p.transition.with_factors(*(x.to(dtype) for x in p.transition.factors()))
    p = p._replace(**{**tables, "lengths": torch.tensor(lengths), "transition": transition})
    found = filter_(p)
    close = EXACT if dtype == torch.float64 else SINGLE
    for i, length in enumerate(lengths):
        for t in range(length):
            one = p._replace(log_obs=p.log_obs[i : i + 1, : t + 1], lengths=None, log_final=None, censored=True)
            state, total = posterior(one).state[0, -1], segments.log_z(one)[0]
            torch.testing.assert_close(found.log_filtered[i, t].exp(), state, **close)
            torch.testing.assert_close(found.log_z[i, t], total, **close)
        assert (found.log_filtered[i, length:] == -INF).all()
        assert (found.log_z[i, length:] == found.log_z[i, length - 1]).all()


def test_segments_are_filtered_as_step_by_step() -> None:
    """Carried in, ragged, with zeros and a range of 1000 nats: each frame as if it were the last one."""
    for seed in range(16):
        g = torch.Generator().manual_seed(seed)
        states, longest, span = 2 + seed % 3, 1 + seed % 5, (3.0, 1000.0)[seed // 2 % 2]

        def logs(*shape: int, g: torch.Generator = g, span: float = span) -> Tensor:
            x = torch.rand(*shape, generator=g, dtype=torch.float64)
            return torch.where(x < 0.15, float("-inf"), -span * x)

        weight = torch.rand(states, states, generator=g, dtype=torch.float64)
        transition = Dense(torch.where(weight < 0.3, 0.0, weight))
        initial = logs(3, longest, states) if seed % 2 else logs(states)
        log_duration, log_obs, lengths = logs(states, longest), logs(3, 8, states), torch.tensor([8, 5, 1])
        found = filter_(SegmentPotentials(initial, transition, log_duration, log_obs, lengths=lengths))
        for b, length in enumerate(lengths.tolist()):
            state, total = initial[b : b + 1] if initial.ndim == 3 else initial, 0.0
            for t in range(length):
                here = log_obs[b : b + 1, t : t + 1]
                ahead = online.advance(SegmentPotentials(state, transition, log_duration, here))
                state, total = ahead.log_next, total + float(ahead.log_z)
                torch.testing.assert_close(found.log_filtered[b, t], ahead.log_filtered[0], rtol=1e-9, atol=1e-9)
                torch.testing.assert_close(float(found.log_z[b, t]), total, rtol=1e-10, atol=1e-10)


def test_the_end_is_not_filtered() -> None:
    p = potentials(BY_NAME["dense"], 3, [3, 2], seed=100, final="z")
    with_end, without = filter_(p), filter_(p._replace(log_final=None))
    assert torch.equal(with_end.log_filtered, without.log_filtered)
    assert torch.equal(with_end.log_z, without.log_z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_case
def test_step_by_step_is_all_at_once(case: Case, dtype: torch.dtype) -> None:
    p = potentials(case, 3, [4, 4, 4], seed=101, dtype=dtype, initial="b z")
    whole = filter_(p)
    close = EXACT if dtype == torch.float64 else SINGLE
    state = FilterState.start(p.log_initial)
    assert state.log_filtered is None
    assert (state.log_z == 0).all()
    for t in range(4):
        state = step(state, p.transition, p.log_obs[:, t])
        assert state.log_filtered is not None
        torch.testing.assert_close(state.log_filtered, whole.log_filtered[:, t], **close)
        torch.testing.assert_close(state.log_z, whole.log_z[:, t], **close)
    torch.testing.assert_close(state.log_next, carry(p), **close)
    torch.testing.assert_close(state.log_z, log_z(p), **close)


LEADS = {
    torch.float32: [(-100.0, 200.0), (-300.0, 500.0), (-95.0, 190.0), (-1000.0, 2000.0)],
    torch.float64: [(-740.0, 1480.0), (-800.0, 1600.0), (-2000.0, 4000.0)],
}


@pytest.mark.parametrize(("dtype", "lead"), [(dtype, lead) for dtype in LEADS for lead in LEADS[dtype]])
def test_a_state_far_below_may_still_win(dtype: torch.dtype, lead: tuple[float, float]) -> None:
    """Two states that never meet: what the first stretch nearly rules out, the second brings back."""
    log_obs = torch.tensor([[[0.0, x] for x in lead]], dtype=dtype)
    p = ChainPotentials(torch.zeros(2, dtype=dtype), Dense(torch.eye(2, dtype=dtype)), log_obs)
    first = p._replace(log_obs=log_obs[:, :1])
    below = torch.tensor([0.0, lead[0]], dtype=dtype)
    # Logs of up to 4000 nats in the potentials' dtype: float32 holds them to 1e-4, float64 to 1e-12.
    close = {"rtol": 0.0, "atol": 1e-3 if dtype == torch.float32 else 1e-9}
    torch.testing.assert_close(filter_(first).log_filtered[0, 0], below, **close)
    torch.testing.assert_close(advance(first).log_filtered[0], below, **close)
    torch.testing.assert_close(carry(first)[0], below, **close)
    total = log_z(first) + log_z(p._replace(log_initial=carry(first), log_obs=log_obs[:, 1:]))
    torch.testing.assert_close(total, log_z(p), **close)
    state = FilterState.start(p.log_initial[None])
    for t in range(2):
        state = step(state, p.transition, log_obs[:, t])
    torch.testing.assert_close(state.log_z, log_z(p), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [-350.0, -800.0])
def test_log_weights_far_apart_are_carried(far: float, dtype: torch.dtype) -> None:
    """State 1 is reached only through a weight that linear arithmetic does not hold, and then it is all there is."""
    log_weight = torch.tensor([[0.0, far], [-INF, 0.0]], dtype=dtype)
    log_obs = torch.tensor([[[0.0, -INF], [0.0, 0.0], [-INF, 0.0]]], dtype=dtype)
    p = ChainPotentials(torch.zeros(2, dtype=dtype), Dense.from_log(log_weight), log_obs)
    expected = torch.tensor([0.0, far], dtype=dtype)
    first = p._replace(log_obs=log_obs[:, :1])
    torch.testing.assert_close(carry(first)[0], expected, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(filter_(p).log_filtered[0, 1], expected, rtol=0.0, atol=1e-4)
    # Both moves, 0 -> 1 at once or after a stay, end in state 1.
    assert float(filter_(p).log_z[0, 2]) == pytest.approx(far + math.log(2), rel=0.0, abs=1e-4)
    state = FilterState.start(p.log_initial[None])
    for t in range(3):
        state = step(state, p.transition, log_obs[:, t])
    assert float(state.log_z) == pytest.approx(far + math.log(2), rel=0.0, abs=1e-4)


def test_impossible_streams_stay_impossible() -> None:
    p = potentials(BY_NAME["dense"], 3, [3, 3], seed=102, zeros=False)
    log_obs = p.log_obs.clone()
    log_obs[0, 1] = -INF
    found = filter_(p._replace(log_obs=log_obs))
    assert found.log_z[0].tolist()[1:] == [-INF, -INF]
    assert found.log_z[0, 0] > -INF
    assert (found.log_filtered[0, 1:] == -INF).all()
    alone = filter_(p)
    torch.testing.assert_close(found.log_filtered[1], alone.log_filtered[1], **EXACT)
    state = FilterState.start(p.log_initial.expand(2, 3))
    for t in range(3):
        state = step(state, p.transition, log_obs[:, t])
    assert state.log_z[0] == -INF
    assert (state.log_next[0] == -INF).all()
    torch.testing.assert_close(state.log_z[1], alone.log_z[1, -1], **EXACT)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_predictions_are_ratios_of_the_enumeration(length: int) -> None:
    log_initial, transition, log_emission = hidden_markov(3, 4, seed=103)
    prefixes = [[0, 1, 3][:length], [2, 2, 0][:length]]
    p = words_to_potentials(log_initial, transition, log_emission, prefixes)
    found = predict(carry(p), log_emission)
    for i, prefix in enumerate(prefixes):
        before = oracle.log_z(**as_lists(p, i))
        for word in range(4):
            longer = words_to_potentials(log_initial, transition, log_emission, [[*prefix, word]])
            expected = oracle.log_z(**as_lists(longer, 0)) - before
            assert float(found[i, word]) == pytest.approx(expected, rel=1e-10, abs=1e-10)
    torch.testing.assert_close(torch.logsumexp(found, -1), torch.zeros(2, dtype=torch.float64), **EXACT)


def test_the_first_word_is_predicted_from_the_initial_state() -> None:
    log_initial, _, log_emission = hidden_markov(3, 4, seed=104)
    found = predict(FilterState.start(log_initial[None]).log_next, log_emission)
    expected = (log_initial.exp() @ log_emission.exp()).log()
    torch.testing.assert_close(found[0], expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [-90.0, -95.0, -100.0, -102.0, -700.0, -740.0, -744.0, -1000.0])
def test_predictions_of_words_hardly_ever_seen(far: float, dtype: torch.dtype) -> None:
    """One word is far below the other in every state; another state is far below the first."""
    log_emission = torch.tensor([[0.0, far, -INF], [0.5, far + 1, -2.0]], dtype=dtype)
    log_next = torch.tensor([[0.0, -1.0], [0.0, far]], dtype=dtype)
    expected = torch.logsumexp(log_next.double()[:, :, None] + log_emission.double()[None], 1)
    for words in (slice(0, 2), slice(0, 3)):  # without and with a word that the first state cannot emit
        found = predict(log_next, log_emission[:, words])
        assert found.dtype == dtype
        # float32 holds logs of 1000 to 6e-5.
        atol = 2e-4 if dtype == torch.float32 else 1e-10
        torch.testing.assert_close(found.double(), expected[:, words], rtol=0.0, atol=atol)


def test_predictions_of_impossible_streams() -> None:
    log_next = torch.tensor([[-INF, -INF], [0.0, -INF]])
    log_emission = torch.tensor([[-math.log(2), -math.log(2)], [0.0, -INF]])
    found = predict(log_next, log_emission)
    assert (found[0] == -INF).all()
    torch.testing.assert_close(found[1], log_emission[0], rtol=0.0, atol=1e-6)


def test_what_a_stream_refuses() -> None:
    transition = Dense(torch.ones(3, 3))
    with pytest.raises(ShapeError, match=r'log_initial has shape \(3,\).*"b z"(.|\n)*each stream'):
        FilterState.start(torch.zeros(3))
    state = FilterState.start(torch.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"log_obs has shape \(2, 4\).*z = 3"):
        step(state, transition, torch.zeros(2, 4))
    with pytest.raises(ShapeError, match=r"log_obs has shape \(1, 3\).*b = 2"):
        step(state, transition, torch.zeros(1, 3))
    with pytest.raises(UnsupportedError, match="transition must be an operator"):
        step(state, torch.ones(3, 3), torch.zeros(2, 3))
    with pytest.raises(UnsupportedError, match=r"log_initial is torch.float32, but log_obs is torch.float64"):
        step(state, transition, torch.zeros(2, 3, dtype=torch.float64))


def test_what_predictions_refuse() -> None:
    with pytest.raises(ShapeError, match=r'log_next has shape \(3,\).*"b z"'):
        predict(torch.zeros(3), torch.zeros(3, 2))
    with pytest.raises(ShapeError, match=r"log_emission has shape \(4, 2\).*z = 3"):
        predict(torch.zeros(1, 3), torch.zeros(4, 2))
    with pytest.raises(UnsupportedError, match=r"log_emission is torch.float64, but log_next is torch.float32"):
        predict(torch.zeros(1, 3), torch.zeros(3, 2, dtype=torch.float64))
