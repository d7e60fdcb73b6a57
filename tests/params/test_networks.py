"""Residual networks against their formula, and parameters that a seed decides."""

import math

import pytest
import torch

from rankfold.params.networks import ResidualLayer, linear, normal, residual_mlp, take_rows, xavier
from tests.params.build import close, layer, seeded, stirred, through


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_residual_layer(dim: int, generator: torch.Generator) -> None:
    module = stirred(ResidualLayer(linear(dim, dim, generator=generator), linear(dim, dim, generator=generator)))
    x = 2 * torch.randn(3, 4, dim, generator=generator, dtype=torch.float64)
    network = torch.nn.Sequential(module)
    close(module(x), [[through(network, row) for row in rows] for rows in x.tolist()])


@pytest.mark.parametrize("leading", [False, True])
@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_residual_mlp(num_layers: int, leading: bool, generator: torch.Generator) -> None:
    network = stirred(residual_mlp(3, num_layers, leading=leading, generator=generator))
    x = torch.randn(3, generator=generator, dtype=torch.float64)
    assert len(network) == num_layers + leading
    close(network(x), through(network, x.tolist()))


def test_linear_begins_without_a_bias() -> None:
    module = linear(5, 63, generator=seeded())
    assert (module.bias == 0).all()
    assert module.weight.shape == (63, 5)
    bound = math.sqrt(6 / 68)
    assert 0.9 * bound < module.weight.abs().max() <= bound
    close(
        stirred(module)(torch.ones(5, dtype=torch.float64)),
        [sum(row) + b for row, b in zip(*layer(module), strict=True)],
    )


def test_xavier_and_normal() -> None:
    bound = math.sqrt(6 / (129 + 17))
    table = xavier(129, 17, generator=seeded()).detach()
    assert 0.9 * bound < table.abs().max() <= bound
    # The mean of 2193 numbers of spread bound / sqrt(3): five standard errors.
    assert abs(float(table.mean())) < 5 * bound / math.sqrt(3 * 2193)
    draws = normal(63, 63, generator=seeded()).detach()
    assert abs(float(draws.mean())) < 5 / 63
    assert abs(float(draws.square().mean()) - 1) < 5 * math.sqrt(2) / 63


def test_a_seed_decides() -> None:
    one, two, other = (residual_mlp(3, 2, leading=True, generator=seeded(seed)) for seed in (4, 4, 5))
    equal = [torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True)]
    assert all(equal)
    assert not torch.equal(one[0].weight, other[0].weight)
    assert not torch.equal(one[0].weight, one[1].first.weight)


def test_taken() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    assert take_rows(x, None) is x
    assert take_rows(x, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [0.0, 1.0]]
