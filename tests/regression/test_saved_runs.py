"""Runs that version 0.1.0 was cut off in, kept as files: later versions go on with them and end at the same numbers.

`saved_0_1/NAME` is a run after 7 of 11 updates (of frames: 4 of 7), `expected.json` how version 0.1.0 ended each after
a resume. Everything goes through the commands, whose names stay.
"""

import json
import shutil
from pathlib import Path

import pytest

from rankfold.cli import main

RUNS = Path(__file__).parent / "saved_0_1"
EXPECTED = json.loads((RUNS / "expected.json").read_text())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_run_of_version_0_1_goes_on(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = "hsmm" in name or "frame" in name
    data, run = RUNS / ("frames.npz" if frames else "words"), tmp_path / "run"
    shutil.copytree(RUNS / name, run)
    assert main(["train", "--resume", "--data", str(data), "--out", str(run), "--json"]) == 0
    found, wanted = json.loads(capsys.readouterr().out), EXPECTED[name]
    assert (found["updates"], found["finished"]) == (wanted["updates"], True)
    # Libraries of matrix products may add in another order; four updates carry that on.
    measure = "nats" if frames else "perplexity"
    assert found["test_log_likelihood"] == pytest.approx(wanted["test"], rel=1e-5)
    assert found[f"best_valid_{measure}"] == pytest.approx(wanted["best_valid"], rel=1e-5)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_best_model_of_version_0_1_loads(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = "hsmm" in name or "frame" in name
    data = RUNS / "frames.npz" if frames else RUNS / "words" / "valid.txt"
    run = tmp_path / "run"
    shutil.copytree(RUNS / name, run)
    assert main(["evaluate", str(run), "--data", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["log_likelihood"] < 0
