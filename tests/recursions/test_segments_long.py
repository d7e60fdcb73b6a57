"""Sequences in stretches: the same sums, in less memory."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from rankfold import Dense, DomainError, LowRank, SegmentPotentials, expected_counts, viterbi
from rankfold.recursions import segments
from rankfold.recursions.segments import stretches
from tests.recursions.build import INF, seeded
from tests.recursions.segment_batches import EXACT, batch, leaves, true_log_z


def check(p: SegmentPotentials, stretch: int, arithmetic: Any = "scaled", **bounds: float) -> None:
    """log Z and every gradient, each sequence with a weight of its own, against all frames at once."""
    p, tensors = leaves(p)
    whole, parts = segments.log_z(p, arithmetic), segments.log_z(p, arithmetic, stretch=stretch)
    assert isinstance(parts.grad_fn.solution, stretches.InStretches)
    bounds = bounds or EXACT
    torch.testing.assert_close(parts, whole, **bounds)
    weight = torch.where(whole > -INF, torch.linspace(-0.5, 1.5, len(whole), dtype=torch.float64), 0.0)
    expected = torch.autograd.grad(whole, tensors, weight)
    for one, other in zip(torch.autograd.grad(parts, tensors, weight), expected, strict=True):
        torch.testing.assert_close(one, other, **bounds)


@pytest.mark.parametrize("stretch", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("censored", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_value_and_gradients(stretch: int, censored: bool, zeros: bool) -> None:
    """Stretches shorter and longer than the durations, sequences that end in each and at their borders."""
    p = batch(3, 4, [8, 1, 5, 6, 3], seed=stretch, zeros=zeros, censored=censored, final=True)
    check(p, stretch)


def test_against_enumeration() -> None:
    p = batch(3, 3, [6, 4, 1])
    torch.testing.assert_close(segments.log_z(p, stretch=2), true_log_z(p), **EXACT)


@pytest.mark.parametrize("stretch", [2, 4])
def test_carried_in(stretch: int) -> None:
    p = batch(4, 3, [7, 2, 5], seed=3)
    carried = torch.randn(3, 3, 4, generator=seeded(1), dtype=torch.float64)
    carried[0, 1] = -INF
    check(p._replace(log_initial=carried, censored=True), stretch)


def test_low_rank_and_logarithms() -> None:
    op = LowRank(*(torch.rand(5, 2, generator=seeded(i), dtype=torch.float64) for i in range(2)))
    check(batch(5, 3, [9, 4], transition=op), 3)
    check(batch(4, 3, [9, 4], spread=800.0, zeros=True), 3, "log", rtol=1e-9, atol=1e-9)


def test_impossible_sequences() -> None:
    p = batch(3, 3, [7, 7, 6])
    p.log_obs[0, 3] = -INF
    assert segments.log_z(p, stretch=2)[0] == -INF
    check(p, 2)


def test_float32_of_a_wide_range() -> None:
    p = batch(6, 5, [60, 33], spread=50.0, zeros=True, dtype=torch.float32)
    check(p, 16, rtol=1e-5, atol=2e-4)


def test_second_derivatives_go_over_all_frames() -> None:
    p, tensors = leaves(batch(2, 2, [5]))
    seconds = []
    for stretch in (None, 2):
        (first,) = torch.autograd.grad(segments.log_z(p, stretch=stretch), tensors[2], create_graph=True)
        seconds.append(torch.autograd.grad((first**2).sum(), tensors[2])[0])
    torch.testing.assert_close(*seconds, **EXACT)


def test_long_batches_are_cut_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    p, _ = leaves(batch(3, 2, [64, 64]))
    assert not isinstance(segments.log_z(p).grad_fn.solution, stretches.InStretches)
    expected = expected_counts(p)
    monkeypatch.setattr(stretches, "HELD", 2 * 64 * 3 - 1)
    found = segments.log_z(p).grad_fn.solution
    assert isinstance(found, stretches.InStretches)
    assert found.size == 32
    check(p, 40)
    for one, other in zip(expected_counts(p), expected, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("stretch", [0, -1, 2.5])
def test_what_is_no_stretch(stretch: Any) -> None:
    with pytest.raises(DomainError, match="stretch is"):
        segments.log_z(batch(2, 2, [3]), stretch=stretch)


MEASURED = """
import json, torch
from rankfold import Dense, SegmentPotentials, viterbi
from rankfold.recursions import segments
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
weight = torch.rand(32, 32, generator=g) + 0.1
def potentials(t):
    log_obs = torch.randn(1, t, 32, generator=g).requires_grad_()
    return SegmentPotentials(torch.zeros(32), Dense(weight), torch.zeros(32, 10), log_obs)
def peak():
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
def tables(t, work):
    work(potentials(300))
    p = potentials(t)
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    work(p)
    return (peak() - before) / (4 * 32 * t)
best = tables(6000, viterbi)
stretches = tables(6000, lambda p: segments.log_z(p, stretch=128).sum().backward())
whole = tables(3000, lambda p: segments.log_z(p).sum().backward())
print(json.dumps([best, stretches, whole]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory() -> None:
    """In tables "t z" of 4 bytes: pointers of a byte each; in stretches the gradient and little else; all at once."""
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    best, stretches, whole = json.loads(done.stdout)
    assert best < 2
    assert stretches < 3
    assert whole > 10


def test_the_best_of_long_durations() -> None:
    """A pointer of one byte would not reach back far enough."""
    log_obs = torch.zeros(1, 310, 3)
    log_obs[0, :300, 1:], log_obs[0, 300:, 0] = -1.0, -1.0
    duration = torch.full((3, 310), -INF)
    duration[:, [9, 299]] = 0.0
    best = viterbi(SegmentPotentials(torch.zeros(3), Dense(1 - torch.eye(3)), duration, log_obs))
    assert best.begins[0].nonzero()[:, 0].tolist() == [0, 300]
    assert best.path[0].unique_consecutive().tolist() == [0, 1]
    assert float(best.log_prob) == 0.0
