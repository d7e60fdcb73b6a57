"""What a grammar costs to sum and what rank space would win, rule by rule, in letters and numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import torch

from rankfold.errors import UnsupportedError
from rankfold.fgg.cost import Cost, cost
from rankfold.fgg.dependencies import cycle
from rankfold.fgg.factors import Factor, Factored
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import is_inclusion
from rankfold.fgg.hypergraph import Rule
from rankfold.fgg.inference.schedule import schedule
from rankfold.fgg.language.text import format_rule
from rankfold.fgg.rewrite.conjoin import conjoin
from rankfold.fgg.rewrite.decompose import decompose
from rankfold.fgg.rewrite.query import string_query
from rankfold.fgg.rewrite.rank_space import rank_space

WRITTEN, RANKED = "as written", "in rank space"
SHORT, LONG = 8, 16  # lengths whose numbers of uses tell the power of the length


def explain(g: Grammar, length: int | None = None, *, batch: int = 1, rank: int | None = None) -> str:
    """The rules as written and in rank space, their cost in letters of the domains and in numbers, and what was won.

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
