"""From a grammar to a pass that has lost no digits: the tensors of its factors, and the fallback to wider arithmetic.

Derived factors are made at the words of the query alone, where those are fewer than the vocabulary: their cost does not
grow with words that no sentence has. The ladder of `recursions/` does not serve here: its rungs repeat single sequences
and bring their own backward passes, whereas autograd follows a pass whose tables all sentences share, and which
`marginals` and `sample` read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from rankfold.errors import DomainError, may_look, same_kind
from rankfold.fgg.contraction import LOGS, SCALED, SUPPORT, Semiring
from rankfold.fgg.factors import Derived, FactorCache, Factored, value_at
from rankfold.fgg.grammar import Grammar, check_weights, expect_one_batch
from rankfold.fgg.hrg import HRG, inclusion, is_inclusion
from rankfold.fgg.inference.executor import Execution, Tapped
from rankfold.fgg.inference.schedule import Group, Schedule, packed, schedule
from rankfold.fgg.rewrite.query import end_label
from rankfold.fgg.rewrite.spans import SpanHRG
from rankfold.numerics.log_space import log_weights

Weights = Mapping[str, Tensor]
At = Mapping[int, Tensor]  # by place of a node, the entries wanted there


def solve(g: Grammar, tapped: Tapped = (), *, weights: Weights | None = None, is_packed: bool = False) -> Execution:
    """A sound pass in scaled arithmetic or, where there is none, in logarithms; autograd follows it.

    `is_packed`: of sentences of unequal lengths without rows beyond their ends, where that pays; for sums alone.
    """
    plan = schedule(g.hrg, _whole(tapped))
    if weights is None:  # views: hooks on their gradients touch no tensor of the caller's
        weights = {label: x.view_as(x) if x.requires_grad else x for label, x in _weights_at_words(g, plan).items()}
    if is_packed:
        plan = _packed(g, plan, weights)
    return fall_back(g, plan, weights, tapped)


def _packed(g: Grammar, plan: Schedule, weights: Weights) -> Schedule:
    """The schedule without rows beyond the sentences' ends; this schedule where all are as long, or it would not pay.

    On a GPU launches take the time, not sums; and sentences' own tables of a factor would be copied for each row.
    """
    ends = g.factors.get(end_label(g.hrg.domain_read).name) if isinstance(g.hrg, SpanHRG) else None
    if not isinstance(ends, Tensor) or ends.requires_grad or ends.device.type != "cpu" or not may_look(ends):
        return plan
    is_one = bool(((ends != 0).sum(1) == 1).all()) and len(ends) == g.batch
    if not is_one or sum(g.label(label).is_batched for label in weights) > 1:
        return plan
    return packed(g.hrg, tuple(ends.argmax(1).tolist()))


def solve_plain(g: Grammar, arithmetic: Semiring) -> Execution:
    """A pass in this arithmetic."""
    plan = schedule(g.hrg, frozenset())
    return execute(g, plan, arithmetic, _weights_at_words(g, plan))


def execute(g: Grammar, plan: Schedule, arithmetic: Semiring, weights: Weights, tapped: Tapped = ()) -> Execution:
    """A pass over this schedule with these weights."""
    return Execution(g, plan, arithmetic, weights, 1 if plan.whole else g.batch or 1, tapped).run()


def fall_back(g: Grammar, plan: Schedule, weights: Weights, tapped: Tapped = ()) -> Execution:
    """The first pass that loses nothing: in the factors' dtype, float64, with long rules taken apart, logarithms."""
    for used, arithmetic, own in _rungs(g, plan, weights, tapped):
        run = execute(g, used, arithmetic, own, tapped)
        if arithmetic is LOGS:
            break
        sound = run.scaling.is_sound()
        if not may_look(sound):
            run.sound = sound | _explains(run, cast(Support, run.schedule.made.get(("support", g.device), {})))
            break
        if bool(sound):
            if sound.is_cuda:
                structural_support(run)  # while it can be made: a captured pass may need it
            break
        if bool(_explains(run, structural_support(run))) or _has_exact_zeros(run):
            run.scaling.has_nothing = True
            break
    return run


def _rungs(
    g: Grammar, plan: Schedule, weights: Weights, tapped: Tapped
) -> Iterator[tuple[Schedule, Semiring, Weights]]:
    yield plan, SCALED, weights
    wide = {label: x.double() for label, x in weights.items()}
    if next(iter(weights.values())).dtype != torch.float64:
        yield plan, SCALED, wide
    cut = schedule(g.hrg, _whole(tapped), is_cut=True)
    if not cut.spans and (plan.spans or len(cut.hrg.rules) > len(plan.hrg.rules)):
        yield cut, SCALED, wide
    yield plan, LOGS, wide


def _whole(tapped: Tapped) -> frozenset[str]:
    """The rules whose nodes are tapped."""
    return frozenset(rule for rule, node in tapped if node is not None)


Support = Mapping[tuple[str, int], Tensor]  # by table and first row of a block, "row b ..."


@torch.no_grad()
def structural_support(run: Execution) -> Support:  # "row 1 ..." each
    """The entries that have weight if all factors have some, inclusions of parts apart; made once for a structure."""

    def make() -> Support:
        g = run.grammar
        dtype, device = run.like.dtype, run.like.device
        ones = {
            label: inclusion(g.hrg, label, dtype=dtype, device=device)
            if is_inclusion(label) and label not in g.factors
            else torch.ones((), dtype=dtype, device=device).expand(
                (*[1] * g.label(label).is_batched, *(g.size(domain) for domain in g.label(label).type))
            )
            for label in run.weights
            if label
        } or {"": torch.ones((), dtype=dtype, device=device)}
        observed = {name: table.new_zeros(table.shape[-1]) for name, table in g.observed.items()}
        return _blocks(Execution(g, run.schedule, SUPPORT, ones, 1, observed=observed).run())

    key = ("support", run.like.device)
    if key not in run.schedule.made:
        run.schedule.made[key] = make() if run.schedule.whole is None else _packed_support(run, run.schedule.whole)
    return cast(Support, run.schedule.made[key])


def _packed_support(run: Execution, whole: Schedule) -> Support:  # "row 1 ..." each
    """The same of packed sentences, by that of all rows."""
    found = structural_support(replace(run, schedule=whole))
    every = {table: torch.cat([x for (name, _), x in found.items() if name == table]) for table in run.blocks}
    own = {table: every[table][torch.from_numpy(run.schedule.origins[table])] for table in run.blocks}
    return {
        (table, begin): own[table][begin : begin + len(x)]
        for table, begins in run.begins.items()
        for begin, x in zip(begins, run.blocks[table], strict=True)
    }


def _blocks(run: Execution) -> Support:
    return {
        (table, begin): run.blocks[table][k] for table, begins in run.begins.items() for k, begin in enumerate(begins)
    }


@torch.no_grad()
def _explains(run: Execution, support: Support) -> Tensor:  # ""   bool
    """Whether every entry that may have lost digits is one without support."""
    scaling = run.scaling
    flags = [~scaling.is_below(), *scaling.lost]
    for table, begin, value, least in scaling.unscaled:
        top = value.amax(tuple(range(2, value.ndim)), keepdim=True) if value.ndim > 2 else value
        small = value < least * torch.maximum(top, torch.ones_like(top))
        own = support.get((table, begin))
        flags.append((small if own is None else small & (own > 0)).any())
    return ~torch.stack(flags).any()


@torch.no_grad()
def _has_exact_zeros(run: Execution) -> bool:
    """Whether every entry that may have lost digits is 0 because of factors that are exactly 0."""
    if any(map(bool, run.scaling.lost)) or not bool(run.scaling.is_below()):
        return False
    weights = {k: x.detach() for k, x in run.weights.items()}
    return bool(_explains(run, _blocks(execute(run.grammar, run.schedule, SUPPORT, weights))))


def log_z_of(run: Execution) -> Tensor:  # "b"   float64
    """The logarithm of the start symbol's weight; NaN where a captured pass could not vouch for it."""
    value, scale = run.start()
    if run.arithmetic is LOGS:
        return value
    out = log_weights(value.double()) + scale
    if run.sound is not None:
        return torch.where(run.sound, out, float("nan"))
    return out


def z_of(run: Execution) -> Tensor:  # "b"   in the factors' dtype
    """The start symbol's weight, which may be beyond the dtype's numbers: 0 or infinite."""
    value, scale = run.start()
    if run.arithmetic is LOGS:
        found = torch.exp(value)
    else:
        factor = torch.exp(scale)
        found = torch.where((value == 0) & factor.isinf(), 0.0, value.double() * factor)  # gradients: `mend_overflow`
    return found.to(run.grammar.dtype)


def weights_of(g: Grammar, plan: Schedule) -> dict[str, Tensor]:
    """The tensors of all factors that a schedule uses, each made once."""
    return tensors_of(g, plan.labels())


def _weights_at_words(g: Grammar, plan: Schedule) -> dict[str, Tensor]:
    """The same, derived factors at the words of the query alone where that is less."""
    at = {
        label: {k: g.observed[table].reshape(-1) for k, table in places.items()}
        for label, places in word_places(g).items()
    }
    return tensors_of(g, plan.labels(), at)


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
    cache = FactorCache()
    found = {label: _tensor_of(g, label, cache, (at or {}).get(label)) for label in names}
    _check_modules(g, found, cache)
    if cache.is_lost and found[names[0]].dtype != torch.float64:
        cache = FactorCache(torch.float64)
        found = {label: _tensor_of(g, label, cache, (at or {}).get(label)).double() for label in names}
    if cache.is_lost:
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


def _tensor_of(g: Grammar, label: str, cache: FactorCache, at: At | None) -> Tensor:
    """A factor's tensor, or its entries `at` these; the cache is used and filled."""
    factor = g.factors.get(label)
    return value_at(factor, at or {}, cache) if isinstance(factor, Factored | Derived) else g.tensor(label)


def _check_modules(g: Grammar, labels: Iterable[str], cache: FactorCache) -> None:
    """Raise unless the modules that derived factors are made of gave weights; each is looked at once."""
    seen: set[int] = set()
    for label in labels:
        factor = g.factors.get(label)
        for module in factor.given_modules() if isinstance(factor, Derived) else ():
            if id(module) in cache and id(module) not in seen:
                check_weights(f"the module in factor {label!r}: entry", cache[id(module)])
                seen.add(id(module))


def word_places(g: Grammar) -> dict[str, dict[int, str]]:
    """The derived factors of an acyclic grammar to be made at words: the places of such nodes, with their table.

    A place is one if every use of the factor reads the same table there, and that has fewer words, of all sentences,
    than the node has values. Factors with a batch of their own are made whole.
    """
    found: dict[str, dict[int, str]] = {}
    for label, tables in _tables_read(g.hrg).items():
        own = g.label(label)
        if isinstance(g.factors.get(label), Derived) and not own.is_batched:
            few = {
                k: table
                for k, table in tables.items()
                if table in g.observed and g.observed[table].numel() < g.size(own.type[k])
            }
            found |= {label: few} if few else {}
    return found


@lru_cache(maxsize=64)
def _tables_read(hrg: HRG) -> dict[str, dict[int, str]]:
    """For each factor the places at which all its uses read one table."""
    found: dict[str, dict[int, str]] = {}
    for group in schedule(hrg, frozenset()).groups():
        for label, nodes in group.factors:
            here = {k: table for k, name in enumerate(nodes) if (table := _table(group, name)) is not None}
            old = found.get(label, here)
            found[label] = {k: table for k, table in here.items() if old.get(k) == table}
    return {label: tables for label, tables in found.items() if tables}


def _table(group: Group, node: str) -> str | None:
    """The table a node's value is read from in all rules of a group."""
    cell = group.observed.get(node, (None,))[0]
    return cell[0] if isinstance(cell, tuple) else None
