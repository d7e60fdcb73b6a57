"""Sums of recursive grammars, of infinitely many derivations: the least solution of psi = F(psi), by Newton's method.

Nonterminals that need each other are solved together, what they need before them. From 0 Newton's iterates rise to the
least solution wherever there is one; where the sum is infinite they cannot, and that is raised. Read next:
`fgg/fragments.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.fgg.fragments import observed_values, rule_sum
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Rule
from rankfold.fgg.schedule import productive_rules
from rankfold.fgg.semirings import REAL, SUPPORT, Arithmetic

STEPS = 200  # at a double root, the worst case, each step still halves the distance: 53 reach float64's last digit

Values = dict[str, Tensor]


def fixed_point(g: Grammar, weights: Mapping[str, Tensor]) -> Tensor:  # "b"   float64
    """The sum over all derivations of a grammar that may be recursive, for each sentence; `weights`: its factors.

    Differentiable once (by the implicit function). Raises `DomainError` where the sum is infinite. Cost: for each set
    of nonterminals that need each other, n numbers in all, a few steps of n contractions and n^3. Source: Etessami,
    Yannakakis 2009; Esparza, Kiefer, Luttenberger 2010; Chiang and Riley 2020, section 5.
    """
    wide = {label: x.double() for label, x in weights.items()}
    return torch.stack([_sentence(g, wide, sentence) for sentence in range(g.batch or 1)])


def _sentence(g: Grammar, weights: Mapping[str, Tensor], sentence: int) -> Tensor:
    rules = productive_rules(g.hrg)
    psi: Values = {}
    for names in components(g.hrg, rules):
        own = {name: rules[name] for name in names}
        if len(names) == 1 and not any(
            e.label == names[0] for rule in own[names[0]] for e in g.hrg.nonterminal_edges(rule)
        ):
            psi |= _apply(g, own, weights, psi, sentence, REAL)
        else:
            psi |= _solve(g, own, weights, psi, sentence)
    return psi[g.start]


def _apply(
    g: Grammar,
    rules: Mapping[str, tuple[Rule, ...]],
    weights: Mapping[str, Tensor],
    psi: Mapping[str, Tensor],
    sentence: int,
    arithmetic: Arithmetic,
) -> Values:
    """One use of every rule (equations 3 and 4)."""
    found: Values = {}
    like = next(iter(weights.values()))
    for name, own in rules.items():
        total = like.new_zeros([g.size(domain) for domain in g.label(name).type])
        for rule in own:
            values = observed_values(g, rule, sentence)
            total = arithmetic.add(
                total, rule_sum(g, rule, rule.right.externals, values, weights, psi, sentence, arithmetic)
            )
        found[name] = total
    return found


def _solve(
    g: Grammar, rules: Mapping[str, tuple[Rule, ...]], weights: Mapping[str, Tensor], below: Values, sentence: int
) -> Values:
    """The least solution for nonterminals that need each other, given those below."""
    like = next(iter(weights.values()))
    shapes = {name: [g.size(domain) for domain in g.label(name).type] for name in rules}

    def unpacked(x: Tensor) -> Values:
        parts = torch.split_with_sizes(x, [math.prod(shape) for shape in shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def packed(values: Values) -> Tensor:
        return torch.cat([values[name].reshape(-1) for name in shapes])

    def step(x: Tensor, tensors: Mapping[str, Tensor] = weights, lower: Values = below) -> Tensor:
        return packed(_apply(g, rules, tensors, {**lower, **unpacked(x)}, sentence, REAL))

    with torch.no_grad():
        fixed = {label: x.detach() for label, x in weights.items()}
        under = {name: x.detach() for name, x in below.items()}
        ones = {label: SUPPORT.lift(x) for label, x in fixed.items()}
        lower = {name: SUPPORT.lift(x) for name, x in under.items()}
        has = like.new_zeros(sum(math.prod(shape) for shape in shapes.values()))
        while True:  # entries that are 0 for ever have no part in the system: there it may be singular
            new = packed(_apply(g, rules, ones, {**lower, **unpacked(has)}, sentence, SUPPORT))
            if bool((new == has).all()):
                break
            has = new
        kept = has.nonzero()[:, 0]
        names = ", ".join(list(rules)[:4])
        solution, jacobian = _newton(lambda x: step(x, fixed, under), like.new_zeros(len(has)).detach(), kept, names)
    once = step(solution)
    if not once.requires_grad:
        return unpacked(solution)
    # At the solution F(psi) - psi is 0; its derivative by the factors, through the system, is that of the solution.
    residual = (once - solution).index_select(0, kept)
    change = torch.linalg.solve(torch.eye(len(kept), dtype=like.dtype, device=like.device) - jacobian, residual)
    return unpacked(solution.index_add(0, kept, change))


def _newton(step: Callable[[Tensor], Tensor], x: Tensor, kept: Tensor, names: str) -> tuple[Tensor, Tensor]:
    """The least solution of x = step(x) and the derivative of step there, among the entries that are kept."""
    eye = torch.eye(len(kept), dtype=x.dtype, device=x.device)
    eps = torch.finfo(x.dtype).eps
    for _ in range(STEPS):
        jacobian = _jacobian(step, x).index_select(0, kept).index_select(1, kept)
        residual = (step(x) - x).index_select(0, kept)
        here = x.index_select(0, kept)
        if bool((residual.abs() <= 4 * eps * here).all()) and bool((here > 0).all()):
            return x, jacobian
        change, info = torch.linalg.solve_ex(eye - jacobian, residual)
        # Below the least solution I - J is an M-matrix: its inverse has no negative entry, so no iterate ever falls.
        finite = bool(torch.isfinite(change).all()) and int(info) == 0
        if not finite or bool((change < -64 * eps * (here + change.abs().amax())).any()):
            raise infinite(names)
        if bool((change.abs() <= 2 * eps * here).all()):
            return x, jacobian
        x = x.index_add(0, kept, torch.maximum(change, torch.zeros_like(change)))
    raise infinite(names)


def _jacobian(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # "n" -> "n n"
    with torch.enable_grad():
        found = torch.autograd.functional.jacobian(step, x.detach())  # type: ignore[no-untyped-call]
    assert isinstance(found, Tensor)
    return found


def infinite(names: str) -> DomainError:
    """The error of a sum without bound."""
    return DomainError(
        f"The sum is infinite: the weights of derivations of {names} grow faster than they fall.\n"
        "  Lower the weights of rules that come back to them (probabilities of alternatives sum to at most 1), or "
        "conjoin with a query of bounded length."
    )


def components(hrg: HRG, rules: Mapping[str, tuple[Rule, ...]]) -> list[list[str]]:
    """Sets of nonterminals that need each other, each after all it needs (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    needs = {
        name: list(dict.fromkeys(e.label for rule in own for e in hrg.nonterminal_edges(rule)))
        for name, own in rules.items()
    }
    for root in rules:
        if root in index:
            continue
        path = [(root, iter(needs[root]))]
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
                    cut = stack.index(name)
                    found.append(stack[cut:])
                    for member in stack[cut:]:
                        low[member] = len(rules)  # done: no longer on the stack
                    del stack[cut:]
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                path.append((child, iter(needs[child])))
            elif child in stack:
                low[name] = min(low[name], index[child])
    return found
