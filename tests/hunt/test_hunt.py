"""A short hunt with a fixed seed, and every deviation it ever kept."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.hunt.__main__ import main
from tests.hunt.kind import Case, Deviation, Kind
from tests.hunt.kinds import kind_named, kinds
from tests.hunt.runner import REGRESSIONS, Hunt, keep

SEED = 20
CASES = {"problem": 80, "kernel": 160, "file": 20}  # of each kind: docs/reliability.md


@pytest.mark.parametrize("part", [0, 1])  # one for each test process
def test_a_short_hunt_finds_nothing(part: int, tmp_path: Path) -> None:
    """The same cases on every machine; `make hunt` draws new ones for as long as it is given."""
    hunt = Hunt(kinds(), SEED, first=part, step=2)
    for kind in hunt.kinds:
        for _ in range(CASES[kind.unit] // 2):
            hunt.take(kind)
    for found in hunt.found:
        keep(found, tmp_path)
    assert not hunt.found, "\n".join(f"{one.kind}, {one.what}: {one.detail}\n{one.program}" for one in hunt.found)
    assert [counts.cases for counts in hunt.counts.values()] == [CASES[kind.unit] // 2 for kind in kinds()]


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*.json")), ids=lambda path: path.stem)
def test_what_it_once_found_stays_right(path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kind_named(kept["kind"]).check(kept["case"]) is None


class _Wrong(Kind):
    """Deviates from 7 on; raises from 100 on."""

    name = "wrong"

    def draw(self, rng: np.random.Generator) -> Case:
        return {"x": int(rng.integers(0, 120))}

    def check(self, case: Case) -> Deviation | None:
        if case["x"] >= 100:
            raise KeyError(case["x"])
        return Deviation("seven", str(case["x"])) if case["x"] >= 7 else None

    def smaller(self, case: Case) -> Iterator[Case]:
        yield {"x": case["x"] // 2}
        yield {"x": case["x"] - 1}


def test_a_deviation_is_shrunk_counted_and_kept(tmp_path: Path) -> None:
    hunt = Hunt([_Wrong()], seed=0)
    hunt.run(seconds=0.2)
    assert {(one.what.split()[0], one.case["x"]) for one in hunt.found} == {("seven", 7), ("KeyError", 100)}
    counts = hunt.counts["wrong"]
    assert len(hunt.found) < counts.deviations < counts.cases
    kept = json.loads(keep(hunt.found[0], tmp_path).read_text())
    assert kept["case"] == hunt.found[0].case
    assert kept["seed"] == 0


def test_the_same_seed_draws_the_same_cases() -> None:
    first, again, halves = Hunt([_Wrong()], seed=3), Hunt([_Wrong()], seed=3), Hunt([_Wrong()], seed=3, first=1, step=2)
    for hunt in (first, again, halves):
        hunt.run(seconds=0.05)
    assert first.found[0].index == again.found[0].index
    assert halves.found[0].index % 2 == 1


def test_an_unknown_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kinds", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
