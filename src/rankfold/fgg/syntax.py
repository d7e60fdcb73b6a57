"""From tokens to statements: the text language's syntax, before any name is looked up. Read next: `text.py`.

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
from collections.abc import Callable

from rankfold.errors import DataError
from rankfold.fgg.hypergraph import Cell
from rankfold.fgg.statements import Argument, Atom, DomainLine, GivenLine, LabelLine, RuleLine, Statements
from rankfold.fgg.tokens import Token, text_error, tokens

DIGITS = 18  # of whole numbers: all of them are below 2^63


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

    def take(self, kind: str, expected: str) -> Token:
        token = self.here
        if token.kind != kind:
            raise text_error(token, f"expected {expected}, found {token.shown}.")
        self.at += 1
        return token

    def read(self) -> Statements:
        while not self.next_is("end of text"):
            if self.next_is("end of line"):
                self.at += 1
            elif self.word("domain", "observed", "rank"):
                self.domain()
            elif self.word("factor", "symbol"):
                self.label()
            elif self.word("start"):
                self.start()
            elif self.word("given"):
                self.given()
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
        if self.next_is("="):
            self.at += 1
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
        while self.next_is("+"):
            self.at += 1
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
        if self.next_is(":"):
            self.at += 1
            if self.next_is("name") and not self._batched():
                types.append(self.type())
                while self.next_is(","):
                    self.at += 1
                    types.append(self.type())
        if self._batched():
            if not is_terminal:
                raise text_error(self.here, "expected no `batched`: only factors have a batch axis.")
            batched, self.at = True, self.at + 1
        if is_terminal and self.next_is("="):
            self.at += 1
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
        while not self.next_is("]"):
            if rows:
                self.take(",", ", or ]")
            rows.append(self.numbers(one, depth - 1, why))
        self.at += 1
        return rows

    def given(self) -> None:
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
        if self.next_is(":"):
            name, self.at = first, self.at + 1
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
            if not self.next_is("|"):
                break
            if name is not None:
                raise text_error(self.here, "expected one right side: a named rule has no alternatives, name each.")
            self.at += 1
        self.end("a label, |")

    def atom(self, label: Token) -> Atom:
        self.take("(", f"( after {label.text}")
        arguments: list[Argument] = []
        while not self.next_is(")"):
            if arguments:
                self.take(",", ", or )")
            arguments.append(self.argument())
        self.at += 1
        return Atom(label, tuple(arguments))

    def argument(self) -> Argument:
        at = self.here
        if self.next_is("number", "string"):
            return Argument(at, None, observed=self.constant())
        name = self.take("name", "a node, a number or a string in quotes")
        domain, observed = None, None
        if self.next_is(":"):
            self.at += 1
            domain = self.type()
        if self.next_is("="):
            self.at += 1
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
            raise text_error(token, f"expected a cell such as words[3], found {token.shown}.")
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
