"""What every model is: parameters on a device, and a folder they are saved in.

Read next: `models/pretrained.py`, which writes and reads the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import nn

from rankfold.errors import UnsupportedError


class SavedModel(nn.Module):
    """A module that knows its size, its place and its folder."""

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
