"""Compiled loops over positions against the loops in torch that they take the place of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold.kernels import dispatch
from tests.kernels.chains import draw

chain_loops = pytest.importorskip("rankfold.kernels.chain_loops", reason="the extra `fast` is not installed")

SIZES = [(1, 1, 1), (2, 1, 40), (3, 4, 9), (5, 3, 17), (17, 2, 33), (63, 2, 12), (128, 2, 7)]


def answers(p: rankfold.ChainPotentials) -> list[Tensor]:
    log_z = rankfold.log_z(p)
    inputs = [p.log_initial, *p.transition.factors(), p.log_obs, p.log_final]
    grads = torch.autograd.grad(torch.where(log_z > float("-inf"), log_z, 0.0).sum(), inputs)
    best = rankfold.viterbi(p)
    return [log_z, *grads, best.log_prob, best.path]


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
        for one, other in zip(compiled[:-1], expected[:-1], strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
        assert torch.equal(compiled[-1], expected[-1])


def test_the_loops_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above compares two things."""
    entered = []
    for name in ("filter_messages", "future_messages", "far_from_loss", "best_states"):
        loop = getattr(chain_loops, name)
        monkeypatch.setattr(chain_loops, name, lambda *x, name=name, loop=loop: entered.append(name) or loop(*x))
    p = draw(3, 2, 5, 0, torch.float64, 3.0)
    answers(p)
    assert set(entered) == {"filter_messages", "future_messages", "far_from_loss", "best_states"}
    entered.clear()
    monkeypatch.setattr(dispatch, "has_numba", lambda: False)
    answers(p)
    assert not entered


def test_threads_share_the_sequences() -> None:
    p = draw(16, 40, 64, 1, torch.float64, 3.0)
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
