"""Semi-Markov chains through the kernel that takes all frames at once, as on a GPU: float32 against float64."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankfold import (
    Banded,
    Dense,
    LowRank,
    Operator,
    RowScaled,
    SegmentPotentials,
    WithoutDiagonal,
)
from rankfold.operators import without_diagonal
from rankfold.operators.protocol import Blocked
from rankfold.recursions import segments
from rankfold.recursions.segments import sweep
from rankfold.recursions.segments.passes import forward
from rankfold.recursions.segments.potentials import validate
from rankfold.recursions.segments.soundness import _Noise
from rankfold.recursions.segments.sweep import scan
from tests.hunt.runner import REGRESSIONS
from tests.hunt.segments import Segments
from tests.recursions.build import INF, seeded
from tests.recursions.segment_batches import batch, doubled, leaves
from tests.training.replays import capturing

pytest.importorskip("triton")

from rankfold.kernels.segment_scan import triton as kernel

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda takes this path without an interpreter")

# Logarithms of a few units, rounded at every frame; posteriors are at most 1.
SINGLE = {"rtol": 1e-5, "atol": 2e-5}


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch, poisoned_memory: None) -> list[int]:
    """The kernel takes tensors of the CPU; each pass leaves its number of steps here."""
    taken: list[int] = []
    work = kernel.scan

    def counted(window: Tensor, entry: Tensor, log_obs: Tensor, *rest: Tensor) -> kernel.Scan:
        taken.append(len(log_obs))
        return work(window, entry, log_obs, *rest)

    monkeypatch.setattr(kernel, "scan", counted)
    monkeypatch.setattr(sweep, "triton_serves", lambda *tensors: True)
    return taken


def weights(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=seeded(seed)) + 0.05


OPERATORS: dict[str, Callable[[], Operator]] = {
    "dense": lambda: Dense(weights(5, 5)),
    "transposed": lambda: Dense(weights(5, 5).T),
    "dense of logs": lambda: Dense.from_log(weights(5, 5).log() - 100.0),
    "low rank": lambda: LowRank(weights(5, 3), weights(5, 3, seed=1)),
    "rank above states": lambda: LowRank(weights(5, 9), weights(5, 9, seed=1)),
    "low rank of logs": lambda: LowRank.from_log(weights(5, 2).log() - 90.0, weights(5, 2, seed=1).log() - 90.0),
}


def apart(z: int, rank: int) -> Operator:
    """No state after itself, rows that sum to 1."""
    others = WithoutDiagonal(LowRank(weights(z, rank), weights(z, rank, seed=1)))
    return RowScaled.from_log(others, -others.pull(torch.ones(z)).log())


def check(p: SegmentPotentials, **bounds: float) -> None:
    """log Z and every gradient, each sequence with a weight of its own, against logarithms in float64."""
    p, tensors = leaves(p)
    q, exact = leaves(doubled(p))
    value, truth = segments.log_z(p), segments.log_z(q, "log")
    bounds = bounds or SINGLE
    torch.testing.assert_close(value, truth, **bounds)
    weight = torch.where(truth > -INF, torch.linspace(0.5, 1.5, len(truth), dtype=torch.float64), 0.0)
    found, expected = torch.autograd.grad(value, tensors, weight), torch.autograd.grad(truth, exact, weight)
    for one, other in zip(found, expected, strict=True):
        scale = other.abs().amax().clamp(min=1.0)
        torch.testing.assert_close(one.double() / scale, other / scale, **bounds)


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("censored", [False, True])
def test_value_and_gradients(kind: str, censored: bool, steps: list[int]) -> None:
    check(batch(5, 3, [6, 1, 4], final=True, censored=censored, transition=OPERATORS[kind](), dtype=torch.float32))
    assert steps == [6, 6]


@pytest.mark.parametrize(("z", "d", "lengths"), [(1, 1, [3]), (2, 7, [4, 5]), (3, 1, [1]), (17, 5, [7]), (4, 8, [9])])
@pytest.mark.parametrize("zeros", [False, True])
def test_sizes(z: int, d: int, lengths: list[int], zeros: bool, steps: list[int]) -> None:
    check(batch(z, d, lengths, seed=z, zeros=zeros, censored=zeros, dtype=torch.float32))
    assert len(steps) >= 1


def test_in_small_tiles(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Window and maps of more than a tile; what closes is shown some steps at a time."""
    monkeypatch.setattr(kernel, "TILE", 16)
    monkeypatch.setattr(sweep, "BLOCK", 2 * 2 * 3 * 37)
    for op in (Dense(weights(37, 37)), LowRank(weights(37, 11), weights(37, 11, seed=1))):
        check(batch(37, 3, [7, 4], censored=True, transition=op, dtype=torch.float32))
    assert steps == [7] * 4


@pytest.mark.parametrize(
    ("z", "rank", "num_blocks", "tile"),
    [(5, 3, 1, 8192), (50, 2, 2, 8192), (53, 3, 4, 8192), (53, 3, 4, 600), (80, 1, 5, 64), (257, 20, 13, 8192)],
)
def test_no_state_after_itself(
    z: int, rank: int, num_blocks: int, tile: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block, which is a matrix; blocks that fill their number evenly or not; some at a time."""
    monkeypatch.setattr(without_diagonal, "FEW", 0)
    monkeypatch.setattr(kernel, "TILE", tile)
    op = apart(z, rank)
    assert isinstance(op, Blocked)
    found = op.blocks()
    assert found is not None
    assert len(found[0]) == num_blocks
    assert op.is_written == (num_blocks == 1)  # type: ignore[attr-defined]
    check(batch(z, 3, [4, 2], censored=True, transition=op, dtype=torch.float32))
    assert steps == [4, 4]


def test_what_may_be_missing_from_blocks_is_followed(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound travels through blocks as through the matrix that they are."""
    monkeypatch.setattr(without_diagonal, "FEW", 0)
    c = validate(batch(53, 3, [6, 6], dtype=torch.float32, transition=apart(53, 3)))
    run = forward(c, log=False)
    blocks, matrix = _Noise(c, run), _Noise(c, run)
    matrix.transition = Dense(c.transition.rows(torch.arange(53)))
    nothing = torch.full((2, 53), -INF)
    found, expected = (
        scan(line, nothing, run.log_obs, run.log_top.cumsum(0), c.durations()).opened for line in (blocks, matrix)
    )
    assert steps == [6, 6, 6]
    assert expected[1:].isfinite().all()
    torch.testing.assert_close(found, expected, **SINGLE)


@pytest.mark.parametrize("lengths", [[6, 2, 4], [2, 2, 1]])
def test_carried_in(lengths: list[int], steps: list[int]) -> None:
    p = batch(4, 3, lengths, seed=3, dtype=torch.float32)
    check(p._replace(log_initial=torch.randn(3, 3, 4, generator=seeded(1)), censored=True))
    assert steps == [max(lengths), max(lengths) + 3]


def test_impossible_sequences_leave_their_neighbours_alone() -> None:
    p = batch(4, 3, [6, 6, 4], dtype=torch.float32)
    p.log_obs[1, 2] = -INF
    check(p)
    value = segments.log_z(p)
    assert value[1] == -INF
    assert value[[0, 2]].isfinite().all()


def test_thousands_of_nats() -> None:
    """Logarithms of 3000 are rounded to 2e-4; nothing needs wider arithmetic."""
    check(batch(5, 4, [12, 7], spread=1000.0, dtype=torch.float32), rtol=1e-6, atol=2e-3)


def test_many_frames_keep_their_digits() -> None:
    check(batch(3, 2, [100], spread=30.0, dtype=torch.float32), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("censored", [False, True])
def test_float64(censored: bool, steps: list[int]) -> None:
    """The second rung of the ladder, and the state carried onwards."""
    p = batch(4, 3, [6, 3, 1], zeros=True, final=True, censored=censored)
    check(p, rtol=1e-11, atol=1e-11)
    assert steps[:2] == [6, 6]


def test_the_stretches_add_up(steps: list[int]) -> None:
    p = batch(4, 3, [9, 9], dtype=torch.float32)
    first = p._replace(log_obs=p.log_obs[:, :5], lengths=None, censored=True)
    rest = p._replace(log_obs=p.log_obs[:, 5:], lengths=None, log_initial=segments.carry(first))
    together = segments.log_z(first) + segments.log_z(rest)
    torch.testing.assert_close(together, segments.log_z(doubled(p), "log"), **SINGLE)
    assert steps == [5, 5, 4]


@pytest.mark.parametrize(("spread", "passes"), [(20.0, 1), (80.0, 3), (1000.0, 4)])
def test_what_may_be_missing_is_followed(spread: float, passes: int, steps: list[int]) -> None:
    """No state after itself, frames that are sure: what is pushed vanishes, and matters or not."""
    log_obs = torch.zeros(2, 4, 2)
    log_obs[0, :, 1] = -spread  # a frame of state 1 has to lie between segments of state 0
    log_obs[1, ::2, 1], log_obs[1, 1::2, 0] = -spread, -spread
    apart = Dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    p = SegmentPotentials(torch.zeros(2), apart, torch.zeros(2, 2), log_obs)
    exact = segments.log_z(doubled(p), "log")
    torch.testing.assert_close(segments.log_z(p), exact, rtol=1e-6, atol=1e-5)
    assert len(steps) == passes
    with capturing():
        blind = segments.log_z(p)
    torch.testing.assert_close(blind[1], exact[1], rtol=1e-6, atol=1e-5)
    assert bool(blind[0].isnan()) == (passes > 1)


VANISHING: dict[str, Callable[[], Operator]] = {
    "one map": lambda: Dense.from_log(torch.tensor([[-INF, -300.0], [-300.0, 0.0]])),
    "two maps": lambda: LowRank.from_log(torch.tensor([[-300.0], [0.0]]), torch.tensor([[-300.0], [0.0]])),
    "blocks": lambda: WithoutDiagonal(LowRank.from_log(*(torch.tensor([[-300.0], *[[0.0]] * 34]) for _ in range(2)))),
}


@pytest.mark.parametrize(("d", "censored"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize("kind", VANISHING)
def test_what_vanishes_altogether_is_followed(
    kind: str, d: int, censored: bool, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaves state 0 is too small for float32: nothing closes at the frames after it, which are possible."""
    monkeypatch.setattr(without_diagonal, "FEW", 0)
    op = VANISHING[kind]()
    z, _ = op.shape
    nowhere = torch.full((z,), -INF)
    nowhere[0] = 0.0
    durations = torch.full((z, d), -INF)
    durations[:, 0] = -50.0  # a segment has one frame, the window more
    log_obs = torch.zeros(2, d + 4, z)
    log_obs[1, 1] = -INF  # impossible indeed
    p = SegmentPotentials(nowhere, op, durations, log_obs, torch.linspace(0.0, 1.0, z), None, censored)
    check(p, rtol=1e-6, atol=1e-5)
    value = segments.log_z(p)
    assert value.isfinite().tolist() == [True, False]
    assert steps[:2] == [d + 4] * 2  # the kernel's own, and what may be missing from it
    with capturing():
        blind = segments.log_z(p)
    assert blind[0].isnan()  # never wrong
    assert blind[1] == -INF


def test_what_vanishes_at_a_border_is_followed() -> None:
    carried = torch.tensor([[[0.0, -INF]]])
    p = SegmentPotentials(carried, VANISHING["one map"](), torch.full((2, 1), -50.0), torch.zeros(1, 4, 2))
    check(p, rtol=1e-6, atol=1e-5)
    assert segments.log_z(p).isfinite()


def test_what_may_be_missing_where_nothing_closes_is_no_reason_to_repeat(steps: list[int]) -> None:
    """State 0 takes two frames, state 1 three, in turns: at some frames only what rounding could have left ends."""
    durations = torch.tensor([[-INF, 0.0, -INF], [-INF, -INF, 0.0]])
    apart = Dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    p = SegmentPotentials(torch.tensor([0.0, -INF]), apart, durations, torch.zeros(1, 10, 2))
    torch.testing.assert_close(segments.log_z(p), torch.zeros(1, dtype=torch.float64))
    assert steps == [10, 10]


KEPT = sorted(REGRESSIONS.glob("segments-*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_the_hunt_once_found_stays_right(path: Path) -> None:
    assert Segments().check(json.loads(path.read_text(encoding="utf-8"))["case"]) is None


def test_captured(steps: list[int]) -> None:
    """Nothing is looked at while a graph is captured, and the numbers are the same."""
    p, tensors = leaves(batch(4, 3, [6, 3], dtype=torch.float32))
    with capturing():
        value = segments.log_z(p)
        found = torch.autograd.grad(value.sum(), tensors)
    assert steps == [6, 6, 6]  # what may be missing, too
    q, exact = leaves(doubled(p))
    truth = segments.log_z(q, "log")
    torch.testing.assert_close(value, truth, **SINGLE)
    for one, other in zip(found, torch.autograd.grad(truth.sum(), exact), strict=True):
        torch.testing.assert_close(one.double(), other, **SINGLE)


def test_what_the_kernel_does_not_take(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that are no product of maps, windows of many ages, maps that one multiprocessor reads slowly."""
    check(batch(3, 2, [3], dtype=torch.float32, transition=Banded(weights(3, 3), -1)))
    segments.log_z(batch(3, 2, [3]), "log")
    monkeypatch.setattr(sweep, "WIDEST", 8)
    monkeypatch.setattr(without_diagonal, "FEW", 0)
    segments.log_z(batch(53, 2, [3], dtype=torch.float32, transition=apart(53, 3)))
    monkeypatch.setattr(sweep, "LONGEST", 2)
    segments.log_z(batch(3, 3, [4], dtype=torch.float32))
    monkeypatch.setattr(sweep, "LARGEST", 2 * 2 * 3 + 8)
    segments.log_z(batch(3, 2, [3], dtype=torch.float32))
    assert steps == []
    monkeypatch.setattr(sweep, "LARGEST", 2 * 2 * 3 + 9)
    segments.log_z(batch(3, 2, [3], dtype=torch.float32))
    assert steps == [3]


def test_in_stretches(steps: list[int]) -> None:
    """What follows a border is each sequence's own."""
    p, tensors = leaves(batch(4, 3, [9, 8], seed=5, dtype=torch.float32))
    found = torch.autograd.grad(segments.log_z(p, stretch=4).sum(), tensors)
    assert steps == [4, 4, 4, 1, 1, 4, 4, 7, 4, 7, 4, 4]  # none is repeated in other arithmetic
    q, exact = leaves(doubled(p))
    for one, other in zip(found, torch.autograd.grad(segments.log_z(q, "log").sum(), exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
