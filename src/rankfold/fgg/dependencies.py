"""Which nonterminals need which: reachable and productive ones, and cycles of nonterminals.

The rules of a nonterminal need the nonterminals of their right sides. All of this is linear in the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from rankfold.errors import DomainError
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Rule


def needs(hrg: HRG, rules: Iterable[Rule]) -> list[str]:
    """The nonterminals that rules name, each once."""
    return list(dict.fromkeys(edge.label for rule in rules for edge in hrg.nonterminal_edges(rule)))


def productive(hrg: HRG) -> set[str]:
    """The nonterminals that derive a factor graph: some rule needs none but such nonterminals."""
    children = {rule.name: needs(hrg, [rule]) for rule in hrg.rules}
    missing = {name: len(own) for name, own in children.items()}
    parents: dict[str, list[Rule]] = {}
    for rule in hrg.rules:
        for label in children[rule.name]:
            parents.setdefault(label, []).append(rule)
    found: set[str] = set()
    ahead = [rule.left for rule in hrg.rules if not missing[rule.name]]
    while ahead:
        label = ahead.pop()
        if label not in found:
            found.add(label)
            for rule in parents.get(label, ()):
                missing[rule.name] -= 1
                ahead += [] if missing[rule.name] else [rule.left]
    return found


def unproductive(hrg: HRG) -> list[str]:
    """The nonterminals that derive no factor graph: every rule needs another such nonterminal."""
    own = productive(hrg)
    return [label.name for label in hrg.labels if not label.is_terminal and label.name not in own]


def unreachable(hrg: HRG) -> list[str]:
    """The nonterminals that no derivation from the start symbol names."""
    reached: set[str] = set()
    ahead = [hrg.start]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += needs(hrg, hrg.rules_of(name))
    return [label.name for label in hrg.labels if not label.is_terminal and label.name not in reached]


def productive_rules(hrg: HRG) -> dict[str, tuple[Rule, ...]]:
    """The rules that take part in a derivation, by nonterminal."""
    own = productive(hrg)
    found: dict[str, tuple[Rule, ...]] = {}
    ahead = [hrg.start]
    while ahead:
        label = ahead.pop()
        if label not in found:
            found[label] = tuple(rule for rule in hrg.rules_of(label) if own.issuperset(needs(hrg, [rule])))
            ahead += [edge.label for rule in found[label] for edge in hrg.nonterminal_edges(rule)]
    return found


def derivable(hrg: HRG) -> HRG:
    """The structure without rules and labels of no derivation; it may have no rule left."""
    taken = {rule.name for own in productive_rules(hrg).values() for rule in own}
    rules = tuple(rule for rule in hrg.rules if rule.name in taken)
    used = {edge.label for rule in rules for edge in rule.right.edges} | {hrg.start}
    if len(rules) == len(hrg.rules) and len(used) == len(hrg.labels):
        return hrg
    return HRG(hrg.domains, tuple(label for label in hrg.labels if label.name in used), rules, hrg.start)


def pruned(grammar: Grammar) -> Grammar:
    """The grammar without rules and labels of no derivation; sums stay the same."""
    hrg = derivable(grammar.hrg)
    if not hrg.rules:
        raise DomainError(
            f"The start symbol {hrg.start!r} derives nothing: its derivations go on for ever or name a symbol without "
            "rules.\n  Give each recursive nonterminal a rule that ends."
        )
    used = {label.name for label in hrg.labels}
    factors = {name: factor for name, factor in grammar.factors.items() if name in used}
    return Grammar(hrg, factors, grammar.observed, {k: x for k, x in grammar.written.items() if k in used})


def components(hrg: HRG, rules: Mapping[str, tuple[Rule, ...]]) -> list[list[str]]:
    """Sets of nonterminals that need each other, each after all it needs (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    done = len(rules)  # above all indices: no longer on the stack
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in rules:
        if root in index:
            continue
        path = [(root, iter(needs(hrg, rules[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while path:
            name, rest = path[-1]
            child = next(rest, None)
            if child is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[name])
                if low[name] == index[name]:
                    members = [stack.pop()]
                    while members[-1] != name:
                        members.append(stack.pop())
                    low |= dict.fromkeys(members, done)
                    found.append(members[::-1])
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                path.append((child, iter(needs(hrg, rules[child]))))
            elif low[child] < done:
                low[name] = min(low[name], index[child])
    return found


@lru_cache(maxsize=256)
def cycle(hrg: HRG) -> tuple[str, ...]:
    """Nonterminals of which each needs the next and the last the first; empty for a grammar that is not recursive."""
    if hrg.has_spans:  # a span needs shorter ones
        return ()
    rules = productive_rules(hrg)
    for members in components(hrg, rules):
        path = [members[0]]
        while below := [name for name in needs(hrg, rules[path[-1]]) if name in members]:
            if below[0] in path:
                return tuple(path[path.index(below[0]) :])
            path.append(below[0])
    return ()


def cycle_text(hrg: HRG) -> str:
    """The cycle of a recursive grammar, as it is named in errors."""
    around = cycle(hrg)
    return " needs ".join((*around, around[0]))


def cycle_remedy(hrg: HRG) -> str:
    """What to do about nonterminals that need each other: ask a query, or, after one, mend the rules or the query."""
    if all(hrg.label(name).span is None for name in cycle(hrg)):
        return "Conjoin it with a query first: conjoin(g, string_query(words))."
    return (
        "The query leaves that cycle: remove rules that come back to a symbol and read no word on the way, or arcs of "
        "the query that come back to a state."
    )
