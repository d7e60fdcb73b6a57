"""Which setting did what, named by what differs from the base; runs that differ in their precision alone."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import comparisons
from rankfold.errors import DataError
from tests.benchmarks.results.test_language_models_page import FINISHED, add_run

RECIPE = "lhmm-4096-1024-ptb"  # logs every 200 updates


def records(first: float, valid: float) -> list[dict[str, Any]]:
    logged = [
        {"update": update, "train_perplexity": first if update == 200 else 200.0, "seconds": 1.0}
        for update in range(200, 1400, 200)
    ]
    return [*logged, {"update": 1200, "valid_perplexity": valid, "seconds": 2.0}]


def test_runs_are_compared_with_float32(tmp_path: Path) -> None:
    add_run(tmp_path, f"{RECIPE}-float32", RECIPE, records(200.0, 150.0), sets=["train.precision=float32"])
    add_run(tmp_path, f"{RECIPE}-bf16", RECIPE, records(210.0, 153.0), sets=["train.precision=bf16", "train.memory=9"])
    add_run(tmp_path, f"ablations-{RECIPE}/{RECIPE}-base", RECIPE, records(200.0, 149.7))
    add_run(tmp_path, f"ablations-{RECIPE}/{RECIPE}-other", RECIPE, records(1.0, 1.0), sets=["train.lr=1"])
    add_run(tmp_path, "rankpcfg-gum-float32", "rankpcfg-gum", records(1.0, 1.0))
    add_run(tmp_path, f"{RECIPE}-once-more", RECIPE, records(200.0, 150.0), sets=["train.precision=float32"])
    page = tmp_path / "page.md"
    page.write_text(f"<!-- precisions {RECIPE} --><!-- end of precisions -->")
    comparisons.write(tmp_path, ["page.md"])
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")][1:]
    assert lines == [
        f"| `float32` | 150.0 | - | - | - | - | `{RECIPE}-float32` |",
        "| `tf32` | 149.7 | -0.20% | at most 0.00%, 0 of 1 over 1% | at most 0.00%, 0 of 6 over 1% "
        "| at most 0.20%, 0 of 1 over 1% "
        f"| `{RECIPE}-base` |",
        # One of five records of the stretch is 5% apart; the sixth has no whole stretch.
        "| `bf16` | 153.0 | +2.00% | at most 0.98%, 0 of 1 over 1% | at most 5.00%, 1 of 6 over 1% "
        f"| at most 2.00%, 1 of 1 over 1% | `{RECIPE}-bf16` |",
        "| `float32`, again | 150.0 | +0.00% | at most 0.00%, 0 of 1 over 1% | at most 0.00%, 0 of 6 over 1% "
        f"| at most 0.00%, 0 of 1 over 1% | `{RECIPE}-once-more` |",
    ]


def test_without_float32_nothing_can_be_compared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no run lhmm-float32"):
        comparisons.precisions(tmp_path, "lhmm")


def test_a_run_is_named_by_what_differs_from_the_base(tmp_path: Path) -> None:
    recipe = "lhmm-4096-1024-ptb"
    worse = [*FINISHED[:2], {"update": 9000, "valid_perplexity": 163.46, "seconds": 150.0}]
    add_run(tmp_path, f"ablations-lhmm/{recipe}-base", recipe, FINISHED)
    add_run(tmp_path, f"ablations-lhmm/{recipe}-init", recipe, worse, sets=["model.init=xavier", "train.memory=9"])
    (tmp_path / "page.md").write_text("<!-- ablations lhmm --><!-- end of ablations -->")
    comparisons.write(tmp_path, ["page.md"])
    lines = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")]
    assert lines[1] == f"| nothing | 140.0 | - | 130.0 | 100.2 | 1 | 39,000 | 3.0 | `{recipe}-base` |"
    assert lines[2].startswith(
        "| `model.init=xavier` | 163.5 | +23.5 | - | 100.2 | 1 | 9,000 of 39,000, unfinished | 2.5 |"
    )


def test_without_a_base_nothing_can_be_compared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ablations-lhmm has 0 runs whose names end in -base"):
        comparisons.ablations(tmp_path, "lhmm")
