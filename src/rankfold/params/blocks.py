"""Residual networks as the papers use them, and parameters drawn from a generator.

Nothing here draws from torch's global generator: a seed decides every weight.
Read next: `params/transitions.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class ResidualLayer(nn.Module):
    """x + relu(L2 relu(L1 x)).   Cost: 2 d^2 multiply-adds a vector."""

    def __init__(self, first: nn.Linear, second: nn.Linear) -> None:  # both from d to d
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:  # "... d" -> "... d"
        return x + relu(self.second(relu(self.first(x))))


def residual_mlp(dim: int, num_layers: int, *, leading: bool = False, generator: torch.Generator) -> nn.Sequential:
    """`num_layers` residual layers, after a linear one if `leading`.

    Source: Chiu, Deng, Rush 2021, App. F (f1 with, f2 without the leading layer, by their code).
    """
    layers: list[nn.Module] = [linear(dim, dim, generator=generator)] if leading else []
    for _ in range(num_layers):
        first, second = linear(dim, dim, generator=generator), linear(dim, dim, generator=generator)
        layers.append(ResidualLayer(first, second))
    return nn.Sequential(*layers)


def linear(num_in: int, num_out: int, *, generator: torch.Generator) -> nn.Linear:
    """A linear layer: weights Xavier uniform, bias zero."""
    layer = nn.Linear(num_in, num_out, device="meta")  # no numbers drawn: they come from our generator
    layer.weight, layer.bias = xavier(num_out, num_in, generator=generator), nn.Parameter(torch.zeros(num_out))
    return layer


def xavier(*shape: int, generator: torch.Generator) -> nn.Parameter:
    """A matrix uniform in +-sqrt(6 / (rows + columns))."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(*shape), generator=generator))


def normal(*shape: int, spread: float = 1.0, generator: torch.Generator) -> nn.Parameter:
    """Independent normal entries of mean 0 and this standard deviation."""
    return nn.Parameter(spread * torch.randn(*shape, generator=generator))


def taken(x: Tensor, index: Tensor | None) -> Tensor:  # "z d", "k" -> "k d"
    """Some rows, or all of them; the backward pass adds in a fixed order."""
    return x if index is None else x.index_select(0, index)
