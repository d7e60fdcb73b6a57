"""Non-negative factorisation of a given matrix, and how well it did.

Multiplicative updates for the Kullback-Leibler divergence (Lee and Seung 2001): for a transition matrix
they are the EM steps of a chain that passes through a hidden rank. Read next: `operators/low_rank.py`.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from rankfold.errors import DomainError, expect, expect_weights

T = TypeVar("T")


class Fit(NamedTuple, Generic[T]):
    """An approximation and its error; `operator` is the fitted operator."""

    operator: T
    relative_error: float  # ||A - left right^T|| / ||A||, Frobenius
    largest_error: float  # max |A - left right^T|
    num_steps: int  # updates made; fewer than allowed if the divergence settled


def factorise(
    dense: Tensor, rank: int, *, seed: int, num_steps: int
) -> tuple[Tensor, Tensor, tuple[float, float, int]]:  # "z y" -> left "z r", right "y r", report
    """Factors whose product is near `dense`: rows keep their sums, zero rows and columns stay zero.

    Minimises sum A log(A / B) - A + B over B = left right^T from a seeded start; a local optimum.
    """
    expect(dense, "z y", name="dense")
    expect_weights(dense, name="dense")
    if not isinstance(rank, int) or rank < 1:
        raise DomainError(f"rank is {rank}, but must be a whole number of at least 1.")
    target = dense.detach().double()
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.rand(size, rank, generator=generator, dtype=torch.float64).to(target.device) + 0.5
        for size in target.shape
    )
    left, right = left / rank, right / right.sum(0)
    previous, step = float("inf"), 0
    for step in range(1, num_steps + 1):
        right = right * (_ratio(target, left @ right.mT).mT @ left)
        right = right / torch.where(right.sum(0) > 0, right.sum(0), 1.0)
        left = left * (_ratio(target, left @ right.mT) @ right)  # last, so that rows keep their sums
        if step % 50 == 0:
            divergence = torch.xlogy(target, _ratio(target, left @ right.mT)).sum().item()
            if previous < float("inf") and previous - divergence <= 1e-6 * divergence:  # settled
                break
            previous = divergence
    left, right = left.to(dense.dtype), right.to(dense.dtype)
    error = target - left.double() @ right.double().mT
    scale = target.norm().item()
    return left, right, (error.norm().item() / scale if scale else 0.0, error.abs().max().item(), step)


def _ratio(target: Tensor, model: Tensor) -> Tensor:
    """target / model where the target has weight; 0 elsewhere, where the model may be 0 too."""
    return torch.where(target > 0, target / torch.where(model > 0, model, 1.0), 0.0)
