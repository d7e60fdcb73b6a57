"""Singular values of a trained chain's transition and emission, and how many of them count: the empirical rank.

In float64 throughout: float32 rounds the singular values of such matrices at 1e-6 to 1e-5, where they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.state_profiles import Floats
from rankfold.errors import DomainError, UnsupportedError
from rankfold.operators.low_rank import LowRank
from rankfold.planning.measure import available

THRESHOLD = 1e-5  # of the paper's table: singular values above it are counted
COPIES = 3  # of a matrix that its singular values take: itself, the copy that is reduced, its blocks


class Spectrum(NamedTuple):
    """The singular values of a matrix, falling; `bound` is the largest rank its structure allows."""

    values: Floats  # "n"
    shape: tuple[int, int]
    bound: int

    def rank(self, threshold: float = THRESHOLD) -> int:
        """The empirical rank: how many singular values are above the threshold."""
        if not threshold > 0:
            raise DomainError(f"the threshold is {threshold}, but must be above 0: it tells a value from rounding.")
        return int((self.values > threshold).sum())

    def summary(self, threshold: float = THRESHOLD) -> dict[str, Any]:
        """The same as plain data, with exp(entropy) of the values' shares, which has no threshold."""
        share = torch.from_numpy(self.values) / self.values.sum()
        return {
            "shape": list(self.shape),
            "bound": self.bound,
            "rank": self.rank(threshold),
            "effective": float(torch.special.entr(share).sum().exp()),
            "largest": float(self.values[0]),
        }


def transition_spectrum(chain: HiddenChain) -> Spectrum:
    """Of p(next | state) "z z".   Cost: z r^2 of a low-rank transition, else z^3.

    A = L R^T has the singular values of T_L T_R^T, where T is the triangle of each factor's QR decomposition.
    """
    size, transition = chain.num_values, chain.transition
    if not isinstance(transition, LowRank) or transition.rank >= size:
        rank = transition.rank if isinstance(transition, LowRank) else size
        return Spectrum(_dense(chain.next_rows, chain, size), (size, size), min(size, rank))
    _expect_memory(2 * size * transition.rank, chain.device, "the factors of the transition")
    with torch.no_grad():
        left, right = (torch.linalg.qr(x.double(), mode="r").R for x in transition.factors())
        values = torch.linalg.svdvals(left @ right.mT) * torch.as_tensor(transition.log_scale).exp().to(left.device)
    return Spectrum(values.cpu().numpy(), (size, size), transition.rank)


def emission_spectrum(chain: HiddenChain) -> Spectrum:
    """Of p(word | state) "z v".   Cost: z v min(z, v).

    With more states than words the rows come in blocks, and a triangle of QR stands for those seen: v^2 numbers.
    """
    shape = (chain.num_values, chain.num_words)
    return Spectrum(_dense(chain.word_rows, chain, chain.num_words), shape, min(shape))


def _dense(rows: Callable[[Tensor], Tensor], chain: HiddenChain, width: int) -> Floats:
    """The singular values of a matrix that is known by its rows."""
    height = chain.num_values
    kept = min(height, 2 * width)
    _expect_memory(kept * width, chain.device, f"a matrix of {kept:,} by {width:,} numbers")
    triangle = torch.empty(0, width, dtype=torch.float64, device=chain.device)
    held: list[Tensor] = []

    def seen() -> Tensor:
        return torch.cat([triangle, *held])

    for block in _blocks(rows, chain, width):
        held.append(block)
        if height > 2 * width and sum(map(len, held)) >= width:
            triangle, held = torch.linalg.qr(seen(), mode="r").R, []
    found: Floats = torch.linalg.svdvals(seen()).cpu().numpy()
    return found


def _blocks(rows: Callable[[Tensor], Tensor], chain: HiddenChain, width: int) -> Iterator[Tensor]:
    return (rows(own).double() for own in chain.blocks(width))


def _expect_memory(entries: int, device: torch.device, what: str) -> None:
    need, there = 8 * COPIES * entries, available(device.type)
    if there is not None and need > there:
        raise UnsupportedError(
            f"{what} takes about {need / 2**30:.1f} GiB in float64, but {there / 2**30:.1f} GiB are free.\n"
            "  Use a machine with more memory, or --device cuda for that of a GPU."
        )
