"""Several programs share a sequence of segments. The interpreter runs them in turn, with a launch for every frame."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankfold import Dense, LowRank, Operator
from rankfold.kernels import segment_scan
from rankfold.operators import without_diagonal
from rankfold.recursions import segments
from rankfold.recursions.segments import passes, sweep
from tests.recursions.build import INF, seeded
from tests.recursions.segment_batches import batch
from tests.recursions.test_segments_fused import apart, check, weights

pytest.importorskip("triton")

from rankfold.kernels.segment_scan import team

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda takes this path without an interpreter")


@pytest.fixture(autouse=True)
def teams(monkeypatch: pytest.MonkeyPatch, poisoned_memory: None) -> list[tuple[int, int]]:
    """As many programs as a GPU has; each pass leaves its programs, and the states of one, here."""
    taken: list[tuple[int, int]] = []
    work = team.scan

    def counted(*arguments: object) -> object:
        taken.append(tuple(arguments[-1]))  # type: ignore[arg-type, call-overload]
        return work(*arguments)

    monkeypatch.setattr(segment_scan, "SHARED_FROM", 0)
    monkeypatch.setattr(team, "scan", counted)
    monkeypatch.setattr(team, "multiprocessors", lambda x: 64)
    for module in (sweep, passes):
        monkeypatch.setattr(module, "triton_serves", lambda *tensors: True)
    return taken


OPERATORS: dict[str, tuple[Operator, tuple[int, int]]] = {
    "dense": (Dense(weights(19, 19)), (3, 8)),
    "dense of logs": (Dense.from_log(weights(19, 19).log() - 100.0), (3, 8)),
    "low rank": (LowRank(weights(19, 3), weights(19, 3, seed=1)), (3, 8)),
    "rank above states": (LowRank(weights(9, 11), weights(9, 11, seed=1)), (2, 8)),
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_value_and_gradients(kind: str, teams: list[tuple[int, int]]) -> None:
    op, divided = OPERATORS[kind]
    check(batch(op.shape[0], 3, [5, 1], final=True, censored=kind != "dense", transition=op, dtype=torch.float32))
    assert teams == [divided] * 2


@pytest.mark.parametrize("zeros", [False, True])
def test_float64(zeros: bool, teams: list[tuple[int, int]]) -> None:
    check(batch(10, 3, [6, 4], zeros=zeros, final=True, censored=zeros), rtol=1e-10, atol=1e-10)
    assert teams[:2] == [(2, 8)] * 2


def test_no_state_after_itself(teams: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is a program; the last one lacks states."""
    monkeypatch.setattr(without_diagonal, "FEW", 0)
    check(batch(53, 3, [4, 2], censored=True, transition=apart(53, 3), dtype=torch.float32))
    assert teams == [(4, 16)] * 2


def test_carried_in(teams: list[tuple[int, int]]) -> None:
    p = batch(9, 3, [4, 2], seed=3, dtype=torch.float32)
    check(p._replace(log_initial=torch.randn(2, 3, 9, generator=seeded(1)), censored=True))
    assert teams == [(2, 8)] * 2


def test_many_ages(teams: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages that no other kernel takes; the segments of a few frames at a time."""
    monkeypatch.setattr(sweep, "LONGEST", 8)
    monkeypatch.setattr(sweep, "BLOCK", 5 * 12 * 9)
    check(batch(9, 12, [12], censored=True, dtype=torch.float32))
    assert teams == [(2, 8)] * 2


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_parts_of_far_sizes(kind: str, teams: list[tuple[int, int]]) -> None:
    """States of one program thousands of nats below another's; impossible sequences."""
    p = batch(19, 2, [4, 4], transition=OPERATORS[kind][0], dtype=torch.float32)
    p.log_obs[0, :, :8] -= 2000.0
    p.log_obs[1, 2] = -INF
    check(p, rtol=1e-6, atol=2e-3)
    assert teams[0] == (3, 8)


def test_too_many_sequences(teams: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs beyond the multiprocessors would wait for ever: larger parts, or one program a sequence."""
    monkeypatch.setattr(team, "multiprocessors", lambda x: 4)
    segments.log_z(batch(19, 2, [2, 2], dtype=torch.float32))
    assert teams == [(2, 16)]
    segments.log_z(batch(19, 2, [2, 2, 2], dtype=torch.float32))
    assert teams == [(2, 16)]


def test_small_windows_keep_to_one_program(teams: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nineteen states and two durations: 38 entries."""
    p = batch(19, 2, [2, 2], dtype=torch.float32)
    for least, passes_of_teams in ((39, 0), (38, 1)):
        monkeypatch.setattr(segment_scan, "SHARED_FROM", least)
        segments.log_z(p)
        assert len(teams) == passes_of_teams


def test_windows_of_three_hundred_entries_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [segment_scan.shared(num_ages, 5) for num_ages in (59, 60)] == [False, True]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rankfold.kernels.segment_scan import team, uses

NUMBERS = {
    "begin", "stop", "num", "num_ages", "num_states", "width", "rank", "team", "size", "of_duration",
    "of_state", "of_age", "of_sequence", "in_first", "out_first", "in_second", "out_second",
}

def compiled(kernel, numbers, **constants):
    kind = lambda x: "constexpr" if x in constants else "*i32" if x == "arrived" else "i32" if x in numbers else "*fp32"
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, {x: kind(x) for x in kernel.arg_names}, places)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["cubin"]

for num_maps in (1, 2, 3):
    compiled(
        team._scan, NUMBERS, AGES=32, STATES=8, RANK=16, TEAM=8, NUM_MAPS=num_maps, NOISE=num_maps == 2,
        LOWEST=-3e38, ALONE=False,
    )
for kernel in (uses._unroll, uses._from_longest, uses._cover):
    cut = {"CUT": True} if kernel is uses._unroll else {}
    compiled(kernel, NUMBERS | {"first"}, TILE=32, AHEAD=8, **cut)
"""


def test_compiles_for_hopper(tmp_path: Path) -> None:
    """Without a GPU; in a process of its own, which has no interpreter."""
    nowhere = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, check=False, env=os.environ | nowhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
