"""Tables of gradient steps: from a printed record to the page, and files that are not one."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import steps
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
    assert steps.write(tmp_path, ["page.md"]) == 1
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("before\n<!-- steps million -->")
    assert text.endswith("<!-- end of steps -->\nafter\n")
    assert "stale" not in text
    assert "`rankfold bench --table million --json`" in text
    assert "| lhmm, 64 states | 8 x 32 | 6.00 | 4.20 | 7x | 10x | 42 | 956 | 3,145 | 1.0e-05 | 2.0e-05 |" in text
    assert "| hsmm | 8 x 32 | 2.88 | - | 178x | - | 513 |" in text
    assert "| hmm | 8 x 32 | - | - | - | - | - | 956 | 3,145 | - | 1.0e-05 |" in text


@pytest.mark.parametrize("content", [None, "[]", "{}", '{"rows": [{}]}'])
def test_what_the_command_did_not_print_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "steps-million.json").write_text(content)
    with pytest.raises(DataError, match=r"steps-million\.json"):
        steps.body(tmp_path, "million")


def test_an_update_is_a_sentence_of_its_own(tmp_path: Path) -> None:
    rows = [row("tf32", 6.0, update_ms={"median": 74.4}, update_mib=19704.2), row("bf16", 4.2, update_ms=None)]
    record = {"rows": rows, "device": "H200", "torch": "2.11", "date": "2026-11-15"}
    (tmp_path / "steps-million.json").write_text(json.dumps(record))
    text = steps.body(tmp_path, "million")
    assert "of lhmm, 64 states, 8 x 32 tokens, AdamW included, without a graph: 74 ms in tf32 (19,704 MiB);" in text


def test_repeats_that_are_not_the_usual_ones_are_in_the_command(tmp_path: Path) -> None:
    rows = [row("tf32", 6.0, step_ms={"median": 6.0, "repeats": 9})]
    record = {"rows": rows, "device": "H200", "torch": "2.11", "date": "2026-11-15"}
    (tmp_path / "steps-million.json").write_text(json.dumps(record))
    assert steps.body(tmp_path, "million").startswith("`rankfold bench --table million --repeats 9 --json`")


def test_an_error_that_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    record = {"rows": [row("tf32", 6.0, error=None)], "device": "H200", "torch": "2.11", "date": "2026-11-15"}
    (tmp_path / "steps-million.json").write_text(json.dumps(record))
    assert steps.body(tmp_path, "million").endswith("| 956 | 3,145 | - |")
