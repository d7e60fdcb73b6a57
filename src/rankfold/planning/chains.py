"""Plans of chains and segments: the work of a gradient step part by part, and the numbers alive at its peak.

Constants of tables were counted in lists of a step's allocations as a GPU has them, Triton kernels left out
(2026-11-16): their peaks are one H200's within 1 MiB, but for an embedding's gradient, for which CUDA takes more.
Constants by device, and those of a token, are slopes of a CPU process's peak in the sizes, and fits to that GPU's peaks
(2026-11-15).
"""

from __future__ import annotations

from typing import NamedTuple

from rankfold.kernels import block_scan, segment_scan
from rankfold.kernels.forward_backward import FEW
from rankfold.kernels.linear_logsumexp import BLOCK, KEPT
from rankfold.numerics.precision import Precision
from rankfold.operators.sum import WRITTEN
from rankfold.operators.without_diagonal import block_size
from rankfold.planning.cost import FLOAT, Peak, Plan, Plans, Work, device_kind, rates_of

# A gradient step multiplies every matrix three times: forward, and once for each factor's gradient.
STEP = 3
# Seconds of a scan's product with few rows by torch's own calls, however small (H200, 2026-11-16; a CPU has them in its
# caches), and of the three calls that multiply V^T U out.
THIN = {"cpu": 0.0, "cuda": 12e-6}
MULTIPLIED_OUT = {"cpu": 15e-6, "cuda": 6e-6}
# Bytes of a piece of a softmax's gradient (`linear_softmax`), and the most pieces of a large one; entries of a block of
# a normaliser's (`linear_logsumexp`): as in their Triton files, which cannot be read where Triton is not installed.
PIECE_OF_LOGITS, MOST_PIECES, SHARES = 2**26, 8, 2**25

# Tables alive at once: of the transition "z y", or "z r" for its two factors, as softmaxes (each table and its
# gradient; `softmaxes` adds that of the logits) and as free logits.
DENSE, LOW_RANK = Peak(2, 1), Peak(4, 2)
FREE_DENSE, FREE_LOW_RANK = Peak(5, 4), Peak(7, 3)
# "z r" and "z k" of a low rank and of the band next to it, with its int64 columns.
BANDED = {"cpu": (Peak(12, 4), Peak(21, 11)), "cuda": (Peak(8, 4), Peak(15, 11))}
# "z r" and "r r" of a rank-space model: its factors, whose gradient a CPU copies to add the start's, and V^T U.
RANK, FREE_RANK, SQUARE = {"cpu": Peak(5, 2), "cuda": Peak(4.5, 3)}, Peak(5, 3), Peak(3, 3)
NETWORK, RANK_NETWORK = {"cpu": Peak(11, 3), "cuda": Peak(6, 3)}, Peak(9, 3)  # "z d", "v d"
FREE_EMISSION = Peak(4, 1)  # "z v"
BLOCK_EMISSION, BLOCK_NETWORK = Peak(4, 3), {"cpu": Peak(12, 6), "cuda": Peak(5, 5)}  # "c m k", "z d"
FREE_BLOCKS = Peak(3, 2)  # "z y"
FRAME_TABLES, DURATIONS = Peak(6, 3), Peak(8, 4)  # "f z", "d z"

# For each token. "z": observations, filtered messages, posteriors, both sides of the transition's gradient.
MESSAGES, BANDED_MESSAGES, SEGMENT_MESSAGES = Peak(7, 3), Peak(9, 3), Peak(23, 10)
FACTOR_MESSAGES = Peak(2, 0)  # "z" of a rank-space model whose transition stays two factors
BORDERS = Peak(2, 1)  # "d z" for each stretch of segments
# In shards: "r" for each token, the messages between the factors in both directions; "z d", embeddings of all targets
# and their gradient.
INNER, GATHERED = Peak(2, 1), Peak(2, 1)
# "z" and "f" of frames: products of Gaussians are made in float64.
GAUSSIAN, BERNOULLI = (Peak(4, 4), Peak(12, 12)), (Peak(2, 2), Peak(2, 2))
# "z f" of frames whose densities are no products: on a CPU full covariances take 9.7 and 3.7, lags 9.7 and 7.7.
RESIDUALS = Peak(10, 8)


class ChainSizes(NamedTuple):
    """Sizes of an HMM or HSMM of words or of frames."""

    num_states: int
    rank: int | None  # None: a dense transition
    params: int  # numbers in all parameters
    dim: int = 0  # 0: free tables
    num_words: int = 0  # 0: frames
    band: int = 0  # diagonals, 0 for none
    num_features: int = 0
    gaussian: bool = False
    residuals: int = 0  # numbers of each frame, by states and features; 0: observations are products
    max_duration: int = 0  # 0: no segments
    may_repeat: bool = True  # whether a state may follow itself
    summed_states: int = 0  # of segments in rank space: states between ranks, whose number num_states then is
    devices: int = 1  # that hold the states of a model of words, each some of them; `params` are one's own


def chain_plan(
    sizes: ChainSizes, batch: int, length: int, device: str, precision: Precision, stretch: int | None = None
) -> Plans:
    """State space is the only order: each state has observations of its own.

    With `stretch`, messages of so many frames of segments are alive at once, and a window for each of these stretches.
    """
    precision, kind, tokens = products_in(precision, batch), device_kind(device), batch * length
    z, rank, dim, band, f = sizes.num_states, sizes.rank, sizes.dim, sizes.band, sizes.num_features
    summed = sizes.summed_states
    rank = summed if 0 < summed < z else rank  # two thin products; through as many states and more, one of V^T U
    all_states, z = z, -(-z // sizes.devices)
    made = z * all_states if rank is None else 2 * z * rank
    readings = 2 if band and z * z > WRITTEN else num_readings(kind, precision, batch)
    readings = 2 if sizes.devices > 1 else readings
    written = bool(band) and readings == 1
    read, factors = z * z if written else made + z * band, (1 if rank is None else 2) + (band > 0)
    scan = (
        _segments(sizes._replace(rank=rank), made, batch, length, kind)
        if sizes.max_duration
        else scan_work(read, z, batch, length, kind, precision, readings, factors)
    )
    cells = z * all_states if rank is None else z * rank
    if band and rank is not None:
        tables = BANDED[kind][0] * cells + BANDED[kind][1] * (z * band)
        if written:  # another peak: the matrix with the band in it, and that with the low rank added
            tables = Peak(max(tables.step, 3 * cells + 5 * z * band + 2 * z * z), tables.evaluation)
    elif summed and rank is None:
        factors_of = softmaxes(RANK[kind], summed * z, kind) if dim else FREE_RANK * (summed * z)
        tables = factors_of + SQUARE * cells
    elif dim:
        tables = softmaxes(DENSE if rank is None else LOW_RANK, cells, kind)
    else:
        tables = (FREE_DENSE if rank is None else FREE_LOW_RANK) * cells
    messages = SEGMENT_MESSAGES if sizes.max_duration else BANDED_MESSAGES if band else MESSAGES
    if sizes.num_words:
        observed = normaliser_work("emission normaliser", z, sizes.num_words, dim, kind, precision)
        fixed = with_emission(tables, z, sizes.num_words, dim, kind, precision)
        token = Peak(0, 0)
    else:
        wide, columns = (2, 3 * f) if sizes.gaussian else (1, 2 * f)  # float64
        moved = STEP * wide * FLOAT * (tokens * (columns + z) + columns * z)
        observed = Work("observations", STEP * wide * tokens * columns * z, moved)
        fixed = tables + FRAME_TABLES * (wide * columns * z) + DURATIONS * (sizes.max_duration * z)
        by_state, by_feature = GAUSSIAN if sizes.gaussian else BERNOULLI
        token = by_state * z + by_feature * f + RESIDUALS * sizes.residuals
    if stretch is not None and stretch < length and sizes.max_duration:
        windows = batch * -(-length // stretch) * sizes.max_duration * z
        fixed = fixed + messages * (batch * stretch * z) + BORDERS * windows
    else:
        token = token + messages * z
    if sizes.devices > 1:  # what came from all: messages between two factors, or the targets' embeddings, gathered
        token, fixed = token + INNER * (rank or 0), fixed + GATHERED * (all_states * dim if rank is None else 0)
    parts = made_work("transition", 2 * summed * z if summed else made, dim), observed, *scan, network_work(z, dim)
    if summed and rank is None:
        parts = *parts, multiplied_out(summed, z, kind)
    fixed = fixed + NETWORK[kind] * ((z + summed) * dim)
    return Plans((Plan.of("state", parts, fixed, token, tokens, rates_of(device, precision), sizes.params),))


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
    precision, kind = products_in(precision, batch), device_kind(device)
    z, r, rates = num_states, rank, rates_of(device, precision)
    shared = (
        made_work("factors", 2 * z * r, dim),
        normaliser_work("emission normaliser", r, num_words, dim, kind, precision),
        network_work(num_words, dim),
    )
    multiplied = multiplied_out(z, r, kind)
    factors = softmaxes(RANK[kind], z * r, kind) if dim else FREE_RANK * (z * r)
    readings = num_readings(kind, precision, batch)

    def plan(order: str, own: tuple[Work, ...], cells: int, square: int, token: Peak) -> Plan:
        scan = scan_work(cells, r, batch, length, kind, precision, readings, 1 if square else 2)
        fixed = with_emission(factors + SQUARE * square, r, num_words, dim, kind, precision)
        fixed = fixed + RANK_NETWORK * (num_words * dim)
        return Plan.of(order, (*shared, *own, *scan), fixed, token, batch * length, rates, params)

    return Plans.of(
        [
            plan("rank", (multiplied,), r * r, r * r, MESSAGES * r),
            plan("state", (), 2 * z * r, 0, MESSAGES * r + FACTOR_MESSAGES * z),
        ]
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
    devices: int = 1,
) -> Plans:
    """Block-sparse emissions: k x k blocks per token, the normalisers of all z rows once per batch.

    With several `devices`, each has some of the clusters, whose words are taken to be as frequent as the others'.
    """
    k, all_states, kind = per_cluster, num_clusters * per_cluster, device_kind(device)
    c = -(-num_clusters // devices)
    z, tokens, emissions = c * k, -(-batch * length // devices), c * largest_cluster * k
    kernel = "triton" if kind == "cuda" and k <= block_scan.LARGEST else "torch"
    parts = (
        normaliser_work("transition normaliser", z, all_states, dim, kind, precision),
        made_work("emissions", emissions, dim),
        Work("blocks", STEP * tokens * k * k * max(dim, 1), 2 * FLOAT * tokens * k * (3 * k + 6 * dim)),
        Work("scan", 4 * tokens * k * k, 4 * FLOAT * tokens * k * k, kernel),
        network_work(z, dim),
    )
    made = BLOCK_EMISSION * emissions + BLOCK_NETWORK[kind] * (z * dim)
    if dim:
        fixed = with_normaliser(made, 0.0, z, all_states, dim, kind, precision)
        fixed = fixed + GATHERED * (all_states * dim if devices > 1 else 0)
    else:
        fixed = made + FREE_BLOCKS * (z * all_states)
    # Of "k k", the transition between two words, and of "k d", the embeddings of its two sides: posteriors of all
    # transitions at once, then the gradients of both sides.
    token = Peak(max(3 * k * k + 2 * k * dim, k * k + 4 * k * dim), 2 * k * k + 2 * k * dim)
    rates = rates_of(device, "tf32" if precision == "bf16" else precision)  # blocks have no products in bfloat16
    found = Plan.of("state", parts, fixed, token * (1 / devices), batch * length, rates, params)
    return Plans((found,))


def made_work(name: str, cells: int, dim: int) -> Work:
    """A table of inner products and its softmax, forward and backward."""
    return Work(name, STEP * cells * dim, 4 * STEP * FLOAT * cells)


def normaliser_work(name: str, num_rows: int, num_columns: int, dim: int, kind: str, precision: Precision) -> Work:
    """A log-sum-exp of inner products, whose table is made again in the backward pass unless it was kept."""
    cells = num_rows * num_columns
    fused = is_fused(kind, precision)
    products = STEP if cells <= KEPT[kind] and not fused else STEP + 1
    if fused and dim:  # the table stays in registers: only the vectors move
        return Work(name, products * cells * dim, 2 * products * FLOAT * (num_rows + num_columns) * dim, "triton")
    return Work(name, products * cells * dim, 6 * FLOAT * cells)


def network_work(num_rows: int, dim: int) -> Work:
    """Two residual layers."""
    return Work("networks", 4 * STEP * num_rows * dim**2, 24 * FLOAT * num_rows * dim)


def scan_work(
    cells: int, width: int, batch: int, length: int, kind: str, precision: Precision, readings: int, factors: int
) -> tuple[Work, ...]:
    """Forward and backward over the positions, which read the transition, a product of `factors`, and move messages;
    its gradient, a product for each over all positions."""
    tokens, bytes_of_cell = batch * length, 2 if kind == "cuda" and precision == "bf16" else FLOAT
    read, messages = readings * length * bytes_of_cell * cells, 8 * FLOAT * tokens * width
    moved = STEP * FLOAT * cells + 4 * FLOAT * tokens * width
    gradient = Work("scan gradient", min(factors, 2) * tokens * cells, moved)
    if readings == 1:
        return Work("scan", 2 * tokens * cells, read + messages, "triton"), gradient
    least = 2 * factors * length * THIN[kind]
    return Work("scan", 2 * tokens * cells, read, least=least), Work("scan messages", 0, messages), gradient


def _segments(sizes: ChainSizes, made: int, batch: int, length: int, kind: str) -> tuple[Work, Work]:
    """Windows of both passes and the posteriors of all durations, a product per frame; the transition's gradient."""
    z, rank, tokens = sizes.num_states, sizes.rank, batch * length
    window, cells, work, widest = sizes.max_duration * z, made, made, 0
    if rank is not None and not sizes.may_repeat:  # by blocks that leave the diagonal out; one block is a matrix
        size = block_size(z, rank)
        blocks = -(-z // size)
        cells = z * z if blocks == 1 else z * (2 * rank + size)
        work, widest = (cells, 0) if blocks == 1 else (cells + blocks**2 * rank, 2 * rank + size)
    # One launch takes all frames, one program for each sequence, where a multiprocessor can hold a frame's work.
    fused = sizes.max_duration <= segment_scan.LONGEST and 2 * window + work <= segment_scan.LARGEST
    fused = fused and kind == "cuda" and widest <= 3 * segment_scan.WIDEST
    moved = 2 * length * FLOAT * cells + 10 * FLOAT * tokens * window
    return (
        Work("segments", 2 * tokens * cells + STEP * tokens * window, moved, "triton" if fused else "torch"),
        Work("scan gradient", STEP * tokens * cells, STEP * FLOAT * cells + 4 * FLOAT * tokens * z),
    )


def multiplied_out(num_states: int, rank: int, kind: str) -> Work:
    """V^T U, the transition of ranks, from two tables "z r", and their gradients."""
    z, r = num_states, rank
    return Work("V^T U", STEP * z * r * r, STEP * FLOAT * (2 * z * r + r * r), calls=MULTIPLIED_OUT[kind])


def softmaxes(tables: Peak, cells: int, kind: str) -> Peak:
    """Tables made as softmaxes, and the gradient of one table's logits: on a GPU in pieces, one at a time."""
    piece = max(PIECE_OF_LOGITS / FLOAT, cells / MOST_PIECES)
    return tables * cells + Peak(cells if kind == "cpu" else min(cells, piece), 0)


def with_emission(tables: Peak, num_rows: int, num_words: int, dim: int, kind: str, precision: Precision) -> Peak:
    """The tables of a transition or of rules together with the distributions of words."""
    if dim:
        return with_normaliser(tables, tables.evaluation, num_rows, num_words, dim, kind, precision)
    return tables + FREE_EMISSION * (num_rows * num_words)


def with_normaliser(
    before: Peak, left: float, num_rows: int, num_columns: int, dim: int, kind: str, precision: Precision
) -> Peak:
    """Tables whose gradient is made `before` that of a log-sum-exp of inner products; so many are `left` then.

    The normaliser keeps its table while that is small, or one block of it; its gradient needs that of rows and of
    columns, and two tables of rows on the way. Fused, it keeps its operands in half precision; its gradient needs a
    block of the softmax in float16, the operands once more, and the columns' gradient twice.
    """
    cells = num_rows * num_columns
    if is_fused(kind, precision):
        kept = (num_rows + num_columns) * dim / 2
        made = min(cells, SHARES) / 2 + (1.5 * num_rows + 2.5 * num_columns) * dim
    else:
        kept = cells if cells <= KEPT[kind] else BLOCK[kind]
        made = (3 * num_rows + num_columns) * dim
    return Peak(max(before.step, left + made) + kept, before.evaluation + kept)


def is_fused(kind: str, precision: Precision) -> bool:
    """Whether a normaliser is one Triton kernel, which sums where it multiplies and never writes a table."""
    return kind == "cuda" and precision != "float32"


def products_in(precision: Precision, batch: int) -> Precision:
    """The precision of a chain's products: bf16 is for few sequences, where reading a transition takes the time."""
    return "tf32" if precision == "bf16" and batch > FEW else precision


def num_readings(kind: str, precision: Precision, batch: int) -> int:
    """How often a step of the scan reads the transition: once, where both passes meet in a kernel."""
    return 1 if is_fused(kind, precision) and batch <= FEW else 2
