"""A running average of the parameters, evaluated and saved in their place: steadier than the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from rankfold.errors import DataError

RISE = 10  # early on, the average reaches back over about a ninth of the updates so far


class Average:
    """average <- d average + (1 - d) parameters, after every update.

    d = min(decay, (1 + n) / (10 + n)) after n updates: it rises, so that the start of a run is soon forgotten. With
    decay 0 there is no average: nothing is kept, and nothing is swapped. Parameters are overwritten in place, never
    replaced: captured graphs keep their addresses.
    Memory: the parameters once more, and once again while they are swapped.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._parameters = dict(model.named_parameters()) if decay else {}
        self._average = {name: x.detach().clone() for name, x in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now."""
        if not self.decay:
            return
        share = 1.0 - min(self.decay, (1 + self.updates) / (RISE + self.updates))
        torch._foreach_lerp_(list(self._average.values()), list(self._parameters.values()), share)
        self.updates += 1

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """The model with the average in place of its parameters, which come back at the end, whatever happens."""
        held = {name: x.detach().clone() for name, x in self._parameters.items()}
        self._fill(self._average)
        try:
            yield
        finally:
            self._fill(held)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for a checkpoint, by name; empty without an average."""
        return {**self._average, "updates": torch.tensor(self.updates)} if self.decay else {}

    def load(self, tensors: Mapping[str, Tensor], where: str | Path = "the checkpoint") -> None:
        """Go on from what `tensors` gave; `DataError` for another model's, or for a run without an average."""
        expected = self.tensors()
        given, own = ({name: (x.shape, x.dtype) for name, x in part.items()} for part in (tensors, expected))
        if given != own:
            raise DataError(
                f"{where}: its average is not one of this model's parameters.\n"
                "  train.average must be what the run was started with."
            )
        for name, x in self._average.items():
            x.copy_(tensors[name])
        self.updates = int(tensors["updates"]) if self.decay else 0

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, x in self._parameters.items():
            x.copy_(values[name])
