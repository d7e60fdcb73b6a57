"""Which values observations can take: the first that they cannot, and why."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.params.observations.product import ProductObservation, kinds_of, known_kind
from rankfold.params.observations.protocol import ObservationModule


class Invalid(NamedTuple):
    """A value that observations cannot take."""

    at: tuple[int, ...]  # its index
    expected: str  # what was expected, in words
    remedy: str


def first_invalid(
    kind: type[ObservationModule], frames: Tensor, inside: Tensor, columns: tuple[str, ...], num_covariates: int
) -> Invalid | None:  # "... f", "..." bool
    """The first value of frames `inside` their sequences that cannot be observed; None if all can."""
    if issubclass(kind, ProductObservation):
        for name, own in kinds_of(columns).items():
            part = known_kind(name, kind.catalogue)
            wrong = part.invalid(frames[..., own])
            expected = part.values
            if part.symbols:
                most = int(name.split(" ")[0].partition(":")[2])
                wrong, expected = wrong | (frames[..., own] >= most), f"a whole number from 0 to {most - 1}"
            found = _first(wrong & inside.unsqueeze(-1))
            if found is not None:
                return Invalid((*found[:-1], own[found[-1]]), expected, part.remedy)
        return None
    found = _first(kind.invalid(frames) & inside.unsqueeze(-1))
    if found is not None:
        return Invalid(found, kind.values, kind.remedy)
    gone = frames.isnan()
    some = inside & gone.any(-1) & ~gone.all(-1)
    if kind.complete and (found := _first(some.unsqueeze(-1) & gone)) is not None:
        return Invalid(found, "there, or the whole frame is missing", "Mark all of the frame as missing: NaN.")
    if kind.needs == "inputs":
        start = frames.shape[-1] - num_covariates
        found = _first(some.unsqueeze(-1) & gone[..., start:])
        if found is not None:
            where = (*found[:-1], start + found[-1])
            return Invalid(
                where, "known inputs of every frame", "Fill the input in, or mark the whole frame as missing."
            )
    if kind.needs == "all" and (found := _first(inside.unsqueeze(-1) & gone)) is not None:
        return Invalid(
            found,
            "all there: a frame is a lag of the next ones, and a missing lag cannot be summed out",
            "Cut the sequence there, fill the frame in, or use observations without lags.",
        )
    return None


def _first(wrong: Tensor) -> tuple[int, ...] | None:
    return tuple(wrong.nonzero()[0].tolist()) if bool(wrong.any()) else None


def whole(frames: Tensor) -> Tensor:  # "t f" -> "t" bool
    """All frames of one sequence."""
    return torch.ones(frames.shape[:-1], dtype=torch.bool, device=frames.device)
