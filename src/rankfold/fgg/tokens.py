"""The words of the text language, each with its line and column. Read next: `syntax.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rankfold.errors import DataError


class Token(NamedTuple):
    """A word of the text: its kind ("name", "string", "number", "end of line", "end of text", or itself)."""

    kind: str
    text: str
    line: int
    column: int

    @property
    def shown(self) -> str:
        """The token as it is named in errors."""
        return self.kind if self.kind.startswith("end") else repr(self.text)


_WORDS = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
    |(?P<line>\n|;)
    |(?P<name>[A-Za-z_][\w']*(?:\[[^\[\]\n]*\])*)
    |`(?P<quoted>[^`\n]+)`
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<mark>->|[(),:=|+\[\]])""",
    re.VERBOSE,
)
PLAIN_NAME = re.compile(r"[A-Za-z_][\w']*(?:\[[^\[\]\n]*\])*")


def text_error(at: Token, message: str) -> DataError:
    """The error of a text at a token."""
    return DataError(f"line {at.line}, column {at.column}: {message}")


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text; comments run from # to the end of the line, lines within parentheses are joined.

    A line that begins with | continues the rule before it.
    """
    line, line_start, at, depth = 1, 0, 0, 0
    pending: Token | None = None
    while at < len(text):
        found = _WORDS.match(text, at)
        column = at - line_start + 1
        if found is None and text[at] in '"`':
            raise text_error(
                Token("?", text[at], line, column),
                f"expected a closing {text[at]} before the end of the line, and something within.",
            )
        if found is None:
            raise text_error(
                Token("?", text[at], line, column),
                f"expected a name, a number, a string or one of -> ( ) , : = | +, found {text[at]!r}.",
            )
        kind, value = str(found.lastgroup), found.group(str(found.lastgroup))
        if kind == "line" and depth == 0 and pending is None:
            pending = Token("end of line", value, line, column)
        elif kind not in ("line", "space"):
            token = Token({"quoted": "name", "mark": value}.get(kind, kind), value, line, column)
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(value, 0) if kind == "mark" else 0
            depth = max(depth, 0)
            if pending is not None and token.kind != "|":
                yield pending
            pending = None
            yield token
        if value == "\n":
            line, line_start = line + 1, found.end()
        at = found.end()
    column = len(text) - line_start + 1
    yield pending or Token("end of line", "", line, column)
    yield Token("end of text", "", line, column)
