"""Paths of long sequences in chunks, against the loop over positions and against the posterior."""

import pytest
import torch

import rankfold
from rankfold import Banded, ChainPotentials, Dense, LowRank, Operator
from rankfold.recursions.chain import in_chunks
from tests.recursions.build import seeded

LENGTHS = [23, 1, 12, 2]


def transition(kind: str, num_states: int) -> Operator:
    g = seeded(3)
    if kind == "banded":
        return Banded(torch.rand(num_states, 3, generator=g).double(), -1)
    if kind == "low rank":
        return LowRank(*(torch.rand(num_states, 2, generator=g).double() for _ in range(2)))
    weight = torch.rand(num_states, num_states, generator=g).double()
    return Dense(torch.where(weight < 0.3, 0.0, weight))


def problem(kind: str, num_states: int = 4) -> ChainPotentials:
    g = seeded(4)
    log_obs = 3 * torch.randn(len(LENGTHS), max(LENGTHS), num_states, generator=g).double()
    log_obs[torch.rand(log_obs.shape, generator=g) < 0.1] = float("-inf")
    log_obs[2, 5] = float("-inf")  # impossible
    for row, length in zip(log_obs, LENGTHS, strict=True):
        row[length:] = float("nan")
    ends = torch.randn(num_states, generator=g).double(), torch.randn(num_states, generator=g).double()
    return ChainPotentials(ends[0], transition(kind, num_states), log_obs, ends[1], torch.tensor(LENGTHS))


@pytest.mark.parametrize("kind", ["dense", "banded", "low rank"])
def test_best_paths(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(kind)
    expected = rankfold.viterbi(p)
    monkeypatch.setattr("rankfold.decoding.viterbi.loops_serve", lambda *_: False)
    monkeypatch.setattr(in_chunks, "chunks_serve", lambda c: True)
    found = rankfold.viterbi(p)
    assert torch.equal(found.path, expected.path)
    torch.testing.assert_close(found.log_prob, expected.log_prob, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("num_maps", [0, 1, 2, 7, 40])
def test_a_walk_is_its_steps(num_maps: int) -> None:
    g = seeded(num_maps)
    maps = torch.randint(0, 5, (num_maps, 3, 5), generator=g)
    state = torch.randint(0, 5, (3,), generator=g)
    found = in_chunks.walk(maps, state)
    for step, after in zip(maps, found, strict=True):
        state = step.gather(1, state[:, None])[:, 0]
        assert torch.equal(after, state)


@pytest.mark.parametrize("kind", ["dense", "banded"])
def test_samples_follow_the_posterior_of_pairs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    num, one = 40_000, problem(kind, 3)
    p = ChainPotentials(one.log_initial, one.transition, one.log_obs[:1, :9], one.log_final)
    monkeypatch.setattr(in_chunks, "chunks_serve", lambda c: True)
    path = rankfold.sample(p, num_samples=1, generator=seeded(1)).path
    assert path.shape == (1, 1, 9)
    many = ChainPotentials(p.log_initial, p.transition, p.log_obs.expand(num, -1, -1), p.log_final)
    path = rankfold.sample(many, generator=seeded(2)).path
    found = torch.stack([(path == z).double() for z in range(3)], -1)
    pairs = torch.einsum("bti,btj->tij", found[:, :-1], found[:, 1:]) / num
    weight = p.transition.push(torch.eye(3, dtype=torch.float64))
    messages = rankfold.recursions.chain.messages(p)
    joint = (
        messages.filtered.mantissa[0, :-1, :, None]
        * weight
        * (p.log_obs[0, 1:].exp() * messages.future.mantissa[0, 1:])[:, None]
    )
    expected = joint / joint.sum((1, 2), keepdim=True)
    off = (pairs - expected).abs() / (expected * (1 - expected) / num).sqrt().clamp(min=1 / num)
    assert float(off.max()) < 5
    assert not bool((pairs[expected == 0] > 0).any())


def test_impossible_and_ragged_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_chunks, "chunks_serve", lambda c: True)
    p = problem("dense")
    path = rankfold.sample(p, num_samples=5, generator=seeded(0)).path
    for b, length in enumerate(LENGTHS):
        taken = path[:, b]
        assert bool((taken[:, length:] == -1).all())
        if b == 2:
            assert bool((taken == -1).all())
            continue
        weight = rankfold.recursions.chain.validate(p).log_obs[b, :length].gather(1, taken[:, :length].T)
        assert bool(weight.isfinite().all())
