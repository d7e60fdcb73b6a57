"""Every way to build a binary operator, for tests that hold for all of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from rankfold import BinaryCPD, BinaryDense, BinaryMatricised
from rankfold.operators.binary import BinaryOperator
from tests.operators.outside import SharedPairs

Draw = Callable[..., Tensor]
R = 3


class BinaryCase(NamedTuple):
    """A kind of rule: `build` takes sizes of parents, left and right children, a generator and a dtype."""

    name: str
    make: Callable[[int, int, int, Draw], BinaryOperator]
    is_log: bool = False
    batch: int | None = None  # how many sentences have rules of their own

    def build(self, a: int, n: int, m: int, g: Generator, dtype: torch.dtype = torch.float64) -> BinaryOperator:
        def draw(*shape: int) -> Tensor:
            x = torch.rand(shape, generator=g, dtype=torch.float64) + 0.05
            return (3 * x.log() if self.is_log else x).to(dtype)

        return self.make(a, n, m, draw)


B = 3
CASES = [
    BinaryCase("dense", lambda a, n, m, d: BinaryDense(d(a, n, m))),
    BinaryCase("dense log", lambda a, n, m, d: BinaryDense.from_log(d(a, n, m)), is_log=True),
    BinaryCase("dense batched", lambda a, n, m, d: BinaryDense(d(B, a, n, m)), batch=B),
    BinaryCase("dense log batched", lambda a, n, m, d: BinaryDense.from_log(d(B, a, n, m)), is_log=True, batch=B),
    BinaryCase("dense unchecked", lambda a, n, m, d: BinaryDense.unchecked(d(a, n, m))),
    BinaryCase("cpd", lambda a, n, m, d: BinaryCPD(d(a, R), d(n, R), d(m, R))),
    BinaryCase("cpd rank 1", lambda a, n, m, d: BinaryCPD(d(a, 1), d(n, 1), d(m, 1))),
    BinaryCase("cpd log", lambda a, n, m, d: BinaryCPD.from_log(d(a, R), d(n, R), d(m, R)), is_log=True),
    BinaryCase("cpd batched", lambda a, n, m, d: BinaryCPD(d(B, a, R), d(B, n, R), d(B, m, R)), batch=B),
    BinaryCase("cpd batched left", lambda a, n, m, d: BinaryCPD(d(a, R), d(B, n, R), d(m, R)), batch=B),
    BinaryCase(
        "cpd log batched head",
        lambda a, n, m, d: BinaryCPD.from_log(d(B, a, R), d(n, R), d(m, R)),
        is_log=True,
        batch=B,
    ),
    BinaryCase("cpd unchecked", lambda a, n, m, d: BinaryCPD.unchecked(d(a, R), d(n, R), d(m, R))),
    BinaryCase("cpd identity", lambda a, n, m, d: BinaryCPD(None, d(n, a), d(m, a))),
    BinaryCase("cpd identity log", lambda a, n, m, d: BinaryCPD.from_log(None, d(n, a), d(m, a)), is_log=True),
    BinaryCase("cpd identity batched right", lambda a, n, m, d: BinaryCPD(None, d(n, a), d(B, m, a)), batch=B),
    BinaryCase("cpd identity unchecked", lambda a, n, m, d: BinaryCPD.unchecked(None, d(n, a), d(m, a))),
    BinaryCase("matricised", lambda a, n, m, d: BinaryMatricised(d(a, R), d(n, m, R))),
    BinaryCase("matricised log", lambda a, n, m, d: BinaryMatricised.from_log(d(a, R), d(n, m, R)), is_log=True),
    BinaryCase("matricised batched", lambda a, n, m, d: BinaryMatricised(d(B, a, R), d(B, n, m, R)), batch=B),
    BinaryCase("matricised batched pair", lambda a, n, m, d: BinaryMatricised(d(a, R), d(B, n, m, R)), batch=B),
    BinaryCase(
        "matricised log batched parent",
        lambda a, n, m, d: BinaryMatricised.from_log(d(B, a, R), d(n, m, R)),
        is_log=True,
        batch=B,
    ),
    BinaryCase("from outside", lambda a, n, m, d: SharedPairs(d(a), d(n, m))),
    BinaryCase("matricised unchecked", lambda a, n, m, d: BinaryMatricised.unchecked(d(a, R), d(n, m, R))),
]
BY_NAME = {case.name: case for case in CASES}
