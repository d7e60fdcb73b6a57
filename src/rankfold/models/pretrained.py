"""Models on disk: config.json, model.safetensors (or shards and their index), vocab.json or frames.json. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from rankfold.data.clusters import Clusters, clusters_from_tensor
from rankfold.data.frame_space import FILE as SPACE
from rankfold.data.frame_space import FrameSpace
from rankfold.data.sharded_weights import join_pieces, load_rows, load_sharded, save_rows, save_sharded, to_pieces
from rankfold.data.vocab import FORMAT as VOCABULARY
from rankfold.data.vocab import Vocabulary, expect_format
from rankfold.data.weights import CHECKSUM
from rankfold.errors import DataError, DomainError, UnsupportedError, expect_absent, expect_device
from rankfold.files import read_json, write_text
from rankfold.models.base import Model
from rankfold.models.catalog import AnyModel, build_model, sized_model
from rankfold.models.config import CONFIGS, AnyConfig
from rankfold.models.sharded import cut_model, shard_of, tables_of, whole_config
from rankfold.settings import build, choose, to_mapping

FORMAT, VERSION = "rankfold-model", 1
DTYPES = ("float32", "float64")
CLUSTER = "blocks.members.cluster"


def save_model(
    model: Model[Any, Any], folder: str | Path, *, max_shard_bytes: int | None = None, file_bytes: int = 0
) -> None:
    """Write a model into a folder, each file whole or not at all; the configuration last.

    `max_shard_bytes`: shards as other programs read them, no table is cut. With `file_bytes` no file of weights is
    larger, tables are cut by rows, and an earlier model of the folder loads until all of this one is there.
    """
    folder = Path(folder)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UnsupportedError(f"the model is {dtype}, but float32 and float64 are saved.\n  Convert it with .float().")
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = model.vocabulary
    if vocabulary is not None:
        if len(vocabulary) != model.num_words:
            raise DomainError(f"the vocabulary has {len(vocabulary)} words, but the model {model.num_words}.")
        if model.shard is None or not model.shard.number:
            vocabulary.save(folder / "vocab.json")
    if model.space is not None:
        model.space.save(folder / SPACE)
    tensors: Mapping[str, Tensor] = model.state_dict()
    if model.shard is not None:
        save_rows(folder, tensors, tables_of(model), model.shard.number, model.shard.objects)
    elif file_bytes:
        tensors, max_shard_bytes = to_pieces(tensors, file_bytes, {})
    if model.shard is None:
        save_sharded(folder, tensors, max_shard_bytes=max_shard_bytes, superseding=bool(file_bytes))
    elif model.shard.number:
        model.shard.objects(None)  # until the first process has written the rest
        return
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": to_mapping(whole_config(model.config)),
        "num_words": model.num_words,
        "dtype": dtype,
        "vocabulary": None if vocabulary is None else vocabulary.fingerprint(),
    }
    write_text(folder / "config.json", json.dumps(content, indent=2) + "\n")
    if model.shard is not None:
        model.shard.objects(None)


def expect_model_folder(folder: Path) -> None:
    """Raise unless a model may be saved there: every file it would replace is one of a model that we saved."""
    expect_format(folder / "config.json", FORMAT)
    expect_format(folder / "vocab.json", VOCABULARY)
    if (folder / SPACE).exists():
        FrameSpace.load(folder / SPACE)  # raises on anything else
    for name in ("model.safetensors", "model.safetensors.index.json"):
        try:
            with (folder / name).open("rb") as stream:
                ours = CHECKSUM.encode() in stream.read(2**16)
        except OSError:
            ours = False
        if not ours:
            expect_absent(folder / name, "of a model that save_pretrained wrote")


def load_model(folder: str | Path, *, device: str = "cpu") -> AnyModel:
    """The model of words of a folder, of whichever family, with its vocabulary if there is one."""
    model = load_any(folder, device=device)
    if model.config.data == "recordings":
        raise UnsupportedError(
            f"{folder} holds a model of frames ({model.config.family}), but one of words was expected.\n"
            "  Load it with rankfold.load; of the commands, segment and segments-report are for it."
        )
    return cast(AnyModel, model)


def load_any(folder: str | Path, *, device: str = "cpu", shards: int = 1) -> Model[Any, Any]:
    """The model of a folder, of words or of frames; with `shards`, this process's share, next to as many processes."""
    expect_device(device)
    folder = Path(folder)
    content = _read_config(folder / "config.json")
    source = f"{folder / 'config.json'}, model"
    chosen: type[AnyConfig] = choose(CONFIGS, content["model"], source=source)
    config = build(chosen, content["model"], source=source)
    if shards > 1:
        return _load_share(folder, config, content, shards).to(device)
    tensors = join_pieces(load_sharded(folder)[0], folder)
    clusters = _clusters(config, tensors, folder)
    try:
        _expect_fit(sized_model(config, content["num_words"], clusters=clusters), tensors, folder)
    except (DomainError, UnsupportedError) as error:
        raise DataError(f"{folder / 'config.json'} does not fit its weights: {error}") from None
    model = build_model(config, content["num_words"], clusters=clusters)
    if content["dtype"] == "float64":
        model.double()
    model.load_state_dict(tensors)
    if content["vocabulary"] is not None:
        model.vocabulary = _vocabulary(folder, content["vocabulary"])
    if config.data == "recordings" and (folder / SPACE).exists():
        model.space = _space(folder / SPACE, model.config)
    return model.to(device)


def _load_share(folder: Path, config: Any, content: Mapping[str, Any], shards: int) -> Model[Any, Any]:
    """The model with the rows of this process alone; the others are never in memory all at once."""
    shard = shard_of(config)
    if shard.num != shards:
        raise DomainError(f"shards is {shards}, but {shard.num} processes were started.\n  Start as many.")
    clusters = None
    if config.has_clusters:
        held = load_rows(folder, lambda name, height: slice(0, height if name == CLUSTER else 0))
        clusters = _clusters(config, held, folder)
    sized: Model[Any, Any] = sized_model(config, content["num_words"], clusters=clusters)
    tables = tables_of(sized)
    found = load_rows(folder, lambda name, height: shard.own if name in tables else slice(0, height))
    model = cut_model(sized, shard)
    with shard.together():
        _expect_fit(model, found, folder)
        if content["vocabulary"] is not None:
            model.vocabulary = _vocabulary(folder, content["vocabulary"])
    model.load_state_dict(found, assign=True)
    model.config = replace(config, shards=shards)
    return model


def _vocabulary(folder: Path, fingerprint: str) -> Vocabulary:
    path = folder / "vocab.json"
    found = Vocabulary.load(path)
    if found.fingerprint() != fingerprint:
        raise DataError(
            f"{path} is the vocabulary of another model: its words are not those of {folder / 'config.json'}.\n"
            "  Copy vocab.json, config.json and the weights together."
        )
    return found


def _space(path: Path, config: Any) -> FrameSpace:
    found = FrameSpace.load(path)
    if not config.observation.symbols and found.num_features != config.num_features:
        raise DataError(
            f"{path} is of {found.num_features} features, but the model of {config.num_features}.\n"
            "  Copy it, config.json and the weights together."
        )
    return found


def _clusters(config: Any, tensors: dict[str, Tensor], folder: Path) -> Clusters | None:
    """The word clusters of a block model, which its weights hold; None for others."""
    if not config.has_clusters:
        return None
    if CLUSTER not in tensors:
        raise DataError(f"{folder}: the weights hold no {CLUSTER!r}, which a block model needs.")
    return clusters_from_tensor(tensors[CLUSTER], config.num_clusters, f"{folder}: {CLUSTER}")


def _expect_fit(sized: Model[Any, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    """Raise unless names, shapes and types of the weights are those of the model, before any of it is made."""
    own = sized.state_dict()
    missing, strange = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or strange:
        what = f"no {missing[0]!r}" if missing else f"{strange[0]!r}, which the model has not"
        raise DataError(f"{folder}: the weights hold {what}: they are not those of its config.json.")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise DataError(
                f"{folder}: {name} has shape {tuple(tensor.shape)}, but config.json asks for {tuple(own[name].shape)}."
            )
        if tensor.dtype != own[name].dtype and not (tensor.is_floating_point() and own[name].is_floating_point()):
            raise DataError(f"{folder}: {name} is {tensor.dtype}, but the model has {own[name].dtype} there.")
        certain = name.endswith("logit")  # of probability 1: infinity
        if tensor.is_floating_point() and bool((tensor.isnan() | (tensor == float("inf")) & (not certain)).any()):
            raise DataError(f"{folder}: {name} holds NaN or infinity: the model was saved after its training broke.")


def _read_config(path: Path) -> dict[str, Any]:
    if path.parent.is_file():
        raise DataError(f"{path.parent} is a file, but a model is a folder.")
    content = read_json(path, "the config.json of a model, beside model.safetensors,")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f'{path}: not a model: an object with "format": "{FORMAT}" was expected.')
    if content.get("version") != VERSION:
        raise DataError(f"{path}: format version {content.get('version')!r}, but this release reads {VERSION}.")
    good = (
        isinstance(content.get("model"), dict)
        and type(content.get("num_words")) is int
        and content.get("dtype") in DTYPES
        and isinstance(content.get("vocabulary", 0), str | None)
    )
    if not good:
        raise DataError(f'{path}: "model", "num_words", "dtype" and "vocabulary" are needed.\n  Save the model again.')
    return content
