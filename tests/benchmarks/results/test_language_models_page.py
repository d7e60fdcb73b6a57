"""The page of results, written from a folder of made-up runs; and the papers' rows against the shipped recipes."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import archive, pictures, runs
from benchmarks.results.command import main
from benchmarks.results.language_models import PAGE as NAME
from benchmarks.results.language_models import PICTURE
from rankfold.settings import to_mapping
from rankfold.training.recipes import load_recipe, recipe_names

PAGE = """# Results

before

<!-- results ptb -->
old table
<!-- end of results -->

between

<!-- results wikitext-2 --><!-- end of results -->

## A gradient step

after
"""


def record(
    name: str,
    recipe: str,
    metrics: list[dict[str, Any]],
    *,
    gpu: str | None = "H200",
    sets: Any = (),
    evaluation: dict[str, Any] | None = None,
) -> archive.Record:
    settings = {
        table: {key: value for key, value in values.items() if value is not None}
        for table, values in to_mapping(load_recipe(recipe, sets)).items()
    }
    return archive.Record(name, settings, {"cuda_device": gpu}, metrics, evaluation)


def add_run(folder: Path, name: str, recipe: str, metrics: list[dict[str, Any]], **options: Any) -> None:
    """Another run on the page it belongs to."""
    archive.write_archives(folder, [*archive.read_archives(folder), record(name, recipe, metrics, **options)])


FINISHED: list[dict[str, Any]] = [
    {"update": 2000, "train_perplexity": 300.0, "valid_perplexity": 250.0, "seconds": 60.0},
    {"update": 4000, "train_perplexity": 100.25, "seconds": 90.0},
    {"update": 39000, "valid_perplexity": 140.0, "seconds": 150.0},
    {"update": 39000, "valid_perplexity": 141.0, "seconds": 160.0},
    {"update": 39000, "end": True, "best_valid_perplexity": 140.0, "test_perplexity": 130.04, "seconds": 180.0},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_text(PAGE)
    return tmp_path


def lines(folder: Path, start: str) -> list[list[str]]:
    """The cells of the table's lines that begin with a text."""
    text = (folder / NAME).read_text()
    found = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_a_finished_run(folder: Path) -> None:
    add_run(folder, "lhmm-4096-1024-ptb", "lhmm-4096-1024-ptb", FINISHED)
    assert main([str(folder)]) == 0
    (line,) = lines(folder, "LHMM, 4,096 states, rank 1,024 (")
    middle = ["140.0", "130.0", "100.2", "sentences independent", "1", "39,000", "3.0"]
    assert line[1:] == ["156 / -", *middle, "`lhmm-4096-1024-ptb`"]
    page = (folder / NAME).read_text()
    assert "`rankfold train --recipe lhmm-4096-1024-ptb --data ptb --out run`" in page
    assert (folder / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert (folder / PICTURE).stat().st_size < 100_000


def test_the_picture_is_of_one_text_with_names_beside_it(folder: Path) -> None:
    for name, recipe in (("lhmm-4096-1024-wt2", "lhmm-4096-1024-wt2"), ("mine", "small-lhmm")):
        add_run(folder, name, recipe, FINISHED)
    add_run(folder, "small-lhmm-ptb", "small-lhmm", FINISHED, gpu=None)
    assert main([str(folder)]) == 0
    assert not (folder / PICTURE).exists()
    names = [name for name in recipe_names() if name.startswith("lhmm") and "-ptb" in name][:16]
    for name in names:
        add_run(folder, name, name, FINISHED if name == names[0] else FINISHED[:3])
    add_run(folder, "hmm-4096-ptb", "hmm-4096-ptb", FINISHED[1:2])  # not evaluated yet
    add_run(folder, f"{names[0]}-seed2", names[0], FINISHED, sets=["train.seed=2"])
    assert main([str(folder)]) == 0
    assert (folder / PICTURE).exists()
    figure = pictures.plot_perplexities(runs.read_runs(folder))
    assert figure is not None
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    shown = [names[0], *(f"{name} (unfinished)" for name in names[1:])]
    assert [line.get_label() for line in axes.lines] == [text.get_text() for text in legend.get_texts()] == shown
    box, whole = legend.get_window_extent(), figure.bbox
    assert axes.get_window_extent().x1 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1


def test_what_is_outside_the_marks_stays(folder: Path) -> None:
    add_run(folder, "lhmm-4096-1024-ptb", "lhmm-4096-1024-ptb", FINISHED)
    for _ in range(2):  # and writing again changes nothing
        assert main([str(folder), "--no-picture"]) == 0
        page = (folder / NAME).read_text()
        assert re.sub(r"(?s)(<!-- results [\w-]+ -->).*?(<!-- end)", r"\1\2", page) == re.sub(
            r"(?s)(<!-- results [\w-]+ -->).*?(<!-- end)", r"\1\2", PAGE
        )
        assert "old table" not in page
    assert not (folder / PICTURE).exists()


def test_a_run_that_is_not_finished_and_one_that_stopped(folder: Path) -> None:
    rank = "rank-16384-2048-ptb-faithful"
    add_run(folder, "vlhmm-1024-ptb-faithful", "vlhmm-1024-ptb-faithful", FINISHED[:1], gpu=None)
    add_run(folder, rank, rank, FINISHED)
    assert main([str(folder)]) == 0
    (line,) = lines(folder, "VL-HMM, 1,024 states (")
    assert line[2:9] == ["250.0", "-", "300.0", "state carried", "1", "2,000 of 90,800, unfinished", "1.0 (CPU)"]
    (line,) = lines(folder, "Rank-space HMM, 16,384 states, rank 2,048 (")
    assert line[7] == "39,000 of 195,600, stopped early"


def test_two_seeds_and_another_setting(folder: Path) -> None:
    name = "hmm-4096-ptb"
    add_run(folder, name, name, FINISHED)
    add_run(folder, f"{name}-seed2", name, FINISHED, sets=["train.seed=2", "train.log_every=7", "model.init=xavier"])
    add_run(folder, f"{name}-faithful", f"{name}-faithful", FINISHED)
    assert main([str(folder), "--no-picture"]) == 0
    found = lines(folder, "HMM, 4,096 states (")
    assert [line[6] for line in found] == ["1", "1", "2"]
    assert [line[9] for line in found] == [f"`{name}`", f"`{name}-faithful`", f"`{name}-seed2`"]
    page = (folder / NAME).read_text()
    assert f"--recipe {name} --set model.init=xavier --set train.seed=2 --data ptb" in page
    assert f"--recipe {name}-faithful --data ptb" in page


def test_every_row_is_there_with_or_without_a_run(folder: Path) -> None:
    assert main([str(folder)]) == 0
    page = (folder / NAME).read_text()
    rows = runs.read_published()
    assert page.count("| not run |") == len(rows) > 40
    assert lines(folder, "VL-HMM, 32,768 states (")[0][1] == "125 / 116 (second hand, state carried)"
    assert page.index("not run") < page.index("between") < page.rindex("not run") < page.index("A gradient step")
    assert not (folder / PICTURE).exists()


def test_a_run_of_no_paper(folder: Path) -> None:
    add_run(folder, "mine-ptb", "small-lhmm", FINISHED)
    assert main([str(folder), "--no-picture"]) == 0
    (line,) = lines(folder, "mine-ptb")
    assert line[1:3] == ["-", "140.0"]
    assert "--recipe mine-ptb/recipe.toml --data ptb" in (folder / NAME).read_text()


def test_what_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    (folder / NAME).write_text("no marks\n")
    assert main([str(folder)]) == 2
    assert "has marks for nothing" in capsys.readouterr().err


def test_rows_have_recipes_and_recipes_rows() -> None:
    """A recipe of a paper without a row would never show, a row without a recipe could never be run."""
    rows = runs.read_published()
    names = [row.recipe for row in rows]
    assert len(set(names)) == len(names)
    assert set(names) == {name for name in recipe_names() if re.search("-(ptb|wt2)$", name) and "pcfg" not in name}
    for row in rows:
        assert row.corpus == ("wikitext-2" if row.recipe.endswith("wt2") else "ptb")
        sizes = [
            int(size.replace(",", "")) for size in re.findall(r"([\d,]+) states|rank ([\d,]+)", row.model)[0] if size
        ]
        assert load_recipe(row.recipe).model.num_states == sizes[0]


def test_sources_are_all_used() -> None:
    content = tomllib.loads(Path(runs.__file__).with_name("published.toml").read_text())
    assert set(content["sources"]) == {row["source"] for row in content["rows"] if "source" in row}
    assert all("source" in row for row in content["rows"] if "valid" in row or "test" in row)


def test_tables_stand_on_the_page_or_its_appendices(folder: Path) -> None:
    (folder / NAME).write_text("# Short\n<!-- chosen ptb --><!-- end of chosen -->\n")
    appendix = folder / NAME.replace(".md", "-runs.md")
    appendix.write_text(PAGE)
    recipe = "lhmm-4096-1024-ptb"
    add_run(folder, recipe, recipe, FINISHED)
    add_run(folder, f"{recipe}-seed2", recipe, FINISHED, sets=["train.seed=2"])  # not the recipe itself
    add_run(folder, "hmm-4096-ptb", "hmm-4096-ptb", FINISHED[:2])  # unfinished
    assert main([str(folder), "--no-picture"]) == 0
    cells = ["LHMM, 4,096 states, rank 1,024", "156 / -", "140.0", "130.0", "3.0", f"`{recipe}`"]
    assert lines(folder, "")[1:] == [cells]  # below the head
    assert f"| `{recipe}-seed2` |" in appendix.read_text()
