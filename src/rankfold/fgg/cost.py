"""The cost of a sum in advance, in multiply-adds and bytes, rule by rule: numbers (`cost`), the cheapest of a
grammar's equal forms (`plan`), and a text that compares the rules as written with rank space (`explain`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from rankfold.errors import UnsupportedError
from rankfold.fgg.contraction import Axes, Contraction, plan_contraction, plan_with_ones
from rankfold.fgg.dependencies import cycle, productive_rules
from rankfold.fgg.factors import Derived, Factor, Factored
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import is_inclusion
from rankfold.fgg.hypergraph import Rule
from rankfold.fgg.inference.operands import PARENT, SENTENCE, SPLIT, distinct_axes, node_axes
from rankfold.fgg.inference.schedule import Group, group_of_rule, schedule
from rankfold.fgg.inference.solve import word_places
from rankfold.fgg.language.text import format_rule
from rankfold.fgg.rewrite.conjoin import conjoin
from rankfold.fgg.rewrite.decompose import decompose
from rankfold.fgg.rewrite.merge import recompose
from rankfold.fgg.rewrite.query import string_query
from rankfold.fgg.rewrite.rank_space import rank_space

Inference = Literal["auto", "dense", "factored", "rank"]
WRITTEN, RANKED = "as written", "in rank space"
SHORT, LONG = 8, 16  # lengths whose numbers of uses tell the power of the length


@dataclass(frozen=True)
class RuleCost:
    """All uses of one rule in one sum."""

    uses: int
    steps: int  # how often its most costly step is taken: once a use, or once for all ways to split one nonterminal
    multiply_adds: int
    bytes: int  # read and written by all steps
    monomial: str  # its most costly step in the letters of the domains


@dataclass(frozen=True)
class Cost:
    """A sum's cost: by rule of the grammar before its query, and for factors that are derived, once a pass each."""

    rules: Mapping[str, RuleCost]
    derived: Mapping[str, RuleCost]

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of all rules and derived factors."""
        return sum(own.multiply_adds for own in (*self.rules.values(), *self.derived.values()))

    @property
    def bytes(self) -> int:
        """The bytes of all rules and derived factors."""
        return sum(own.bytes for own in (*self.rules.values(), *self.derived.values()))


def cost(g: Grammar) -> Cost:
    """Multiply-adds and bytes of one `sum_product(g)`, without rescaling; a gradient is about twice as much again.

    After a query: of all its sentences, rules by their template. Of a recursive grammar: one use of every rule. Needs
    sizes, no tensors.
    """
    item = g.dtype.itemsize
    batch = g.batch or 1
    is_cyclic = bool(cycle(g.hrg))
    groups = (
        [group_of_rule(g.hrg, rule) for own in productive_rules(g.hrg).values() for rule in own]
        if is_cyclic
        else list(schedule(g.hrg).groups())
    )
    rules: dict[str, RuleCost] = {}
    for group in groups:
        letters = {axis: node.domain for node, axis in zip(group.nodes, node_axes(group).values(), strict=True)}
        own = _rule_cost(_group_plan(g, group, batch), item, len(group.rows), group.splits, letters)
        old = rules.get(group.template)
        rules[group.template] = own if old is None else _sum(old, own)
    made: dict[int, Contraction] = {}
    derived: dict[str, RuleCost] = {}
    places = {} if is_cyclic else word_places(g)
    for label in dict.fromkeys(label for group in groups for label, _ in group.factors):
        factor = g.factors.get(label)
        at = {k: g.observed[table].numel() for k, table in places.get(label, {}).items()}
        if isinstance(factor, Derived) and id(factor) not in made:
            derived |= _derived_cost(label, factor, item, made, at)
    return Cost(rules, derived)


def _group_plan(g: Grammar, group: Group, batch: int) -> Contraction:
    """The contraction that a pass carries out for a group."""
    axis_of = node_axes(group)
    sizes = {PARENT: len(group.rows), SPLIT: group.splits, SENTENCE: batch}
    sizes |= {axis_of[node.name]: g.size(node.domain) for node in group.nodes if node.observed is None}
    each = (PARENT,) if group.splits == 1 else (PARENT, SPLIT)
    inputs: list[Axes] = [
        (*each, SENTENCE, *distinct_axes([axis_of[name] for name in nodes])[1]) for _, nodes, _ in group.children
    ]
    for label, nodes in group.factors:
        is_batched = g.label(label).is_batched
        seen = [name for name in nodes if name in group.observed]
        by_sentence = is_batched or any(_differs(g, group, name) for name in seen)
        free = distinct_axes([axis_of[name] for name in nodes if name not in seen])[1]
        inputs.append(((*each,) if seen else ()) + ((SENTENCE,) if by_sentence else ()) + free)
    summed = [axis for node, axis in axis_of.items() if node not in group.observed]
    summed += [SPLIT] if group.splits > 1 else []
    output = (PARENT, SENTENCE, *(axis_of[name] for name in group.externals))
    return plan_with_ones(inputs, summed, output, sizes)


def _differs(g: Grammar, group: Group, node: str) -> bool:
    """Whether a node's observed value differs from sentence to sentence."""
    cell = group.observed[node][0]
    if isinstance(cell, int):
        return False
    table = g.observed.get(cell[0])
    return table is None or table.ndim == 2


def _rule_cost(plan: Contraction, item: int, parents: int, splits: int, letters: Mapping[int, str]) -> RuleCost:
    worst = max(plan.steps, key=lambda step: step.multiply_adds, default=None)
    axes = () if worst is None else dict.fromkeys((*worst.left_axes, *worst.right_axes))
    names = sorted(letters[axis] for axis in axes if axis in letters)
    steps = parents * (splits if SPLIT in axes else 1)
    return RuleCost(parents * splits, steps, plan.multiply_adds, item * plan.entries, _monomial(names))


def _monomial(names: list[str]) -> str:
    """A product of domains, powers written as such: `N (N+P)^2`."""
    found = []
    for name in dict.fromkeys(names):
        times = names.count(name)
        text = f"({name})" if "+" in name else name
        found.append(text if times == 1 else f"{text}^{times}")
    return " ".join(found) or "1"


def _sum(a: RuleCost, b: RuleCost) -> RuleCost:
    larger = a if a.multiply_adds >= b.multiply_adds else b
    return RuleCost(
        a.uses + b.uses, a.steps + b.steps, a.multiply_adds + b.multiply_adds, a.bytes + b.bytes, larger.monomial
    )


def _derived_cost(
    label: str, factor: Derived, item: int, made: dict[int, Contraction], at: Mapping[int, int]
) -> dict[str, RuleCost]:
    """The cost of a derived factor and its derived sources, each once; `at`: by place, how many entries are made."""
    wanted = {factor.output[place]: size for place, size in at.items()}
    found: dict[str, RuleCost] = {}
    axes: list[Axes] = []
    sizes: dict[int, int] = {}
    for k, (source, own) in enumerate(zip(factor.sources, factor.inputs, strict=True)):
        inner = {place: wanted[axis] for place, axis in enumerate(own) if axis in wanted}
        if isinstance(source, Derived) and (inner or id(source) not in made):
            found |= _derived_cost(f"{label}.{k}", source, item, made, inner)
        sizes |= dict(zip(own, _shape_of(source), strict=True))
        axes.append(tuple(dict.fromkeys(own)))
    sizes |= wanted
    plan = plan_contraction(axes, factor.output, sizes)
    if not at:
        made[id(factor)] = plan
    return found | {label: _rule_cost(plan, item, 1, 1, {})}


def _shape_of(source: Factor) -> tuple[int, ...]:
    """The shape of a factor; a module that is not derived must be called for it."""
    if isinstance(source, Derived):
        sizes: dict[int, int] = {}
        for inner, own in zip(source.sources, source.inputs, strict=True):
            sizes |= dict(zip(own, _shape_of(inner), strict=True))
        return tuple(sizes[axis] for axis in source.output)
    if isinstance(source, nn.Module):
        return tuple(source().shape)
    return tuple(source.shape)


@dataclass(frozen=True)
class Plan:
    """The chosen form, its grammar, the costs of all forms, and why the others are refused."""

    inference: str
    grammar: Grammar
    costs: Mapping[str, Cost]
    refused: Mapping[str, str]


def plan(g: Grammar, inference: Inference = "auto") -> Plan:
    """The grammar in the form that costs the fewest multiply-adds ("auto"), or in the one asked for.

    "dense": factors by ranks multiplied out; "factored": every `Factored` factor by its parts; "rank": rank space. All
    have the same sums; best derivations and counts are asked of the first two. Cheapest for this grammar with this
    query: ask after `conjoin`. The count of operations does not see how well they suit a machine: forms within a factor
    of two are a toss-up.
    """
    if inference not in get_args(Inference):
        raise UnsupportedError(f"inference={inference!r} is unknown; there are {', '.join(get_args(Inference))}.")
    forms: dict[str, Grammar] = {}
    refused: dict[str, str] = {}
    factored = decompose(g)
    makers: dict[str, Callable[[], Grammar]] = {
        "dense": lambda: recompose(factored, "the dense form"),
        "factored": lambda: factored,
        "rank": lambda: rank_space(factored),
    }
    for name, make in makers.items():
        try:
            forms[name] = make()
        except UnsupportedError as error:
            refused[name] = str(error)
    costs = {name: cost(form) for name, form in forms.items()}
    if inference in refused:
        raise UnsupportedError(refused[inference])
    best = min(costs, key=lambda name: costs[name].multiply_adds) if inference == "auto" else inference
    return Plan(best, forms[best], costs, refused)


def explain(g: Grammar, length: int | None = None, *, batch: int = 1, rank: int | None = None) -> str:
    """The rules as written and in rank space, their cost in letters of the domains and in numbers, and their ratio.

    `length`: of the sentences of a query, `batch` of them; None: the grammar as it is. `rank`: factors that tie a state
    to others without a rank between them are taken to be given by parts of this rank, which tells what that would win.
    Sizes are needed, tensors are not.
    """
    forms, reason = _forms(g, rank)
    lines: list[str] = []
    for title, form in forms.items():
        lines += [*_form(form, title, length, batch), ""]
    if reason is not None:
        return "\n".join([*lines, f"No rank space: {reason}", *_hint(forms[WRITTEN], rank)])
    total, other = (_cost(form, length, batch).multiply_adds for form in forms.values())
    ratio = total / max(1, other)
    verdict = f"{ratio:,.3g} times fewer" if ratio >= 1 else f"{1 / ratio:,.3g} times more"
    lines.append(f"rank space: {verdict} multiply-adds ({total:,} as written, {other:,} in rank space)")
    return "\n".join(lines)


def compare(g: Grammar, length: int | None = None, *, batch: int = 1, rank: int | None = None) -> dict[str, Any]:
    """The same as plain data: by form its multiply-adds and bytes, in all, by rule and by derived factor."""
    forms, reason = _forms(g, rank)
    found: dict[str, Any] = {"length": length, "batch": batch, "no_rank_space": reason, "forms": {}}
    for title, form in forms.items():
        whole = _cost(form, length, batch)
        found["forms"][title] = {
            "multiply_adds": whole.multiply_adds,
            "bytes": whole.bytes,
            "rules": {name: asdict(own) for name, own in whole.rules.items()},
            "derived": {name: asdict(own) for name, own in whole.derived.items()},
        }
    return found


def _forms(g: Grammar, rank: int | None) -> tuple[dict[str, Grammar], str | None]:
    """The grammar as written and, if it has one, in rank space; else why not."""
    before = _with_any_factors(g)
    try:
        return {WRITTEN: before, RANKED: rank_space(_given_by_ranks(before, rank))}, None
    except UnsupportedError as error:
        return {WRITTEN: before}, str(error)


def _hint(g: Grammar, rank: int | None) -> list[str]:
    if rank is not None or not _undivided(g):
        return []
    names = ", ".join(_undivided(g))
    return [f"  What would ranks win? explain(g, rank=16), or --rank 16, takes {names} as given by parts."]


def _form(g: Grammar, title: str, length: int | None, batch: int) -> list[str]:
    """One form of the grammar: its rules with their cost, its derived factors, its total."""
    whole = _cost(g, length, batch)
    powers = _powers(g) if length is not None else {}
    summed = _summed(g if length is None else _query(g, length, batch))
    asked = "one use of each rule" if length is None else f"{batch} sentence{'s' * (batch > 1)} of {length} words"
    lines = [f"{title}: {asked}, {_sizes(g)}"]
    rows = []
    texts = {rule.template or rule.name: format_rule(rule, domains=False) for rule in _distinct_rules(g)} | summed
    for name, text in texts.items():
        own = whole.rules.get(name)
        if own is None:
            rows.append((text, "-", "0", "0"))
            continue
        power = powers.get(name, 0)
        n = "" if power == 0 else "n " if power == 1 else f"n^{power} "
        letters = f"{n}{own.monomial}" if own.monomial != "1" or not n else n.strip()
        rows.append((text, f"O({letters})", f"{own.uses:,}", f"{own.multiply_adds:,}"))
    for name, own in whole.derived.items():
        rows.append((f"{name}, derived once", "", "1", f"{own.multiply_adds:,}"))
    widths = [max(len(row[k]) for row in [*rows, ("rule", "cost", "uses", "multiply-adds")]) for k in range(4)]
    for row in [("rule", "cost", "uses", "multiply-adds"), *rows]:
        lines.append(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}")
    lines.append(f"  in all {whole.multiply_adds:,} multiply-adds, {whole.bytes / 2**20:,.1f} MiB read and written")
    return lines


def _distinct_rules(g: Grammar) -> list[Rule]:
    """One rule for every template; all of them where there are none."""
    return list({rule.template or rule.name: rule for rule in reversed(g.rules)}.values())[::-1]


def _summed(g: Grammar) -> dict[str, str]:
    """By template the rules as they are summed: shared sums (`share_sums`) have symbols of their own."""
    if cycle(g.hrg):
        return {}
    hrg = schedule(g.hrg).hrg

    def plain(rule: Rule) -> Rule:
        edges = tuple(replace(edge, label=hrg.label(edge.label).origin or edge.label) for edge in rule.right.edges)
        nodes = tuple(
            replace(node, observed=None) if isinstance(node.observed, tuple) else node for node in rule.right.nodes
        )
        right = replace(rule.right, nodes=nodes, edges=edges)
        return replace(rule, left=hrg.label(rule.left).origin or rule.left, right=right)

    first: dict[str, Rule] = {}
    for rule in hrg.rules:
        first.setdefault(rule.template or rule.name, rule)
    return {name: format_rule(plain(rule), domains=False) for name, rule in first.items()}


def _sizes(g: Grammar) -> str:
    return ", ".join(f"{d.name} = {g.size(d.name):,}" for d in g.domains if not d.parts)


def _query(g: Grammar, length: int, batch: int) -> Grammar:
    words = torch.zeros(batch, length, dtype=torch.int64)
    return conjoin(g, string_query(words))


def _cost(g: Grammar, length: int | None, batch: int) -> Cost:
    return cost(g if length is None else _query(g, length, batch))


def _powers(g: Grammar) -> dict[str, int]:
    """By rule the power of the length n in how often its most costly step is taken, from two lengths."""
    short, long = (_cost(g, n, 1).rules for n in (SHORT, LONG))
    return {
        name: round(math.log(own.steps / short[name].steps, LONG / SHORT))
        for name, own in long.items()
        if name in short
    }


def _with_any_factors(g: Grammar) -> Grammar:
    """The grammar with ones for every factor that has no tensor: costs depend on sizes alone."""
    ones: dict[str, Factor] = {}
    for label in g.labels:
        if label.is_terminal and label.name not in g.factors and not is_inclusion(label.name):
            lead = [1] if label.is_batched else []
            ones[label.name] = torch.ones((), dtype=g.dtype).expand(*lead, *(g.size(domain) for domain in label.type))
    return g.with_factors(ones) if ones else g


def _undivided(g: Grammar) -> list[str]:
    """Factors that tie the states of a rule, its external node and its children's, directly to each other."""
    found = []
    for rule in g.rules:
        states = {*rule.right.externals, *(name for e in g.hrg.nonterminal_edges(rule) for name in e.nodes)}
        for edge in g.hrg.terminal_edges(rule):
            if len(states & set(edge.nodes)) > 1 and not is_inclusion(edge.label):
                found.append(edge.label)
    return list(dict.fromkeys(found))


def _given_by_ranks(g: Grammar, rank: int | None) -> Grammar:
    if rank is None:
        return decompose(g)
    ones = torch.ones((), dtype=g.dtype)
    given = {
        name: Factored.cpd(*(ones.expand(g.size(domain), rank).clone() for domain in g.label(name).type))
        for name in _undivided(g)
    }
    return decompose(decompose(g), given) if given else decompose(g)
