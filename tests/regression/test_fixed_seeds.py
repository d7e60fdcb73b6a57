"""log Z and gradients at fixed seeds, so that a refactoring cannot move them unnoticed.

The numbers are float64, written exactly. Libraries of matrix products may sum in another order: 1e-12 of a
sum of a few thousand terms allows that and nothing else. To replace them after a deliberate change, print
`{name: [x.hex() for x in numbers(name)] for name in OPERATORS}` and say so in the changelog.
"""

from collections.abc import Callable

import pytest
import torch

from rankfold import Banded, ChainPotentials, Dense, LowRank, Operator, Sum
from rankfold.recursions.chain import log_z
from tests.recursions.build import leaves, pad_with_nan, seeded

Z, LENGTHS = 17, [9, 4, 1, 6]


def entries(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=seeded(seed), dtype=torch.float64)


OPERATORS: dict[str, Callable[[], Operator]] = {
    "dense": lambda: Dense(entries(1, Z, Z)),
    "low rank": lambda: LowRank(entries(2, Z, 5), entries(3, Z, 5)),
    "banded": lambda: Banded(entries(4, Z, 4), -1),
    "sum": lambda: Sum([LowRank.from_log(entries(5, Z, 2), entries(6, Z, 2)), Banded(entries(7, Z, 3), -2)]),
}


def numbers(name: str, arithmetic: str = "scaled") -> list[float]:
    """log Z of four sequences, then a checksum of the gradient of each tensor."""
    log_obs = pad_with_nan(4 * (entries(8, len(LENGTHS), max(LENGTHS), Z) - 0.5), LENGTHS)
    at = leaves(
        ChainPotentials(entries(9, Z).log(), OPERATORS[name](), log_obs, entries(10, Z).log(), torch.tensor(LENGTHS))
    )
    total = log_z(at.potentials, arithmetic)
    grads = torch.autograd.grad(total.sum(), at.tensors)
    # Each entry weighted by its place, so that exchanged entries change the sum.
    sums = [(grad.flatten() * torch.arange(1, grad.numel() + 1)).sum() / grad.numel() for grad in grads]
    return [float(x) for x in (*total.detach(), *sums)]


EXPECTED: dict[str, list[str]] = {
    "dense": [
        "0x1.6f160435eb4f8p+4",
        "0x1.5165427edc9bcp+3",
        "0x1.48995d0eca210p+0",
        "0x1.f85284880473bp+3",
        "0x1.fb51651c0c9bcp+0",
        "0x1.f80f04551759fp+2",
        "0x1.0363beb0a2fa5p+1",
        "0x1.09901ed8197c0p+4",
    ],
    "low rank": [
        "0x1.d8453083e3736p+4",
        "0x1.9ecf714c3b808p+3",
        "0x1.48995d0eca210p+0",
        "0x1.3d08647378842p+4",
        "0x1.1133eab0305e4p+1",
        "0x1.f8b7fe86b2864p+2",
        "0x1.0a221a23ee5b1p+1",
        "0x1.1e072a7b761fcp+4",
        "0x1.19295826e5154p+4",
    ],
    "banded": [
        "0x1.30f8b3eeca267p+3",
        "0x1.79260aff909e0p+2",
        "0x1.48995d0eca210p+0",
        "0x1.10ddcc6a4e031p+3",
        "0x1.fad220fc3ec46p+0",
        "0x1.f913c591d654bp+2",
        "0x1.2054ed633b477p+1",
        "0x1.205de5133d192p+4",
    ],
    "sum": [
        "0x1.5772e558c99a6p+5",
        "0x1.1f835230b968cp+4",
        "0x1.48995d0eca210p+0",
        "0x1.c8015e4a1df85p+4",
        "0x1.0ea25951f0889p+1",
        "0x1.f81386b60b652p+2",
        "0x1.f56accfd7d31ep+0",
        "0x1.0708b93bc0156p+3",
        "0x1.025e65196f3d7p+3",
        "0x1.dfff97232fde4p-3",
    ],
}


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_numbers_have_not_moved(name: str, arithmetic: str) -> None:
    expected = [float.fromhex(x) for x in EXPECTED[name]]
    found = numbers(name, arithmetic)
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0.0
    )
