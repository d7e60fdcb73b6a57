"""The potentials of trees, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from rankfold.errors import ShapeError, expect, expect_logs, same_kind
from rankfold.operators.binary import Branch, expect_branch
from rankfold.recursions.problem import Problem, expect_end, validate_lengths, validates


class TreePotentials(NamedTuple):
    """The weights of all labelled binary trees over each sentence.

        weight(tree) = root[top label]  prod_spans rules[parent, left, right] span[i, j]  prod_words leaf_t[label]

    Leaves have symbols of their own (p), spans of two words and more others (n). `log_span[i, j]` weighs the span of
    words i..j-1, whatever its label: -inf forbids a bracket, and its gradient is the bracket's posterior. A sentence of
    one word has no span: `log_root_leaf` is its root, None gives it no weight. Words beyond a length are never used.
    """

    log_leaf: Tensor  # "b t p"
    rules: Branch
    log_root: Tensor  # "n" or "b n"
    log_root_leaf: Tensor | None = None  # "p" or "b p"; None: sentences of one word are impossible
    log_span: Tensor | None = None  # "b t+1 t+1"; None means zeros
    lengths: Tensor | None = None  # "b" integers; None means all of t


@dataclass(frozen=True, eq=False)
class Forest(Problem):
    """Validated potentials of trees."""

    log_leaf: Tensor  # "b t p"
    rules: Branch
    log_root: Tensor  # "b n"
    log_root_leaf: Tensor  # "b p"
    log_span: Tensor  # "b t+1 t+1"

    fields = ("log_leaf", "log_root", "log_root_leaf", "log_span")

    @property
    def positions(self) -> Tensor:  # "b t p"
        """log_leaf."""
        return self.log_leaf

    def factors(self) -> tuple[Tensor, ...]:
        """The factors of the rules, each once, in order of their first appearance."""
        return tuple({id(x): x for x in self.rules.factors()}.values())

    def linear_factors(self) -> tuple[Tensor, ...]:
        """The factors of the rules that are weights, not logarithms of weights."""
        pairs = ((x, log) for rule in self.rules for x, log in zip(rule.factors(), rule.log_factors, strict=True))
        return tuple({id(x): x for x, is_log in pairs if not is_log}.values())

    def with_factors(self, *factors: Tensor) -> Forest:
        """The same forest with other rules; factors that rules share stay shared."""
        new = {id(old): factor for old, factor in zip(self.factors(), factors, strict=True)}
        return self.replace(rules=self.rules.with_factors(*(new[id(old)] for old in self.rules.factors())))

    def take(self, index: Tensor) -> Forest:  # "k"
        """Some of the sentences; differentiable. Factors that rules share stay shared."""
        taken = (factor for rule in self.rules for factor in rule.take(index).factors())
        new = {id(old): factor for old, factor in zip(self.rules.factors(), taken, strict=True)}
        return super().take(index).with_factors(*(new[id(old)] for old in self.factors()))


TreeLike = TreePotentials | Forest


@validates(TreePotentials, Forest)
def validate(p: TreePotentials) -> Forest:
    """The potentials, completed; raises on any shape, dtype, device or value that does not fit."""
    num_spans, num_leaves = expect_branch(p.rules)
    expect(
        p.log_leaf,
        "b t p",
        name="log_leaf",
        p=num_leaves,
        hint=f"The rules have {num_leaves} symbols of leaves. For one sentence add a batch axis: log_leaf[None].",
    )
    num, num_words, _ = p.log_leaf.shape
    for name, rule in zip(p.rules._fields, p.rules, strict=True):
        if rule.batch not in (None, num):
            raise ShapeError(f"{name} has rules for {rule.batch} sentences, but there are {num}.")
    ends: dict[str, Tensor] = {"log_root": p.log_root}
    expect_end(p.log_root, "log_root", "n", num, num_spans)
    if p.log_root_leaf is not None:
        expect_end(p.log_root_leaf, "log_root_leaf", "p", num, num_leaves)
        ends["log_root_leaf"] = p.log_root_leaf
    if p.log_span is not None:
        edge = num_words + 1
        if not isinstance(p.log_span, Tensor) or p.log_span.shape != (num, edge, edge):
            came = tuple(p.log_span.shape) if isinstance(p.log_span, Tensor) else type(p.log_span).__name__
            raise ShapeError(
                f'log_span is {came}, but "b t+1 t+1" was expected, {(num, edge, edge)}.\n'
                "  Entry [i, j] weighs the span of words i..j-1."
            )
        ends["log_span"] = p.log_span
    factors = {f"rule factor {i}": factor for i, factor in enumerate(p.rules.factors())}
    same_kind(p.log_leaf, "log_leaf", {**ends, **factors})
    lengths, ragged = validate_lengths(p.lengths, num, num_words, p.log_leaf)
    nothing = p.log_leaf.new_full((), float("-inf"))
    forest = Forest(
        lengths,
        ragged,
        p.log_leaf,
        p.rules,
        p.log_root.expand(num, num_spans),
        (nothing if p.log_root_leaf is None else p.log_root_leaf).expand(num, num_leaves),
        p.log_leaf.new_zeros(()).expand(num, num_words + 1, num_words + 1) if p.log_span is None else p.log_span,
    )
    for name, end in ends.items():
        expect_logs(end, name=name)
    expect_logs(p.log_leaf, name="log_leaf", inside=forest.inside() if ragged else None)
    return forest
