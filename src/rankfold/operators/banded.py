"""The banded matrix: each state reaches only its neighbours.

Products run on dense blocks along the diagonal: a block of rows touches a window of columns, and all
blocks are one batched product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfold.errors import ShapeError, expect, expect_logs, expect_weights
from rankfold.kernels.log_products import BLOCK, log_matmul
from rankfold.numerics.log_space import log_sum, x_log_x
from rankfold.operators.factor import Factor
from rankfold.operators.protocol import Inner

# Fewest rows of a block: below it a batched product is all overhead, above it a narrow band is all zeros.
MIN_BLOCK = 32


class Banded:
    """A[z, z + offset + c] = weight[z, c], zero elsewhere.   push and pull: about 2 z k multiply-adds.

    Square. Cells of `weight` that lie outside the matrix are never read and get no gradient.
    """

    def __init__(self, weight: Tensor, offset: int) -> None:  # "z k"
        expect(weight, "z k", name="weight")
        _expect_inside(weight, offset)
        expect_weights(_inside(weight, offset, 0.0), name="weight")
        self._set(weight, offset, is_log=False)

    @classmethod
    def from_log(cls, log_weight: Tensor, offset: int) -> Banded:  # "z k"
        """The same from logarithms of any range."""
        expect(log_weight, "z k", name="log_weight")
        _expect_inside(log_weight, offset)
        expect_logs(_inside(log_weight, offset, float("-inf")), name="log_weight")
        return cls._of(log_weight, offset, is_log=True)

    @classmethod
    def unchecked(cls, weight: Tensor, offset: int) -> Banded:  # "z k"
        """The same without a look at the values: for weights that are distributions by construction."""
        return cls._of(weight, offset, is_log=False)

    @classmethod
    def _of(cls, value: Tensor, offset: int, *, is_log: bool) -> Self:
        self = cls.__new__(cls)
        self._set(value, offset, is_log=is_log)
        return self

    def _set(self, value: Tensor, offset: int, *, is_log: bool) -> None:
        self._value, self.offset = value, offset
        self._weight = Factor(_inside(value, offset, float("-inf") if is_log else 0.0), is_log=is_log)
        self._made: dict[tuple[str, bool, bool], Tensor] = {}  # blocks, once asked for, in each mode of autograd

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._value, self.offset, self._weight.is_log)

    @property
    def _by_source(self) -> Tensor:  # "block row window"
        return self._kept("source", lambda: self._weight.linear)

    @property
    def _by_target(self) -> Tensor:  # "block row window"
        return self._kept("target", lambda: _transposed(self._weight.linear, self.offset, 0.0))

    def _kept(self, name: str, band: Callable[[], Tensor]) -> Tensor:
        key = name, torch.is_grad_enabled() and self._value.requires_grad, torch.is_inference_mode_enabled()
        if key not in self._made:
            self._made[key] = _blocks(band(), 0.0)
        return self._made[key]

    @property
    def shape(self) -> tuple[int, int]:
        return self._value.shape[0], self._value.shape[0]

    @property
    def width(self) -> int:
        """The number of diagonals."""
        return self._value.shape[1]

    @property
    def log_scale(self) -> Tensor | float:
        return self._weight.log_scale

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return (self._weight.is_log,)

    def factors(self) -> tuple[Tensor, ...]:
        return (self._value,)

    def with_factors(self, *factors: Tensor) -> Self:
        (weight,) = factors
        return self._of(weight, self.offset, is_log=self._weight.is_log)

    @property
    def _offset_back(self) -> int:
        """The offset of the transposed band."""
        return 1 - self.offset - self.width

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return _windowed(x, self._by_target, self._offset_back, self.width, 0.0)

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return _windowed(x, self._by_source, self.offset, self.width, 0.0)

    def gradients(self, source: Tensor, target: Tensor, inner: Inner | None = None) -> tuple[Tensor, ...] | None:
        """d sum_n source[n] A target[n] / d factors: one product per block; None where autograd has to find it."""
        if self._weight.is_log:
            return None
        size, width = self._value.shape
        num_blocks, height, window = _block_shape(size, width)
        sources = pad(source, (0, num_blocks * height - size)).reshape(-1, num_blocks, height)
        targets = _shifted(target, self.offset, num_blocks * height + width - 1, 0.0).unfold(-1, window, height)
        blocks = torch.bmm(sources.permute(1, 2, 0), targets.transpose(0, 1)).to(source.dtype)
        # Cell (i, i + c) of a block is cell (i, c) of the band.
        band = blocks.as_strided((num_blocks, height, width), (height * window, window + 1, 1))
        return (_inside(band.reshape(-1, width)[:size], self.offset, 0.0),)

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor]:  # "n z", "n y"
        shifted = (_shifted(log_y, self.offset + c, log_y.shape[1], float("-inf")) for c in range(self.width))
        return [torch.stack([log_sum((log_x + y).mT) for y in shifted], 1)]

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        by_target = _transposed(self._weight.log, self.offset, float("-inf"))
        blocks = _blocks(by_target, float("-inf"))
        return _windowed(log_x, blocks, self._offset_back, self.width, float("-inf"))

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        blocks = _blocks(self._weight.log, float("-inf"))
        return _windowed(log_x, blocks, self.offset, self.width, float("-inf"))

    def push_max(self, log_x: Tensor) -> tuple[Tensor, Tensor]:  # "b z" -> best "b y", argmax "b y"
        """Best predecessors: b z k additions, ties to the smallest index."""
        by_target = _transposed(self._weight.log, self.offset, float("-inf"))  # "y k"
        sources = _shifted(log_x, self._offset_back, self.shape[0] + self.width - 1, float("-inf"))
        height = max(1, BLOCK // (self.shape[0] * self.width))
        best = [(x.unfold(-1, self.width, 1) + by_target).max(-1) for x in sources.split(height)]  # type: ignore[no-untyped-call]
        value, cell = (torch.cat(parts) for parts in zip(*best, strict=True))
        index = torch.arange(self.shape[0], device=log_x.device) + self._offset_back + cell
        return value, index.clamp(0, self.shape[0] - 1)  # a state nobody reaches: any index, value -inf

    def push_loss(self) -> float:
        return 2.0 * self.shape[0]  # of a weight and of its product, for every source

    def pull_loss(self) -> float:
        return 2.0 * self.shape[1]

    def push_log_weighted(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        by_target = _transposed(x_log_x(self._weight.linear), self.offset, 0.0)
        return _windowed(x, _blocks(by_target, 0.0), self._offset_back, self.width, 0.0)

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._spread(self._weight.linear, index, 0.0)

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._spread(self._weight.log, index, float("-inf"))

    def to_dense(self) -> Tensor:  # "z y"
        every = torch.arange(self.shape[0], device=self._value.device)
        return torch.exp(self.log_rows(every)) if self._weight.is_log else self.rows(every)

    def _spread(self, band: Tensor, index: Tensor, empty: float) -> Tensor:
        size = self.shape[0]
        column = index[:, None] + self.offset + torch.arange(self.width, device=index.device)
        # Cells outside the matrix go to a last column that is cut off.
        column = torch.where((column >= 0) & (column < size), column, size)
        out = band.new_full((len(index), size + 1), empty)
        return out.scatter_(1, column, band[index])[:, :size]


def _made(kind: type[Banded], value: Tensor, offset: int, is_log: bool) -> Banded:
    return kind._of(value, offset, is_log=is_log)


def _expect_inside(weight: Tensor, offset: int) -> None:
    size, width = weight.shape
    if not isinstance(offset, int):
        raise ShapeError(f"offset is {offset!r} of {type(offset).__name__}, but is an int: int(offset).")
    if offset <= -size or offset + width > size:
        raise ShapeError(
            f"a band of {width} diagonals from offset {offset} leaves a matrix of {size} states: "
            f"diagonals run from {1 - size} to {size - 1}.\n"
            f"  Give offset >= {1 - size} and offset + {width} <= {size}."
        )


def _inside(band: Tensor, offset: int, outside: float) -> Tensor:  # "z k"
    """The band with every cell outside the matrix set to `outside`."""
    size, width = band.shape
    column = torch.arange(size, device=band.device)[:, None] + offset + torch.arange(width, device=band.device)
    return torch.where((column >= 0) & (column < size), band, outside)


def _transposed(band: Tensor, offset: int, outside: float) -> Tensor:  # "z k" -> "y k"
    """The band of the transposed matrix, whose offset is 1 - offset - k."""
    size, width = band.shape
    cell = torch.arange(width, device=band.device)
    source = torch.arange(size, device=band.device)[:, None] + 1 - offset - width + cell
    taken = band.flip(-1)[source.clamp(0, size - 1), cell]
    return torch.where((source >= 0) & (source < size), taken, outside)


def _blocks(band: Tensor, empty: float) -> Tensor:  # "z k" -> "block row window"
    """Dense blocks along the band: block[i, i + c] = band[i, c]."""
    size, width = band.shape
    num_blocks, height, _ = _block_shape(size, width)
    band = pad(band, (0, height, 0, num_blocks * height - size), value=empty)
    # Rows of height + k cells, read back as rows of height + k - 1 cells: row i moves i cells right.
    flat = band.reshape(num_blocks, height * (height + width))[:, : height * (height + width - 1)]
    return flat.reshape(num_blocks, height, height + width - 1)


def _block_shape(size: int, width: int) -> tuple[int, int, int]:
    """How many blocks, their rows, their columns."""
    height = max(width, MIN_BLOCK)
    height += -(height + width - 1) % 8  # windows that begin where a GPU's products want them
    return -(-size // height), height, height + width - 1


def _shifted(x: Tensor, offset: int, length: int, empty: float) -> Tensor:  # "... z" -> "... length"
    """x[..., offset : offset + length], `empty` where that lies outside."""
    return pad(x, (-offset, offset + length - x.shape[-1]), value=empty)


def _windowed(x: Tensor, blocks: Tensor, offset: int, width: int, empty: float) -> Tensor:
    """out[..., i] = sum_c band[i, c] x[..., i + offset + c], in linear or (if `empty` is -inf) log space."""
    num_blocks, height, window = blocks.shape
    size = x.shape[-1]
    flat = _shifted(x.reshape(-1, size), offset, num_blocks * height + width - 1, empty)
    windows = flat.unfold(-1, window, height).transpose(0, 1)  # "block n window"
    out = torch.bmm(windows, blocks.mT) if empty == 0.0 else log_matmul(windows, blocks.mT)
    return out.transpose(0, 1).reshape(-1, num_blocks * height)[:, :size].reshape(x.shape)
