"""Nonterminals that take part in no derivation: those never reached, and those that derive nothing."""

from __future__ import annotations

from rankfold.errors import DomainError
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG


def unproductive(hrg: HRG) -> list[str]:
    """The nonterminals that derive no factor graph: every rule needs another such nonterminal. Linear in the rules."""
    productive: set[str] = set()
    waiting: dict[str, list[list[object]]] = {}
    ready: list[str] = []
    for rule in hrg.rules:
        needs = {edge.label for edge in hrg.nonterminal_edges(rule)}
        entry: list[object] = [len(needs), rule.left]
        for name in needs:
            waiting.setdefault(name, []).append(entry)
        if not needs:
            ready.append(rule.left)
    while ready:
        name = ready.pop()
        if name in productive:
            continue
        productive.add(name)
        for entry in waiting.get(name, []):
            entry[0] = int(str(entry[0])) - 1
            if entry[0] == 0:
                ready.append(str(entry[1]))
    return [label.name for label in hrg.labels if not label.is_terminal and label.name not in productive]


def unreachable(hrg: HRG) -> list[str]:
    """The nonterminals that no derivation from the start symbol names. Linear in the rules."""
    reached: set[str] = set()
    ahead = [hrg.start]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += [edge.label for rule in hrg.rules_of(name) for edge in hrg.nonterminal_edges(rule)]
    return [label.name for label in hrg.labels if not label.is_terminal and label.name not in reached]


def derivable(hrg: HRG) -> HRG:
    """The structure without nonterminals, rules and labels that take part in no derivation; it may have no rule
    left."""
    barren = set(unproductive(hrg))
    rules = tuple(r for r in hrg.rules if r.left not in barren and not barren & {e.label for e in r.right.edges})
    lost = set(unreachable(HRG(hrg.domains, hrg.labels, rules, hrg.start)))
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
    return Grammar(hrg, {name: f for name, f in grammar.factors.items() if name in kept}, grammar.observed)
