"""Gradients of a batch as captured CUDA graphs: one launch instead of hundreds, where launches are what takes time.

Shapes repeat: widths are padded up to a multiple of 8, rows up to what the budget of tokens allows, with weight 0.
A graph cannot look at values: a sequence it cannot vouch for is NaN, and the loop repeats that update without graphs.
Read next: `training/loop.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfold.data.batch import Batch
from rankfold.models.catalog import AnyModel
from rankfold.numerics.capture import captured
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.training.config import Config

WIDTH, WIDEST = 8, 512  # widths are multiples of the first, at most the second: so many shapes are captured


class Captured(NamedTuple):
    """One shape: write the inputs, replay, read the result. Gradients are added to the parameters' own."""

    graph: torch.cuda.CUDAGraph
    words: Tensor  # "b t"
    lengths: Tensor  # "b"
    weight: Tensor  # "b"   float64: 1 for a sentence, 0 for a row that only fills the shape
    share: Tensor  # ""     float64: 1 / tokens of the update
    log_likelihood: Tensor  # ""   float64


class GraphedGradients:
    """Adds the gradient of -log_likelihood / tokens to the parameters, shape by shape from a captured graph."""

    def __init__(self, model: AnyModel, tokens: int, precision: Precision) -> None:
        self.model, self.tokens, self.precision = model, tokens, precision
        self.parameters = [x for x in model.parameters() if x.requires_grad]
        self.generator = torch.Generator(device=model.device)
        self.shapes: dict[tuple[int, int], Captured] = {}
        self.pool = torch.cuda.graph_pool_handle()  # shared: results are read before another graph runs

    @classmethod
    def of(cls, model: AnyModel, config: Config, tokens: int = 0) -> GraphedGradients | None:
        """Where graphs serve: on a GPU, with shapes that repeat and no state carried in from the batch before.

        Shapes are filled up to `tokens`: those of a batch, or fewer if batches come in parts.
        """
        shapes_repeat = model.config.state_dropout_kind == "exact" or not model.config.state_dropout
        serves = config.train.graphs and model.device.type == "cuda" and config.data.batching != "streams"
        return cls(model, tokens or config.data.tokens, config.train.precision) if serves and shapes_repeat else None

    def takes(self, batch: Batch) -> bool:
        """Whether a graph of its width, filled up to the budget of tokens, holds this batch.

        A matter of its shape alone, so that a resumed run takes the same. With `data.rounding = 8` nearly all fit.
        """
        rows, width = self._shape(batch)
        return len(batch.words) <= rows and width <= WIDEST

    def __call__(self, batch: Batch, tokens: int, seed: int) -> Tensor:  # ""   float64
        """The log-likelihood of a batch, NaN where a graph cannot vouch for it; gradients are added as said."""
        shape = self._shape(batch)
        if shape not in self.shapes:
            self.shapes[shape] = self._capture(shape)
        taken = self.shapes[shape]
        rows, width = batch.words.shape
        taken.words.copy_(pad(batch.words, (0, shape[1] - width, 0, shape[0] - rows)), non_blocking=True)
        taken.lengths.copy_(pad(batch.lengths, (0, shape[0] - rows), value=1), non_blocking=True)
        taken.weight.copy_((torch.arange(shape[0]) < rows).double(), non_blocking=True)
        taken.share.fill_(1.0 / tokens)
        self.generator.manual_seed(seed)
        taken.graph.replay()
        return taken.log_likelihood

    def _shape(self, batch: Batch) -> tuple[int, int]:
        width = -(-batch.words.shape[1] // WIDTH) * WIDTH
        return max(1, self.tokens // width), width

    def _capture(self, shape: tuple[int, int]) -> Captured:
        device = self.model.device
        words = torch.zeros(shape, dtype=torch.int64, device=device)
        lengths = torch.ones(shape[0], dtype=torch.int64, device=device)
        weight = torch.ones(shape[0], dtype=torch.float64, device=device)
        share = torch.ones((), dtype=torch.float64, device=device)
        grads = []
        for x in self.parameters:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
            grads.append(x.grad)

        def gradients() -> tuple[Tensor, tuple[Tensor, ...]]:
            with matmul_precision(parameter_precision(self.precision), device):
                p = self.model.potentials(Batch(words, lengths), generator=self.generator)
                total = (weight * self.model.log_z(p, precision=self.precision)).sum()
                return total.detach(), torch.autograd.grad(-share * total, self.parameters)

        def added() -> Tensor:
            total, found = gradients()
            for grad, new in zip(grads, found, strict=True):
                grad += new
            return total

        before = [grad.clone() for grad in grads]
        graph, total = captured(added, pool=self.pool, generator=self.generator)
        for grad, value in zip(grads, before, strict=True):  # the runs that prepared the capture added theirs
            grad.copy_(value)
        return Captured(graph, words, lengths, weight, share, total)
