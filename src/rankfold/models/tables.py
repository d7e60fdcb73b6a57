"""Models from probabilities that are known: what their tables must be, and a grammar's written out.

Read next: `models/pcfg.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rankfold.errors import DomainError, ShapeError, UnsupportedError, expect, expect_weights, same_kind
from rankfold.operators import Branch
from rankfold.params.rules.softmax import to_dense

LARGEST = 2**28  # rules that are written out, 1 GiB in float32


class GrammarTables(NamedTuple):
    """A grammar as probabilities, nonterminals before preterminals."""

    root: Tensor  # "n", or "n+p" where a sentence may be one word
    rules: Tensor  # "n (n+p) (n+p)"   p(left, right | parent)
    emission: Tensor  # "p v"


def expect_distributions(table: Tensor, name: str) -> None:  # "... v"
    """Raise unless every row is non-negative and sums to 1."""
    expect_weights(table, name=name)
    rows = table.detach().reshape(-1, table.shape[-1])
    total = rows.double().sum(1)
    wrong = ((total - 1).abs() > 1e-4).nonzero()[:, 0]
    if len(wrong):
        where = f"row {int(wrong[0])} of {name}" if len(rows) > 1 else name
        raise DomainError(f"{where} sums to {float(total[wrong[0]]):.6g}, but probabilities sum to 1.")


def checked_grammar(root: Tensor, rules: Tensor | Branch, emission: Tensor) -> GrammarTables:
    """The tables of a grammar, whose sizes and sums fit together; rules by kind of child are written out."""
    if isinstance(rules, Branch):
        rules = to_dense(rules)
    if not isinstance(rules, Tensor):
        raise UnsupportedError(
            f'rules is a {type(rules).__name__}, but probabilities "n (n+p) (n+p)" or a rankfold.Branch were expected.'
        )
    expect(emission, "p v", name="emission")
    n, p = len(rules), len(emission)
    hint = "Children are nonterminals, then preterminals, which have a row of emission each."
    expect(rules, "n l r", name="rules", hint=hint, l=n + p, r=n + p)
    expect_root(root, n, p)
    same_kind(rules, "rules", {"root": root, "emission": emission})
    for name, table in (("root", root), ("rules", rules.flatten(1)), ("emission", emission)):
        expect_distributions(table, name)
    return GrammarTables(root, rules, emission)


def check_factors(root: Tensor, head: Tensor | None, left: Tensor, right: Tensor, emission: Tensor) -> None:
    """Raise unless these are a grammar with a rank between parents and children; no head: the identity."""
    expect(emission, "p v", name="emission")
    expect(left, "l k", name="left", hint="Nonterminals, then preterminals, for each rank.")
    p, (num_symbols, rank) = len(emission), left.shape
    n = rank if head is None else num_symbols - p
    expect(left, "l k", name="left", hint="Without a head every nonterminal is a rank.", l=n + p)
    expect(right, "l k", name="right", l=n + p, k=rank)
    named = {"left": left, "right": right, "emission": emission}
    if head is not None:
        expect(head, "n k", name="head", n=n, k=rank)
        expect_distributions(head, "head")
        named["head"] = head
    expect_root(root, n, p)
    same_kind(root, "root", named)
    for name, x in (("root", root), ("left", left.mT), ("right", right.mT), ("emission", emission)):
        expect_distributions(x, name if name in ("root", "emission") else f"{name}, transposed,")


def expect_root(root: Tensor, num_spans: int, num_leaves: int) -> None:
    """Raise unless this is one number for each nonterminal, or for each symbol."""
    n, p = num_spans, num_leaves
    expect(root, "n", name="root")
    if len(root) not in (n, n + p):
        raise ShapeError(
            f"root has {len(root)} entries, but there are {n} nonterminals and {p} preterminals.\n"
            f"  Give {n}, or {n + p} if a sentence may be one word."
        )


def expect_few_rules(num_spans: int, num_leaves: int) -> None:
    """Raise on a grammar that is too large to be written out."""
    n, p = num_spans, num_leaves
    if n * (n + p) ** 2 > LARGEST:
        raise UnsupportedError(
            f"{n:,} nonterminals and {p:,} preterminals have {n * (n + p) ** 2:,} rules, more than the {LARGEST:,} "
            "that are written out.\n  Ask the operators in model.parts().rules instead."
        )
