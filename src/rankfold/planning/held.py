"""How many tables are alive at the peak of a gradient step, and of an evaluation: the constants behind the bytes.

A table is one number for each of its cells, 4 bytes. Tables were counted in lists of a step's allocations as a GPU has
them, Triton kernels left out (2026-11-16): their peaks are one H200's within 1 MiB, but for an embedding's gradient,
for which CUDA takes more. Constants by kind, and those of a token, are slopes of a CPU process's peak in the sizes, and
fits to that GPU's peaks (2026-11-15). Read next: `planning/families.py`, which multiplies them by the sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rankfold.kernels.forward_backward import FEW
from rankfold.kernels.linear_logsumexp import BLOCK, KEPT
from rankfold.numerics.precision import Precision
from rankfold.planning.cost import FLOAT

HALF = 2  # bytes
# Bytes of a piece of a softmax's gradient (`linear_softmax`), and the most pieces of a large one; entries of a block of
# a normaliser's (`linear_logsumexp`): as in their Triton files, which cannot be read where Triton is not installed.
PIECE_OF_LOGITS, MOST_PIECES, SHARES = 2**26, 8, 2**25


class Held(NamedTuple):
    """Tables of one kind alive at once."""

    step: float  # at the peak of a gradient step, parameters and their gradients apart
    evaluation: float  # without gradients


# By the two or one factors of the transition, "z r" or "z y": of each the table and its gradient; `softmax_bytes` adds
# that of the logits.
LOW_RANK, DENSE = Held(4, 2), Held(2, 1)
FREE_LOW_RANK, FREE_DENSE = Held(7, 3), Held(5, 4)  # the logarithms, too
# "z r", "z k" and "z y" of a band beside a low rank, with its int64 columns: peaks where rows are normalised, and where
# the band is laid out as dense blocks along the diagonal. Where a GPU writes the sum of both out, that is another: the
# matrix with the band in it, and that with the low rank added.
BANDED = (Held(8, 4), Held(11, 6), Held(0, 0)), (Held(6, 2), Held(15, 11), Held(0, 0))
WRITTEN_BAND = Held(3, 0), Held(5, 0), Held(2, 0)
# "z r" and "r r" of a rank-space model: the factors, whose gradient a CPU copies to add the start's, and V^T U. Then
# both where V^T U is made, of two parts where its sums are long, and where its gradient is: in bf16 with rounded copies
# of the factors, of both or of one.
RANK, FREE_RANK, SQUARE = {"cpu": Held(5, 2), "cuda": LOW_RANK}, Held(5, 3), Held(1, 1)
MULTIPLIED, MULTIPLIED_HALF = (Held(4, 2), Held(3, 3)), (Held(4.5, 3), Held(3, 3))
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
# Of "k k", the transition between two words, and of "k d", the embeddings of its two sides. Two peaks: posteriors of
# all transitions at once, then the gradients of both sides.
PAIRS = (Held(3, 2), Held(2, 2)), (Held(1, 0), Held(4, 0))


def num_bytes(held: Held, cells: int) -> Held:
    """The bytes of so many tables, in a step and in an evaluation."""
    return Held(held.step * FLOAT * cells, held.evaluation * FLOAT * cells)


def summed(*parts: Held) -> Held:
    """All parts at once."""
    return Held(*map(sum, zip(*parts, strict=True)))


def larger(*parts: Held) -> Held:
    """Whichever part is the largest."""
    return Held(*map(max, zip(*parts, strict=True)))


def peak_bytes(peaks: Iterable[Sequence[Held]], cells: Sequence[int]) -> Held:
    """The bytes of the largest of several peaks: each has so many tables of every size in `cells`."""
    return larger(*(summed(*map(num_bytes, peak, cells)) for peak in peaks))


def softmax_bytes(tables: Held, cells: int, kind: str) -> Held:
    """The bytes of tables that are made as softmaxes, and of the gradient of one table's logits: on a GPU that is made
    in pieces, one at a time."""
    whole = FLOAT * cells
    logits = whole if kind == "cpu" else min(whole, max(PIECE_OF_LOGITS, whole / MOST_PIECES))
    return summed(num_bytes(tables, cells), Held(logits, 0))


def total(*parts: Held) -> tuple[int, int]:
    """The bytes of all parts together, in a step and in an evaluation."""
    step, evaluation = summed(*parts)
    return int(step), int(evaluation)


def normaliser(num_rows: int, num_columns: int, dim: int, kind: str, precision: Precision) -> Held:
    """What a log-sum-exp of inner products keeps: one block of its table, or all of it while it is small; fused, its
    operands in half precision."""
    if is_fused(kind, precision):
        size = HALF * (num_rows + num_columns) * dim
    else:
        kept = is_kept(num_rows, num_columns, kind, precision)
        size = FLOAT * min(num_rows * num_columns, KEPT[kind] if kept else BLOCK[kind])
    return Held(size, size)


def with_normaliser(
    before: Held, left: float, num_rows: int, num_columns: int, dim: int, kind: str, precision: Precision
) -> Held:
    """The bytes of a normaliser and of what has its gradient made `before`, of which so many bytes are `left` then.

    The normaliser's own gradient needs that of rows and of columns, and two tables of rows on the way. Fused, it needs
    a block of the softmax in float16, its operands once more in half precision, and the columns' gradient twice.
    """
    kept = normaliser(num_rows, num_columns, dim, kind, precision)
    made = FLOAT * (3 * num_rows + num_columns) * dim
    if is_fused(kind, precision):
        operands = (HALF + FLOAT) * num_rows + (HALF + 2 * FLOAT) * num_columns
        made = HALF * min(num_rows * num_columns, SHARES) + operands * dim
    return Held(max(before.step, left + made) + kept.step, before.evaluation + kept.evaluation)


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
