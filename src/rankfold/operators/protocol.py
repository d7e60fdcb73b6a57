"""The protocol of transitions: a non-negative matrix A[z, y] known by its products.

Rows are sources, columns targets. There is no base class; `row_operator.RowOperator` is an
optional helper that derives the second half of the list from the first.
"""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeGuard, runtime_checkable

from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.numerics.log_space import log_weights
from rankfold.numerics.precision import Rounded

# Messages between two maps of an operator, "n r" each: source through the first, target back through the second.
Inner = tuple[Tensor, Tensor]


@runtime_checkable
class Operator(Protocol):
    """A non-negative matrix A = exp(log_scale) * B, where B is what `push` and `pull` multiply by.

    `log_scale` is 0 for operators made from linear weights. Methods are differentiable in `factors()`.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    def push(self, x: Tensor) -> Tensor: ...  # "... z" -> "... y"   x B   (forward)
    def pull(self, x: Tensor) -> Tensor: ...  # "... y" -> "... z"   B x   (backward, row sums)
    def rows(self, index: Tensor) -> Tensor: ...  # "k" -> "k y"     rows of B
    def factors(self) -> tuple[Tensor, ...]: ...  # the tensors it is made of
    def with_factors(self, *factors: Tensor) -> Self: ...  # the same structure of other tensors, unchecked

    # What follows has a default in RowOperator.
    @property
    def log_scale(self) -> Tensor | float: ...  # "" float64, a constant to autograd
    @property
    def log_factors(self) -> tuple[bool, ...]: ...  # which of factors() are logarithms
    def log_rows(self, index: Tensor) -> Tensor: ...  # "k" -> "k y"   log rows of A, any range
    def push_log(self, log_x: Tensor) -> Tensor: ...  # log(x A), any range
    def pull_log(self, log_x: Tensor) -> Tensor: ...  # log(A x), any range
    def push_loss(self) -> Tensor | float: ...  # "y"   what underflow may take from push of x <= 1, in smallest normals
    def pull_loss(self) -> Tensor | float: ...  # "z"   the same for pull
    def push_log_weighted(self, x: Tensor) -> Tensor: ...  # "... z" -> "... y"   x (B * log B), for entropy
    def to_dense(self) -> Tensor: ...  # "z y"   A itself (tests, analysis)


@runtime_checkable
class MaxOperator(Operator, Protocol):
    """An operator that knows its best predecessors."""

    def push_max(self, log_x: Tensor) -> tuple[Tensor, Tensor]: ...  # "b z" -> best "b y", argmax "b y"


@runtime_checkable
class Composed(Operator, Protocol):
    """An operator that is a product of one or two matrices, so that both passes of a chain can read it together."""

    @property
    def is_written(self) -> bool: ...  # whether there are maps; without them its terms are multiplied one by one

    def maps(self) -> tuple[Tensor, ...]: ...  # "z y", or "z r" and "r y": their product is B
    def rounded_maps(self) -> tuple[Rounded | None, ...]: ...  # copies of the maps in bfloat16, where they were made


# "k s r", "k s r", "k s s": both factors by blocks of states, and the pairs inside each.
Blocks = tuple[Tensor, Tensor, Tensor]


@runtime_checkable
class Blocked(Operator, Protocol):
    """An operator that goes through ranks between blocks of states, and through written pairs inside of each."""

    def blocks(self) -> Blocks | None: ...  # None: it does not


@runtime_checkable
class KnowsGradients(Protocol):
    """An operator with its derivative written out: no pass that autograd would follow."""

    def gradients(
        self, source: Tensor, target: Tensor, inner: Inner | None = None
    ) -> tuple[Tensor, ...] | None: ...  # "n z", "n y"   d sum_n source[n] B target[n] / d factors; None: let autograd


@runtime_checkable
class KnowsLogGradients(Protocol):
    """An operator with its derivatives in logarithms, at any range: an exponential for every term of a product."""

    def log_gradients(
        self, log_x: Tensor, log_y: Tensor
    ) -> list[Tensor] | None: ...  # "n z", "n y"   as the function below


_FOLLOWS: dict[tuple[type, type], bool] = {}


def follows(x: object, protocol: Any) -> bool:
    """isinstance of one of these protocols, looked up once for a class: looking costs as much as a short sequence."""
    key = type(x), protocol
    if key not in _FOLLOWS:
        _FOLLOWS[key] = isinstance(x, protocol)
    return _FOLLOWS[key]


def is_composed(x: Operator) -> TypeGuard[Composed]:
    """Whether it is a product of one or two matrices."""
    return follows(x, Composed)


def knows_gradients(x: Operator) -> TypeGuard[KnowsGradients]:
    """Whether it has its derivative written out."""
    return follows(x, KnowsGradients)


def log_gradients(op: Operator, log_x: Tensor, log_y: Tensor) -> list[Tensor] | None:  # "n z", "n y"
    """log d (sum_n x[n] A y[n]) / d factor, in linear weights, of every factor; None if the operator does not say."""
    return op.log_gradients(log_x, log_y) if isinstance(op, KnowsLogGradients) else None


def factor_logs(op: Operator) -> list[Tensor]:
    """The logarithms of the factors."""
    return [x if is_log else log_weights(x) for x, is_log in zip(op.factors(), op.log_factors, strict=True)]


def _knows_maxima(x: Operator) -> TypeGuard[MaxOperator]:
    return follows(x, MaxOperator)


def max_operator(op: Operator, asking: str = "viterbi") -> MaxOperator:
    """The operator itself; raises unless it knows its best predecessors."""
    if not _knows_maxima(op):
        raise UnsupportedError(
            f"{asking} asks {type(op).__name__} for its best predecessors, but it has no push_max.\n"
            "  Derive it from its rows: inherit from rankfold.operators.row_operator.RowOperator."
        )
    return op


def expect_operator(x: object, *, name: str) -> None:
    """Raise unless `x` is an operator; a plain matrix is not one."""
    if isinstance(x, type) or not follows(x, Operator):
        raise UnsupportedError(
            f"{name} must be an operator, but is a {type(x).__name__}.\n"
            "  Wrap a matrix: rankfold.Dense(weight), or rankfold.Dense.from_log(log_weight)."
        )
