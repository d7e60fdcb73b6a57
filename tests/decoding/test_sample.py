"""Sampled paths have the frequencies of the enumeration."""

import math

import pytest
import torch

from rankfold import ChainPotentials, Dense, DomainError, sample
from rankfold.kernels import dispatch
from tests.decoding.build import path_probabilities
from tests.recursions.build import BY_NAME, INF, potentials, seeded

SAMPLES = 20_000


def excess(counts: dict[tuple[int, ...], int], expected: dict[tuple[int, ...], float], num: int) -> tuple[float, int]:
    """The chi-square statistic and its degrees of freedom; paths expected less than 5 times are one class."""
    classes: list[tuple[int, float]] = []
    rare = [0, 0.0]
    for path, probability in expected.items():
        seen = counts.get(path, 0)
        if probability * num >= 5:
            classes.append((seen, probability * num))
        else:
            rare = [rare[0] + seen, rare[1] + probability * num]
    if rare[1] > 0.5:
        classes.append((int(rare[0]), rare[1]))
    return sum((seen - mean) ** 2 / mean for seen, mean in classes), len(classes) - 1


@pytest.mark.parametrize("has_numba", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["dense", "low_rank_2_zeros", "low_rank_log", "banded_near", "sum", "row_scaled"])
def test_frequencies_are_probabilities(
    name: str, dtype: torch.dtype, has_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_numba:
        monkeypatch.setattr(dispatch, "has_numba", lambda: False)
    lengths = [3, 2, 1]
    p = potentials(BY_NAME[name], 3, lengths, seed=80, dtype=dtype, initial="b z", final="z", zeros=False)
    paths = sample(p, num_samples=SAMPLES, generator=seeded(81)).path
    assert paths.shape == (SAMPLES, 3, 3)
    for i, length in enumerate(lengths):
        expected = path_probabilities(p, i)
        unique, counts = paths[:, i, :length].unique(dim=0, return_counts=True)
        seen = {tuple(path.tolist()): int(count) for path, count in zip(unique, counts, strict=True)}
        assert all(expected[path] > 0 for path in seen)
        statistic, freedom = excess(seen, expected, SAMPLES)
        # Mean `freedom`, variance twice that: six standard deviations, from a fixed seed.
        assert statistic <= freedom + 6 * math.sqrt(2 * max(freedom, 1))
        assert (paths[:, i, length:] == -1).all()


def test_the_future_counts() -> None:
    """Both first states are equally likely at first; the second observation decides between them."""
    log_obs = torch.tensor([[[0.0, 0.0], [0.0, -INF]]])
    p = ChainPotentials(torch.zeros(2), Dense(torch.eye(2)), log_obs)
    paths = sample(p, num_samples=200, generator=seeded(82)).path
    assert (paths == 0).all()


def test_the_end_counts() -> None:
    p = ChainPotentials(torch.zeros(2), Dense(torch.eye(2)), torch.zeros(1, 3, 2), torch.tensor([-INF, 0.0]))
    assert (sample(p, num_samples=200, generator=seeded(83)).path == 1).all()


def test_a_winner_that_float32_loses_on_the_way() -> None:
    log_obs = torch.tensor([[[0.0, x] for x in (-100.0, 200.0, -90.0)]])
    p = ChainPotentials(torch.zeros(2), Dense(torch.eye(2)), log_obs)
    paths = sample(p, num_samples=500, generator=seeded(84)).path
    # State 1 has e10 / (1 + e10) of the mass: 5e-5 of the samples may differ, none of 500 should.
    assert (paths == 1).all()


def test_samples_are_independent_of_each_other() -> None:
    """With two fair states, two samples of a sequence agree half of the time; so do two sequences."""
    p = ChainPotentials(torch.zeros(2), Dense(torch.ones(2, 2)), torch.zeros(2, 1, 2))
    paths = sample(p, num_samples=SAMPLES, generator=seeded(85)).path[..., 0]
    agree = [(paths[0::2] == paths[1::2]).double().mean(), (paths[:, 0] == paths[:, 1]).double().mean()]
    # Standard deviation 0.005 at most; six of them.
    assert all(abs(float(share) - 0.5) < 0.03 for share in agree)


def test_the_seed_decides() -> None:
    p = potentials(BY_NAME["dense"], 3, [4, 3, 4], seed=86, zeros=False)
    first = sample(p, num_samples=20, generator=seeded(87)).path
    assert torch.equal(sample(p, num_samples=20, generator=seeded(87)).path, first)
    assert not torch.equal(sample(p, num_samples=20, generator=seeded(88)).path, first)


def test_the_global_generator_is_left_alone() -> None:
    p = potentials(BY_NAME["low_rank_2"], 3, [4, 3, 4], seed=89, zeros=False)
    before = torch.get_rng_state()
    sample(p, num_samples=3, generator=seeded(90))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_sample_has_no_axis_of_its_own() -> None:
    p = potentials(BY_NAME["banded_near"], 3, [4, 3, 4], seed=91, zeros=False)
    single = sample(p, generator=seeded(92)).path
    assert single.shape == (3, 4)
    assert single.dtype == torch.int64
    assert torch.equal(sample(p, num_samples=1, generator=seeded(92)).path[0], single)


def test_impossible_sequences_have_no_path() -> None:
    p = potentials(BY_NAME["dense"], 3, [3, 3, 2], seed=93, zeros=False)
    log_obs = p.log_obs.clone()
    log_obs[1, 1] = -INF
    paths = sample(p._replace(log_obs=log_obs), num_samples=50, generator=seeded(94)).path
    assert (paths[:, 1] == -1).all()
    assert (paths[:, 0] >= 0).all()
    assert (paths[:, 2, :2] >= 0).all()
    assert (paths[:, 2, 2] == -1).all()


@pytest.mark.parametrize("number", [0, -1])
def test_at_least_one_sample(number: int) -> None:
    p = potentials(BY_NAME["dense"], 3, [3, 3], seed=95)
    with pytest.raises(DomainError, match=f"num_samples is {number}.*at least 1"):
        sample(p, num_samples=number)
