"""The report of `python -m benchmarks steps` as a person reads it: nothing said twice."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.steps.report import text


def spread(ms: float) -> dict[str, Any]:
    return {"median": ms, "low": ms * 0.9, "high": ms * 1.1, "repeats": 3}


def report(*, captured: bool) -> dict[str, Any]:
    row = {
        "name": "banded, 16,384 states, rank 2,048, 256 diagonals each side",
        "batch": 8,
        "length": 32,
        "precision": "float32",
        "passed": True,
        "plans": [],
        "order": "state",
        "recursion_ms": None,
        "update_ms": None,
        "update_mib": None,
        "against": None,
        "captured": captured,
        "step_ms": spread(123.4),
        "eager_ms": spread(123.4),
        "forward_ms": spread(45.6),
        "same_step_ms": spread(123.4),
        "reference_ms": spread(789.0),
        "ratio": 6.39,
        "peak_mib": 999.0 if captured else None,
        "reference_mib": 1888.0 if captured else None,
        "error": 1.23e-9,
        "published_ms": None,
        "published_mib": None,
        "floor_ms": 11.1,
        "share": 0.09,
        "estimate_ms": 100.0,
        "estimate_mib": 900.0,
        "checks": [],
        "note": "",
        "reference_note": "",
    }
    ceilings = {"bytes_per_second": 1e10, "multiply_adds_per_second": {"float32": 1e11}}
    return {"device": "x", "torch": "2", "rankfold": "1", "date": "today", "rows": [row], "ceilings": ceilings}


def test_columns_without_a_number_are_left_out() -> None:
    heads = [line for line in text(report(captured=False)).splitlines() if line.startswith("| model")]
    assert not any(re.search(r"\| +(eager|MiB|reference MiB) \|", line) for line in heads)
    heads = [line for line in text(report(captured=True)).splitlines() if line.startswith("| model")]
    assert "| eager |" in heads[0]
    assert "| reference MiB |" in heads[0]


def test_the_picture_is_named() -> None:
    assert text({**report(captured=False), "plot": "a/b.png"}).endswith("picture: a/b.png")
    assert "picture" not in text(report(captured=False))


def test_orders_are_named_and_compared() -> None:
    first, second = report(captured=False), report(captured=False)
    against = {"order": "rank", "step_ratio": 1.234, "recursion_ratio": 5.678, "error": 2.5e-9}
    first["rows"][0] |= {"plans": ["rank", "auto"], "order": "rank", "recursion_ms": spread(3.21)}
    second["rows"][0] |= {"plans": ["state"], "recursion_ms": spread(18.2), "against": against}
    out = text({**first, "rows": first["rows"] + second["rows"]})
    assert re.search(r"\| +rank space \(auto\) \|.*\| +3\.21 \|", out)
    assert re.search(r"\| +state space \|.*\| +18\.2 \|", out)
    assert "state space / rank space: step 1.23x, recursion 5.68x; log Z differs by 2.5e-09" in out
    assert "recursion" not in text(report(captured=False))
    assert "summed" not in text(report(captured=False))
    against["recursion_ratio"] = None  # of chains
    assert "rank space: step 1.23x; log Z" in text({**first, "rows": first["rows"] + second["rows"]})
