"""How far every update goes: the learning rate by update or by evaluations so far, and the average of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rankfold.errors import DataError
from rankfold.training.config import TrainConfig

RISE = 10  # early on, the average reaches back over about a ninth of the updates so far


@dataclass
class Plateau:
    """What the plateau schedule and early stopping remember: the best so far, and how long ago it was."""

    best: float = math.inf
    since_best: int = 0  # evaluations
    since_change: int = 0  # evaluations without a better one since the rate last fell
    scale: float = 1.0
    reference: float = math.inf  # the value the next one is compared with, before the rate falls

    def see(self, value: float, config: TrainConfig, *, of_words: bool = True) -> bool:
        """Take note of an evaluation, a perplexity or (not `of_words`) nats; whether it is the best so far."""
        better = value < self.best
        self.best = min(self.best, value)
        self.since_best = 0 if better else self.since_best + 1
        # By log-likelihoods. With a threshold below 0 a slightly worse one passes, and the next is held against it.
        nats, before = (math.log(x) if of_words else x for x in (value, self.reference))
        # Nats of densities may be below 0, where a share of them goes the other way.
        share = config.plateau_threshold if before > 0 else -config.plateau_threshold
        passes = nats < before * (1.0 - share)
        self.reference = value if passes else self.reference
        self.since_change = 0 if passes else self.since_change + 1
        if config.schedule == "plateau" and self.since_change > config.plateau_patience:
            self.scale *= config.plateau_factor
            self.since_change = 0
        return better


def learning_rate(update: int, config: TrainConfig, plateau: Plateau) -> float:
    """The rate of an update, counted from 0; linear and cosine reach `min_lr` after the last one."""
    warm = min(1.0, (update + 1) / (config.warmup + 1))
    if config.schedule == "plateau":
        return warm * max(config.min_lr, config.lr * plateau.scale)
    if config.schedule == "constant":
        return warm * config.lr
    share = min(1.0, max(0, update - config.warmup) / max(1, config.updates - config.warmup))
    left = 1.0 - share if config.schedule == "linear" else (1.0 + math.cos(math.pi * share)) / 2
    return warm * (config.min_lr + (config.lr - config.min_lr) * left)


def extension_line(before: TrainConfig, config: TrainConfig, update: int, plateau: Plateau) -> str:
    """How an extended run goes on: by the schedule of its new number of updates, from the next update on."""
    line = f"extended from {before.updates:,} to {config.updates:,} updates, after update {update:,}"
    if config.optimizer == "em" and not config.momentum:
        return line
    if config.schedule in ("constant", "plateau"):
        return f"{line}; the {config.schedule} schedule does not depend on their number"
    last, following = learning_rate(max(0, update - 1), before, plateau), learning_rate(update, config, plateau)
    return (
        f"{line}; the {config.schedule} schedule is that of {config.updates:,} updates from here on: the rate goes "
        f"from {last:.2e} to {following:.2e}, and ends at {config.min_lr:.2e}"
    )


def warmup_warnings(config: TrainConfig) -> list[str]:
    """A warning if the run is too short for its warm-up (its updates were cut, say); else no line."""
    if config.optimizer == "em" or config.warmup < config.updates:
        return []
    return [
        f"the rate rises for {config.warmup:,} updates, more than the run has: it ends below train.lr={config.lr:g}, "
        f"which train.warmup={config.updates // 10} would let it reach"
    ]


class Average:
    """A running average of the parameters, evaluated and saved in their place: steadier than the last ones.

        average <- d average + (1 - d) parameters        after every update

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
