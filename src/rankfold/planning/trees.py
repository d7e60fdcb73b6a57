"""The plans of grammars: the work of a step by rules, spans and splits, and the bytes it holds.

A sentence of t words has t^2 / 2 spans and t^3 / 6 splits, and its chart holds a vector for each start and width: the
bytes of a token grow with the length of its sentence, so a plan is of one length.

How many tables are alive at once are slopes of a process's peak in the sizes, on a CPU, every table in pages of its
own, torch 2.13, 2026-11-15; a GPU's are taken to be the same. Read next: `planning/held.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rankfold.numerics.precision import Precision
from rankfold.planning.cost import FLOAT, Plan, Plans, Work, device_kind, rates_of, sorted_plans
from rankfold.planning.families import STEP, made_work, network_work, normaliser_work, with_emission
from rankfold.planning.held import Held, num_bytes, summed, total

# Torch calls of one width of the chart, forward and backward together.
WIDTH_CALLS = 120
# Of the rules' tables.
FACTORED, SIMPLE, SOFTMAX = Held(6.4, 2.2), Held(4, 2), Held(4.4, 2.1)
LOW_RANK_PAIRS, BESIDE_LOW_RANK = Held(3.6, 3), Held(5.2, 3.4)
OF_SENTENCES = Held(6.2, 2.5)  # where each sentence has rules of its own
SQUARES = Held(3.2, 2)  # "r r": products of factors
# Activations of "d" for each symbol: three networks over all symbols, deep or of one layer, and one over words;
# or the last alone.
NETWORKS, SHALLOW_NETWORKS, WORD_NETWORK = Held(22.5, 3.1), Held(11, 2), Held(8, 3)
# Of a token: of the chart "t+1 l" of its row; "n n", all pairs of children of a span; "p", what words are made of.
RANK_CHART, PAIR_CHART, PAIRS, LEAVES = Held(3.6, 1.5), Held(8.4, 3.5), Held(6, 3.6), Held(6.2, 4)


class Way(NamedTuple):
    """What one order of summing out does with the rules; numbers are multiply-adds of one pass, or bytes held."""

    order: str
    child: int  # numbers of a span's vector as a child
    a_span: int
    a_split: int
    a_word: int
    tables: int  # cells of the rules, however they are made
    rules: Held  # bytes of them
    a_row: Held  # bytes a token for every place of its chart
    a_token: Held  # bytes a token beside that
    once: int = 0  # of what is made of the rules' factors, once a batch
    networks: Held = WORD_NETWORK
    own_rules: bool = False  # whether each sentence has rules of its own


class Sizes(NamedTuple):
    """The numbers a plan depends on beside the rules."""

    num_spans: int
    num_leaves: int
    num_words: int
    dim: int  # 0: free tables
    params: int


def pair_way(num_spans: int, num_leaves: int, ranks: Sequence[int | None], *, own_rules: bool = False) -> Way:
    """Rules of all pairs of children, by kind in the order of `Branch`: of a rank, or None for any weights."""
    n, p = num_spans, num_leaves
    pairs = n * n, n * p, p * n, p * p
    thin = {rank for rank in ranks if rank is not None}
    spent = [count * n if rank is None else (count + n) * rank for count, rank in zip(pairs, ranks, strict=True)]
    thick_cells = sum(count * n for count, rank in zip(pairs, ranks, strict=True) if rank is None)
    thin_cells = sum(count * rank for count, rank in zip(pairs, ranks, strict=True) if rank is not None)
    kind = OF_SENTENCES if own_rules else BESIDE_LOW_RANK if thin else SOFTMAX
    rules = summed(num_bytes(kind, thick_cells), num_bytes(LOW_RANK_PAIRS, thin_cells))
    a_token = summed(num_bytes(PAIRS, n * n), num_bytes(LEAVES, p))
    # Words beside words are spans of two words, as many as there are words; their rules are in no other span.
    return Way(
        "state",
        n,
        sum(spent[:3]) + 2 * n * p,
        n * n,
        spent[3] + p * p,
        thick_cells + thin_cells,
        rules,
        num_bytes(PAIR_CHART, n),
        a_token,
        own_rules=own_rules,
    )


def factored_ways(num_spans: int, num_leaves: int, rank: int, *, shallow: bool = False) -> list[Way]:
    """Rules with a rank between parent and children: through the parents, or with the parents summed out."""
    n, p, r = num_spans, num_leaves, rank
    tables, chart, leaves = (3 * n + 2 * p) * r, num_bytes(RANK_CHART, r), num_bytes(LEAVES, p)
    rules = num_bytes(FACTORED, tables)
    networks = SHALLOW_NETWORKS if shallow else NETWORKS
    state = Way("state", r, 3 * n * r, r, 2 * p * r, tables, rules, chart, leaves, networks=networks)
    squares = summed(rules, num_bytes(SQUARES, 2 * r * r))
    return [state, state._replace(order="rank", a_span=2 * r * r, rules=squares, once=2 * n * r * r)]


def simple_way(num_spans: int, num_leaves: int) -> Way:
    """Children independent given the parent."""
    n, p = num_spans, num_leaves
    tables = 2 * n * (n + p)
    rules, chart, leaves = num_bytes(SIMPLE, tables), num_bytes(RANK_CHART, n), num_bytes(LEAVES, p)
    return Way("state", n, 2 * n * n, n, 2 * p * n, tables, rules, chart, leaves, networks=NETWORKS)


def tree_plans(sizes: Sizes, ways: Iterable[Way], batch: int, length: int, device: str, precision: Precision) -> Plans:
    """Each order of summing out, the cheapest first."""
    return sorted_plans(_plan(sizes, way, batch, length, device, precision) for way in ways)


def _plan(sizes: Sizes, way: Way, batch: int, length: int, device: str, precision: Precision) -> Plan:
    kind, dim = device_kind(device), sizes.dim
    tokens, spans, splits = batch * length, batch * length * length // 2, batch * length**3 // 6
    leaves, symbols = sizes.num_leaves, sizes.num_spans + sizes.num_leaves
    times = batch if way.own_rules else 1
    parts = (
        made_work("rules", times * way.tables, dim),
        normaliser_work("emission normaliser", times * leaves, sizes.num_words, dim, kind, precision),
        network_work(symbols, dim, kind),
        Work("products of factors", STEP * way.once, 2 * STEP * FLOAT * way.child**2 if way.once else 0, STEP),
        Work("words", STEP * tokens * way.a_word, STEP * FLOAT * tokens * leaves, 4 * STEP, exact=True),
        Work(
            "spans",
            STEP * spans * way.a_span,
            6 * STEP * FLOAT * spans * way.child,
            WIDTH_CALLS * max(length - 1, 1),
            exact=True,
        ),
        Work("splits", STEP * splits * way.a_split, 2 * STEP * FLOAT * splits * way.child, 0),
    )
    rules = Held(0, 0) if way.own_rules else way.rules
    fixed = total(
        num_bytes(way.networks, (times * leaves if way.networks is WORD_NETWORK else symbols) * dim),
        with_emission(rules, times * leaves, sizes.num_words, dim, kind, precision),
    )
    own = (x / length if way.own_rules else 0.0 for x in way.rules)
    token = total(Held(*((length + 1) * x for x in way.a_row)), way.a_token, Held(*own))
    state = 2 * FLOAT * sizes.params
    return Plan(
        way.order,
        parts,
        state + fixed[0],
        token[0],
        tokens,
        rates_of(device, precision),
        sizes.params,
        fixed[1],
        token[1],
    )
