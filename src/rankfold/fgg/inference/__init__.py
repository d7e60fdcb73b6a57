"""The sum-product of a grammar (equation 2): the total weight of all derivations and all values of their nodes.

Order (`schedule`), one pass (`operands`, `executor`), fallback to wider arithmetic (`solve`), recursive grammars
(`fixed_point`), gradients at weights of 0 (`zero_gradients`). Other questions: `counting`, `marginals`, `derivations`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.fgg.contraction import LOGS, MAX
from rankfold.fgg.dependencies import cycle, productive_rules
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.inference.counting import count
from rankfold.fgg.inference.fixed_point import fixed_point, max_rounds
from rankfold.fgg.inference.solve import log_z_of, solve, solve_plain, tensors_of, z_of
from rankfold.fgg.inference.zero_gradients import add_zero_gradients, mend_overflow
from rankfold.fgg.rewrite.merge import recompose
from rankfold.numerics.log_space import log_weights

SemiringName = Literal["real", "log", "max", "counting"]
INT64 = 2**63


def sum_product(g: Grammar, semiring: SemiringName = "log") -> Tensor:  # "" or "b"
    """The sum over all derivations and assignments of the product of their factors, in one of four semirings.

    - "log": log Z, float64. Products are scaled, in the factors' dtype; where an entry may have lost digits,
      by underflow that no factor of exactly 0 explains or because a sum came near the largest number, the sum is
      repeated in float64, then with long rules taken apart, then in logarithms. -inf means
      that nothing has weight, with zero gradients.
    - "real": Z itself, by the same sums; 0 or infinite where the factors' dtype has no number for it.
    - "max": the logarithm of the largest weight of any derivation with an assignment. Not differentiable; see `best`.
    - "counting": how many derivations with an assignment have any weight, exactly, int64; see `count` beyond 2^63.

    Differentiable ("log", "real") in every factor, right where weights are exactly 0, and twice (in logarithms not at
    such weights: `UnsupportedError`). Recursive grammars, too, but for "counting": once differentiable (`fixed_point`).
    Cost: `cost(g)`. Memory: a row for every nonterminal of the query, and for gradients what was read of them. Source:
    Chiang and Riley 2020, theorem 15; equations 3 and 4 of Yang, Liu, Tu 2022.
    """
    if semiring not in get_args(SemiringName):
        raise UnsupportedError(
            f"semiring={semiring!r} is unknown; there are {', '.join(map(repr, get_args(SemiringName)))}."
        )
    if semiring == "counting":
        counts = count(g)
        top = max(counts) if isinstance(counts, list) else counts
        if top >= INT64:
            raise DomainError(f"The count is {top}, beyond int64.\n  `count(g)` gives it as a Python integer.")
        return torch.tensor(counts, device=g.device)
    if semiring == "max":
        g = recompose(g, "the maximum")
        if cycle(g.hrg):
            return _per_sentence(g, max_rounds(g, _factors_in_use(g))[0][g.start][-1])
        return _per_sentence(g, solve_plain(g, MAX).start()[0])
    if cycle(g.hrg):
        value, scale = fixed_point(g, _factors_in_use(g))
        return _per_sentence(g, value * torch.exp(scale) if semiring == "real" else log_weights(value) + scale)
    run = solve(g, is_packed=True)
    value = z_of(run) if semiring == "real" else log_z_of(run)
    is_log = semiring == "log"
    if run.arithmetic is LOGS:
        value = add_zero_gradients(value, run, is_log=is_log)
    elif run.scaling.has_nothing or (not is_log and run.sound is None):
        mend_overflow(value, run, is_log=is_log)
    return _per_sentence(g, value)


def _factors_in_use(g: Grammar) -> dict[str, Tensor]:
    """The factors that take part in a derivation."""
    rules = [rule for own in productive_rules(g.hrg).values() for rule in own]
    return tensors_of(g, dict.fromkeys(edge.label for rule in rules for edge in g.hrg.terminal_edges(rule)))


def _per_sentence(g: Grammar, x: Tensor) -> Tensor:  # "b" -> "" where the grammar has no batch
    return x if g.batch is not None else x[0]
