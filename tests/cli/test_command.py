"""The installed command: threads wait without spinning, unless the user said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankfold.cli import main

CODE = "import os, sys, rankfold_command; assert 'torch' not in sys.modules; sys.argv = ['rankfold', '--version']\n"
CODE += "try: rankfold_command.main()\nexcept SystemExit: print(os.environ['OMP_WAIT_POLICY'])"


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_how_threads_wait(before: str | None, after: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if before is None else {"OMP_WAIT_POLICY": before}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["rankfold", "0.1.0", after]


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
