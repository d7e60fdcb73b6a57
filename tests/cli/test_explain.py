"""`rankfold explain`, as a new user would meet it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rankfold import cli
from rankfold.cli import explain
from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.models import ModelConfig, build_model
from rankfold.models.base import WordModel
from rankfold.models.config import Family
from rankfold.models.pretrained import load_model
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from tests.cli.test_language_models import FAMILIES, as_json, said, save_model, write_recipe


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recipe_is_explained_as_its_model(family: Family, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "tiny.toml", family)
    found = as_json(capsys, "explain", recipe, "--words", "50", "--batch", "2", "--length", "3")
    config = ModelConfig(family=family, num_states=6, rank=4, dim=5, num_layers=1, band=1, num_clusters=2)
    clusters = uniform_clusters(50, 2, seed=0) if family == "block" else None
    model = build_model(config, 50, clusters=clusters)
    assert found["parameters"] == sum(x.numel() for x in model.parameters())
    for plan, truth in zip(found["plans"], model.plan(2, 3).ways, strict=True):
        assert plan["order"] == truth.order
        assert plan["multiply_adds"] == truth.multiply_adds == sum(plan["parts"].values())
        assert plan["peak_bytes"] == truth.peak_bytes
        assert plan["least_seconds"] == truth.seconds
    assert [plan["chosen"] for plan in found["plans"]] == [True, False][: len(found["plans"])]


def test_the_plan_that_is_asked_for_is_the_chosen_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "tiny.toml", "rank")
    for plan in ("rank", "state"):
        found = as_json(capsys, "explain", recipe, "--set", f"model.plan={plan}")
        assert [way["order"] for way in found["plans"] if way["chosen"]] == [plan]


@pytest.mark.parametrize(
    ("recipe", "batch", "length"),
    [
        ("rank-16384-4096-ptb", 16, 32),
        ("rank-4096-4096-ptb", 1, 64),
        ("rank-8192-4096-ptb", 32, 32),
        ("rank-16384-2048-ptb", 16, 32),
        ("rankpcfg-900-1800-ptb", 8, 8),
        ("rankpcfg-4500-9000-ptb", 16, 40),
        ("tnpcfg-250-500-ptb", 4, 40),
    ],
)
def test_the_starred_order_is_the_one_the_model_takes(
    recipe: str, batch: int, length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step in bf16 makes its potentials in TF32: there the first, others too, would choose differently in bf16."""
    model, arguments = explain.find_model(recipe), ("explain", recipe, "--batch", batch, "--length", length)
    assert isinstance(model, WordModel)
    modes: tuple[Precision, ...] = ("float32", "tf32", "bf16")
    for precision in modes:
        asked = (*arguments, "--device", "cuda", "--precision", precision)
        with FakeTensorMode(), matmul_precision(parameter_precision(precision), torch.device("cuda")):  # needs no GPU
            words = torch.zeros(batch, length, dtype=torch.int64, device="cuda")
            own = model.cheapest("auto", Batch(words, torch.full((batch,), length, device="cuda")))
        assert [way["order"] for way in as_json(capsys, *asked)["plans"] if way["chosen"]] == [own]
        assert f"\n* {own} " in said(capsys, *asked)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "explain", save_model(tmp_path / "model", "rank"))
    assert "rank, 6 states, 10 words" in out
    assert "seconds (at least)" in out
    assert out.count("\n* ") == 1
    assert "V^T U" in out
    assert "tokens" in out


def test_a_model_too_large_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """A million states without structure: 4 TB of transitions alone, and nothing of it is allocated."""
    settings = ["--set", "model.family=hmm", "model.num_states=1000000", "model.neural=false"]
    found = as_json(capsys, "explain", "small-lhmm", *settings)
    assert found["parameters"] > 10**12
    assert found["plans"][0]["largest_batch_tokens"] in (0, None)


def test_a_folder_of_the_name_of_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small-lhmm").mkdir()
    assert as_json(capsys, "explain", "small-lhmm")["num_states"] == 1024


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without CUDA")
def test_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", "small-lhmm", "--device", "cuda", "--precision", "bf16")
    found = as_json(capsys, *arguments)
    assert found["memory_bytes"] is None
    assert found["plans"][0]["largest_batch_tokens"] is None
    assert "unknown memory" in said(capsys, *arguments)
    assert found["training"]["fits"] is None
    assert "if it fits" in said(capsys, *arguments)


def test_largest_batch_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain, "available", lambda device, asked: 10_000_000)
    (plan,) = as_json(capsys, "explain", save_model(tmp_path / "model"))["plans"]
    tokens = plan["largest_batch_tokens"]
    (full,) = as_json(capsys, "explain", tmp_path / "model", "--batch", "1", "--length", tokens)["plans"]
    (over,) = as_json(capsys, "explain", tmp_path / "model", "--batch", "1", "--length", tokens + 1)["plans"]
    assert full["training_bytes"] <= 10_000_000 < over["training_bytes"]
    assert full["training_bytes"] - full["peak_bytes"] == 8 * load_model(tmp_path / "model").num_parameters


def test_how_a_recipe_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "tiny.toml", "lhmm")
    arguments = ("explain", recipe, "--words", "50", "--length", "9", "--set", "data.tokens=100")
    whole = as_json(capsys, *arguments)["training"]
    assert (whole["fits"], whole["part_tokens"], whole["parts_of_a_batch"]) == (True, 100, 1)
    assert "a batch of 100 tokens at once" in said(capsys, *arguments)
    little = f"train.memory={1.01 * whole['least_bytes'] / 2**30!r}"
    found = as_json(capsys, *arguments, little)
    assert found["memory_bytes"] == int(1.01 * whole["least_bytes"])
    cut = found["training"]
    assert 9 <= cut["part_tokens"] < 100
    assert cut["parts_of_a_batch"] == -(-100 // cut["part_tokens"])
    assert f"in {cut['parts_of_a_batch']} parts of at most {cut['part_tokens']} tokens" in said(
        capsys, *arguments, little
    )
    less = f"train.memory={0.9 * whole['least_bytes'] / 2**30!r}"
    refused = as_json(capsys, *arguments, less)["training"]
    assert refused["fits"] is False
    assert "cannot be trained" in refused["why_not"]
    assert "What would fit" in said(capsys, *arguments, less)


def test_kernels_and_graphs_of_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", "small-lhmm", "--device", "cuda", "--set", "train.memory=80", "train.precision=tf32")
    found = as_json(capsys, *arguments)
    (plan,) = found["plans"]
    assert plan["kernels"]["emission normaliser"] == "triton"
    assert plan["kernels"]["scan"] == "triton"
    assert plan["kernels"]["transition"] == "torch"
    assert sum(plan["seconds"].values()) == pytest.approx(plan["least_seconds"], rel=1e-12, abs=0)
    assert found["training"]["graphs"] is True
    assert "as captured graphs" in said(capsys, *arguments)
    eager = as_json(capsys, *arguments, "train.graphs=false")
    assert eager["training"]["graphs"] is False


def test_a_model_by_itself_is_not_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "explain", save_model(tmp_path / "model"))["training"] is None
    assert "training" not in said(capsys, "explain", tmp_path / "model")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["small-lhm"], "Did you mean small-lhmm?"),
        (["small-lhmm", "--set", "model.ranks=3"], "Did you mean model.rank?"),
        (["small-lhmm", "--set", "model.rank=x"], "a whole number was expected"),
        (["small-lhmm", "--batch", "0"], "must be at least 1"),
        (["small-lhmm", "--length", "-1"], "must be at least 1"),
        (["small-lhmm", "--words", "0"], "num_words is 0"),
        (["model", "--set", "model.rank=3"], "whose sizes are fixed"),
        (["model", "--words", "9"], "whose sizes are fixed"),
    ],
)
def test_mistakes_exit_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(Path("model"))
    assert cli.main(["explain", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_models_of_frames(capsys: pytest.CaptureFixture[str]) -> None:
    """Features instead of words; how many there are has to be said where no recording does."""
    sized = ("segment-hsmm", "--set", "model.num_features=12")
    result = as_json(capsys, "explain", *sized, "--device", "cuda")
    assert (result["num_features"], result["num_words"]) == (12, None)
    assert result["training"]["graphs"] is True
    assert result["plans"][0]["kernels"]["segments"] == "triton"
    assert "12 features" in said(capsys, "explain", *sized, "--device", "cpu")
    assert cli.main(["explain", "segment-hsmm"]) == 2
    assert "--set model.num_features" in capsys.readouterr().err
