"""The table of six models: from our own runs and the papers' rows, the same in the README as on the page of results."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.results import runs, summary
from benchmarks.results.command import main
from tests.benchmarks.results.test_language_models_page import FINISHED, NAME, PAGE, add_run

ROOT = Path(summary.__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
MARKS = "<!-- summary -->\nold\n<!-- end of summary -->\n"


def test_six_lines_stand_first_on_the_page_and_in_the_readme(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "results"
    shutil.copytree(RESULTS, folder)
    for path in (folder / summary.PAGE, tmp_path / summary.README):
        path.write_text(f"before\n{MARKS}after\n")
    assert main([str(folder), "--no-picture"]) == 0
    table = summary.table(runs.read_runs(RESULTS))
    assert len(table.splitlines()) == 2 + 6
    for path in (folder / summary.PAGE, tmp_path / summary.README):
        assert path.read_text() == f"before\n<!-- summary -->\n\n{table}\n\n<!-- end of summary -->\nafter\n"
    for path in (RESULTS / summary.PAGE, ROOT / summary.README):
        assert table in path.read_text(), f"{path}: python -m benchmarks.results docs/results"


def test_figures_are_those_of_the_pages() -> None:
    """Read off the tables of the pages, whose lines have the same runs; not by the code that wrote them."""
    lines = [_split(line) for line in summary.table(runs.read_runs(RESULTS)).splitlines()[2:]]
    columns = {"valid": "valid", "test": "test", "f1": "sentence F1, uf1"}
    for line, entry in zip(lines, summary.LINES, strict=True):
        found = _row_of(", ".join(f"`{name}`" for name in entry.runs))
        assert line[3].split(" ")[0] == found[columns[entry.of]].split(" ")[0]
        assert line[4] == found["GPU minutes"]
        assert line[5].startswith("`rankfold train --recipe ")


def _row_of(names: str) -> dict[str, str]:
    """By column, the cells of the line of a page that ends with these runs."""
    for page in sorted(RESULTS.glob("*.md")):
        head: list[str] = []
        for before, line in pairwise(page.read_text().splitlines()):
            head = _split(before) if line.startswith("|---") else head
            if line.endswith(f"| {names} |"):
                return dict(zip(head, _split(line), strict=True))
    raise AssertionError(f"no page has the runs {names}")


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_run_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / NAME).write_text(PAGE)
    (tmp_path / summary.PAGE).write_text(MARKS)
    add_run(tmp_path, "hmm-16384-ptb", "hmm-16384-ptb", FINISHED)
    assert main([str(tmp_path), "--no-picture"]) == 2
    assert "needs the run lhmm-16384-2048-ptb" in capsys.readouterr().err
