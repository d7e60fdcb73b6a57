"""A rule operator as somebody outside of the library would write it: the first half of the protocol, and `to_dense`."""

from typing import Self

from torch import Tensor

from rankfold.numerics.log_space import log_sum
from rankfold.operators.binary_dense import PairRule


class SharedPairs(PairRule):
    """T[a, n, m] = parent[a] pair[n, m]: every parent has the same pairs of children."""

    batch, log_scale, log_factors = None, 0.0, (False, False)

    def __init__(self, parent: Tensor, pair: Tensor) -> None:  # "a", "n m"
        self.parent, self.pair = parent, pair

    @property
    def shape(self) -> tuple[int, int, int]:
        return (len(self.parent), *self.pair.shape)

    @property
    def head_of(self) -> tuple[object, ...]:
        return SharedPairs, id(self.parent), id(self.pair)

    @property
    def gain(self) -> Tensor:  # ""
        return (self.parent.max() * self.pair.max()).double()

    def factors(self) -> tuple[Tensor, ...]:
        return self.parent, self.pair

    def with_factors(self, *factors: Tensor) -> Self:
        return type(self)(*factors)

    def take(self, index: Tensor) -> Self:  # "k"
        return self

    def head(self, x: Tensor) -> Tensor:  # "b s nm" -> "b s a"
        return (x * self.pair.flatten()).sum(-1, keepdim=True) * self.parent

    def head_log(self, log_x: Tensor) -> Tensor:
        return log_sum(log_x + self.pair.flatten().log()).unsqueeze(-1) + self.parent.log()

    def to_dense(self) -> Tensor:  # "a n m"
        return self.parent[:, None, None] * self.pair
