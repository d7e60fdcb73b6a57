"""A finished or interrupted run is extended by more updates; a new run starts from another's parameters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankfold
from rankfold.data.tokenize import Tokenizer
from rankfold.data.weights import load_tensors
from rankfold.errors import DataError
from rankfold.models.config import FrameConfig
from rankfold.training.config import Config, DataConfig, TrainConfig
from rankfold.training.loop import Result, train
from rankfold.training.report import Reporter
from rankfold.training.schedule import Plateau, learning_rate
from tests.training.runs import DROPOUT, StopAfter, expect_equal, expect_same_end, metrics, state, tiny, write_corpus


class Said(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"))


def extend(run: Path, data: Any, updates: int, **options: Any) -> Result:
    return train(None, data, run, settings=[f"train.updates={updates}"], resume=True, **options)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "constant", **DROPOUT},
        {"schedule": "constant", "average": 0.9, "family": "block"},
        {"schedule": "constant", "batching": "streams"},
        {"schedule": "plateau", "plateau_patience": 0, "evaluate_every": 2, "lr": 0.3},
    ],
    ids=["constant", "average", "streams", "plateau"],
)
def test_an_extended_run_is_the_longer_one(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """Where the rate does not depend on the number of updates: to the last bit of parameters, optimiser and best."""
    long = train(tiny(updates=17, log_every=2, **settings), data, tmp_path / "long", quiet=True)
    first = train(tiny(updates=8, log_every=2, **settings), data, tmp_path / "run", quiet=True)
    assert first.finished
    result = extend(tmp_path / "run", data, 17, quiet=True)
    assert (result.updates, result.finished, result.test) == (17, True, long.test)
    (tensors, content), (others, expected) = state(result.run), state(long.run)
    expect_equal(tensors, others)
    assert content["progress"] == expected["progress"]
    best = [load_tensors(run / "best" / "model.safetensors")[0] for run in (result.run, long.run)]
    expect_equal(*best)
    assert [x for x in metrics(result.run) if "best" in x] == [x for x in metrics(long.run) if "best" in x]
    assert [record["update"] for record in metrics(result.run) if "end" in record] == [8, 17]
    assert "updates = 17" in (result.run / "recipe.toml").read_text()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_by_the_number_of_updates(schedule: Any, data: Path, tmp_path: Path) -> None:
    """The rates before are those of the shorter run, the rates after it those of the longer one; and it is told."""
    short, long = (tiny(updates=n, schedule=schedule, log_every=1, min_lr=0.001) for n in (8, 17))
    train(short, data, tmp_path / "run", quiet=True)
    report = Said()
    result = extend(tmp_path / "run", data, 17, report=report)
    rates = [record["lr"] for record in metrics(result.run) if "lr" in record]
    assert rates == [learning_rate(update, (short if update < 8 else long).train, Plateau()) for update in range(17)]
    (told,) = [line for line in report.lines if line.startswith("extended")]
    assert f"from 8 to 17 updates, after update 8; the {schedule} schedule is that of 17 updates" in told
    assert f"the rate goes from {rates[7]:.2e} to {rates[8]:.2e}, and ends at 1.00e-03" in told
    assert told in (result.run / "log.txt").read_text()


def test_an_extension_can_be_interrupted(data: Path, tmp_path: Path) -> None:
    for name in ("plain", "stopped"):
        train(tiny(), data, tmp_path / name, quiet=True)
    plain = extend(tmp_path / "plain", data, 20, quiet=True)
    stopped = extend(tmp_path / "stopped", data, 20, report=StopAfter(13))
    assert (stopped.updates, stopped.finished) == (13, False)
    expect_same_end(train(None, data, tmp_path / "stopped", resume=True, quiet=True), plain)


def test_an_interrupted_run_is_extended(data: Path, tmp_path: Path) -> None:
    train(tiny(schedule="constant"), data, tmp_path / "run", report=StopAfter(5))
    extended = extend(tmp_path / "run", data, 14, quiet=True)
    expect_same_end(extended, train(tiny(schedule="constant", updates=14), data, tmp_path / "long", quiet=True))


def test_killed_between_the_new_recipe_and_the_next_checkpoint(data: Path, tmp_path: Path) -> None:
    """The recipe says more updates than the finished checkpoint has: a plain --resume makes them."""
    for name in ("plain", "killed"):
        train(tiny(), data, tmp_path / name, quiet=True)
    recipe = tmp_path / "killed" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("updates = 11", "updates = 20"))
    found = train(None, data, tmp_path / "killed", resume=True, quiet=True)
    expect_same_end(found, extend(tmp_path / "plain", data, 20, quiet=True))


def test_what_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), data, run, quiet=True)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(DataError, match=r"train.updates is 5, but the run is one of 11: it can be extended, not cut"):
        extend(run, data, 5)
    with pytest.raises(DataError, match=r"another recipe: train.lr: 0.02 -> 0.5.\n  Only train.updates may grow"):
        train(None, data, run, settings=["train.updates=20", "train.lr=0.5"], resume=True)
    with pytest.raises(DataError, match="the text is not the one"):
        extend(run, write_corpus(tmp_path / "other", test=False), 20)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_a_run_that_stopped_early(data: Path, tmp_path: Path) -> None:
    settings = {"lr": 0.3, "evaluate_every": 1, "seed": 2, "schedule": "constant", "patience": 1}
    stopped = train(tiny(**settings), data, tmp_path / "run", quiet=True)
    assert stopped.updates < 11
    with pytest.raises(DataError, match=rf"stopped early, after update {stopped.updates}, with train.patience=1"):
        extend(tmp_path / "run", data, 20)


# From another run.


@pytest.mark.parametrize("average", [0.0, 0.5])
def test_the_first_parameters_are_those_of_the_other_run(average: float, data: Path, tmp_path: Path) -> None:
    """A step so small that it changes nothing but the last digits; other sentences, some of their words unknown."""
    first = train(tiny(average=average), data, tmp_path / "first", quiet=True)
    lines = ["w00 w01 w02", "w03 zebra w04", "zebra", "w05 w06"] * 5
    report = Said()
    result = train(
        None,
        lines,
        tmp_path / "second",
        settings=["train.lr=1e-12", "train.updates=1"],
        init_from=first.run,
        report=report,
    )
    assert result.model.vocabulary == first.model.vocabulary
    for (name, x), y in zip(result.model.state_dict().items(), first.model.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-9, msg=name)  # one step of 1e-12 in float32
    assert result.model.score("w00 w01") == pytest.approx(first.model.score("w00 w01"), rel=1e-6)
    told = "\n".join(report.lines)
    assert f"parameters of {first.run}" in told
    # The tenth and the twentieth sentence are held out: of the second kind and of the last.
    assert "its vocabulary of 20 words is kept: 9 of them are in the training text, where 9 tokens (15.5%)" in told
    assert "init_from" in (tmp_path / "second" / "init.json").read_text()


@pytest.mark.parametrize("settings", [{"family": "block"}, {"family": "rank", "average": 0.5}, DROPOUT])
def test_a_run_from_another_resumes_alone(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """To the last bit, without the other run, also where it was killed before its own first checkpoint."""
    origin = train(tiny(**settings), data, tmp_path / "origin", quiet=True).run
    other = write_corpus(tmp_path / "other", test=False)
    plain = train(None, other, tmp_path / "plain", init_from=origin, quiet=True)
    stopped = train(None, other, tmp_path / "stopped", init_from=origin, report=StopAfter(2))
    assert not stopped.finished
    shutil.rmtree(origin)
    expect_same_end(train(None, other, tmp_path / "stopped", resume=True, quiet=True), plain)


def test_a_text_cut_by_another_tokenizer(data: Path, tmp_path: Path) -> None:
    origin = train(tiny(), data, tmp_path / "origin", quiet=True).run
    prepared = write_corpus(tmp_path / "prepared")
    Tokenizer("simple").save(prepared)
    warning = f'warning: the tokenizer of the model is "spaces", but the words of {prepared} were cut by "simple"'
    for text, warned in ((prepared, True), (data, False)):
        report = Said()
        train(None, text, tmp_path / f"run-{warned}", init_from=origin, report=report)
        assert any(line.startswith(warning) for line in report.lines) is warned
        assert any("tokenizer" in line for line in report.lines) is warned


def test_recordings_keep_their_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    config = Config(
        model=FrameConfig(family="frame_hmm", num_states=2, neural=False),
        data=DataConfig(tokens=64),
        train=TrainConfig(optimizer="em", updates=2, evaluate_every=1, device="cpu"),
    )
    first = train(config, [rng.normal(size=(12, 2)) for _ in range(3)], tmp_path / "first", quiet=True)
    others = [5 + 3 * rng.normal(size=(12, 2)) for _ in range(3)]
    second = train(None, others, tmp_path / "second", init_from=first.run, report=StopAfter(1))
    assert second.model.space == first.model.space
    assert train(None, others, second.run, resume=True, quiet=True).finished
    with pytest.raises(DataError, match="features"):
        train(None, [x[:, :1] for x in others], tmp_path / "third", init_from=first.run)


def test_a_model_by_itself(data: Path, tmp_path: Path) -> None:
    """Without a recipe of its own: the defaults, with its configuration."""
    model = train(tiny(), data, tmp_path / "run", quiet=True).model
    model.save_pretrained(tmp_path / "model")
    result = train(
        None,
        data,
        tmp_path / "second",
        settings=["train.updates=1", "train.device=cpu"],
        init_from=tmp_path / "model",
        quiet=True,
    )
    assert result.model.config == model.config


def test_mistakes(data: Path, tmp_path: Path) -> None:
    run = train(tiny(), data, tmp_path / "run", quiet=True).run
    with pytest.raises(DataError, match=r"is \(8, 4\) there, \(9, 4\) here.\n  model.num_states is 8 there, 9 here"):
        train(tiny(num_states=9), data, tmp_path / "new", init_from=run)
    with pytest.raises(DataError, match=r"missing.*\n  model.family is 'lhmm' there, 'hmm' here"):
        train(tiny(family="hmm"), data, tmp_path / "new", init_from=run)
    with pytest.raises(DataError, match=r'"lhmm", of text, but model.family is "hsmm", of recordings'):
        train(Config(model=FrameConfig()), data, tmp_path / "new", init_from=run)
    with pytest.raises(DataError, match="no such folder"):
        train(tiny(), data, tmp_path / "new", init_from=tmp_path / "none")
    with pytest.raises(DataError, match="give --resume or --init-from, one of them"):
        train(None, data, run, resume=True, init_from=run)
    nameless = rankfold.load(run)
    nameless.vocabulary = None
    nameless.save_pretrained(tmp_path / "nameless")
    with pytest.raises(DataError, match="saved without a vocabulary"):
        train(tiny(), data, tmp_path / "new", init_from=tmp_path / "nameless")
    assert not (tmp_path / "new").exists()


def test_a_run_from_another_without_a_checkpoint(data: Path, tmp_path: Path) -> None:
    origin = train(tiny(), data, tmp_path / "origin", quiet=True).run
    train(None, data, tmp_path / "run", init_from=origin, report=StopAfter(2))
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.unlink()
    with pytest.raises(DataError, match=rf"started from {origin}, and was stopped before its first checkpoint"):
        train(None, data, tmp_path / "run", resume=True)
