"""A gradient step as training takes it: parameters to potentials to log Z and back, without an optimizer.

Read next: `training/graphs.py`, which captures the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.bench.cases import tensors
from rankfold.bench.reference import reference_log_z
from rankfold.data.batch import Batch
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision


class Gradients(NamedTuple):
    """What a step gives."""

    log_z: Tensor  # "b"
    parameters: tuple[Tensor, ...]  # the gradient of the sum of log Z in each


def log_z(model: Any, batch: Batch, precision: Precision, generator: torch.Generator | None = None) -> Tensor:  # "b"
    """The forward pass of our code; with a generator, that of a training step with dropout."""
    with matmul_precision(parameter_precision(precision), batch.words.device):
        out: Tensor = model.log_z(model.potentials(batch, generator=generator), precision=precision)
        return out


def gradients(
    model: Any, batch: Batch, precision: Precision = "float32", generator: torch.Generator | None = None
) -> Gradients:
    """A step of our code."""
    with matmul_precision(parameter_precision(precision), batch.words.device):
        value = model.log_z(model.potentials(batch, generator=generator), precision=precision)
        return Gradients(value.detach(), torch.autograd.grad(value.sum(), list(model.parameters())))


def reference_gradients(model: Any, batch: Batch, precision: Precision = "float32") -> Gradients:
    """A step of the plain code with the same parameters; its products are as exact as our parameters' are."""
    with matmul_precision(parameter_precision(precision), batch.words.device):
        value = reference_log_z(tensors(model), model.config, batch)
        return Gradients(value.detach(), torch.autograd.grad(value.sum(), list(model.parameters())))
