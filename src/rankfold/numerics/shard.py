"""The share of one process in an axis that several processes hold together, and sums over all of them.

Two conventions make derivatives right. A result that all have alike (`total`) has the same gradient on every process. A
number that all have alike but each uses for its own rows (`common`) gets the gradients of all of them, added up.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankfold.errors import DomainError, UnsupportedError, quantity
from rankfold.numerics.collectives import all_reduce, exchange, gather_objects, raise_told, sendable, told_of
from rankfold.numerics.function import Function
from rankfold.numerics.log_space import log_sum


class Shard:
    """Rows `start` to `stop` of an axis of `size`, those of process `number` of `num`; the last may have fewer.

    `sent` counts the bytes that this process gave to each kind of collective.
    """

    def __init__(self, size: int, number: int, num: int, *, what: str = "states") -> None:
        height = -(-size // num) if num else 0
        if num < 1 or height * (num - 1) >= size:
            fewer = max(1, -(-size // height)) if num > 0 else 1
            raise DomainError(
                f"{size:,} {what} cannot be shared by {num} processes: some would have none.\n"
                f"  Take {fewer} processes (model.shards={fewer}), or more {what}."
            )
        self.size, self.number, self.num, self.what = size, number, num, what
        self.ends = [min(size, height * i) for i in range(num + 1)]
        self.sent: Counter[str] = Counter()

    @classmethod
    def of_processes(cls, size: int, *, what: str = "states") -> Shard:
        """The share of this process among all that were started together."""
        if not (dist.is_available() and dist.is_initialized()):
            raise UnsupportedError(
                f"{what} are shared by several processes, but this one was started alone.\n"
                "  Start them together: torchrun --nproc-per-node N ... A script that loads no model calls "
                "torch.distributed.init_process_group."
            )
        return cls(size, dist.get_rank(), dist.get_world_size(), what=what)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shard:
        return self  # the processes are the same ones

    def like(self, size: int, *, what: str) -> Shard:
        """The share in another axis, counted together with this one."""
        other = Shard(size, self.number, self.num, what=what)
        other.sent = self.sent
        return other

    @property
    def start(self) -> int:
        """The first row that is its own."""
        return self.ends[self.number]

    @property
    def stop(self) -> int:
        """The row after its last."""
        return self.ends[self.number + 1]

    @property
    def own(self) -> slice:
        """Its rows."""
        return slice(self.start, self.stop)

    @property
    def height(self) -> int:
        """How many rows it has."""
        return self.stop - self.start

    def holds(self, index: Tensor) -> Tensor:  # bool
        """Which rows of the whole axis, given by number, are its own."""
        return (index >= self.start) & (index < self.stop)

    def local(self, index: Tensor) -> Tensor:
        """Numbers of its own rows among themselves; 0 for rows of others."""
        return torch.where(self.holds(index), index - self.start, 0)

    def cut(self, x: Tensor | None) -> Tensor | None:  # "... all" -> "... own"
        """Its own entries of a tensor that all processes have."""
        return None if x is None else x[..., self.own]

    # Sums over all processes.

    def total(self, x: Tensor) -> Tensor:
        """The sum of all processes' tensors, of which every one takes the same gradient."""
        out: Tensor = _Total.apply(x, self)
        return out

    def common(self, x: Tensor) -> Tensor:
        """The same tensor, which every process uses for its own rows: their gradients are added up."""
        out: Tensor = _Common.apply(x, self)
        return out

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all processes' tensors, to be used by each for its own rows."""
        return self.common(self.total(x))

    def most(self, x: Tensor) -> Tensor:
        """The largest of all processes' entries, each by itself; a constant to autograd."""
        return self._reduce(x.detach(), dist.ReduceOp.MAX)

    def any(self, x: bool) -> bool:
        """Whether it is true on any process."""
        return bool(self.most(torch.tensor([float(x)]))[0])

    def log_sum(self, x: Tensor) -> Tensor:
        """log of the sum of all processes' exp(x), to be used by each for its own rows; -inf where all are."""
        top = self.most(x)
        top = torch.where(top > float("-inf"), top, 0.0)
        total = self.sum(torch.exp(x - top))
        nothing = total == 0
        return torch.where(nothing, float("-inf"), torch.log(torch.where(nothing, 1.0, total))) + top

    def softmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:  # "m own" -> "m own", "m"
        """Its own entries of softmax over all processes' last axes, and the log of each row's normaliser.

        Nothing but the result is kept for the gradient; "m" numbers are sent three times. Where a row has no weight,
        none of its entries has.
        """
        share, log_total = _Softmax.apply(logits, self)
        return share, log_total

    def log_softmax(self, logits: Tensor) -> Tensor:  # "... own" -> "... own"
        """The logarithm of softmax over all processes' last axes."""
        return logits - self.log_sum(log_sum(logits))[..., None]

    def gather(self, x: Tensor) -> Tensor:  # "... own" -> "... all"
        """All processes' entries along the last axis, in order."""
        out: Tensor = _Gather.apply(x, self)
        return out

    def scatter(self, x: Tensor) -> Tensor:  # "... all" -> "... own"
        """Its own entries along the last axis, summed over all processes."""
        out: Tensor = _Scatter.apply(x, self)
        return out

    def scatter_with(self, x: Tensor, also: Tensor) -> tuple[Tensor, Tensor]:  # "... all", "... 1"
        """The same and, in the same message, the sum of another number, "... 1"; no derivative."""
        chunks = [torch.cat([chunk, also], -1) for chunk in self._chunks(x)]
        out = self._scatter_chunks(chunks)
        return out[..., : self.height], out[..., -1:]

    def objects(self, x: Any) -> list[Any]:
        """An object of every process, in order."""
        return gather_objects(x)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Where one process raises inside the block, all do, with its text. Nothing may be sent inside."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        if self.any(error is not None):
            raise_told(error, self.objects(told_of(error)))

    def __repr__(self) -> str:
        return f"Shard({self.start}:{self.stop} of {quantity(self.size, self.what.removesuffix('s'))})"

    def _reduce(self, x: Tensor, op: Any = None) -> Tensor:
        out = x.clone(memory_format=torch.contiguous_format)
        self._count("all_reduce", out)
        all_reduce(out, op)
        return out

    def _gathered(self, x: Tensor) -> Tensor:  # "... own" -> "... all"
        own = sendable(_padded(x, self.ends[1]))
        found = [torch.empty_like(own) for _ in range(self.num)]
        self._count("all_gather", own)
        exchange(lambda: dist.all_gather(found, own))
        heights = [b - a for a, b in itertools.pairwise(self.ends)]
        return torch.cat([part[..., :k] for part, k in zip(found, heights, strict=True)], -1).to(x.device)

    def _scattered(self, x: Tensor) -> Tensor:  # "... all" -> "... own"
        return self._scatter_chunks(self._chunks(x))[..., : self.height]

    def _chunks(self, x: Tensor) -> list[Tensor]:
        return [_padded(x[..., a:b], self.ends[1]) for a, b in itertools.pairwise(self.ends)]

    def _scatter_chunks(self, chunks: Sequence[Tensor]) -> Tensor:
        ready = [sendable(chunk) for chunk in chunks]
        out = torch.empty_like(ready[0])
        for chunk in ready:
            self._count("reduce_scatter", chunk)
        exchange(lambda: dist.reduce_scatter(out, ready))
        return out.to(chunks[0].device)

    def _count(self, kind: str, x: Tensor) -> None:
        self.sent[kind] += x.numel() * x.element_size()


def _padded(x: Tensor, width: int) -> Tensor:  # "... k" -> "... width"
    """Zeros at the end, so that all processes send as much."""
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard._reduce(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Common(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.shard._reduce(grads[0]), None


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
        top = shard.most(logits.amax(1))
        top = torch.where(top > float("-inf"), top, 0.0)
        share = torch.exp(logits - top[:, None])
        total = shard._reduce(share.sum(1))
        share /= torch.where(total > 0, total, 1.0)[:, None]
        ctx.shard = shard
        ctx.save_for_backward(share)
        return share, total.log() + top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (share,) = ctx.saved_tensors
        grad, of_total = grads
        # A share of 0 is used by nobody, however large the gradient of one that were not 0.
        grad = grad.masked_fill((share == 0) & grad.isinf(), 0.0)
        level = ctx.shard._reduce((grad * share).sum(1) - of_total)
        return share * (grad - level[:, None]), None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard._gathered(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.shard._scattered(grads[0]), None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard._scattered(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.shard._gathered(grads[0]), None
