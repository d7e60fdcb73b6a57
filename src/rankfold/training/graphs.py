"""Gradients of a batch as captured CUDA graphs: one launch instead of hundreds, where launches are what takes time.

Shapes repeat: batches are filled up to a few, with rows of weight 0 (`training/shapes.py`), and states that are dropped
each by itself are masked. A state carried along streams goes in and out by buffers; the first batch has a graph of its
own. A graph cannot look at values: a sequence it cannot vouch for is NaN, and the loop repeats that update without
graphs. Read next: `training/frame_graphs.py` for recordings, `training/gradients.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfold.data.batch import Batch
from rankfold.models.catalog import AnyModel
from rankfold.models.frame_config import FrameConfig
from rankfold.models.grammar_config import GrammarConfig
from rankfold.models.sequence_model import SequenceModel
from rankfold.numerics.capture import captured
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.training.carried import leaves, mapped
from rankfold.training.config import Config, DataConfig
from rankfold.training.memory import Room
from rankfold.training.shapes import Shapes


def graphs_serve(config: Config, device: str) -> bool:
    """Whether a recipe's gradients can be captured: on a GPU; of streams of words those of block models.

    What other streams carry comes from a ladder of arithmetics (`recursions/chain/filtering.py`), of which a graph has
    the first rung alone: enough for recordings, whose windows are many.
    """
    frames = isinstance(config.model, FrameConfig)
    carries = config.data.batching != "streams" or frames or config.model.family == "block"
    return config.train.graphs and device.startswith("cuda") and carries


class Captured(NamedTuple):
    """One shape: write the inputs, replay, read the results. Gradients are added to the parameters' own."""

    graph: torch.cuda.CUDAGraph
    batch: Any  # the inputs, on the device
    weight: Tensor  # "b"   float64: 1 for a sentence, 0 for a row that only fills the shape
    share: Tensor  # ""     float64: 1 / tokens of the update
    carried: Any  # what streams carry in; None: a first batch, or no streams
    used: list[bool]  # which parameters have a gradient: the start has none where a state is carried in
    log_likelihood: Tensor  # ""   float64
    after: Any  # what streams carry on; None: no streams


class GraphedGradients:
    """Adds the gradient of -log_likelihood / tokens to the parameters, shape by shape from a captured graph."""

    def __init__(self, model: AnyModel, filled: Shapes | int, precision: Precision) -> None:
        """Batches are filled up to the shapes of `filled`; a number is that of tokens, of batches of like lengths."""
        self.model, self.precision = model, precision
        self.filled = Shapes(DataConfig(tokens=filled)) if isinstance(filled, int) else filled
        self.streams = self.filled.data.batching == "streams"
        self.shortest = 2 if self.filled.trees else 1  # of a row that only fills: one word may be impossible
        self.parameters = [x for x in model.parameters() if x.requires_grad]
        self.grads: list[Tensor] = []  # where all graphs add, whatever becomes of the parameters' own between updates
        self.generator = torch.Generator(device=model.device)
        # rows, width, whether a state is carried in, and the batch's kind
        self.shapes: dict[tuple[int | bool, ...], Captured] = {}
        self.pool = torch.cuda.graph_pool_handle()  # shared: results are read before another graph runs

    @classmethod
    def of(cls, model: AnyModel, config: Config, room: Room | None = None) -> GraphedGradients | None:
        """Graphs where they serve. Shapes are those of whole batches, or of the parts that there is room for."""
        if not graphs_serve(config, model.device.type):
            return None
        return cls(model, cls.shapes_of(config, room or Room()), config.train.precision)

    @staticmethod
    def shapes_of(config: Config, room: Room) -> Shapes:
        """The shapes of a recipe's batches."""
        trees = isinstance(config.model, GrammarConfig)
        return Shapes(config.data, room.part_tokens, trees=trees, tree_width=room.tree_width)

    def takes(self, batch: Batch) -> bool:
        """Whether there is a shape that holds this batch. With `data.rounding = 8`, or unsorted, nearly all fit."""
        return self.filled.of(batch) is not None

    def __call__(self, batch: Batch, tokens: int, seed: int) -> Tensor:  # ""   float64
        """The log-likelihood of a batch, NaN where a graph cannot vouch for it; gradients are added as said."""
        return self.step(batch, tokens, seed)[0]

    def step(self, batch: Batch, tokens: int, seed: int, carried: Any = None) -> tuple[Tensor, Any]:
        """The same of a batch that goes on from a carried state, if there is one, and the state that streams carry on.

        Another step overwrites the log-likelihood, not what is carried on.
        """
        shape = self.filled.of(batch)
        assert shape is not None, "takes() said no"
        key = (*shape, carried is not None, *self.kind(batch))
        if key not in self.shapes:
            self.shapes[key] = self._capture(shape, batch, carried)
        taken = self.shapes[key]
        rows = len(batch.lengths)
        self.write(batch, taken.batch)
        taken.weight.copy_((torch.arange(shape[0]) < rows).double(), non_blocking=True)
        taken.share.fill_(1.0 / tokens)
        for buffer, x in zip(leaves(taken.carried), leaves(carried), strict=True):
            buffer[rows:].zero_()
            buffer[:rows].copy_(x)
        self._attach(taken.used)
        self.generator.manual_seed(seed)
        taken.graph.replay()
        return taken.log_likelihood, mapped(taken.after, lambda x: x[:rows].clone())

    def kind(self, batch: Batch) -> tuple[bool, ...]:
        """What a graph must know of a batch beside its shape."""
        return ()

    def buffers(self, shape: tuple[int, int], like: Batch) -> Batch:
        """A batch on the device of rows that only fill, to be written to."""
        device = self.model.device
        words = torch.zeros(shape, dtype=torch.int64, device=device)
        return Batch(words, torch.full((shape[0],), self.shortest, dtype=torch.int64, device=device))

    def write(self, batch: Batch, buffers: Batch) -> None:
        """Fill the batch up to the buffers' shape, into them."""
        into(buffers.values, batch.values, 0)
        into(buffers.lengths, batch.lengths, self.shortest)

    def potentials(self, batch: Batch, carried: Any) -> tuple[Any, Any]:
        """The potentials of a batch, and the model's parts they are made of."""
        parts: Any = self.model.capturable_parts(self.generator)
        return self.model.potentials(batch, parts=parts, carried=carried, generator=self.generator), parts

    def carry(self, batch: Batch, p: Any, parts: Any) -> Any:
        """What streams carry on from a batch; None if they end with it."""
        assert isinstance(self.model, SequenceModel)  # the recipe saw to it
        return self.model.carry(p)

    def _attach(self, used: list[bool]) -> None:
        """Let the parameters that get a gradient have it where graphs add, from 0 if they had none."""
        for x, grad, gets in zip(self.parameters, self.grads, used, strict=True):
            if gets and x.grad is not grad:
                x.grad = grad.zero_() if x.grad is None else grad.copy_(x.grad)

    def _capture(self, shape: tuple[int, int], like: Batch, carry: Any) -> Captured:
        device = self.model.device
        batch = self.buffers(shape, like)
        weight = torch.ones(shape[0], dtype=torch.float64, device=device)
        share = torch.ones((), dtype=torch.float64, device=device)
        carried = mapped(carry, lambda x: x.new_zeros(shape[0], *x.shape[1:]))
        self.grads = self.grads or [torch.zeros_like(x) if x.grad is None else x.grad for x in self.parameters]

        def gradients() -> tuple[Tensor, Any, tuple[Tensor | None, ...]]:
            with matmul_precision(parameter_precision(self.precision), device):
                p, parts = self.potentials(batch, carried)
                log_z = self.model.log_z(p, precision=self.precision)
                total = torch.where(weight > 0, log_z, 0.0).sum()
                found = torch.autograd.grad(-share * total, self.parameters, allow_unused=True)
                return total.detach(), self.carry(batch, p, parts) if self.streams else None, found

        def added() -> tuple[Tensor, Any, list[bool]]:
            total, after, found = gradients()
            for grad, new in zip(self.grads, found, strict=True):
                if new is not None:
                    grad += new
            return total, after, [new is not None for new in found]

        before = [grad.clone() for grad in self.grads]
        graph, (total, after, used) = captured(added, pool=self.pool, generator=self.generator)
        for grad, value in zip(self.grads, before, strict=True):  # the runs that prepared the capture added theirs
            grad.copy_(value)
        return Captured(graph, batch, weight, share, carried, used, total, after)


def into(buffer: Tensor, x: Tensor, filler: float) -> None:
    """Write `x`, filled up at the end of every axis to the buffer's size."""
    missing = [buffer.shape[axis] - x.shape[axis] for axis in reversed(range(x.ndim))]
    buffer.copy_(pad(x, [size for more in missing for size in (0, more)], value=filler), non_blocking=True)
