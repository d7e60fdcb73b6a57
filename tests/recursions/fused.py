"""Chains for the scan of both passes, which few sequences on a GPU take, and what TF32 may do to them."""

from collections.abc import Callable

import torch
from torch import Tensor

from rankfold import Banded, ChainPotentials, Dense, LowRank, Operator, Sum
from rankfold.operators.product import Product
from tests.recursions.build import pad_with_nan, seeded

Z, R, LENGTHS = 17, 5, [4, 1, 3]
ROUND = 2.0**-10  # both operands of a product in TF32, half of the last bit each


def distributions(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed)).softmax(-1)


def transposed(x: Tensor) -> Tensor:
    """The same numbers, column by column in memory."""
    return x.T.contiguous().T


KINDS: dict[str, Callable[[], Operator]] = {
    "dense": lambda: Dense(distributions(Z, Z, seed=1)),
    "dense of logs": lambda: Dense.from_log(distributions(Z, Z, seed=1).log()),
    "low rank": lambda: LowRank(distributions(Z, R, seed=1), distributions(Z, R, seed=2)),
    "low rank transposed": lambda: LowRank(
        transposed(distributions(Z, R, seed=1)), transposed(distributions(Z, R, seed=2))
    ),
    "low rank of logs": lambda: LowRank.from_log(distributions(Z, R, seed=1).log(), distributions(Z, R, seed=2).log()),
    "multiplied": lambda: Product(distributions(Z, R, seed=1), distributions(Z, R, seed=2)),
    "sum": lambda: Sum([LowRank(distributions(Z, R, seed=1), distributions(Z, R, seed=2)), banded()]),
}


def banded() -> Operator:
    return Banded(distributions(Z, 3, seed=3), -1)


def ordinary(kind: str, lengths: list[int] = LENGTHS) -> ChainPotentials:
    g = seeded(4)
    log_obs = pad_with_nan(2 * torch.randn(len(lengths), max(lengths), Z, generator=g), lengths)
    log_initial, log_final = torch.randn(Z, generator=g), torch.randn(len(lengths), Z, generator=g)
    return ChainPotentials(log_initial, KINDS[kind](), log_obs, log_final, torch.tensor(lengths))


def check(found: Tensor, expected: Tensor, bound: float) -> None:
    """Sums of positive terms, each off by its own rounding."""
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=1e-30)


def uses(grad: Tensor, factor: Tensor) -> Tensor:
    """Gradient times weight, where there is any: at a weight of zero a gradient may be more than float32 holds."""
    used = factor.detach() > 0
    return grad.double()[used] * factor.detach().double()[used]
