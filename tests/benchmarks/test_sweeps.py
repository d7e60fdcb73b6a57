"""Sweeps on a page: exponents and pictures of what the command printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sweeps
from rankfold.errors import DataError


def record(family: str, axis: str, **curve: Any) -> dict[str, Any]:
    row = {"family": family, "num_states": 64, "rank": None if family == "hmm" else 8, "length": 32, "batch": 4}
    rows = [row | {"precision": "tf32", "estimate_ms": ms, "step_ms": {"repeats": 5}} for ms in (1.0, 2.0)]
    base = {"code": "rankfold", "precision": "tf32", "sizes": [1024, 2048], "ms": [1.0, 3.5], "factor": 1.0}
    curves = [base | {"exponent": 1.807, "last_exponent": 1.81} | curve]
    return {
        "rows": rows,
        "sweep": {"axis": axis, "curves": curves},
        "device": "H200",
        "torch": "2.11",
        "date": "2026-11-16",
    }


def test_a_line_has_the_sizes_the_times_and_the_exponents(tmp_path: Path) -> None:
    (tmp_path / "sweep-chains-hmm.json").write_text(json.dumps(record("hmm", "states")))
    (tmp_path / "sweep-chains-rank.json").write_text(json.dumps(record("lhmm", "rank", exponent=0.9)))
    (tmp_path / "page.md").write_text("before <!-- sweeps chains -->old<!-- end of sweeps --> after")
    assert sweeps.write(tmp_path, ["page.md", "absent.md"], pictures=False) == 1
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("before <!-- sweeps chains -->")
    assert text.endswith("<!-- end of sweeps --> after")
    hmm, lhmm = (line for line in text.splitlines() if line.startswith(("| states", "| rank")))
    figures = "1,024, 2,048 | 1.00, 3.50"
    assert hmm == f"| states | hmm, length 32, batch 4, tf32 | {figures} | 1.81 | 1.00 | 1.81 | 1.00 | 2 |"
    assert lhmm == f"| rank | lhmm, states 64, length 32, batch 4, tf32 | {figures} | 0.90 | 1.00 | 1.81 | 1.00 | 1 |"
    command = (
        "--sweep rank --values 1024,2048 --family lhmm --states 64 --length 32 --batch 4 --no-reference --repeats 5"
    )
    assert f"`rankfold bench {command} --json`" in text
    assert not list(tmp_path.glob("*.png"))


def test_pictures_are_drawn_beside_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "sweep-chains-hmm.json").write_text(json.dumps(record("hmm", "states")))
    assert "(sweep-chains-hmm.png)" in sweeps.body(tmp_path, "chains", pictures=True)
    assert (tmp_path / "sweep-chains-hmm.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", [None, "[]", "{}"])
def test_what_the_command_did_not_print_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "sweep-chains-hmm.json").write_text(content)
    with pytest.raises(DataError, match="sweep-chains-"):
        sweeps.body(tmp_path, "chains", pictures=False)
