"""Runs that differ in their precision alone, next to the one in float32."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import precisions
from rankfold.errors import DataError
from tests.benchmarks.test_results import add_run

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
    assert precisions.write(tmp_path, ["page.md"]) == 1
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
        precisions.body(tmp_path, "lhmm")
