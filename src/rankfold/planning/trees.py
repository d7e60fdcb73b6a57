"""Plans of grammars: the work of a gradient step by rules, spans and splits, and the numbers alive at its peak.

A sentence of t words has t^2 / 2 spans and t^3 / 6 splits, and its chart a vector for each start and width: the bytes
of a token grow with the length of its sentence, so a plan is of one length. Constants are slopes of a process's peak in
the sizes on a CPU, torch 2.13, 2026-11-15; a GPU's are taken to be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import NamedTuple

from rankfold.numerics.precision import Precision
from rankfold.planning.chains import STEP, made_work, network_work, normaliser_work, with_emission
from rankfold.planning.cost import FLOAT, Peak, Plan, Plans, Work, device_kind, rates_of

# Tables of the rules: with a rank between parent and children, of independent children, of pairs of children, of each
# sentence by itself.
FACTORED, SIMPLE, PAIR_RULES, OF_SENTENCES = Peak(6.4, 2.2), Peak(4, 2), Peak(5.2, 3.4), Peak(6.2, 2.5)
SQUARES = Peak(3.2, 2)  # "r r": products of factors
# Activations of "d" for each symbol: three networks over all symbols, deep or of one layer, and one over words;
# or the last alone.
NETWORKS, SHALLOW_NETWORKS, WORD_NETWORK = Peak(22.5, 3.1), Peak(11, 2), Peak(8, 3)
# Of a token: the chart "t+1 l" of its row; "n n", all pairs of children of a span; "p", for its word.
RANK_CHART, PAIR_CHART, PAIRS, LEAVES = Peak(3.6, 1.5), Peak(8.4, 3.5), Peak(6, 3.6), Peak(6.2, 4)


class TreeSizes(NamedTuple):
    """The numbers a plan depends on besides the rules."""

    num_spans: int
    num_leaves: int
    num_words: int
    dim: int  # 0: free tables
    params: int


class Rules(NamedTuple):
    """One elimination order: multiply-adds of one pass, and numbers alive."""

    order: str
    child: int  # numbers of a span's vector as a child
    per_span: int
    per_split: int
    per_word: int
    cells: int  # of the rules' tables, however they are made
    tables: Peak
    chart: Peak  # for each token and place of its chart
    token: Peak  # for each token besides that
    once: int = 0  # products of the rules' factors, once per batch
    networks: Peak = WORD_NETWORK
    own_rules: bool = False  # whether each sentence has rules of its own
    # `per_span` and `once` of charts with few launches (`recursions/tree/packed.py`, `pairs.py`), and numbers that they
    # hold for each token and of rules written out.
    packed: tuple[int, int] | None = None
    packed_token: Peak = Peak(0, 0)
    packed_rules: Peak = Peak(0, 0)


def pair_rules(num_spans: int, num_leaves: int, ranks: Sequence[int | None], *, own_rules: bool = False) -> Rules:
    """Rules of all pairs of children, by kind in the order of `Branch`: of a rank, or None for any weights."""
    n, p = num_spans, num_leaves
    kinds = list(zip((n * n, n * p, p * n, p * p), ranks, strict=True))
    passes = [pairs * n if rank is None else (pairs + n) * rank for pairs, rank in kinds]
    cells = sum(pairs * (n if rank is None else rank) for pairs, rank in kinds)
    tables = OF_SENTENCES if own_rules else PAIR_RULES
    # Two words next to each other are spans of two words, as many as there are words; their rules are in no other span.
    per_span, per_word = sum(passes[:3]) + 2 * n * p, passes[3] + p * p
    chart, token = PAIR_CHART * n, PAIRS * (n * n) + LEAVES * p
    way = Rules("state", n, per_span, n * n, per_word, cells, tables * cells, chart, token, own_rules=own_rules)
    if own_rules:
        return way
    written = sum(pairs * n * rank for pairs, rank in kinds if rank is not None)
    pairs = (
        n + p
    ) ** 2  # of a span of two words and of a wider one, and their gradients; rules, rounded, and gradients
    return way._replace(
        packed=(sum(pairs * n for pairs, _ in kinds[:3]) + 2 * n * p, written),
        packed_token=Peak(2, 1) * pairs,
        packed_rules=Peak(3, 2) * (n * pairs if written else 0),
    )


def factored_rules(num_spans: int, num_leaves: int, rank: int, *, shallow: bool = False) -> list[Rules]:
    """Rules with a rank between parent and children: with the parents summed out, or through them."""
    n, p, r = num_spans, num_leaves, rank
    cells, networks = (3 * n + 2 * p) * r, SHALLOW_NETWORKS if shallow else NETWORKS
    tables, chart, token = FACTORED * cells, RANK_CHART * r, LEAVES * p
    products = 2 * r * r, 2 * n * r * r
    state = Rules("state", r, 3 * n * r, r, 2 * p * r, cells, tables, chart, token, networks=networks, packed=products)
    squares = tables + SQUARES * (2 * r * r)
    return [state._replace(order="rank", per_span=products[0], tables=squares, once=products[1]), state]


def simple_rules(num_spans: int, num_leaves: int) -> Rules:
    """Children independent given the parent."""
    n, p = num_spans, num_leaves
    cells = 2 * n * (n + p)
    chart, token = RANK_CHART * n, LEAVES * p
    tables = SIMPLE * cells
    return Rules(
        "state", n, 2 * n * n, n, 2 * p * n, cells, tables, chart, token, networks=NETWORKS, packed=(2 * n * n, 0)
    )


def tree_plans(
    sizes: TreeSizes, rules: Iterable[Rules], batch: int, length: int, device: str, precision: Precision
) -> Plans:
    """Each elimination order, the cheapest first."""
    return Plans.of(_plan(sizes, way, batch, length, device, precision) for way in rules)


def _plan(sizes: TreeSizes, way: Rules, batch: int, length: int, device: str, precision: Precision) -> Plan:
    kind, dim, words = device_kind(device), sizes.dim, sizes.num_words
    tokens, spans, splits = batch * length, batch * length * length // 2, batch * length**3 // 6
    symbols, times = sizes.num_spans + sizes.num_leaves, batch if way.own_rules else 1
    leaves = times * sizes.num_leaves
    moved, exact = STEP * FLOAT, way.packed is None or kind != "cuda" or precision == "float32"
    if way.packed is not None and not exact:  # both orders of elimination are then one, rules of low rank written out
        held = Peak(*map(max, zip(astuple(way.token), astuple(way.packed_token), strict=True)))
        tables = way.tables + way.packed_rules
        way = way._replace(per_span=way.packed[0], once=way.packed[1], token=held, tables=tables)
    parts = (
        made_work("rules", times * way.cells, dim),
        normaliser_work("emission normaliser", leaves, words, dim, kind, precision),
        network_work(symbols, dim),
        Work("products of factors", STEP * way.once, 2 * moved * way.child**2 if way.once else 0),
        Work("words", STEP * tokens * way.per_word, moved * tokens * sizes.num_leaves, exact=exact),
        Work("spans", STEP * spans * way.per_span, 6 * moved * spans * way.child, exact=exact),
        Work("splits", STEP * splits * way.per_split, 2 * moved * splits * way.child),
    )
    fixed = with_emission(Peak(0, 0) if way.own_rules else way.tables, leaves, words, dim, kind, precision)
    fixed = fixed + way.networks * ((leaves if way.networks is WORD_NETWORK else symbols) * dim)
    token = way.chart * (length + 1) + way.token
    if way.own_rules:
        token = token + way.tables * (1 / length)
    return Plan.of(way.order, parts, fixed, token, tokens, rates_of(device, precision), sizes.params)
