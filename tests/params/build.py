"""What the tests of parameters share: modules with parameters of any sign and size, and tables as lists."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from tests.oracles import tables

Module = TypeVar("Module", bound=nn.Module)

# float64 sums of at most a few hundred terms near 1.
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stirred(module: Module, *, seed: int = 7, scale: float = 0.6) -> Module:
    """The module in float64 with noise on every parameter, so that no bias is zero and no table nearly uniform."""
    module.double()
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def close(got: Tensor, want: object) -> None:
    """Equal, to float64 rounding, to nested lists."""
    torch.testing.assert_close(got.detach(), torch.tensor(want, dtype=torch.float64), **EXACT)


def layer(module: nn.Linear) -> tables.Layer:
    return module.weight.tolist(), module.bias.tolist()


def through(network: nn.Sequential, x: list[float]) -> list[float]:
    """A residual network by the oracle, layer after layer."""
    for part in network:
        if isinstance(part, nn.Linear):
            x = tables.linear(x, layer(part))
        else:
            x = tables.residual(x, layer(part.first), layer(part.second))
    return x
