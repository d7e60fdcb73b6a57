"""Derivations with the values of their nodes: the best one, and exact samples of the posterior.

Both go down from the start symbol through a table of sums (or maxima), and choose at each nonterminal a rule, then the
values of its inner nodes one after another: for all sentences and samples at a nonterminal's table at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.fgg.contraction import LOGS, MAX, Semiring, contract, plan_contraction
from rankfold.fgg.dependencies import cycle
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Derivation
from rankfold.fgg.inference.executor import Execution, rows_in
from rankfold.fgg.inference.fixed_point import log_tables, max_rounds
from rankfold.fgg.inference.operands import Operand, diagonal, memoise, node_axes
from rankfold.fgg.inference.schedule import Block, Group, Schedule, group_of_rule, unshared
from rankfold.fgg.inference.solve import solve, solve_plain, tensors_of, weights_of
from rankfold.fgg.rewrite.merge import recompose
from rankfold.numerics.log_space import log_weights, pick

Choose = Callable[[Tensor], Tensor]  # "m k" logarithms -> "m"
ITEM, USE = 0, 1  # axes: items that are derived, and the uses of rules they choose from
ENTRIES = 2**22  # of a temporary, at most, or one item


def best(g: Grammar) -> Derivation | list[Derivation]:
    """The derivation with values of the largest weight, one per sentence; ties go to the first rule and value.

    Its `log_weight` is `sum_product(g, "max")`. Raises where nothing has weight. Of a recursive grammar without a
    query, too: the shallowest; raises where derivations gain weight as they grow. Cost: a pass of maxima,
    as many operations as a sum takes without matrix products, then a contraction for every table on the way. Factors
    given by ranks are multiplied out first; a grammar in rank space is refused.
    """
    g = recompose(g, "the best derivation")
    with torch.no_grad():
        chart = _unrolled(g) if cycle(g.hrg) else _chart(g, solve_plain(g, MAX))
        found = _Descent(g, chart, MAX, lambda x: x.argmax(-1)).run(range(g.batch or 1))
    return found if g.batch is not None else found[0]


@overload
def sample(g: Grammar, *, generator: torch.Generator) -> Derivation | list[Derivation]: ...
@overload
def sample(g: Grammar, *, num: int, generator: torch.Generator) -> list[Derivation] | list[list[Derivation]]: ...
def sample(
    g: Grammar, *, num: int | None = None, generator: torch.Generator
) -> Derivation | list[Derivation] | list[list[Derivation]]:
    """A derivation with values, drawn with the probability its weight has in the sum; one for each sentence of a batch.

    `num`: a list of so many independent ones instead, drawn together. Of a recursive grammar without a query, too.
    Raises where nothing has weight. Cost: a sum, then a contraction for every table on the way. In a grammar with ranks
    the values are those of ranks.
    """
    if num is not None and num < 1:
        raise DomainError(f"num is {num}, but at least one sample is drawn.")
    with torch.no_grad():
        chart = _recursive(g) if cycle(g.hrg) else _chart(g, solve(g))
        sentences, each = range(g.batch or 1), num or 1
        descent = _Descent(g, chart, LOGS, lambda log_x: pick(log_x, generator))
        found = descent.run([k for k in sentences for _ in range(each)])
    if num is None:
        return found if g.batch is not None else found[0]
    return [found[k * num : (k + 1) * num] for k in sentences] if g.batch is not None else found


@dataclass
class _Chart:
    """Tables of logarithms, "row b ...", the rules that made them, and where the start symbol is.

    `earliest`: of each entry the first row that is as good, "row b ...", by table.
    """

    tables: Mapping[str, Tensor]
    blocks: Sequence[Block]  # children first, unless the grammar is recursive
    start: tuple[str, int]
    log_factors: Mapping[str, Tensor]
    earliest: Mapping[str, Tensor] = field(default_factory=dict)


def _chart(g: Grammar, run: Execution) -> _Chart:
    """The tables of a pass, with the rules as they are before sums are shared."""
    plan = unshared(g.hrg)
    tables = {}
    for table in plan.tables:
        blocks = []
        for k, block in enumerate(run.blocks[table]):
            log_block = block.double()
            if run.arithmetic.is_scaled:
                scale = run.scaling.scales[table][k]
                log_block = log_weights(log_block) + scale.reshape(*scale.shape, *[1] * (block.ndim - 2))
            blocks.append(log_block)
        tables[table] = torch.cat(blocks)
        if not plan.spans:  # levels, and so rows, may be others where sums are shared
            rows = [run.schedule.row_of[name][1] for name in plan.tables[table]]
            tables[table] = tables[table][torch.tensor(rows, device=g.device)]
    blocks_of = [block for level in plan.levels for block in level]
    return _Chart(tables, blocks_of, plan.row_of[plan.start], _logs(g, run.schedule))


def _logs(g: Grammar, plan: Schedule) -> dict[str, Tensor]:
    return {label: log_weights(x.double()) for label, x in weights_of(g, plan).items()}


def _factors_of(g: Grammar) -> dict[str, Tensor]:
    return tensors_of(g, dict.fromkeys(edge.label for rule in g.rules for edge in g.hrg.terminal_edges(rule)))


def _recursive(g: Grammar) -> _Chart:
    """The least fixed point of a recursive grammar: a table of one row for each nonterminal."""
    weights = _factors_of(g)
    tables = {name: x[None] for name, x in log_tables(g, weights).items()}
    blocks = [
        Block(
            name,
            0,
            1,
            tuple(group_of_rule(g.hrg, rule) for rule in g.rules_of(name) if _is_there(g, rule.name, tables)),
        )
        for name in tables
    ]
    return _Chart(tables, blocks, (g.start, 0), {k: log_weights(x.double()) for k, x in weights.items()})


def _unrolled(g: Grammar) -> _Chart:
    """The best derivations of a recursive grammar by their depth: row t of a table has those at most so deep."""
    weights = _factors_of(g)
    tables, peers = max_rounds(g, weights)
    blocks = []
    for name, table in tables.items():
        rows = np.arange(1, len(table))
        groups = []
        for rule in g.rules_of(name):
            if _is_there(g, rule.name, tables):
                group = group_of_rule(g.hrg, rule)
                children = tuple(
                    (child, nodes, rows - 1 if child in peers[name] else np.full_like(rows, len(tables[child]) - 1))
                    for child, nodes, _ in group.children
                )
                seen = {node: cells * len(rows) for node, cells in group.observed.items()}
                groups.append(replace(group, rows=rows, children=children, observed=seen, made={}))
        blocks.append(Block(name, 1, len(table), tuple(groups)))
    start = (g.start, len(tables[g.start]) - 1)
    earliest = {name: _earliest(table) for name, table in tables.items()}
    return _Chart(tables, blocks, start, {k: log_weights(x.double()) for k, x in weights.items()}, earliest)


def _earliest(table: Tensor) -> Tensor:  # "t b ..." -> the same
    """For each row the first that is as good, but for rounding: what comes back to itself for nothing is not taken."""
    found = (
        torch.arange(len(table), device=table.device).reshape(-1, *[1] * (table.ndim - 1)).expand(table.shape).clone()
    )
    eps = torch.finfo(table.dtype).eps
    for t in range(1, len(table)):
        before, here = table[t - 1], table[t]
        same = (before > float("-inf")) & (here <= before + eps * (1 + before.abs()))
        found[t] = torch.where(same, found[t - 1], found[t])
    return found


def _is_there(g: Grammar, rule: str, tables: Mapping[str, Tensor]) -> bool:
    return all(edge.label in tables for edge in g.hrg.nonterminal_edges(g.hrg.rule(rule)))


@dataclass
class _Items:
    """Nonterminals that are still to be derived, all of one table."""

    rows: Tensor  # "m"
    sentences: Tensor  # "m"
    values: Tensor  # "m k"   of their nodes
    parents: list[tuple[int, int]]  # the derivation each is a child of, and which; of whole ones -1 and their number


@dataclass
class _Descent:
    """The way down the tables, with one way to choose."""

    g: Grammar
    chart: _Chart
    arithmetic: Semiring
    choose: Choose
    found: list[tuple[Group, int, dict[str, int], float]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)
    whole: dict[int, int] = field(default_factory=dict)
    ahead: dict[str, list[_Items]] = field(default_factory=dict)

    def run(self, sentences: Sequence[int]) -> list[Derivation]:
        """A derivation for each of these sentences."""
        table, row = self.chart.start
        device = self.chart.tables[table].device if table in self.chart.tables else self.g.device
        has_weight = (self.chart.tables[table][row] > float("-inf")).tolist() if table in self.chart.tables else []
        for sentence in sorted(set(sentences)):
            if not (has_weight and has_weight[sentence]):
                which = "" if self.g.batch is None else f" of sentence {sentence}"
                raise DomainError(
                    f"No derivation{which} has any weight.\n  Look for words, rules or factors of weight zero."
                )
        own = torch.tensor(sentences, device=device)
        nothing = torch.zeros((len(own), 0), dtype=torch.int64, device=device)
        self.ahead = {table: [_Items(torch.full_like(own, row), own, nothing, [(-1, k) for k in range(len(own))])]}
        order = {name: k for k, name in enumerate(getattr(self.g.hrg, "first", self.g.hrg)._rule)}
        while self.ahead:
            for block in reversed(self.chart.blocks):
                if block.table in self.ahead:
                    groups = sorted(block.groups, key=lambda x: order.get((*x.rules, x.template)[0], 0))
                    self.step(block, groups)
        return self.build(len(sentences))

    def step(self, block: Block, groups: Sequence[Group]) -> None:
        """Derive all items of a block."""
        waiting = self.ahead.pop(block.table)
        rows = torch.cat([own.rows for own in waiting])
        every = _Items(
            rows, torch.cat([own.sentences for own in waiting]), torch.cat([own.values for own in waiting]),
            [parent for own in waiting for parent in own.parents],
        )  # fmt: skip
        here = (rows >= block.begin) & (rows < block.end)
        if not bool(here.all()):
            self.ahead[block.table] = [_select(every, (~here).nonzero()[:, 0])]
            every = _select(every, here.nonzero()[:, 0])
        if not len(every.parents):
            return
        each = max(1, ENTRIES // max(1, *(self.entries(group) for group in groups)))
        for begin in range(0, len(every.parents), each):
            index = torch.arange(begin, min(begin + each, len(every.parents)), device=rows.device)
            self.derive(block, groups, _select(every, index))

    def entries(self, group: Group) -> int:
        """No fewer than the numbers of an operand of an item."""
        widest = max((self.chart.tables[table][0, 0].numel() for table, _, _ in group.children), default=1)
        return group.splits * widest

    def derive(self, block: Block, groups: Sequence[Group], items: _Items) -> None:
        """A rule for each item, and the values of its nodes."""
        device = items.rows.device
        scores, places = [], []
        for group in groups:
            first = torch.full((block.end - block.begin,), -1, device=device)
            first[rows_in(group, block, device)] = torch.arange(len(group.rows), device=device)
            parent = first[items.rows - block.begin]
            own = (parent >= 0).nonzero()[:, 0]
            score = torch.full((len(parent), group.splits), float("-inf"), dtype=torch.float64, device=device)
            uses = parent[:, None] * group.splits + torch.arange(group.splits, device=device)
            if len(own):
                known = dict(zip(group.externals, items.values[own].unbind(1), strict=True))
                score[own] = self.score(group, uses[own], items.sentences[own], known, None)
            scores.append(score)
            places.append(uses)
        chosen = self.choose(torch.cat(scores, 1))
        begin = 0
        for group, uses in zip(groups, places, strict=True):
            own = ((chosen >= begin) & (chosen < begin + group.splits)).nonzero()[:, 0]
            if len(own):
                use = uses[own, chosen[own] - begin]
                self.assign(group, use, _select(items, own))
            begin += group.splits

    def assign(self, group: Group, use: Tensor, items: _Items) -> None:  # use "m"
        """The values of a rule's nodes, and the items below it."""
        known = dict(zip(group.externals, items.values.unbind(1), strict=True))
        known |= {node: _seen(self.g, group, node, use, items.sentences) for node in group.observed}
        for node in group.nodes:
            if node.name not in known:
                log_x = self.score(group, use[:, None], items.sentences, known, node.name)
                known[node.name] = self.choose(log_x)
        weight = torch.zeros(len(use), dtype=torch.float64, device=use.device)
        for label, nodes in group.factors:
            x = self.chart.log_factors[label]
            index = self.of_sentence(label, x, items.sentences) + [known[node] for node in nodes]
            weight = weight + (x[tuple(index)] if index else x)
        first = len(self.found)
        names = [node.name for node in group.nodes]
        columns = [known[name].tolist() for name in names]
        rows = zip(*columns, strict=True) if columns else ((),) * len(use)
        for k, values, log_weight, (parent, place) in zip(
            use.tolist(), rows, weight.tolist(), items.parents, strict=True
        ):
            if parent >= 0:
                self.below[parent][place] = len(self.found)
            else:
                self.whole[place] = len(self.found)
            self.below.append([-1] * len(group.children))
            self.found.append((group, k, dict(zip(names, values, strict=True)), log_weight))
        for k, (table, nodes, _) in enumerate(group.children):
            rows_below = self.child_rows(group, k)[use]
            below = [known[node] for node in nodes]
            values_below = torch.stack(below, 1) if below else use.new_zeros((len(use), 0))
            if table in self.chart.earliest:
                rows_below = self.chart.earliest[table][(rows_below, items.sentences, *below)]
            parents = [(own, k) for own in range(first, len(self.found))]
            self.ahead.setdefault(table, []).append(_Items(rows_below, items.sentences, values_below, parents))

    def child_rows(self, group: Group, k: int) -> Tensor:  # "p*s"
        device = self.g.device
        return memoise(group, ("children", k, device), lambda: torch.from_numpy(group.children[k][2]).to(device))

    def of_sentence(self, label: str, x: Tensor, sentences: Tensor) -> list[Tensor]:
        """The index of the sentences' own tables of a factor."""
        return [sentences.clamp(max=len(x) - 1)] if self.g.label(label).is_batched else []

    def score(
        self, group: Group, uses: Tensor, sentences: Tensor, known: Mapping[str, Tensor], output: str | None
    ) -> Tensor:  # uses "m s" -> "m s" without an output, else "m values"
        """The product of factors and children of uses of a rule, summed over all nodes but the known and the output."""
        axis_of, own = node_axes(group), sentences[:, None]
        given = {name: x[:, None] for name, x in known.items()}
        given |= {node: _seen(self.g, group, node, uses, own) for node in group.observed}
        operands: list[Operand] = []
        for k, (table, nodes, _) in enumerate(group.children):
            index = [self.child_rows(group, k)[uses], own]
            operands.append(_at(self.chart.tables[table], index, nodes, given, axis_of))
        for label, nodes in group.factors:
            x = self.chart.log_factors[label]
            operands.append(_at(x, self.of_sentence(label, x, own), nodes, given, axis_of))
        touched = {axis for own in operands for axis in own.axes}
        like = torch.zeros((), dtype=torch.float64, device=uses.device)
        for node in group.nodes:
            if node.name not in given and axis_of[node.name] not in touched:
                ones = self.arithmetic.one(like, (self.g.size(node.domain),))
                operands.append(Operand(ones, (axis_of[node.name],)))
        operands.append(Operand(self.arithmetic.one(like, tuple(uses.shape)), (ITEM, USE)))
        sizes = {axis: n for own in operands for axis, n in zip(own.axes, own.tensor.shape, strict=True)}
        wanted = (ITEM, USE) if output is None else (ITEM, axis_of[output])
        plan = plan_contraction([own.axes for own in operands], wanted, sizes)
        return contract(plan, [own.tensor for own in operands], self.arithmetic)

    def build(self, num: int) -> list[Derivation]:
        """The derivations that are whole; children are built before their parents, which were found before them."""
        made: dict[int, Derivation] = {}
        names: dict[tuple[int, int], str] = {}
        for k in reversed(range(len(self.found))):
            group, use, values, log_weight = self.found[k]
            children = tuple(made.pop(child) for child in self.below[k])
            total = log_weight + sum(child.log_weight or 0.0 for child in children)
            key = (id(group), use)
            if key not in names:
                names[key] = group.name(use)
            made[k] = Derivation(names[key], values, children, total)
        return [made[self.whole[k]] for k in range(num)]


def _select(items: _Items, index: Tensor) -> _Items:
    parents = [items.parents[k] for k in index.tolist()]
    return _Items(items.rows[index], items.sentences[index], items.values[index], parents)


def _seen(g: Grammar, group: Group, node: str, uses: Tensor, sentences: Tensor) -> Tensor:  # as uses
    """The observed values of a node in uses of a rule, for these sentences."""
    cells = group.observed[node]
    first, device = cells[0], uses.device
    numbers = memoise(
        group,
        ("seen", node, device),
        lambda: torch.tensor([cell[1] if isinstance(cell, tuple) else cell for cell in cells], device=device),
    )[uses]
    if isinstance(first, int):
        return numbers
    table = g.observed[first[0]]
    return table[sentences, numbers] if table.ndim == 2 else table[numbers]


def _at(
    x: Tensor, index: list[Tensor], nodes: Sequence[str], given: Mapping[str, Tensor], axis_of: Mapping[str, int]
) -> Operand:
    """A tensor at these indices of its first axes, "m s" or "m 1" each, and at the nodes that are given."""
    lead = len(index)
    known = [k for k, node in enumerate(nodes) if node in given]
    free = [k for k in range(len(nodes)) if k not in known]
    rest = [axis_of[nodes[k]] for k in free]
    index = index + [given[nodes[k]] for k in known]
    if not index:
        return diagonal(x, rest)
    moved = x.permute([*range(lead), *(lead + k for k in known), *(lead + k for k in free)])
    picked = moved[torch.broadcast_tensors(*index)]  # type: ignore[no-untyped-call]
    if picked.shape[1] == 1:
        return diagonal(picked[:, 0], [ITEM, *rest])
    return diagonal(picked, [ITEM, USE, *rest])
