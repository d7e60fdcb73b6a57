"""The loop against updates by hand, what it writes, and how it ends when numbers are none."""

import json
import math
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models.catalog import AnyModel, build_model
from rankfold.models.pretrained import load_model
from rankfold.models.sequence import HMM
from rankfold.training import task
from rankfold.training.checkpoint import load_checkpoint, update_seed
from rankfold.training.config import Config
from rankfold.training.evaluation import evaluate
from rankfold.training.loop import Result, train
from rankfold.training.report import Reporter
from tests.training.runs import (
    DROPOUT,
    FAMILIES,
    NUM_WORDS,
    StopAfter,
    corpus_of,
    decoded,
    expect_same_end,
    fresh_model,
    metrics,
    state,
    tiny,
    write_corpus,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"))


class Models(list[AnyModel]):
    """The models that runs of a test build, changed by `change` as soon as they are there."""

    def __init__(self, patch: pytest.MonkeyPatch, change: Callable[[AnyModel], Any] = lambda model: None) -> None:
        super().__init__()

        def built(*args: Any, **kwargs: Any) -> AnyModel:
            self.append(build_model(*args, **kwargs))
            change(self[-1])
            return self[-1]

        patch.setattr(task, "build_model", built)


class At(Reporter):
    """Calls a function once an update is done."""

    def __init__(self, update: int, call: Callable[[], Any]) -> None:
        self.at, self.call = update, call

    def update(self, done: int, record: dict[str, Any]) -> None:
        if done == self.at:
            self.call()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batching", ["length", "unsorted", "streams"])
def test_every_family_on_every_kind_of_batch(family: str, batching: str, data: Path, tmp_path: Path) -> None:
    config = tiny(family=family, batching=batching, **({} if batching == "streams" else DROPOUT))
    result = train(config, data, tmp_path / "run")
    assert (result.run, result.updates, result.finished) == (tmp_path / "run", 11, True)
    assert 1 < result.best_valid_perplexity < 2 * NUM_WORDS
    assert result.test is not None
    assert (result.test.tokens, result.test.sentences) == (25, 5)
    names = {item.name for item in result.run.iterdir()}
    files = {"best", "checkpoint.safetensors", "checkpoint-before.safetensors", "data.json", "environment.json", "lock"}
    files |= {"metrics.jsonl", "recipe.toml", "vocab.json"}
    assert names == files
    again = evaluate(load_model(result.run / "best"), corpus_of(config, data).test or [], config.data)
    assert again == result.test
    assert load_checkpoint(result.run / "checkpoint.safetensors").progress.update == 11


def by_hand(config: Config, data: Path, updates: int) -> tuple[AnyModel, list[float], list[int], list[float]]:
    """Updates as a textbook has them: the batches of an update as one, its mean loss a token, one step."""
    corpus, settings = corpus_of(config, data), config.train
    model = fresh_model(config, corpus).double()
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[settings.optimizer]
    steps = kind(model.parameters(), lr=1.0, betas=settings.betas, weight_decay=settings.weight_decay)
    epochs = [corpus.epoch(config.data, settings.seed, epoch) for epoch in range(9)]
    batches = iter([batch for epoch in epochs for batch in epoch])
    values, tokens, norms, carried = [], [], [], None
    for update in range(updates):
        parts = [next(batches) for _ in range(settings.accumulate)]
        if config.data.batching == "streams":
            log_likelihood = torch.zeros((), dtype=torch.float64)
            for batch in parts:
                p = model.potentials(batch, carried=None if batch.first else carried)
                log_likelihood = log_likelihood + model.log_z(p).sum()
                carried = model.carry(p)
        else:
            generator = torch.Generator().manual_seed(update_seed(settings.seed, update))
            log_likelihood = model.log_likelihood(union(parts), generator=generator).sum()
        tokens.append(sum(int(batch.lengths.sum()) for batch in parts))
        steps.param_groups[0]["lr"] = settings.lr * (1 - update / settings.updates)
        steps.zero_grad()
        (-log_likelihood / tokens[-1]).backward()
        gradients = [x.grad for x in model.parameters() if x.grad is not None]
        norms.append(math.sqrt(sum(float((x**2).sum()) for x in gradients)))
        if settings.clip and norms[-1] > settings.clip:
            for x in gradients:
                x *= settings.clip / norms[-1]
        steps.step()
        values.append(float(log_likelihood.detach()))
    return model, values, tokens, norms


def union(batches: list[Batch]) -> Batch:
    rows = [words[:length] for batch in batches for words, length in zip(batch.values, batch.lengths, strict=True)]
    return Batch(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows]))


@pytest.mark.parametrize(
    "settings",
    [
        *({"family": family, "accumulate": 3} for family in FAMILIES),
        {"family": "hmm"},
        {"family": "hmm", "accumulate": 9},  # more than an epoch
        {"clip": 0.0},
        {"clip": 1e-3},
        {"optimizer": "adam", "weight_decay": 0.3},
        {"weight_decay": 0.3, "betas": (0.5, 0.9)},
        {"batching": "unsorted", "accumulate": 2},
        *({"family": family, **DROPOUT} for family in FAMILIES),
        {"family": "hmm", "batching": "streams", "accumulate": 3},
        {"family": "block", "batching": "streams", "accumulate": 2},
    ],
    ids=str,
)
def test_updates_by_hand(settings: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(**{"updates": 4, "log_every": 2, "schedule": "linear", **settings})
    models = Models(monkeypatch, lambda model: model.double())
    result = train(config, data, tmp_path / "run")
    expected, values, tokens, norms = by_hand(config, data, 4)
    # float64, but for clip_grad_norm_, which adds 1e-6 to the norm, and Adam's 1e-8 beside the root of tiny squares.
    for (name, x), y in zip(models[0].named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4 if settings.get("clip", 5.0) < 1 else 1e-7, atol=1e-8, msg=name)
    assert (result.updates, len(models)) == (4, 1)
    rows = [record for record in metrics(result.run) if "train_perplexity" in record]
    windows = [math.exp(-sum(values[i : i + 2]) / sum(tokens[i : i + 2])) for i in (0, 2)]
    assert [row["train_perplexity"] for row in rows] == pytest.approx(windows, rel=1e-7, abs=0)
    assert [row["gradient_norm"] for row in rows] == pytest.approx([norms[1], norms[3]], rel=1e-4, abs=0)
    assert [row["lr"] for row in rows] == pytest.approx([0.015, 0.005], rel=1e-14, abs=0)


def test_a_small_clip_changes_the_run(data: Path, tmp_path: Path) -> None:
    """Adam hides the size of the first gradient, not of the second."""
    ends = [state(train(tiny(clip=clip), data, tmp_path / str(clip)).run)[0] for clip in (0.0, 1e9, 0.3)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert not all(torch.equal(ends[0][name], ends[2][name]) for name in ends[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_of_training_alone(family: str, data: Path, tmp_path: Path) -> None:
    config = tiny(family=family, updates=2, evaluate_every=1, **DROPOUT)
    result = train(config, data, tmp_path / "run")
    plain = train(tiny(family=family, updates=2, evaluate_every=1), data, tmp_path / "plain")
    assert result.best_valid_perplexity != plain.best_valid_perplexity
    best = min(record["valid_perplexity"] for record in metrics(result.run) if "valid_perplexity" in record)
    found = evaluate(load_model(result.run / "best"), corpus_of(config, data).valid, config.data)
    assert found.perplexity == best == result.best_valid_perplexity


def test_the_lines_of_a_run(data: Path, tmp_path: Path) -> None:
    result = train(tiny(), data, tmp_path / "run")
    records = metrics(result.run)
    trained = {"train_perplexity", "lr", "gradient_norm"}
    valid = {"valid_perplexity", "valid_log_likelihood", "valid_tokens", "best"}
    final = {"end", "best_valid_perplexity", "test_perplexity", "test_tokens"}
    expected = [(3, trained), (4, valid), (6, trained), (8, valid), (9, trained), (11, trained | valid), (11, final)]
    assert [(record["update"], record.keys() - {"update", "epoch"}) for record in records] == expected
    assert [record["epoch"] for record in records] == [0, 0, 0, 1, 1, 1, 1]  # 7 batches an epoch
    assert [record["lr"] for record in records if "lr" in record] == pytest.approx(
        [0.02 * (1 - done / 11) for done in (2, 5, 8, 10)], rel=1e-12, abs=0
    )
    for record in records:
        if "valid_tokens" in record:
            exponent = -record["valid_log_likelihood"] / record["valid_tokens"]
            assert record["valid_perplexity"] == math.exp(exponent)
            assert record["valid_tokens"] == corpus_of(tiny(), data).valid.num_tokens
    assert result.test is not None
    assert records[-1]["test_perplexity"] == result.test.perplexity
    assert records[-1]["best_valid_perplexity"] == result.best_valid_perplexity
    seconds = [json.loads(line)["seconds"] for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)
    assert result.seconds == pytest.approx(seconds[-1], rel=0, abs=1e-3)  # rounded to a thousandth


def test_without_a_test_split(tmp_path: Path) -> None:
    result = train(tiny(), write_corpus(tmp_path / "data", test=False), tmp_path / "run")
    assert result.test is None
    assert result.finished
    assert metrics(result.run)[-1].keys() == {"update", "epoch", "end", "best_valid_perplexity"}


def test_a_last_update_between_two_lines_is_logged(data: Path, tmp_path: Path) -> None:
    result = train(tiny(updates=2, log_every=50, evaluate_every=50, checkpoint_every=50), data, tmp_path / "run")
    assert [record["update"] for record in metrics(result.run)] == [2, 2]
    assert metrics(result.run)[0].keys() >= {"train_perplexity", "valid_perplexity"}
    assert load_checkpoint(result.run / "checkpoint.safetensors").progress.update == 2


ROUGH = {"lr": 0.3, "schedule": "constant", "evaluate_every": 1, "log_every": 1, "seed": 2, "updates": 14}


def test_the_best_model_is_kept(data: Path, tmp_path: Path) -> None:
    config = tiny(**ROUGH)
    result = train(config, data, tmp_path / "run")
    records = [record for record in metrics(result.run) if "valid_perplexity" in record]
    found = [record["valid_perplexity"] for record in records]
    assert min(found) < found[-1]  # otherwise this shows nothing
    assert [record["best"] for record in records] == [x < min(found[:i], default=math.inf) for i, x in enumerate(found)]
    assert result.best_valid_perplexity == min(found)
    assert [record["epoch"] for record in records] == [done // 7 for done in range(1, 15)]  # 7 batches an epoch
    best = load_model(result.run / "best")
    corpus = corpus_of(config, data)
    assert best.vocabulary == corpus.vocabulary
    assert evaluate(best, corpus.valid, config.data).perplexity == min(found)
    assert corpus.test is not None
    assert evaluate(best, corpus.test, config.data) == result.test


def test_early_stopping(data: Path, tmp_path: Path) -> None:
    whole = metrics(train(tiny(**ROUGH), data, tmp_path / "whole").run)
    best = [record["best"] for record in whole if "best" in record]
    stop = next(i for i in range(len(best)) if i >= 2 and not any(best[i - 1 : i + 1])) + 1
    assert stop < 14  # otherwise this shows nothing
    result = train(tiny(**ROUGH, patience=2), data, tmp_path / "run")
    assert (result.updates, result.finished) == (stop, True)
    assert metrics(result.run)[:-1] == whole[:stop]
    assert metrics(result.run)[-1]["end"] is True
    progress = load_checkpoint(result.run / "checkpoint.safetensors").progress
    assert (progress.update, progress.stopped) == (stop, True)


def test_the_plateau_lowers_the_rate(data: Path, tmp_path: Path) -> None:
    settings = {**ROUGH, "schedule": "plateau", "plateau_patience": 1, "plateau_factor": 0.5}
    records = metrics(train(tiny(**settings), data, tmp_path / "run").run)[:-1]
    scale, waited = 1.0, 0
    for record in records:
        assert record["lr"] == 0.3 * scale  # of the update before its evaluation
        waited = 0 if record["best"] else waited + 1
        if waited > 1:
            scale, waited = scale / 2, 0
    assert scale < 1  # otherwise this shows nothing


@pytest.mark.parametrize("family", FAMILIES)
def test_structure_is_learnt(family: str, tmp_path: Path) -> None:
    """a b c d in a circle: a model of single words is at 4.98, one that knows the last word below 2."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split, size in (("train", 30), ("valid", 5)):
        rows = (" ".join("abcd"[(i + j) % 4] for j in range(3 + i % 5)) for i in range(size))
        (folder / f"{split}.txt").write_text("".join(f"{row}\n" for row in rows))
    config = tiny(
        family=family, updates=40, lr=0.1, tokens=200, clusters="brown", num_states=16 if family == "block" else 8
    )
    corpus = corpus_of(config, folder)
    count = Counter(word for row in corpus.train for word in row)
    nats = -sum(math.log(count[word] / count.total()) for row in corpus.valid for word in row)
    unigram = math.exp(nats / corpus.valid.num_tokens)
    result = train(config, folder, tmp_path / "run")
    assert result.best_valid_perplexity < 0.8 * unigram
    assert metrics(result.run)[-2]["train_perplexity"] < 0.8 * unigram


def test_nothing_global_is_touched(data: Path, tmp_path: Path) -> None:
    def world() -> list[Any]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        settings = [torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()]
        return [*handlers, *settings, random.getstate(), str(np.random.get_state())]

    before, numbers = world(), torch.get_rng_state()
    for family in FAMILIES:
        train(tiny(family=family, updates=2, clusters="brown", **DROPOUT), data, tmp_path / family)
    assert world() == before
    assert torch.equal(torch.get_rng_state(), numbers)


def test_the_same_run_twice(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = train(tiny(**DROPOUT), data, tmp_path / "a")
    torch.manual_seed(2)
    expect_same_end(train(tiny(**DROPOUT), data, tmp_path / "b"), first)
    other = train(tiny(**DROPOUT, seed=4), data, tmp_path / "c")
    assert other.best_valid_perplexity != first.best_valid_perplexity


def test_a_run_beside_the_main_thread(data: Path, tmp_path: Path) -> None:
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(train(tiny(updates=2), data, tmp_path / "a")))
    thread.start()
    thread.join()
    expect_same_end(found[0], train(tiny(updates=2), data, tmp_path / "b"))


def rows_of(batches: list[Batch]) -> list[list[int]]:
    return [row[:n].tolist() for batch in batches for row, n in zip(batch.values, batch.lengths.tolist(), strict=True)]


def first_batches(config: Config, data: Path) -> list[Batch]:
    corpus = corpus_of(config, data)
    return [batch for epoch in range(3) for batch in corpus.epoch(config.data, config.train.seed, epoch)]


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_among_the_parameters(family: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After update 6 a parameter is NaN: update 7 says so, and the run goes on from update 5 as if nothing were."""
    config = tiny(family=family, **DROPOUT)
    plain = train(config, data, tmp_path / "plain")
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        models = Models(patch)

        def spoil() -> None:
            for x in models[0].parameters():
                x.data.view(-1)[:1] = math.nan

        with pytest.raises(DomainError, match=r"^update 7: (.|\n)*bad-batch-7.json") as caught:
            train(config, data, run, report=At(6, spoil))
    assert "checkpoint is untouched" in str(caught.value)
    assert str(run / "bad-batch-7.json") in str(caught.value)
    batch = first_batches(config, data)[6]
    saved = json.loads((run / "bad-batch-7.json").read_text())
    assert saved == {"update": 7, "sentences": decoded(corpus_of(config, data).vocabulary, rows_of([batch]))}
    assert load_checkpoint(run / "checkpoint.safetensors").progress.update == 5
    assert [record["update"] for record in metrics(run)] == [3, 4, 6]
    expect_same_end(train(config, data, run, resume=True), plain)
    assert (run / "bad-batch-7.json").exists()  # a run never deletes what it wrote


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rate_without_bounds(family: str, data: Path, tmp_path: Path) -> None:
    config = tiny(family=family, lr=1e30, schedule="constant", checkpoint_every=50, evaluate_every=50)
    with pytest.raises(DomainError, match=r"^update \d+: (.|\n)*bad-batch-\d+.json(.|\n)*lower train.lr") as caught:
        train(config, data, tmp_path / "run")
    number = int(str(caught.value).removeprefix("update ").partition(":")[0])
    saved = json.loads((tmp_path / "run" / f"bad-batch-{number}.json").read_text())
    batch = first_batches(config, data)[number - 1]
    assert saved["sentences"] == decoded(corpus_of(config, data).vocabulary, rows_of([batch]))
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("family", ["lhmm", "block"])
def test_a_rate_without_bounds_and_an_evaluation(family: str, data: Path, tmp_path: Path) -> None:
    """The evaluation right after the step is the first to see it: it must not end the run without a word of where."""
    config = tiny(family=family, lr=1e30, schedule="constant", evaluate_every=1)
    with pytest.raises(DomainError, match=r"update \d"):
        train(config, data, tmp_path / "run")


def test_gradients_that_are_none(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches of an update share their gradient, so all are kept."""
    config = tiny(accumulate=2)
    calls: list[int] = []

    def spoilt(gradient: Tensor) -> Tensor:
        calls.append(1)
        return gradient if len(calls) < 5 else gradient * math.inf

    Models(monkeypatch, lambda model: next(model.parameters()).register_hook(spoilt))
    with pytest.raises(DomainError, match=r"^update 3: the gradient's norm is (nan|inf)(.|\n)*bad-batch-3.json"):
        train(config, data, tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "bad-batch-3.json").read_text())["sentences"]
    batches = first_batches(config, data)[4:6]
    assert saved == decoded(corpus_of(config, data).vocabulary, rows_of(batches))


def test_a_sentence_without_probability(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free tables keep their zeros: a word nobody says has none, and its batch is named."""
    config = tiny(family="hmm", num_states=2, neural=False)
    corpus = corpus_of(config, data)
    word = corpus.train.sentences[0][0]
    emission = torch.ones(2, NUM_WORDS).index_fill(1, torch.tensor([word]), 0) / (NUM_WORDS - 1)
    half = torch.full((2, 2), 0.5)
    monkeypatch.setattr(task, "build_model", lambda *args, **kwargs: HMM.from_tables(half[0], half, emission))
    with pytest.raises(DomainError, match=r"^update \d+: its log-likelihood is -inf"):
        train(config, data, tmp_path / "run")
    (path,) = (tmp_path / "run").glob("bad-batch-*.json")
    sentences = json.loads(path.read_text())["sentences"]
    assert any(corpus.vocabulary.words[word] in row for row in sentences)


def test_a_folder_with_a_run_is_refused(data: Path, tmp_path: Path) -> None:
    train(tiny(updates=1), data, tmp_path / "run")
    with pytest.raises(DataError, match="already holds a run"):
        train(tiny(updates=1), data, tmp_path / "run")


def test_a_bad_text_leaves_the_folder_free(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "data")
    (folder / "valid.txt").unlink()
    with pytest.raises(DataError, match="no file for the split 'valid'"):
        train(tiny(updates=1), folder, tmp_path / "run")
    assert train(tiny(updates=1), write_corpus(folder), tmp_path / "run").finished


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"family": "block", "num_clusters": 21, "num_states": 42}, DataError),
        ({"batching": "streams", "num_streams": 1000}, DomainError),
        ({"device": "cuda"}, UnsupportedError),
    ],
    ids=["clusters", "streams", "device"],
)
def test_a_run_that_cannot_begin_leaves_the_folder_free(
    settings: dict[str, Any], error: type[Exception], data: Path, tmp_path: Path
) -> None:
    """Who corrects the recipe can start again with the same --out."""
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(error):
        train(tiny(updates=1, **settings), data, tmp_path / "run")
    assert train(tiny(updates=1), data, tmp_path / "run").finished


def test_the_second_signal_stops_at_once(data: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = StopAfter(7, times=2)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), data, tmp_path / "run", report=stop)
    assert signal.getsignal(signal.SIGINT) is before
    assert load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").progress.update == 5
    plain = train(tiny(), data, tmp_path / "plain")
    expect_same_end(train(tiny(), data, tmp_path / "run", resume=True), plain)


def test_a_recipe_by_its_name(data: Path, tmp_path: Path) -> None:
    small = [
        "model.num_states=4",
        "model.rank=2",
        "model.dim=2",
        "train.updates=2",
        "train.device=cpu",
        "train.warmup=0",
    ]
    result = train("small-lhmm", data, tmp_path / "run", settings=small)
    assert (result.updates, result.finished) == (2, True)
    assert train(None, data, tmp_path / "run", resume=True).best_valid == result.best_valid
