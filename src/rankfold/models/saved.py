"""What every model is: parameters on a device, and a folder they are saved in.

Read next: `models/pretrained.py`, which writes and reads the folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rankfold.errors import UnsupportedError, may_look

TELLING = 1e-3  # nats: more is not rounding
Made = TypeVar("Made")


class HasFactors(Protocol):
    """An operator, or rules of trees."""

    @property
    def log_factors(self) -> tuple[bool, ...]: ...
    def factors(self) -> tuple[Tensor, ...]: ...


def linear(operators: Iterable[HasFactors]) -> list[Tensor]:
    """The factors of operators that are weights, not logarithms."""
    return [x for each in operators for x, is_log in zip(each.factors(), each.log_factors, strict=True) if not is_log]


class Shares(NamedTuple):
    """Probabilities that were made in linear space, and logarithms that were made of such."""

    linear: Sequence[Tensor]
    logs: Sequence[Tensor] = ()

    def near_zero(self) -> bool:
        """Whether an entry is 0 or below the dtype's smallest normal number."""
        tables = [*self.linear, *self.logs]
        if not tables or not may_look(tables[0]):
            return False
        tiny = torch.finfo(tables[0].dtype).tiny
        low = [x.detach().amin() < tiny for x in self.linear] + [x.detach().amin() < math.log(tiny) for x in self.logs]
        return bool(torch.stack(low).any())

    def lost(self, wide: Shares) -> bool:
        """Whether an entry that is near 0 here is a probability in float64."""
        tiny = torch.finfo((*self.linear, *self.logs)[0].dtype).tiny
        for own, other in zip(self.linear, wide.linear, strict=True):
            if bool(((own.detach() < tiny) & (other.detach() > 0)).any()):
                return True
        for own, other in zip(self.logs, wide.logs, strict=True):
            low, off = own.detach() < math.log(tiny), ~((own - other).detach().abs() <= TELLING)
            if bool((low & off & (other.detach() > float("-inf"))).any()):
                return True
        return False


class SavedModel(nn.Module):
    """A module that knows its size, its place and its folder."""

    def widened(self, made: Made, make: Callable[[], Made], shares: Callable[[Made], Shares]) -> Made:
        """What was made of the parameters, or the same in float64 where float32 lost a probability below 1e-38.

        One look at each table; only where one holds something near 0, all are made in float64 and compared. Gradients
        reach the parameters either way. Without effect in float64, and while a CUDA graph is captured.
        """
        if next(self.parameters()).dtype != torch.float32 or not shares(made).near_zero():
            return made
        wide = functional_call(_Made(self, make), _in_float64(self), ())
        return cast(Made, wide) if shares(made).lost(shares(cast(Made, wide))) else made

    @property
    def num_parameters(self) -> int:
        """How many numbers there are to train."""
        return sum(x.numel() for x in self.parameters())

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def save_pretrained(self, folder: str | Path, *, max_shard_bytes: int | None = None) -> None:
        """Write config.json, model.safetensors (in shards of at most `max_shard_bytes`) and, if known, what the inputs
        mean: vocab.json of words, frames.json of frames.

        A model that is there is replaced; where one of the files is not of a model of ours, `DataError`.
        """
        from rankfold.models.pretrained import expect_model_folder, save_model  # they import us

        expect_model_folder(Path(folder))
        save_model(cast(Any, self), folder, max_shard_bytes=max_shard_bytes)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "cpu") -> Self:
        """The model that `save_pretrained` wrote."""
        from rankfold.models.pretrained import load_any

        model = load_any(folder, device=device)
        if not isinstance(model, cls):
            raise UnsupportedError(
                f"{folder} holds a {type(model).__name__}, not a {cls.__name__}.\n"
                f"  Load it with {type(model).__name__}.from_pretrained; rankfold.load_model takes any model of words."
            )
        return model


class _Made(nn.Module):
    """What a model makes of its parameters, as the call of a module."""

    def __init__(self, model: nn.Module, make: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.make = model, make

    def forward(self) -> Any:
        return self.make()


def _in_float64(model: nn.Module) -> dict[str, Tensor]:
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {f"model.{name}": x.double() if x.is_floating_point() else x for name, x in named.items()}
