"""Grammars as text and files, and the built-in ones; `syntax.py` shows the language.

Texts and grammars go to and fro without loss: `parse(format_text(g)).hrg == g.hrg`, save what a conjunction notes
about its origin; observed words are written too. Files that end in .json hold JSON (`json_format.py`), all others text.
"""

from __future__ import annotations

import json
import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError, expect_absent
from rankfold.fgg.dependencies import pruned, unproductive, unreachable
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Domain, Label, Node, Rule, suggestion
from rankfold.fgg.language.elaborate import automatic_names, elaborate
from rankfold.fgg.language.json_format import from_json, to_json
from rankfold.fgg.language.syntax import PLAIN_NAME, statements
from rankfold.files import not_utf8, read_bytes, write_text

_FOLDER = files("rankfold.fgg").joinpath("structures")


def parse(text: str, *, prune: bool = False) -> Grammar:
    """The grammar a text describes; factors without written weights are attached later (`with_factors`).

    Raises `DataError` naming line, column and what was expected. Warns of nonterminals that no derivation reaches
    or that derive nothing; with `prune` they and their rules are removed instead.
    """
    return _check_use(elaborate(statements(text)), prune=prune)


def read(path: str | Path, *, prune: bool = False) -> Grammar:
    """The grammar of a file: JSON if its name ends in .json, else text. Errors name file and place."""
    content = read_bytes(path, "a grammar")
    try:
        text = _decode(content)
        if Path(path).suffix == ".json":
            return _check_use(from_json(_load_json(text)), prune=prune)
        return parse(text, prune=prune)
    except (DataError, DomainError, ShapeError, UnsupportedError) as wrong:
        raise type(wrong)(f"{path}: {wrong}") from wrong


def library_names() -> list[str]:
    """The names of the built-in grammars: the papers' models, and those they name as next."""
    return sorted(entry.name.removesuffix(".fgg") for entry in _FOLDER.iterdir() if entry.name.endswith(".fgg"))


def library_text(name: str) -> str:
    """The text of a built-in grammar."""
    if name not in library_names():
        raise DataError(f"There is no grammar {name!r} in the library. {suggestion(name, library_names())}")
    return _FOLDER.joinpath(f"{name}.fgg").read_text(encoding="utf-8")


def library(name: str, **sizes: int) -> Grammar:
    """A built-in grammar, with these sizes of its domains: `library("hmm", Z=64, V=1000)`."""
    return parse(library_text(name)).with_domains(sizes)


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line, byte = not_utf8(content, wrong)
        remedy = "Save the file in that encoding, e.g. iconv -f latin1 -t utf-8."
        raise DataError(f"line {line}: the byte {byte} is not UTF-8.\n  {remedy}") from None


def _load_json(text: str) -> Any:
    """The object of a JSON text; raises where it is none, repeats a key or is nested without end."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            again = next(name for name in names if names.count(name) > 1)
            raise DataError(f"the key {again!r} comes twice in one object.")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as wrong:
        raise DataError(f"line {wrong.lineno}, column {wrong.colno}: {wrong.msg}.") from wrong
    except DataError:
        raise
    except (ValueError, RecursionError) as wrong:  # numbers of thousands of digits, lists without end
        raise DataError(f"no JSON of a grammar: {wrong}.") from None


def write(grammar: Grammar, path: str | Path, *, weights: bool | None = None) -> None:
    """Write a grammar to a file: JSON if its name ends in .json, else text.

    `weights`: whether tensors are written; by default into JSON, not into text. A file that is there already is never
    written over: `DataError`.
    """
    expect_absent(path)
    if Path(path).suffix == ".json":
        content = json.dumps(to_json(grammar, weights=weights is not False), indent=1) + "\n"
    else:
        content = format_text(grammar, weights=bool(weights))
    write_text(path, content)


def format_text(grammar: Grammar, *, weights: bool = False) -> str:
    """The text of a grammar; `weights`: with the entries of its tensors, which is for small ones."""
    hrg = grammar.hrg
    anonymous = {"+".join(domain.parts) for domain in hrg.domains if domain.parts}
    lines = [_domain(d) for d in hrg.domains if d.name not in anonymous]
    for label in hrg.labels:
        entries = grammar.factors.get(label.name) if weights else None
        if entries is not None and not isinstance(entries, Tensor):
            raise UnsupportedError(
                f"Factor {label.name!r} is a {type(entries).__name__}, and texts hold tensors only.\n"
                "  Write the grammar without weights and attach the factor after reading."
            )
        lines.append(_label(label) + ("" if entries is None else f" = {entries.detach().tolist()}"))
    lines.append(f"start {_name(hrg.start)}")
    lines += [f"given {_name(name)} = {table.tolist()}" for name, table in grammar.observed.items()]
    for rule, automatic in zip(hrg.rules, automatic_names(rule.left for rule in hrg.rules), strict=True):
        prefix = "" if rule.name == automatic else f"{_name(rule.name)}: "
        lines.append(prefix + format_rule(rule))
    return "\n".join(lines) + "\n"


def format_rule(rule: Rule, *, domains: bool = True) -> str:
    """One rule as text; `domains`: with the domain of each node where it is first named."""
    shown: set[str] = set()

    def arguments(names: tuple[str, ...]) -> str:
        return "(" + ", ".join(_node(rule.right.node(name), shown, domains=domains) for name in names) + ")"

    left = _name(rule.left) + arguments(rule.right.externals)
    right = " ".join(_name(edge.label) + arguments(edge.nodes) for edge in rule.right.edges)
    alone = [node for node in rule.right.nodes if node.name not in shown]
    if alone:
        raise UnsupportedError(
            f"Node {alone[0].name!r} of rule {rule.name!r} touches no edge, which texts cannot say.\n"
            "  Give it an edge, or remove it where its domain has one value."
        )
    return f"{left} -> {right or 1}"


def _node(node: Node, shown: set[str], *, domains: bool) -> str:
    if node.name in shown:
        return _name(node.name)
    shown.add(node.name)
    value = node.observed if isinstance(node.observed, int) else "{}[{}]".format(*node.observed or ("", 0))
    return (
        _name(node.name)
        + (f": {_type(node.domain)}" if domains else "")
        + ("" if node.observed is None else f" = {value}")
    )


def _domain(domain: Domain) -> str:
    kind = "observed" if domain.is_observed else "rank" if domain.is_rank else "domain"
    head = f"{kind} {_name(domain.name)}"
    if domain.parts:
        return f"{head} = {' + '.join(map(_name, domain.parts))}"
    if domain.values:
        return f"{head} = {' '.join(map(json.dumps, domain.values))}"
    return head if domain.size is None else f"{head} = {domain.size}"


def _label(label: Label) -> str:
    types = ", ".join(map(_type, label.type))
    kind = "factor" if label.is_terminal else "symbol"
    return f"{kind} {_name(label.name)}" + (f": {types}" if types else "") + (" batched" if label.is_batched else "")


def _type(name: str) -> str:
    """A domain's name; the plus signs of an anonymous union are its own."""
    return "+".join(map(_name, name.split("+")))


def _name(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else f"`{name}`"


def _check_use(grammar: Grammar, *, prune: bool) -> Grammar:
    """The grammar; nonterminals of no derivation are removed, or warned of."""
    if prune:
        return pruned(grammar)
    for found, what in ((unproductive(grammar.hrg), "derives nothing"), (unreachable(grammar.hrg), "is never reached")):
        for name in found:
            warnings.warn(
                f"Nonterminal {name!r} {what}: its rules are part of no derivation. Remove it, or pass prune=True.",
                stacklevel=3,
            )
    return grammar
