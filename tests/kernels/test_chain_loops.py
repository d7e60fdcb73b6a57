"""Compiled loops over positions against the loops in torch that they take the place of."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import rankfold
from rankfold.decoding import counts
from rankfold.kernels import dispatch
from rankfold.recursions.chain.filtering import StreamRung, log_filtered
from rankfold.recursions.chain.potentials import validate
from rankfold.recursions.chain.rungs import ScaledRung, uses
from tests.kernels.chains import draw

chain_loops = pytest.importorskip("rankfold.kernels.chain_loops", reason="the extra `fast` is not installed")
path_loops = pytest.importorskip("rankfold.kernels.path_loops", reason="the extra `fast` is not installed")

SIZES = [(1, 1, 1), (2, 1, 40), (3, 4, 9), (5, 3, 17), (17, 2, 33), (63, 2, 12), (128, 2, 7)]


def answers(p: rankfold.ChainPotentials) -> list[Tensor]:
    log_z = rankfold.log_z(p)
    inputs = [p.log_initial, *p.transition.factors(), p.log_obs, p.log_final]
    grads = torch.autograd.grad(torch.where(log_z > float("-inf"), log_z, 0.0).sum(), inputs)
    best, ranked = rankfold.viterbi(p), rankfold.k_best(p, 5)
    drawn = rankfold.sample(p, num_samples=3, generator=torch.Generator().manual_seed(0))
    return [log_z, *grads, best.log_prob, ranked.log_prob, best.path, ranked.path, drawn.path]


@pytest.mark.parametrize("span", [3.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_the_loops_agree(
    size: tuple[int, int, int], dtype: torch.dtype, span: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(4):
        p = draw(*size, seed, dtype, span)
        compiled = answers(p)
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "has_numba", lambda: False)
            expected = answers(p)
        # Sums in another order: a few roundings per position.
        rtol = 1e-4 if dtype == torch.float32 else 1e-11
        for one, other in zip(compiled[:-3], expected[:-3], strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
        assert all(torch.equal(*paths) for paths in zip(compiled[-3:], expected[-3:], strict=True))


@pytest.mark.parametrize("num_states", [2, 4, 5])
def test_more_rows_than_are_shifted_at_a_time(num_states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = (num_states,), (num_states, num_states), (3, chain_loops.ROWS // 2, num_states)
    rand = partial(torch.rand, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    initial, moves, log_obs = (-60.0 * rand(*shape) for shape in shapes)
    p = rankfold.ChainPotentials(initial, rankfold.Dense.from_log(moves + 90.0), log_obs)  # the largest is kept apart
    compiled = rankfold.log_z(p)
    monkeypatch.setattr(dispatch, "has_numba", lambda: False)
    torch.testing.assert_close(compiled, rankfold.log_z(p), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("part", [(0, 1), (0, 3), (1, 4), (2, 6)])
def test_the_densities_of_some_frames_are_written_there_alone(part: tuple[int, int]) -> None:
    frames, mean, variance = (np.arange(1.0, 4.0 * n + 1).reshape(n, 4) for n in (7, 2, 2))
    log_obs = np.full((7, 2), np.nan)
    chain_loops._density(*part, frames, mean, variance, log_obs)
    within = slice(*part)
    log_p = -((frames[:, None] - mean) ** 2 / variance + np.log(2 * np.pi * variance)).sum(-1) / 2
    np.testing.assert_allclose(log_obs[within], log_p[within], rtol=1e-13)
    log_obs[within] = np.nan
    assert np.isnan(log_obs).all()


def test_the_loops_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above compares two things."""
    entered = []
    sums, paths = {"forward", "noise_is_small", "backward"}, {"best_states", "k_best_states", "drawn_states"}
    for module, name in [*((chain_loops, name) for name in sums), *((path_loops, name) for name in paths)]:
        loop = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *x, name=name, loop=loop: entered.append(name) or loop(*x))
    p = draw(5, 3, 17, 1, torch.float32, 100.0)
    answers(p)
    assert set(entered) == sums | paths
    entered.clear()
    monkeypatch.setattr(dispatch, "has_numba", lambda: False)
    answers(p)
    assert not entered


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_expected_counts_agree_with_those_of_the_ladder(
    size: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = 0
    for seed in range(6):
        p = draw(*size, seed, dtype, 3.0)
        fixed = [x.detach() for x in (p.log_initial, p.log_obs, p.log_final, *p.transition.factors())]
        p = p._replace(log_initial=fixed[0], log_obs=fixed[1], log_final=fixed[2])
        p = p._replace(transition=p.transition.with_factors(*fixed[3:]))
        weight = torch.arange(1.0, len(p.log_obs) + 1, dtype=torch.float64)
        served += uses(validate(p), weight, "float32") is not None
        short = rankfold.expected_counts(p, weight=weight)
        with monkeypatch.context() as patch:
            patch.setattr(counts, "uses", lambda *_: None)
            long = rankfold.expected_counts(p, weight=weight)
        rtol = 1e-4 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(short, long, rtol=rtol, atol=rtol)
    assert served  # the others have an impossible sequence


def test_sequences_that_need_wider_arithmetic_are_not_counted_by_the_loops() -> None:
    log_obs = torch.tensor([[[0.0, -2000.0], [-3000.0, 0.0], [0.0, -2000.0]]], dtype=torch.float64)
    transition = rankfold.Dense(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    p = rankfold.ChainPotentials(torch.zeros(2, dtype=torch.float64), transition, log_obs)
    assert uses(validate(p), torch.ones(1, dtype=torch.float64), "float32") is None
    # Two paths, of -3,000 and -4,000 nats.
    torch.testing.assert_close(
        rankfold.expected_counts(p).transition[0], torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    )


def structures(p: rankfold.ChainPotentials) -> dict[str, rankfold.Operator]:
    """Transitions of the same states whose matrix is not one of their factors."""
    (weight,) = p.transition.factors()
    size = len(weight)
    low_rank = rankfold.LowRank(weight[:, : max(1, size // 3)], weight[:, -max(1, size // 3) :])
    band = rankfold.Banded(weight[:, :2], 0)
    logs = (100 * x - 300 for x in low_rank.factors())
    return {
        "low rank": low_rank,
        "logs": rankfold.LowRank.from_log(*logs),
        "banded": band,
        "sum": rankfold.Sum([band, low_rank]),
        "rows scaled": rankfold.RowScaled(low_rank, weight[0]),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 1, 40), (5, 3, 17), (63, 2, 12)])
@pytest.mark.parametrize("structure", ["low rank", "logs", "banded", "sum", "rows scaled"])
def test_the_loops_take_the_matrix_of_any_structure(
    structure: str, size: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(p: rankfold.ChainPotentials) -> list[Tensor]:
        c = validate(p).detach()
        filtered = torch.where(c.inside().mT.unsqueeze(-1), log_filtered(c)[0], 0.0)
        return [filtered, *answers(p)[:-1]]

    entered = []
    loop = chain_loops.forward
    monkeypatch.setattr(chain_loops, "forward", lambda *x: entered.append(x) or loop(*x))
    for seed in range(6):
        p = draw(*size, seed, dtype, 3.0 if seed % 2 else 1000.0)
        p = p._replace(transition=structures(p)[structure])
        entered.clear()
        compiled = found(p)
        assert entered
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "has_numba", lambda: False)
            expected = found(p)
        rtol = 1e-4 if dtype == torch.float32 else 1e-11  # sums in another order
        for one, other in zip(compiled, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)


def verdicts(p: rankfold.ChainPotentials) -> list[Tensor]:
    """Which sequences the first rung keeps, forward and backward."""
    rung = ScaledRung(validate(p).detach(), "float32")
    sound = rung.sound()
    trusted = rung.backward(torch.ones_like(rung.log_z), of_factors=True).trusted
    assert trusted is not None
    whole = StreamRung(validate(p).detach().double(), "float32").sound()
    return [sound, trusted & sound, whole]


def test_the_loops_keep_the_same_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Underflow is found where torch finds it: in transitions without zeros, and where the bound itself is needed."""
    kept = []
    for seed in range(60):
        states, span = 2 + seed % 7, (3.0, 60.0, 100.0, 900.0)[seed % 4]
        p = draw(states, 8, 12, seed, torch.float32, span)
        if seed % 3 == 0:  # no zeros
            p = p._replace(transition=rankfold.Dense(p.transition.factors()[0].detach() + 0.01))
        elif seed % 3 == 1:  # from left to right
            p = p._replace(transition=rankfold.Dense(p.transition.factors()[0].detach().triu()))
        found = verdicts(p)
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "has_numba", lambda: False)
            expected = verdicts(p)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other), seed
        kept.append(torch.stack(found))
    shares = torch.stack(kept).double().mean((0, 2))
    assert bool(((shares > 0.2) & (shares < 0.8)).all())  # both verdicts were given


def test_weights_that_overflow_are_left_to_logarithms() -> None:
    weight = torch.full((3, 3), 1e30)
    p = rankfold.ChainPotentials(torch.zeros(3), rankfold.Dense(weight), torch.full((1, 4, 3), 80.0))
    exact = 4 * (80.0 + torch.tensor(3.0).double().log()) + 3 * torch.tensor(1e30, dtype=torch.float32).double().log()
    torch.testing.assert_close(rankfold.log_z(p)[0], exact, rtol=1e-6, atol=0.0)


def test_threads_share_the_sequences() -> None:
    p = draw(32, 40, 128, 1, torch.float64, 3.0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = answers(p)
        torch.set_num_threads(2)
        two = answers(p)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_ties_go_to_the_smallest_state() -> None:
    p = rankfold.ChainPotentials(torch.zeros(4), rankfold.Dense(torch.ones(4, 4)), torch.zeros(1, 6, 4))
    assert rankfold.viterbi(p).path.tolist() == [[0] * 6]


@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_the_k_best_with_ties_and_dead_ends(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are powers of e: sums of whole numbers are exact, and many paths have equal weights."""
    generator = torch.Generator().manual_seed(5)
    for num_states in (1, 2, 3, 5):
        numbers = [(num_states,), (num_states, num_states), (3, 6, num_states), (num_states,)]
        drawn = [torch.randint(-2, 2, shape, generator=generator).double() for shape in numbers]
        drawn[1:3] = [x.masked_fill(torch.rand(x.shape, generator=generator) < 0.2, float("-inf")) for x in drawn[1:3]]
        first, moves, log_obs, last = drawn
        lengths = torch.tensor([6, 1, 4])
        p = rankfold.ChainPotentials(first, rankfold.Dense.from_log(moves), log_obs, last, lengths=lengths)
        found = rankfold.k_best(p, k)
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "has_numba", lambda: False)
            expected = rankfold.k_best(p, k)
        assert torch.equal(found.path, expected.path)
        assert torch.equal(found.log_prob, expected.log_prob)
