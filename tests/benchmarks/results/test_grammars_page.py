"""The page of grammars, written from a folder of made-up inductions; and the papers' rows against the recipes."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import grammar_runs, grammars, language_models
from benchmarks.results.command import main
from rankfold.training.recipes import load_recipe, recipe_names
from tests.benchmarks.results.test_language_models_page import PAGE as HMM_PAGE
from tests.benchmarks.results.test_language_models_page import add_run

NAMES = ("ptb", "symbols", "lpcfg", "children", "gum", "cess-esp", "curves", "runs", "seeds")
PAGE = "# Grammars\n" + "".join(
    f"\nbefore {name}\n\n<!-- grammars {name} -->\nold\n<!-- end of grammars -->\n" for name in NAMES
)
TEXTS = {"ptb-text": 3901, "gum": 1248, "cess-esp": 576}


def scores(f1: float) -> dict[str, Any]:
    """One above the other, so that no column can be taken for its neighbour."""
    names = {"uf1": 0, "uf1_distinct": 1, "kim": 2, "kim_nonempty": 3}
    return {name: {"sentence": (f1 + i) / 100, "corpus": (f1 + 10 + i) / 100} for name, i in names.items()}


def add(folder: Path, name: str, recipe: str, data: str, f1: float | None, valid: float, **options: Any) -> None:
    """A run of 23,500 updates, 90 seconds, and its evaluation (f1 None: without scores)."""
    seed, finished, bound = options.get("seed", 1), options.get("finished", True), options.get("bound", {})
    sets = options.get("sets", [])
    planned = load_recipe(recipe, sets).train.updates
    records: list[dict[str, Any]] = [{"update": 100, "valid_perplexity": valid, "best": True, "seconds": 60.0, **bound}]
    records += [{"update": planned, "end": True, "seconds": 90.0}] if finished else []
    found: dict[str, Any] = {"recipe": recipe, "data": data, "command": f"induce {name}"}
    found |= {"updates": planned if finished else 140, "seconds": {"training": 90.0 if finished else 61.0}}
    if f1 is not None:
        fixed = {"right-branching": 39.0, "left-branching": 8.0, "random": 18.0, "best binary": 84.0}
        found |= {"trees": options.get("trees", TEXTS[data]), "decode": "mbr", "perplexity": valid + 7}
        found["scores"] = {"mbr": scores(f1), **{baseline: scores(value) for baseline, value in fixed.items()}}
    found |= {"curve": options["curve"]} if "curve" in options else {}
    gpu, sets = options.get("gpu", "H200"), [*sets, f"train.seed={seed}"]
    add_run(folder, name, recipe, records, gpu=gpu, sets=sets, evaluation=found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / language_models.PAGE).write_text(HMM_PAGE)
    (tmp_path / grammars.PAGE).write_text(PAGE)
    return tmp_path


def between(folder: Path, name: str) -> str:
    text = (folder / grammars.PAGE).read_text()
    found = re.search(rf"(?s)<!-- grammars {name} -->(.*?)<!-- end of grammars -->", text)
    assert found
    return found[1]


def lines(folder: Path, name: str, start: str) -> list[list[str]]:
    """The cells of a table's lines that begin with a text."""
    found = [line for line in between(folder, name).splitlines() if line.startswith(f"| {start}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_one_seed_and_several(folder: Path) -> None:
    for seed, f1 in ((1, 50.0), (2, 54.0)):
        add(folder, f"npcfg-30-60-ptb-s{seed}", "npcfg-30-60-ptb", "ptb-text", f1, 240.0 + seed, seed=seed)
    add(folder, "cpcfg-30-60-ptb-s1", "cpcfg-30-60-ptb", "ptb-text", 55.0, 230.0, bound={"bound": True})
    assert main([str(folder), "--no-picture"]) == 0
    (line,) = lines(folder, "ptb", "N-PCFG")
    two = ["52.0 (50.0 to 54.0)", "54.0 (52.0 to 56.0)", "62.0 (60.0 to 64.0)"]
    two += ["241.5 (241.0 to 242.0)", "248.5 (248.0 to 249.0)", "1, 2", "11,300", "1.5"]
    assert line[1:10] == ["50.8 / 52.6 (kim)", *two]
    assert line[10] == "`npcfg-30-60-ptb-s1`, `npcfg-30-60-ptb-s2`"
    (line,) = lines(folder, "ptb", "C-PCFG")
    assert line[2:9] == ["55.0", "57.0", "65.0", "230.0 (bound)", "237.0 (bound)", "1", "11,300"]
    (line,) = lines(folder, "ptb", "Right-branching")
    assert line[1:6] == ["39.5 (kim, second hand)", "39.0", "41.0", "49.0", ""]
    (line,) = lines(folder, "lpcfg", "N-PCFG, 30 / 60")  # the same run beside another figure
    assert line[1:4] == ["252.60", "241.5 (241.0 to 242.0)", "248.5 (248.0 to 249.0)"]
    assert "- `npcfg-30-60-ptb-s2`: sentence F1 54.0 (uf1), 56.0 (kim); valid perplexity 242.0;" in between(
        folder, "runs"
    )
    assert "`induce npcfg-30-60-ptb-s2`" in between(folder, "runs")
    assert "pcfg" not in (folder / language_models.PAGE).read_text()


def test_seeds_by_their_likelihood(folder: Path) -> None:
    name = "npcfg-30-60-ptb"
    add(folder, f"{name}-s1", name, "ptb-text", 50.0, 240.0)
    assert main([str(folder), "--no-picture"]) == 0
    assert "No setting has two seeds yet." in between(folder, "seeds")
    add(folder, f"{name}-s2", name, "ptb-text", 54.0, 241.0, seed=2)
    for seed, f1 in ((1, 60.0), (2, 50.0), (3, 40.0)):
        add(folder, f"rankpcfg-gum-s{seed}", "rankpcfg-gum", "gum", f1, 200.0 + seed, seed=seed)
    assert main([str(folder), "--no-picture"]) == 0
    (line,) = lines(folder, "seeds", f"`{name}-s1`, `{name}-s2`")
    assert line[1:] == ["240.5 (240.0 to 241.0)", "50.0", "52.0", "54.0"]
    (line,) = lines(folder, "seeds", "`rankpcfg-gum-s1`")
    assert line[2:] == ["60.0", "50.0", "60.0"]
    assert "the highest F1 in 1 of 2 settings" in between(folder, "seeds")


def test_what_sets_a_line_apart(folder: Path) -> None:
    name = "rankpcfg-4500-9000-ptb"
    add(folder, f"{name}-s1", name, "ptb-text", 60.0, 200.0)
    add(folder, f"{name}-s2", name, "ptb-text", 40.0, 300.0, seed=2, finished=False, gpu=None)
    add(folder, f"{name}-short-s1", name, "ptb-text", 50.0, 250.0, sets=["train.updates=5000"])
    add(folder, f"{name}-faithful-s1", f"{name}-faithful", "ptb-text", None, 260.0)
    add(folder, "tnpcfg-250-500-ptb-s1", "tnpcfg-250-500-ptb", "ptb-text", 44.0, 280.0, trees=245)
    assert main([str(folder), "--no-picture"]) == 0
    found = {line[0].partition(" (3)")[2]: line for line in lines(folder, "ptb", "Rank-space")}
    titles = ["", "; `train.updates=5000`", "; 9,000 / 4,500, rank 1,000; the authors' training; not judged by trees"]
    assert sorted(found) == sorted(titles)  # the two whole runs' titles are the same
    alike = [line for line in lines(folder, "ptb", "Rank-space") if line[0].endswith(" (3)")]
    assert [line[2] for line in alike] == ["60.0", "40.0"]  # a run cut short is no seed of a whole one's mean
    assert alike[1][8:10] == ["140 of 23,500, cut short", "1.0 (CPU)"]
    assert found[titles[1]][8] == "5,000"
    assert found[titles[2]][2:5] == ["-", "-", "-"]
    (line,) = lines(folder, "ptb", "TN-PCFG")
    assert line[0].endswith("; judged by 245 trees")
    assert [line[1] for line in lines(folder, "symbols", "4,500 / 9,000")] == ["60.0", "40.0", "50.0"]


def test_the_family_chosen_by_validation(folder: Path) -> None:
    add(folder, "npcfg-gum-s1", "npcfg-gum", "gum", 60.0, 260.0)
    for seed, valid in ((1, 248.0), (2, 256.0)):
        add(folder, f"rankpcfg-gum-s{seed}", "rankpcfg-gum", "gum", 40.0, valid, seed=seed)
    add(folder, "spcfg-gum-s1", "spcfg-gum", "gum", 45.0, 253.0)
    add(folder, "small-vocabulary", "lpcfg-gum", "gum", 20.0, 90.0, sets=["data.max_vocabulary=500"])
    add(folder, "rankpcfg-cess-esp-s1", "rankpcfg-cess-esp", "cess-esp", 30.0, 100.0)
    add(folder, "spanish", "npcfg-gum", "cess-esp", 31.0, 120.0)
    assert main([str(folder), "--no-picture"]) == 0
    marked = [line[0] for name in ("gum", "cess-esp") for line in lines(folder, name, "") if "**" in line[0]]
    assert marked == [
        "Rank-space PCFG; 450 / 900, rank 500; **chosen by validation perplexity**",
        "Rank-space PCFG; 450 / 900, rank 500; **chosen by validation perplexity**",
    ]
    (line,) = lines(folder, "gum", "Rank-space PCFG")
    assert line[1:4] == ["51.0 (51.0 to 51.0)", "40.0 (40.0 to 40.0)", "42.0 (42.0 to 42.0)"]
    (line,) = lines(folder, "gum", "Right-branching")
    assert line[1] == "50.0"
    assert lines(folder, "cess-esp", "N-PCFG")[0][1] == "42.0"
    assert lines(folder, "gum", "C-PCFG")[0][1] == "not run"


def test_every_row_is_there_without_a_run(folder: Path) -> None:
    assert main([str(folder)]) == 0
    _, rows = grammar_runs.read_published()
    page = (folder / grammars.PAGE).read_text()
    assert page.count("| not run |") == len(rows) > 45
    assert "old" not in page
    assert all(f"before {name}" in page for name in NAMES)
    assert "None yet." in between(folder, "runs")
    assert "No run has a curve yet." in between(folder, "curves")
    assert ".png" not in page
    assert main([str(folder)]) == 0  # and writing again changes nothing
    assert (folder / grammars.PAGE).read_text() == page


def test_a_run_of_no_row(folder: Path) -> None:
    add(folder, "mine", "small-spcfg", "ptb-text", 33.0, 400.0)
    assert main([str(folder), "--no-picture"]) == 0
    (line,) = lines(folder, "ptb", "mine")
    assert line[:3] == ["mine; 60 / 120", "-", "33.0"]


def test_pictures(folder: Path) -> None:
    points = [{"updates": 50, "uf1": 0.3, "kim": 0.3}, {"updates": 100, "uf1": 0.4, "kim": 0.4}]
    curve = {"trees": 300, "points": points}
    for n, p in ((30, 60), (300, 600)):
        name = f"rankpcfg-{n}-{p}-ptb"
        add(folder, f"{name}-s1", name, "ptb-text", 40.0 + n / 100, 300.0, curve=curve)
    assert main([str(folder)]) == 0
    for picture, name in ((grammars.SYMBOLS, "symbols"), (grammars.CURVES, "curves")):
        assert f"]({picture})" in between(folder, name)
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert (folder / picture).stat().st_size < 100_000
    assert not (folder / language_models.PICTURE).exists()  # it is of other models


def test_what_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / grammars.PAGE).write_text("no marks\n")
    assert main([str(folder)]) == 2
    assert "grammars.md: has marks for nothing" in capsys.readouterr().err
    (folder / grammars.PAGE).unlink()
    assert main([str(folder)]) == 0  # a folder of other models has no such page
    add(folder, "npcfg-gum-s1", "npcfg-gum", "gum", 60.0, 260.0)
    assert main([str(folder)]) == 2
    assert "npcfg-gum-s1 is a run of a grammar" in capsys.readouterr().err


def test_rows_have_recipes_and_recipes_rows() -> None:
    """A recipe of a paper without a row would never show, a row without a recipe could never be run."""
    tables, rows = grammar_runs.read_published()
    assert set(tables) == set(grammars.COLUMNS) == {row.table for row in rows}
    named = {row.recipe for row in rows if row.recipe}
    assert named == {name for name in recipe_names() if re.search("pcfg.*-ptb$", name)}
    for row in rows:
        assert bool(row.recipe) + bool(row.family) + bool(row.baseline) == 1
        sizes = re.search(r"([\d,]+) / ([\d,]+)", row.model)
        if sizes:
            model = load_recipe(row.recipe).model
            found = [int(size.replace(",", "")) for size in sizes.groups()]
            assert found == [model.num_nonterminals, model.num_preterminals]
        rank = re.search(r"rank ([\d,]+)$", row.model)
        if rank:
            assert load_recipe(row.recipe).model.rank == int(rank[1].replace(",", ""))
    families = {load_recipe(name).model.family for name in named}
    for table in ("gum", "cess-esp"):
        assert {row.family for row in rows if row.table == table and row.family} == families


def test_sources_are_all_used() -> None:
    content = tomllib.loads(Path(grammar_runs.__file__).with_name("published-grammars.toml").read_text())
    assert set(content["sources"]) == {row["source"] for row in content["rows"] if "source" in row}
    assert all("source" in row for row in content["rows"] if {"f1", "valid"} & set(row))
    assert all("convention" in row for row in content["rows"] if "f1" in row)
