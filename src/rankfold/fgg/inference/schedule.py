"""In which order the nonterminals of an acyclic grammar are summed: levels, and in each groups of rules of one shape.

After a query a grammar has a rule for every place a rule can be used. Those of one template that are summed at the
same time differ in nothing but whose children they read and which words they see, so one contraction serves them
all. Made once for a structure, whatever its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from rankfold.errors import UnsupportedError
from rankfold.fgg.dependencies import cycle, cycle_remedy, cycle_text, needs, productive_rules
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Cell, Fragment, Node, Rule
from rankfold.fgg.rewrite.share_sums import cut_long_rules, share_sums, shared_children
from rankfold.fgg.rewrite.spans import SpanHRG

Signature = tuple[object, ...]


@dataclass(frozen=True)
class Group:
    """Rules of one shape and one level: P parents with S rules each, rule p S + s is the s-th of parent p.

    `rows` are the parents' rows in the table of `left`. Edges and nodes are those of the first rule; `children` has
    for each nonterminal edge its table and the row of every rule, `observed` for each observed node its value or
    cell of every rule.
    """

    left: str
    rows: tuple[int, ...]
    splits: int
    nodes: tuple[Node, ...]
    externals: tuple[str, ...]
    children: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]  # table, nodes, rows
    factors: tuple[tuple[str, tuple[str, ...]], ...]  # label, nodes
    observed: Mapping[str, tuple[int | Cell, ...]]
    rules: tuple[str, ...]
    template: str
    made: dict[object, object] = field(default_factory=dict, compare=False)  # by `memoise`


@dataclass(frozen=True)
class Block:
    """The nonterminals of one table that are summed in one level: rows `begin` to `end`."""

    table: str
    begin: int
    end: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Schedule:
    """Everything about a sum that does not depend on numbers.

    `tables` lists the nonterminals of each table by row; a table holds the nonterminals of one origin, in order of
    level.
    """

    tables: Mapping[str, tuple[str, ...]]
    row_of: Mapping[str, tuple[str, int]]  # table and row of a nonterminal
    domains: Mapping[str, tuple[str, ...]]  # of a table's axes
    levels: tuple[tuple[Block, ...], ...]
    start: str
    hrg: HRG  # the rules that are summed: those given, rewritten by `share_sums`

    def groups(self) -> Iterator[Group]:
        """All groups, in order."""
        for level in self.levels:
            for block in level:
                yield from block.groups


@lru_cache(maxsize=64)
def schedule(hrg: HRG, whole: frozenset[str] = frozenset(), *, is_cut: bool = False) -> Schedule:
    """The order in which an acyclic grammar is summed; raises on one that is recursive.

    Nonterminals that the start symbol does not reach, or that derive nothing, take no part. Sums over one child that
    rules share are taken once (`share_sums`); `is_cut`: long rules are taken apart. Rules named in `whole` stay as they
    are. Cost: a few visits of every rule.
    """
    if isinstance(hrg, SpanHRG) and not whole and not is_cut and (found := _of_spans(hrg)) is not None:
        return found
    hrg = hrg.plain
    if cycle(hrg):
        raise UnsupportedError(
            f"The grammar is recursive: {cycle_text(hrg)}.\n  {cycle_remedy(hrg)} Only sums have a least fixed point."
        )
    rules = productive_rules(hrg)
    hrg = share_sums(replace(hrg, rules=tuple(rule for own in rules.values() for rule in own)), whole)
    hrg = cut_long_rules(hrg, whole) if is_cut else hrg
    rules = productive_rules(hrg)
    level_of = _levels(hrg, rules)
    origins: dict[str, list[str]] = {}
    for name in sorted(level_of, key=lambda name: level_of[name]):
        origins.setdefault(_origin(hrg, name), []).append(name)
    row_of = {name: (table, row) for table, names in origins.items() for row, name in enumerate(names)}
    blocks: dict[tuple[int, str], list[str]] = {}
    for table, names in origins.items():
        for name in names:
            blocks.setdefault((level_of[name], table), []).append(name)
    levels: list[list[Block]] = [[] for _ in range(max(level_of.values(), default=-1) + 1)]
    for (level, table), names in blocks.items():
        begin = row_of[names[0]][1]
        levels[level].append(Block(table, begin, begin + len(names), _groups(hrg, table, names, rules, row_of)))
    return Schedule(
        {table: tuple(names) for table, names in origins.items()},
        row_of,
        {table: hrg.label(names[0]).type for table, names in origins.items()},
        tuple(map(tuple, levels)),
        hrg.start,
        hrg,
    )


def _of_spans(hrg: SpanHRG) -> Schedule | None:
    """The schedule of a pattern of spans; None where rules would share sums, which they do one by one.

    Cost: array operations for every grid. Names of rules and rows are left out: who needs them asks `hrg.plain`.
    """
    first, spans = hrg.first, hrg.spans
    uses: dict[str, int] = {}
    rules = {grid.rule.name: grid.rule for grid in spans.grids}
    shared = {name: shared_children(first, rule) for name, rule in rules.items()}
    for grid in spans.grids:
        for child in shared[grid.rule.name]:
            uses[child] = uses.get(child, 0) + grid.states[0].size
    if any(number > spans.count(child) for child, number in uses.items()):
        return None

    def table(name: str) -> str:
        return f"{name}({', '.join(first.label(name).type)})"

    blocks: dict[tuple[str, int], list[Group]] = {}
    bounds: dict[tuple[str, int], tuple[int, int]] = {}
    for grid in spans.grids:
        rule, slots = grid.rule, spans.slots[grid.rule.name]
        rows = spans.items[rule.left][grid.begins, grid.width].tolist()
        own = [k for k, (_, is_symbol) in enumerate(slots) if not is_symbol]
        children = []
        for k, edge in zip(own, first.nonterminal_edges(rule), strict=True):
            here, then = grid.states[k : k + 2]
            found = spans.items[edge.label][here, then - here].reshape(-1).tolist()
            children.append((table(edge.label), edge.nodes, tuple(found)))
        seen = {
            name: tuple((hrg.domain_read, position) for position in grid.states[k].reshape(-1).tolist())
            for k, (name, is_symbol) in enumerate(slots)
            if is_symbol
        }
        nodes = tuple(replace(x, observed=seen[x.name][0]) if x.name in seen else x for x in rule.right.nodes)
        constants = {
            x.name: (x.observed,) * grid.states[0].size for x in nodes if x.observed is not None and x.name not in seen
        }
        group = Group(
            table(rule.left), tuple(rows), grid.states[0].shape[1], nodes, rule.right.externals, tuple(children),
            tuple((edge.label, edge.nodes) for edge in first.terminal_edges(rule)), {**seen, **constants}, (),
            rule.name,
        )  # fmt: skip
        blocks.setdefault((rule.left, grid.width), []).append(group)
        bounds[rule.left, grid.width] = (rows[0], rows[-1] + 1)
    levels = tuple((Block(table(name), *bounds[name, width], tuple(own)),) for (name, width), own in blocks.items())
    start = first.start
    names = dict.fromkeys(name for name, _ in blocks)
    return Schedule(
        {table(name): () for name in names},
        {hrg.start: (table(start), spans.count(start) - 1)},
        {table(name): first.label(name).type for name in names},
        levels,
        hrg.start,
        hrg,
    )


def _levels(hrg: HRG, rules: Mapping[str, tuple[Rule, ...]]) -> dict[str, int]:
    """By nonterminal 0 if it needs no other, else one more than the highest it needs."""
    children = {label: needs(hrg, own) for label, own in rules.items()}
    users: dict[str, list[str]] = {}
    for label, below in children.items():
        for child in below:
            users.setdefault(child, []).append(label)
    left = {label: len(below) for label, below in children.items()}
    ready = [label for label, count in left.items() if not count]
    found: dict[str, int] = {}
    while ready:
        label = ready.pop()
        found[label] = 1 + max((found[child] for child in children[label]), default=-1)
        for user in users.get(label, ()):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return found


def _origin(hrg: HRG, name: str) -> str:
    """The table of a nonterminal: instances of one label of one type share theirs."""
    label = hrg.label(name)
    return name if label.origin is None else f"{label.origin}({', '.join(label.type)})"


def _groups(
    hrg: HRG,
    table: str,
    names: list[str],
    rules: Mapping[str, tuple[Rule, ...]],
    row_of: Mapping[str, tuple[str, int]],
) -> tuple[Group, ...]:
    """The rules of these nonterminals by shape, and by how many of that shape a nonterminal has."""
    by_shape: dict[Signature, dict[str, list[Rule]]] = {}
    for name in names:
        for rule in rules[name]:
            by_shape.setdefault(_signature(hrg, rule, row_of), {}).setdefault(name, []).append(rule)
    groups = []
    for parents in by_shape.values():
        for splits in sorted({len(own) for own in parents.values()}):
            chosen = {name: own for name, own in parents.items() if len(own) == splits}
            flat = [rule for own in chosen.values() for rule in own]
            groups.append(_group(hrg, table, [row_of[name][1] for name in chosen], splits, flat, row_of))
    return tuple(groups)


def _signature(hrg: HRG, rule: Rule, row_of: Mapping[str, tuple[str, int]]) -> Signature:
    """The signature that two rules must share to be summed in one contraction."""
    place = {node.name: k for k, node in enumerate(rule.right.nodes)}
    return (
        rule.template,
        tuple((node.domain, _kind(node)) for node in rule.right.nodes),
        tuple(
            (row_of[edge.label][0] if edge.label in row_of else edge.label, tuple(place[name] for name in edge.nodes))
            for edge in rule.right.edges
        ),
        tuple(place[name] for name in rule.right.externals),
    )


def _kind(node: Node) -> str | bool:
    """Which table of observed values a node reads, or whether it is a constant."""
    return node.observed[0] if isinstance(node.observed, tuple) else node.observed is not None


def _group(
    hrg: HRG, table: str, rows: list[int], splits: int, rules: list[Rule], row_of: Mapping[str, tuple[str, int]]
) -> Group:
    first: Fragment = rules[0].right
    nonterminal = [k for k, edge in enumerate(first.edges) if not hrg.label(edge.label).is_terminal]
    return Group(
        table,
        tuple(rows),
        splits,
        first.nodes,
        first.externals,
        tuple(
            (
                row_of[first.edges[k].label][0],
                first.edges[k].nodes,
                tuple(row_of[rule.right.edges[k].label][1] for rule in rules),
            )
            for k in nonterminal
        ),
        tuple((edge.label, edge.nodes) for k, edge in enumerate(first.edges) if k not in nonterminal),
        {
            node.name: tuple(_observed(rule, k) for rule in rules)
            for k, node in enumerate(first.nodes)
            if node.observed is not None
        },
        tuple(rule.name for rule in rules),
        rules[0].template or rules[0].name,
    )


def group_of_rule(hrg: HRG, rule: Rule) -> Group:
    """A rule as a group of its own, for recursive grammars; rows mean nothing."""
    row_of = {edge.label: (edge.label, 0) for edge in hrg.nonterminal_edges(rule)}
    return _group(hrg, rule.left, [0], 1, [rule], row_of)


def _observed(rule: Rule, k: int) -> int | Cell:
    value = rule.right.nodes[k].observed
    assert value is not None  # rules of one shape observe the same nodes
    return value
