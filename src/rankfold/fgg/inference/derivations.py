"""Derivations with the values of their nodes: the best one, and exact samples of the posterior.

Both go down from the start symbol through a table of sums (or maxima), and choose at each nonterminal a rule, then the
values of its inner nodes one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.fgg.contraction import LOGS, MAX, Semiring
from rankfold.fgg.dependencies import productive_rules
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Derivation, Rule
from rankfold.fgg.inference.executor import Execution
from rankfold.fgg.inference.operands import log_weight_at, observed_values, rule_sum
from rankfold.fgg.inference.solve import solve, solve_plain, weights_of
from rankfold.fgg.rewrite.merge import recompose
from rankfold.numerics.log_space import log_weights, pick

Choose = Callable[[Tensor], int]


def best(g: Grammar) -> Derivation | list[Derivation]:
    """The derivation with values of the largest weight, one per sentence; ties go to the first rule and value.

    Its `log_weight` is `sum_product(g, "max")`. Raises where nothing has weight. Cost: a pass of maxima, as many
    operations as a sum takes without matrix products, then for every rule of every nonterminal on the way one
    contraction. Factors given by ranks are multiplied out first; a grammar in rank space is refused.
    """
    g = recompose(g.plain(), "the best derivation")
    return _one_or_all(g, _Descent(g, solve_plain(g, MAX), MAX, lambda x: int(x.argmax())))


def sample(g: Grammar, *, generator: torch.Generator) -> Derivation | list[Derivation]:
    """A derivation with values, drawn with the probability its weight has in the sum; one for each sentence of a batch.

    Raises where nothing has weight. Cost: a sum, then for every rule of every nonterminal on the way one contraction.
    In a grammar with ranks the values are those of ranks.
    """
    with torch.no_grad():
        g = g.plain()
        return _one_or_all(g, _Descent(g, solve(g), LOGS, lambda log_x: int(pick(log_x[None], generator))))


def _one_or_all(g: Grammar, descent: _Descent) -> Derivation | list[Derivation]:
    if g.batch is None:
        return descent.of(0)
    return [descent.of(sentence) for sentence in range(g.batch)]


class _Descent:
    """The way down one table, with one way to choose."""

    @torch.no_grad()
    def __init__(self, g: Grammar, run: Execution, arithmetic: Semiring, choose: Choose) -> None:
        self.g, self.arithmetic, self.choose = g, arithmetic, choose
        self.rules = productive_rules(g.hrg)
        self.log_factors = {label: log_weights(x.double()) for label, x in weights_of(g, run.schedule).items()}
        self.tables: dict[str, Tensor] = {}  # "b ..." by nonterminal
        for table, names in run.schedule.tables.items():
            for k, block in enumerate(run.blocks[table]):
                log_block = block.double()
                if run.arithmetic.is_scaled:
                    scale = run.scaling.scales[table][k]
                    log_block = log_weights(log_block) + scale.reshape(*scale.shape, *[1] * (block.ndim - 2))
                for row, log_row in enumerate(log_block):
                    self.tables[names[run.begins[table][k] + row]] = log_row

    @torch.no_grad()
    def of(self, sentence: int) -> Derivation:
        """The derivation of one sentence."""
        start = self.g.start
        if not float(self.tables[start][sentence]) > float("-inf"):
            which = "" if self.g.batch is None else f" of sentence {sentence}"
            raise DomainError(
                f"No derivation{which} has any weight.\n  Look for words, rules or factors of weight zero."
            )
        chosen: list[tuple[Rule, dict[str, int]]] = []
        below: list[list[int]] = []
        ahead: list[tuple[str, tuple[int, ...], int]] = [(start, (), -1)]
        while ahead:
            label, values, parent = ahead.pop()
            rule, inside = self.rule_of(label, values, sentence)
            here = len(chosen)
            chosen.append((rule, inside))
            below.append([])
            if parent >= 0:
                below[parent].append(here)
            edges = self.g.hrg.nonterminal_edges(rule)
            ahead += [(e.label, tuple(inside[name] for name in e.nodes), here) for e in reversed(edges)]
        made: dict[int, Derivation] = {}
        weights: dict[int, float] = {}
        for k in reversed(range(len(chosen))):
            rule, inside = chosen[k]
            children = tuple(made.pop(child) for child in below[k])
            own = log_weight_at(self.g, rule, inside, self.log_factors, sentence)
            weights[k] = own + sum(weights[child] for child in below[k])
            made[k] = Derivation(rule.name, inside, children, weights[k])
        return made[0]

    def rule_of(self, label: str, external: tuple[int, ...], sentence: int) -> tuple[Rule, dict[str, int]]:
        """A rule for a nonterminal with these values, and the values of all its nodes."""
        rules = self.rules[label]
        children = {
            e.label: self.tables[e.label][sentence] for rule in rules for e in self.g.hrg.nonterminal_edges(rule)
        }
        held = [
            {**observed_values(self.g, rule, sentence), **dict(zip(rule.right.externals, external, strict=True))}
            for rule in rules
        ]
        scores = [self.score(rule, (), values, children, sentence) for rule, values in zip(rules, held, strict=True)]
        which = self.choose(torch.stack(scores))
        rule, values = rules[which], held[which]
        for node in rule.right.nodes:
            if node.name not in values:
                values[node.name] = self.choose(self.score(rule, (node.name,), values, children, sentence))
        return rule, values

    def score(
        self, rule: Rule, output: tuple[str, ...], values: dict[str, int], children: dict[str, Tensor], sentence: int
    ) -> Tensor:
        return rule_sum(self.g, rule, output, values, self.log_factors, children, sentence, self.arithmetic)
