"""How the parameters of a grammar begin: embeddings and layers from one generator, by the habits of the papers.

Read next: `params/grammar.py`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import nn

from rankfold.params.blocks import ResidualLayer, normal, xavier

DrawKind = Literal["xavier", "xavier_normal", "torch", "spread"]


class Drawing(NamedTuple):
    """Where numbers come from, and how they are spread.

    "xavier": uniform in +-sqrt(6 / (rows + columns)), embeddings too, as the N-PCFG's code, which calls it important.
    "xavier_normal": normal of variance 2 / (rows + columns), as the rank-space paper. "torch": layers as torch begins
    them, uniform in +-1 / sqrt(columns), embeddings standard normal, as the TN-PCFG's code. "spread": layers Xavier,
    embeddings standard normal, so that symbols differ from the first update on. Biases begin at 0, "torch" excepted.
    """

    kind: DrawKind
    generator: torch.Generator

    def embedding(self, *shape: int) -> nn.Parameter:
        """Vectors of symbols."""
        if self.kind in ("torch", "spread"):
            return normal(*shape, generator=self.generator)
        return self.matrix(*shape)

    def matrix(self, rows: int, columns: int) -> nn.Parameter:
        """The weights of a layer from `columns` to `rows` numbers."""
        if self.kind == "torch":
            return self._uniform(rows, columns, within=columns**-0.5)
        if self.kind == "xavier_normal":
            return normal(rows, columns, spread=math.sqrt(2 / (rows + columns)), generator=self.generator)
        return xavier(rows, columns, generator=self.generator)

    def bias(self, size: int, num_in: int) -> nn.Parameter:
        """What a layer of `num_in` inputs adds."""
        if self.kind == "torch":
            return self._uniform(size, within=num_in**-0.5)
        return nn.Parameter(torch.zeros(size, dtype=torch.float32))

    def linear(self, num_in: int, num_out: int) -> nn.Linear:
        """A linear layer."""
        layer = nn.Linear(num_in, num_out, device="meta")  # no numbers drawn: they come from our generator
        layer.weight, layer.bias = self.matrix(num_out, num_in), self.bias(num_out, num_in)
        return layer

    def residual(self, num_in: int, dim: int, num_layers: int) -> nn.Sequential:
        """Linear, then `num_layers` residual layers: the networks of Kim, Dyer, Rush 2019."""
        layers: list[nn.Module] = [self.linear(num_in, dim)]
        layers += [ResidualLayer(self.linear(dim, dim), self.linear(dim, dim)) for _ in range(num_layers)]
        return nn.Sequential(*layers)

    def _uniform(self, *shape: int, within: float) -> nn.Parameter:
        return nn.Parameter((2 * torch.rand(*shape, generator=self.generator, dtype=torch.float32) - 1) * within)
