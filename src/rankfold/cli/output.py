"""Output of commands: strict JSON, tables that are Markdown and line up as plain text, progress."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rankfold.data.tokenize import JOINERS


def to_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON; infinities and NaN, which JSON has not, as null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def three_digits(number: float) -> str:
    """A measurement to three digits, or as a whole number."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:#.3g}".rstrip(".")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A Markdown table whose columns line up; the first `left` are aligned to the left, the others to the right."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    cells = [
        [cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(line)] for line in lines
    ]
    rule = ["-" * size if i < left else "-" * (size - 1) + ":" for i, size in enumerate(widths)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (cells[0], rule, *cells[1:]))


def printable(text: str) -> str:
    """Text as a terminal may show it: control characters, which could steer it, are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in JOINERS else ascii(c)[1:-1] for c in text)


def say(line: str) -> None:
    """Print one line for a person, on standard error."""
    print(line, file=sys.stderr, flush=True)
