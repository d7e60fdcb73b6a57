"""The page of segments, written from made-up records; what is chosen is the best on valid; the recipes are what was."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import people, segmentation, starts
from benchmarks import segment_plan as plan
from benchmarks.segment_runs import SCORES, Arm, drawn, run
from rankfold.errors import DataError
from rankfold.estimators import HMM
from rankfold.training.recipes import load_recipe

NAME = "phone-watch-har-10hz"
RESULTS = Path(__file__).parents[2] / "docs" / "results"
MARKS = [(name, table) for name, one in plan.SETS.items() for table in ("choice", *one.tables)]
PAGE = "# Segments\n" + "".join(
    f"\nbefore {name} {table}\n<!-- segments {name} {table} -->\nold\n<!-- end of segments -->\n"
    for name, table in MARKS
)


def record(arm: Arm, seed: int, split: str, accuracy: float) -> dict[str, Any]:
    """Scores that differ, so that no column can be taken for its neighbour."""
    scores: dict[str, Any] = {name: accuracy + i / 100 for i, name in enumerate(SCORES)}
    scores |= {"many_to_one": accuracy + 0.2, "segments": 300, "true_segments": 218, "nats": 1.0}
    made = {"method": arm.method, "settings": list(arm.settings), "first": arm.first, "seed": seed, "seconds": 1.0}
    return {**made, split: scores}


def add_choices(records: segmentation.Records, best: dict[str, tuple[str, ...]]) -> None:
    """Everything that is tried, with 0.5 on valid, and 0.6 where it is among the best."""
    for recipe in plan.RECIPES:
        scales = plan.scales(NAME, recipe)
        kinds = [kind for scale in scales for kind in plan.durations(NAME, recipe, scale)]
        for settings in dict.fromkeys([*scales, *kinds]):
            accuracy = 0.6 if set(best[recipe]) <= set(settings) else 0.5
            for seed in plan.choice_seeds(recipe):
                records.all.append(record(plan.tried(NAME, recipe, settings), seed, "valid", accuracy + seed / 1000))


BEST = {
    "segment-hmm": ("data.smooth=5", "data.standardise=train"),
    "segment-hsmm": ("data.smooth=9", "data.standardise=recording", "model.durations=poisson"),
    "segment-hsmm-labelled": ("data.smooth=1", "data.standardise=recording", "model.durations=categorical"),
}


@pytest.fixture
def records(tmp_path: Path) -> segmentation.Records:
    (tmp_path / segmentation.PAGE).write_text(PAGE)
    found = segmentation.Records(tmp_path, NAME)
    scale_first = {**BEST, "segment-hsmm": ("data.smooth=9", "data.standardise=recording")}
    add_choices(found, scale_first)
    for one in found.all:  # among durations of that scale, one is best
        if "model.durations=poisson" in one["settings"] and set(BEST["segment-hsmm"]) <= set(one["settings"]):
            one["valid"]["frame_accuracy"] += 0.1
    return found


def between(folder: Path, name: str, table: str) -> str:
    text = (folder / segmentation.PAGE).read_text()
    found = re.search(rf"(?s)<!-- segments {name} {table} -->(.*?)<!-- end of segments -->", text)
    assert found
    return found[1]


def test_the_best_on_valid_is_chosen(records: segmentation.Records) -> None:
    assert segmentation.choices(records) == BEST
    # A score on test, however good, chooses nothing; nor does a choice that was not tried to the end.
    other = plan.scales(NAME, "segment-hmm")[0]
    records.all.append(record(plan.tried(NAME, "segment-hmm", other), 1, "test", 0.99))
    assert segmentation.choices(records) == BEST
    records.all = [one for one in records.all if (one["method"], one["seed"]) != ("segment-hmm", 3)]
    assert segmentation.chosen(records, "segment-hmm") is None


def test_lines_are_means_of_their_own_seeds(records: segmentation.Records, tmp_path: Path) -> None:
    lines = {line.title: line for line in plan.unsupervised(NAME, BEST)}
    for seed, accuracy in ((1, 0.40), (2, 0.50)):
        records.all.append(record(lines["HSMM"].arm, seed, "test", accuracy))
    records.add(record(lines["HSMM"].arm, 99, "test", 0.9))  # no seed of the plan
    segmentation.write(tmp_path)
    body = between(tmp_path, NAME, "unsupervised")
    (row,) = [line for line in body.splitlines() if line.startswith("| HSMM |")]
    shown = ["HSMM", "0.450 (0.400 to 0.500)", "0.460", "0.470", "0.480", "0.490", "0.500", "0.650", "300 of 218", "2"]
    assert [cell.strip() for cell in row.strip("|").split("|")] == shown
    assert "| HMM | not run |" in body
    assert "data.smooth=9 data.standardise=recording model.durations=poisson` | 0.702 (0.701 to 0.703)" in between(
        tmp_path, NAME, "choice"
    )
    assert "Not run." in between(tmp_path, "50salads-mid", "labelled")
    assert f"before {NAME} labelled" in (tmp_path / segmentation.PAGE).read_text()


def test_a_page_without_its_marks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / segmentation.PAGE).write_text(PAGE.replace("<!-- segments 50salads-mid choice -->", ""))
    assert segmentation.main(["--out", str(tmp_path)]) == 2
    assert "missing: 50salads-mid choice" in capsys.readouterr().err
    (tmp_path / f"segments-{NAME}.json").write_text("[")
    with pytest.raises(DataError, match="is no JSON"):
        segmentation.Records(tmp_path, NAME)


def test_the_recipes_are_what_was_chosen() -> None:
    best = segmentation.choices(segmentation.Records(RESULTS, NAME))
    assert set(best) == set(plan.RECIPES)
    for recipe, settings in best.items():
        assert load_recipe(recipe, [*plan.SETS[NAME].sizes, *settings]) == load_recipe(recipe), recipe
    hsmm = best["segment-hsmm"]
    assert plan.OF_FIRST in hsmm


def test_the_page_is_that_of_its_records(tmp_path: Path) -> None:
    for path in [*RESULTS.glob("segments-*.json"), RESULTS / segmentation.PAGE]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    segmentation.write(tmp_path)
    assert (tmp_path / segmentation.PAGE).read_text() == (RESULTS / segmentation.PAGE).read_text()


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = [np.repeat([0, 1, 0], rng.integers(4, 9, 3)) for _ in range(8)]
    np.savez(
        tmp_path / "walks.npz",
        features=np.concatenate([5.0 * y[:, None] + rng.standard_normal((len(y), 2)) for y in labels]),
        labels=np.concatenate(labels),
        lengths=[len(y) for y in labels],
        split=[0, 1, 0, 0, 2, 0, 0, 1],
        seq_id=list("abcdefgh"),
    )
    return tmp_path / "walks.npz"


SMALL = ("model.num_states=2", "model.max_duration=12", "data.smooth=1", "train.updates=5", "data.standardise=train")


@pytest.mark.parametrize("method", ["segment-hmm", "segment-hsmm", "segment-hsmm-labelled", "k-means", "hmmlearn"])
def test_a_run_is_scored_on_what_was_asked(method: str, walks: Path) -> None:
    if method in ("k-means", "hmmlearn"):
        pytest.importorskip("sklearn" if method == "k-means" else "hmmlearn")
    settings = (*SMALL, "data.labelled=3") if "labelled" in method else SMALL
    found = run(Arm(method, settings, first="labelled" not in method), walks, 1, ["test"])
    assert found["test"]["frame_accuracy"] > 0.9
    assert found["test"]["true_segments"] == 3
    assert "valid" not in found
    assert json.loads(json.dumps(found)) == found


def test_drawn_recordings_keep_their_frames_and_splits(walks: Path, tmp_path: Path) -> None:
    with np.load(walks) as given, np.load(drawn(walks, tmp_path / "drawn.npz", 3)) as found:
        assert found["split"].tolist() == given["split"].tolist()
        pieces = [
            {
                str(name): (x.tolist(), y.tolist(), int(split))
                for name, x, y, split in zip(
                    z["seq_id"], *(np.split(z[key], np.cumsum(z["lengths"])[:-1]) for key in ("features", "labels")),
                    z["split"], strict=True,
                )
            }
            for z in (given, found)
        ]  # fmt: skip
        assert pieces[0] == pieces[1]
        assert found["seq_id"].tolist() != given["seq_id"].tolist()


def test_every_person_is_left_out_once(walks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a table of the page is replaced; recordings of one person cannot be left out."""
    with np.load(walks) as opened:
        arrays = dict(opened)
    names = ["anna_1", "anna_2", "bert_1", "carl_1", "carl_2", "dora_1", "emil_1", "emil_2"]
    groups = people.left_out({**arrays, "seq_id": np.array(names)}, walks)
    assert groups == [["anna", "carl", "emil"], ["bert", "dora"]]
    np.savez(walks, **{**arrays, "seq_id": np.array(names)})
    (tmp_path / "segments.md").write_text("a\n<!-- people -->\nold\n<!-- end of people -->\nb\n")
    given = ["--data", str(walks), "--recipes", "segment-hsmm", "--seeds", "1", "--out", str(tmp_path)]
    with pytest.MonkeyPatch.context() as patch:
        asked = []
        patch.setattr(people, "run", lambda arm, path, seed, splits: asked.append(np.load(path)["split"]) or FAKE)
        assert people.main(given) == 0
    assert [split.tolist() for split in asked] == [[2, 2, 0, 2, 2, 0, 2, 2], [0, 0, 2, 0, 0, 2, 0, 0]]
    row = "| `segment-hsmm` | 0.700 | 0.700 | 0.700 | 0.500 | 3, 2 times | 2 |"
    assert row in capsys.readouterr().out
    assert row in (tmp_path / "segments.md").read_text()
    with pytest.raises(DataError, match="recordings of one person, 'anna'"):
        people.left_out({**arrays, "seq_id": np.array(names[:2])}, walks)


FAKE = {"test": {"frame_accuracy": 0.7, "f1_50": 0.5}}


def test_starts_count_the_fits_near_the_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fits: Any = {"one": lambda x, z, seed: -100.0 - 6 * seed, "other": lambda x, z, seed: -200.0}
    monkeypatch.setattr(starts, "LIBRARIES", fits)
    monkeypatch.setattr(starts, "ours", lambda *args, **settings: -95.0)
    page = tmp_path / "starts.md"
    page.write_text("<!-- starts -->\n<!-- end of starts -->\n")
    assert starts.main(["--states", "2", "--seeds", "3", "--out", str(page)]) == 0
    assert "| simulated, overlapping | 2 | one | 1 of 3 | 11.0 | 0.00 |" in page.read_text()
    assert "| simulated, overlapping | 2 | other | 0 of 3 | 105.0 | 0.00 |" in page.read_text()
    assert len(starts.simulated(2, 1.0)) == 20


def test_a_fit_of_starts_is_the_estimators() -> None:
    x = [rows[:30] for rows in starts.simulated(2, 2.0)[:2]]
    found = starts.ours(x, 2, 0)
    assert found == pytest.approx(HMM(2, random_state=0).fit(x).score(x))
    pytest.importorskip("hmmlearn")
    assert starts.theirs(x, 2, 0, n_iter=50) == pytest.approx(found, abs=5.0)
