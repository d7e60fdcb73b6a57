"""Runs on recordings: what they read, how they are cut, resuming to the last bit, labels that bind states."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.data.frame_files import read_frames
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models import build_model
from rankfold.models.config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.training.config import DataConfig
from rankfold.training.evaluation import evaluate
from rankfold.training.loop import Result, train
from rankfold.training.memory_budget import Budget
from rankfold.training.recordings import frame_batches, read_recordings, read_splits
from rankfold.training.report import Reporter
from rankfold.training.task import FrameTask
from tests.training.recordings import NUM_TRAIN, recording, tiny, write_recordings
from tests.training.runs import StopAfter, expect_equal, metrics, state

FAMILIES = ("hsmm", "lhsmm", "frame_hmm", "frame_lhmm")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings") / "all.npz")


def expect_same_end(a: Result, b: Result) -> None:
    assert (a.updates, a.finished, a.test, a.best_valid) == (b.updates, b.finished, b.test, b.best_valid)
    (tensors, content), (others, other) = state(a.run), state(b.run)
    assert content == other
    expect_equal(tensors, others)
    assert metrics(a.run) == metrics(b.run)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "settings",
    [{}, {"batching": "streams"}, {"optimizer": "em"}, {"optimizer": "em", "momentum": 0.7}],
    ids=["adam", "streams", "em", "batch em"],
)
def test_an_interrupted_run_ends_as_if_it_were_not(
    family: str, settings: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    config = tiny(family=family, init="kmeans", **settings)
    whole = train(config, data, tmp_path / "whole")
    assert whole.finished
    first = train(config, data, tmp_path / "parts", report=StopAfter(3))
    assert not first.finished
    expect_same_end(whole, train(config, data, tmp_path / "parts", resume=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_training_raises_the_likelihood(family: str, data: Path, tmp_path: Path) -> None:
    for optimizer in ("adam", "em"):
        result = train(tiny(family=family, optimizer=optimizer, log_every=1), data, tmp_path / f"{optimizer}")
        records = metrics(result.run)
        values = [record["train_nats"] for record in records if "train_nats" in record]
        assert values[-1] < values[0] - 0.1
        assert result.test is not None
        assert records[-1]["test_nats"] == -result.test.log_likelihood / result.test.tokens
        if optimizer == "em":  # never up, but for the rounding of parameters to float32
            assert all(after <= before + 1e-5 for before, after in itertools.pairwise(values))
            assert all("lr" not in record for record in records)


def test_the_best_model_is_the_one_the_metrics_say(data: Path, tmp_path: Path) -> None:
    result = train(tiny(), data, tmp_path / "run")
    model = FrameModel.from_pretrained(tmp_path / "run" / "best")
    assert model.space is not None
    valid = model.space.apply(read_frames(data, split="valid"))
    assert evaluate(model, valid).nats == result.best_valid
    found = min(record["valid_nats"] for record in metrics(result.run) if "valid_nats" in record)
    assert found == result.best_valid


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 5, 33, 4096])
def test_windows_add_up_to_the_whole(family: Any, tokens: int, data: Path) -> None:
    """A recording in windows, its state carried along, has the likelihood it has in one piece."""
    config = FrameConfig(family=family, num_states=3, num_features=3, max_duration=10, rank=2)
    model = build_model(config, seed=1).double()
    frames = read_recordings(data, DataConfig(), config).train
    with torch.no_grad():
        whole = float(model.log_likelihood(model.batch(list(frames.features))).sum())
    found = evaluate(model, frames, DataConfig(eval_tokens=tokens))
    assert found.log_likelihood == pytest.approx(whole, rel=1e-6)  # frames are float32
    assert found.tokens == frames.num_frames


@pytest.mark.parametrize(("num", "window"), [(1, 1), (3, 7), (20, 7), (2, 100), (8, 3)])
def test_every_frame_is_in_one_window(num: int, window: int, data: Path) -> None:
    frames = read_frames(data)
    config = DataConfig(batching="streams", num_streams=num, window=window)
    batches = list(frame_batches(frames, config, generator=torch.Generator().manual_seed(0)))
    assert sum(batch.num_tokens for batch in batches) == frames.num_frames
    rows: list[list[Any]] = []
    done: list[Any] = []
    for batch in batches:
        assert batch.values.shape[1] <= window
        pieces = [x[:n] for x, n in zip(batch.values, batch.lengths.tolist(), strict=True)]
        if batch.first:
            assert not rows
            rows = [[] for _ in pieces]
        for row, piece in zip(rows, pieces, strict=True):
            assert len(piece)
            row.append(piece)
        if batch.last:
            done += [torch.cat(row).numpy() for row in rows]
            rows = []
    assert not rows
    assert len(done) == len(frames)
    assert {x.tobytes() for x in done} == {np.ascontiguousarray(x).tobytes() for x in frames.features}


def test_recordings_of_very_different_lengths_are_never_without_a_frame() -> None:
    from rankfold.data.frames import frames_of

    frames = frames_of([np.ones((n, 1)) for n in (1, 2, 50, 300)])
    config = DataConfig(batching="streams", num_streams=4, window=10)
    batches = list(frame_batches(frames, config))
    assert min(int(batch.lengths.min()) for batch in batches) == 1
    assert sum(batch.num_tokens for batch in batches) == 353


def test_labels_bind_states(data: Path, tmp_path: Path) -> None:
    """With labels for all, EM is counting: means are those of the labels, and states are labels."""
    config = tiny(optimizer="em", labelled=NUM_TRAIN, updates=2, min_variance=0.0)
    train(config, data, tmp_path / "run")
    model = FrameModel.from_pretrained(tmp_path / "run" / "best")
    assert model.space is not None
    assert model.space.label_names == ("sit", "walk", "turn")
    assert model.space.label_of(2) == 2
    frames = model.space.apply(read_frames(data, split="train"))
    assert frames.labels is not None
    x, y = np.concatenate(frames.features), np.concatenate(frames.labels)
    own = np.stack([x[y == k].mean(0) for k in range(3)])
    np.testing.assert_allclose(model.observation.mean.detach().numpy(), own, rtol=0, atol=1e-5)


def test_gradients_of_labelled_recordings_are_those_of_one_path(data: Path, tmp_path: Path) -> None:
    """With all labels there is one path: its log-probability, added up by hand, and no mean has another's gradient."""
    config = tiny(family="frame_hmm", labelled=NUM_TRAIN)
    task = FrameTask.read(config, data, tmp_path, Reporter(), resume=False)
    model = task.model()
    steps = task.steps(model, torch.optim.SGD(model.parameters()), config, Budget(), lambda *_: None)
    batch = task.epoch(0)[0]
    total, _ = steps([batch], batch.num_tokens, 0)
    with torch.no_grad():
        parts = model.parts()
        log_obs, log_rows = parts.observation.log_obs(batch.values), parts.transition.to_dense().log()
    expected = 0.0
    for obs, labels, length in zip(log_obs, batch.labels, batch.lengths.tolist(), strict=True):
        path = labels[:length].tolist()
        expected += float(parts.log_initial[path[0]]) + sum(float(obs[t, z]) for t, z in enumerate(path))
        expected += sum(float(log_rows[a, b]) for a, b in itertools.pairwise(path))
    assert total == pytest.approx(expected, rel=1e-5)


def test_some_labels(data: Path, tmp_path: Path) -> None:
    config = tiny(labelled=2)
    found = read_recordings(data, config.data, config.model)  # type: ignore[arg-type]
    assert found.train.labels is not None
    assert [bool((y >= 0).all()) for y in found.train.labels] == [True] * 2 + [False] * (NUM_TRAIN - 2)
    assert all((y == -1).all() for y in found.train.labels[2:])
    alone = read_recordings(data, tiny(labelled=2, unlabelled=False).data, config.model)  # type: ignore[arg-type]
    assert alone.train.names == ["r0", "r1"]
    assert train(config, data, tmp_path / "run").finished
    assert json.loads((tmp_path / "run" / "data.json").read_text())["train"]["labelled_recordings"] == 2


def test_parts_of_labelled_segments(data: Path, tmp_path: Path) -> None:
    """Every segment of a bound recording is cut into equal parts, in their order, each a state of its own."""
    config = tiny(labelled=2, parts=3, num_states=9)
    found = read_recordings(data, config.data, config.model)  # type: ignore[arg-type]
    given = read_splits(data)
    assert found.train.labels is not None
    assert given["train"].labels is not None
    for own, truth in zip(found.train.labels[:2], given["train"].labels, strict=False):
        expected: list[int] = []
        for label, group in itertools.groupby(truth.tolist()):
            length = len(list(group))
            expected += [3 * label + next(p for p in range(3) if t * 3 < (p + 1) * length) for t in range(length)]
        assert own.tolist() == expected
    assert all((y == -1).all() for y in found.train.labels[2:])
    path = write_recordings(tmp_path / "all.npz", splits=False)
    alone = read_recordings(path, config.data, config.model)  # type: ignore[arg-type]
    for valid in (found.valid, alone.valid):  # what is not trained on keeps its labels
        assert valid.labels is not None
        assert max(int(y.max()) for y in valid.labels) == 2


def test_parts_need_whole_labels(tmp_path: Path) -> None:
    rows = [recording(seed) for seed in range(3)]
    rows[1][1][4] = -1
    labels = np.concatenate([y for _, y in rows])
    lengths = [len(x) for x, _ in rows]
    np.savez(tmp_path / "all.npz", features=np.concatenate([x for x, _ in rows]), lengths=lengths, labels=labels)
    config = tiny(labelled=1, parts=2, num_states=6)
    assert read_recordings(tmp_path / "all.npz", config.data, config.model).space.parts == 2  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"row 4: no label, .* data.parts is 2"):
        train(tiny(labelled=2, parts=2, num_states=6), tmp_path / "all.npz", tmp_path / "run")


def test_a_run_starts_from_one_of_as_many_parts(data: Path, tmp_path: Path) -> None:
    train(tiny(labelled=2, parts=2, num_states=6, updates=1), data, tmp_path / "run")
    with pytest.raises(DataError, match=r"data.parts is 1, but the model that the run starts from has 2"):
        train(tiny(labelled=2, num_states=6), data, tmp_path / "other", init_from=tmp_path / "run")


def test_a_prior_keeps_variances_up(data: Path, tmp_path: Path) -> None:
    """Weak data, strong prior: gradients and EM end near variance 1, where without it they are far below."""
    for optimizer, updates in (("adam", 60), ("em", 5)):
        spread = []
        for prior in (0.0, 1e5):
            budget = {"updates": updates, "evaluate_every": updates, "lr": 0.2}
            config = tiny(optimizer=optimizer, variance_prior=prior, init="kmeans", **budget)
            train(config, data, tmp_path / f"{optimizer}-{prior}")
            model = FrameModel.from_pretrained(tmp_path / f"{optimizer}-{prior}" / "best")
            spread.append(float(model.observation.variance.detach().mean()))
        assert spread[0] < 0.5
        assert spread[1] == pytest.approx(1.0, abs=0.05)


def test_missing_frames_do_not_count(tmp_path: Path) -> None:
    arrays = [recording(seed)[0] for seed in range(4)]
    arrays[1][3:6] = np.nan
    np.savez(tmp_path / "some.npz", *arrays)
    result = train(tiny(), tmp_path / "some.npz", tmp_path / "run")
    assert result.test is None
    assert np.isfinite(result.best_valid)
    batch = frame_batches(read_frames(tmp_path / "some.npz"), DataConfig())[0]
    model = FrameModel.from_pretrained(tmp_path / "run" / "best")
    assert model.num_counted(batch) <= batch.num_tokens
    assert model.space is not None
    frames = model.space.apply(read_frames(tmp_path / "some.npz"))
    assert evaluate(model, frames).tokens == frames.num_frames - 3


@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
@pytest.mark.parametrize("optimizer", ["adam", "em"])
def test_other_observations(kind: str, optimizer: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    symbols = [rng.integers(0, 4, (30, 1)).astype(float) for _ in range(5)]
    bits = [(rng.random((30, 6)) < 0.4).astype(float) for _ in range(5)]
    np.savez(tmp_path / "some.npz", *(bits if kind == "bernoulli" else symbols))
    config = tiny(observations=kind, optimizer=optimizer, smoothing=0.1)
    assert np.isfinite(train(config, tmp_path / "some.npz", tmp_path / "run").best_valid)
    model = FrameModel.from_pretrained(tmp_path / "run" / "best")
    assert model.config.num_features == (6 if kind == "bernoulli" else 4)


def test_other_recordings_are_not_the_same_run(data: Path, tmp_path: Path) -> None:
    train(tiny(), data, tmp_path / "run", report=StopAfter(2))
    other = write_recordings(tmp_path / "other.npz", labels=False, splits=False)
    with pytest.raises(DataError, match=r"the recordings are not those .* was started with"):
        train(tiny(), other, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_states": 2, "labelled": 1}, "3 labels, but model.num_states is 2"),
        ({"labelled": 9}, "data.labelled is 9, but there are 8 training recordings"),
        ({"labelled": 1, "parts": 2, "num_states": 5}, "3 labels in 2 parts each, but model.num_states is 5"),
        ({"observations": "bernoulli"}, "row 0: feature 0 is .* bernoulli observations are 0 or 1"),
        ({"observations": "categorical"}, "3 features, but model.observations"),
        ({"num_features": 5}, "model.num_features is 5, but the recordings have 3"),
    ],
)
def test_recordings_that_do_not_fit(settings: dict[str, Any], words: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        train(tiny(**settings), data, tmp_path / "run")


def test_labels_that_are_not_there(tmp_path: Path) -> None:
    path = write_recordings(tmp_path / "all.npz", labels=False)
    with pytest.raises(DataError, match=r"data.labelled is 1, but the recordings have no labels"):
        train(tiny(labelled=1), path, tmp_path / "run")


def test_what_does_not_go_together() -> None:
    with pytest.raises(DomainError, match=r"em.*whole recordings and free tables"):
        tiny(optimizer="em", neural=True)
    with pytest.raises(DomainError, match=r"em.*whole recordings and free tables"):
        tiny(optimizer="em", batching="streams")
    with pytest.raises(DomainError, match=r"state of a label would be dropped"):
        tiny(labelled=1, state_dropout=0.3, num_states=8)
    with pytest.raises(DomainError, match=r"parts is 2, but labelled is 0"):
        tiny(parts=2)
    with pytest.raises(DomainError, match=r"parts is 0, but must be at least 1"):
        tiny(parts=0, labelled=1)
    with pytest.raises(DomainError, match=r"smooth is 4, but must be an odd number"):
        tiny(smooth=4)


def test_mass_that_is_lost_is_not_for_em(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"normalised_durations is false, but EM"):
        train(tiny(optimizer="em", normalised_durations=False), data, tmp_path / "run")


def test_memory_that_is_too_small(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"needs .* GiB even with the longest recording(.|\n)*streams"):
        train(tiny(memory=1e-5, window=4), data, tmp_path / "run")


def test_parts_of_a_batch_add_up(data: Path, tmp_path: Path) -> None:
    """Little memory: batches are computed in parts, and the run ends alike."""
    whole = train(tiny(tokens=400), data, tmp_path / "whole")
    told = StopAfter(-1)
    parts = train(tiny(tokens=400, memory=2.2e-5), data, tmp_path / "parts", report=told)
    assert any("batches are computed in parts" in line for line in told.said)
    assert parts.best_valid == pytest.approx(whole.best_valid, rel=1e-5)


@pytest.mark.parametrize(("family", "refused"), [("hsmm", True), ("frame_hmm", False)])
def test_durations_longer_than_any_recording(family: str, refused: bool, data: Path, tmp_path: Path) -> None:
    longest = max(read_splits(data)["train"].lengths)
    train(tiny(family=family, max_duration=longest, updates=1), data, tmp_path / "fits")
    config = tiny(family=family, max_duration=longest + 1, updates=1)
    if refused:
        with pytest.raises(DomainError, match=rf"all.npz.*{longest} frames, but model.max_duration is {longest + 1}"):
            train(config, data, tmp_path / "more")
        assert not (tmp_path / "more" / "recipe.toml").exists()
    else:
        train(config, data, tmp_path / "more")


def test_a_feature_that_never_changes(data: Path, tmp_path: Path) -> None:
    content = dict(np.load(data))
    content["features"][:, 1] = 4.0
    np.savez(tmp_path / "still.npz", **content)
    with pytest.raises(DataError, match=r"still.npz: feature 1 .* has the same value"):
        train(tiny(updates=1), tmp_path / "still.npz", tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()  # the folder is free


def test_labels_that_last_longer_than_a_segment(data: Path, tmp_path: Path) -> None:
    """Named before there is a run, so that its folder is free; with self-transitions they are several segments."""
    content = dict(np.load(data))
    content["labels"][2:9] = 1
    content["labels"][9] = 0
    np.savez(tmp_path / "long.npz", **content)
    config = tiny(labelled=8, max_duration=5, updates=1)
    with pytest.raises(
        DataError, match=r"long.npz: recording 'r0', rows 2 to 8: label 1 lasts 7 frames, but model.max"
    ):
        train(config, tmp_path / "long.npz", tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()  # the folder is free
    own = dataclasses.replace(config.model, self_transitions=True)
    train(dataclasses.replace(config, model=own), tmp_path / "long.npz", tmp_path / "run")
