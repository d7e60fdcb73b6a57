"""A query beside a grammar as a grammar: its structure, its words and what its arcs allow. Read next: `conjoin.py`."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from rankfold.errors import DomainError, may_look
from rankfold.fgg.grammar import Factor, Grammar
from rankfold.fgg.hypergraph import suggestion
from rankfold.fgg.query import Query, Word
from rankfold.fgg.query_structure import constant_label, evidence_label, observed_domain, query_structure


def query_grammar(grammar: Grammar, query: Query) -> Grammar:
    """The query as a grammar that conjoins with `grammar`; its structure is cached by the two shapes."""
    structure = query_structure(grammar.hrg, query.shape)
    domain = observed_domain(grammar.hrg, query.shape.domain)
    observed, factors = _numbers(grammar, query, domain)
    known = {label.name for label in structure.labels}
    factors = {name: factor for name, factor in factors.items() if name in known}
    factors |= _constants(grammar, domain, known)
    evidence = {name: factor for name, factor in factors.items() if isinstance(factor, Tensor)}
    return Grammar(structure, factors, observed, evidence)


def _constants(grammar: Grammar, domain: str, known: Collection[str]) -> dict[str, Factor]:
    """The factors of the constants that the rules have for words."""
    found: dict[str, Factor] = {}
    for rule in grammar.rules:
        for node in rule.right.nodes:
            if node.domain == domain and isinstance(node.observed, int):
                name = constant_label(domain, node.observed).name
                if name in known and name not in found:
                    ids = torch.arange(grammar.size(domain), device=grammar.device)
                    found[name] = (ids == node.observed).to(grammar.dtype)
    return found


def _numbers(grammar: Grammar, query: Query, domain: str) -> tuple[dict[str, Tensor], dict[str, Factor]]:
    """The observed table and the evidence factors of a query."""
    values = {value: index for index, value in enumerate(grammar.domain(domain).values)}

    def number(word: Word | None) -> int:
        if word is None:
            return -1
        if not isinstance(word, str):
            if not 0 <= word < 2**63:
                raise DomainError(
                    f"Word {word} is no id: ids are whole numbers from 0, in 64 bits.\n"
                    "  A missing word is None in lists, -1 in tensors."
                )
            return word
        if not values:
            raise DomainError(
                f"Domain {domain!r} does not name its values, so {word!r} is unknown.\n  Give ids instead."
            )
        if word not in values:
            raise DomainError(f"Domain {domain!r} has no value {word!r}. {suggestion(word, values)}")
        return values[word]

    observed: dict[str, Tensor] = {}
    factors: dict[str, Factor] = {}
    ids = None
    if query.words is not None:
        ids = (
            query.words
            if isinstance(query.words, Tensor)
            else torch.tensor([[number(w) for w in r] for r in query.words])
        )
        ids = ids.to(device=grammar.device, dtype=torch.int64)
        ids = ids if query.is_batch else ids.reshape(-1)
        # A position without an observed node is never looked at; any valid id will do there.
        missing = any(arc.seen is None or arc.allowed for arc in query.shape.arcs)
        observed[domain] = torch.where(ids == -1, 0, ids) if missing else ids
    size = grammar.size(domain) if any(arc.allowed for arc in query.shape.arcs) else 0
    given = iter(query.allowed)
    for arc in query.shape.arcs:
        if not arc.allowed:
            continue
        if arc.seen is not None and ids is not None:
            column = ids[:, arc.seen]
            if may_look(column) and bool(((column < -1) | (column >= size)).any()):
                raise DomainError(
                    f"Position {arc.seen} holds {column.tolist()}, but domain {domain!r} has values 0 to {size - 1}."
                )
            hit = torch.arange(size, device=ids.device) == column[:, None]
            weights = (hit | (column == -1)[:, None]).to(grammar.dtype)
        else:
            chosen = [number(word) for word in next(given)]
            if max(chosen) >= size or min(chosen) < 0:
                raise DomainError(f"An arc reads {max(chosen)}, but domain {domain!r} has the values 0 to {size - 1}.")
            if len(set(chosen)) < len(chosen):
                raise DomainError(
                    f"The arcs from {arc.source} to {arc.target} read a word twice, by name and by number."
                )
            weights = torch.zeros(size, dtype=grammar.dtype, device=grammar.device)
            weights[chosen] = 1
        factors[evidence_label(grammar.hrg, domain, arc).name] = weights
    return observed, factors
