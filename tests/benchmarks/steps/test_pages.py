"""Gradient steps and sweeps on a page: from printed records to tables and pictures, and files that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.steps import pages
from rankfold.errors import DataError


def row(precision: str, ms: float | None, **changes: Any) -> dict[str, Any]:
    taken = None if ms is None else {"median": ms, "repeats": 15}
    base = {"name": "lhmm, 64 states", "batch": 8, "length": 32, "precision": precision, "step_ms": taken}
    return base | {"error": 1e-5, "peak_mib": 956.4, "published_ms": 42.0, "published_mib": 3145} | changes


def test_a_line_has_both_precisions_and_the_ratios(tmp_path: Path) -> None:
    rows = [row("tf32", 6.0), row("bf16", 4.2, error=2e-5), row("bf16", None, name="hmm", published_ms=None)]
    rows.append(row("tf32", 2.88, name="hsmm", published_ms=513))
    record = {"rows": rows, "device": "H200", "torch": "2.11", "date": "2026-11-15"}
    (tmp_path / "steps-million.json").write_text(json.dumps(record))
    (tmp_path / "page.md").write_text("before\n<!-- steps million -->stale<!-- end of steps -->\nafter\n")
    assert pages.write(tmp_path, ["page.md"], pictures=False) == 1
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("before\n<!-- steps million -->")
    assert text.endswith("<!-- end of steps -->\nafter\n")
    assert "stale" not in text
    assert "`python -m benchmarks steps --table million --json`" in text
    assert "| lhmm, 64 states | 8 x 32 | 6.00 | 4.20 | 7x | 10x | 42 | 956 | 3,145 | 1.0e-05 | 2.0e-05 |" in text
    assert "| hsmm | 8 x 32 | 2.88 | - | 178x | - | 513 |" in text
    assert "| hmm | 8 x 32 | - | - | - | - | - | 956 | 3,145 | - | 1.0e-05 |" in text


@pytest.mark.parametrize("content", [None, "[]", "{}", '{"rows": [{}]}'])
def test_what_the_command_did_not_print_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "steps-million.json").write_text(content)
    with pytest.raises(DataError, match=r"steps-million\.json"):
        pages.steps_body(tmp_path, "million")


def test_an_update_is_a_sentence_of_its_own(tmp_path: Path) -> None:
    rows = [row("tf32", 6.0, update_ms={"median": 74.4}, update_mib=19704.2), row("bf16", 4.2, update_ms=None)]
    record = {"rows": rows, "device": "H200", "torch": "2.11", "date": "2026-11-15"}
    (tmp_path / "steps-million.json").write_text(json.dumps(record))
    text = pages.steps_body(tmp_path, "million")
    assert "of lhmm, 64 states, 8 x 32 tokens, AdamW included, without a graph: 74 ms in tf32 (19,704 MiB);" in text


def test_repeats_that_are_not_the_usual_ones_are_in_the_command(tmp_path: Path) -> None:
    rows = [row("tf32", 6.0, step_ms={"median": 6.0, "repeats": 9})]
    record = {"rows": rows, "device": "H200", "torch": "2.11", "date": "2026-11-15"}
    (tmp_path / "steps-million.json").write_text(json.dumps(record))
    assert pages.steps_body(tmp_path, "million").startswith(
        "`python -m benchmarks steps --table million --repeats 9 --json`"
    )


def test_an_error_that_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    record = {"rows": [row("tf32", 6.0, error=None)], "device": "H200", "torch": "2.11", "date": "2026-11-15"}
    (tmp_path / "steps-million.json").write_text(json.dumps(record))
    assert pages.steps_body(tmp_path, "million").endswith("| 956 | 3,145 | - |")


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
    assert pages.write(tmp_path, ["page.md", "absent.md"], pictures=False) == 1
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
    assert f"`python -m benchmarks steps {command} --json`" in text
    assert not list(tmp_path.glob("*.png"))


def test_pictures_are_drawn_next_to_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "sweep-chains-hmm.json").write_text(json.dumps(record("hmm", "states")))
    assert "(sweep-chains-hmm.png)" in pages.sweeps_body(tmp_path, "chains", pictures=True)
    assert (tmp_path / "sweep-chains-hmm.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_drawn_anew_only_where_its_table_is_new(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "sweep-chains-hmm.png"
    (tmp_path / "page.md").write_text("<!-- sweeps chains --><!-- end of sweeps -->")
    for exponent, drawn in ((1.8, True), (1.8, False), (1.7, True)):
        picture.write_bytes(b"as it was")
        (tmp_path / "sweep-chains-hmm.json").write_text(json.dumps(record("hmm", "states", exponent=exponent)))
        assert pages.write(tmp_path, ["page.md"], pictures=True) == 1
        assert (picture.read_bytes() != b"as it was") == drawn


@pytest.mark.parametrize("content", [None, "[]", "{}"])
def test_a_sweep_that_the_command_did_not_print_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "sweep-chains-hmm.json").write_text(content)
    with pytest.raises(DataError, match="sweep-chains-"):
        pages.sweeps_body(tmp_path, "chains", pictures=False)
