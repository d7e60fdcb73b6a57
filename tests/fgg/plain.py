"""Grammars as the enumeration wants them, random factors, and the grammars the tests share."""

from __future__ import annotations

import torch

from rankfold.fgg import Grammar, parse

PCFG = """
domain N = 2; domain P = 2; observed V = 3
factor rule: N, N+P, N+P
factor emit: P, V
S() -> root(n) X(n)
X(n: N) -> rule(n, l, r) Y(l) Y(r)
Y(y: N+P) -> X(y) | emit(y, w)
"""

HMM = """
domain Z = 2
observed V = "a" "b" "c"
S() -> initial(z) X(z)
X(z: Z) -> emit(z, w: V) next(z, y: Z) X(y) | emit(z, w)
"""


def random_factors(grammar: Grammar, *, seed: int = 0, batch: int = 1) -> Grammar:
    """The grammar with random factors in float64."""
    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for label in grammar.labels:
        if label.is_terminal and not label.name.startswith("in["):
            shape = [batch] * label.is_batched + [grammar.size(domain) for domain in label.type]
            factors[label.name] = torch.rand(shape, generator=generator, dtype=torch.float64)
    return grammar.with_factors(factors)


def example(text: str, *, seed: int = 0) -> Grammar:
    """The grammar of a text with random factors."""
    return random_factors(parse(text), seed=seed)


def plain(grammar: Grammar, sentence: int = 0):  # type: ignore[no-untyped-def]
    """Rules, factors and start symbol for `tests.oracles.fgg`, of one sentence of a batch."""
    rules = {label.name: [] for label in grammar.labels if not label.is_terminal}
    for rule in grammar.rules:
        observed = {}
        for node in rule.right.nodes:
            if isinstance(node.observed, tuple):
                table = grammar.observed[node.observed[0]]
                row = table if table.ndim == 1 else table[sentence]
                observed[node.name] = int(row[node.observed[1]])
            elif node.observed is not None:
                observed[node.name] = node.observed
        rules[rule.left].append(
            {
                "nodes": {node.name: grammar.size(node.domain) for node in rule.right.nodes},
                "externals": list(rule.right.externals),
                "edges": [(edge.label, list(edge.nodes)) for edge in rule.right.edges],
                "observed": observed,
            }
        )
    factors = {}
    for label in grammar.labels:
        if label.is_terminal:
            tensor = grammar.tensor(label.name)
            factors[label.name] = (tensor[sentence] if label.is_batched else tensor).tolist()
    return rules, factors, grammar.start
