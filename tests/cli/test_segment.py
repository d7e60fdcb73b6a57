"""Every command on recordings: train, evaluate, segment, sample; and what each says to bad input."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.analysis.decoded_frames import best_states
from rankfold.cli import main
from rankfold.cli.load import load_recordings
from rankfold.data.batch import Batch
from rankfold.data.frame_files import read_frames
from rankfold.decoding.sample import sample
from rankfold.models import ModelConfig, build_model
from rankfold.models.frame_model import FrameModel
from tests.training.recordings import NUM_TEST, NUM_TRAIN, recording, write_recordings

Captured = pytest.CaptureFixture[str]
SETTINGS = ("model.num_states=3", "model.max_duration=12", "data.smooth=1", "train.updates=6", "train.device=cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings") / "all.npz")


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    """A model trained without labels, on the scale of the training set."""
    out = data.parent / "run"
    settings = [*SETTINGS, "data.standardise=train"]
    assert main(["train", "--recipe", "segment-hsmm", "--data", str(data), "--out", str(out), "--set", *settings]) == 0
    return out


@pytest.fixture(scope="module")
def labelled(data: Path) -> Path:
    out = data.parent / "labelled"
    settings = [*SETTINGS, "data.labelled=6"]
    train = ["train", "--recipe", "segment-hsmm-labelled", "--data", str(data), "--out", str(out), "--set", *settings]
    assert main(train) == 0
    return out


def printed(capsys: Captured, *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(x) for x in arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: Captured, *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(x) for x in arguments]) == 2
    return capsys.readouterr().err


def test_train_prints_nats(data: Path, tmp_path: Path, capsys: Captured) -> None:
    train = ["train", "--recipe", "segment-hmm", "--data", data, "--out", tmp_path / "run", "--set", *SETTINGS]
    found = json.loads(printed(capsys, *train, "--json"))
    frames = read_frames(data, split="test")
    assert found["test_frames"] == frames.num_frames
    assert found["test_nats"] == pytest.approx(-found["test_log_likelihood"] / frames.num_frames)
    assert "perplexity" not in json.dumps(found)
    text = printed(capsys, *train[:6], tmp_path / "again", "--set", *SETTINGS)
    assert f"test nats/frame    {found['test_nats']:.3f} over {frames.num_frames} frames" in text


def test_segments_cover_every_recording(run: Path, data: Path, capsys: Captured) -> None:
    rows = json.loads(printed(capsys, "segment", run, data, "--split", "test", "--json"))
    frames = read_frames(data, split="test")
    assert list(dict.fromkeys(row["recording"] for row in rows)) == frames.names
    loaded = load_recordings(run, data, split="test", device="cpu")
    for name, length, states in zip(
        frames.names, frames.lengths, best_states(loaded.model, loaded.frames), strict=True
    ):
        own = [row for row in rows if row["recording"] == name]
        assert [row["start"] for row in own] == [0, *(row["end"] for row in own[:-1])]
        assert own[-1]["end"] == length
        for row in own:
            assert (states[row["start"] : row["end"]] == row["state"]).all()
            assert 0 < row["posterior"] <= 1 + 1e-4  # float32
            assert row["label"] is None


def test_text_and_csv_say_the_same(run: Path, data: Path, capsys: Captured) -> None:
    rows = json.loads(printed(capsys, "segment", run, data, "--split", "test", "--json"))
    table = list(csv.DictReader(io.StringIO(printed(capsys, "segment", run, data, "--split", "test", "--csv"))))
    assert [(row["recording"], int(row["start"]), int(row["end"]), int(row["state"])) for row in table] == [
        (row["recording"], row["start"], row["end"], row["state"]) for row in rows
    ]
    lines = printed(capsys, "segment", run, data, "--split", "test").splitlines()
    assert lines[0].split() == ["recording", "start", "end", "state", "posterior", "frames"]
    assert [line.split()[:4] for line in lines[1:]] == [
        [row["recording"], str(row["start"]), str(row["end"]), str(row["state"])] for row in rows
    ]


def test_one_recording_alone(run: Path, data: Path, capsys: Captured) -> None:
    rows = json.loads(printed(capsys, "segment", run, data, "--split", "test", "--recording", "r12", "--json"))
    assert {row["recording"] for row in rows} == {"r12"}
    assert "no recording is called 'r1'" in refused(
        capsys, "segment", run, data, "--split", "test", "--recording", "r1"
    )


def test_labels_have_names(labelled: Path, data: Path, capsys: Captured) -> None:
    rows = json.loads(printed(capsys, "segment", labelled, data, "--split", "test", "--json"))
    names = ("sit", "walk", "turn")
    assert all(row["label"] == names[row["state"]] for row in rows)
    found = json.loads(printed(capsys, "evaluate", labelled, "--data", data, "--json"))["segmentation"]
    assert found["as_labelled"]["frame_accuracy"] > 0.9
    assert found["as_labelled"] == found["one_to_one"]


@pytest.mark.parametrize("family", ["hsmm", "frame_hmm"])
def test_parts_of_a_segment_are_joined(family: str, data: Path, tmp_path: Path, capsys: Captured) -> None:
    """States of parts are labels wherever somebody reads them; the posterior is that of the stretch as a whole."""
    own = [f"model.family={family}", "model.num_states=6", "model.max_duration=9", "data.labelled=8", "data.parts=2"]
    own += ["model.variance_prior=5", "train.smoothing=0.1", *SETTINGS[2:]]
    out = tmp_path / "run"
    start = ["train", "--recipe", "segment-hsmm-labelled", "--data", str(data), "--out", str(out), "--set"]
    assert main([*start, *own]) == 0
    noisy, rng = tmp_path / "noisy.npz", np.random.default_rng(0)  # nothing is sure in these
    np.savez(noisy, *(x + 25 * rng.standard_normal(x.shape) for x in read_frames(data, split="test").features))
    rows = json.loads(printed(capsys, "segment", out, noisy, "--json"))
    loaded = load_recordings(out, noisy, split=None, device="cpu")
    assert {row["label"] for row in rows} == {"sit", "walk", "turn"}
    assert min(row["posterior"] for row in rows) < 0.5
    states = best_states(loaded.model, loaded.frames)
    for x, name, path in zip(loaded.frames.features, loaded.frames.names, states, strict=True):
        batch = loaded.model.batch(x)
        assert (loaded.model.states(batch)[0].numpy() // 2 == path).all()
        table = loaded.model.posterior(batch)[0].numpy()
        label_table = np.stack([table[:, 2 * k] + table[:, 2 * k + 1] for k in range(3)], 1)
        mine = [row for row in rows if row["recording"] == name]
        assert [row["start"] for row in mine] == [0, *(np.flatnonzero(np.diff(path)) + 1)]
        assert mine[-1]["end"] == len(path)
        drawn = labels_drawn(loaded.model, batch)
        for row in mine:
            begin, end = row["start"], row["end"]
            assert (path[begin:end] == row["state"]).all()
            assert row["frames"] == pytest.approx(label_table[begin:end, row["state"]].mean(), abs=1e-5)
            inside = (drawn[:, begin:end] == row["state"]).all(1)
            inside &= (drawn[:, begin - 1] != row["state"]) if begin else True
            inside &= (drawn[:, end] != row["state"]) if end < len(path) else True
            assert abs(inside.mean() - row["posterior"]) < 5 * np.sqrt(0.25 / len(drawn))  # five deviations
    found = json.loads(printed(capsys, "evaluate", out, "--data", data, "--json"))["segmentation"]
    assert found["states_used"] == 3
    assert found["as_labelled"]["frame_accuracy"] > 0.9
    printed(capsys, "explore", out, "--data", data, "--split", "test", "--out", tmp_path / "page.html")
    drawn_rows = json.loads(printed(capsys, "sample", out, "--num", 2, "--max-length", 20, "--json"))["recordings"]
    assert {z for one in drawn_rows for z in one["states"]} <= {0, 1, 2}


def labels_drawn(model: FrameModel, batch: Batch, num: int = 4000) -> Any:  # "n t"
    """Labels drawn from the posterior of one recording, two states a label."""
    with torch.no_grad():
        many = batch._replace(values=batch.values.expand(num, -1, -1), lengths=batch.lengths.expand(num))
        return sample(model.potentials(many), generator=torch.Generator().manual_seed(1)).path.numpy() // 2


def test_evaluate_scores_segments(run: Path, data: Path, capsys: Captured) -> None:
    found = json.loads(printed(capsys, "evaluate", run, "--data", data, "--json"))
    model = FrameModel.from_pretrained(run / "best")
    assert model.space is not None
    raw = read_frames(data, split="test")
    frames = model.space.apply(raw)
    own = model.log_likelihood(model.batch(list(frames.features))).sum().item()
    assert found["log_likelihood"] == pytest.approx(own, rel=1e-6)
    assert found["nats_per_frame"] == pytest.approx(-own / raw.num_frames, rel=1e-6)
    # A density in other units: the same recordings, ten times as large, lose log 10 a feature.
    assert found["nats_per_frame_unscaled"] == pytest.approx(
        found["nats_per_frame"] + np.log(np.array(model.space.scale)).sum()
    )
    assert found["recordings"] == NUM_TEST
    assert found["largest_log_difference"] < 1e-5
    scores = found["segmentation"]
    assert scores["one_to_one"]["frame_accuracy"] > 0.8
    assert scores["many_to_one"]["frame_accuracy"] >= scores["one_to_one"]["frame_accuracy"]
    text = printed(capsys, "evaluate", run, "--data", data)
    assert f"frame accuracy      {scores['one_to_one']['frame_accuracy']:>14.4f}" in text
    assert "of standardised features" in text


def test_the_scale_is_that_of_the_training_set(run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    """A single recording in a file of its own is segmented as it is among others."""
    frames = read_frames(data, split="test")
    np.save(tmp_path / "one.npy", frames.features[0])
    among = json.loads(printed(capsys, "segment", run, data, "--split", "test", "--json"))
    alone = json.loads(printed(capsys, "segment", run, tmp_path / "one.npy", "--json"))
    keys = ("start", "end", "state")
    own = [[row[key] for key in keys] for row in among if row["recording"] == frames.names[0]]
    assert [[row[key] for key in keys] for row in alone] == own


@pytest.mark.parametrize("kind", ["strips", "posterior", "durations"])
def test_pictures(kind: str, run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    assert main([str(x) for x in ("segment", run, data, "--split", "test", "--plot", path, "--kind", kind)]) == 0
    assert ("the first of" in capsys.readouterr().err) == (kind != "durations")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_every_recording(run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    names = read_frames(data, split="test").names
    asked = ("segment", run, data, "--split", "test", "--plot", tmp_path / "pictures")
    for _ in range(2):  # the second time over its own pictures
        printed(capsys, *asked)
    found = sorted((tmp_path / "pictures").iterdir())
    assert [path.name for path in found] == sorted(f"{name}.png" for name in names)
    assert len({path.read_bytes() for path in found}) == len(names) > 1
    found[0].write_text("my own")
    assert "is not a picture" in refused(capsys, *asked)
    assert "one picture of all recordings" in refused(capsys, *asked, "--kind", "durations")


def test_single_features_may_be_missing(data: Path, tmp_path: Path, capsys: Captured) -> None:
    """`--missing feature` and data.missing: the likelihood of numpy's forward pass over what is there."""
    arrays = dict(np.load(data))
    gone = np.random.default_rng(0).random(arrays["features"].shape) < 0.1
    arrays["features"] = np.where(gone, np.nan, arrays["features"])
    np.savez(tmp_path / "gaps.npz", **arrays)
    train = ["train", "--recipe", "segment-hmm", "--data", tmp_path / "gaps.npz", "--out", tmp_path / "run", "--set"]
    assert "feature" in refused(capsys, *train, *SETTINGS)
    printed(capsys, *train, *SETTINGS, "data.standardise=train", "data.missing=feature")
    asked = ("evaluate", tmp_path / "run", tmp_path / "gaps.npz", "--missing", "feature", "--json")
    found = json.loads(printed(capsys, *asked))
    loaded = load_recordings(tmp_path / "run", tmp_path / "gaps.npz", split="test", missing="feature", device="cpu")
    parts = loaded.model.double().parts()
    start, moves = parts.log_initial.detach().exp().numpy(), parts.transition.to_dense().detach().numpy()
    mean, variance = (x.detach().numpy() for x in parts.observation)
    total = 0.0
    for x in loaded.frames:
        away = x[:, None].astype(np.float64) - mean
        logs = np.nansum(-0.5 * (away**2 / variance + np.log(2 * np.pi * variance)), 2)
        forward = start
        for t, row in enumerate(np.exp(logs)):
            forward = (forward @ moves if t else forward) * row
            total += np.log(forward.sum())
            forward = forward / forward.sum()
    assert found["log_likelihood"] == pytest.approx(total, rel=1e-5)
    scale = np.log(loaded.space.scale or ()) * (~np.isnan(np.concatenate(loaded.frames.features))).sum(0)
    assert found["nats_per_frame_unscaled"] == pytest.approx((scale.sum() - total) / found["frames"], rel=1e-5)
    assert json.loads(printed(capsys, "segment", *asked[1:3], "--split", "test", *asked[3:]))
    arrays["features"][:, 1] = np.nan
    np.savez(tmp_path / "gaps.npz", **arrays)
    train[6] = tmp_path / "other"
    for scale in ("none", "train"):
        told = refused(capsys, *train, *SETTINGS, f"data.standardise={scale}", "data.missing=feature")
        assert "feature 1 is missing in every" in told


def test_samples_can_be_trained_on(run: Path, tmp_path: Path, capsys: Captured) -> None:
    sample = ["sample", run, "--num", 3, "--max-length", 40, "--seed", 5]
    assert main([str(x) for x in (*sample, "--out", tmp_path / "drawn.npz")]) == 0
    text, err = capsys.readouterr()
    assert "as the model sees them" not in err  # one scale, nothing smoothed: it is undone
    before = (tmp_path / "drawn.npz").read_bytes()
    assert main([str(x) for x in (*sample, "--seed", 2, "--out", tmp_path / "drawn.npz")]) == 2
    assert "drawn.npz exists; it is left as it is" in capsys.readouterr().err
    assert (tmp_path / "drawn.npz").read_bytes() == before
    frames = read_frames(tmp_path / "drawn.npz")
    assert frames.lengths == [40] * 3
    assert frames.labels is not None
    shown = [[tuple(map(int, part.split(":"))) for part in line.split()] for line in text.splitlines()]
    for row, labels in zip(shown, frames.labels, strict=True):
        assert np.repeat([z for z, _ in row], [n for _, n in row]).tolist() == labels.tolist()
    # In the units of the recordings, around 50 and not around 0.
    assert 30 < np.concatenate(frames.features).mean() < 90
    again = json.loads(printed(capsys, *sample, "--json"))
    assert again["recordings"][0]["states"] == frames.labels[0].tolist()


def test_samples_that_were_prepared_say_so(data: Path, tmp_path: Path, capsys: Captured) -> None:
    train = ["train", "--recipe", "segment-hsmm", "--data", data, "--out", tmp_path / "run", "--set", *SETTINGS]
    printed(capsys, *train, "data.standardise=recording")
    assert main(["sample", str(tmp_path / "run"), "--num", "1", "--out", str(tmp_path / "drawn.npz")]) == 0
    assert "as the model sees them, smoothed and scaled" in capsys.readouterr().err


def test_a_folder_of_files(tmp_path: Path, capsys: Captured) -> None:
    for split, seeds in (("train", range(4)), ("valid", range(4, 6))):
        (tmp_path / "data" / split).mkdir(parents=True)
        for seed in seeds:
            lines = [",".join(f"{x:.6f}" for x in row) for row in recording(seed)[0]]
            (tmp_path / "data" / split / f"r{seed}.csv").write_text("a,b,c\n" + "\n".join(lines) + "\n")
    train = ["train", "--recipe", "segment-hsmm", "--data", tmp_path / "data", "--out", tmp_path / "run", "--set"]
    found = json.loads(printed(capsys, *train, *SETTINGS, "--json"))
    assert found["best_valid_nats"] is not None
    assert found["test_nats"] is None
    rows = json.loads(printed(capsys, "segment", tmp_path / "run", tmp_path / "data" / "valid", "--json"))
    assert {row["recording"] for row in rows} == {"r4", "r5"}
    (tmp_path / "other.csv").write_text("a,c,b\n1,2,3\n4,5,6\n")
    assert "feature 1 is called 'c', but 'b' where the model was trained" in refused(
        capsys, "segment", tmp_path / "run", tmp_path / "other.csv"
    )


def test_without_splits_the_training_set_chooses(tmp_path: Path, capsys: Captured) -> None:
    path = write_recordings(tmp_path / "all.npz", splits=False)
    train = ["train", "--recipe", "segment-hsmm", "--data", path, "--out", tmp_path / "run", "--set", *SETTINGS]
    capsys.readouterr()
    assert main([str(x) for x in train]) == 0
    assert "there is no valid split" in capsys.readouterr().err


def bad_inputs(folder: Path) -> dict[str, tuple[Path, str]]:
    """Files and folders that are wrong, and what is said of each."""
    folder.mkdir()
    (folder / "empty").mkdir()
    (folder / "text.csv").write_text("1,2,3\n4,fast,6\n")
    (folder / "half.csv").write_text("1.0,2,3\n4,nan,6\n7,8,9\n")
    (folder / "narrow.csv").write_text("1.0,2\n3,4\n")
    (folder / "uneven").mkdir()
    (folder / "uneven" / "a.csv").write_text("1.0,2,3\n4,5,6\n")
    (folder / "uneven" / "b.csv").write_text("1.0,2\n4,5\n")
    np.save(folder / "nothing.npy", np.full((4, 3), np.nan))
    np.save(folder / "infinite.npy", np.array([[1.0, 2.0, 3.0], [np.inf, 1.0, 1.0]]))
    np.savez(folder / "labels.npz", features=np.zeros((4, 3)), labels=np.zeros(3, dtype=int))
    (folder / "walk.mp4").write_text("")
    return {
        "empty folder": (
            folder / "empty",
            "no files in .npy, .npz, .csv, .parquet, .arrow, .feather; the folder holds nothing",
        ),
        "text": (folder / "text.csv", "line 2, column 2: 'fast' is no number"),
        "half a row": (folder / "half.csv", "line 2: feature 1 is NaN and others are not"),
        "width": (folder / "narrow.csv", "2 features, but the model was trained on 3"),
        "unequal widths": (folder / "uneven", "b.csv: 2 features, but"),
        "all missing": (folder / "nothing.npy", "all 4 frames are missing"),
        "infinite": (folder / "infinite.npy", "row 1: feature 0 is inf"),
        "labels": (folder / "labels.npz", "the lengths add up to 4, but there are 3 labels|labels of shape"),
        "other": (folder / "walk.mp4", "not from '.mp4'"),
        "nowhere": (folder / "nowhere.npy", "no such file or folder"),
    }


def test_bad_recordings_are_refused(run: Path, tmp_path: Path, capsys: Captured) -> None:
    for name, (path, words) in bad_inputs(tmp_path / "bad").items():
        for command in (["segment", run, path], ["evaluate", run, "--data", path]):
            assert re.search(words, refused(capsys, *command)), name
        train = ["train", "--recipe", "segment-hsmm", "--data", path, "--out", tmp_path / f"run-{name}"]
        if name != "width":
            assert re.search(words, refused(capsys, *train)), name
    assert printed(capsys, "segment", run, tmp_path / "bad" / "half.csv", "--missing", "row")


def test_a_recording_that_is_impossible(tmp_path: Path, capsys: Captured) -> None:
    """Two states that always last one frame, and never follow themselves, cannot be of a single label."""
    import torch

    log = torch.tensor([1.0, 0.0]).log()
    model = FrameModel.from_tables(
        log, torch.tensor([[0.0, 1.0], [1.0, 0.0]]), mean=torch.zeros(2, 1), variance=torch.ones(2, 1),
        log_duration=torch.tensor([[-torch.inf, 0.0]] * 2),
    )  # fmt: skip
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "odd.npy", np.zeros((3, 1)))
    found = refused(capsys, "segment", tmp_path / "model", tmp_path / "odd.npy")
    assert "recording 'odd' (3 frames) has probability 0 under the model" in found
    assert "Segments last at most 2 frames" in found
    np.save(tmp_path / "even.npy", np.zeros((4, 1)))
    rows = json.loads(printed(capsys, "segment", tmp_path / "model", tmp_path / "even.npy", "--json"))
    assert [(row["start"], row["end"], row["state"]) for row in rows] == [(0, 2, 0), (2, 4, 1)]


def test_splits_must_be_named(run: Path, data: Path, capsys: Captured) -> None:
    assert "has the splits train, valid, test" in refused(capsys, "segment", run, data)
    assert "no split 'tset'; there are train, valid, test" in refused(capsys, "segment", run, data, "--split", "tset")
    rows = json.loads(printed(capsys, "segment", run, data, "--split", "train", "--json"))
    assert len({row["recording"] for row in rows}) == NUM_TRAIN


def test_models_of_words_and_frames_are_not_mixed_up(run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    build_model(ModelConfig(num_states=4, rank=2, dim=4), 10).save_pretrained(tmp_path / "words")
    assert "a model of words" in refused(capsys, "segment", tmp_path / "words", data, "--split", "test")
    for command in (["tag", run], ["predict", run, "a"], ["score", run]):
        assert "a model of frames" in refused(capsys, *command)
    assert "--trees is for models of words" in refused(capsys, "evaluate", run, "--trees", data)
    assert "--prefix and --trees are for models of words" in refused(capsys, "sample", run, "--prefix", "a")
    assert "--no-unk choose words" in refused(capsys, "sample", run, "--temperature", "0.5")


def test_a_lost_space_is_told(run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    import shutil

    copy: Any = shutil.copytree(run / "best", tmp_path / "copy")
    (Path(copy) / "frames.json").write_text('{"num_features": 3, "mean": [1, 2]}')
    assert "frames.json: [2] numbers for 3 features" in refused(capsys, "segment", copy, data, "--split", "test")


def test_help_has_examples(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["segment", "--help"])
    assert "rankfold segment runs/walks recordings.npz --split test" in capsys.readouterr().out


def test_recordings_with_longer_segments_are_said(run: Path, tmp_path: Path, capsys: Captured) -> None:
    """Runs of 40 frames under a model of at most 12 are cut into pieces; standard error says so, the table does not."""
    rng = np.random.default_rng(0)
    mean = FrameModel.from_pretrained(run / "best").parts().observation.mean.detach().numpy()  # type: ignore[attr-defined]
    space = FrameModel.from_pretrained(run / "best").space
    assert space is not None
    states = np.repeat([0, 1, 2], 40)
    frames = space.undo(mean[states] + 0.1 * rng.standard_normal((120, mean.shape[1])))
    np.save(tmp_path / "long.npy", frames)
    capsys.readouterr()
    assert main(["segment", str(run), str(tmp_path / "long.npy"), "--csv"]) == 0
    found = capsys.readouterr()
    assert "warning: segments last at most 12 frames" in found.err
    assert "--set model.max_duration=24" in found.err
    assert "warning" not in found.out


def test_names_that_are_numbers_on_the_command_line(run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    x = read_frames(data, split="test").features[0]
    names = ",".join(str(i) for i in range(x.shape[1]))
    np.savetxt(tmp_path / "a.csv", x, delimiter=",", header=names, comments="")
    assert "may be names of columns or the first frame" in refused(capsys, "segment", run, tmp_path / "a.csv")
    assert "may be names" in refused(capsys, "evaluate", run, tmp_path / "a.csv")
    rows = printed(capsys, "segment", run, tmp_path / "a.csv", "--header", "yes", "--csv")
    assert rows.splitlines()[-1].split(",")[2] == str(len(x))
    assert printed(capsys, "evaluate", run, tmp_path / "a.csv", "--header", "yes")
    settings = ["--set", *SETTINGS, "data.header=yes", "train.updates=1"]
    train = ["train", "--recipe", "segment-hsmm", "--data", tmp_path / "a.csv", "--out", tmp_path / "run", *settings]
    assert printed(capsys, *train)


@pytest.mark.parametrize("kind", ["run", "labelled"])
def test_the_report_of_segments(
    kind: str, data: Path, tmp_path: Path, capsys: Captured, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    found = json.loads(printed(capsys, "segments-report", folder, data, "--split", "test", "--json"))
    frames = read_frames(data, split="test")
    assert found["num_frames"] == frames.num_frames == sum(state["frames"] for state in found["states"])
    rows = json.loads(printed(capsys, "segment", folder, data, "--split", "test", "--json"))
    assert found["num_segments"] == len(rows)
    loaded = load_recordings(folder, data, split="test")
    states = np.concatenate(best_states(loaded.model, loaded.frames))
    features, labels = np.concatenate(frames.features), np.concatenate(frames.labels or [])
    for state, counts in zip(found["states"], found["confusion"], strict=True):
        own = states == state["state"]
        means = [feature["mean"] for feature in state["features"]]
        np.testing.assert_allclose(means, np.nanmean(features[own].astype(np.float64), axis=0), rtol=1e-6)
        assert counts == [int((labels[own] == k).sum()) for k in range(len(found["label_names"]))]
    page = tmp_path / "segments.html"
    text = printed(capsys, "segments-report", folder, data, "--split", "test", "--html", page)
    assert f"{found['num_segments']:,} segments in {frames.num_frames:,} frames" in text
    assert "frames by state and label" in text
    assert "Frames by state and true label" in page.read_text()
    assert "Segments" in (folder / "report.html").read_text()  # training wrote it
    assert re.search(r"<th[^>]*>nats per frame</th><th[^>]*>frames</th>", (folder / "report.html").read_text())
    assert "segments in" in (folder / "report.html").read_text()
    # A strip of every recording, and on every segment the text that a pointer shows, without any script.
    told = re.findall(r'class="strip" x="([\d.]+)"[^>]*><title>([\d.]+) to ([\d.]+)(s?): state (\d+)', page.read_text())
    own = [(row["start"] / (found["fps"] or 1), row["end"] / (found["fps"] or 1), row["state"]) for row in rows]
    np.testing.assert_allclose([(float(a), float(b), int(z)) for _, a, b, _, z in told], own, rtol=1e-5)
    assert 'class="strip"' in (folder / "report.html").read_text()


def test_the_report_of_segments_refuses(run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.html").write_text("mine")
    assert "mine.html" in refused(capsys, "segments-report", run, data, "--html", tmp_path / "mine.html")
    assert "--split" in refused(capsys, "segments-report", run, data)
    assert "no split" in refused(capsys, "segments-report", run, data, "--split", "other")


def test_the_picture_of_durations(run: Path, data: Path, tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    printed(capsys, "segments-report", run, data, "--split", "test", "--plot", tmp_path / "durations.png")
    assert (tmp_path / "durations.png").read_bytes().startswith(b"\x89PNG")
