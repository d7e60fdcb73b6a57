"""In which order the nonterminals of an acyclic grammar are summed: levels, and in each groups of rules of one shape.

After a query a grammar has a rule for every place a rule can be used. Those of one template that are summed at the
same time differ in nothing but whose children they read and which words they see, so one contraction serves them
all. Made once for a structure, whatever its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from rankfold.errors import UnsupportedError
from rankfold.fgg.dependencies import cycle, cycle_remedy, cycle_text, needs, productive_rules
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Cell, Fragment, Node, Rule
from rankfold.fgg.rewrite.query import end_label
from rankfold.fgg.rewrite.query_grammar import end_node, slots_of_rule
from rankfold.fgg.rewrite.share_sums import Uses, cut_long_rules, has_long_rules, share_sums, share_templates
from rankfold.fgg.rewrite.spans import Grid, Numbers, SpanHRG, Spans, by_count, find_spans

Signature = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """Rules of one shape and one level: P parents with S rules each, rule p S + s is the s-th of parent p.

    `rows` are the parents' rows in the table of `left`. Edges and nodes are those of the first rule; `children` has
    for each nonterminal edge its table and the row of every rule, `observed` for each observed node its value or
    cell of every rule. `grid`: the pattern of the rules, where they are not written out. `sentences`: those of the
    parents, where each sentence has rows of its own.
    """

    left: str
    rows: Numbers  # "p"
    splits: int
    nodes: tuple[Node, ...]
    externals: tuple[str, ...]
    children: tuple[tuple[str, tuple[str, ...], Numbers], ...]  # table, nodes, rows
    factors: tuple[tuple[str, tuple[str, ...]], ...]  # label, nodes
    observed: Mapping[str, tuple[int | Cell, ...]]
    rules: tuple[str, ...]
    template: str
    is_added: bool = False  # whether rewriting added the rules
    grid: Grid | None = None
    sentences: Numbers | None = None  # "p"
    made: dict[object, object] = field(default_factory=dict, compare=False)  # by `memoise`

    @property
    def num_rules(self) -> int:
        """The number of rules."""
        return len(self.rows) * self.splits

    def names(self) -> tuple[str, ...]:
        """The names of the rules."""
        return self.rules if self.grid is None else tuple(self.grid.names())

    def name(self, use: int) -> str:
        """The name of one rule."""
        return self.rules[use % len(self.rules)] if self.grid is None else self.grid.name(use)


@dataclass(frozen=True)
class Block:
    """The nonterminals of one table that are summed in one level: rows `begin` to `end`."""

    table: str
    begin: int
    end: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class RowSpans:
    """The nonterminal of a pattern that a table is of, and the spans of its rows."""

    label: str
    begins: Numbers  # "k"
    widths: Numbers  # "k"
    is_added: bool = False

    def names(self) -> list[str]:
        """The nonterminals, written out."""
        pairs = zip(self.begins.tolist(), self.widths.tolist(), strict=True)
        return [f"{self.label}[{begin},{begin + width if width else '*'}]" for begin, width in pairs]


@dataclass(frozen=True)
class Schedule:
    """Everything about a sum that does not depend on numbers.

    `tables` lists the nonterminals of each table by row; a table holds the nonterminals of one origin, in order of
    level. `spans` are the spans of rows, by table, where nonterminals are not written out.
    """

    tables: Mapping[str, tuple[str, ...]]
    row_of: Mapping[str, tuple[str, int]]  # table and row of a nonterminal
    domains: Mapping[str, tuple[str, ...]]  # of a table's axes
    levels: tuple[tuple[Block, ...], ...]
    start: str
    hrg: HRG  # the rules that are summed: those given (of a pattern: before the query), rewritten by `share_sums`
    spans: Mapping[str, RowSpans] = field(default_factory=dict)
    made: dict[object, object] = field(default_factory=dict, compare=False)  # what depends on the structure alone
    whole: Schedule | None = None  # of packed sentences: the schedule whose rows all of them have
    origins: Mapping[str, Numbers] = field(default_factory=dict)  # and by table the row there of each row here

    def groups(self) -> Iterator[Group]:
        """All groups, in order."""
        for level in self.levels:
            for block in level:
                yield from block.groups

    def labels(self) -> dict[str, None]:
        """The factors in use, in order."""
        return dict.fromkeys(label for group in self.groups() for label, _ in group.factors)

    def names(self, table: str) -> Sequence[str]:
        """The nonterminals of a table, by row."""
        return self.spans[table].names() if table in self.spans else self.tables[table]


@lru_cache(maxsize=64)
def schedule(hrg: HRG, whole: frozenset[str] = frozenset(), *, is_cut: bool = False) -> Schedule:
    """The order in which an acyclic grammar is summed; raises on one that is recursive.

    Nonterminals that the start symbol does not reach, or that derive nothing, take no part. Sums over one child that
    rules share are taken once (`share_sums`); `is_cut`: long rules are taken apart. Rules named in `whole` stay as they
    are. Cost: a few visits of every rule.
    """
    if isinstance(hrg, SpanHRG) and (found := _of_spans(hrg, whole, is_cut=is_cut)) is not None:
        return found
    hrg = hrg.plain
    if cycle(hrg):
        raise UnsupportedError(
            f"The grammar is recursive: {cycle_text(hrg)}.\n  {cycle_remedy(hrg)} Only sums have a least fixed point."
        )
    rules, own = productive_rules(hrg), hrg
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
        levels[level].append(Block(table, begin, begin + len(names), _groups(own, hrg, table, names, rules, row_of)))
    return Schedule(
        {table: tuple(names) for table, names in origins.items()},
        row_of,
        {table: hrg.label(names[0]).type for table, names in origins.items()},
        tuple(map(tuple, levels)),
        hrg.start,
        hrg,
    )


def _of_spans(hrg: SpanHRG, whole: frozenset[str], *, is_cut: bool) -> Schedule | None:
    """The schedule of a pattern of spans; None where its rules are to be rewritten one by one.

    Cost: array operations for every grid. Names of rules and rows are left out until someone asks for them.
    """
    templates = {rule for rule in hrg.first._rule if any(name.startswith(f"{rule}[") for name in whole)}
    shared = share_templates(hrg.first, _uses(hrg), hrg.domain_read, templates)
    if shared is None or (is_cut and has_long_rules(shared, hrg.domain_read)):
        return None
    spans = hrg.spans
    if shared.labels != hrg.first.labels:
        slots = (slots_of_rule(shared, rule, hrg.domain_read) for rule in shared.rules)
        found = find_spans(shared, hrg.shape, tuple(tuple((x.name, x.is_symbol) for x in own) for own in slots))
        if found is None:
            return None
        spans = found
    return _SpanSchedule(hrg, shared, spans).build()


@lru_cache(maxsize=1)  # it may be large
def packed(hrg: SpanHRG, lengths: tuple[int, ...]) -> Schedule:
    """The same sums for sentences of these lengths as one: each has rows of its own, none for a span beyond its end.

    The schedule of all rows where rules are written out, or where some factor would be left out. Cost: array
    operations for every grid, and numbers for every use of a rule in a sentence.
    """
    plan, ends = schedule(hrg, frozenset()), np.array(lengths)
    if not plan.spans:
        return plan
    inside = {table: (own.begins + own.widths)[:, None] <= ends for table, own in plan.spans.items()}  # "row b"
    firsts = {table: np.concatenate(([0], np.cumsum(x.sum(1)))) for table, x in inside.items()}
    numbers = {table: np.cumsum(x).reshape(x.shape) - 1 for table, x in inside.items()}

    def pack(group: Group) -> Iterator[Group]:
        uses = np.arange(group.num_rules).reshape(-1, group.splits)  # "p s"
        if group.grid is not None and not group.grid.width:  # the start symbol: of its uses those with this end
            for sentences, own in by_count(np.arange(len(ends)), group.grid.states[-1] == ends[:, None]):
                own_uses = uses.repeat(len(own), 0)[own].reshape(len(own), -1)
                yield take(group, group.rows.repeat(len(own)), own_uses, sentences)
        else:
            parents, sentences = np.nonzero(inside[group.left][group.rows])
            yield take(group, group.rows[parents], uses[parents], sentences)

    def take(group: Group, rows: Numbers, uses: Numbers, sentences: Numbers) -> Group:
        children = tuple(
            (table, nodes, numbers[table][own[uses], sentences[:, None]].reshape(-1))
            for table, nodes, own in group.children
        )
        return replace(
            group, rows=numbers[group.left][rows, sentences], splits=uses.shape[1], children=children,
            observed={name: tuple(own[k] for k in uses.flat) for name, own in group.observed.items()},
            grid=None, sentences=sentences, made={},
        )  # fmt: skip

    levels = []
    for (block,) in plan.levels:
        begin, end = firsts[block.table][[block.begin, block.end]].tolist()
        if begin < end:
            groups = tuple(own for group in block.groups for own in pack(group) if len(own.rows))
            levels.append((Block(block.table, begin, end, groups),))
    origins = {table: np.nonzero(x)[0] for table, x in inside.items()}
    found = replace(plan, levels=tuple(levels), made={}, whole=plan, origins=origins)
    return found if found.labels() == plan.labels() else plan


@lru_cache(maxsize=64)
def unshared(hrg: HRG) -> Schedule:
    """The schedule of the rules as they are, none rewritten; in a pattern tables have the rows of `schedule`."""
    if isinstance(hrg, SpanHRG):
        return _SpanSchedule(hrg, hrg.first, hrg.spans).build()
    return schedule(hrg, frozenset(rule.name for rule in hrg.rules))


def _uses(hrg: SpanHRG) -> dict[str, Uses]:
    """How often each rule of a pattern is used."""
    found: dict[str, tuple[int, int, list[set[int]]]] = {}
    size = len(hrg.shape.arcs) + 1
    for grid in hrg.spans.grids:
        own = [k for k, (_, is_symbol) in enumerate(hrg.spans.slots[grid.rule.name]) if not is_symbol]
        parents, number, children = found.get(grid.rule.name, (0, 0, [set() for _ in own]))
        for k, seen in zip(own, children, strict=True):
            seen.update((grid.states[k] * size + grid.states[k + 1]).reshape(-1).tolist())
        found[grid.rule.name] = parents + len(grid.begins), number + grid.states[0].size, children
    return {name: Uses(p, n, tuple(map(len, children))) for name, (p, n, children) in found.items()}


class _SpanSchedule:
    """The schedule of a grammar whose rules are used in grids."""

    def __init__(self, hrg: SpanHRG, rules: HRG, spans: Spans) -> None:
        self.hrg, self.rules, self.spans = hrg, rules, spans
        self.root = f"{hrg.first.start}[0,*]"

    def table(self, name: str) -> str:
        return f"{name}({', '.join(self.rules.label(name).type)})"

    def build(self) -> Schedule:
        spans, first = self.spans, self.rules
        blocks: dict[tuple[str, int], list[Group]] = {}
        for grid in spans.grids:
            blocks.setdefault((grid.rule.left, grid.width), []).append(self.group(grid))
        levels = []
        rows: dict[str, RowSpans] = {}
        for (name, width), own in blocks.items():
            if width:
                numbers = spans.items[name][:, width]
                begin, end = int(numbers[numbers >= 0].min()), int(numbers.max()) + 1
                rows[self.table(name)] = RowSpans(
                    name, *spans.begins_and_widths(name), is_added=name not in self.hrg.first._label
                )
            else:
                begin, end = 0, 1
                rows[self.root] = RowSpans(name, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
            levels.append((Block(self.table(name) if width else self.root, begin, end, tuple(own)),))
        start = (self.root, 0) if self.hrg.shape.is_ragged else (self.table(first.start), spans.count(first.start) - 1)
        domains = {table: first.label(own.label).type for table, own in rows.items()}
        return Schedule(
            dict.fromkeys(rows, ()), {self.hrg.start: start}, domains, tuple(levels), self.hrg.start, first, rows
        )

    def group(self, grid: Grid) -> Group:
        rule, slots, items = grid.rule, self.spans.slots[grid.rule.name], self.spans.items
        is_root, number = grid.width == 0, grid.states[0].size
        rows = np.zeros(1, dtype=np.int64) if is_root else items[rule.left][grid.begins, grid.width]
        own = [k for k, (_, is_symbol) in enumerate(slots) if not is_symbol]
        children = []
        for k, edge in zip(own, self.rules.nonterminal_edges(rule), strict=True):
            here, then = grid.states[k : k + 2]
            children.append((self.table(edge.label), edge.nodes, items[edge.label][here, then - here].reshape(-1)))
        cells: dict[str, tuple[int | Cell, ...]] = {
            name: tuple((self.hrg.domain_read, position) for position in grid.states[k].reshape(-1).tolist())
            for k, (name, is_symbol) in enumerate(slots)
            if is_symbol
        }
        nodes = tuple(replace(x, observed=cells[x.name][0]) if x.name in cells else x for x in rule.right.nodes)
        cells |= {x.name: (x.observed,) * number for x in nodes if x.observed is not None and x.name not in cells}
        factors = [(edge.label, edge.nodes) for edge in self.rules.terminal_edges(rule)]
        if is_root:
            label = end_label(self.hrg.domain_read)
            ends = grid.states[-1].reshape(-1).tolist()
            node = end_node(rule, label.type[0], ends[0])
            nodes, factors = (*nodes, node), [*factors, (label.name, (node.name,))]
            cells[node.name] = tuple(ends)
        return Group(
            self.root if is_root else self.table(rule.left), rows, grid.states[0].shape[1], nodes,
            rule.right.externals, tuple(children), tuple(factors), cells, (),
            rule.template or rule.name,
            is_added=rule.name not in self.hrg.first._rule, grid=grid,
        )  # fmt: skip


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
    first: HRG,
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
            made = _group(hrg, table, [row_of[name][1] for name in chosen], splits, flat, row_of)
            groups.append(replace(made, is_added=flat[0].name not in first._rule))
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
        np.array(rows),
        splits,
        first.nodes,
        first.externals,
        tuple(
            (
                row_of[first.edges[k].label][0],
                first.edges[k].nodes,
                np.array([row_of[rule.right.edges[k].label][1] for rule in rules]),
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
