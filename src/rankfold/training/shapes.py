"""The few shapes that batches are filled up to, so that a graph is captured once for each.

Widths go up to a multiple of 8, of trees 4, of recordings at most an eighth more; rows to the most that a batch of such
a width can have.
"""

from __future__ import annotations

from rankfold.data.batch import Batch
from rankfold.models.config import DataKind
from rankfold.training.config import Config, DataConfig

WIDTH, WIDEST = 8, 512  # widths are multiples of the first, at most the second: so many shapes are captured
# A tree's time grows with the cube of its width, its memory with the square, and wide ones are not bound by launches.
TREE_WIDTH, TREE_WIDEST = 4, 96
# Recordings are long and few: from 64 frames on eight shapes for each doubling of the width.
FRAMES_WIDEST = 2048


class Shapes:
    """Rows and width of the graph that takes a batch: a matter of its shape alone, so a resumed run takes the same.

    `part_tokens` is the largest part of a batch, where batches come in parts (`gradients.row_parts`), of trees as wide
    as `tree_width`; 0: they do not.
    """

    widest = WIDEST  # above this no graph is captured, but of streams

    def __init__(self, data: DataConfig, part_tokens: int = 0, *, tree_width: int = 0) -> None:
        self.data, self.part_tokens, self.tree_width = data, part_tokens, tree_width

    def multiple(self, width: int) -> int:
        """The number that widths are padded up to a multiple of."""
        return WIDTH

    def of(self, batch: Batch) -> tuple[int, int] | None:
        """The shape a batch is filled up to; None where no graph takes it."""
        num, width = batch.shape
        streams = self.data.batching == "streams"
        shape = self._window(width) if streams else self._filled(width)
        fits = num <= shape[0] and width <= shape[1]
        return shape if fits and (streams or shape[1] <= self.widest) else None

    def _filled(self, width: int) -> tuple[int, int]:
        if self.data.batching == "unsorted" and not self.part_tokens:
            return unsorted_shape(self.data.tokens, width)
        padded = padded_width(width, self.multiple(width))
        return self._rows(padded), padded

    def _rows(self, padded: int) -> int:
        """Rows of every batch, or part of one, that is filled up to this width."""
        data = self.data
        if self.part_tokens:
            fitting = rows_that_fit(padded, self.part_tokens, self.tree_width)
            return min(fitting, data.sentences) if data.sentences else fitting
        limits = [data.sentences] * bool(data.sentences) + [data.tokens // self._narrowest(padded)] * bool(data.tokens)
        return max(1, min(limits))

    def _narrowest(self, padded: int) -> int:
        """The width of a shape's batches that have most rows."""
        return padded

    def _window(self, width: int) -> tuple[int, int]:
        """One shape for all windows of the streams, also for the last, which is narrower."""
        num, window = self.data.num_streams, self.data.window
        return (min(num, rows_that_fit(padded_width(window), self.part_tokens)) if self.part_tokens else num), window


class TreeShapes(Shapes):
    """The same for sentences of a grammar."""

    widest = TREE_WIDEST

    def multiple(self, width: int) -> int:
        return TREE_WIDTH

    def _narrowest(self, padded: int) -> int:
        """Trees have few rows: padding rows cost more than they save."""
        rounded = self.data.rounding % TREE_WIDTH == 0
        return padded if rounded else max(2, padded - TREE_WIDTH + 1)


class FrameShapes(Shapes):
    """The same for recordings: a shape has rows for every batch of its widths, at most 16 / 9 of the tokens."""

    widest = FRAMES_WIDEST

    def multiple(self, width: int) -> int:
        """8, beyond 128 frames more, such that at most an eighth is added; below 8 frames a power of two."""
        power = 1 << (width - 1).bit_length()
        return min(power, max(WIDTH, power // 16))

    def _filled(self, width: int) -> tuple[int, int]:
        padded = padded_width(width, self.multiple(width))
        return self._rows(padded), padded

    def _window(self, width: int) -> tuple[int, int]:
        """The windows of a recording are as wide as each other, not as the widest that is allowed."""
        padded = min(padded_width(width, self.multiple(width)), self.data.window)
        num = self.data.num_streams
        return (min(num, rows_that_fit(padded, self.part_tokens)) if self.part_tokens else num), padded

    def _narrowest(self, padded: int) -> int:
        narrowest = padded // 2 + 1 if padded <= WIDTH else padded - self.multiple(padded) + 1
        rounding = self.data.rounding if self.data.batching == "length" else 1
        return padded_width(narrowest, rounding)


SHAPES: dict[DataKind, type[Shapes]] = {"text": Shapes, "sentences": TreeShapes, "recordings": FrameShapes}


def shapes_of(config: Config, part_tokens: int = 0, tree_width: int = 0) -> Shapes:
    """The shapes of a recipe's batches, or of the parts they come in."""
    return SHAPES[config.model.data](config.data, part_tokens, tree_width=tree_width)


def unsorted_shape(tokens: int, width: int) -> tuple[int, int]:
    """Rows for every batch of a width that is filled up to the same: budgets count widths as they are.

    Below 8 widths are powers of two, so that a shape never has twice the budget: at most 16 / 9 of it, or one row.
    """
    padded = padded_width(width) if width > WIDTH // 2 else 1 << (width - 1).bit_length()
    narrowest = padded // 2 + 1 if padded <= WIDTH else padded - WIDTH + 1
    return max(1, tokens // narrowest), padded


def padded_width(width: int, multiple: int = WIDTH) -> int:
    """A width as graphs count it."""
    return -(-width // multiple) * multiple


def rows_that_fit(width: int, tokens: int, tree_width: int = 0) -> int:
    """How many rows of a width have so many tokens at most, one at least; of trees, tokens are those of `tree_width`.

    The memory of a tree grows with the square of its width: two half as wide take half of what one takes.
    """
    return max(1, tokens * tree_width // width**2 if tree_width else tokens // width)
