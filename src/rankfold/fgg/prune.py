"""Nonterminals that take part in no derivation: those never reached, and those that derive nothing."""

from __future__ import annotations

from collections.abc import Container

from rankfold.errors import DomainError
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG


def unproductive(hrg: HRG) -> list[str]:
    """The nonterminals that derive no factor graph: every rule needs another such nonterminal. Linear in the rules."""
    productive: set[str] = set()
    missing: list[int] = []  # for each rule, how many of the nonterminals it names are not yet known to be productive
    waiting: dict[str, list[int]] = {}
    for index, rule in enumerate(hrg.rules):
        needs = {edge.label for edge in hrg.nonterminal_edges(rule)}
        missing.append(len(needs))
        for name in needs:
            waiting.setdefault(name, []).append(index)
    ready = [rule.left for rule, number in zip(hrg.rules, missing, strict=True) if number == 0]
    while ready:
        name = ready.pop()
        if name in productive:
            continue
        productive.add(name)
        for index in waiting.get(name, ()):
            missing[index] -= 1
            if missing[index] == 0:
                ready.append(hrg.rules[index].left)
    return [label.name for label in hrg.labels if not label.is_terminal and label.name not in productive]


def unreachable(hrg: HRG, without: Container[str] = ()) -> list[str]:
    """The nonterminals that no derivation from the start symbol names, by rules that name none of `without`. Linear."""
    reached: set[str] = set()
    ahead = [hrg.start]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            for rule in hrg.rules_of(name):
                named = [edge.label for edge in hrg.nonterminal_edges(rule)]
                ahead += [] if any(label in without for label in named) else named
    return [label.name for label in hrg.labels if not label.is_terminal and label.name not in reached]


def derivable(hrg: HRG) -> HRG:
    """The structure without what takes part in no derivation; it may have no rule left."""
    barren = set(unproductive(hrg))
    rules = tuple(r for r in hrg.rules if r.left not in barren and not barren & {e.label for e in r.right.edges})
    lost = set(unreachable(hrg, without=barren))
    rules = tuple(rule for rule in rules if rule.left not in lost)
    used = {edge.label for rule in rules for edge in rule.right.edges} | {hrg.start}
    if len(rules) == len(hrg.rules) and len(used) == len(hrg.labels):
        return hrg
    return HRG(hrg.domains, tuple(label for label in hrg.labels if label.name in used), rules, hrg.start)


def pruned(grammar: Grammar) -> Grammar:
    """The grammar without what takes part in no derivation; sums stay the same."""
    hrg = derivable(grammar.hrg)
    if not hrg.rules:
        raise DomainError(
            f"The start symbol {hrg.start!r} derives nothing: its derivations go on for ever or name a symbol without "
            "rules.\n  Give each recursive nonterminal a rule that ends."
        )
    kept = {label.name for label in hrg.labels}
    factors = {name: f for name, f in grammar.factors.items() if name in kept}
    return Grammar(hrg, factors, grammar.observed, {k: x for k, x in grammar.written.items() if k in kept})
