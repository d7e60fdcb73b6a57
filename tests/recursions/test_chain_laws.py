"""What holds for every chain, whatever its numbers are."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfold import Banded, ChainPotentials, Dense, LowRank, Operator, RowScaled, Sum, posterior
from rankfold.recursions import chain
from tests.folded import folded
from tests.operators.cases import CASES, Case
from tests.oracles import chain as oracle
from tests.recursions.build import (
    BY_NAME,
    INF,
    NAN,
    by_sequence,
    doubled,
    hidden_markov,
    leaves,
    potentials,
    seeded,
)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)

# float64, sums of at most a few hundred terms.
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def normalised_low_rank(z: int, r: int, g: torch.Generator) -> Operator:
    """Rows of left sum to 1, columns of right sum to 1: the product is a distribution over targets."""
    left = torch.randn(z, r, generator=g, dtype=torch.float64).softmax(-1)
    return LowRank(left, torch.randn(z, r, generator=g, dtype=torch.float64).softmax(0))


def normalised_banded(z: int, g: torch.Generator) -> Operator:
    band = Banded(torch.rand(z, 3, generator=g, dtype=torch.float64), -1)
    return RowScaled(band, 1 / band.to_dense().sum(-1))


NORMALISED: dict[str, Callable[[], Operator | None]] = {
    "dense": lambda: None,
    "low rank": lambda: normalised_low_rank(3, 2, seeded(1)),
    "banded": lambda: normalised_banded(3, seeded(2)),
    "mixture": lambda: Sum(
        [
            RowScaled(normalised_low_rank(3, 1, seeded(3)), torch.full((3,), 0.25, dtype=torch.float64)),
            RowScaled(normalised_banded(3, seeded(4)), torch.full((3,), 0.75, dtype=torch.float64)),
        ]
    ),
}


@pytest.mark.parametrize("name", NORMALISED)
@folded("n", [1, 2, 3, 4])
def test_the_probabilities_of_all_strings_of_one_length_sum_to_one(name: str, n: int) -> None:
    log_initial, transition, log_emission = hidden_markov(3, 3, seed=n, transition=NORMALISED[name]())
    strings = torch.tensor(list(itertools.product(range(3), repeat=n)))
    log_obs = log_emission.T[strings]  # "b t z"
    total = chain.log_z(ChainPotentials(log_initial, transition, log_obs)).exp().sum()
    assert abs(float(total) - 1) < 1e-10


def same_chain(p: ChainPotentials, q: ChainPotentials) -> None:
    torch.testing.assert_close(chain.log_z(q), chain.log_z(p), **EXACT)
    torch.testing.assert_close(posterior(q).state, posterior(p).state, **EXACT)


@settings(max_examples=10)
@given(seed=seeds, lengths=ragged, z=st.integers(1, 5))
def test_low_rank_at_full_rank_is_dense(seed: int, lengths: list[int], z: int) -> None:
    p = potentials(BY_NAME["dense"], z, lengths, seed=seed)
    (weight,) = p.transition.factors()
    same_chain(p, p._replace(transition=LowRank(weight, torch.eye(z, dtype=torch.float64))))
    same_chain(p, p._replace(transition=LowRank(torch.eye(z, dtype=torch.float64), weight.mT)))


@settings(max_examples=10)
@given(seed=seeds, lengths=ragged, z=st.integers(1, 5))
def test_a_band_as_wide_as_the_matrix_is_dense(seed: int, lengths: list[int], z: int) -> None:
    p = potentials(BY_NAME["dense"], z, lengths, seed=seed)
    (weight,) = p.transition.factors()
    band = torch.full((z, 2 * z - 1), NAN, dtype=torch.float64)  # cells outside the matrix are never read
    for source in range(z):
        band[source, z - 1 - source : 2 * z - 1 - source] = weight[source]
    same_chain(p, p._replace(transition=Banded(band, 1 - z)))


@every_case
@settings(max_examples=3)
@given(seed=seeds, lengths=ragged, z=st.integers(1, 4))
def test_scaled_and_log_arithmetic_agree(case: Case, seed: int, lengths: list[int], z: int) -> None:
    p = potentials(case, z, lengths, seed=seed, initial="b z", final="b z")
    at = leaves(p)
    scaled, log = chain.log_z(at.potentials), chain.log_z(at.potentials, "log")
    torch.testing.assert_close(scaled, log, **EXACT)
    by_scaled, by_log = torch.autograd.grad(scaled.sum(), at.tensors), torch.autograd.grad(log.sum(), at.tensors)
    for a, b in zip(by_scaled, by_log, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


# float32 messages carry a rounding error of 1e-7 a step, each of at most 4 steps.
MESSAGE = {torch.float32: {"rtol": 0.0, "atol": 1e-5}, torch.float64: EXACT}


@folded("arithmetic", ["scaled", "log"])
@folded("dtype", MESSAGE)
@every_case
def test_filtered_times_future_is_z_at_every_position(case: Case, dtype: torch.dtype, arithmetic: str) -> None:
    lengths = [4, 1, 3, 2]
    p = potentials(case, 3, lengths, seed=10, dtype=dtype, final="z")
    log_z = chain.log_z(p)
    past, future = chain.messages(p, arithmetic)
    assert past.mantissa.dtype == future.mantissa.dtype == dtype
    assert past.log_scale.dtype == future.log_scale.dtype == torch.float64
    both = torch.logsumexp(past.log() + future.log(), -1)
    for i, length in enumerate(lengths):
        torch.testing.assert_close(both[i, :length], log_z[i].expand(length), **MESSAGE[dtype])
        for message in (past, future):
            assert (message.mantissa[i, length:] == 0).all()
            assert (message.log_scale[i, length:] == 0).all()


@every_case
def test_messages_are_those_of_prefixes_and_suffixes(case: Case) -> None:
    lengths = [4, 2, 3]
    p = doubled(potentials(case, 3, lengths, seed=12, initial="b z", final="b z"))
    assert p.log_final is not None
    past, future = (message.log() for message in chain.messages(p))
    dense = p.transition.to_dense()
    for i, length in enumerate(lengths):
        for t in range(length):
            for z in range(3):
                here = torch.full((3,), -INF, dtype=torch.float64)
                here[z] = 0.0
                before = oracle.log_z(
                    p.log_initial[i].tolist(), dense.tolist(), p.log_obs[i, : t + 1].tolist(), here.tolist()
                )
                missing = [[0.0] * 3, *p.log_obs[i, t + 1 : length].tolist()]
                after = oracle.log_z(here.tolist(), dense.tolist(), missing, p.log_final[i].tolist())
                assert float(past[i, t, z]) == pytest.approx(before, rel=1e-10, abs=1e-10)
                assert float(future[i, t, z]) == pytest.approx(after, rel=1e-10, abs=1e-10)


@folded("wide", [False, True])
def test_messages_are_differentiable(wide: bool) -> None:
    """log sum_z filtered future is log Z at every position, so its gradient is the posterior."""
    p = potentials(BY_NAME["low_rank_2"], 3, [4, 2], seed=13, final="z", zeros=False)
    if wide:  # on the log rung
        log_obs = p.log_obs.clone()
        log_obs[0, 0, 0], log_obs[0, 2, 0] = 800.0, -800.0
        p = p._replace(log_obs=log_obs)
    at = leaves(p)
    past, future = chain.messages(at.potentials)
    total = sum(
        (past.mantissa[i, 1] * future.mantissa[i, 1]).sum().log() + past.log_scale[i, 1] + future.log_scale[i, 1]
        for i in range(2)
    )
    found = torch.autograd.grad(total, at.tensors)
    expected = torch.autograd.grad(chain.log_z(at.potentials).sum(), at.tensors)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def split(p: ChainPotentials, at: int) -> tuple[ChainPotentials, ChainPotentials, Tensor]:
    """The first `at` positions, and of the sequences that go on the rest, to be given a log_initial."""
    assert p.lengths is not None
    longer = p.lengths > at
    first = p._replace(log_obs=p.log_obs[:, :at], lengths=p.lengths.clamp(max=at), log_final=None)
    second = p._replace(log_obs=p.log_obs[longer, at:], lengths=p.lengths[longer] - at)
    return first, second, longer


# Each stretch rounds its own messages and the carried state: float32 1e-7 a step, float64 far below 1e-10.
STRETCHES = {torch.float32: {"rtol": 0.0, "atol": 1e-5}, torch.float64: EXACT}


@folded("dtype", STRETCHES)
@folded("at", [1, 2, 3])
@every_case
def test_two_stretches_add_up_to_the_whole(case: Case, at: int, dtype: torch.dtype) -> None:
    """Ragged: some sequences end in the first stretch. Some are dead there, some only later."""
    p = potentials(case, 3, [4, 1, 3, 4, 2], seed=14, dtype=dtype, initial="b z", zeros=False)
    dead = p.log_obs.clone()
    dead[2, 0], dead[3, 3] = -INF, -INF
    p = p._replace(log_obs=dead)
    first, second, longer = split(p, at)
    carried = chain.carry(first)
    assert carried.dtype == dtype
    assert not carried.requires_grad
    total = chain.log_z(first)
    total[longer] += chain.log_z(second._replace(log_initial=carried[longer]))
    torch.testing.assert_close(total, chain.log_z(p), **STRETCHES[dtype])
    assert (carried[2] == -INF).all()


def test_a_long_stream_in_stretches_in_float32() -> None:
    g = seeded(15)
    weight = torch.rand(5, 5, generator=g).softmax(-1)
    log_obs = 3 * torch.randn(2, 400, 5, generator=g)
    whole = ChainPotentials(torch.zeros(5), Dense(weight), log_obs)
    log_initial, total = torch.zeros(2, 5), torch.zeros(2, dtype=torch.float64)
    for part in log_obs.split(7, 1):
        p = ChainPotentials(log_initial, Dense(weight), part)
        total += chain.log_z(p)
        log_initial = chain.carry(p)
    # 58 stretches whose carried states are rounded to float32 (6e-8 of logs below 20) add up to below 1e-4.
    torch.testing.assert_close(total, chain.log_z(whole), rtol=0.0, atol=1e-4)


@every_case
def test_carry_is_the_predicted_state_of_the_enumeration(case: Case) -> None:
    lengths = [3, 1, 2]
    p = potentials(case, 3, lengths, seed=16)
    carried = chain.carry(p)
    posterior = by_sequence(oracle.posterior, p)
    dense = p.transition.to_dense()
    for i in range(3):
        expected = (torch.tensor(posterior[i][-1], dtype=torch.float64) @ dense).log()
        torch.testing.assert_close(carried[i], expected, **EXACT)


def test_padding_is_not_read_by_a_stretch() -> None:
    p = potentials(BY_NAME["banded_near"], 4, [4, 2, 3], seed=17, zeros=False)
    filled = p._replace(log_obs=torch.where(p.log_obs.isnan(), 3.0, p.log_obs))
    assert torch.equal(chain.carry(p), chain.carry(filled))
