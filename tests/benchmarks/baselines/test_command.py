"""The command: every model on a toy text, going on after an interruption, and files of other texts refused."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.baselines import command, fit
from benchmarks.baselines.fit import Setting
from rankfold.training.config import DataConfig
from rankfold.training.corpus import read_corpus

CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sentences of alternating words, whose next word is certain after the first."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split, num in (("train", 60), ("valid", 6), ("test", 4)):
        (folder / f"{split}.txt").write_text("a b\nb a\n" * num)
    return folder


def test_networks_learn_a_certain_text(data: Path, tmp_path: Path) -> None:
    """The first word is one of two, the rest is certain: perplexity 2 ** (1/3), 1.26, and no less."""
    corpus = read_corpus(data, DataConfig())
    for kind in ("feed-forward", "lstm"):
        setting = Setting(kind, dim=16, dropout=0.0, epochs=14, tokens=24, lr=3e-2)  # type: ignore[arg-type]
        found = fit.fit(setting, corpus, tmp_path / kind, CPU)
        assert found.test == pytest.approx(2 ** (1 / 3), rel=0.02)
        assert found.test >= 2 ** (1 / 3) - 1e-6


def test_a_network_goes_on_where_it_was_cut_off(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = read_corpus(data, DataConfig())
    setting = Setting("lstm", dim=8, epochs=3, tokens=200)
    whole = fit.fit(setting, corpus, tmp_path / "whole.pt", CPU)
    original, calls = fit._epoch, 0

    def stopping(*given: object) -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(fit, "_epoch", stopping)
    with pytest.raises(KeyboardInterrupt):
        fit.fit(setting, corpus, tmp_path / "cut.pt", CPU)
    monkeypatch.setattr(fit, "_epoch", original)
    capsys.readouterr()
    again = fit.fit(setting, corpus, tmp_path / "cut.pt", CPU)
    said = capsys.readouterr().err
    assert "epoch 3/3" in said
    assert "epoch 2/3" not in said
    assert (again.valid, again.test) == (whole.valid, whole.test)
    with pytest.raises(ValueError, match="other settings"):
        fit.fit(Setting("lstm", dim=8, epochs=4), corpus, tmp_path / "cut.pt", CPU)


def test_all_models_by_one_command(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"LSTM, small": Setting("lstm", dim=4, epochs=9), "feed-forward, small": Setting("feed-forward", dim=4)}
    monkeypatch.setattr(command, "NETWORKS", small)
    monkeypatch.setattr(command, "WORDS", command.WORDS | {"networks": tuple(small)})
    monkeypatch.setattr(command, "HMM_SETTINGS", ("model.num_states=3", "model.dim=4", "train.warmup=1"))
    out = tmp_path / "found.json"
    given = ["baselines", "--data", str(data), "--device", "cpu", "--out", str(out)]
    assert main([*given, "--epochs", "1", "--updates", "2"]) == 0
    content = json.loads(out.read_text())
    assert list(content["models"]) == [*command.COUNTS, *small, command.HMM]
    assert all(row["valid"] > 1 and row["test"] > 1 for row in content["models"].values())
    assert content["models"]["LSTM, small"]["setting"]["epochs"] == 1
    before = out.read_text()
    assert main(given) == 0  # nothing is left to do
    assert out.read_text() == before
    assert main([*given, "--carried"]) == 2  # another protocol
