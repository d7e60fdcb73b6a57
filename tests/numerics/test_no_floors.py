"""The source holds no floor, no stand-in for minus infinity and nothing that hides a NaN."""

import io
import re
import tokenize
from pathlib import Path

import pytest

import rankfold

SOURCES = sorted(Path(rankfold.__file__).parent.rglob("*.py"))

FORBIDDEN = re.compile(
    r"\b1(\.0)?e-0?9\b|\+\s*\d+(\.\d*)?e-\d+"  # floors
    r"|-\s*1(\.0)?e\+?0?([4-9]|[1-9]\d)\b|finfo\([^)]*\)\.min"  # minus infinity, nearly
    r"|nan_to_num|clamp_min|clip\(|\beps\s*=\s*[\d.]"
    r"|clamp\(min(?!=(info\.)?tiny\b)",  # the smallest normal number may keep a denominator from 0
    re.IGNORECASE,
)


def code(source: str) -> str:
    """A source without comments and strings, each line's tokens joined by blanks where they were apart."""
    lines = source.splitlines()
    kept = [list(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for row in range(token.start[0], token.end[0] + 1):
                start = token.start[1] if row == token.start[0] else 0
                end = token.end[1] if row == token.end[0] else len(lines[row - 1])
                kept[row - 1][start:end] = " " * (end - start)
    return "\n".join("".join(line) for line in kept)


def test_sources() -> None:
    found = {str(path): FORBIDDEN.search(code(path.read_text())) for path in SOURCES}
    assert {path: match for path, match in found.items() if match} == {}


def test_there_are_sources() -> None:
    assert {"times_log.py", "banded.py", "ladder.py"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize(
    "line",
    [
        "x = x + 1e-9",
        "x = x.clamp(min=0.0)",
        "x = x.clamp(min=1e-6)",
        "x = x.clamp(min=tiny_floor)",
        "x = x.clamp_min(1)",
        "x = torch.where(x == 0, -1e9, x)",
        "x = torch.nan_to_num(x)",
        "x = (x + 1e-20).log()",
        "x = x.masked_fill(mask, torch.finfo(x.dtype).min)",
        "x = normalise(x, eps=2)",
    ],
)
def test_the_scan_finds(line: str) -> None:
    assert FORBIDDEN.search(code(line)) is not None


@pytest.mark.parametrize(
    "line",
    [
        '"""No 1e-9, no -1e9."""',
        "x = 1  # not nan_to_num",
        "gap <= 1e-6",
        "noise = 2.0**-52",
        "y / top.clamp(min=tiny)",
    ],
)
def test_the_scan_lets_pass(line: str) -> None:
    assert FORBIDDEN.search(code(line)) is None
