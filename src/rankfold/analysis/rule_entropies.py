"""Entropies of a grammar's rules, and the share of each kind of children: nonterminals (N) and preterminals (P).

Shares are exact sums of the factors; an entropy of rules with ranks has no such form, and visits all pairs of children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankfold.analysis.state_profiles import Floats, Ints
from rankfold.analysis.symbol_profiles import parent_rules
from rankfold.errors import DomainError
from rankfold.models.pcfg import GrammarParts
from rankfold.operators.binary import BinaryOperator

KINDS = ("NN", "NP", "PN", "PP")  # left and right child


class RuleEntropies(NamedTuple):
    """One row for each of `parents`, in their order."""

    parents: Ints  # "k"
    entropy: Floats  # "k"    of p(left, right | parent), in nats
    kinds: Floats  # "k 4"    p(kind of children | parent), in the order of KINDS; rows sum to 1


def some_parents(num_nonterminals: int, num: int, *, seed: int = 0) -> list[int]:
    """So many nonterminals drawn without replacement, in order; all of them where there are no more."""
    if num < 1:
        raise DomainError(f"{num} parents were asked for, but at least 1 is needed.")
    if num >= num_nonterminals:
        return list(range(num_nonterminals))
    order = torch.randperm(num_nonterminals, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:num].tolist())


def rule_entropies(parts: GrammarParts, parents: Sequence[int]) -> RuleEntropies:
    """H(p(left, right | parent)) and the shares of the kinds of children, of some nonterminals.

    Cost: (n + p)^2 r for each parent, n + p where children are independent; never the table of all parents.
    """
    num = len(parts.log_root)
    for parent in parents:
        if not 0 <= parent < num:
            raise DomainError(f"there is no nonterminal {parent}: this grammar has 0 to {num - 1}.")
    index = torch.tensor(list(parents), dtype=torch.int64, device=parts.log_root.device)
    entropy = torch.zeros(len(index), dtype=torch.float64, device=index.device)
    kinds = []
    with torch.no_grad():
        for rule in parts.rules:
            found, mass = _of_rule(rule, index)
            entropy += found
            kinds.append(mass)
    return RuleEntropies(np.array(list(parents)), entropy.cpu().numpy(), torch.stack(kinds, 1).cpu().numpy())


def _of_rule(rule: BinaryOperator, index: Tensor) -> tuple[Tensor, Tensor]:  # "k", "k"
    """-sum p log p over the pairs of children of one kind, and their mass, by parent."""
    if rule.cpd is not None and rule.cpd[0] is None:  # p = l r: -sum p log p = sum(r) H(l) + sum(l) H(r)
        scale = torch.as_tensor(rule.log_scale, dtype=torch.float64).exp().to(index.device)
        left, right = (factor.linear.double()[:, index] for factor in rule.cpd[1:] if factor is not None)
        left = left * scale
        totals, parts = (left.sum(0), right.sum(0)), (torch.special.entr(x).sum(0) for x in (left, right))
        own, other = parts
        return totals[1] * own + totals[0] * other, totals[0] * totals[1]
    entropies, masses = [], []
    for parent in index.tolist():
        entropy = mass = torch.zeros((), dtype=torch.float64, device=index.device)
        for _, block in parent_rules(rule, parent):
            entropy = entropy + torch.special.entr(block).sum()
            mass = mass + block.sum()
        entropies.append(entropy)
        masses.append(mass)
    return torch.stack(entropies), torch.stack(masses)
