"""Factor graph grammars: write a structure as text, get exact inference.

A grammar (`grammar.py`) is read from text (`text.py`), conjoined with a query (`query.py`, `conjoin.py`), rewritten and
summed. The names of the paper's definitions: 1 hypergraph (`Node`, `Edge`), 2 factor graph (`Domain`, `Factor`), 3
fragment (`Fragment`), 4 hyperedge replacement grammar (`HRG`, `Rule`), 5 factor graph grammar (`Grammar`), 6 B-FGG
(`why_not_b_fgg`). Read next: `hypergraph.py`.
"""

from rankfold.fgg.b_fgg import why_not_b_fgg
from rankfold.fgg.conjoin import conjoin
from rankfold.fgg.draw import to_dot, to_svg
from rankfold.fgg.factored import Factored
from rankfold.fgg.grammar import Factor, Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Domain, Edge, Fragment, Label, Node, Rule
from rankfold.fgg.json import from_json, to_json
from rankfold.fgg.prune import pruned
from rankfold.fgg.query import Query, automaton_query, string_query
from rankfold.fgg.text import format_rule, format_text, parse, read, write

__all__ = [
    "HRG",
    "Domain",
    "Edge",
    "Factor",
    "Factored",
    "Fragment",
    "Grammar",
    "Label",
    "Node",
    "Query",
    "Rule",
    "automaton_query",
    "conjoin",
    "format_rule",
    "format_text",
    "from_json",
    "parse",
    "pruned",
    "read",
    "string_query",
    "to_dot",
    "to_json",
    "to_svg",
    "why_not_b_fgg",
    "write",
]
