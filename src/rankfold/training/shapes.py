"""The few shapes that batches are filled up to, so that a graph is captured once for each.

Widths go up to a multiple of 8, rows to the most that a batch of such a width can have.
Read next: `training/graphs.py`.
"""

from __future__ import annotations

from rankfold.data.batch import Batch
from rankfold.training.config import DataConfig

WIDTH, WIDEST = 8, 512  # widths are multiples of the first, at most the second: so many shapes are captured


class Shapes:
    """Rows and width of the graph that takes a batch: a matter of its shape alone, so a resumed run takes the same.

    `part_tokens` is the largest part of a batch, where batches come in parts (`gradients.row_parts`); 0: they do not.
    """

    def __init__(self, data: DataConfig, part_tokens: int = 0) -> None:
        self.data, self.part_tokens = data, part_tokens

    def of(self, batch: Batch) -> tuple[int, int] | None:
        """The shape a batch is filled up to; None where no graph takes it."""
        num, width = batch.words.shape
        if self.data.batching == "streams":
            shape = self._window()
        elif self.data.batching == "unsorted" and not self.part_tokens:
            shape = unsorted_shape(self.data.tokens, width)
        else:
            padded = padded_width(width)
            shape = max(1, (self.part_tokens or self.data.tokens) // padded), padded
        fits = num <= shape[0] and width <= shape[1]
        return shape if fits and (shape[1] <= WIDEST or self.data.batching == "streams") else None

    def _window(self) -> tuple[int, int]:
        """One shape for all windows of the streams, also for the last, which is narrower."""
        num, window = self.data.num_streams, self.data.window
        return (min(num, max(1, self.part_tokens // padded_width(window))) if self.part_tokens else num), window


def unsorted_shape(tokens: int, width: int) -> tuple[int, int]:
    """Rows for every batch of a width that is filled up to the same: budgets count widths as they are.

    Below 8 widths are powers of two, so that a shape never has twice the budget: at most 16 / 9 of it, or one row.
    """
    padded = padded_width(width) if width > WIDTH // 2 else 1 << (width - 1).bit_length()
    narrowest = padded // 2 + 1 if padded <= WIDTH else padded - WIDTH + 1
    return max(1, tokens // narrowest), padded


def padded_width(width: int) -> int:
    """A width as graphs count it."""
    return -(-width // WIDTH) * WIDTH
