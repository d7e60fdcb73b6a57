"""Checkpoints in several files: each below the limit, replaced as a whole, to the last bit and back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold.data.sharded_weights import join_pieces, to_pieces
from rankfold.errors import DataError, DomainError
from rankfold.models.pretrained import load_model
from rankfold.training.checkpoint import Progress, has_checkpoint, load_checkpoint, save_checkpoint
from rankfold.training.corpus import Corpus
from rankfold.training.loop import train
from rankfold.training.run_dir import RunDir
from rankfold.training.setup import optimizer
from tests.training.runs import (
    DROPOUT,
    FAMILIES,
    StopAfter,
    corpus_of,
    expect_equal,
    expect_same_end,
    fresh_model,
    tiny,
    write_corpus,
)
from tests.training.test_checkpoint import PROGRESS, contents, no_file_above, trained

HEADS = ("checkpoint.safetensors", "checkpoint-before.safetensors")
LIMIT = 20_000  # bytes; the tiny models, with moments and headers, have more
SIZES: dict[str, Any] = {"num_states": 64, "rank": 32, "dim": 32}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tiny(), write_corpus(tmp_path_factory.mktemp("data")))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("limit", [LIMIT, 3 * LIMIT])
def test_all_of_it_comes_back_from_files_below_the_limit(
    family: str, limit: int, corpus: Corpus, tmp_path: Path
) -> None:
    config = tiny(family=family, **SIZES)
    model, steps_of, carried = trained(config, corpus)
    path = tmp_path / "checkpoint.safetensors"
    assert not has_checkpoint(path)
    save_checkpoint(path, model, steps_of, PROGRESS, carried, "abc", shard_bytes=limit)
    assert has_checkpoint(path)
    assert not path.exists()
    sizes = [file.stat().st_size for file in files(tmp_path)]
    assert len(sizes) > 2
    assert max(sizes) <= limit
    if limit > LIMIT:  # half of the smaller one is kept for headers
        assert sum(sizes) / len(sizes) > 0.5 * limit  # no more files than need be
    loaded = load_checkpoint(path)
    assert (loaded.progress, loaded.corpus) == (PROGRESS, "abc")
    other = fresh_model(config, corpus, seed=99)
    other_steps = optimizer(other, config.train)
    loaded.fill(other, other_steps)
    expect_equal(contents(model, steps_of), contents(other, other_steps))
    again = loaded.carried_state(other, torch.device("cpu"))
    for x, y in zip(*(x if isinstance(x, tuple) else (x,) for x in (again, carried)), strict=True):
        assert torch.equal(x, y)


def test_rows_of_large_tensors_are_in_several_files(corpus: Corpus, tmp_path: Path) -> None:
    model, steps_of, _ = trained(tiny(**{**SIZES, "num_states": 300}), corpus)
    save_checkpoint(tmp_path / "c.safetensors", model, steps_of, Progress(), None, "", shard_bytes=LIMIT)
    largest = max(x.numel() * x.element_size() for x in model.state_dict().values())
    assert largest > LIMIT >= max(file.stat().st_size for file in files(tmp_path))
    loaded = load_checkpoint(tmp_path / "c.safetensors").of("model")
    expect_equal(loaded, dict(model.state_dict()))


def test_pieces_are_rows() -> None:
    tensors = {
        "a": torch.arange(1200.0).reshape(100, 4, 3),
        "b": torch.tensor(3.0),
        "c": torch.empty(0, 5),
        "d": torch.arange(999),
        "e": torch.ones(7, dtype=torch.bfloat16),
    }
    pieces, limit = to_pieces(tensors, 5000, {"x": "y" * 100})
    assert set(pieces) > {"b", "c", "e"}
    assert {name.partition("#")[0] for name in pieces} == set(tensors)
    assert max(x.numel() * x.element_size() for x in pieces.values()) <= limit < 5000 - 100
    shuffled = dict(sorted(pieces.items(), reverse=True))
    joined = join_pieces(shuffled, "shards")
    expect_equal({name: joined[name] for name in tensors}, tensors)
    with pytest.raises(DomainError, match=r"files of 1,000 bytes are too small(.|\n)*Allow at least") as caught:
        to_pieces(tensors, 1000, {"x": "y" * 100})
    least = int(str(caught.value).rpartition("least ")[2].partition(" ")[0].replace(",", ""))
    assert to_pieces(tensors, least, {"x": "y" * 100})


@pytest.mark.parametrize(
    "pieces",
    [
        {"a#1": torch.ones(2)},
        {"a#0": torch.ones(2), "a#2": torch.ones(2)},
        {"a#b": torch.ones(2)},
        {"a": torch.ones(2), "a#1": torch.ones(2).long()},
        {"a#0": torch.ones(2, 3), "a#1": torch.ones(2)},
        {"a#0": torch.tensor(1.0), "a#1": torch.tensor(1.0)},
        {"a#0": torch.ones(2), "a#01": torch.ones(2)},
    ],
)
def test_pieces_that_are_not_of_one_tensor(pieces: dict[str, torch.Tensor]) -> None:
    with pytest.raises(DataError, match=r"model/here: (.*)'a'"):
        join_pieces(pieces, "model/here")


def change(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for x in model.parameters():
            x += 1


@pytest.mark.parametrize("moves", range(14))
@pytest.mark.parametrize("limit", [0, 2 * LIMIT], ids=["whole", "shards"])
def test_a_kill_in_between_keeps_one_whole_checkpoint(
    moves: int, limit: int, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every number of files moved into place or removed: the earlier one, or the new one, never a mixture."""
    model, steps_of, carried = trained(tiny(**SIZES), corpus)
    path = tmp_path / "checkpoint.safetensors"
    for update in (0, 1, 2):  # the last has replaced others
        save_checkpoint(path, model, steps_of, Progress(update), carried, "", shard_bytes=limit)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    change(model)
    done = 0

    def limited(act: Callable[..., None]) -> Callable[..., None]:
        def step(*args: object, **kwargs: object) -> None:
            nonlocal done
            if done == moves:
                raise KeyboardInterrupt
            done += 1
            act(*args, **kwargs)

        return step

    killed = False
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", limited(os.replace))
        patch.setattr(Path, "unlink", limited(Path.unlink))
        try:
            save_checkpoint(path, model, steps_of, Progress(3), carried, "", shard_bytes=limit)
        except KeyboardInterrupt:
            killed = True
    loaded = load_checkpoint(path)
    assert loaded.progress.update in ((2, 3) if killed else (3,))
    expect_equal(loaded.of("model"), before if loaded.progress.update == 2 else dict(model.state_dict()))
    if moves < (4 if limit else 1):
        assert loaded.progress.update == 2
    save_checkpoint(path, model, steps_of, Progress(4), carried, "", shard_bytes=limit)
    assert load_checkpoint(path).progress.update == 4
    left = {item.name for item in tmp_path.iterdir()}
    heads = {item.name for item in tmp_path.glob("*.json")} or left
    assert heads == ({f"{x}.index.json" for x in HEADS} if limit else set(HEADS))
    named = "".join((tmp_path / head).read_text() for head in heads) if limit else ""
    assert all(name in named for name in left - heads)  # nothing is left over
    (tmp_path / min(left - heads, default=HEADS[0])).unlink()
    assert load_checkpoint(path).progress.update in (2, 3, 4)


def test_a_full_disk_keeps_the_earlier_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    model, steps_of, carried = trained(tiny(**SIZES), corpus)
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model, steps_of, PROGRESS, carried, "abc", shard_bytes=2 * LIMIT)
    change(model)
    with no_file_above(100), pytest.raises(OSError, match="could not be written"):
        save_checkpoint(path, model, steps_of, Progress(8), carried, "abc", shard_bytes=2 * LIMIT)
    assert load_checkpoint(path).progress == PROGRESS


def test_one_file_after_many_and_many_after_one(corpus: Corpus, tmp_path: Path) -> None:
    model, steps_of, _ = trained(tiny(**SIZES), corpus)
    path = tmp_path / "checkpoint.safetensors"
    for update, limit in enumerate((2 * LIMIT, 10**9, 2 * LIMIT, 10**9), 1):
        save_checkpoint(path, model, steps_of, Progress(update), None, "", shard_bytes=limit)
        assert load_checkpoint(path).progress.update == update
        assert path.exists() == (limit > LIMIT * 2)
        for file in (path, path.with_name(f"{path.name}.index.json")):  # the one before, of the other kind
            if update > 1 and file.exists():
                content = file.read_bytes()
                file.write_bytes(b"")
                assert load_checkpoint(path).progress.update == update - 1
                file.write_bytes(content)
    assert len(files(tmp_path)) < 20  # and no shards of the first


def test_a_bad_shard_is_named(corpus: Corpus, tmp_path: Path) -> None:
    model, steps_of, _ = trained(tiny(**SIZES), corpus)
    save_checkpoint(tmp_path / "c.safetensors", model, steps_of, Progress(), None, "", shard_bytes=2 * LIMIT)
    shard = files(tmp_path)[1]
    good = shard.read_bytes()
    for bad, words in (
        (good[:-1], "cut short or damaged"),
        (good[:-3] + bytes([good[-3] ^ 1]) + good[-2:], "damaged: the content does not give"),
        (b"", "is empty"),
    ):
        shard.write_bytes(bad)
        with pytest.raises(DataError, match=rf"{shard.name}: (the file )?{words}"):
            load_checkpoint(tmp_path / "c.safetensors")
    shard.unlink()
    with pytest.raises(DataError, match=rf"{shard.name}: no such file, but c.safetensors.index.json names it"):
        load_checkpoint(tmp_path / "c.safetensors")
    shutil.copy(files(tmp_path)[0], shard)
    with pytest.raises(DataError, match="not of one saving"):
        load_checkpoint(tmp_path / "c.safetensors")


def tensors_of(run: Path) -> dict[str, Tensor]:
    return load_checkpoint(run / "checkpoint.safetensors").tensors


@pytest.mark.parametrize(
    "settings",
    [{"family": "lhmm", **DROPOUT}, {"family": "block", "batching": "streams"}],
    ids=["lhmm", "block-streams"],
)
def test_a_run_in_shards_goes_on_to_the_last_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    config = tiny(**settings, **SIZES, checkpoint_shard_mb=2 * LIMIT / 1e6)
    whole = train(config, data, tmp_path / "whole")
    stopped = train(config, data, tmp_path / "run", report=StopAfter(7))
    assert not stopped.finished
    assert len(files(tmp_path / "run")) > 1
    assert max(file.stat().st_size for file in files(tmp_path / "run")) <= 2 * LIMIT
    best = files(tmp_path / "run" / "best")
    assert len(best) > 1
    assert max(file.stat().st_size for file in best) <= 2 * LIMIT
    resumed = train(config, data, tmp_path / "run", resume=True)
    assert (resumed.test, resumed.best_valid_perplexity) == (whole.test, whole.best_valid_perplexity)
    expect_equal(tensors_of(resumed.run), tensors_of(whole.run))
    with pytest.raises(DataError, match="already holds a run"):
        train(config, data, tmp_path / "run")


def test_tables_of_the_best_model_are_cut_by_rows_and_come_back(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    whole = train(tiny(**SIZES), data, tmp_path / "whole")
    cut = train(tiny(**SIZES, checkpoint_shard_mb=LIMIT / 1e6), data, tmp_path / "cut")
    table = SIZES["num_states"] * SIZES["dim"] * 4
    assert max(file.stat().st_size for file in files(cut.run / "best")) <= LIMIT < 3 * table
    expect_equal(*(load_model(run / "best").state_dict() for run in (cut.run, whole.run)))


def test_without_its_best_model_a_run_does_not_go_on(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    config = tiny(updates=8, evaluate_every=2)
    train(config, data, tmp_path / "run", report=StopAfter(5))
    shutil.move(tmp_path / "run" / "best", tmp_path / "elsewhere")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(DataError, match=r"run/best: no such model.*\n  Bring that folder back, too"):
        train(config, data, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    shutil.move(tmp_path / "elsewhere", tmp_path / "run" / "best")
    assert train(config, data, tmp_path / "run", resume=True).finished


def test_moments_in_half_precision(tmp_path: Path) -> None:
    """Files are smaller, a run that is not interrupted is the same, and one that is, nearly."""
    data = write_corpus(tmp_path / "data")
    plain, half = (tiny(**SIZES, **DROPOUT, optimizer_state=kind) for kind in ("float32", "bf16"))
    whole = train(plain, data, tmp_path / "whole")
    report = StopAfter(7)
    train(half, data, tmp_path / "run", report=report)
    assert any("moments in bf16" in line and "not equal" in line for line in report.said)
    kinds = {name.split(".")[-1]: x.dtype for name, x in tensors_of(tmp_path / "run").items() if "optimizer." in name}
    assert kinds == {"step": torch.float32, "exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}
    size, less = ((tmp_path / x / "checkpoint.safetensors").stat().st_size for x in ("whole", "run"))
    assert less < 0.75 * size
    resumed = train(half, data, tmp_path / "run", resume=True)
    # Moments of 8 bits move each of the four steps left by less than a hundredth of lr 0.02.
    found, truth = (tensors_of(x.run) for x in (resumed, whole))
    for name, x in truth.items():
        if name.startswith("model."):
            torch.testing.assert_close(found[name], x, rtol=0, atol=4e-3)
    assert resumed.best_valid_perplexity == pytest.approx(whole.best_valid_perplexity, rel=1e-2, abs=0)
    assert any(not torch.equal(found[name], x) for name, x in truth.items())
    uninterrupted = train(half, data, tmp_path / "other")
    ends = [{n: x for n, x in tensors_of(r.run).items() if n.startswith("model.")} for r in (uninterrupted, whole)]
    expect_equal(*ends)


def test_a_folder_with_shards_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors.index.json").write_text("{}")
    with pytest.raises(DataError, match=r"already holds a run \(checkpoint.safetensors.index.json\)"):
        RunDir.create(tmp_path)


def test_a_run_in_one_file_is_as_it_was(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    first, second = (train(tiny(updates=3), data, tmp_path / name) for name in "ab")
    expect_same_end(first, second)
    assert {file.name for file in files(first.run)} == set(HEADS)
