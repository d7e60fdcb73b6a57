"""Residual networks as the papers use them, and parameters drawn from a generator.

Nothing here draws from torch's global generator: a seed decides every weight.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as linear_map
from torch.nn.functional import relu

from rankfold.numerics.function import Function

MOST_LAYERS = 100  # of a network; more take seconds to lay out, and a number by mistake for ever


class ResidualLayer(nn.Module):
    """x + relu(L2 relu(L1 x)).   Cost: 2 d^2 multiply-adds per vector, twice that for its gradients."""

    def __init__(self, first: nn.Linear, second: nn.Linear) -> None:  # both from d to d
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:  # "... d" -> "... d"
        if x.ndim > 1 and not torch.is_autocast_enabled(x.device.type):
            weights = self.first.weight, self.first.bias, self.second.weight, self.second.bias
            out: Tensor = _Residual.apply(x.flatten(0, -2), *weights)
            return out.reshape(x.shape)
        return x + relu(self.second(relu(self.first(x))))


class _Residual(Function):
    """The layer with its gradient written out: sums over rows are products, and the shortcut is added in one.

    Of thousands of rows on a GPU the sums alone take a third of autograd's own chain.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        inner = torch._addmm_activation(b1, x, w1.T)  # relu(b1 + x w1^T), in one kernel on a GPU
        outer = torch._addmm_activation(b2, inner, w2.T)
        ctx.save_for_backward(x, w1, b1, w2, b2, inner, outer)
        return x + outer

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (grad,) = grads
        x, w1, b1, w2, b2, inner, outer = ctx.saved_tensors
        if torch.is_grad_enabled():  # it will be differentiated: ordinary operations, of views that autograd may ask
            own = [y.view_as(y) for y in (x, w1, b1, w2, b2)]
            out = own[0] + relu(linear_map(relu(linear_map(own[0], *own[1:3])), *own[3:]))
            return torch.autograd.grad(out, own, grad, create_graph=True)
        ones = grad.new_ones(len(grad))
        grad_outer = torch.ops.aten.threshold_backward(grad, outer, 0)
        grad_inner = torch.ops.aten.threshold_backward(grad_outer @ w2, inner, 0)
        return (
            torch.addmm(grad, grad_inner, w1),
            grad_inner.T @ x,
            grad_inner.T @ ones,
            grad_outer.T @ inner,
            grad_outer.T @ ones,
        )


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
    layer.weight, layer.bias = (
        xavier(num_out, num_in, generator=generator),
        nn.Parameter(torch.zeros(num_out, dtype=torch.float32)),
    )
    return layer


def xavier(*shape: int, generator: torch.Generator) -> nn.Parameter:
    """A matrix uniform in +-sqrt(6 / (rows + columns))."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(*shape, dtype=torch.float32), generator=generator))


def normal(*shape: int, spread: float = 1.0, generator: torch.Generator) -> nn.Parameter:
    """Independent normal entries of mean 0 and this standard deviation."""
    return nn.Parameter(spread * torch.randn(*shape, generator=generator, dtype=torch.float32))


InitKind = Literal["spread", "xavier"]


def free_logits(*shape: int, init: InitKind, generator: torch.Generator) -> nn.Parameter:
    """Logits of free tables. "spread": with a spread of 1, so that states differ from the first update on. "xavier":
    all states nearly alike, which EM takes long to tell apart, if it does at all.
    """
    return (normal if init == "spread" else xavier)(*shape, generator=generator)


def take_rows(x: Tensor, index: Tensor | None) -> Tensor:  # "z d", "k" -> "k d"
    """Some rows, or all of them; the backward pass adds in a fixed order."""
    return x if index is None else x.index_select(0, index)


class Network(NamedTuple):
    """The size of the networks that tables are made by, and how their parameters begin.

    "spread": logits begin with a spread of about 1, so that states differ from the first update on. "xavier" is the
    papers' code: all states begin nearly alike, and a run first tells them apart.
    """

    dim: int  # of embeddings and residual layers
    num_layers: int
    generator: torch.Generator
    init: InitKind = "spread"

    def embeddings(self, num_states: int, num_words: int) -> tuple[nn.Parameter, nn.Parameter]:  # "z d", "v d"
        """Embeddings of states and words, whose inner products are logits."""
        dim, generator = self.dim, self.generator
        if self.init == "xavier":
            return xavier(num_states, dim, generator=generator), xavier(num_words, dim, generator=generator)
        state = normal(num_states, dim, generator=generator)
        return state, normal(num_words, dim, spread=dim**-0.5, generator=generator)

    def mlp(self) -> nn.Sequential:
        """The residual layers between embeddings and inner products."""
        return residual_mlp(self.dim, self.num_layers, generator=self.generator)


DrawKind = Literal["xavier", "xavier_normal", "torch", "spread"]


class Drawing(NamedTuple):
    """The source of initial parameters, and their distribution.

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
        """The bias of a layer of `num_in` inputs."""
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
