"""The page of music, written from a folder of made-up runs; the paper's rows against the recipes; our own page."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import archive, language_models, music, runs
from benchmarks.results.command import main
from rankfold.data.music import read_piano_rolls
from rankfold.errors import DataError
from rankfold.models.config import FrameConfig
from rankfold.training.recipes import load_recipe, recipe_names
from tests.benchmarks.results.test_language_models_page import PAGE as HMM_PAGE
from tests.benchmarks.results.test_language_models_page import add_run, record
from tests.data.recordings import MUSIC, needs_music

RESULTS = Path(runs.__file__).parents[2] / "docs" / "results"
HMM, LHMM = "music-hmm-2048", "music-lhmm-2048-512"
PAGE = """# Music

before

<!-- music -->
old table
<!-- end of music -->

after
"""


def records(name: str, updates: int) -> list[dict[str, Any]]:
    """As `rankfold train` writes them; the best evaluation is not the last."""
    frames = music.VALID_FRAMES[name]
    return [
        {"update": 250, "train_nats": 9.5, "valid_nats": 6.125, "valid_tokens": frames, "best": True, "seconds": 30.0},
        {"update": 300, "train_nats": 9.0, "lr": 1e-3, "seconds": 40.0},
        {"update": updates, "valid_nats": 6.25, "valid_tokens": frames, "best": False, "seconds": 60.0},
        {"update": updates, "end": True, "best_valid_nats": 6.125, "test_nats": 5.789, "seconds": 90.0},
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / language_models.PAGE).write_text(HMM_PAGE)
    (tmp_path / music.PAGE).write_text(PAGE)
    return tmp_path


def lines(folder: Path, *start: str) -> list[list[str]]:
    """The cells of the table's lines that begin with these."""
    text = (folder / music.PAGE).read_text()
    found = [line for line in text.splitlines() if line.startswith("| " + " | ".join(start))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_a_finished_run_stands_beside_its_row(folder: Path) -> None:
    name = f"{HMM}-jsb-chorales"
    add_run(folder, name, HMM, records("jsb-chorales", 6000))
    assert main([str(folder)]) == 0
    (line,) = lines(folder, "JSB chorales", "HMM, 2,048 states (1)")
    assert line[2:] == ["5.74", "5.79", "6.12", "9.00", "1", "6,000", "1.5", f"`{name}`"]
    page = (folder / music.PAGE).read_text()
    assert f"- `{name}`: `rankfold train --recipe {HMM} --data jsb-chorales.npz --out run`" in page
    assert page.count("| not run |") == 7
    assert HMM not in (folder / language_models.PAGE).read_text()
    assert not (folder / language_models.PICTURE).exists()  # it is of other models


def test_two_seeds_one_unfinished_and_one_that_stopped(folder: Path) -> None:
    long = f"{LHMM}-long"
    add_run(folder, f"{long}-piano-midi-s1", long, records("piano-midi", 2500))
    sets = ["train.seed=2", "data.window=64", "data.num_streams=4", "model.self_transitions=true"]
    add_run(folder, f"{long}-piano-midi-s2", long, records("piano-midi", 2500)[:1], gpu=None, sets=sets)
    assert main([str(folder)]) == 0
    first, second = lines(folder, "Piano-midi", "LHMM, 2,048 states, rank 512 (1)", "8.89")
    assert first[3:9] == ["5.79", "6.12", "9.00", "1", "2,500 of 6,000, stopped early", "1.5"]
    assert second[3:9] == ["-", "6.12", "9.50", "2", "250 of 6,000, unfinished", "0.5 (CPU)"]
    changed = "--set data.num_streams=4 --set data.window=64 --set train.seed=2 --data piano-midi.npz"
    page = (folder / music.PAGE).read_text()
    assert f"--recipe {long} --set model.self_transitions=true {changed} --out run`" in page


def test_every_row_is_there_without_a_run(folder: Path) -> None:
    assert main([str(folder)]) == 0
    page = (folder / music.PAGE).read_text()
    assert page.count("| not run |") == len(runs.read_published(music.FIGURES)) == 8
    assert [line[2] for line in lines(folder, "Nottingham")] == ["2.43", "2.60"]
    assert all(len(line) == len(music.HEAD) for line in lines(folder, "MuseData"))
    assert "old table" not in page
    assert re.sub("(?s)(<!-- music -->).*(<!-- end)", r"\1\2", page) == re.sub(
        "(?s)(<!-- music -->).*(<!-- end)", r"\1\2", PAGE
    )
    assert main([str(folder)]) == 0  # and writing again changes nothing
    assert (folder / music.PAGE).read_text() == page


def test_runs_of_no_row_come_last_by_their_names(folder: Path) -> None:
    others = {
        f"{HMM}-faithful-musedata": (f"{HMM}-faithful", []),
        f"{HMM}-nottingham-256": (HMM, ["model.num_states=256"]),
        f"{LHMM}-nottingham-rank64": (LHMM, ["model.rank=64"]),
        "mine-jsb-chorales": (HMM, []),
        "small-music-nottingham": ("small-music", []),
    }
    for name, (recipe, sets) in others.items():
        given = next(part for part in runs.MUSIC if part in name)
        add_run(folder, name, recipe, records(given, 6000), sets=sets)
    assert main([str(folder)]) == 0
    page = (folder / music.PAGE).read_text()
    assert page.count("| not run |") == 8
    shown = [line[:4] for line in lines(folder, "")][-5:]
    assert shown == [
        ["Nottingham", f"{HMM}-nottingham-256", "-", "5.79"],
        ["Nottingham", f"{LHMM}-nottingham-rank64", "-", "5.79"],
        ["Nottingham", "small-music-nottingham", "-", "5.79"],
        ["MuseData", f"{HMM}-faithful-musedata", "-", "5.79"],
        ["JSB chorales", "mine-jsb-chorales", "-", "5.79"],
    ]
    assert "--recipe mine-jsb-chorales/recipe.toml --data jsb-chorales.npz" in page
    assert f"--recipe {HMM}-faithful --data musedata.npz" in page
    assert f"--recipe {HMM} --set model.num_states=256 --data nottingham.npz" in page


def test_runs_of_other_frames_have_no_page(folder: Path) -> None:
    with pytest.raises(DataError, match="segment-hsmm-walks: is a model of gaussian frames, whose runs no page shows"):
        add_run(folder, "segment-hsmm-walks", "segment-hsmm", [{"update": 1, "valid_nats": -3.0, "seconds": 1.0}])


def test_nats_of_zero_are_a_number(folder: Path) -> None:
    content = [{"update": 1, "valid_nats": 0.0, "train_nats": 0.0, "test_nats": 0.0, "seconds": 1.0}]
    add_run(folder, "small-music-musedata", "small-music", content)
    (run,) = runs.read_runs(folder)
    assert (run.unit, run.valid, run.train, run.test) == ("nats", 0.0, 0.0, 0.0)


def test_a_run_without_its_set_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(folder, "small-music-s1", "small-music", records("musedata", 300))
    assert main([str(folder)]) == 2
    assert "small-music-s1: is a run on piano rolls, but its name has none of nottingham" in capsys.readouterr().err
    archive.write_archives(folder, [record("small-music-jsb-chorales", "small-music", records("musedata", 300))])
    assert main([str(folder)]) == 2
    assert "82,755 valid frames, but jsb-chorales has 4,602" in capsys.readouterr().err
    archive.write_archives(folder, [record("small-music-musedata", "small-music", records("musedata", 300))])
    assert main([str(folder)]) == 0


def test_what_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, places in (("no marks\n", 0), (PAGE + PAGE, 2)):
        (folder / music.PAGE).write_text(content)
        assert main([str(folder)]) == 2
        assert f"music.md: has {places} places for a table" in capsys.readouterr().err
    (folder / music.PAGE).unlink()
    assert main([str(folder)]) == 0  # a folder of other models has no such page
    name = f"{HMM}-musedata"
    add_run(folder, name, HMM, records("musedata", 6000))
    assert main([str(folder)]) == 2
    assert f"{name} is a run on piano rolls" in capsys.readouterr().err


def test_steps_of_frames_stand_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / music.PAGE).write_text(PAGE + "<!-- steps frames --><!-- end of steps -->\n")
    assert main([str(folder)]) == 2
    assert "steps-frames.json" in capsys.readouterr().err
    row = {"name": "hsmm", "batch": 1, "length": 200, "precision": "tf32", "step_ms": {"median": 2.5, "repeats": 15}}
    row |= {"error": 1e-8, "published_ms": 500.0, "published_mib": 276, "peak_mib": 4.0}
    content = {"rows": [row], "device": "H200", "torch": "2.11", "date": "2026-11-16"}
    (folder / "steps-frames.json").write_text(json.dumps(content))
    assert main([str(folder)]) == 0
    assert "| hsmm | 1 x 200 | 2.50 | 200x | 500 | 4 | 276 | 1.0e-08 |" in (folder / music.PAGE).read_text()


def test_rows_have_recipes_and_recipes_rows() -> None:
    rows = runs.read_published(music.FIGURES)
    named = {name for name in recipe_names() if name.startswith("music-") and not name.endswith(runs.FAITHFUL)}
    tails = ("", "-long", "-long", "")  # long pieces are trained on in windows
    asked = [(f"{s}.npz", r + tail) for s, tail in zip(runs.MUSIC, tails, strict=True) for r in (HMM, LHMM)]
    assert [(row.corpus, row.recipe) for row in rows] == asked
    assert named == {recipe for _, recipe in asked}
    for row in rows:
        model = load_recipe(row.recipe).model
        assert isinstance(model, FrameConfig)
        rank = "" if model.own_rank is None else f", rank {model.own_rank:,}"
        assert row.model.partition(", ")[2] == f"{model.num_states:,} states{rank}"
        assert row.test is not None
    content = tomllib.loads(Path(music.__file__).with_name(music.FIGURES).read_text())
    assert set(content["sources"]) == {row["source"] for row in content["rows"]}


@needs_music
@pytest.mark.parametrize("name", runs.MUSIC)
def test_the_frames_of_a_set_are_those_of_its_file_and_on_our_page(name: str) -> None:
    rolls = read_piano_rolls(MUSIC / f"{name}.npz")
    sizes = [f"{len(rolls[split]):,}, {sum(map(len, rolls[split])):,}" for split in ("train", "valid", "test")]
    assert sum(map(len, rolls["valid"])) == music.VALID_FRAMES[name]
    assert " | ".join([music.TITLES[name], f"`{name}.npz`", *sizes]) in (RESULTS / music.PAGE).read_text()


def test_the_page_is_that_of_its_runs(tmp_path: Path) -> None:
    """And so are the others that the command writes."""
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder)
    assert main([str(folder), "--no-picture"]) == 0
    for page in RESULTS.glob("*.md"):
        assert (folder / page.name).read_text() == page.read_text()
