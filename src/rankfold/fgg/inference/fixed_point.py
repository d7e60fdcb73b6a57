"""Sums of recursive grammars, of infinitely many derivations: the least solution of psi = F(psi), by Newton's method.

Nonterminals that need each other are solved together, after all others that they need, in logarithms: any range. From
below Newton's iterates increase to the least solution if there is one; an infinite sum has none, and raises. At the
solution one more use of every rule, in linear space where that loses nothing, gives the last digits and the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.fgg.contraction import LOGS, MAX, REAL, Semiring, num_terms, sound_level
from rankfold.fgg.dependencies import components, productive_rules
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Rule
from rankfold.fgg.inference.operands import observed_values, rule_sum

STEPS = 200  # at a double root, the worst case, each step still halves the distance: 53 reach float64's last digit
NOTHING = float("-inf")

Values = dict[str, Tensor]


def fixed_point(g: Grammar, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:  # "b" twice   float64
    """The sum over all derivations of a grammar that may be recursive, for each sentence, and the log of its scale.

    Differentiable once (by the implicit function). Raises `DomainError` where the sum is infinite, or so close to it
    that rounding decides. Cost: for each set of nonterminals that need each other, n numbers in all, a few steps of n
    contractions and n^3. Source: Etessami, Yannakakis 2009; Esparza, Kiefer, Luttenberger 2010; Chiang and Riley 2020,
    section 5.
    """
    wide = {label: x.double() for label, x in weights.items()}
    values, scales = zip(*(_sentence(g, wide, sentence) for sentence in range(g.batch or 1)), strict=True)
    return torch.stack(values), torch.stack(scales)


@torch.no_grad()
def log_tables(g: Grammar, weights: Mapping[str, Tensor]) -> Values:  # "b ..." each
    """The logarithms of the least fixed point of every nonterminal."""
    wide = {label: x.double() for label, x in weights.items()}
    each = [_log_psi(_systems(g, k), wide, _ScaledFactors.of(wide)) for k in range(g.batch or 1)]
    return {name: torch.stack([own[name] for own in each]) for name in each[0]}


@torch.no_grad()
def max_rounds(g: Grammar, weights: Mapping[str, Tensor]) -> tuple[Values, dict[str, list[str]]]:  # "row b ..." each
    """By nonterminal and t the logarithm of the largest weight of derivations at most t uses of its own kind deep.

    Row 0 has none, the last row is of all derivations. Also the nonterminals that each needs and is needed by. Raises
    where no depth is enough: an entry that comes back to itself gains weight. Without that the best derivation has no
    entry twice on a path, so that there are no more rounds than entries.
    """
    logs = {label: LOGS.lift(x.double()) for label, x in weights.items()}
    every = [_systems(g, k) for k in range(g.batch or 1)]
    found: Values = {}
    peers: dict[str, list[str]] = {}
    for systems in zip(*every, strict=True):
        names = list(systems[0].rules)
        peers |= dict.fromkeys(names, names if systems[0].is_recursive else [])
        here = {
            name: next(iter(logs.values())).new_full((len(every), *systems[0].shapes[name]), NOTHING) for name in names
        }
        rounds = [here]
        below = {name: x[-1] for name, x in found.items()}
        most = 2 + sum(x[0].numel() for x in here.values()) if systems[0].is_recursive else 1
        for _ in range(most):
            psi = {**below, **rounds[-1]}
            own = [
                system.apply(logs, system.select({name: x[k] for name, x in psi.items()}), MAX)
                for k, system in enumerate(systems)
            ]
            rounds.append({name: torch.stack([x[name] for x in own]) for name in names})
            if systems[0].is_recursive and not _grows(rounds[-2], rounds[-1]):
                break
        else:
            if systems[0].is_recursive:
                raise DomainError(
                    f"There is no best derivation: those of {', '.join(names[:4])} gain weight as they grow.\n"
                    "  Lower the weights of rules that come back to them, or conjoin with a query of bounded length."
                )
        found |= {name: torch.stack([x[name] for x in rounds]) for name in names}
    return found, peers


def _grows(old: Values, new: Values) -> bool:
    """Whether any logarithm grows, by more than its rounding."""
    eps = torch.finfo(torch.float64).eps
    return any(bool((new[k] > x + eps * (1 + torch.where(x.isinf(), 0.0, x.abs()))).any()) for k, x in old.items())


def _systems(g: Grammar, sentence: int) -> list[_System]:
    rules = productive_rules(g.hrg)
    return [_System(g, {name: rules[name] for name in names}, sentence) for names in components(g.hrg, rules)]


@torch.no_grad()
def _log_psi(systems: list[_System], weights: Mapping[str, Tensor], scaled: _ScaledFactors) -> Values:
    log_psi: Values = {}
    logs = {label: LOGS.lift(x) for label, x in weights.items()}
    for system in systems:
        below = system.select(log_psi)
        log_psi |= system.solve(logs, scaled, below) if system.is_recursive else system.apply(logs, below, LOGS)
    return log_psi


def _sentence(g: Grammar, weights: Mapping[str, Tensor], sentence: int) -> tuple[Tensor, Tensor]:
    systems, scaled = _systems(g, sentence), _ScaledFactors.of(weights)
    log_psi = _log_psi(systems, weights, scaled)
    scale = _scale(log_psi[g.start])
    psi: Values = {}
    for system in systems:
        refined = system.refine(scaled, system.select(psi), system.select(log_psi))
        if refined is None:
            break
        psi |= refined
    else:
        return psi[g.start], scale
    logs = {label: LOGS.lift(x) for label, x in weights.items()}
    whole: Values = {}
    for system in systems:
        whole |= system.refine_logs(logs, system.select(whole), log_psi)
    return torch.exp(whole[g.start] - scale), scale


def _scale(logs: Tensor) -> Tensor:  # ""
    """The largest of the logarithms; 0 where there is no weight."""
    top = logs.amax()
    return torch.where(top > NOTHING, top, 0.0)


@dataclass
class _ScaledFactors:
    """Factors divided by their largest entries, the logarithms of those, and whether no entry lost digits by it."""

    weights: Values
    scales: Values
    is_sound: bool

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> _ScaledFactors:
        """These factors, scaled."""
        scales = {label: _scale(LOGS.lift(x.detach())) for label, x in weights.items()}
        tops = {label: x.detach().amax() for label, x in weights.items()}
        found = {label: x / torch.where(tops[label] > 0, tops[label], 1.0) for label, x in weights.items()}
        tiny = torch.finfo(torch.float64).tiny
        return cls(found, scales, not any(bool(((found[k] < tiny) & (x > 0)).any()) for k, x in weights.items()))


@dataclass
class _System:
    """Nonterminals that need each other and their rules, for one sentence."""

    g: Grammar
    rules: Mapping[str, tuple[Rule, ...]]
    sentence: int

    def __post_init__(self) -> None:
        self.shapes = {name: [self.g.size(domain) for domain in self.g.label(name).type] for name in self.rules}
        self.labels = {edge.label for own in self.rules.values() for rule in own for edge in rule.right.edges}
        self.is_recursive = not self.labels.isdisjoint(self.rules)
        self.terms = max((self._terms(rule, len(own)) for own in self.rules.values() for rule in own), default=1.0)

    def _terms(self, rule: Rule, num_rules: int) -> float:
        sizes = [self.g.size(node.domain) for node in rule.right.nodes if node.observed is None]
        return num_terms([*sizes, num_rules], len(rule.right.edges))

    def select(self, psi: Values) -> Values:
        """The nonterminals that the rules name, of these."""
        return {name: psi[name] for name in (self.labels | self.rules.keys()) if name in psi}

    def pack(self, values: Mapping[str, Tensor]) -> Tensor:  # "n"
        return torch.cat([values[name].reshape(-1) for name in self.shapes])

    def unpack(self, x: Tensor) -> Values:
        parts = torch.split_with_sizes(x, [math.prod(shape) for shape in self.shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def apply(
        self,
        weights: Mapping[str, Tensor],
        psi: Mapping[str, Tensor],
        arithmetic: Semiring,
        factors: Mapping[str, Tensor] | None = None,
    ) -> Values:
        """One use of every rule (equations 3 and 4); `factors`: by rule a number to multiply it by."""
        found: Values = {}
        like = next(iter(weights.values()))
        for name, own in self.rules.items():
            total = arithmetic.zero(like, tuple(self.shapes[name]))
            for rule in own:
                values = observed_values(self.g, rule, self.sentence)
                x = rule_sum(self.g, rule, rule.right.externals, values, weights, psi, self.sentence, arithmetic)
                total = arithmetic.add(total, x if factors is None else x * factors[rule.name])
            found[name] = total
        return found

    def scales_left(self, scaled: _ScaledFactors, log_psi: Mapping[str, Tensor]) -> Values | None:
        """By rule the scale of its product over that of its left side; None where linear space may lose digits.

        All that is multiplied is at most 1 in size; what underflow takes grows with the scale that is left over.
        """
        level = sound_level(torch.float64, self.terms)
        scales = scaled.scales | {name: _scale(x) for name, x in log_psi.items()}
        found: Values = {}
        for name, own in self.rules.items():
            own_scale = scales[name]
            finite = log_psi[name][log_psi[name] > NOTHING]
            low = (finite.amin() - own_scale).exp() if finite.numel() else own_scale.new_ones(())
            for rule in own:
                factor = torch.exp(sum((scales[edge.label] for edge in rule.right.edges), -own_scale))
                if not bool(low >= level * torch.clamp(factor, min=1.0)):
                    return None
                found[rule.name] = factor
        return found if scaled.is_sound else None

    def solve(self, logs: Mapping[str, Tensor], scaled: _ScaledFactors, below: Values) -> Values:
        """The logarithms of the least solution, given those below."""
        like = next(iter(logs.values()))
        here = like.new_full((sum(math.prod(shape) for shape in self.shapes.values()),), NOTHING)
        while True:  # from nothing, until all that ever has weight has some
            new = self.pack(self.apply(logs, below | self.unpack(here), LOGS))
            if bool(((new > NOTHING) == (here > NOTHING)).all()):
                break
            here = new
        kept = (here > NOTHING).nonzero()[:, 0]
        if not len(kept):
            return self.unpack(here)
        one = like.new_ones(len(kept))
        eps = torch.finfo(like.dtype).eps
        held: tuple[Tensor, float, float] | None = None  # logarithms, their residual, the error that rounding leaves
        for _ in range(STEPS):
            ratios, rounding = self._ratios(logs, scaled, below, here, kept)
            residual = ratios(one) - 1
            size = float(residual.abs().max())
            both, info = torch.linalg.solve_ex(_system_matrix(ratios, one), torch.stack((residual, one), 1))
            change, error = both.unbind(1)
            # Below the least solution this is an M-matrix: its inverse has no negative entry. The other way round, one
            # positive vector that it maps to a positive one proves it.
            rises = int(info) == 0 and bool(torch.isfinite(both).all()) and bool((error > 0).all())
            is_done = size <= eps * (self.terms + rounding) and held is not None
            if is_done and held is not None and (not rises or size >= held[1] / 2):
                if held[2] < 1:
                    return self.unpack(held[0])
                break
            if not rises or bool((change <= -1).any()):
                break
            held = here, size, float(error.max()) * eps * (math.sqrt(self.terms) + rounding)
            here = here.index_add(0, kept, torch.log1p(change))
        raise _infinite(", ".join(list(self.rules)[:4]))

    def _ratios(
        self, logs: Mapping[str, Tensor], scaled: _ScaledFactors, below: Values, here: Tensor, kept: Tensor
    ) -> tuple[Callable[[Tensor], Tensor], float]:
        """The ratios of F(psi) to psi where psi is multiplied by an argument; their rounding, next to that of sums."""
        log_psi = below | self.unpack(here)
        edges = [[edge.label for edge in rule.right.edges] for own in self.rules.values() for rule in own]
        logs_read = [
            {**logs, **log_psi}[label] for label in {label for own in edges for label in own} | self.rules.keys()
        ]
        widths = [float(x[x > NOTHING].abs().max()) for x in logs_read if bool((x > NOTHING).any())]
        rounding = max(map(len, edges)) * max(1.0, *widths)  # logarithms are rounded as the largest of them is
        factors = self.scales_left(scaled, log_psi)
        if factors is not None:
            psi = {name: torch.exp(x - _scale(x)) for name, x in log_psi.items()}
            now = self.pack(psi)
            left = now.index_select(0, kept)

            def in_linear_space(grown: Tensor) -> Tensor:
                more = self.unpack(now.index_copy(0, kept, left * grown))
                return self.pack(self.apply(scaled.weights, psi | more, REAL, factors)).index_select(0, kept) / left

            return in_linear_space, rounding

        def in_logarithms(grown: Tensor) -> Tensor:
            more = self.unpack(here.index_add(0, kept, torch.log(grown)))
            return torch.exp((self.pack(self.apply(logs, below | more, LOGS)) - here).index_select(0, kept))

        return in_logarithms, rounding

    def refine(self, scaled: _ScaledFactors, below: Values, log_psi: Values) -> Values | None:
        """The solution by one more step, each nonterminal divided by its scale; None where that may lose digits.

        At the solution F(psi) - psi is 0, and the derivative of that by the factors, through the system, is the
        derivative of the solution.
        """
        factors = self.scales_left(scaled, log_psi)
        if factors is None:
            return None

        def step(x: Tensor) -> Tensor:
            return self.pack(self.apply(scaled.weights, {**below, **self.unpack(x)}, REAL, factors))

        here = self.pack({name: torch.exp(log_psi[name] - _scale(log_psi[name])) for name in self.rules})
        once = step(here)
        if not bool(torch.isfinite(once).all()):
            return None
        if not self.is_recursive:
            return self.unpack(once)
        system = _system_matrix(step, here)
        has = self.pack(log_psi) > NOTHING
        kept, none = has.nonzero()[:, 0], (~has).nonzero()[:, 0]
        # Entries without weight have a gradient, too, unless they come back to themselves with weight 1 or more.
        if len(none) and once.requires_grad:
            block = system.index_select(0, none).index_select(1, none)
            reach, info = torch.linalg.solve_ex(block, torch.ones_like(here[none]))
            if int(info) == 0 and bool(torch.isfinite(reach).all()) and bool((reach > 0).all()):
                kept = torch.arange(len(here), device=here.device)
        return self.unpack(_newton_step(here, once, system, kept))

    def refine_logs(self, logs: Mapping[str, Tensor], below: Values, log_psi: Values) -> Values:
        """The same in logarithms."""
        if not self.is_recursive:
            return self.apply(logs, below, LOGS)

        def step(x: Tensor) -> Tensor:
            return self.pack(self.apply(logs, {**below, **self.unpack(x)}, LOGS))

        here = self.pack(log_psi)
        kept = (here > NOTHING).nonzero()[:, 0]
        return self.unpack(_newton_step(here, step(here), _system_matrix(step, here), kept))


def _newton_step(here: Tensor, once: Tensor, system: Tensor, kept: Tensor) -> Tensor:  # "n"
    """The solution that Newton's next step gives, among the entries that are kept."""
    if not len(kept):
        return here
    residual = once.index_select(0, kept) - here.index_select(0, kept)
    change = torch.linalg.solve(system.index_select(0, kept).index_select(1, kept), residual)
    return here.index_add(0, kept, change)


def _system_matrix(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:  # "n" -> "n n"
    """The derivative of x - step(x)."""
    with torch.enable_grad():
        jacobian = torch.autograd.functional.jacobian(step, x.detach())  # type: ignore[no-untyped-call]
    assert isinstance(jacobian, Tensor)
    return torch.eye(len(x), dtype=x.dtype, device=x.device) - jacobian


def _infinite(names: str) -> DomainError:
    """The error of a sum without bound."""
    return DomainError(
        f"The sum is infinite, or too close to it to tell: the weights of derivations of {names} grow as fast as they "
        "fall.\n"
        "  Lower the weights of rules that come back to them (probabilities of alternatives sum to at most 1), or "
        "conjoin with a query of bounded length."
    )
