"""The planner against every row of the committed tables, steps on one H200: seconds bound below, bytes above."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.steps.cases import Case
from benchmarks.steps.tables import frame_cases, grammar_cases, million_cases

RESULTS = Path(__file__).parents[3] / "docs" / "results"
TABLES = {"million": million_cases, "grammars": grammar_cases, "frames": frame_cases}
# Shares of the time: a lower bound, and of the large steps of chains, which calls do not bind, not a far one. Rates are
# four fifths of the ceilings, so a bound may be a little above.
MOST_SECONDS, LEAST_SECONDS = 1.2, {"rank": 0.6, "lhmm": 0.6, "hmm": 0.35, "block": 0.45, "banded": 0.25}
# Shares of the peak: a run that starts because its plan fits must not end for want of memory, so a bound is never
# far below. Far above, a run is cut into smaller parts than it needs.
LEAST_BYTES = 0.97
BYTES = {"million": 1.2, "grammars": 1.9, "frames": 3.0}


def rows(table: str) -> list[tuple[Case, dict[str, Any]]]:
    """The cases of a table with what was measured of them."""
    measured = json.loads((RESULTS / f"steps-{table}.json").read_text())["rows"]
    by_name = {(case.name, case.batch, case.length): case for case in TABLES[table]()}
    return [(by_name[row["name"], row["batch"], row["length"]], row) for row in measured]


@pytest.mark.parametrize("table", TABLES)
def test_plans_bound_what_was_measured(table: str) -> None:
    found = rows(table)
    assert len(found) >= 6
    for case, row in found:
        plan = case.plan(torch.device("cuda"), row["precision"])
        times, held = 1e3 * plan.seconds / row["step_ms"]["median"], plan.peak_bytes / 2**20 / row["peak_mib"]
        least = LEAST_SECONDS.get(case.config.family, 0.0)
        assert least <= times < MOST_SECONDS, (row["name"], row["precision"], times)
        assert LEAST_BYTES < held < BYTES[table], (row["name"], row["precision"], held)
