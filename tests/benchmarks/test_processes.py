"""What the measurement of several processes leaves behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import processes
from rankfold.errors import DataError

ROW = {"processes": 1, "update_ms": 2.0, "sum_ms": 0.0, "numbers": 0}


def test_rows_are_written_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def several(args: Any, num: int) -> dict[str, Any]:
        if num > 1:
            raise DataError("2 processes failed")
        return ROW

    one = {"without torchrun": [1.0, 1.0], "torchrun, one process": [1.02, 1.02]}
    monkeypatch.setattr(processes, "one_process", lambda args: one)
    monkeypatch.setattr(processes, "several", several)
    monkeypatch.setattr(processes, "share", lambda args, num: 2.0)
    with pytest.raises(DataError, match="2 processes failed"):
        processes.main(["--out", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["one"]["torchrun, one process"]["ratio"]["median"] == 1.02
    assert record["several"] == [{**ROW, "share_ms": 2.0}]
    assert "| 1 | 2.0 | 2.0 | 0.0 | 0 |" in capsys.readouterr().out


@pytest.mark.parametrize(("ratio", "status"), [(1.03, 0), (1.031, 1)])
def test_three_percent_are_allowed(ratio: float, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"without torchrun": [1.0], "torchrun, one process": [ratio]}
    monkeypatch.setattr(processes, "one_process", lambda args: one)
    assert processes.main(["--num"]) == status
