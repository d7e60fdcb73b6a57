"""How many tables are alive at the peak of a gradient step, and of an evaluation: the constants behind the bytes.

A table is one number for each of its cells, 4 bytes. cpu: slopes of a process's peak in the sizes, every table in
pages of its own, torch 2.13, 2026-11-15. cuda: fitted to the peaks of one H200, 8 x 32 tokens, dim 256, 2026-11-15.
Read next: `planning/families.py`, which multiplies them by the sizes.
"""

from __future__ import annotations

from typing import NamedTuple

from rankfold.kernels.linear_logsumexp.torch import BLOCK, KEPT
from rankfold.kernels.two_way import FEW
from rankfold.numerics.precision import Precision
from rankfold.planning.cost import FLOAT


class Held(NamedTuple):
    """Tables of one kind alive at once."""

    step: float  # at the peak of a gradient step, parameters and their gradients apart
    evaluation: float  # without gradients


# By the two or one factors of the transition: "z r" of both together count once.
LOW_RANK = {"cpu": Held(5, 2), "cuda": Held(5, 2)}
FREE_LOW_RANK = {"cpu": Held(7, 3), "cuda": Held(7, 3)}
BANDED_LOW_RANK = {"cpu": Held(8, 4), "cuda": Held(8, 4)}
BAND = {"cpu": Held(21, 17), "cuda": Held(21, 17)}  # "z k": dense blocks along the diagonal, and int64 columns
DENSE = {"cpu": Held(3, 1), "cuda": Held(2.25, 1)}  # "z y", and "r r" of V^T U
FREE_DENSE = {"cpu": Held(5, 4), "cuda": Held(5, 4)}  # the logarithms, too
RANK = {"cpu": Held(6, 2), "cuda": Held(5, 2)}  # "z r" of a rank-space model
FREE_EMISSION = Held(4, 1)  # "z v" of free logits
CHAIN_NETWORK = {"cpu": Held(11, 3), "cuda": Held(6, 3)}  # "z d"
RANK_NETWORK = {"cpu": Held(9, 3), "cuda": Held(9, 3)}  # "v d"
BLOCK_NETWORK = {"cpu": Held(12, 6), "cuda": Held(5, 5)}  # "z d"
BLOCK_EMISSION = Held(4, 3)  # "c m k"
FREE_BLOCKS = Held(3, 2)  # "z y" of free logits

# For each token.
MESSAGES = Held(7, 3)  # "z": observations, emissions, filtered, posteriors, both sides of the transition's gradient
BANDED_MESSAGES = Held(9, 3)
THIN = Held(2, 0)  # "z" of a rank-space model whose ranks are the chain
# Of "k k", the transition between two words, and of "k d", the embeddings of its two sides. The larger of two peaks:
# posteriors of all transitions at once, then the gradients of both sides.
PAIRS = (Held(3, 2), Held(2, 2)), (Held(1, 0), Held(4, 0))


def num_bytes(held: Held, cells: int) -> Held:
    """The bytes of so many tables, in a step and in an evaluation."""
    return Held(held.step * FLOAT * cells, held.evaluation * FLOAT * cells)


def pair_bytes(num_states: int, dim: int) -> Held:
    """The bytes of a transition between the `num_states` states of two words."""
    peaks = [total(num_bytes(a, num_states**2), num_bytes(b, num_states * dim)) for a, b in PAIRS]
    return Held(*(max(peak) for peak in zip(*peaks, strict=True)))


def total(*parts: Held) -> tuple[int, int]:
    """The bytes of all parts together, in a step and in an evaluation."""
    return int(sum(part.step for part in parts)), int(sum(part.evaluation for part in parts))


def normaliser(num_rows: int, num_columns: int, kind: str, precision: Precision) -> Held:
    """A log-sum-exp of inner products: one block of its table, or all of it while it is small; fused, none."""
    if is_fused(kind, precision):
        return Held(0, 0)
    kept = is_kept(num_rows, num_columns, kind, precision)
    size = FLOAT * min(num_rows * num_columns, KEPT[kind] if kept else BLOCK[kind])
    return Held(size, size)


def is_fused(kind: str, precision: Precision) -> bool:
    """Whether a normaliser is one Triton kernel, which sums where it multiplies and never writes a table."""
    return kind == "cuda" and precision != "float32"


def in_use(precision: Precision, batch: int) -> Precision:
    """The precision of a chain's products: bf16 is for few sequences, where reading a transition takes the time."""
    return "tf32" if precision == "bf16" and batch > FEW else precision


def readings(kind: str, precision: Precision, batch: int) -> int:
    """How often a step of the scan reads the transition: once, where both passes meet in a kernel."""
    return 1 if is_fused(kind, precision) and batch <= FEW else 2


def is_kept(num_rows: int, num_columns: int, kind: str, precision: Precision) -> bool:
    """Whether the table of a normaliser stays for the backward pass, which saves making it again."""
    return not is_fused(kind, precision) and num_rows * num_columns <= KEPT[kind]


def factor_bytes(kind: str, precision: Precision) -> int:
    """Bytes of a cell of the transition as the scan reads it."""
    return 2 if kind == "cuda" and precision == "bf16" else FLOAT
