"""From a text to its statements: tokens, and the syntax of the text language, before any name is looked up.

domain N = 5                               a domain and its size; `domain N` leaves the size open
domain M = N + P                           a union
observed V = "the" "dog" "barks"           a domain whose nodes are the symbols of a string; values may have names
rank R = 16                                a domain whose values are the terms of a factored tensor
factor rule: N, M, M                       a factor and its domains; may end with `batched`, or = [[0.5, 1], [0, 2]]
symbol X: N                                a nonterminal and its domains
start S                                    else the left side of the first rule
given V = [4, 0, 2]                        the words that cells V[0], V[1], ... stand for; of a batch [[4, 0], [2, 1]]
X(n: N) -> rule(n, l, r) Y(l) Y(r)         a rule; `1` or nothing is an empty right side, | begins an alternative
split: X(n) -> rule(n, l, r) Y(l) Y(r)     a rule with a name
X(n) -> emit(n, "the")                     a constant; also emit(n, 0), emit(n, w = 0), emit(n, w = V[3])
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rankfold.errors import DataError
from rankfold.fgg.hypergraph import Cell

DIGITS = 18  # of whole numbers: all of them are below 2^63
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


class Token(NamedTuple):
    """A word of the text: its kind ("name", "string", "number", "end of line", "end of text", or itself)."""

    kind: str
    text: str
    line: int
    column: int

    @property
    def description(self) -> str:
        """The token as it is named in errors."""
        return self.kind if self.kind.startswith("end") else repr(self.text)


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
        if found is None:
            expected = (
                f"expected a closing {text[at]} before the end of the line, and something within."
                if text[at] in '"`'
                else f"expected a name, a number, a string or one of -> ( ) , : = | +, found {text[at]!r}."
            )
            raise text_error(Token("?", text[at], line, column), expected)
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


@dataclass(frozen=True)
class DomainLine:
    """A declaration of a domain, its kind the word it begins with: a size, named values, or the parts of a union."""

    name: Token
    kind: str
    size: int | None = None
    values: tuple[str, ...] = ()
    parts: tuple[Token, ...] = ()


@dataclass(frozen=True)
class LabelLine:
    """A declaration of a factor or a nonterminal; `weights` are nested lists."""

    name: Token
    is_terminal: bool
    type: tuple[Token, ...]
    is_batched: bool = False
    weights: object = None


@dataclass(frozen=True)
class GivenLine:
    """A declaration of observed values; `values` are whole numbers in nested lists."""

    name: Token
    values: object


@dataclass(frozen=True)
class Argument:
    """A node as it is written in an edge; `name` is None for a bare constant."""

    at: Token
    name: str | None
    domain: Token | None = None
    observed: int | str | Cell | None = None


@dataclass(frozen=True)
class Atom:
    """An edge as it is written."""

    label: Token
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class RuleLine:
    """A rule as it is written."""

    name: Token | None
    left: Atom
    right: tuple[Atom, ...]


@dataclass
class Statements:
    """The statements of a text by kind, in order."""

    domains: list[DomainLine] = field(default_factory=list)
    labels: list[LabelLine] = field(default_factory=list)
    rules: list[RuleLine] = field(default_factory=list)
    given: list[GivenLine] = field(default_factory=list)
    start: Token | None = None
    end: Token | None = None


def statements(text: str) -> Statements:
    """The statements of a text. Raises `DataError` naming line, column and what was expected."""
    if not isinstance(text, str):
        raise DataError(f"The text is a {type(text).__name__}, expected a str.\n  Files are read by read(path).")
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = list(tokens(text))
        self.at = 0
        self.found = Statements()

    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    def next_is(self, *kinds: str) -> bool:
        return self.here.kind in kinds

    def word(self, *words: str) -> bool:
        """Whether the next token is one of these words and begins a declaration: a name follows."""
        return self.next_is("name") and self.here.text in words and self.tokens[self.at + 1].kind == "name"

    def accept(self, kind: str) -> bool:
        """Whether the next token is of this kind; it is taken then."""
        is_next = self.next_is(kind)
        self.at += is_next
        return is_next

    def take(self, kind: str, expected: str) -> Token:
        token = self.here
        if token.kind != kind:
            raise text_error(token, f"expected {expected}, found {token.description}.")
        self.at += 1
        return token

    def read(self) -> Statements:
        while not self.next_is("end of text"):
            if self.accept("end of line"):
                continue
            if self.word("domain", "observed", "rank"):
                self.domain()
            elif self.word("factor", "symbol"):
                self.label()
            elif self.word("start"):
                self.start()
            elif self.word("given"):
                self.observed_values()
            else:
                self.rule()
        self.found.end = self.here
        return self.found

    def end(self, expected: str) -> None:
        self.take("end of line", f"{expected} or the end of the line")

    def domain(self) -> None:
        kind = self.take("name", "a declaration").text
        name = self.take("name", "the name of a domain")
        size, values, parts = None, [], []
        if self.accept("="):
            if self.next_is("string"):
                while self.next_is("string"):
                    token = self.here
                    values.append(self.string())
                    if values.index(values[-1]) < len(values) - 1:
                        raise text_error(token, f"expected distinct values, found {token.text} again.")
                size = len(values)
            elif self.next_is("number"):
                size = self.whole_number("a size", 1)
            else:
                parts = self.union("a size, values in quotes, or domains joined by +")
        self.end("+" if parts else "=" if size is None else "a value" if values else ";")
        self.found.domains.append(DomainLine(name, kind, size, tuple(values), tuple(parts)))

    def union(self, expected: str) -> list[Token]:
        parts = [self.take("name", expected)]
        while self.accept("+"):
            parts.append(self.take("name", "a domain after +"))
        return parts

    def type(self) -> Token:
        """A domain's name; `N+P` is one name."""
        parts = self.union("the name of a domain")
        return parts[0]._replace(text="+".join(part.text for part in parts))

    def label(self) -> None:
        is_terminal = self.take("name", "a declaration").text == "factor"
        name = self.take("name", "the name of a label")
        types: list[Token] = []
        batched, weights = False, None
        if self.accept(":") and self.next_is("name") and not self._batched():
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
        if self._batched():
            if not is_terminal:
                raise text_error(self.here, "expected no `batched`: only factors have a batch axis.")
            batched, self.at = True, self.at + 1
        if is_terminal and self.accept("="):
            weights = self.numbers(self.weight, len(types) + batched + 1, f"for {len(types)} domains")
        self.end("a domain" if not types else ", = or batched" if is_terminal else ",")
        self.found.labels.append(LabelLine(name, is_terminal, tuple(types), batched, weights))

    def _batched(self) -> bool:
        return self.next_is("name") and self.here.text == "batched"

    def weight(self) -> float:
        return float(self.take("number", "a number").text)

    def numbers(self, one: Callable[[], object], depth: int, why: str) -> object:
        """Numbers in lists, nested no deeper than this."""
        if self.next_is("number"):
            return one()
        if depth == 0 and self.next_is("["):
            raise text_error(self.here, f"expected a number, found [: lists are nested too deep {why}.")
        self.take("[", "a number or [")
        rows: list[object] = []
        while not self.accept("]"):
            if rows:
                self.take(",", ", or ]")
            rows.append(self.numbers(one, depth - 1, why))
        return rows

    def observed_values(self) -> None:
        self.at += 1
        name = self.take("name", "the name of observed values")
        self.take("=", "=")
        self.found.given.append(GivenLine(name, self.numbers(self.value, 3, "for a sentence or a batch")))
        self.end(";")

    def value(self) -> int:
        return self.whole_number("a value", 0)

    def start(self) -> None:
        self.at += 1
        if self.found.start is not None:
            raise text_error(self.here, f"expected one start symbol, but {self.found.start.text!r} was named before.")
        self.found.start = self.take("name", "the start symbol")
        self.end(";")

    def rule(self) -> None:
        name = None
        first = self.take("name", "a declaration (domain, observed, rank, factor, symbol, start, given) or a rule")
        if self.accept(":"):
            name = first
            first = self.take("name", "the left side of a rule")
        left = self.atom(first)
        self.take("->", "->")
        while True:
            right: list[Atom] = []
            if self.next_is("number") and self.here.text == "1":
                self.at += 1
            else:
                while self.next_is("name"):
                    right.append(self.atom(self.take("name", "a label")))
            self.found.rules.append(RuleLine(name, left, tuple(right)))
            bar = self.here
            if not self.accept("|"):
                break
            if name is not None:
                raise text_error(bar, "expected one right side: a named rule has no alternatives, name each.")
        self.end("a label, |")

    def atom(self, label: Token) -> Atom:
        self.take("(", f"( after {label.text}")
        arguments: list[Argument] = []
        while not self.accept(")"):
            if arguments:
                self.take(",", ", or )")
            arguments.append(self.argument())
        return Atom(label, tuple(arguments))

    def argument(self) -> Argument:
        at = self.here
        if self.next_is("number", "string"):
            return Argument(at, None, observed=self.constant())
        name = self.take("name", "a node, a number or a string in quotes")
        domain, observed = None, None
        if self.accept(":"):
            domain = self.type()
        if self.accept("="):
            observed = self.constant()
        return Argument(at, name.text, domain, observed)

    def constant(self) -> int | str | Cell:
        if self.next_is("string"):
            return self.string()
        if self.next_is("number"):
            return self.value()
        token = self.take("name", "a value: a number, a string in quotes or a cell such as words[3]")
        table, _, index = token.text.rpartition("[")
        if not table or not index.removesuffix("]").isdecimal() or len(index) > DIGITS:
            raise text_error(token, f"expected a cell such as words[3], found {token.description}.")
        return table, int(index.removesuffix("]"))

    def string(self) -> str:
        token = self.take("string", "a value")
        try:
            found = str(json.loads(token.text))
            found.encode()
        except json.JSONDecodeError as wrong:
            raise text_error(token, f"{token.text} has an escape that JSON does not know.") from wrong
        except UnicodeEncodeError as wrong:
            raise text_error(token, f"{token.text} has half of a surrogate pair, which is no character.") from wrong
        return found

    def whole_number(self, what: str, least: int) -> int:
        token = self.take("number", what)
        if not token.text.isdecimal() or len(token.text) > DIGITS or int(token.text) < least:
            most = f" and at most {DIGITS} digits" if len(token.text) > DIGITS else ""
            raise text_error(
                token, f"expected {what}, a whole number of at least {least}{most}, found {token.text[:40]}."
            )
        return int(token.text)
