"""Layers whose gradients are written out: against autograd's own, once and twice."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import linear, relu

from rankfold.params.block_sparse import _Blocks
from rankfold.params.networks import ResidualLayer, residual_mlp


def layer(dim: int = 3) -> ResidualLayer:
    found = residual_mlp(dim, 1, generator=torch.Generator().manual_seed(1)).double()[0]
    assert isinstance(found, ResidualLayer)
    for x in (found.first.bias, found.second.bias):
        torch.nn.init.uniform_(x, -0.5, 0.5, generator=torch.Generator().manual_seed(2))
    return found


def plain(x: torch.Tensor, net: ResidualLayer) -> torch.Tensor:
    inner = relu(linear(x, net.first.weight, net.first.bias))
    return x + relu(linear(inner, net.second.weight, net.second.bias))


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3), (3,)])
def test_residual_layer(shape: tuple[int, ...]) -> None:
    net = layer()
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    inputs = (x, *net.parameters())
    expected = plain(x, net)
    torch.testing.assert_close(net(x), expected, rtol=1e-14, atol=1e-14)
    wanted = torch.autograd.grad((weight * expected).sum(), inputs)
    for one, other in zip(torch.autograd.grad((weight * net(x)).sum(), inputs), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    assert gradgradcheck(net, (x,))


def test_rows_of_a_table() -> None:
    table = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    index = torch.tensor([[3, 0, 3], [1, 3, 0]])
    assert torch.equal(_Blocks.apply(table, index), table[index])
    assert gradcheck(lambda x: _Blocks.apply(x, index), (table,))
    assert gradgradcheck(lambda x: _Blocks.apply(x, index) ** 2, (table,))
