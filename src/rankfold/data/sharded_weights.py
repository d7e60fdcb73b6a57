"""Weights in several files with an index, as Hugging Face lays them out: too large for one, or of several processes.

Where several processes hold some rows each, every one writes a file of its own, and reads its own rows of any files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from rankfold.data.weights import CHECKSUM, REMEDY, load_checked, load_tensors, num_bytes, save_tensors
from rankfold.errors import DataError, DomainError
from rankfold.files import read_bytes, replace_file, sync_folder

STEM = "model"
MARK = "#"  # name#0, name#1, ...: never part of a parameter's name
# Bytes of a file besides its numbers and texts: its length and checksum; for each tensor, its type, shape and place.
FILE, ENTRY = 256, 128
LETTERS = "abcde"  # of shards that must not have the names of earlier ones


def to_pieces(
    tensors: Mapping[str, Tensor], file_bytes: int, metadata: Mapping[str, str]
) -> tuple[dict[str, Tensor], int]:
    """The tensors, those too large for a file in pieces of several rows, and how many bytes of them a file may hold.

    The rest of a file is for its header, whose size is bounded here as if a piece of every tensor were in it; two
    pieces of one never are, since together they are above the limit.
    """
    header = FILE + len(json.dumps(dict(metadata))) + sum(ENTRY + len(json.dumps(name)) for name in tensors)
    limit = file_bytes - header
    widest = max((_row_bytes(x) for x in tensors.values()), default=1)
    if limit < 2 * widest:
        raise DomainError(
            f"files of {file_bytes:,} bytes are too small: the header may take {header:,} and two rows {2 * widest:,}."
            f"\n  Allow at least {header + 2 * widest:,} bytes a file."
        )
    pieces: dict[str, Tensor] = {}
    for name, x in tensors.items():
        if x.numel() * x.element_size() <= limit:
            pieces[name] = x
            continue
        height = limit // _row_bytes(x)
        pieces |= {f"{name}{MARK}{i}": part for i, part in enumerate(x.split(height))}  # type: ignore[no-untyped-call]
    return pieces, limit


def join_pieces(pieces: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors that `to_pieces` cut; `DataError`, with the place they are from, if these are not all of one."""
    rows: dict[str, dict[str, Tensor]] = {}
    for name, x in pieces.items():
        own, mark, number = name.partition(MARK)
        rows.setdefault(own, {})[number if mark else "0"] = x
    return {name: _joined(name, parts, where) for name, parts in rows.items()}


def _joined(name: str, parts: Mapping[str, Tensor], where: str | Path) -> Tensor:
    """One tensor of its pieces, by their numbers."""
    if parts.keys() != {str(i) for i in range(len(parts))}:
        raise DataError(f"{where}: the tensor {name!r} has the pieces {', '.join(sorted(parts))}: not 0, 1, ...")
    ordered = [parts[str(i)] for i in range(len(parts))]
    if len({(x.dtype, x.shape[1:], x.ndim) for x in ordered}) > 1 or (len(ordered) > 1 and not ordered[0].ndim):
        raise DataError(f"{where}: the pieces of the tensor {name!r} are of different types or widths.")
    return ordered[0] if len(ordered) == 1 else torch.cat(ordered)


def _row_bytes(x: Tensor) -> int:
    """Bytes of a slice along the first axis, which is never cut; a scalar is one slice."""
    return x.element_size() * max(1, x[0].numel() if x.ndim and len(x) else 1)


def save_sharded(
    folder: str | Path,
    tensors: Mapping[str, Tensor],
    *,
    stem: str = STEM,
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    superseding: bool = False,
    other_indices: Sequence[str] = (),
    before_moving: Callable[[], None] | None = None,
) -> list[Path]:
    """The files written: `model.safetensors`, or above the limit shards and their index as Hugging Face lays them out.

    No tensor is divided: one above the limit has a shard of its own. Until the last file is in place, `load_sharded`
    gives the earlier weights, or refuses where shards of both have the same names; it never mixes them.
    With `superseding` no names are the same, so that the earlier weights load until the new index is in place; then
    their shards are removed, except shards that `other_indices` (names of index files) list. `before_moving` is called
    when everything is on disk, before the file that loads takes its name.
    """
    folder = Path(folder)
    shards = _divide(tensors, max_shard_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    whole, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if len(shards) == 1:
        save_tensors(whole, tensors, metadata, before_moving=before_moving)
        _retire(index)  # where there is an index, it is what loads
        _sweep(folder, stem, _named(folder, other_indices))
        return [whole]
    letter = f"-{_free_letter(folder, stem, [index.name, *other_indices])}" if superseding else ""
    names = [f"{stem}{letter}-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    digests = [save_tensors(folder / name, shard, metadata) for name, shard in zip(names, shards, strict=True)]
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    _write_index(index, weight_map, sum(map(num_bytes, tensors.values())), digests, before_moving)
    _retire(whole)  # other readers prefer it to the index
    _sweep(folder, stem, _named(folder, other_indices).union(names))
    return [*(folder / name for name in names), index]


def load_sharded(
    folder: str | Path, stem: str = STEM, device: str | torch.device = "cpu"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata that `save_sharded` wrote, in one file or in many."""
    index = Path(folder) / f"{stem}.safetensors.index.json"
    if not index.exists():
        return load_tensors(index.with_name(f"{stem}.safetensors"), device)
    weight_map, checksum = _read_index(index)
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    found, digests = {}, []
    for name in sorted(set(weight_map.values())):
        if not os.path.exists(index.with_name(name)):  # also of a name that is too long for any file
            raise DataError(f"{index.with_name(name)}: no such file, but {index.name} names it.\n  {REMEDY}")
        shard, metadata, digest = load_checked(index.with_name(name), device)
        tensors.update(shard)
        found.update(dict.fromkeys(shard, name))
        digests.append(digest)
    if found != weight_map or _joint(digests) != checksum:
        raise DataError(f"{index}: its shards are not of one saving; one was interrupted, or files mixed.\n  {REMEDY}")
    return {name: tensors[name] for name in weight_map}, metadata


def save_rows(
    folder: Path,
    tensors: Mapping[str, Tensor],
    tables: set[str],
    number: int,
    gather: Callable[[Any], list[Any]],
) -> None:
    """Write the rows of process `number` into a file of its own; the first also what all have, and at last the index.

    `tables` are the names of the tensors that are rows of larger ones. `gather` gives an object of every process. Until
    the index is in place, the weights that were there before load.
    """
    whole, index = folder / f"{STEM}.safetensors", folder / f"{STEM}.safetensors.index.json"
    letter, num = gather(_free_letter(folder, STEM, [index.name]) if not number else "")[0], len(gather(None))
    name = f"{STEM}-{letter}-{number + 1:05}-of-{num:05}.safetensors"
    own = {
        f"{key}{MARK}{number}" if key in tables else key: x for key, x in tensors.items() if key in tables or not number
    }
    digest = save_tensors(folder / name, own)
    told = gather((name, digest, list(own), sum(map(num_bytes, own.values()))))
    if number:
        return
    weight_map = {key: file for file, _, keys, _ in told for key in keys}
    _write_index(index, weight_map, sum(x[3] for x in told), [x[1] for x in told])
    _retire(whole)
    _sweep(folder, STEM, {file for file, *_ in told})


def load_rows(folder: Path, own: Callable[[str, int], slice]) -> dict[str, Tensor]:
    """The rows of every tensor of a folder that `own(name, height)` asks for; one file in memory at a time.

    Files are checked as a whole, as `load_sharded` does, whoever wrote them and in how many pieces.
    """
    index = folder / f"{STEM}.safetensors.index.json"
    files, checksum = [f"{STEM}.safetensors"], None
    if index.exists():
        weight_map, checksum = _read_index(index)
        files = sorted(set(weight_map.values()))
    heights: dict[str, dict[int, int]] = {}
    for file in files:
        for key, height in _heights(folder / file).items():
            name, mark, number = key.partition(MARK)
            heights.setdefault(name, {})[int(number) if mark else 0] = height
    parts: dict[str, dict[int, Tensor]] = {}
    digests = []
    for file in files:
        tensors, _, digest = load_checked(folder / file, "cpu")
        digests.append(digest)
        for key, x in tensors.items():
            name, mark, number = key.partition(MARK)
            at = int(number) if mark else 0
            if not x.ndim:
                parts.setdefault(name, {})[at] = x
                continue
            rows = own(name, sum(heights[name].values()))
            before = sum(height for i, height in heights[name].items() if i < at)
            taken = x[max(0, rows.start - before) : max(0, rows.stop - before)]
            parts.setdefault(name, {})[at] = taken.clone()
    if checksum is not None and _joint(digests) != checksum:
        raise DataError(f"{index}: its shards are not of one saving; one was interrupted, or files mixed.")
    return {
        name: found[0] if len(found) == 1 else torch.cat([found[i] for i in sorted(found)])
        for name, found in parts.items()
    }


def _heights(path: Path) -> dict[str, int]:
    """How many rows each tensor of a file has."""
    if not path.exists():
        raise DataError(f"{path}: no such file, but a model's weights were expected there.")
    try:
        with safe_open(path, framework="pt") as stream:
            shapes = {key: stream.get_slice(key).get_shape() for key in stream.keys()}  # noqa: SIM118 - no dict
    except Exception as error:
        raise DataError(f"{path}: cut short or damaged: {error}.") from None
    return {key: shape[0] if shape else 0 for key, shape in shapes.items()}


def _retire(path: Path) -> None:
    """Remove the file that would be loaded in place of the new ones."""
    if path.exists():
        path.unlink()
        sync_folder(path)


def _named(folder: Path, indices: Sequence[str]) -> set[str]:
    """The shards that any of these indices names; a missing or unreadable index names none."""
    names: set[str] = set()
    for index in indices:
        with contextlib.suppress(DataError):
            names.update(_read_index(folder / index)[0].values())
    return names


def _free_letter(folder: Path, stem: str, indices: Sequence[str]) -> str:
    """A letter that no shard of these indices has; of four indices at most, none is the letter of a fifth."""
    named = _named(folder, indices)
    return next(letter for letter in LETTERS if not any(name.startswith(f"{stem}-{letter}-") for name in named))


def _sweep(folder: Path, stem: str, names: set[str]) -> None:
    """Remove shards with a letter that no index names any more: of earlier weights, or of a saving that was killed."""
    for path in folder.glob(f"{stem}-[{LETTERS}]-?????-of-?????.safetensors*"):
        if path.name not in names:
            path.unlink()


def _divide(tensors: Mapping[str, Tensor], limit: int | None) -> list[dict[str, Tensor]]:
    """Tensors in their order, in shards of at most `limit` bytes; at least one shard, and one tensor in each."""
    if limit is not None and limit < 1:
        raise DomainError(f"max_shard_bytes is {limit}, but a shard has at least 1 byte.")
    if limit is None:
        return [dict(tensors)]
    shards: list[dict[str, Tensor]] = [{}]
    room = limit
    for name, x in tensors.items():
        if shards[-1] and num_bytes(x) > room:
            shards.append({})
            room = limit
        shards[-1][name] = x
        room -= num_bytes(x)
    return shards


def _write_index(
    path: Path,
    weight_map: Mapping[str, str],
    size: int,
    digests: list[str],
    before_moving: Callable[[], None] | None = None,
) -> None:
    """Say which file has which tensor: from here on these files are the weights."""
    content = {"metadata": {"total_size": size, CHECKSUM: _joint(digests)}, "weight_map": weight_map}
    replace_file(path, [(json.dumps(content, indent=2) + "\n").encode()], before_moving)


def _read_index(path: Path) -> tuple[dict[str, str], Any]:
    """The shard of each tensor, and the checksum over all shards."""
    text = read_bytes(path, "an index of shards")
    try:
        content = json.loads(text)
        weight_map, checksum = content["weight_map"], content["metadata"].get(CHECKSUM)
        plain = isinstance(weight_map, dict) and all(map(_is_plain, weight_map.values()))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        plain = False
    if not plain:
        raise DataError(f'{path}: not an index of shards: "metadata" and "weight_map" were expected.\n  {REMEDY}')
    return weight_map, checksum


def _is_plain(name: Any) -> bool:
    """Whether it is the name of a file, in no other folder."""
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def _joint(digests: list[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
