"""One table a structure, from committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import marks
from benchmarks.steps import timed
from benchmarks.steps.aims import aimed_ms
from benchmarks.steps.baselines import Ceilings
from benchmarks.steps.structures import RECORDS, TIMED, _record, main, page, tables
from benchmarks.steps.timed import Timed, chain_step, em_step, segment_step, tree_step
from rankfold.errors import DataError

DOCS = Path(__file__).parents[3] / "docs"


def record(device: str = "NVIDIA H200", **changes: Any) -> dict[str, Any]:
    row = {"name": "a chain", "family": "hmm", "batch": 2, "length": 3, "precision": "tf32"}
    row |= {"step_ms": {"median": 4.0}, "published_ms": 8.0, "floor_ms": 1.0, "reference_ms": {"median": 6.0}}
    return {"device": device, "torch": "2", "date": "today", "rows": [row | changes]}


def test_a_row_has_the_ratio_and_the_share_of_the_floor() -> None:
    row = "| GPU | a chain | 2 x 3 | tf32 | authors | 8.00 | 4.00 | 2.00x | 0.500x | 1.00 | 25.0% |"
    assert row in tables([record()], {})
    assert "| CPU | a chain | 2 x 3 | tf32 | plain torch | 6.00 | 4.00 | 1.50x |" in tables([record("a CPU")], {})


def test_a_step_that_was_timed_later_has_that_time() -> None:
    again = {"name": "a chain", "size": "2 x 3", "precision": "tf32", "structure": "Chains", "ours_ms": 2.0}
    again |= {"peer": "before", "peer_ms": 3.0, "floor_ms": None}
    other = again | {"name": "another"}
    for date, ms in (("tomorrow", "2.00"), ("before", "4.00")):
        body = tables([record()], {"ways": record() | {"date": date, "on": "GPU", "rows": [again, other]}})
        assert body.count("| a chain |") == 1
        assert f"| GPU | a chain | 2 x 3 | tf32 | authors | 8.00 | {ms} |" in body
        assert "| GPU | another | 2 x 3 | tf32 | before | 3.00 | 2.00 | 1.50x |" in body


def test_a_loss_is_in_bold_and_what_is_not_known_a_dash() -> None:
    assert "| **0.500x** | **2.00x** |" in tables([record(published_ms=2.0)], {})
    assert "| - | 4.00 | - | - | - | - |" in tables([record(published_ms=None, floor_ms=None)], {})


@pytest.mark.parametrize(
    ("on", "name", "size", "precision", "peer", "aim"),
    [
        ("GPU", "npcfg, 30 / 60 symbols", "4 x 40", "tf32", 176.1, 4.0),
        ("GPU", "npcfg, 30 / 60 symbols", "4 x 40", "bf16", 176.1, 176.1),
        ("CPU", "npcfg, 30 / 60 symbols", "4 x 40", "tf32", None, None),
        ("CPU", "Gaussian HMM, 4 states, EM step", "50 x 500", "float64", 3.0, 2.0),
        ("CPU", "Gaussian HMM, 64 states, EM step", "50 x 500", "float64", 5.0, 1.0),
        ("CPU", "Gaussian HMM, 4 states, score", "1 x 20,000", "float64", 3.0, 3.0),
        ("GPU", "pcfg as a grammar of one's own, 30 / 60 symbols", "4 x 40", "float32", 10.0, 50.0),
    ],
)
def test_aims(on: str, name: str, size: str, precision: str, peer: float | None, aim: float | None) -> None:
    assert aimed_ms(on, name, size, precision, peer) == pytest.approx(aim)


def test_records_that_are_missing_are_named_with_their_commands() -> None:
    body = tables([record()], {})
    for name, (_, command) in TIMED.items():
        assert f"not timed; `{command} --json docs/results/timed-{name}.json`" in body


def test_a_timed_row_has_a_floor_of_arithmetic_or_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = Ceilings(bytes_per_second=80.0, multiply_adds_per_second={"float32": 10.0})
    monkeypatch.setattr(timed, "measure_ceilings", lambda device, precisions: ceilings)
    by_sums = Timed("Chains", "x", "1 x 2", "float32", 400.0, 1.0, 1.0, "a peer", 200.0)
    by_memory = by_sums._replace(precision="float64", multiply_adds=0.1, numbers=5.0)
    timed.write(tmp_path / "timed-few.json", "a command", [by_sums, by_memory])
    found = _record(tmp_path / "timed-few.json")
    assert [row["floor_ms"] for row in found["rows"]] == pytest.approx([100.0, 500.0])
    body = tables([record()], {"few": found})
    assert "| x | 1 x 2 | float32 | a peer | 200 | 400 | **0.500x** | **2.00x** | 100 | 25.0% |" in body
    assert "benchmarks few" not in body


def test_the_work_of_a_step() -> None:
    assert chain_step(2, 3, 5)[0] == 3 * 2 * 3 * 25
    assert segment_step(1, 4, 3, 2)[0] == 3 * 4 * 3 * (3 + 2)
    # Three words: two spans of one split each, one of two; pairs of 3 symbols, 1 of which are parents.
    assert tree_step(1, 3, 1, 2)[0] == 3 * 9 * (4 + 3 * 1)
    assert em_step(1, 10, 2, 12)[0] == 3 * 10 * 4 + 4 * 10 * 2 * 12


def test_every_family_of_the_records_has_its_structure() -> None:
    records = [_record(DOCS / "results" / f"steps-{name}.json") for name in RECORDS]
    every = sum(row["step_ms"] is not None for one in records for row in one["rows"])
    body = tables(records, {})
    assert sum(line.startswith(("| CPU ", "| GPU ")) for line in body.splitlines()) == every
    found = page(DOCS / "results")
    assert found in (DOCS / "benchmarks.md").read_text(encoding="utf-8"), "run `python -m benchmarks structures`"


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(DOCS / "results")
    (tmp_path / "benchmarks.md").write_text("# Benchmarks\n")
    with pytest.raises(DataError, match="has no part"):
        main(["--docs", str(tmp_path)])
    assert marks.find(DOCS / "benchmarks.md", "structures") == [""]
