"""What a gradient step costs before it is taken: multiply-adds, bytes moved, bytes held, for each way to do it.

Seconds are the sum over parts of max(operations / rate, bytes / bandwidth) plus a price for each launch. The rates are
fixed figures of a class of machine, not measured here, so that a plan is the same on every run. An estimate, to choose
by and to refuse by, never a result. Read next: `models/base.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from rankfold.errors import UnsupportedError
from rankfold.kernels.linear_logsumexp.torch import KEPT
from rankfold.numerics.precision import Precision, check_precision

FLOAT = 4  # bytes
# A gradient step multiplies every matrix three times: forward, and once for each factor's gradient.
STEP = 3


class Rates(NamedTuple):
    """What a machine does in a second."""

    multiply_adds: float
    bytes: float
    launch: float  # seconds a torch call takes at least


# cpu: 2 cores with AVX2, torch 2.13, 2026-11-15. cuda: one H200, torch 2.11, 2026-11-15 (half of the FLOP/s).
CPU = Rates(4e10, 1e10, 5e-6)
CUDA: dict[str, Rates] = {
    "float32": Rates(25e12, 4.1e12, 15e-6),
    "tf32": Rates(210e12, 4.1e12, 15e-6),
    "bf16": Rates(397e12, 4.1e12, 15e-6),
}


class Work(NamedTuple):
    """One part of a step."""

    name: str
    multiply_adds: int
    bytes: int
    launches: int

    def seconds(self, rates: Rates) -> float:
        """The estimate."""
        return max(self.multiply_adds / rates.multiply_adds, self.bytes / rates.bytes) + self.launches * rates.launch


class Plan(NamedTuple):
    """One way to take a gradient step."""

    order: str
    parts: tuple[Work, ...]
    fixed_bytes: int  # parameters, their gradients, what is made of them once a batch
    token_bytes: int  # messages and observations, for each token of the batch
    tokens: int
    rates: Rates

    @property
    def multiply_adds(self) -> int:
        return sum(part.multiply_adds for part in self.parts)

    @property
    def seconds(self) -> float:
        return sum(part.seconds(self.rates) for part in self.parts)

    @property
    def peak_bytes(self) -> int:
        return self.fixed_bytes + self.token_bytes * self.tokens

    def largest_batch(self, memory: int) -> int:
        """How many tokens fit into this many bytes; 0 if not even the parameters do."""
        return max(0, (memory - self.fixed_bytes) // self.token_bytes)


class Plans(NamedTuple):
    """Every way, the cheapest first."""

    ways: tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        return self.ways[0]


def chain_plan(
    num_states: int,
    rank: int | None,  # None: a dense transition
    band: int,  # diagonals, 0 for none
    num_words: int,
    dim: int,
    batch: int,
    length: int,
    device: str,
    precision: Precision,
    params: int,  # numbers in all parameters
) -> Plans:
    """An HMM that says words from states: state space is the only order, its ranks have no words to themselves."""
    z, rates = num_states, _rates(device, precision)
    cells = (z * z if rank is None else 2 * z * rank) + z * band
    parts = (
        _made("transition", z * z if rank is None else 2 * z * rank, dim),
        _normaliser("emission normaliser", z, num_words, dim),
        _scan("scan", cells, z, batch, length),
    )
    held = _held(params, cells, z, num_words) + _kept(z, num_words, dim, device)
    return Plans((Plan("state", parts, held, _message_bytes(z), batch * length, rates),))


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
    z, r, rates = num_states, rank, _rates(device, precision)
    shared = (_made("factors", 2 * z * r, dim), _normaliser("emission normaliser", r, num_words, dim))
    multiplied = Work("V^T U", STEP * z * r * r, STEP * FLOAT * (2 * z * r + r * r), STEP)
    ways = [
        Plan(
            "rank",
            (*shared, multiplied, _scan("scan", r * r, r, batch, length)),
            _held(params, 2 * z * r + r * r, r, num_words) + _kept(r, num_words, dim, device),
            _message_bytes(r),
            batch * length,
            rates,
        ),
        Plan(
            "state",
            (*shared, _scan("scan", 2 * z * r, r, batch, length)),
            _held(params, 2 * z * r, r, num_words) + _kept(r, num_words, dim, device),
            _message_bytes(r) + FLOAT * z,
            batch * length,
            rates,
        ),
    ]
    return Plans(tuple(sorted(ways, key=lambda way: way.seconds)))


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
    c, k, z, rates = num_clusters, per_cluster, num_clusters * per_cluster, _rates(device, precision)
    tokens = batch * length
    parts = (
        _normaliser("transition normaliser", z, z, dim),
        _made("emissions", c * largest_cluster * k, dim),
        Work("blocks", STEP * tokens * k * k * max(dim, 1), 2 * STEP * FLOAT * tokens * k * (k + dim), 2 * STEP),
        Work("scan", 4 * tokens * k * k, 4 * FLOAT * tokens * k * k, 8 * length),
    )
    held = _held(params, c * largest_cluster * (k + dim), z, 0) + _kept(z, z, dim, device)
    return Plans((Plan("state", parts, held, FLOAT * (4 * k * k + 3 * k * dim), tokens, rates),))


def _rates(device: str, precision: Precision) -> Rates:
    check_precision(precision)
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UnsupportedError(f'device is {device!r}, but a plan is known for "cpu" and "cuda".')
    return CPU if kind == "cpu" else CUDA[precision]


def _made(name: str, cells: int, dim: int) -> Work:
    """A table of inner products and its softmax, forward and backward."""
    return Work(name, STEP * cells * dim, 4 * STEP * FLOAT * cells, 6 * STEP)


def _normaliser(name: str, num_rows: int, num_columns: int, dim: int) -> Work:
    """A blocked log-sum-exp: the table is computed again in the backward pass, and never held."""
    cells = num_rows * num_columns
    return Work(name, (STEP + 1) * cells * dim, 6 * FLOAT * cells, 8 * STEP)


def _scan(name: str, cells: int, width: int, batch: int, length: int) -> Work:
    """Forward and backward over the positions; the transition's gradient is one product over all of them."""
    tokens = batch * length
    moved = 2 * length * FLOAT * cells + 12 * FLOAT * tokens * width
    return Work(name, (2 + STEP) * tokens * cells, moved + STEP * FLOAT * cells, 14 * length)


def _held(params: int, cells: int, num_rows: int, num_words: int) -> int:
    """Parameters and gradients; every table of the transition with its gradient and one copy on the way."""
    return FLOAT * (2 * params + 3 * cells + 4 * num_rows + num_words)


def _kept(num_rows: int, num_columns: int, dim: int, device: str) -> int:
    """The table of a normaliser, kept for the backward pass if it is small enough; free tables (no dim) are written."""
    cells = num_rows * num_columns
    if not dim:
        return 2 * FLOAT * cells
    return FLOAT * cells if cells <= KEPT[device.split(":")[0]] else 0


def _message_bytes(width: int) -> int:
    """Observations, emissions, filtered messages, posteriors and two sides of the transition's gradient."""
    return 7 * FLOAT * width
