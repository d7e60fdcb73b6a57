"""Which of the equal forms of a grammar is cheapest to sum: its full tensors, its factors by ranks, or rank space.

Read next: `fgg/explain.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from rankfold.errors import UnsupportedError
from rankfold.fgg.cost import Cost, cost
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.rewrite.decompose import decompose
from rankfold.fgg.rewrite.merge import recompose
from rankfold.fgg.rewrite.rank_space import rank_space

Inference = Literal["auto", "dense", "factored", "rank"]


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
