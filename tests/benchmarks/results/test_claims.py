"""Figures of runs in what the pages say: filled from the archive, up to date, never of a run that is not there."""

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from benchmarks.results import claims, marks
from benchmarks.results.command import main
from benchmarks.results.runs import Run, read_runs
from rankfold.errors import DataError

RESULTS = Path(claims.__file__).parents[2] / "docs" / "results"
PAPERS = ("low-rank", "low-rank-appendices", "rank-space", "scaling")


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {run.name: run for run in read_runs(RESULTS)}


def test_the_pages_are_those_of_the_runs(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "results"
    shutil.copytree(RESULTS, folder)
    assert main([str(folder), "--no-picture"]) == 0
    for path in RESULTS.glob("*.md"):
        assert (folder / path.name).read_text() == path.read_text(), "python -m benchmarks.results docs/results"


def test_results_of_commands_come_with_the_runs(tmp_path: Path) -> None:
    folder, source = tmp_path / "docs" / "results", tmp_path / "source"
    shutil.copytree(RESULTS, folder)
    source.mkdir()
    row = {"valid": 105.25, "test": 99.75, "parameters": 2_600_000, "minutes": 4.0}
    for name, content in (
        ("mixture-ptb", {"valid": 118.5, "test": 111.5, "minutes": 16.0, "parts": []}),
        ("baselines-ptb-lstm-256", {"models": {"LSTM, 2 layers of 256": row}}),
    ):
        (source / f"{name}.json").write_text(json.dumps(content))
    with tarfile.open(tmp_path / "results.tar.gz", "w:gz") as archive:
        for path in source.iterdir():
            archive.add(path, path.name)
    assert main([str(folder), "--add", str(tmp_path / "results.tar.gz"), "--no-picture"]) == 0
    page = (folder / "hmm-language-models.md").read_text()
    assert "| four HMMs side by side, as one | 118.5 | 111.5 | 16.0 | `mixture-ptb` |" in page
    assert "| LSTM, 2 layers of 256 | 105.2 | 99.8 | 2.6M | 4.0 |" in page
    assert "| Kneser-Ney, order 5 | 148.0 | 141.2 |" in page


def test_every_text_stands_on_one_page_and_every_paper_has_its_own() -> None:
    found = {path.name: marks.find(path, claims.KIND) for path in RESULTS.glob("*.md")}
    assert sorted(name for names in found.values() for name in names) == sorted(claims.read_texts())
    assert {page: names for page, names in found.items() if page.startswith("paper-")} == {
        f"paper-{name}.md": [name] for name in PAPERS
    }


def test_no_figure_of_ours_is_typed_by_hand() -> None:
    """The cell of what was measured holds sizes and published figures, but no decimals of its own."""
    for name in PAPERS:
        for line in claims.read_texts()[name].splitlines()[2:]:
            measured = line.split(" | ")[1]
            assert not re.search(r"\d\.\d", re.sub(r"\{[^{}]+\}", "", measured)), line


def test_figures(runs: dict[str, Run]) -> None:
    def fill(text: str) -> str:
        return claims.fill(text, runs)

    assert fill("at {valid hmm-16384-ptb hmm-4096-ptb}, {test rank-32768-4096-ptb}.") == "at 123.7, 128.8, 118.7."
    assert fill("{test music-hmm-2048-jsb-chorales} in {minutes music-hmm-2048-jsb-chorales}") == "5.49 in 0.7"
    assert fill("{mean f1 rankpcfg-4500-9000-ptb-s1 rankpcfg-4500-9000-ptb-s2}") == "58.7"
    assert fill("{gap valid vlhmm-16384-uniform-ptb vlhmm-16384-ptb}") == "14.2"
    assert fill("{below valid hmm-4096-ptb hmm-16384-ptb}") == "20 to 26"
    assert fill("{if valid hmm-4096-ptb < 155: yes: no}") == "yes"
    assert fill("{if valid hmm-4096-ptb < valid hmm-16384-ptb: yes: no}") == "no"


def test_a_run_that_is_not_there_or_not_finished(runs: dict[str, Run]) -> None:
    for text in ("{test gone}", "{mean f1 gone rankpcfg-4500-9000-ptb-s1}", "{if valid gone < 3: yes: no}"):
        assert claims.fill(text, runs) == "not run"
    assert claims.fill("{f1 gone rankpcfg-4500-9000-ptb-s1}", runs) == "not run, 63.3"
    assert not runs["vlhmm-16384-ptb-faithful"].finished
    assert claims.fill("{valid vlhmm-16384-ptb-faithful}", runs) == "not run"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{sales hmm-4096-ptb}", "asks for none of valid"),
        ("{mean}", "asks for none of valid"),
        ("{if valid hmm-4096-ptb > 3: yes: no}", "is not {if QUANTITY RUN < NUMBER"),
        ("{below test hmm-4096-ptb}", "no test figure of hmm-4096-ptb is published"),
    ],
)
def test_marks_that_cannot_be_filled(text: str, words: str, runs: dict[str, Run]) -> None:
    with pytest.raises(DataError, match=re.escape(words)):
        claims.fill(text, runs)


def test_a_mark_without_a_text(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- figures songs -->\n<!-- end of figures -->\n")
    with pytest.raises(DataError, match="the mark figures songs"):
        claims.write(tmp_path, [])
