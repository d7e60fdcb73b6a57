"""B-FGGs (Definition 6 of Yang et al. 2022): the grammars that have a rank space."""

from __future__ import annotations

from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Rule


def why_not_b_fragment(hrg: HRG, rule: Rule) -> str | None:
    """Why the right side of a rule is no B-hypergraph fragment, or None if it is one (Definition 6).

    It has exactly one external node, and no nonterminal edge touches it. Rules of the start symbol, which have no
    external node, are exempt.
    """
    externals = rule.right.externals
    if rule.left == hrg.start:
        return None
    if len(externals) != 1:
        return f"rule {rule.name!r} has {len(externals)} external nodes ({', '.join(externals) or 'none'}), not one"
    for edge in hrg.nonterminal_edges(rule):
        if externals[0] in edge.nodes:
            return (
                f"the external node {externals[0]!r} of rule {rule.name!r} is touched by the nonterminal {edge.label!r}"
            )
    return None


def why_not_b_fgg(grammar: Grammar) -> str | None:
    """Why a grammar is no B-FGG, naming the rule, or None if it is one: all its right sides are B-fragments."""
    reasons = (why_not_b_fragment(grammar.hrg, rule) for rule in grammar.rules)
    return next((reason for reason in reasons if reason is not None), None)
