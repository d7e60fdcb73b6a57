"""What `rankfold bench` refuses before it measures anything, and how it says how long it will take."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import torch

from rankfold import cli
from rankfold.bench import run as runs
from rankfold.bench.cases import modest_cases, published_cases
from rankfold.bench.ceilings import Ceilings


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--sweep length --family hmm --plot a.foo", "--plot is a.foo, but matplotlib draws no such kind"),
        ("--sweep length --family hmm --plot a", "Take .png"),
        ("--family hmm --precision float32 tf32", "tf32, which a CPU computes as float32"),
    ],
)
def test_refused_before_any_work(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["bench", "--device", "cpu", *shlex.split(arguments)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "..." not in captured.err
    assert captured.out == ""


def test_long_tables_say_so_and_count_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(case: Any, precision: Any, settings: Any) -> dict[str, Any]:
        settings.say("checks")
        return {"passed": True}

    monkeypatch.setattr(runs, "measure_row", measure)
    monkeypatch.setattr(runs, "measure_ceilings", lambda *_: Ceilings(1.0, {}))
    lines: list[str] = []
    runs.run_cases(published_cases(), ["float32"], torch.device("cpu"), say=lines.append)
    assert lines[0].startswith("10 rows of 15 repeats, at least ")
    assert lines[2:4] == ["1/10 checks", "2/10 checks"]
    lines.clear()
    runs.run_cases(modest_cases()[:1], ["float32"], torch.device("cpu"), say=lines.append)
    assert lines == ["the ceiling of this machine", "checks"]
