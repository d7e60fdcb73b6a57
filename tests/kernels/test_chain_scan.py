"""Kernels along the positions of a chain of few states, whole and in chunks, against the loops in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold.kernels import dispatch
from rankfold.recursions.chain import scaled
from tests.kernels.chains import draw
from tests.kernels.device import DEVICE, HERE
from tests.recursions.fused import banded, ordinary

pytest.importorskip("triton")

from rankfold.kernels import chain_scan

pytestmark = HERE
SIZES = [(1, 1, 1), (2, 1, 12), (3, 4, 9), (16, 2, 7), (17, 1, 5)]


def on(p: rankfold.ChainPotentials, device: torch.device) -> rankfold.ChainPotentials:
    moved = [x.detach().to(device).requires_grad_() for x in (p.log_initial, *p.transition.factors(), p.log_obs)]
    final = p.log_final.detach().to(device).requires_grad_()
    return rankfold.ChainPotentials(moved[0], rankfold.Dense(moved[1]), moved[2], final, p.lengths.to(device))


def answers(p: rankfold.ChainPotentials) -> list[Tensor]:
    log_z = rankfold.log_z(p)
    inputs = [p.log_initial, *p.transition.factors(), p.log_obs, p.log_final]
    grads = torch.autograd.grad(torch.where(log_z > float("-inf"), log_z, 0.0).sum(), inputs)
    return [x.cpu() for x in (log_z, *grads)]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels take tensors of the CPU, too; the names of those that ran."""
    ran: list[str] = []
    for name in ("filter_messages", "future_messages", "last_noise"):
        run = getattr(chain_scan, name)
        monkeypatch.setattr(chain_scan, name, lambda *x, name=name, run=run: ran.append(name) or run(*x))
    monkeypatch.setattr(scaled, "scans_serve", lambda num_states, *_: num_states <= dispatch.FEW_STATES)
    monkeypatch.setattr(scaled, "loops_serve", lambda *_: False)
    return ran


def by_torch(p: rankfold.ChainPotentials, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(scaled, "scans_serve", lambda *_: False)
        return answers(on(p, torch.device("cpu")))


def chunked(num_chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most = chain_scan.CHUNKED
    monkeypatch.setattr(chain_scan, "_chunks", lambda e: num_chunks if e.shape[2] <= most[e.dtype] else 1)


@pytest.mark.parametrize("span", [3.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_the_kernels_agree(
    size: tuple[int, int, int], dtype: torch.dtype, span: float, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = draw(*size, 1, dtype, span)
    expected = by_torch(p, monkeypatch)
    scans.clear()
    for num_chunks in (1, 3):
        chunked(num_chunks, monkeypatch)
        found = answers(on(p, DEVICE))
        rtol = 1e-4 if dtype == torch.float32 else 1e-11
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
    assert "filter_messages" in scans


def test_chunks_that_do_not_meet_run_in_one_piece(scans: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that lost a row is found out at the border, forward and backward."""
    p = draw(4, 3, 24, 2, torch.float32, 3.0)
    expected = by_torch(p, monkeypatch)
    build, again = chain_scan._matrices, chain_scan._again
    apart: list[list[bool]] = []

    def damaged(*given: Tensor) -> tuple[Tensor, Tensor]:
        matrix, exponent = build(*given)
        matrix[:, 1, 0] = 0.0
        return matrix, exponent

    def noted(found: tuple[Tensor, ...], run: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        apart.append(found[-1].isnan().all(0).tolist())
        return again(found, run)

    chunked(4, monkeypatch)
    monkeypatch.setattr(chain_scan, "_matrices", damaged)
    monkeypatch.setattr(chain_scan, "_again", noted)
    for one, other in zip(answers(on(p, DEVICE)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert apart == [[False, True, False]] * 2


def test_messages_far_apart_are_bounded_by_their_noise(scans: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    p = draw(3, 2, 12, 5, torch.float32, 100.0)
    expected = by_torch(p, monkeypatch)
    scans.clear()
    for one, other in zip(answers(on(p, DEVICE)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert "last_noise" in scans


@pytest.mark.parametrize("kind", ["banded", "low rank", "sum"])
def test_other_transitions_are_written_out(kind: str, scans: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    p = ordinary("dense" if kind == "banded" else kind)
    operator = banded() if kind == "banded" else p.transition
    factors = [x.detach().clone().requires_grad_() for x in operator.factors()]

    def values(device: torch.device) -> list[Tensor]:
        moved = [x.to(device) for x in (p.log_initial, p.log_obs, p.log_final, p.lengths)]
        transition = operator.with_factors(*(x.to(device) for x in factors))
        log_z = rankfold.log_z(rankfold.ChainPotentials(moved[0], transition, *moved[1:]))
        return [log_z.cpu(), *torch.autograd.grad(log_z.sum(), factors)]

    with monkeypatch.context() as patch:
        patch.setattr(scaled, "scans_serve", lambda *_: False)
        expected = values(torch.device("cpu"))
    scans.clear()
    chunked(2, monkeypatch)
    for one, other in zip(values(DEVICE), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert "filter_messages" in scans
