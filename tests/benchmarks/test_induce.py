"""Inductions on sentences of a small grammar: what they leave, what interrupts them, and what they need."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import induce
from rankfold.cli.evaluate_trees import evaluate_trees
from rankfold.data.demo import write_toy_corpus
from rankfold.errors import DomainError
from rankfold.training import loop, report
from rankfold.training.run_dir import read_metrics
from tests.training.runs import StopAfter

ROOT = Path(__file__).parents[2]
KEPT = {"recipe.toml", "metrics.jsonl", "environment.json", "evaluation.json"}
SETS = [
    *("model.num_nonterminals=3", "model.num_preterminals=4", "model.dim=8", "data.sentences=8"),
    *("train.updates=4", "train.evaluate_every=2", "train.log_every=1", "train.device=cpu"),
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "toy"
    write_toy_corpus(folder, num=40, num_held_out=8)
    return folder


def given(toy: Path, out: Path, *more: str) -> list[str]:
    trees = str(toy / "test.trees")
    return ["--recipe", "demo-grammar", "--data", str(toy), "--trees", trees, "--out", str(out), "--set", *SETS, *more]


def evaluation(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "evaluation.json").read_text())
    assert isinstance(found, dict)
    return found


def test_what_two_seeds_leave(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(induce, "SAMPLE", 5)
    out, work = tmp_path / "out", tmp_path / "work"
    assert induce.main([*given(toy, out), "--seeds", "1", "2", "--work", str(work), "--curve", "2"]) == 0
    assert {path.name for path in out.iterdir()} == {"demo-grammar-s1", "demo-grammar-s2"}
    for seed, folder in enumerate(sorted(out.iterdir()), 1):
        assert {path.name for path in folder.iterdir()} == KEPT
        found, run = evaluation(folder), work / folder.name
        for name in ("recipe.toml", "metrics.jsonl"):
            assert (folder / name).read_bytes() == (run / name).read_bytes()
        again = evaluate_trees(run, [toy / "test.trees"], device="cpu")
        assert json.loads(json.dumps(again)) == {name: found[name] for name in again}
        assert (found["recipe"], found["data"], found["seed"]) == ("demo-grammar", "toy", seed)
        assert (found["end"], found["updates"], found["planned_updates"], found["gpu"]) == ("finished", 4, 4, None)
        assert found["seconds"]["training"] == pytest.approx(read_metrics(run / "metrics.jsonl")[-1]["seconds"])
        assert found["curve"]["trees"] == 5
        (point,) = found["curve"]["points"]  # of two validations
        assert point["updates"] == 4
        assert 0 <= point["kim"] <= point["uf1"] <= 1
        argv = json.loads((folder / "environment.json").read_text())["argv"]
        assert argv[:5] == ["python", "-m", "benchmarks.induce", "--recipe", "demo-grammar"]
        assert str(tmp_path) not in (folder / "environment.json").read_text() + json.dumps(found)
    first, second = (evaluation(out / f"demo-grammar-s{seed}")["perplexity"] for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_judged(number: int, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "reporter", lambda: StopAfter(3, number=number))
    assert induce.main([*given(toy, tmp_path), "--seeds", "1", "2"]) == induce.INTERRUPTED
    (folder,) = tmp_path.iterdir()  # the second seed was not begun
    found = evaluation(folder)
    assert (found["end"], found["updates"], found["best_model_updates"]) == ("interrupted", 3, 2)
    assert found["scores"]["mbr"]["uf1"]["num_sentences"] == 8
    assert "curve" not in found


def test_an_interrupted_run_goes_on(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    command = [*given(toy, out), "--work", str(work), "--resume"]
    with monkeypatch.context() as patch:
        patch.setattr(report, "reporter", lambda: StopAfter(3))
        assert induce.main(command) == induce.INTERRUPTED  # there was nothing to go on with, so it began
    assert (out / "demo-grammar-s1" / "metrics.jsonl").is_file()
    assert not (out / "demo-grammar-s1" / "evaluation.json").exists()  # it is to go on, and is judged at its end
    assert induce.main(command) == 0
    found = evaluation(out / "demo-grammar-s1")
    assert (found["end"], found["updates"]) == ("finished", 4)
    assert induce.main(given(toy, tmp_path / "whole")) == 0
    whole = evaluation(tmp_path / "whole" / "demo-grammar-s1")
    assert found["best_model_updates"] == whole["best_model_updates"]
    assert found["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-12)
    assert induce.main(command) == 2  # finished
    assert induce.main([*given(toy, out), "--resume"]) == 2  # from where?


def test_before_the_first_validation_there_is_nothing_to_judge(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "reporter", lambda: StopAfter(1))
    assert induce.main(given(toy, tmp_path)) == induce.INTERRUPTED
    found = evaluation(tmp_path / "demo-grammar-s1")
    assert (found["end"], found["updates"]) == ("interrupted", 1)
    assert "scores" not in found
    assert "no model to judge" in capsys.readouterr().err


def test_a_signal_while_trees_are_judged(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(*args: Any, **options: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGTERM)
        return evaluate_trees(*args, **options)

    monkeypatch.setattr(induce, "evaluate_trees", judged)
    before = signal.getsignal(signal.SIGTERM)
    assert induce.main([*given(toy, tmp_path), "--seeds", "1", "2"]) == induce.INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) == before
    (folder,) = tmp_path.iterdir()
    assert evaluation(folder)["end"] == "finished"
    assert "scores" in evaluation(folder)


def test_a_run_that_breaks_off_is_judged_by_its_best_model(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.train

    def broken(*args: Any, **options: Any) -> None:
        real(*args, **options)
        raise DomainError("update 5: the gradient's norm is nan.\n  A lower rate helps.")

    monkeypatch.setattr(loop, "train", broken)
    assert induce.main([*given(toy, tmp_path), "--seeds", "1", "2"]) == 1
    for folder in tmp_path.iterdir():
        found = evaluation(folder)
        assert (found["end"], found["error"]) == ("broken off", "update 5: the gradient's norm is nan.")
        assert "scores" in found


def test_what_is_wrong_is_found_before_any_work(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "train", None)
    held = tmp_path / "held" / "demo-grammar-s2"
    held.mkdir(parents=True)
    (held / "evaluation.json").write_text("{}")
    right = given(toy, tmp_path / "out")[: -len(SETS) - 1]
    for arguments, said in [
        ([*right, "--recipe", "small-lhmm"], "trees are asked of grammars alone"),
        ([*right, "--recipe", "no-such"], "no recipe and no file"),
        ([*right, "--trees", str(tmp_path / "none.trees")], "none.trees"),
        ([*right, "--replace", "%"], "WORD=OTHER was expected"),
        ([*right, "--out", str(tmp_path / "held"), "--seeds", "1", "2"], "holds something already"),
    ]:
        assert induce.main(arguments) == 2
        assert said in capsys.readouterr().err
    assert (held / "evaluation.json").read_text() == "{}"


def test_torch_numpy_and_safetensors_suffice(toy: Path, tmp_path: Path) -> None:
    """Where a run is made there may be nothing else."""
    program = (
        "import sys\n"
        "for name in ('rich', 'scipy', 'matplotlib', 'nltk', 'tensorboard'):\n"
        "    sys.modules[name] = None\n"  # an import of it raises
        "from benchmarks import induce\n"
        "sys.exit(induce.main(sys.argv[1:]))\n"
    )
    arguments = [*given(toy, tmp_path), "train.updates=2", "--curve", "1", "--replace", "every=a"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "demo-grammar-s1")]
    assert evaluation(tmp_path / "demo-grammar-s1")["replaced"] == {"every": "a"}
