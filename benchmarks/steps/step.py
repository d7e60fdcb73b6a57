"""A gradient step as training takes it, and the same step of the plain references with the same parameters.

What a step of a seed leaves out is drawn as the model draws it, and told to the reference, which leaves out the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankfold.cli.bench import Gradients, differentiate, gradients, potentials_of
from rankfold.data.batch import Batch
from rankfold.models.config import FrameConfig, GrammarConfig, ModelConfig
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.params.dropout import kept_by_cluster, kept_indices
from tests.references.chains import reference_log_z
from tests.references.frames import reference_frame_log_z
from tests.references.grammars import reference_tree_log_z


def log_z(model: Any, batch: Batch, precision: Precision, generator: torch.Generator | None = None) -> Tensor:  # "b"
    """The forward pass of our code; with a generator, that of a training step with dropout."""
    with matmul_precision(parameter_precision(precision), batch.lengths.device):
        out: Tensor = model.log_z(potentials_of(model, batch, generator), precision=precision)
        return out


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, as the reference reads them."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def reference_gradients(
    model: Any, batch: Batch, precision: Precision = "float32", gone: Mapping[str, Tensor] | None = None
) -> Gradients:
    """A step of the plain code with the same parameters; its products are as exact as our parameters' are.

    Without what is `gone` (`draw_dropout`).
    """
    plain: Any = reference_log_z
    if isinstance(model.config, GrammarConfig):
        plain = reference_tree_log_z
    elif isinstance(model.config, FrameConfig):
        plain = reference_frame_log_z
    with matmul_precision(parameter_precision(precision), batch.lengths.device):
        value = plain({**tensors(model), **(gone or {})}, model.config, batch)
        return Gradients(value.detach(), differentiate(value, list(model.parameters())))


def draw_dropout(model: Any, seed: int, precision: Precision) -> dict[str, Tensor]:
    """Masks by the names that `reference_log_z` knows; of a rank-space model by what has no share of its tables.

    Only the draw is the model's own: that every distribution knows of it is what a check is to find out.
    """
    config: ModelConfig = model.config
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)
    if config.family == "rank":
        return _logits(model, generator, seed, precision)
    if config.family == "block":
        per_cluster = config.num_states // config.num_clusters
        keep = kept_by_cluster(config.num_clusters, per_cluster, config.state_dropout, generator=generator)
        assert keep is not None
        first = per_cluster * torch.arange(config.num_clusters, device=device)
        keep = (keep + first[:, None]).flatten()
    else:
        keep = kept_indices(
            config.num_states, config.state_dropout, generator=generator, kind=config.state_dropout_kind
        )
        assert keep is not None
    return {"gone.states": torch.ones(config.num_states, dtype=torch.bool, device=device).index_fill(0, keep, False)}


def _logits(model: Any, generator: torch.Generator, seed: int, precision: Precision) -> dict[str, Tensor]:
    share = model.config.logit_dropout
    start = model.factors.start
    stays = torch.rand(start.shape, generator=generator, device=start.device, dtype=torch.float32) >= share
    with torch.no_grad(), matmul_precision(parameter_precision(precision), start.device):
        factors = model.factors(share, generator.manual_seed(seed))
    return {
        "kept.start": stays.double() / (1.0 - share),
        "gone.rank": factors.rank == 0,
        "gone.state": factors.state == 0,
    }


class Step(NamedTuple):
    """A step with its inputs."""

    model: Any
    batch: Batch
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
    def of(cls, model: Any, batch: Batch, precision: Precision) -> Recursion:
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
            return Gradients(value.detach(), differentiate(value, self.inputs))
