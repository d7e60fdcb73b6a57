"""Checkpoints: a resumed run goes on as if it had never stopped. One file, or several, replaced as a whole.

The one before it is kept, and is what a run goes on from where the newest is damaged or gone.
Random numbers need no state: those of an update are drawn from a generator made of (seed, update).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from rankfold.data.sharded_weights import join_pieces, load_sharded, save_sharded, to_pieces
from rankfold.data.weights import load_tensors, save_tensors
from rankfold.errors import DataError, DomainError
from rankfold.models.base import Model
from rankfold.training.carried import leaves
from rankfold.training.config import Config
from rankfold.training.schedule import Plateau

FORMAT = "rankfold-checkpoint-1"
MOMENTS = ("exp_avg", "exp_avg_sq")  # of each parameter, next to the number of its steps
STATE = 1024  # more bytes than the text of a progress takes


@dataclass
class Progress:
    """Where a run stands."""

    update: int = 0  # updates done
    epoch: int = 0
    position: int = 0  # batches of the epoch done
    seconds: float = 0.0  # of training, over all its parts
    window_log_likelihood: float = 0.0  # since the last line of metrics
    window_tokens: int = 0
    metrics_size: int = 0  # bytes of metrics.jsonl
    stopped: bool = False  # early
    finished: bool = False  # the end is in the metrics
    plateau: Plateau = field(default_factory=Plateau)
    part_tokens: int = 0  # what fitted at once when the run began: sums round as they did then
    eval_tokens: int = 0
    repeated: int = 0  # of the last updates by captured graphs, bit by bit: 1 was repeated without
    recaptured: int = 0  # how often all graphs were captured anew: once, in float64; twice, as they were, for good


def save_checkpoint(
    path: Path,
    model: Model[Any, Any],
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    carried: Any,
    corpus: str,
    *,
    average: Mapping[str, Tensor] | None = None,
    shard_bytes: int = 0,
    moments: Literal["float32", "bf16"] = "float32",
) -> None:
    """Write a checkpoint; the last one stays as the previous one, whose own predecessor is removed at the end.

    With `shard_bytes`, in files of at most so many bytes and an index next to them. With moments="bf16" the
    optimiser's averages lose all but 8 bits: half the bytes of them, and a run that goes on is no longer the same.
    """
    tensors = tensors_of(model, optimizer, carried, average or {}, moments)
    content = {"format": FORMAT, "corpus": corpus, "progress": asdict(progress)}
    metadata = {"state": json.dumps(content)}
    if not shard_bytes:
        save_tensors(path, tensors, metadata, before_moving=lambda: _step_back(path))
        _index(path).unlink(missing_ok=True)
        return
    pieces, limit = to_pieces(tensors, shard_bytes, metadata)
    save_sharded(
        path.parent,
        pieces,
        stem=_stem(path),
        max_shard_bytes=limit,
        metadata=metadata,
        superseding=True,
        other_indices=[_index(_before(path)).name, _bad(_index(path)).name],
        before_moving=lambda: _step_back(path),
    )


def tensors_of(
    model: Model[Any, Any],
    optimizer: torch.optim.Optimizer,
    carried: Any,
    average: Mapping[str, Tensor],
    moments: Literal["float32", "bf16"],
) -> dict[str, Tensor]:
    """What a checkpoint holds, by name; with moments="bf16" the optimiser's averages in it."""
    tensors = {f"model.{name}": x for name, x in model.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        for name, x in state.items():  # `step` counts, and stays whole
            tensors[f"optimizer.{i}.{name}"] = x.bfloat16() if moments == "bf16" and name != "step" else x
    tensors.update({f"average.{name}": x for name, x in average.items()})
    tensors.update({f"carried.{i}": x for i, x in enumerate(leaves(carried))})
    return tensors


def expect_shards(model: Model[Any, Any], config: Config) -> None:
    """Raise before any work if the recipe's shards are too small for a checkpoint of this model; nothing is copied."""
    shard_mb = config.train.checkpoint_shard_mb
    if not shard_mb:
        return
    parts = ("model", "average") if config.train.average else ("model",)
    tensors = {f"{part}.{name}": x for part in parts for name, x in model.state_dict().items()}
    for i, x in enumerate(model.parameters()):
        tensors |= {f"optimizer.{i}.{name}": x.detach() for name in MOMENTS}
        tensors[f"optimizer.{i}.step"] = torch.empty((), device="meta", dtype=torch.float32)
    if config.data.batching == "streams" and config.model.data == "text":
        model_config: Any = config.model
        widest = max(model_config.num_states, model_config.rank)
        tensors |= {f"carried.{i}": torch.empty(1, widest, device="meta", dtype=torch.float32) for i in range(2)}
    try:
        to_pieces(tensors, config.train.shard_bytes, {"state": " " * STATE})
    except DomainError as error:
        raise DomainError(f"train.checkpoint_shard_mb is {shard_mb:g}, but {error}") from None


def has_checkpoint(path: Path) -> bool:
    """Whether there is one, in one file or in shards, or one before it."""
    return any(file.exists() for own in (path, _before(path)) for file in (own, _index(own)))


@dataclass
class Loaded:
    """A checkpoint, read and checked, not yet put into a model."""

    path: Path
    tensors: dict[str, Tensor]
    progress: Progress
    corpus: str
    damage: str = ""  # why the newest was not taken, where this is the one before it

    def of(self, prefix: str) -> dict[str, Tensor]:
        """The tensors of one part, under their own names."""
        start = prefix + "."
        return {name.removeprefix(start): x for name, x in self.tensors.items() if name.startswith(start)}

    def fill(self, model: Model[Any, Any], optimizer: torch.optim.Optimizer) -> None:
        """Put the state back; `DataError` for that of another model, before anything is changed."""
        own, held = self.of("model"), self.of("optimizer")
        states: dict[int, dict[str, Tensor]] = {}
        for name, x in held.items():
            index, _, key = name.partition(".")
            states.setdefault(int(index) if index.isdecimal() else -1, {})[key] = x
        parameters = dict(enumerate(model.parameters()))
        expected = {i: {**dict.fromkeys(MOMENTS, x.shape), "step": torch.Size()} for i, x in parameters.items()}
        found = {i: {key: x.shape for key, x in state.items() if x.is_floating_point()} for i, state in states.items()}
        of_model = {name: (x.shape, x.dtype) for name, x in model.state_dict().items()}
        wrong = {name: (x.shape, x.dtype) for name, x in own.items()}.items() ^ of_model.items()
        if wrong or not found.items() <= expected.items():
            what = sorted(name for name, _ in wrong)[0] if wrong else "the optimiser's state"
            raise DataError(f"{self.path}: not a checkpoint of this recipe's model: {what} is not what it has.")
        model.load_state_dict(own)
        content = optimizer.state_dict()
        content["state"] = states
        optimizer.load_state_dict(content)

    def carried_state(self, steps: Any, device: torch.device) -> Any:
        """The state of a stream as the model carries it, or running counts of EM; None if there was none."""
        leaves = [x.to(device) for _, x in sorted(self.of("carried").items())]
        types = [x.dtype for x in leaves]
        states = [torch.float32], [torch.int64, torch.float32], [torch.int64, torch.float64]
        if set(types) - {torch.float64} and types not in states:
            raise DataError(f"{self.path}: what streams carry is {types}, which no model does.")
        return steps.carried_of(leaves) if leaves else None

    def put_aside(self, newest: Path) -> list[Path]:
        """Where the damaged newest checkpoint is kept: it must not become the one before. One is kept, the last."""
        kept = []
        for file in (newest, _index(newest)):
            if file.exists():
                os.replace(file, _bad(file))
                kept.append(_bad(file))
        return kept


def load_checkpoint(path: Path) -> Loaded:
    """Read a checkpoint, or where it is missing or damaged the one before it; `DataError` where there is none good."""
    try:
        return _load(path)
    except DataError as error:
        damage, before = str(error), _before(path)
        if not (before.exists() or _index(before).exists()):
            raise
    try:
        loaded = _load(before)
    except DataError as error:
        raise DataError(f"{damage}\n  Nor is the one before it good: {error}") from None
    loaded.damage = damage
    return loaded


def _load(path: Path) -> Loaded:
    if _index(path).exists():
        pieces, metadata = load_sharded(path.parent, _stem(path))
        tensors = join_pieces(pieces, _index(path))
    else:
        tensors, metadata = load_tensors(path)
    try:
        content = json.loads(metadata["state"])
        if content["format"] != FORMAT:
            raise DataError(f"{path}: the format {content['format']!r}, but this release reads {FORMAT!r}.")
        progress, corpus = progress_of(content["progress"]), content["corpus"]
        if not isinstance(corpus, str):
            raise ValueError("the corpus is no string")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a checkpoint of a training run ({error!r}).") from None
    return Loaded(path, tensors, progress, corpus)


def progress_of(content: Any) -> Progress:
    """The progress a checkpoint records; `TypeError` or `ValueError` for values that no run writes."""
    progress = Progress(**{**content, "plateau": Plateau(**content["plateau"])})
    for record in (progress, progress.plateau):
        for name, default in vars(type(record)()).items():
            value, kind = getattr(record, name), type(default)
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise TypeError(f"{name} is {value!r:.40}, not a {kind.__name__}")
            if (kind is int and not 0 <= value < 2**63) or (kind is float and math.isnan(value)):
                raise ValueError(f"{name} is {value!r:.40}")
    return progress


def update_seed(seed: int, update: int, part: int = 0) -> int:
    """A seed for the random numbers of one batch of an update, different for each and for each seed of a run."""
    digest = hashlib.sha256(f"update:{seed}:{update}:{part}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _step_back(path: Path) -> None:
    """Make the newest checkpoint the one before; whenever this is interrupted, one of the two is there."""
    before, index = _before(path), _index(path)
    if index.exists():  # it is what loads
        path.unlink(missing_ok=True)
        before.unlink(missing_ok=True)
        os.replace(index, _index(before))
    elif path.exists():
        _index(before).unlink(missing_ok=True)
        os.replace(path, before)


def _index(path: Path) -> Path:
    return path.with_name(f"{_stem(path)}.safetensors.index.json")


def _before(path: Path) -> Path:
    stem = _stem(path)
    return path.with_name(f"{stem}-before{path.name.removeprefix(stem)}")


def _bad(path: Path) -> Path:
    return path.with_name(path.name + ".bad")


def _stem(path: Path) -> str:
    return path.name.removesuffix(".safetensors")
