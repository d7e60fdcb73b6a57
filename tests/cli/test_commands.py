"""The command line, as a new user would meet it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import rankfold
from rankfold.cli import COMMANDS, demo, doctor, main
from rankfold.cli.output import to_json
from tests.cli.test_language_models import write_corpus, write_recipe

CODE = "import os, sys, rankfold_command; assert 'torch' not in sys.modules; sys.argv = ['rankfold', '--version']\n"
CODE += "try: rankfold_command.main()\nexcept SystemExit: print(os.environ['OMP_WAIT_POLICY'])"


def test_doctor_reports_versions_devices_and_exactness(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--seconds", "0.2"]) == 0
    out = capsys.readouterr().out
    assert f"rankfold {rankfold.__version__}" in out
    assert torch.__version__.split("+")[0] in out
    assert re.search(r"cpu +[\d,]+ random chains, largest difference .* in float64, .* in float32: pass", out)


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--seconds", "0.2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["exact"] is True
    assert report["exactness"][0]["device"] == "cpu"
    assert report["exactness"][0]["num_chains"] >= 1
    assert set(report["packages"]) >= {"torch", "numpy", "triton"}


@pytest.mark.parametrize(
    "broken",
    [
        lambda p, *_: rankfold.log_z(p) + 1e-3,
        lambda p, *_: rankfold.log_z(p) * float("nan"),
    ],
)
def test_doctor_fails_where_the_library_is_wrong(
    broken: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "log_z", broken)
    assert main(["doctor", "--seconds", "0.1"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_users_mistake_exits_2_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--seconds", "0"]) == 2
    error = capsys.readouterr().err
    assert "--seconds is 0.0, but must be above 0" in error
    assert "Traceback" not in error


def test_an_output_folder_that_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text('"""This is a module."""')
    monkeypatch.setattr(demo, "write_corpus", partial(demo.write_corpus, source=tmp_path))
    (tmp_path / "taken").write_text("")
    assert main(["demo", "--out", str(tmp_path / "taken")]) == 2
    assert "taken" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == ""


def test_unknown_commands_and_arguments_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["dance"], ["doctor", "--fast"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
    assert "usage: rankfold" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"example:\n  rankfold {name}" in capsys.readouterr().out


def test_python_m_rankfold_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "rankfold", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"rankfold {rankfold.__version__}"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_and_version_do_not_load_torch(option: str) -> None:
    code = f"""
import sys, rankfold_command
sys.argv[1:] = ["{option}"]
try:
    rankfold_command.main()
except SystemExit as stop:
    assert stop.code == 0
assert "torch" not in sys.modules
assert not [name for name in sys.modules if name.startswith("rankfold.") and name not in
            ("rankfold.version", "rankfold.cli")]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if option == "--help":
        assert all(name in done.stdout and text[:20] in done.stdout for name, text in COMMANDS.items())


def test_the_library_needs_no_plotting(tmp_path: Path) -> None:
    """Importing everything the library does leaves matplotlib alone."""
    commands = "; ".join(f"import rankfold.cli.{name.replace('-', '_')}" for name in COMMANDS)
    code = f"import sys; from rankfold import *; {commands}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_doctor_can_be_called_from_python() -> None:
    assert doctor.doctor(seconds=0.1)["exact"] is True


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_how_threads_wait(before: str | None, after: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if before is None else {"OMP_WAIT_POLICY": before}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["rankfold", "0.2.0", after]


def test_sizes_that_no_memory_holds_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] can't allocate memory: you tried to allocate 51 TB")

    monkeypatch.setattr("rankfold.cli.explain.find_model", full)
    assert main(["explain", "small-lhmm"]) == 2
    assert "not enough memory" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["explain", "small-lhmm", "--set", "model.num_states=999999999999999999999"]) == 2
    assert "a whole number was expected" in capsys.readouterr().err


def test_our_own_mistakes_are_not_called_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("rankfold.cli.explain.find_model", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["explain", "small-lhmm"])


def test_a_reader_that_has_seen_enough_is_not_an_error() -> None:
    code = "from rankfold.cli import main\nimport sys\nsys.exit(main(['data', 'list', '--json']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


def test_numbers_that_are_none_become_null() -> None:
    value = {"a": math.inf, "b": [1.5, -math.inf, {"c": math.nan}], "d": (1, "x", None, True)}
    assert json.loads(to_json(value)) == {"a": None, "b": [1.5, None, {"c": None}], "d": [1, "x", None, True]}
    assert to_json({"a": 1}, indent=2) == '{\n  "a": 1\n}'


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet_and_those_that_compute_have_threads(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    action = {"data": ["list"], "analyse": ["ranks"]}.get(name, [])
    with pytest.raises(SystemExit):
        main([name, *action, "--help"])
    out = capsys.readouterr().out
    assert "--quiet" in out
    assert ("--threads N" in out) == (name not in ("data", "runs", "completion"))


def test_quiet_leaves_results_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, recipe = write_corpus(tmp_path / "data"), write_recipe(tmp_path / "tiny.toml")
    train = ["train", "--recipe", str(recipe), "--data", str(data), "--out", str(tmp_path / "run")]
    assert main([*train, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert "test perplexity" in captured.out
    assert captured.err == ""
    score = ["score", str(tmp_path / "run"), str(data / "test.txt")]
    assert main(score) == 0
    loud = capsys.readouterr()
    assert "<unk>" in loud.err
    assert main([*score, "--quiet"]) == 0
    assert capsys.readouterr() == (loud.out, "")
    assert main([*score[:2], str(tmp_path / "none.txt"), "--quiet"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(doctor, "doctor", lambda **_: seen.append(torch.get_num_threads()) or 1 / 0)
    for wanted in (1, 3):
        with pytest.raises(ZeroDivisionError):
            main(["doctor", "--threads", str(wanted)])
    assert seen == [1, 3]
    assert torch.get_num_threads() == before
    for wrong in ("0", "-1", "two"):
        with pytest.raises(SystemExit) as stop:
            main(["doctor", "--threads", wrong])
        assert stop.value.code == 2
        assert "at least 1" in capsys.readouterr().err
