"""The JSON of the `fggs` package (Chiang and Riley), to and from grammars.

`grammar` holds terminals, nonterminals, start and rules, nodes by number; `interpretation` holds domains as lists
of values and factors as nested lists of weights. Names of rules, parts of unions, domains and factors that no rule
uses (`unused`) and the like are further keys, which `fggs` passes over. An observed node, which `fggs` does not know,
has one more factor `is[V,3]`, 1 at its value and else 0; read back, it is observed again, as a constant. Of a batch,
one sentence is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rankfold.errors import DataError, UnsupportedError
from rankfold.fgg.factors import Factor
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG, is_inclusion
from rankfold.fgg.hypergraph import Domain, Edge, Fragment, Label, Names, Node, Rule
from rankfold.fgg.language.elaborate import automatic_names

_VALUE = re.compile(r"is\[(.+),([0-9]{1,18})\]")


def to_json(grammar: Grammar, *, weights: bool = True, sentence: int | None = None) -> dict[str, Any]:
    """The grammar as an object for `json.dump`; `weights`: with the tensors of its factors, written out.

    `sentence`: which one of a batch; a whole batch has no JSON.
    """
    if grammar.batch is not None and sentence is None:
        raise UnsupportedError(
            "A grammar with a batch has no JSON.\n  Choose a sentence of it: to_json(g, sentence=0)."
        )
    hrg = grammar.hrg
    observed = {name: table if table.ndim == 1 else table[sentence] for name, table in grammar.observed.items()}
    rules = [_rule_to_json(observed, rule) for rule in hrg.rules]
    values = {name for rule in rules for edge in rule["rhs"]["edges"] if _VALUE.fullmatch(name := edge["label"])}
    terminals: dict[str, dict[str, Any]] = {}
    for label in hrg.labels:
        if label.is_terminal:
            terminals[label.name] = {"type": list(label.type)}
            if label.is_batched and sentence is None:
                terminals[label.name]["batched"] = True
    factors = {}
    if weights:
        names = [name for name in terminals if name in grammar.factors or _sized_inclusion(hrg, name)]
        for name in names:
            tensor = grammar.tensor(name)
            factors[name] = _factor_to_json(tensor[sentence] if hrg.label(name).is_batched else tensor)
    for name in sorted(values):
        domain, value = _VALUE.fullmatch(name).groups()  # type: ignore[union-attr]
        terminals[name] = {"type": [domain]}
        factors[name] = _factor_to_json(torch.eye(hrg.size(domain))[int(value)])
    used = {edge["label"] for rule in rules for edge in rule["rhs"]["edges"]}
    used_domains = {node["label"] for rule in rules for node in rule["rhs"]["nodes"]}
    domains = {domain.name: _domain_to_json(hrg, domain) for domain in hrg.domains}
    unused = {
        "domains": {name: entry for name, entry in domains.items() if name not in used_domains},
        "factors": {name: entry for name, entry in factors.items() if name not in used},
        "order": list(domains),
    }
    return {
        "grammar": {
            "terminals": terminals,
            "nonterminals": {label.name: {"type": list(label.type)} for label in hrg.labels if not label.is_terminal},
            "start": hrg.start,
            "order": [label.name for label in hrg.labels],
            "rules": rules,
        },
        "interpretation": {
            "domains": {name: entry for name, entry in domains.items() if name in used_domains},
            "factors": {name: entry for name, entry in factors.items() if name in used},
            **({"unused": unused} if unused["domains"] or unused["factors"] else {}),
        },
    }


def from_json(found: Mapping[str, Any]) -> Grammar:
    """The grammar of an object that `json.load` gave. Raises `DataError` naming the key that is missing or wrong.

    A start symbol that attaches to nodes, as the `fggs` package allows, is below a new one, which sums over them.
    """
    structure, numbers = _key(found, "grammar", dict), _key(found, "interpretation", dict)
    unused = _key(numbers, "unused", dict, where="interpretation", default={})
    described, weighed = (_both(numbers, unused, kind) for kind in ("domains", "factors"))
    order = _strings(unused, "order", where="interpretation.unused", default=[])
    labels: dict[str, Label] = {}
    for kind in ("terminals", "nonterminals"):
        for name, entry in _key(structure, kind, dict, where="grammar").items():
            where = f"grammar.{kind}.{_string(name, f'a key of grammar.{kind}')}"
            if name in labels:
                raise DataError(f"{where}: it is among the terminals, too.")
            types = tuple(_strings(entry, "type", where=where))
            batched = _key(entry, "batched", bool, where=where, default=False)
            labels[name] = Label(name, types, is_terminal=kind == "terminals", is_batched=batched)
    names = dict.fromkeys(
        [
            *(name for name in order if name in described),
            *described,
            *(name for label in labels.values() for name in label.type),
        ]
    )
    domains = tuple(_domain_from_json(name, described.get(name, {})) for name in names)
    rules: list[Rule] = []
    entries = _key(structure, "rules", list, where="grammar")
    lefts = [_key(entry, "lhs", str, where=f"grammar.rules[{index}]") for index, entry in enumerate(entries)]
    for index, (entry, left, automatic) in enumerate(zip(entries, lefts, automatic_names(lefts), strict=True)):
        where = f"grammar.rules[{index}]"
        right = _fragment_from_json(_key(entry, "rhs", dict, where=where), f"{where}.rhs")
        rules.append(Rule(_key(entry, "name", str, where=where, default=automatic), left, right))
    place_of = {name: k for k, name in enumerate(_strings(structure, "order", where="grammar", default=[]))}
    names_kept = sorted(
        (name for name in labels if not _VALUE.fullmatch(name)), key=lambda name: place_of.get(name, len(place_of))
    )
    kept = {name: labels[name] for name in names_kept}
    factors: dict[str, Factor] = {}
    for name, entry in weighed.items():
        where = f"interpretation.factors.{name}"
        if name not in labels or not labels[name].is_terminal:
            raise DataError(f"{where}: grammar.terminals has no {name!r}, and only terminals have factors.")
        if name in kept and not is_inclusion(name):
            factors[name] = _weights(entry, where)
    start = _key(structure, "start", str, where="grammar")
    if start in kept and kept[start].arity and not kept[start].is_terminal:
        closing, label = _close(kept[start], Names([*kept, *(rule.name for rule in rules)]))
        return Grammar(HRG(domains, (*kept.values(), label), (closing, *rules), label.name), factors)
    return Grammar(HRG(domains, tuple(kept.values()), tuple(rules), start), factors)


def _both(numbers: Mapping[str, Any], unused: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The domains, or factors, that rules use and those that none uses."""
    used: dict[str, Any] = _key(numbers, kind, dict, where="interpretation")
    return {**used, **_key(unused, kind, dict, where="interpretation.unused", default={})}


def _close(start: Label, taken: Names) -> tuple[Rule, Label]:
    """A rule, and its left side, that sums over the nodes of a start symbol that attaches to some."""
    label = Label(taken.fresh("S"), (), is_terminal=False)
    nodes = tuple(Node(f"x{k}", domain) for k, domain in enumerate(start.type, 1))
    right = Fragment(nodes, (Edge(start.name, tuple(node.name for node in nodes)),))
    return Rule(taken.fresh(f"{label.name}.1"), label.name, right), label


def _rule_to_json(observed: Mapping[str, Tensor], rule: Rule) -> dict[str, Any]:
    number = {node.name: index for index, node in enumerate(rule.right.nodes)}
    edges: list[dict[str, Any]] = [
        {"attachments": [number[name] for name in e.nodes], "label": e.label} for e in rule.right.edges
    ]
    for node in rule.right.nodes:
        value = node.observed
        if isinstance(value, tuple):
            name, index = value
            if name not in observed:
                raise UnsupportedError(
                    f"The grammar observes {name!r}, which it has not got.\n  Call with_observed first."
                )
            value = int(observed[name][index])
        if value is not None:
            edges.append({"attachments": [number[node.name]], "label": f"is[{node.domain},{value}]"})
    width = len(str(len(edges)))
    for place, edge in enumerate(edges):  # fggs writes edges in the order of their ids
        edge["id"] = f"e{place:0{width}}"
    nodes = [{"label": node.domain, "id": node.name} for node in rule.right.nodes]
    externals = [number[name] for name in rule.right.externals]
    right = {"nodes": nodes, "edges": edges, "externals": externals}
    return {"name": rule.name, "lhs": rule.left, "rhs": right}


def _sized_inclusion(hrg: HRG, name: str) -> bool:
    return is_inclusion(name) and all(hrg.known_size(domain) is not None for domain in hrg.label(name).type)


def _domain_to_json(hrg: HRG, domain: Domain) -> dict[str, Any]:
    size = hrg.known_size(domain.name)
    entry: dict[str, Any] = {"class": "finite"}
    if size is not None:
        entry["values"] = list(domain.values) or list(range(size))
    if domain.parts:
        entry["parts"] = list(domain.parts)
    if domain.is_observed:
        entry["observed"] = True
    if domain.is_rank:
        entry["rank"] = True
    return entry


def _factor_to_json(tensor: Tensor) -> dict[str, Any]:
    return {"function": "finite", "weights": tensor.detach().tolist()}


def _domain_from_json(name: str, entry: Any) -> Domain:
    where = f"interpretation.domains.{_string(name, 'a key of interpretation.domains')}"
    kind = _key(entry, "class", str, where=where, default="finite")
    if kind != "finite":
        raise DataError(f"{where}: the class is {kind!r}, expected 'finite'.")
    marks = [_key(entry, mark, bool, where=where, default=False) for mark in ("observed", "rank")]
    if "parts" in entry:
        return Domain(name, None, tuple(_strings(entry, "parts", where=where)), (), *marks)
    values = _key(entry, "values", list, where=where, default=None)
    for place, value in enumerate(values or []):
        if not isinstance(value, str | int | float):
            raise DataError(f"{where}.values[{place}] is a {type(value).__name__}, expected a string or a number.")
    is_numbered = values is None or values == list(range(len(values)))
    named = () if is_numbered else tuple(_string(str(value), f"{where}.values") for value in values)
    return Domain(name, None if values is None else len(values), (), named, *marks)


def _fragment_from_json(right: Mapping[str, Any], where: str) -> Fragment:
    entries = _key(right, "nodes", list, where=where)
    places = [f"{where}.nodes[{index}]" for index in range(len(entries))]
    domains = [_key(entry, "label", str, where=place) for entry, place in zip(entries, places, strict=True)]
    names = [
        _key(entry, "id", str, where=place, default=f"n{index}")
        for index, (entry, place) in enumerate(zip(entries, places, strict=True))
    ]

    def node_numbers(entry: Mapping[str, Any], key: str, place: str, **default: list[int]) -> list[int]:
        numbers = _key(entry, key, list, where=place, **default)
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(names):
                raise DataError(f"{place}.{key}: there is no node {number!r}; the fragment has {len(names)}.")
        return list(numbers)

    edges: list[Edge] = []
    observed: dict[int, int] = {}
    for index, entry in enumerate(_key(right, "edges", list, where=where)):
        place = f"{where}.edges[{index}]"
        label = _key(entry, "label", str, where=place)
        nodes = node_numbers(entry, "attachments", place)
        if value := _VALUE.fullmatch(label):
            if [domains[number] for number in nodes] != [value[1]]:
                raise DataError(f"{place}: {label!r} attaches to one node of domain {value[1]!r}.")
            if observed.setdefault(nodes[0], int(value[2])) != int(value[2]):
                raise DataError(f"{place}: node {names[nodes[0]]!r} is observed twice, as different values.")
        else:
            edges.append(Edge(label, tuple(names[number] for number in nodes)))
    nodes_found = tuple(
        Node(name, domain, observed.get(number))
        for number, (name, domain) in enumerate(zip(names, domains, strict=True))
    )
    externals = node_numbers(right, "externals", where, default=[])
    return Fragment(nodes_found, tuple(edges), tuple(names[number] for number in externals))


def _weights(entry: Any, where: str) -> Tensor:
    kind = _key(entry, "function", str, where=where, default="finite")
    if kind != "finite":
        raise DataError(f"{where}: the function is {kind!r}, expected 'finite'.")
    try:
        return torch.tensor(_key(entry, "weights", object, where=where), dtype=torch.float64)
    except (TypeError, ValueError, OverflowError) as wrong:
        raise DataError(f"{where}.weights: expected nested lists of numbers, equally long: {wrong}.") from wrong


_REQUIRED = object()


def _key(entry: Any, key: str, kind: type, *, where: str = "", default: Any = _REQUIRED) -> Any:
    """The value at a key, of this kind; the default where it is missing and there is one."""
    place = f"{where}.{key}" if where else key
    if not isinstance(entry, Mapping):
        raise DataError(f"{where or 'The whole'} is a {type(entry).__name__}, expected an object with {key!r}.")
    if key not in entry:
        if default is _REQUIRED:
            raise DataError(f"{place} is missing; the JSON of a factor graph grammar has it.")
        return default
    if not isinstance(entry[key], kind):
        raise DataError(f"{place} is a {type(entry[key]).__name__}, expected a {kind.__name__}.")
    return _string(entry[key], place) if kind is str else entry[key]


def _strings(entry: Any, key: str, *, where: str, **default: Any) -> list[str]:
    """The list of strings at a key."""
    found = _key(entry, key, list, where=where, **default)
    return [_string(value, f"{where}.{key}[{place}]") for place, value in enumerate(found)]


def _string(value: Any, place: str) -> str:
    """The string; raises at anything else, and at halves of characters, which no file could hold."""
    if not isinstance(value, str):
        raise DataError(f"{place} is a {type(value).__name__}, expected a str.")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise DataError(f"{place} is {value!r}: half of a surrogate pair is no character.")
    return value
