"""Ranges: what float32 may lose is found out and repeated; frames of thousands of nats; what is refused; memory."""

import math
from typing import Any

import pytest
import torch

from rankfold import Dense, DomainError, LowRank, SegmentPotentials, ShapeError, UnsupportedError
from rankfold.recursions import segments
from rankfold.recursions.segments import passes
from rankfold.recursions.segments import rungs as ladder
from rankfold.recursions.segments.passes import forward
from rankfold.recursions.segments.potentials import validate
from rankfold.recursions.segments.rungs import SegmentSolution, solve
from tests.recursions.build import INF, seeded
from tests.recursions.segment_batches import batch, doubled, leaves, true_log_z
from tests.training.replays import capturing


def rungs(solution: SegmentSolution) -> list[Any]:
    """Which sequences went to the next rung, and which of them further."""
    return [(index.tolist(), rungs(wider)) for index, wider in solution.wider]


@pytest.mark.parametrize("spread", [2.0, 50.0, 800.0])
@pytest.mark.parametrize("zeros", [False, True])
def test_float32(spread: float, zeros: bool) -> None:
    p = batch(6, 25, [60, 1, 33], seed=1, spread=spread, zeros=zeros, dtype=torch.float32)
    p, tensors = leaves(p)
    q, exact = leaves(doubled(p))
    value, truth = segments.log_z(p), segments.log_z(q, "log")
    # Logarithms up to the spread are rounded at 6e-8 of it, once a frame.
    torch.testing.assert_close(value, truth, rtol=1e-7, atol=1e-6 * spread)
    known = (truth > -INF).double()
    grads = torch.autograd.grad(value, tensors, known)
    expected = torch.autograd.grad(truth, exact, known)
    for one, other in zip(grads[:3], expected[:3], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-6 * spread)


def separated(spread: float, dtype: torch.dtype) -> SegmentPotentials:
    """Two states, no self-transitions, durations to 2: four frames of state 0 need a frame of state 1 inside."""
    log_obs = torch.zeros(2, 4, 2, dtype=dtype)
    log_obs[0, :, 1] = -spread
    log_obs[1, ::2, 1] = -spread
    log_obs[1, 1::2, 0] = -spread
    weight = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=dtype)
    return SegmentPotentials(torch.zeros(2, dtype=dtype), Dense(weight), torch.zeros(2, 2, dtype=dtype), log_obs)


@pytest.mark.parametrize(
    ("spread", "expected"),
    [(20.0, []), (80.0, [([0], [])]), (1000.0, [([0], [([0], [])])])],
)
def test_what_is_lost_is_repeated(spread: float, expected: list[Any]) -> None:
    """Only the sequence that needs it, only as far as it must: float64, then logarithms."""
    p, tensors = leaves(separated(spread, torch.float32)._replace(lengths=torch.tensor([4, 4])))
    assert rungs(solve(validate(p).detach(), "scaled")) == expected
    value = segments.log_z(p)
    torch.testing.assert_close(value, true_log_z(p), rtol=1e-6, atol=1e-5)
    q, exact = leaves(doubled(p))
    truth = torch.autograd.grad(segments.log_z(q, "log").sum(), exact)
    for one, other in zip(torch.autograd.grad(value.sum(), tensors)[:3], truth[:3], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_ordinary_sequences_stay_on_the_first_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of 300 features differ by thousands of nats; transitions without zeros need no other arithmetic."""
    g = seeded(5)
    op = LowRank(*(torch.rand(17, 4, generator=g) + 0.01 for _ in range(2)))
    p, tensors = leaves(batch(17, 20, [50, 31], spread=3000.0, transition=op, dtype=torch.float32))
    monkeypatch.setattr(ladder.Segments, "double", lambda c: pytest.fail("repeated"))
    grads = torch.autograd.grad(segments.log_z(p).sum(), tensors)
    torch.testing.assert_close(grads[2].sum(-1)[0], torch.ones(50), rtol=0.0, atol=1e-3)


@pytest.mark.parametrize("lost", ["mass", "digits"])
def test_posteriors_that_do_not_account_for_z_are_not_trusted(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = validate(batch(3, 3, [6, 4], dtype=torch.float32))
    run = forward(c, log=False)
    assert passes.backward(c, run, log=False).trusted.tolist() == [True, True]
    if lost == "mass":
        run = run._replace(log_z=run.log_z + torch.tensor([0.0, 0.01], dtype=torch.float64))
    else:
        small = torch.zeros(6, 2, 3, dtype=torch.bool)
        small[2, 1] = True
        monkeypatch.setattr(passes, "_small", lambda c, back: small)
    assert passes.backward(c, run, log=False).trusted.tolist() == [True, False]


def test_untrusted_posteriors_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    p, tensors = leaves(batch(3, 3, [6, 4], dtype=torch.float32))
    value = segments.log_z(p)
    expected = torch.autograd.grad(value.sum(), tensors, retain_graph=True)
    value = segments.log_z(p)
    trusted = passes._trusted

    def never_the_first(c: Any, *args: Any) -> torch.Tensor:
        found = trusted(c, *args)
        return found & (torch.arange(2) > 0) if c.log_obs.dtype == torch.float32 else found

    monkeypatch.setattr(passes, "_trusted", never_the_first)
    for _ in range(2):
        for one, other in zip(torch.autograd.grad(value.sum(), tensors, retain_graph=True), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert rungs(value.grad_fn.solution) == [([0], [])]


def test_long_sequences_keep_their_digits() -> None:
    """A scale that is never renewed would cost float32 its digits: after 2,000 frames it is thousands of nats away."""
    p = batch(5, 3, [2000], seed=2, spread=30.0, dtype=torch.float32)
    p, tensors = leaves(p)
    q, exact = leaves(doubled(p))
    one = torch.autograd.grad(segments.log_z(p).sum(), tensors[2])[0]
    other = torch.autograd.grad(segments.log_z(q).sum(), exact[2])[0]
    torch.testing.assert_close(one.double(), other, rtol=0.0, atol=5e-5)


def test_a_captured_carry() -> None:
    """What cannot be repeated carries NaN; the others what they always carry. Second derivatives are refused."""
    p = batch(3, 4, [5, 5], dtype=torch.float32)._replace(lengths=None, censored=True)
    lost = separated(1000.0, torch.float32)._replace(censored=True)
    at, (obs,) = p._replace(log_obs=p.log_obs.requires_grad_()), (p.log_obs,)
    value = segments.log_z(at)
    with capturing():
        carried, of_lost = segments.carry(p), segments.carry(lost)
        with pytest.raises(UnsupportedError, match="second derivatives"):
            torch.autograd.grad(value.sum(), obs, create_graph=True)
    torch.testing.assert_close(carried, segments.carry(p), rtol=0.0, atol=0.0)
    assert of_lost[0].isnan().all()


def test_no_window_of_every_frame_is_kept() -> None:
    """Between the passes O(t z) is held: far below t d z."""
    p, _ = leaves(batch(5, 50, [100], dtype=torch.float32))
    saved = 0
    solution = segments.log_z(p).grad_fn.solution
    for sweep in (solution.rung.run.frames, [solution.rung.run.log_obs, solution.rung.run.log_last]):
        saved += sum(x.numel() for x in sweep)
    assert saved < 100 * 5 * 6 + 50 * 5 < 100 * 50 * 5


GOOD = {
    "log_initial": torch.zeros(3),
    "transition": Dense(torch.ones(3, 3)),
    "log_duration": torch.zeros(3, 4),
    "log_obs": torch.zeros(2, 5, 3),
    "lengths": torch.tensor([5, 2]),
}
BAD: list[tuple[type[ValueError], dict[str, Any], str]] = [
    (ShapeError, {"log_obs": torch.zeros(5, 3)}, r"log_obs\[None\]"),
    (ShapeError, {"log_obs": torch.zeros(2, 0, 3)}, "nothing to sum over"),
    (ShapeError, {"log_obs": torch.zeros(2, 5, 4)}, "same states"),
    (ShapeError, {"log_duration": torch.zeros(4, 3)}, "One row per state"),
    (ShapeError, {"log_duration": [0.0]}, "log_duration must be a torch.Tensor"),
    (ShapeError, {"log_initial": torch.zeros(4)}, "log_initial has shape"),
    (ShapeError, {"log_initial": torch.zeros(3, 3)}, '"b z" was expected'),
    (ShapeError, {"log_initial": torch.zeros(2, 3, 3)}, '"b d z" was expected with b = 2, d = 4'),
    (ShapeError, {"log_final": torch.zeros(2)}, "log_final has shape"),
    (ShapeError, {"log_final": torch.zeros(3, 3)}, "log_final has shape"),
    (ShapeError, {"transition": Dense(torch.ones(3, 2))}, "square transition"),
    (UnsupportedError, {"transition": torch.ones(3, 3)}, "must be an operator"),
    (UnsupportedError, {"log_duration": torch.zeros(3, 4).double()}, "log_duration is torch.float64"),
    (DomainError, {"lengths": torch.tensor([5, 6])}, r"lengths\[1\] is 6"),
    (DomainError, {"log_duration": torch.full((3, 4), math.nan)}, r"log_duration\[0,0\] is nan"),
    (DomainError, {"log_obs": torch.full((2, 5, 3), math.inf)}, r"log_obs\[0,0,0\] is inf"),
    (DomainError, {"censored": 1}, "censored is 1"),
]


@pytest.mark.parametrize(("error", "changes", "words"), BAD)
def test_what_is_refused(error: type[ValueError], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(error, match=words):
        segments.log_z(SegmentPotentials(**{**GOOD, **changes}))


def test_what_else_is_refused() -> None:
    p = SegmentPotentials(**GOOD)
    with pytest.raises(UnsupportedError, match='"scaled"'):
        segments.log_z(p, "fast")
    with pytest.raises(ShapeError, match="expected SegmentPotentials"):
        segments.log_z(tuple(p))
    with pytest.raises(DomainError, match=r"sequence 0 is impossible.*and so are 1 more"):
        segments.log_z(p._replace(log_duration=torch.full((3, 4), -INF)), strict=True)
