"""A gradient step as training takes it: parameters to potentials to log Z and back, without an optimizer.

Read next: `training/graphs.py`, which captures the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.bench.cases import tensors
from rankfold.bench.reference import reference_log_z
from rankfold.bench.reference_frames import reference_frame_log_z
from rankfold.bench.reference_trees import reference_tree_log_z
from rankfold.data.batch import Batch
from rankfold.models.frame_config import FrameConfig
from rankfold.models.grammar_config import GrammarConfig
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision

AnyBatch = Batch
SEED = 1  # of what a step drops


class Gradients(NamedTuple):
    """What a step gives."""

    log_z: Tensor  # "b"
    parameters: tuple[Tensor, ...]  # the gradient of the sum of log Z in each


def log_z(model: Any, batch: AnyBatch, precision: Precision, generator: torch.Generator | None = None) -> Tensor:  # "b"
    """The forward pass of our code; with a generator, that of a training step with dropout."""
    with matmul_precision(parameter_precision(precision), batch.lengths.device):
        out: Tensor = model.log_z(_potentials(model, batch, generator), precision=precision)
        return out


def gradients(
    model: Any, batch: AnyBatch, precision: Precision = "float32", generator: torch.Generator | None = None
) -> Gradients:
    """A step of our code."""
    with matmul_precision(parameter_precision(precision), batch.lengths.device):
        value = model.log_z(_potentials(model, batch, generator), precision=precision)
        return Gradients(value.detach(), _gradients(value, list(model.parameters())))


def _gradients(value: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """0 where the value does not depend on an input: a sequence of one word has no transition."""
    return torch.autograd.grad(value.sum(), inputs, allow_unused=True, materialize_grads=True)


def _potentials(model: Any, batch: AnyBatch, generator: torch.Generator | None) -> Any:
    """Those of a batch whose frames, if it has any, are in the model's dtype."""
    if batch.values.is_floating_point():
        batch = batch._replace(values=batch.values.to(model.dtype))
    return model.potentials(batch, generator=generator)


def reference_gradients(
    model: Any, batch: AnyBatch, precision: Precision = "float32", gone: Mapping[str, Tensor] | None = None
) -> Gradients:
    """A step of the plain code with the same parameters; its products are as exact as our parameters' are.

    Without what is `gone` (`bench/dropped.py`).
    """
    plain: Any = reference_log_z
    if isinstance(model.config, GrammarConfig):
        plain = reference_tree_log_z
    elif isinstance(model.config, FrameConfig):
        plain = reference_frame_log_z
    with matmul_precision(parameter_precision(precision), batch.lengths.device):
        value = plain({**tensors(model), **(gone or {})}, model.config, batch)
        return Gradients(value.detach(), _gradients(value, list(model.parameters())))


class Step(NamedTuple):
    """A step with its inputs."""

    model: Any
    batch: AnyBatch
    precision: Precision
    generator: torch.Generator | None

    def run(self) -> Gradients:
        """log Z and its gradients."""
        return gradients(*self)

    def forward(self) -> Tensor:  # "b"
        """log Z alone, nothing kept for a gradient."""
        with torch.no_grad():
            return log_z(*self)


class Update(NamedTuple):
    """A step and AdamW, as training takes them without a graph; of a rate of 0, so that the parameters stay."""

    step: Step
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, step: Step) -> Update:
        """Moments are made by its first run."""
        fused = step.batch.lengths.device.type == "cuda"
        return cls(step, torch.optim.AdamW(step.model.parameters(), lr=0.0, fused=fused))

    def run(self) -> None:
        """Gradients, and what the optimizer makes of them; they are gone afterwards."""
        self.optimizer.zero_grad(set_to_none=True)
        for parameter, found in zip(self.step.model.parameters(), self.step.run().parameters, strict=True):
            # As backward() would: one kernel for all parameters asks for gradients that lie in memory as they do.
            parameter.grad = found if found.stride() == parameter.stride() else torch.empty_like(parameter).copy_(found)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Recursion(NamedTuple):
    """The middle of a step: potentials, which are made once, to log Z and back to them. No distribution is made."""

    model: Any
    potentials: Any
    inputs: tuple[Tensor, ...]
    precision: Precision
    generator: None = None

    @classmethod
    def of(cls, model: Any, batch: AnyBatch, precision: Precision) -> Recursion:
        """That of a grammar. The potentials of a step, as numbers to differentiate in; factors that rules share stay
        shared."""
        with torch.no_grad(), matmul_precision(parameter_precision(precision), batch.lengths.device):
            p = model.potentials(batch)
        leaves: dict[int, Tensor] = {}

        def leaf(x: Tensor) -> Tensor:
            return leaves.setdefault(id(x), x.detach().requires_grad_())

        rules = p.rules.with_factors(*map(leaf, p.rules.factors()))
        given = p._replace(log_leaf=leaf(p.log_leaf), log_root=leaf(p.log_root), rules=rules)
        return cls(model, given, tuple(leaves.values()), precision)

    def run(self) -> Gradients:
        """log Z and its gradients in the potentials."""
        with matmul_precision(parameter_precision(self.precision), self.inputs[0].device):
            value = self.model.log_z(self.potentials, precision=self.precision)
            return Gradients(value.detach(), _gradients(value, self.inputs))
