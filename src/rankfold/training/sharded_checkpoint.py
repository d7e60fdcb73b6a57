"""Checkpoints of a run whose states several processes hold: each writes its own rows, any number of processes reads.

`torch.distributed.checkpoint` keeps the tensors, in a folder; `checkpoint.json`, written last, names the folder and
says where the run stood, and the one before it, which is kept.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from rankfold.errors import DataError
from rankfold.files import read_json, write_text
from rankfold.models.base import Model
from rankfold.models.sharded import tables_of
from rankfold.numerics.collectives import exchange, gather_objects, is_broken, raise_told, told_of
from rankfold.training.checkpoint import MOMENTS, Loaded, Progress, progress_of, tensors_of

FORMAT, POINTER = "rankfold-sharded-checkpoint-1", "checkpoint.json"
AGAIN, BAD = "-again", ".bad"  # at the end of a folder's name


def save_shares(
    run: Path,
    model: Model[Any, Any],
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    carried: Any,
    corpus: str,
    average: Mapping[str, Tensor],
    moments: Literal["float32", "bf16"] = "float32",
) -> None:
    """Write a checkpoint together with all other processes; the one before it stays."""
    tensors = {name: x.contiguous() for name, x in tensors_of(model, optimizer, carried, average, moments).items()}
    leads, before, name = not dist.get_rank(), None, ""
    if leads:
        before = _pointed(run) if (run / POINTER).exists() else None
        name = f"checkpoint-{progress.update}"
        name += AGAIN if before is not None and before["folder"] == name else ""  # it stays until the new one is whole
        if (run / name).exists():  # of an attempt that was killed
            shutil.rmtree(run / name)
    name = gather_objects(name)[0]
    # Imported here and where it is read: it takes a second.
    from torch.distributed.checkpoint.state_dict_saver import save

    _exchange(lambda: save(_shared(model, tensors), checkpoint_id=str(run / name)))
    if leads:
        wholes = _wholes(model, tensors)
        held = {name: [str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in wholes.items()}
        content: dict[str, Any] = {"format": FORMAT, "folder": name, "corpus": corpus, "progress": asdict(progress)}
        content |= {"tensors": held, "before": None if before is None else before | {"before": None}}
        write_text(run / POINTER, json.dumps(content, indent=1) + "\n")
        kept = {name} if before is None else {name, before["folder"]}
        for old in run.glob("checkpoint-*"):
            if old.is_dir() and old.name not in kept and not old.name.endswith(BAD):
                shutil.rmtree(old)
    gather_objects(None)  # until all is written


def load_shares(run: Path) -> ShardedLoaded | None:
    """The checkpoint of a run in shards, or where it is damaged the one before it, its tensors not yet read; None where
    there is none.
    """
    if not (run / POINTER).exists():
        return None
    content = _pointed(run)
    try:
        return _loaded(run, content)
    except DataError as error:
        damage, before = str(error), content.get("before")
        if not isinstance(before, dict):
            raise
    try:
        loaded = _loaded(run, before)
    except DataError as error:
        raise DataError(f"{damage}\n  Nor is the one before it good: {error}") from None
    loaded.damage = damage
    return loaded


def _loaded(run: Path, content: dict[str, Any]) -> ShardedLoaded:
    """A checkpoint of which all files are there, and none is cut short."""
    path = run / POINTER
    try:
        folder, progress = run / content["folder"], progress_of(content["progress"])
        corpus, held = content["corpus"], content["tensors"]
        shapes = {name: (getattr(torch, dtype), torch.Size(shape)) for name, (dtype, shape) in held.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not a checkpoint of a training run ({error!r}).") from None
    if not (folder / ".metadata").is_file():
        raise DataError(f"{folder}: no such checkpoint, but {POINTER} names it.\n  Bring it back.")
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        ends: dict[str, int] = {}
        for place in FileSystemReader(folder).read_metadata().storage_data.values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
        short = next((name for name, end in ends.items() if (folder / name).stat().st_size < end), None)
    except Exception as error:  # of a file that any bytes may be in
        raise DataError(f"{folder}: damaged: {type(error).__name__}: {str(error).splitlines()[0]:.200}.") from None
    if short is not None:
        raise DataError(f"{folder / short}: cut short.\n  Copy it again from where it was saved.")
    return ShardedLoaded(folder, {}, progress, corpus, shapes=shapes)


def _exchange(call: Callable[[], Any]) -> None:
    """Save or load with all others; an error of any process is raised on all."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        exchange(call)
    except CheckpointException as error:  # no Exception to Python
        causes = {rank: cause for rank, (cause, _) in error.failures.items()}
        own = causes.get(dist.get_rank() if dist.is_initialized() else 0)
        if own is None or isinstance(own, Exception):
            raise_told(own, [told_of(causes.get(i)) for i in range(max(causes) + 1)])
        raise


def fill_shares(loaded: Loaded, model: Model[Any, Any], optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint back, cut as the model is; one of a whole model is cut here."""
    if model.shard is not None and not isinstance(loaded, ShardedLoaded):
        cut, own = _cut_names(model), model.shard.own
        loaded.tensors = {name: x[own].clone() if name in cut else x for name, x in loaded.tensors.items()}
    loaded.fill(model, optimizer)


class ShardedLoaded(Loaded):
    """A checkpoint in shards, read as a model asks for its rows."""

    def __init__(self, *arguments: Any, shapes: dict[str, tuple[torch.dtype, torch.Size]]) -> None:
        super().__init__(*arguments)
        self.shapes = shapes
        self.model: Model[Any, Any] | None = None

    def of(self, prefix: str) -> dict[str, Tensor]:
        """The tensors of one part: this process's rows once `fill` knows the model; before that none but whole ones."""
        start = prefix + "."
        if self.model is None:  # the clusters of words are asked for before there is a model
            whole = {name: x for name, x in self.shapes.items() if name.startswith(start) and name.endswith(".cluster")}
            state: dict[str, Any] = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in whole.items()}
            self._read(state, alone=True)
            return {name.removeprefix(start): x for name, x in state.items()}
        return {name.removeprefix(start): x for name, x in self.tensors.items() if name.startswith(start)}

    def fill(self, model: Model[Any, Any], optimizer: torch.optim.Optimizer) -> None:
        """Read this process's rows, cut as its model is, and put the state back."""
        empty = {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in self._own_shapes(model).items()}
        state = _shared(model, empty)
        self._read(state)
        self.tensors, self.model = empty, model
        super().fill(model, optimizer)

    def _read(self, state: dict[str, Any], *, alone: bool = False) -> None:
        """Fill tensors from the disk, together with all others unless `alone`."""
        from torch.distributed.checkpoint.state_dict_loader import load

        alone = alone or not dist.is_initialized()
        try:
            with warnings.catch_warnings():  # that it is one process, which is what was asked for
                if alone:
                    warnings.simplefilter("ignore", UserWarning)
                _exchange(lambda: load(state, checkpoint_id=str(self.path), no_dist=alone))
        except Exception as error:
            if is_broken(error):
                raise
            raise DataError(f"{self.path}: cut short or damaged: {str(error).splitlines()[0]:.200}.") from None

    def put_aside(self, newest: Path) -> list[Path]:
        """The same; the folder before it becomes the newest."""
        content = _pointed(newest.parent)
        damaged, kept = newest.parent / content["folder"], newest.parent / (content["folder"] + BAD)
        if damaged.exists():
            shutil.rmtree(kept, ignore_errors=True)
            os.replace(damaged, kept)
        write_text(newest.parent / POINTER, json.dumps(content["before"], indent=1) + "\n")
        return [kept] if kept.exists() else []

    def _own_shapes(self, model: Model[Any, Any]) -> dict[str, tuple[torch.dtype, torch.Size]]:
        cut = set() if model.shard is None else _cut_names(model)
        found = {}
        for name, (dtype, shape) in self.shapes.items():
            own = shape
            if name in cut and model.shard is not None:
                if shape[0] != model.shard.size:
                    raise DataError(
                        f"{self.path}: {name} has {shape[0]} rows, but this recipe's model {model.shard.size}."
                    )
                own = torch.Size([model.shard.height, *shape[1:]])
            found[name] = dtype, own
        return found


def _pointed(run: Path) -> dict[str, Any]:
    content = read_json(run / POINTER, "the checkpoint.json of a run in shards")
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("folder"), str):
        raise DataError(f"{run / POINTER}: not a checkpoint of a run in shards.")
    return content


def _cut_names(model: Model[Any, Any]) -> set[str]:
    """The names, in a checkpoint, of tensors that are cut by rows."""
    tables = tables_of(model)
    found = {f"{part}.{name}" for part in ("model", "average") for name in tables}
    for i, (name, _) in enumerate(model.named_parameters()):
        if name in tables:
            found |= {f"optimizer.{i}.{moment}" for moment in MOMENTS}
    return found


def _shared(model: Model[Any, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors, those that are cut as rows of the whole ones."""
    if model.shard is None:
        return dict(tensors)
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Shard as Rows

    cut, mesh = _cut_names(model), DeviceMesh("cpu", list(range(model.shard.num)))
    wholes = _wholes(model, tensors)
    return {
        name: DTensor.from_local(
            x.cpu().contiguous(),
            mesh,
            [Rows(0)],
            run_check=False,
            shape=wholes[name].shape,
            stride=wholes[name].stride(),
        )
        if name in cut
        else x.cpu()
        for name, x in tensors.items()
    }


def _wholes(model: Model[Any, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the whole model, without memory."""
    cut, shard = _cut_names(model), model.shard
    return {
        name: torch.empty(
            (shard.size, *x.shape[1:]) if shard is not None and name in cut else x.shape, dtype=x.dtype, device="meta"
        )
        for name, x in tensors.items()
    }
