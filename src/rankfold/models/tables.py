"""Models from known distributions: validation of the tables of grammars and of models of frames."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, UnsupportedError, expect, expect_logs, expect_weights, same_kind
from rankfold.models.config import DurationKind, FrameConfig, frame_family
from rankfold.operators import Branch
from rankfold.params.durations import CategoricalDuration, Duration, NegativeBinomialDuration, PoissonDuration
from rankfold.params.dynamics.free_tables import FreeDense, FreeLowRank
from rankfold.params.dynamics.transitions import FrameDynamics
from rankfold.params.observations import (
    BernoulliObservation,
    CategoricalObservation,
    GaussianObservation,
    ObservationModule,
)
from rankfold.params.observations.categorical import FreeEmission
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


def validate_grammar(root: Tensor, rules: Tensor | Branch, emission: Tensor) -> GrammarTables:
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


def frame_tables(
    log_initial: Tensor,  # "z"
    transition: Tensor | tuple[Tensor, Tensor],  # "z y", rows sum to 1; or p(r | z) "z r" and p(y | r) "y r"
    *,
    mean: Tensor | None = None,  # "z f"       Gaussian
    variance: Tensor | None = None,  # "z f", or "f": shared by all states
    probability: Tensor | None = None,  # "z f" of a 1: Bernoulli
    emission: Tensor | None = None,  # "z v"    categorical
    log_duration: Tensor | None = None,  # "z d", the first column is duration 1
    log_rate: Tensor | None = None,  # "z"      Poisson durations, up to max_duration
    log_shape: Tensor | None = None,  # "z"     negative binomial durations, up to max_duration, with log_odds
    log_odds: Tensor | None = None,  # "z"
    max_duration: int | None = None,
    self_transitions: bool | None = None,
    normalised_durations: bool = True,
    censored: bool = False,
    min_variance: float = 0.0,
    variance_prior: float = 0.0,
) -> tuple[FrameConfig, FrameDynamics, ObservationModule, Duration | None]:
    """The record and modules of a model of frames with these distributions as free tables; zeros stay zero.

    Which are given says the family: one of mean and variance, probability, emission; durations or none. A dense
    transition whose diagonal is 0 has no self-transitions unless told otherwise; of a low-rank one without them the
    diagonal is left out and rows are normalised again. float32 or float64, as `log_initial`.
    """
    expect(log_initial, "z", name="log_initial")
    expect_logs(log_initial, name="log_initial")
    expect_distributions(log_initial.exp(), "exp(log_initial)")
    num_states = len(log_initial)
    kind, observation = _observation(mean, variance, probability, emission, num_states, min_variance)
    durations, longest, duration = _duration(
        log_duration, log_rate, log_shape, log_odds, max_duration, num_states, normalised_durations
    )
    rank, may_repeat, dynamics = _dynamics(log_initial, transition, self_transitions, duration is not None)
    for name, module in (("observation", observation), ("duration", duration), ("transition", dynamics)):
        if module is not None:
            same_kind(log_initial, "log_initial", {f"the {name}'s table": next(module.parameters())})
    config = FrameConfig(
        family=frame_family(segments=duration is not None, low_rank=rank is not None),
        observations=kind,
        num_states=num_states,
        num_features=_width(mean, probability, emission),
        rank=rank or 1,
        max_duration=longest,
        durations=durations,
        normalised_durations=normalised_durations,
        self_transitions=may_repeat,
        censored=censored,
        tied_variance=variance is not None and variance.ndim == 1,
        min_variance=min_variance,
        variance_prior=variance_prior,
    )
    return config, dynamics, observation, duration


def _width(*tables: Tensor | None) -> int:
    return next(x.shape[1] for x in tables if x is not None)


def _observation(
    mean: Tensor | None,
    variance: Tensor | None,
    probability: Tensor | None,
    emission: Tensor | None,
    num_states: int,
    min_variance: float,
) -> tuple[str, ObservationModule]:
    given = [x is not None for x in (mean, probability, emission)]
    if sum(given) != 1 or (mean is None) != (variance is None):
        raise UnsupportedError("one kind of observations is needed: mean and variance, or probability, or emission.")
    for name, x in (("mean", mean), ("probability", probability), ("emission", emission)):
        if x is not None:
            expect(x, "z f", name=name, z=num_states, hint="log_initial has as many states.")
    if mean is not None and variance is not None:
        return "gaussian", GaussianObservation.of(mean, variance, min_variance)
    if probability is not None:
        return "bernoulli", BernoulliObservation.of(probability)
    assert emission is not None
    expect_distributions(emission, "emission")
    return "categorical", CategoricalObservation(FreeEmission(emission.detach().log()))


def _duration(
    log_duration: Tensor | None,
    log_rate: Tensor | None,
    log_shape: Tensor | None,
    log_odds: Tensor | None,
    max_duration: int | None,
    num_states: int,
    normalised: bool,
) -> tuple[DurationKind, int, Duration | None]:
    given = [x is not None for x in (log_duration, log_rate, log_shape)]
    if sum(given) > 1 or (log_shape is None) != (log_odds is None):
        raise UnsupportedError("one kind of durations at most: log_duration, or log_rate, or log_shape and log_odds.")
    if not any(given):
        return "poisson", 1, None
    if log_duration is not None:
        expect(log_duration, "z d", name="log_duration", z=num_states)
        expect_logs(log_duration, name="log_duration")
        expect_distributions(log_duration.exp(), "exp(log_duration)")
        if max_duration not in (None, log_duration.shape[1]):
            raise DomainError(f"max_duration is {max_duration}, but log_duration has {log_duration.shape[1]} columns.")
        return "categorical", log_duration.shape[1], CategoricalDuration(log_duration.detach().clone())
    if max_duration is None or max_duration < 1:
        raise DomainError(f"max_duration is {max_duration}, but the longest duration is needed, at least 1.")
    if log_rate is not None:
        expect(log_rate, "z", name="log_rate", z=num_states)
        expect_logs(log_rate, name="log_rate")
        module = PoissonDuration(log_rate.detach().clone(), max_duration, normalised=normalised)
        return "poisson", max_duration, module
    assert log_shape is not None
    assert log_odds is not None
    for name, x in (("log_shape", log_shape), ("log_odds", log_odds)):
        expect(x, "z", name=name, z=num_states)
        expect_logs(x, name=name)
    shape, odds = log_shape.detach().clone(), log_odds.detach().clone()
    return "negative_binomial", max_duration, NegativeBinomialDuration(shape, odds, max_duration)


def _dynamics(
    log_initial: Tensor, transition: Tensor | tuple[Tensor, Tensor], self_transitions: bool | None, has_segments: bool
) -> tuple[int | None, bool, FrameDynamics]:
    num_states, start = len(log_initial), log_initial.detach().clone()
    if isinstance(transition, Tensor):
        expect(transition, "z y", name="transition", z=num_states, y=num_states)
        expect_distributions(transition, "transition")
        own = transition.detach().diagonal()
        may_repeat = bool((own > 0).any()) if self_transitions is None else self_transitions
        if not may_repeat and bool((own > 0).any()):
            raise DomainError(
                f"self_transitions is False, but transition[{int(own.argmax())}] goes to itself with "
                f"{float(own.max()):g}.\n  Set the diagonal to 0 and normalise the rows."
            )
        if num_states == 1:
            may_repeat = True
        return None, may_repeat, FreeDense(start, transition.detach().log(), self_transitions=may_repeat)
    if not isinstance(transition, tuple) or len(transition) != 2:
        raise UnsupportedError(
            f'transition is a {type(transition).__name__}, but a matrix "z y" or a pair (left "z r", right "y r") was '
            "expected."
        )
    left, right = transition
    expect(left, "z r", name="left", z=num_states)
    expect(right, "y r", name="right", y=num_states, r=left.shape[1])
    same_kind(left, "left", {"right": right})
    expect_distributions(left, "left")
    expect_distributions(right.mT, "right, transposed,")
    may_repeat = not has_segments if self_transitions is None else self_transitions
    log_left, log_right = (torch.log(x.detach()) for x in (left, right))
    return left.shape[1], may_repeat, FreeLowRank(start, log_left, log_right, self_transitions=may_repeat)
