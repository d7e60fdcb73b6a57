"""The plans of each family of models: the work of a step in launches that are alike, and the bytes it holds.

Read next: `planning/held.py` for the bytes, `models/base.py` for who asks.
"""

from __future__ import annotations

from rankfold.kernels.block_scan import LARGEST
from rankfold.numerics.precision import Precision
from rankfold.operators.sum import WRITTEN
from rankfold.planning import held
from rankfold.planning.cost import FLOAT, Plan, Plans, Rates, Work, device_kind, rates_of, sorted_plans
from rankfold.planning.held import num_bytes, total

# A gradient step multiplies every matrix three times: forward, and once for each factor's gradient.
STEP = 3
# Calls of a step beside its large ones: with graphs two microseconds each, and still a millisecond together.
REST = {"cpu": 60, "cuda": 350}
# A scan by torch's own calls: seconds of a product with few rows, however small; numbers moved between products, for
# each token and state. On an H200, 2026-11-16; a CPU keeps them in its caches.
THIN = {"cpu": 0.0, "cuda": 12e-6}
SWEPT = {"cpu": 8, "cuda": 40}


def chain_plan(
    num_states: int,
    rank: int | None,  # None: a dense transition
    band: int,  # diagonals, 0 for none
    num_words: int,
    dim: int,  # 0: free tables
    batch: int,
    length: int,
    device: str,
    precision: Precision,
    params: int,  # numbers in all parameters
) -> Plans:
    """An HMM that says words from states: state space is the only order, its ranks have no words to themselves."""
    precision = held.in_use(precision, batch)
    z, rates, kind = num_states, rates_of(device, precision), device_kind(device)
    made = z * z if rank is None else 2 * z * rank
    readings = held.readings(kind, precision, batch)
    if band and z * z > WRITTEN:
        readings = 2
    read = z * z if band and readings == 1 else made + z * band
    factors = (1 if rank is None else 2) + (band > 0)
    parts = (
        made_work("transition", made, dim),
        normaliser_work("emission normaliser", z, num_words, dim, kind, precision),
        *scan_work(read, z, batch, length, kind, precision, readings, factors),
        network_work(z, dim, kind),
    )
    if rank is not None and band:
        peaks = (*held.BANDED, held.WRITTEN_BAND) if readings == 1 else held.BANDED
        tables = held.peak_bytes(peaks, (z * rank, z * band, z * z))
    else:
        tables = transition_bytes(z, rank, dim, kind)
    fixed = total(
        num_bytes(held.CHAIN_NETWORK[kind], z * dim),
        with_emission(tables, z, num_words, dim, kind, precision),
    )
    token = total(num_bytes(held.BANDED_MESSAGES if band else held.MESSAGES, z))
    return Plans((_plan("state", parts, fixed, token, batch * length, rates, params),))


def rank_plans(
    num_states: int,
    rank: int,
    num_words: int,
    dim: int,
    batch: int,
    length: int,
    device: str,
    precision: Precision,
    params: int,
) -> Plans:
    """A rank-space HMM: V^T U multiplied out ("rank"), or applied as two thin products ("state")."""
    precision = held.in_use(precision, batch)
    z, r, rates, kind = num_states, rank, rates_of(device, precision), device_kind(device)
    made = (
        made_work("factors", 2 * z * r, dim),
        normaliser_work("emission normaliser", r, num_words, dim, kind, precision),
    )
    multiplied = Work("V^T U", STEP * z * r * r, STEP * FLOAT * (2 * z * r + r * r), STEP)
    network_bytes = num_bytes(held.RANK_NETWORK[kind], num_words * dim)
    messages, network = num_bytes(held.MESSAGES, r), network_work(num_words, dim, kind)
    readings = held.readings(kind, precision, batch)
    work = {
        "rank": (*made, multiplied, *scan_work(r * r, r, batch, length, kind, precision, readings, 1), network),
        "state": (*made, *scan_work(2 * z * r, r, batch, length, kind, precision, readings, 2), network),
    }
    fixed = {
        order: total(
            network_bytes,
            with_emission(rank_bytes(z, r, square, dim, kind, precision), r, num_words, dim, kind, precision),
        )
        for order, square in (("rank", r * r), ("state", 0))
    }
    token = {"rank": total(messages), "state": total(messages, num_bytes(held.THIN, z))}
    return sorted_plans(
        _plan(order, work[order], fixed[order], token[order], batch * length, rates, params)
        for order in ("rank", "state")
    )


def block_plan(
    num_clusters: int,
    per_cluster: int,
    largest_cluster: int,
    dim: int,
    batch: int,
    length: int,
    device: str,
    precision: Precision,
    params: int,
) -> Plans:
    """Block-sparse emissions: k x k blocks a token, the normalisers of all z rows once a batch."""
    c, k, z, kind = num_clusters, per_cluster, num_clusters * per_cluster, device_kind(device)
    tokens = batch * length
    parts = (
        normaliser_work("transition normaliser", z, z, dim, kind, precision),
        made_work("emissions", c * largest_cluster * k, dim),
        Work("blocks", STEP * tokens * k * k * max(dim, 1), 2 * FLOAT * tokens * k * (3 * k + 6 * dim), 2 * STEP),
        Work("scan", 4 * tokens * k * k, 4 * FLOAT * tokens * k * k, 3, "triton")
        if kind == "cuda" and k <= LARGEST
        else Work("scan", 4 * tokens * k * k, 4 * FLOAT * tokens * k * k, 8 * length),
        network_work(z, dim, kind),
    )
    made = held.peak_bytes([(held.BLOCK_EMISSION, held.BLOCK_NETWORK[kind])], (c * largest_cluster * k, z * dim))
    fixed = total(
        held.with_normaliser(made, 0.0, z, z, dim, kind, precision)
        if dim
        else held.summed(made, num_bytes(held.FREE_BLOCKS, z * z))
    )
    token = total(held.peak_bytes(held.PAIRS, (k * k, k * dim)))
    rates = rates_of(device, "tf32" if precision == "bf16" else precision)  # blocks have no products in bfloat16
    return Plans((_plan("state", parts, fixed, token, tokens, rates, params),))


def _plan(
    order: str,
    parts: tuple[Work, ...],
    fixed: tuple[int, int],
    token: tuple[int, int],
    tokens: int,
    rates: Rates,
    params: int,
) -> Plan:
    """The plan of its parts; bytes, `fixed` and of a token, are those of a step and of an evaluation."""
    return Plan(order, parts, 2 * FLOAT * params + fixed[0], token[0], tokens, rates, params, fixed[1], token[1])


def made_work(name: str, cells: int, dim: int) -> Work:
    """A table of inner products and its softmax, forward and backward."""
    return Work(name, STEP * cells * dim, 4 * STEP * FLOAT * cells, 6 * STEP)


def normaliser_work(name: str, num_rows: int, num_columns: int, dim: int, kind: str, precision: Precision) -> Work:
    """A log-sum-exp of inner products, whose table is made again in the backward pass where it was not kept."""
    cells = num_rows * num_columns
    products = STEP if held.is_kept(num_rows, num_columns, kind, precision) else STEP + 1
    if held.is_fused(kind, precision) and dim:  # the table stays in registers: only the vectors move
        return Work(name, products * cells * dim, 2 * products * FLOAT * (num_rows + num_columns) * dim, STEP, "triton")
    return Work(name, products * cells * dim, 6 * FLOAT * cells, 8 * STEP)


def network_work(num_rows: int, dim: int, kind: str) -> Work:
    """Two residual layers, and the many small calls on messages and norms that no other part counts."""
    return Work("networks and the rest", 4 * STEP * num_rows * dim**2, 24 * FLOAT * num_rows * dim, REST[kind])


def scan_work(
    cells: int, width: int, batch: int, length: int, kind: str, precision: Precision, readings: int, factors: int
) -> tuple[Work, ...]:
    """Forward and backward over the positions, which read the transition, a product of `factors`; its gradient, a
    product for each over all positions, where there are several also what lay between them."""
    tokens = batch * length
    read = readings * length * held.factor_bytes(kind, precision) * cells
    gradient = Work(
        "scan gradient", min(factors, 2) * tokens * cells, STEP * FLOAT * cells + 4 * FLOAT * tokens * width, 2 * STEP
    )
    if readings == 1:
        return Work("scan", 2 * tokens * cells, read + 8 * FLOAT * tokens * width, 4 * length, "triton"), gradient
    products = 2 * factors * length
    return (
        Work("scan", 2 * tokens * cells, read, products, least=products * THIN[kind]),
        Work("scan messages", 0, SWEPT[kind] * FLOAT * tokens * width, 14 * length - products),
        gradient,
    )


def transition_bytes(num_states: int, rank: int | None, dim: int, kind: str) -> held.Held:
    """What a transition holds, dense or of a rank: softmaxes of inner products, or free tables with `dim` 0."""
    cells = num_states * (num_states if rank is None else rank)
    if dim:
        return held.softmax_bytes(held.DENSE if rank is None else held.LOW_RANK, cells, kind)
    return num_bytes(held.FREE_DENSE if rank is None else held.FREE_LOW_RANK, cells)


def rank_bytes(num_states: int, rank: int, square: int, dim: int, kind: str, precision: Precision) -> held.Held:
    """What a rank-space transition holds: its factors, and V^T U of so many cells, none where that is not made."""
    cells = num_states * rank
    factors = held.softmax_bytes(held.RANK[kind], cells, kind) if dim else num_bytes(held.FREE_RANK, cells)
    beside = held.summed(factors, num_bytes(held.SQUARE, square))
    if not square:
        return beside
    made = held.MULTIPLIED_HALF if held.factor_bytes(kind, precision) == held.HALF else held.MULTIPLIED
    return held.larger(beside, held.peak_bytes([made], (cells, square)))


def with_emission(
    tables: held.Held, num_rows: int, num_words: int, dim: int, kind: str, precision: Precision
) -> held.Held:
    """What a transition and the distributions of words hold: a table of free logits, or a normaliser's."""
    if dim:
        return held.with_normaliser(tables, tables.evaluation, num_rows, num_words, dim, kind, precision)
    return held.summed(tables, num_bytes(held.FREE_EMISSION, num_rows * num_words))
