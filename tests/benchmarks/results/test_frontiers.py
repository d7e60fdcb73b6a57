"""The frontier of points, the seconds of an update, and the page's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import frontiers
from benchmarks.results.frontiers import Point, epoch_updates, frontier, published, section, update_seconds
from benchmarks.results.runs import Run
from rankfold.training.recipes import load_recipe


def run(records: list[dict[str, Any]]) -> Run:
    return Run("hmm-4096-ptb", load_recipe("hmm-4096-ptb"), "hmm-4096-ptb", "a GPU", records)


def test_no_point_of_the_frontier_is_beaten_in_both() -> None:
    points = [Point("a", name, value, seconds) for name, value, seconds in [("1", 9, 1), ("2", 7, 2), ("3", 8, 3)]]
    points += [Point("a", "4", 5, 4), Point("a", "5", None, 0.5), Point("a", "6", 1, 0)]
    assert [point.size for point in frontier(points)] == ["1", "2", "4"]


def test_evaluations_do_not_count_as_updates() -> None:
    records = [{"update": u, "epoch": u // 25, "lr": 1.0, "seconds": 2.0 * u} for u in (10, 20, 30)]
    records += [{"update": 30, "epoch": 1, "valid_perplexity": 9.0, "seconds": 160.0}]
    records += [{"update": u, "epoch": u // 25, "lr": 1.0, "seconds": 100 + 2.0 * u} for u in (40, 50)]
    found = run(records)
    assert update_seconds(found) == 2.0
    assert epoch_updates(found) == pytest.approx(22.5)  # the second begins between 40 and 50, of two epochs


@pytest.mark.parametrize("name", ["hmm", "pcfg", "hsmm"])
def test_the_papers_points_have_a_source_and_a_picture(name: str, tmp_path: Path) -> None:
    points = published(name)
    assert points
    table = section([*points, Point("softmax", "3", None, 0.1)], name)
    assert "not run" in table
    assert table.count("paper") >= len(points)
    pytest.importorskip("matplotlib")
    frontiers.draw([*points, Point("softmax", "3", 100.0, 0.1)], name, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
