"""What a sum costs before it is taken, in multiply-adds and bytes, and which of a grammar's equal forms costs least."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from rankfold.errors import UnsupportedError
from rankfold.fgg.contraction import Axes, Contraction, plan_contraction
from rankfold.fgg.dependencies import cycle, productive_rules
from rankfold.fgg.factors import Derived, Factor
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.inference.operands import FIRST_NODE, PARENT, SENTENCE, SPLIT, distinct_axes, node_axes
from rankfold.fgg.inference.schedule import Group, group_of_rule, schedule
from rankfold.fgg.inference.solve import word_places
from rankfold.fgg.rewrite.decompose import decompose
from rankfold.fgg.rewrite.merge import recompose
from rankfold.fgg.rewrite.rank_space import rank_space

Inference = Literal["auto", "dense", "factored", "rank"]


@dataclass(frozen=True)
class RuleCost:
    """All uses of one rule in one sum."""

    uses: int
    steps: int  # how often its most costly step is taken: once a use, or once for all ways to split one nonterminal
    multiply_adds: int
    bytes: int  # of what is read and written by all steps
    monomial: str  # its most costly step in the letters of the domains


@dataclass(frozen=True)
class Cost:
    """A sum's cost: by rule of the grammar before its query, and for factors that are derived, once a pass each."""

    rules: Mapping[str, RuleCost]
    derived: Mapping[str, RuleCost]

    @property
    def multiply_adds(self) -> int:
        """Of everything."""
        return sum(own.multiply_adds for own in (*self.rules.values(), *self.derived.values()))

    @property
    def bytes(self) -> int:
        """Of everything."""
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
        plan, sizes = _group_plan(g, group, batch)
        own = _rule_cost(plan, sizes, item, len(group.rows), group.splits, _letters(group))
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


def _group_plan(g: Grammar, group: Group, batch: int) -> tuple[Contraction, dict[int, int]]:
    """The contraction that a run carries out for a group, and the sizes of its axes."""
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
    present = {axis for own in inputs for axis in own}
    inputs += [(axis,) for node, axis in axis_of.items() if axis not in present and node not in group.observed]
    if group.splits > 1 and SPLIT not in present:
        inputs.append((SPLIT,))
    present = {axis for own in inputs for axis in own}
    wanted = (PARENT, SENTENCE, *(axis_of[name] for name in group.externals))
    output = tuple(axis for axis in wanted if axis in present)
    used = {axis: sizes[axis] for axis in present}
    return plan_contraction(inputs or [()], output, used), used


def _differs(g: Grammar, group: Group, node: str) -> bool:
    """Whether a node's observed value differs from sentence to sentence."""
    cell = group.observed[node][0]
    if isinstance(cell, int):
        return False
    table = g.observed.get(cell[0])
    return table is None or table.ndim == 2


def _rule_cost(
    plan: Contraction, sizes: Mapping[int, int], item: int, parents: int, splits: int, letters: Mapping[int, str]
) -> RuleCost:
    traffic = sum(
        math.prod(sizes[a] for a in step.left_axes)
        + math.prod(sizes[a] for a in step.right_axes) * (step.right is not None)
        + step.out_entries
        for step in plan.steps
    )
    worst = max(plan.steps, key=lambda step: step.multiply_adds, default=None)
    axes = () if worst is None else dict.fromkeys((*worst.left_axes, *worst.right_axes))
    names = sorted(letters[axis] for axis in axes if axis in letters)
    steps = parents * (splits if SPLIT in axes else 1)
    return RuleCost(parents * splits, steps, plan.multiply_adds, item * traffic, _monomial(names))


def _monomial(names: list[str]) -> str:
    """A product of domains, powers written as such: `N (N+P)^2`."""
    found = []
    for name in dict.fromkeys(names):
        times = names.count(name)
        text = f"({name})" if "+" in name else name
        found.append(text if times == 1 else f"{text}^{times}")
    return " ".join(found) or "1"


def _letters(group: Group) -> dict[int, str]:
    return {FIRST_NODE + k: node.domain for k, node in enumerate(group.nodes)}


def _sum(a: RuleCost, b: RuleCost) -> RuleCost:
    larger = a if a.multiply_adds >= b.multiply_adds else b
    return RuleCost(
        a.uses + b.uses, a.steps + b.steps, a.multiply_adds + b.multiply_adds, a.bytes + b.bytes, larger.monomial
    )


def _derived_cost(
    label: str, factor: Derived, item: int, made: dict[int, Contraction], at: Mapping[int, int]
) -> dict[str, RuleCost]:
    """A derived factor and what it is derived of, each once; `at`: by place, how many entries are made there."""
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
    return found | {label: _rule_cost(plan, sizes, item, 1, 1, {})}


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
    """The form that was chosen, its grammar, what every form costs, and why one that is missing has none."""

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
