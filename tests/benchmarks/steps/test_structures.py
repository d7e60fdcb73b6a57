"""One table a structure, from committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import marks
from benchmarks.steps.structures import RECORDS, _record, main, tables
from rankfold.errors import DataError

DOCS = Path(__file__).parents[3] / "docs"


def record(**changes: Any) -> dict[str, Any]:
    row = {"name": "a chain", "family": "hmm", "batch": 2, "length": 3, "precision": "tf32"}
    row |= {"step_ms": {"median": 4.0}, "published_ms": 8.0, "floor_ms": 1.0}
    return {"device": "a GPU", "torch": "2", "date": "today", "rows": [row | changes]}


def test_a_row_has_the_ratio_and_the_share_of_the_floor() -> None:
    assert "| a chain | 2 x 3 | tf32 | 8.00 | 4.00 | 2.00x | 1.00 | 25.0% |" in tables([record()])


def test_a_loss_is_in_bold_and_what_is_not_known_a_dash() -> None:
    assert "| **0.500x** |" in tables([record(published_ms=2.0)])
    assert "| - | 4.00 | - | - | - |" in tables([record(published_ms=None, floor_ms=None)])


def test_every_family_of_the_records_has_its_structure() -> None:
    records = [_record(DOCS / "results" / f"steps-{name}.json") for name in RECORDS]
    timed = sum(row["step_ms"] is not None for one in records for row in one["rows"])
    body = tables(records)
    assert sum(line.startswith("| ") and " x " in line and "batch" not in line for line in body.splitlines()) == timed
    assert body in (DOCS / "benchmarks.md").read_text(encoding="utf-8"), "run `python -m benchmarks structures`"


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(DOCS / "results")
    (tmp_path / "benchmarks.md").write_text("# Benchmarks\n")
    with pytest.raises(DataError, match="has no part"):
        main(["--docs", str(tmp_path)])
    assert marks.find(DOCS / "benchmarks.md", "structures") == [""]
