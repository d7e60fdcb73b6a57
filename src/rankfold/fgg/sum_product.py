"""The sum-product of a grammar (equation 2): the total weight of all derivations and all assignments of values to
their nodes.

Read next: `fgg/marginals.py`, `fgg/derivations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rankfold.errors import DomainError, UnsupportedError, may_look, same_kind
from rankfold.fgg.cells import words_at
from rankfold.fgg.contraction import LOGS, MAX, SCALED, SUPPORT, Arithmetic, Linear, Step
from rankfold.fgg.dependencies import cycle, cycle_remedy, cycle_text, productive_rules
from rankfold.fgg.factors import Derived, Factored, Made, of_ranks, value_of
from rankfold.fgg.fixed_point import fixed_point
from rankfold.fgg.grammar import Grammar, check_weights, expect_one_batch
from rankfold.fgg.hrg import HRG
from rankfold.fgg.rewrite.merge import recompose
from rankfold.fgg.run import Run, Tapped
from rankfold.fgg.schedule import Schedule, schedule
from rankfold.fgg.zeros import with_finite, with_zeros
from rankfold.numerics.log_space import log_weights

Semiring = Literal["real", "log", "max", "counting"]
INT64 = 2**63
At = Mapping[int, Tensor]  # by place of a node, the entries wanted there


def sum_product(g: Grammar, semiring: Semiring = "log") -> Tensor:  # "" or "b"
    """The sum over all derivations and assignments of the product of their factors, in one of four semirings.

    - "log": log Z, float64. Products are scaled, in the factors' dtype; where an entry may have lost digits,
      by underflow that no factor of exactly 0 explains or because a sum came near the largest number, the sum is
      repeated in float64, then with long rules taken apart, then in logarithms. -inf means
      that nothing has weight, with zero gradients.
    - "real": Z itself, by the same sums; 0 or infinite where the factors' dtype has no number for it.
    - "max": the logarithm of the largest weight of any derivation with an assignment. Not differentiable; see `best`.
    - "counting": how many derivations with an assignment have any weight, exactly, int64; see `count` beyond 2^63.

    Differentiable ("log", "real") in every factor, right where weights are exactly 0, and twice (in logarithms not at
    such weights: `UnsupportedError`). Acyclic grammars, as
    they are after a query; for others see `fixed_point`. Cost: `cost(g)`. Memory: a row for every nonterminal of
    the query, and for gradients what was read of them. Source: Chiang and Riley 2020, theorem 15; equations 3 and 4
    of Yang, Liu, Tu 2022.
    """
    if semiring not in get_args(Semiring):
        raise UnsupportedError(
            f"semiring={semiring!r} is unknown; there are {', '.join(map(repr, get_args(Semiring)))}."
        )
    if semiring == "counting":
        counts = count(g)
        top = max(counts) if isinstance(counts, list) else counts
        if top >= INT64:
            raise DomainError(f"The count is {top}, beyond int64.\n  `count(g)` gives it as a Python integer.")
        return torch.tensor(counts, device=g.device)
    if semiring == "max":
        g = recompose(g, "the maximum")
        return _shaped(g, solve_plain(g, MAX).start()[0])
    if cycle(g.hrg):
        value, scale = fixed_point(g, tensors_of(g, labels_in_use(g.hrg)))
        return _shaped(g, value * torch.exp(scale) if semiring == "real" else log_weights(value) + scale)
    run = solve(g)
    value = z_of(run) if semiring == "real" else log_z_of(run)
    is_log = semiring == "log"
    if run.arithmetic is LOGS:
        value = with_zeros(value, run, is_log=is_log)
    elif run.scaling.has_nothing:
        with_finite(value, run, is_log=is_log)
    return _shaped(g, value)


def count(g: Grammar) -> int | list[int]:
    """How many derivations with an assignment have any weight, exactly, as Python integers: one, or one for each
    sentence.

    By residues modulo primes small enough that float64 holds every sum, as many as the logarithm of the count asks for.
    """
    g = recompose(g, "counting")
    _expect_finite(g, "counting")
    plan = schedule(g.hrg, is_cut=True)  # the shorter a sum, the larger the primes
    weights = {label: (x != 0).double() for label, x in weights_of(g, plan).items()}
    batch = g.batch or 1
    with torch.no_grad():
        log_counts = log_z_of(_sound(g, plan, weights, batch, ()))
        bits = max(0.0, float(log_counts.max()) / math.log(2.0))
        # Every number that is added up is below the modulus squared, and so many are added up at most:
        terms = max((_longest_sum(g, plan), 2.0))
        primes = _primes(math.isqrt(int(2**53 / terms)), bits + 2.0)
        residues = [_run(g, plan, _Counting(prime), weights, batch).start()[0].long().tolist() for prime in primes]
    counts = [_from_residues(found, primes) for found in zip(*residues, strict=True)]
    return counts if g.batch is not None else counts[0]


def solve(g: Grammar, tapped: Tapped = (), *, weights: dict[str, Tensor] | None = None) -> Run:
    """A sound pass in scaled arithmetic or, where there is none, in logarithms; autograd follows it."""
    plan = schedule(g.hrg, _whole(tapped))
    if weights is None:  # views: what is done to their gradients is done to no tensor of the caller's
        weights = {label: x.view_as(x) if x.requires_grad else x for label, x in _weights_at_cells(g, plan).items()}
    return _sound(g, plan, weights, g.batch or 1, tapped)


def solve_plain(g: Grammar, arithmetic: Arithmetic, tapped: Tapped = ()) -> Run:
    """A pass in this arithmetic."""
    plan = schedule(g.hrg)
    return _run(g, plan, arithmetic, _weights_at_cells(g, plan), g.batch or 1, tapped)


def log_z_of(run: Run) -> Tensor:  # "b"   float64
    """The logarithm of the start symbol's weight; NaN where a captured pass could not vouch for it."""
    value, scale = run.start()
    if run.arithmetic is LOGS:
        return value
    out = log_weights(value.double()) + scale
    if run.arithmetic.is_scaled and not may_look(value):
        return torch.where(run.scaling.is_sound(), out, float("nan"))
    return out


def z_of(run: Run) -> Tensor:  # "b"   in the factors' dtype
    """The start symbol's weight, which may be beyond the dtype's numbers: 0 or infinite."""
    value, scale = run.start()
    found = torch.exp(value) if run.arithmetic is LOGS else value.double() * torch.exp(scale)
    return found.to(run.grammar.dtype)


def weights_of(g: Grammar, plan: Schedule) -> dict[str, Tensor]:
    """The tensors of all factors that a schedule uses, each made once."""
    return tensors_of(g, dict.fromkeys(label for group in plan.groups() for label, _ in group.factors))


def _weights_at_cells(g: Grammar, plan: Schedule) -> dict[str, Tensor]:
    """The same, derived factors at the words of the query alone where that is less."""
    labels = dict.fromkeys(label for group in plan.groups() for label, _ in group.factors)
    return tensors_of(g, labels, words_at(g))


def tensors_of(g: Grammar, labels: Iterable[str], at: Mapping[str, At] | None = None) -> dict[str, Tensor]:
    """The tensors of these factors, each made once; raises unless they are of one dtype and device.

    `at`: derived factors of which only some entries are made, with the places and entries.
    """
    for table in g.hrg.cells.keys() - g.observed.keys():
        raise DomainError(
            f"Nodes are observed as {table}[0] and so on, but the grammar has no values {table!r}.\n"
            f"  Give them: with_observed({{{table!r}: ids}}), or `given {table} = [4, 0, 2]` in a text."
        )
    names = list(labels)
    made = Made()
    found = {label: tensor_of(g, label, made, (at or {}).get(label)) for label in names}
    _check_modules(g, found, made)
    if made.is_lost and found[names[0]].dtype != torch.float64:
        made = Made(torch.float64)
        found = {label: tensor_of(g, label, made, (at or {}).get(label)).double() for label in names}
    if made.is_lost:
        raise DomainError(
            "A factor that is made of others (by ranks, in rank space) leaves the range of float64.\n"
            "  Divide the factors it is made of by their largest entries, or ask the grammar it was made of."
        )
    expect_one_batch(g, found)
    if not found:
        return {"": torch.ones((), dtype=g.dtype, device=g.device)}
    first = next(iter(found))
    same_kind(found[first], f"factor {first!r}", {f"factor {label!r}": x for label, x in found.items()})
    return found


def labels_in_use(hrg: HRG) -> list[str]:
    """The factors of all rules that take part in a derivation."""
    rules = [rule for own in productive_rules(hrg).values() for rule in own]
    return list(dict.fromkeys(edge.label for rule in rules for edge in hrg.terminal_edges(rule)))


def _expect_finite(g: Grammar, what: str) -> None:
    if cycle(g.hrg):
        raise DomainError(
            f"The sum is infinite: {what} a grammar in which {cycle_text(g.hrg)} has no end.\n  {cycle_remedy(g.hrg)}"
        )


def tensor_of(g: Grammar, label: str, made: Made, at: At | None = None) -> Tensor:
    """A factor's tensor, or its entries `at` these; what `made` has is not computed again."""
    factor = g.factors.get(label)
    if isinstance(factor, Factored):
        return of_ranks(factor).value(made)
    if not isinstance(factor, Derived):
        return g.tensor(label)
    return factor.value(made, at) if at else value_of(factor, made)


def _check_modules(g: Grammar, labels: Iterable[str], made: Made) -> None:
    """Raise unless the modules that derived factors are made of gave weights; each is looked at once."""
    seen: set[int] = set()
    for label in labels:
        factor = g.factors.get(label)
        for module in _given_modules(factor) if isinstance(factor, Derived) else ():
            if id(module) in made and id(module) not in seen:
                check_weights(f"the module in factor {label!r}: entry", made[id(module)])
                seen.add(id(module))


def _given_modules(factor: Derived) -> Iterator[nn.Module]:
    """The modules that a derived factor is made of, down to those that are given."""
    for source in factor.sources:
        if isinstance(source, Derived):
            yield from _given_modules(source)
        elif isinstance(source, nn.Module):
            yield source


def _shaped(g: Grammar, x: Tensor) -> Tensor:  # "b" -> "" where the grammar has no batch
    return x if g.batch is not None else x[0]


def _run(
    g: Grammar, plan: Schedule, arithmetic: Arithmetic, weights: dict[str, Tensor], batch: int, tapped: Tapped = ()
) -> Run:
    return Run(g, plan, arithmetic, weights, batch, tapped).all()


def _sound(g: Grammar, plan: Schedule, weights: dict[str, Tensor], batch: int, tapped: Tapped) -> Run:
    """The first that loses nothing: the factors' dtype, float64, float64 with long rules taken apart, logarithms."""
    dtype = next(iter(weights.values())).dtype
    own = weights
    for kind in ("own", "wide", "cut"):
        if kind == "wide" and dtype == torch.float64:
            continue
        if kind == "wide":
            own = {label: x.double() for label, x in weights.items()}
        used = schedule(g.hrg, _whole(tapped), is_cut=True) if kind == "cut" else plan
        if kind == "cut" and len(used.hrg.rules) == len(plan.hrg.rules):
            break  # no rule is long
        run = _run(g, used, SCALED, own, batch, tapped)
        sound = run.scaling.is_sound()
        if not may_look(sound) or bool(sound):
            return run
        if _explained(run):
            run.scaling.has_nothing = True
            return run
    return _run(g, plan, LOGS, {label: x.double() for label, x in weights.items()}, batch, tapped)


def _whole(tapped: Tapped) -> frozenset[str]:
    """The rules of whose nodes something is asked."""
    return frozenset(rule for rule, node in tapped if node is not None)


@torch.no_grad()
def _explained(run: Run) -> bool:
    """Whether every entry that may have lost digits is 0 because of factors that are exactly 0."""
    if any(map(bool, run.scaling.lost)) or not bool(run.scaling.is_below()):
        return False
    here = _run(run.grammar, run.schedule, SUPPORT, {k: x.detach() for k, x in run.weights.items()}, run.batch)
    places = {(table, begin): k for table, begins in here.begins.items() for k, begin in enumerate(begins)}
    for table, begin, value, least in run.scaling.unscaled:
        top = value.amax(tuple(range(2, value.ndim)), keepdim=True) if value.ndim > 2 else value
        small = value < least * torch.maximum(top, torch.ones_like(top))
        if bool((small & (here.blocks[table][places[table, begin]] > 0)).any()):
            return False
    return True


def _longest_sum(g: Grammar, plan: Schedule) -> float:
    """No fewer than the terms of any sum in any step."""
    found = 1.0
    for group in plan.groups():
        sizes = [g.size(node.domain) for node in group.nodes if node.observed is None]
        found = max(found, math.prod(map(float, sizes)) * group.splits)
    return found


def _primes(below: int, bits: float) -> list[int]:
    """Primes, the largest below a number first, whose product has more than so many bits."""
    found: list[int] = []
    have, candidate = 0.0, below
    while have <= bits:
        candidate -= 1
        if candidate < 2:
            raise UnsupportedError("A fragment of this grammar is too large to be counted exactly.")
        if all(candidate % k for k in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
            have += math.log2(candidate)
    return found


def _from_residues(residues: tuple[int, ...], primes: list[int]) -> int:
    """The number below the product of the primes with these residues (Chinese remainder theorem)."""
    found, modulus = 0, 1
    for residue, prime in zip(residues, primes, strict=True):
        found += modulus * ((residue - found) * pow(modulus, -1, prime) % prime)
        modulus *= prime
    return found


class _Counting(Linear):
    """Counts modulo a number so small that float64 holds every sum of products exactly. Not differentiable."""

    def __init__(self, modulus: int) -> None:
        super().__init__(is_scaled=False)
        self.modulus = modulus

    def lift(self, weights: Tensor) -> Tensor:
        """1 where there is weight, in float64."""
        return (weights != 0).double()

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        """The counts of one step, reduced."""
        return super().product(step, left, right).remainder(self.modulus)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum, reduced."""
        return (left + right).remainder(self.modulus)
