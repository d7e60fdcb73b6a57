"""Factor graph grammars: write a structure as text, get exact inference.

A grammar is read from text (`language/`), conjoined with a query and rewritten (`rewrite/`), and summed (`inference/`).
The names of the paper's definitions: 1 hypergraph (`Node`, `Edge`), 2 factor graph (`Domain`, `Factor`), 3 fragment
(`Fragment`), 4 hyperedge replacement grammar (`HRG`, `Rule`), 5 factor graph grammar (`Grammar`), 6 B-FGG
(`why_not_b_fgg`). Files: `hypergraph`, `hrg`, `grammar` (the definitions), `factors` and `contraction` (sums of
products of tensors), `dependencies` (which nonterminals need which), `cost`.
"""

from rankfold.fgg.cost import Cost, Plan, cost, explain, plan
from rankfold.fgg.dependencies import pruned
from rankfold.fgg.factors import Factor, Factored
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Derivation, Domain, Edge, Fragment, Label, Node, Rule
from rankfold.fgg.inference import sum_product
from rankfold.fgg.inference.counting import count
from rankfold.fgg.inference.derivations import best, sample
from rankfold.fgg.inference.marginals import Marginals, marginals
from rankfold.fgg.language.drawing import to_dot, to_svg
from rankfold.fgg.language.json_format import from_json, to_json
from rankfold.fgg.language.text import (
    format_rule,
    format_text,
    library,
    library_names,
    library_text,
    parse,
    read,
    write,
)
from rankfold.fgg.rewrite.conjoin import conjoin
from rankfold.fgg.rewrite.decompose import decompose
from rankfold.fgg.rewrite.merge import merge, recompose
from rankfold.fgg.rewrite.query import Query, automaton_query, string_query
from rankfold.fgg.rewrite.rank_space import rank_space, why_not_b_fgg

__all__ = [
    "HRG",
    "Cost",
    "Derivation",
    "Domain",
    "Edge",
    "Factor",
    "Factored",
    "Fragment",
    "Grammar",
    "Label",
    "Marginals",
    "Node",
    "Plan",
    "Query",
    "Rule",
    "automaton_query",
    "best",
    "conjoin",
    "cost",
    "count",
    "decompose",
    "explain",
    "format_rule",
    "format_text",
    "from_json",
    "library",
    "library_names",
    "library_text",
    "marginals",
    "merge",
    "parse",
    "plan",
    "pruned",
    "rank_space",
    "read",
    "recompose",
    "sample",
    "string_query",
    "sum_product",
    "to_dot",
    "to_json",
    "to_svg",
    "why_not_b_fgg",
    "write",
]
