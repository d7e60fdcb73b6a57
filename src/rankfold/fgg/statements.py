"""The statements of a text, as they are written, before any name is looked up. Read next: `syntax.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from rankfold.fgg.hypergraph import Cell
from rankfold.fgg.tokens import Token


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
