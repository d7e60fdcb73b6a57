"""Gradients of a batch as captured CUDA graphs: one launch instead of hundreds, where launches take most of the time.
The expected counts of mini-batch EM are captured likewise (`training/batch_em.py`).

Shapes repeat: batches are filled up to a few, with rows of weight 0 (`training/shapes.py`), and states that are dropped
each by itself are masked. A state carried along streams goes in and out by buffers; the first batch has a graph of its
own. A graph cannot look at values: a sequence it cannot vouch for is NaN, and the loop repeats that update without
graphs; where these are most updates, it has all graphs captured anew in float64. A row that only fills is missing, or
the shortest sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.models.base import Model
from rankfold.numerics.capture import capture_graph
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.training.carried import leaves, map_tensors
from rankfold.training.config import Config, DataConfig
from rankfold.training.memory_budget import Budget
from rankfold.training.shapes import Shapes, shapes_of

Recorded = TypeVar("Recorded")

# An update without graphs took 60 ms longer than with them, on one H200 (tnpcfg-250-500-ptb, 2026-11-19), where the
# planner's bound on the float32 step is 1 ms and graphs took 5. Float64 takes at least twice the time of float32.
QUICK = 0.01  # seconds of that bound, up to which graphs in float64 are taken to be faster than none


def graphs_serve(config: Config, device: str) -> bool:
    """Whether a recipe's gradients can be captured: on a GPU; of streams if a graph can vouch for their state."""
    carries = config.data.batching != "streams" or config.model.graphs_carry
    alone = config.model.shards == 1  # messages between processes are no part of a graph
    return config.train.graphs and device.startswith("cuda") and carries and config.model.capturable and alone


class Captured(NamedTuple):
    """One shape: write the inputs, replay, read the results. Gradients are added to the parameters' own."""

    graph: torch.cuda.CUDAGraph
    batch: Batch  # the inputs, on the device
    weight: Tensor  # "b"   float64: 1 for a sentence, 0 for a row that only fills the shape
    share: Tensor  # ""     float64: 1 / tokens of the update
    carried: Any  # the state of streams before the batch; None: a first batch, or no streams
    used: list[bool]  # which parameters have a gradient: the start has none where a state is carried in
    log_likelihood: Tensor  # ""   float64
    after: Any  # the state of streams after it; None: no streams


class Graphs:
    """What the captured graphs of a model share: shapes, memory, and how a batch is written to their inputs."""

    def __init__(self, model: Model[Any, Any], filled: Shapes | int, precision: Precision) -> None:
        """Batches are filled up to the shapes of `filled`; a number is that of tokens, of batches of like lengths."""
        self.model, self.precision = model, precision
        self.filled = Shapes(DataConfig(tokens=filled)) if isinstance(filled, int) else filled
        self.generator = torch.Generator(device=model.device)
        self.pool = torch.cuda.graph_pool_handle()  # shared: results are read before another graph runs

    def takes(self, batch: Batch) -> bool:
        """Whether there is a shape that holds this batch. With `data.rounding = 8`, or unsorted, nearly all fit."""
        return self.filled.of(batch) is not None

    def _record(self, add: Callable[[], Recorded], sums: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, Recorded]:
        """The graph of work that adds to `sums`, which are then as they were."""
        before = [x.clone() for x in sums]
        found = capture_graph(add, pool=self.pool, generator=self.generator)
        for x, value in zip(sums, before, strict=True):  # the runs that prepared the capture added theirs
            x.copy_(value)
        return found

    def _inputs(self, shape: tuple[int, int], like: Batch) -> tuple[Batch, Tensor]:
        """A batch of rows that only fill, to be written to, and the weights of its rows."""
        batch = self._filled_up(like.rows(slice(0)), shape).to(self.model.device)
        return batch, torch.ones(shape[0], dtype=torch.float64, device=self.model.device)

    def _filled_up(self, batch: Batch, shape: tuple[int, int]) -> Batch:
        return batch.padded_to(shape, self.model.filler, self.model.shortest)

    def _write(self, batch: Batch, buffers: Batch, weight: Tensor, value: float = 1.0) -> None:
        """Fill the batch up to the buffers' shape, into them; its rows get this weight, rows that only fill 0."""
        filled = self._filled_up(batch, buffers.shape)
        for buffer, x in zip((*buffers[:3], buffers.noise), (*filled[:3], filled.noise), strict=True):
            if buffer is not None and x is not None:
                buffer.copy_(x, non_blocking=True)
        weight.copy_((torch.arange(len(weight)) < len(batch.lengths)).double() * value, non_blocking=True)


class GraphedGradients(Graphs):
    """Adds the gradient of -log_likelihood / tokens to the parameters, shape by shape from a captured graph.

    Labels of a batch constrain its states.
    """

    def __init__(self, model: Model[Any, Any], filled: Shapes | int, precision: Precision) -> None:
        super().__init__(model, filled, precision)
        self.streams, self.wide = self.filled.data.batching == "streams", False
        self.parameters = [x for x in model.parameters() if x.requires_grad]
        self.grads: list[Tensor] = []  # where all graphs add, whatever becomes of the parameters' own between updates
        # rows, width; whether a state is carried in, sequences end, some states are known, and noise is given
        self.shapes: dict[tuple[int | bool, ...], Captured] = {}

    @classmethod
    def of(cls, model: Model[Any, Any], config: Config, budget: Budget | None = None) -> GraphedGradients | None:
        """Graphs where they serve. Shapes are those of whole batches, or of the parts that fit into memory."""
        if not graphs_serve(config, model.device.type):
            return None
        budget = budget or Budget()
        return cls(model, shapes_of(config, budget.part_tokens, budget.tree_width), config.train.precision)

    def takes(self, batch: Batch) -> bool:
        """Not windows with labels: impossible states carry exact zeros, which a graph cannot tell from lost ones."""
        return super().takes(batch) and not (self.streams and batch.labels is not None)

    def recapture(self, *, wide: bool) -> None:
        """Capture every shape anew when it comes, `wide`: with potentials in float64. What is there goes first."""
        self.wide = wide
        self.shapes.clear()
        torch.cuda.empty_cache()
        self.pool = torch.cuda.graph_pool_handle()

    def quick(self, batch: Batch) -> bool:
        """Whether a replay in float64 takes less time than a step without graphs, as the planner bounds it."""
        shape, device = self.filled.of(batch), self.model.device.type
        return shape is not None and self.model.plan(*shape, device, "float32").best.seconds < QUICK

    def __call__(self, batch: Batch, tokens: int, seed: int) -> Tensor:  # ""   float64
        """The log-likelihood of a batch, NaN where a graph cannot vouch for it; gradients are added as said."""
        return self.step(batch, tokens, seed)[0]

    def step(self, batch: Batch, tokens: int, seed: int, carried: Any = None) -> tuple[Tensor, Any]:
        """The same of a batch that goes on from a carried state, if there is one, and the state that streams carry on.

        Another step overwrites the log-likelihood, not the carried state.
        """
        shape = self.filled.of(batch)
        assert shape is not None, "takes() said no"
        key = (*shape, carried is not None, batch.last, batch.labels is not None, batch.noise is not None)
        if key not in self.shapes:
            self.shapes[key] = self._capture(shape, batch, carried)
        taken = self.shapes[key]
        rows = len(batch.lengths)
        self._write(batch, taken.batch, taken.weight)
        taken.share.fill_(1.0 / tokens)
        for buffer, x in zip(leaves(taken.carried), leaves(carried), strict=True):
            buffer[rows:].zero_()
            buffer[:rows].copy_(x)
        self._attach(taken.used)
        self.generator.manual_seed(seed)
        taken.graph.replay()
        return taken.log_likelihood, map_tensors(taken.after, lambda x: x[:rows].clone())

    def _attach(self, used: list[bool]) -> None:
        """Point the parameters' gradients at the buffers that graphs add to, zeroed if they had none."""
        for x, grad, gets in zip(self.parameters, self.grads, used, strict=True):
            if gets and x.grad is not grad:
                x.grad = grad.zero_() if x.grad is None else grad.copy_(x.grad)

    def _capture(self, shape: tuple[int, int], like: Batch, carry: Any) -> Captured:
        device = self.model.device
        batch, weight = self._inputs(shape, like)
        share = torch.ones((), dtype=torch.float64, device=device)
        carried = map_tensors(carry, lambda x: x.new_zeros(shape[0], *x.shape[1:]))
        self.grads = self.grads or [torch.zeros_like(x) if x.grad is None else x.grad for x in self.parameters]

        def gradients() -> tuple[Tensor, Any, tuple[Tensor | None, ...]]:
            with matmul_precision(parameter_precision(self.precision), device):
                parts: Any = self.model.capturable_parts(self.generator)
                p = self.model.potentials(
                    batch,
                    parts=parts,
                    carried=carried,
                    generator=self.generator,
                    allowed=self.model.label_constraint(batch),
                )
                log_z = self.model.log_z(p, precision=self.precision, wide=self.wide)
                total = torch.where(weight > 0, log_z, 0.0).sum()
                found = torch.autograd.grad(-share * total, self.parameters, allow_unused=True)
                goes_on = self.streams and not batch.last
                return total.detach(), self.model.carry(p, parts) if goes_on else None, found

        def add() -> tuple[Tensor, Any, list[bool]]:
            total, after, found = gradients()
            for grad, new in zip(self.grads, found, strict=True):
                if new is not None:
                    grad += new
            return total, after, [new is not None for new in found]

        graph, (total, after, used) = self._record(add, self.grads)
        return Captured(graph, batch, weight, share, carried, used, total, after)
