"""Rules rewritten so that less is summed, or less at once; the sums are the same.

`share_sums` gives a sum over one child's own states a nonterminal of its own, which all rules share that need it
(equation 10 of Yang, Liu, Tu 2022: each child's contraction is cached):

    X(n) -> u(n, q) v(l, q) w(r, q) Y(l) Y(r)    becomes    X(n) -> u(n, q) Y[v](q) Y[w](q)
                                                            Y[v](q) -> v(l, q) Y(l)
                                                            Y[w](q) -> w(r, q) Y(r)

`cut_long_rules` takes long rules apart, an inner node at a time, so that each sum has a scale of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from rankfold.fgg.contraction import Axes, plan_with_ones
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Names, Node, Rule

SHORT = 2  # inner nodes of a rule that is not cut: its sums have few terms for each of their numbers
MANY = 6  # children of a rule of which not every choice is priced
Key = tuple[object, ...]


@dataclass(frozen=True)
class _Part:
    """Edges of a rule, by place, and the nodes that are summed over among them; `out`: the nodes it keeps."""

    places: tuple[int, ...]
    out: tuple[str, ...]


def share_sums(hrg: HRG, whole: Collection[str] = ()) -> HRG:
    """The grammar in which sums over one child are shared, where that takes fewer multiply-adds.

    Rules named in `whole` stay as they are. Nonterminals keep their tables, rules their names.
    """
    if any(hrg.known_size(domain.name) is None for domain in hrg.domains):
        return hrg
    parts = {rule.name: [] if rule.name in whole else _children(hrg, rule) for rule in hrg.rules}
    keys = {rule.name: [_key(hrg, rule, part) for part in parts[rule.name]] for rule in hrg.rules}
    if sum(map(len, keys.values())) == len({key for own in keys.values() for key in own}):
        return hrg  # nothing is needed twice
    made = _Additions(hrg)
    by_shape: dict[Key, list[Rule]] = {}
    for rule in hrg.rules:
        by_shape.setdefault(_shape(hrg, rule), []).append(rule)
    chosen = {shape: _choose_shared(hrg, own, parts, keys) for shape, own in by_shape.items()}
    out = []
    for rule in hrg.rules:
        which = chosen[_shape(hrg, rule)] if parts[rule.name] else ()
        out.append(made.rule(rule, [parts[rule.name][k] for k in which], [keys[rule.name][k] for k in which]))
    return made.grammar(out)


class Uses(NamedTuple):
    """How often a rule is used: so many parents, uses in all, and different instances of each of its nonterminals."""

    parents: int
    number: int
    children: tuple[int, ...]


def share_templates(hrg: HRG, uses: Mapping[str, Uses], symbols: str, whole: Collection[str] = ()) -> HRG | None:
    """The same before a grammar is conjoined with a sentence, given how often its rules are used there.

    `symbols`: the domain of words. Rules that are not used are left out. None where a sum over a child takes words in,
    which would not be those of a span.
    """
    rules = [rule for rule in hrg.rules if rule.name in uses]
    parts: dict[str, list[_Part]] = {}
    for rule in rules:
        nodes = [replace(node, observed=0) if node.domain == symbols else node for node in rule.right.nodes]
        seen = replace(rule, right=Fragment(tuple(nodes), rule.right.edges, rule.right.externals))
        parts[rule.name] = [] if rule.name in whole else _children(hrg, seen)
    keys = {rule.name: [_key(hrg, rule, part) for part in parts[rule.name]] for rule in rules}
    users = Counter(key for own in keys.values() for key in own)
    made, out = _Additions(hrg), []
    for rule in rules:
        use, own = uses[rule.name], parts[rule.name]
        edges = hrg.nonterminal_edges(rule)
        of_child = {id(edge): number for edge, number in zip(edges, use.children, strict=True)}
        numbers = [
            next(of_child[id(rule.right.edges[k])] for k in part.places if id(rule.right.edges[k]) in of_child)
            for part in own
        ]
        needed_twice = any(
            number < use.number or users[key] > 1 for number, key in zip(numbers, keys[rule.name], strict=True)
        )
        which = _choose(hrg, rule, own, use.parents, use.number, numbers) if needed_twice else ()
        taken = [own[k] for k in which]
        touched = {name for part in taken for k in part.places for name in rule.right.edges[k].nodes}
        if any(rule.right.node(name).domain == symbols for name in touched):
            return None
        out.append(made.rule(rule, taken, [keys[rule.name][k] for k in which]))
    return replace(hrg, labels=(*hrg.labels, *made.labels.values()), rules=(*out, *made.rules))


def has_long_rules(hrg: HRG, symbols: str) -> bool:
    """Whether `cut_long_rules` would take a rule apart after the words of this domain are known."""
    return any(
        len([name for name in _inner(rule) if rule.right.node(name).domain != symbols]) > SHORT for rule in hrg.rules
    )


def cut_long_rules(hrg: HRG, whole: Collection[str] = ()) -> HRG:
    """The grammar in which every rule with many inner nodes is taken apart, the node that leaves least first."""
    made = _Additions(hrg)
    out = []
    for rule in hrg.rules:
        step = 0
        while rule.name not in whole and len(inner := _inner(rule)) > SHORT:
            part = min((_around(rule, [name]) for name in inner), key=lambda own: _size(hrg, rule, own.out))
            rule = made.rule(rule, [part], [(rule.name, step)], f"{rule.template or rule.name}/{step}")
            step += 1
        out.append(rule)
    return made.grammar(out)


def _inner(rule: Rule) -> list[str]:
    outside = set(rule.right.externals)
    return [node.name for node in rule.right.nodes if node.observed is None and node.name not in outside]


def _around(rule: Rule, names: Collection[str]) -> _Part:
    """All edges at these nodes."""
    places = tuple(k for k, edge in enumerate(rule.right.edges) if not set(names).isdisjoint(edge.nodes))
    touched = dict.fromkeys(name for k in places for name in rule.right.edges[k].nodes)
    out = (name for name in touched if name not in names and rule.right.node(name).observed is None)
    return _Part(places, tuple(out))


def _size(hrg: HRG, rule: Rule, names: Iterable[str]) -> int:
    return math.prod(hrg.size(rule.right.node(name).domain) for name in names)


def _children(hrg: HRG, rule: Rule) -> list[_Part]:
    """For each child the sum over its own nodes, and over what then is its own, while that leaves no more numbers.

    A sum that leaves more nodes than it takes would be a larger table than the child's.
    """
    edges = rule.right.edges
    children = [k for k, edge in enumerate(edges) if not hrg.label(edge.label).is_terminal]
    found = []
    for child in children:
        others = {name for k in children if k != child for name in edges[k].nodes}
        free = [name for name in _inner(rule) if name not in others]
        gone = [name for name in free if name in edges[child].nodes]
        part = _around(rule, gone)
        ahead = [name for name in part.out if name in free]
        while gone and ahead:
            more = _around(rule, [*gone, ahead.pop()])
            if _size(hrg, rule, more.out) <= _size(hrg, rule, part.out):
                gone = [name for name in free if name in {*gone, *part.out} and name not in more.out]
                part = more
                ahead = [name for name in part.out if name in free]
        if gone and len(part.out) <= len(gone) and len(part.places) < len(edges):
            found.append(part)
    return found


def _key(hrg: HRG, rule: Rule, part: _Part, *, is_kind: bool = False) -> Key:
    """A key, equal for equal sums; with `is_kind`, for sums of one shape."""
    number: dict[str, int] = {}
    found: list[object] = []
    for k in part.places:
        edge = rule.right.edges[k]
        found.append(_origin(hrg, edge.label) if is_kind else edge.label)
        for name in edge.nodes:
            number.setdefault(name, len(number))
            value = rule.right.node(name).observed
            found.append((number[name], value[0] if is_kind and isinstance(value, tuple) else value))
    return (*found, *(number.setdefault(name, len(number)) for name in part.out))


def _origin(hrg: HRG, name: str) -> str:
    return hrg.label(name).origin or name


def _shape(hrg: HRG, rule: Rule) -> Key:
    """The same for rules of one template and form."""
    return (rule.template, *_key(hrg, rule, _all_edges(rule), is_kind=True))


def _all_edges(rule: Rule) -> _Part:
    return _Part(tuple(range(len(rule.right.edges))), rule.right.externals)


def _choose_shared(
    hrg: HRG, rules: list[Rule], parts: Mapping[str, list[_Part]], keys: Mapping[str, list[Key]]
) -> tuple[int, ...]:
    """Which parts of rules of one shape are shared."""
    split = [rule for rule in rules if parts[rule.name]]
    if not split:
        return ()
    own = parts[split[0].name]
    numbers = [len({keys[rule.name][k] for rule in split}) for k in range(len(own))]
    return _choose(hrg, split[0], own, len({rule.left for rule in rules}), len(rules), numbers)


def _choose(
    hrg: HRG, first: Rule, own: list[_Part], parents: int, number: int, different: Sequence[int]
) -> tuple[int, ...]:
    """Which parts of a rule are shared: the fewest multiply-adds, where no more is read and written.

    The rule is used so often by so many parents, each part in so many different instances.
    """
    splits = math.ceil(number / parents)

    def price(choice: tuple[int, ...]) -> tuple[int, int]:
        found = [_price(hrg, first, _all_edges(first), [own[k] for k in choice], parents, splits)]
        found += [_price(hrg, first, own[k], [], different[k], 1) for k in choice]
        return sum(work for work, _ in found), sum(traffic for _, traffic in found)

    sizes = range(len(own) + 1) if len(own) <= MANY else (0, 1, len(own))
    choices = [choice for size in sizes for choice in combinations(range(len(own)), size)]
    prices = {choice: price(choice) for choice in choices if _are_apart([own[k] for k in choice])}
    return min(prices, key=lambda choice: (prices[choice][1] > prices[()][1], prices[choice]))


def _are_apart(parts: list[_Part]) -> bool:
    places = [k for part in parts for k in part.places]
    return len(places) == len(set(places))


def _price(hrg: HRG, rule: Rule, part: _Part, inside: list[_Part], parents: int, splits: int) -> tuple[int, int]:
    """The multiply-adds of a part's sum, others in place of some of its edges, and the numbers read and written.

    All in all: for so many parents with so many rules each.
    """
    each: Axes = (0, 1) if splits > 1 else (0,)
    axis_of = {node.name: 2 + k for k, node in enumerate(rule.right.nodes)}
    sizes = {0: parents, 1: splits} | {axis_of[node.name]: hrg.size(node.domain) for node in rule.right.nodes}
    gone = {k for own in inside for k in own.places}
    inputs: list[Axes] = []
    for edge in (rule.right.edges[k] for k in part.places if k not in gone):
        seen = [name for name in edge.nodes if rule.right.node(name).observed is not None]
        free = tuple(dict.fromkeys(axis_of[name] for name in edge.nodes if name not in seen))
        inputs.append(free if hrg.label(edge.label).is_terminal and not seen else each + free)
    inputs += [each + tuple(axis_of[name] for name in own.out) for own in inside]
    left = [axis_of[name] for name in part.out]
    plan = plan_with_ones(inputs, left, (0, *left), sizes)
    alone = sum(step.right is None for step in plan.steps)  # breaks ties against steps that only sum
    return plan.multiply_adds, plan.entries + alone


class _Additions:
    """The nonterminals that rewriting adds, each with its one rule."""

    def __init__(self, hrg: HRG) -> None:
        self.hrg = hrg
        self.labels: dict[Key, Label] = {}
        self.rules: list[Rule] = []
        self.taken = Names([label.name for label in hrg.labels] + [rule.name for rule in hrg.rules])
        self.factors = {label.name for label in hrg.labels if label.is_terminal}
        self.origins: dict[Key, str] = {}

    def grammar(self, rules: list[Rule]) -> HRG:
        """The grammar of the rewritten rules and the added ones."""
        labels = (*self.hrg.labels, *self.labels.values())
        return replace(self.hrg, labels=labels, rules=(*rules, *self.rules)) if self.rules else self.hrg

    def rule(self, rule: Rule, parts: list[_Part], keys: list[Key], stem: str | None = None) -> Rule:
        """The rule with an edge of a new nonterminal in place of each part."""
        edges: dict[int, Edge] = dict(enumerate(rule.right.edges))
        for part, key in zip(parts, keys, strict=True):
            label = self._label(rule, part, key, stem)
            for k in part.places:
                del edges[k]
            children = [k for k in part.places if rule.right.edges[k].label not in self.factors]
            edges[(children or part.places)[0]] = Edge(label.name, part.out)  # words stay in their order
        own = tuple(edges[k] for k in sorted(edges))
        touched = {name for edge in own for name in edge.nodes} | set(rule.right.externals)
        gone = {name for part in parts for k in part.places for name in rule.right.edges[k].nodes} - touched
        nodes = tuple(node for node in rule.right.nodes if node.name not in gone)
        return replace(rule, right=Fragment(nodes, own, rule.right.externals)) if parts else rule

    def _label(self, rule: Rule, part: _Part, key: Key, stem: str | None) -> Label:
        if key not in self.labels:
            edges = tuple(rule.right.edges[k] for k in part.places)
            kind: Key = _key(self.hrg, rule, part, is_kind=True) if stem is None else (stem,)
            children = [edge.label for edge in edges if edge.label not in self.factors]
            factors = ",".join(edge.label for edge in edges if edge.label in self.factors)
            first = children[0] if children else rule.name
            if kind not in self.origins:
                self.origins[kind] = self.taken.fresh(stem or f"{_origin(self.hrg, first)}[{factors}]")
            name = self.taken.fresh(f"{first}[{factors}]" if stem is None else f"{rule.name}/{stem.rpartition('/')[2]}")
            domains = tuple(rule.right.node(node).domain for node in part.out)
            label = Label(name, domains, is_terminal=False, origin=self.origins[kind])
            self.labels[key] = label
            names = dict.fromkeys(node for edge in edges for node in edge.nodes)
            nodes: tuple[Node, ...] = tuple(node for node in rule.right.nodes if node.name in names)
            right = Fragment(nodes, edges, part.out)
            self.rules.append(Rule(name, name, right, template=self.origins[kind]))
        return self.labels[key]
