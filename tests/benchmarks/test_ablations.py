"""Which setting did what: lines are named by what differs from the base."""

from pathlib import Path

import pytest

from benchmarks import ablations
from rankfold.errors import DataError
from tests.benchmarks.test_results import FINISHED, add_run


def test_a_run_is_named_by_what_differs_from_the_base(tmp_path: Path) -> None:
    recipe = "lhmm-4096-1024-ptb"
    worse = [*FINISHED[:2], {"update": 9000, "valid_perplexity": 163.46, "seconds": 150.0}]
    add_run(tmp_path, f"ablations-lhmm/{recipe}-base", recipe, FINISHED)
    add_run(tmp_path, f"ablations-lhmm/{recipe}-init", recipe, worse, sets=["model.init=xavier", "train.memory=9"])
    (tmp_path / "page.md").write_text("<!-- ablations lhmm --><!-- end of ablations -->")
    assert ablations.write(tmp_path, ["page.md"]) == 1
    lines = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")]
    assert lines[1] == f"| nothing | 140.0 | - | 130.0 | 100.2 | 1 | 39,000 | 3.0 | `{recipe}-base` |"
    assert lines[2].startswith(
        "| `model.init=xavier` | 163.5 | +23.5 | - | 100.2 | 1 | 9,000 of 39,000, unfinished | 2.5 |"
    )


def test_without_a_base_nothing_can_be_compared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ablations-lhmm has 0 runs whose names end in -base"):
        ablations.body(tmp_path, "lhmm")
