"""The command that decides what is prepared for a GPU: its kernels in Triton's interpreter, and what it concludes."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.steps.cases import shrink
from benchmarks.steps.tables import grammar_cases
from benchmarks.two_ways import PACKED, PAIRS, SHARED, compare
from rankfold.errors import UnsupportedError
from rankfold.kernels import segment_scan
from rankfold.recursions.segments import passes, sweep
from rankfold.recursions.tree import packed, pairs

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the command itself")


def row(
    way: Any,
    name: str,
    gain: float | None,
    *,
    passed: bool = True,
    precision: str = "tf32",
    window: int = 0,
    part: str = "simple",
) -> Any:
    ms = {} if gain is None else {"usual_ms": 10.0, "ms": 10 * gain}
    size = {"row": name, "size": "16 x 40", "precision": precision, "window": window}
    return {"part": part, "way": way.name, **size, "passed": passed, **ms}


def test_a_precision_is_chosen_where_every_row_is_right_and_faster() -> None:
    rows = [
        row(PACKED, "spcfg, 4,096 / 8,192 symbols", 0.5),
        row(PACKED, "rankpcfg, 4,500 / 9,000 symbols", 0.97),
        row(PACKED, "tnpcfg, 250 / 500 symbols", 0.99),
        row(PACKED, "spcfg, 4,096 / 8,192 symbols", 0.3, precision="bf16"),
        row(PACKED, "rankpcfg, 4,500 / 9,000 symbols", 0.3, precision="bf16", passed=False),
        row(PACKED, "tnpcfg, 250 / 500 symbols", None, precision="bf16"),
        row(PAIRS, "npcfg, 30 / 60 symbols", 0.4),
        row(PAIRS, "npcfg, 100 / 200 symbols", 1.2),
        row(PAIRS, "lpcfg, 100 / 200 symbols", 0.4),
        row(PAIRS, "npcfg, 30 / 60 symbols", 0.4, precision="bf16"),
    ]
    found = gpu.decisions(rows)
    assert found["recursions/tree/packed.py CHOSEN"] == [["tf32", False]]
    assert found["recursions/tree/pairs.py CHOSEN"] == [["tf32", "low rank"], ["bf16", "dense"]]
    aims = {x["precision"]: x for x in found["aims"] if x["row"].startswith("spcfg")}
    assert (aims["tf32"]["ms"], aims["tf32"]["kept"]) == (5.0, True)
    assert [x["row"] for x in found["failed"]] == ["rankpcfg, 4,500 / 9,000 symbols"]


def test_the_record_has_what_is_right_and_was_timed() -> None:
    rows = [
        row(PACKED, "a tree", 0.5),
        row(PACKED, "a wrong one", 0.5, passed=False),
        row(PACKED, "one without times", None),
        row(SHARED, "segments", 0.25),
        row(SHARED, "long ones", 0.25, part="durations"),
    ]
    found = gpu.timed(rows)["rows"]
    assert [(x["structure"], x["name"], x["ours_ms"] / x["peer_ms"]) for x in found] == [
        ("Trees", "a tree", 0.5),
        ("Segments", "segments", 0.25),
    ]


@pytest.mark.parametrize(
    ("gains", "least"),
    [
        ({10: [0.5], 20: [0.5, 1.2], 30: [0.9], 40: [0.2]}, 30),
        ({10: [0.5], 20: [0.5]}, 10),
        ({10: [0.5], 20: [1.5]}, None),
        ({}, None),
    ],
)
def test_windows_are_shared_from_where_all_larger_ones_gain(gains: dict[int, list[float]], least: int | None) -> None:
    rows = [row(SHARED, "x", gain, window=window) for window, found in gains.items() for gain in found]
    assert gpu.decisions(rows)["kernels/segment_scan SHARED_FROM"] == least


@no_gpu
def test_parts_leave_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All prepared ways run, are right, and are off again; one that raises is told, and the next one goes on."""
    pytest.importorskip("triton")
    from rankfold.kernels.segment_scan import team

    taken: list[str] = []
    chosen, least = (packed.CHOSEN, pairs.CHOSEN), segment_scan.SHARED_FROM
    for module in (packed, pairs, sweep, passes):
        monkeypatch.setattr(module, "triton_serves", lambda *tensors: True)
    monkeypatch.setattr(team, "multiprocessors", lambda x: 64)
    for module, name in ((packed, "inside"), (pairs, "kept"), (team, "scan")):
        work = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *x, work=work, name=name: (taken.append(name), work(*x))[1])
    jobs = list(gpu.PARTS["segments"].jobs(True))[:1]
    jobs.insert(0, ("broken", lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    jobs += list(gpu.PARTS["ranks"].jobs(True))[:1]
    (lpcfg,) = (case for case in grammar_cases() if case.config.family == "lpcfg")
    few = shrink(lpcfg)._replace(batch=2, length=4)
    jobs.append(("pairs", partial(compare, few, PAIRS, ("tf32",), torch.device("cpu"), 1)))
    monkeypatch.setitem(gpu.PARTS, "fgg", gpu.Part(9, lambda small: iter(jobs)))
    assert gpu.main(["--small", "--here", "--parts", "fgg", "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert rows[0]["failed"] == "ZeroDivisionError: division by zero"
    assert [(x["way"], x["precision"], x["passed"]) for x in rows[1:]] == [
        (SHARED.name, "tf32", True),
        (PACKED.name, "tf32", True),
        (PACKED.name, "bf16", True),
        (PAIRS.name, "tf32", True),
    ]
    assert set(taken) == {"inside", "kept", "scan"}
    assert (chosen, least) == ((packed.CHOSEN, pairs.CHOSEN), segment_scan.SHARED_FROM)


@no_gpu
def test_a_part_that_hangs_costs_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.PARTS, "fgg", gpu.PARTS["fgg"]._replace(seconds=0))
    assert gpu.main(["--small", "--parts", "fgg", "--out", str(tmp_path)]) == 1
    monkeypatch.setitem(gpu.PARTS, "fgg", gpu.PARTS["fgg"]._replace(seconds=0.5))
    assert gpu.main(["--small", "--parts", "fgg", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "decisions.json").read_text())
    assert [x["failed"] for x in found["failed"]] == ["no time was left", "was not done after 0 s"]


@no_gpu
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="--small"):
        gpu.main(["--out", str(tmp_path)])
