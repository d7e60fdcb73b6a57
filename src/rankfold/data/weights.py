"""Tensors on disk without pickle: whole or not at all, and checked to the last bit when they come back.

A file is in the safetensors format, with a sha256 of everything in it among its metadata. Each file is written next
to the one it replaces and takes its name at the end.
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
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.files import expect_file, read_bytes, replace_file, sync_folder

MARK = "#"  # name#0, name#1, ...: never part of a parameter's name
# Bytes of a file besides its numbers and texts: its length and checksum; for each tensor, its type, shape and place.
FILE, ENTRY = 256, 128


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


CHECKSUM = "rankfold.sha256"
# What safetensors 0.5 and later read; complex numbers came with a later release.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
LETTERS = "abcde"  # of shards that must not have the names of earlier ones
REMEDY = "Copy it again from where it was saved, or take an earlier one."


def save_tensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    before_moving: Callable[[], None] | None = None,
) -> None:
    """Write one safetensors file, whole or not at all; an `OSError` says that an earlier file is untouched.

    Tensors may be on any device, strided, or share memory; each is written in full. Equal content is equal bytes.
    `before_moving` is called when the disk holds all of it, before it takes its name.
    """
    _save(Path(path), tensors, metadata or {}, before_moving)


def load_tensors(path: str | Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata that `save_tensors` wrote; `DataError` if a bit of them has changed.

    Not a reader of every safetensors file: one without our checksum is refused, since damage could not be seen.
    """
    tensors, metadata, _ = _load(Path(path), device)
    return tensors, metadata


def save_sharded(
    folder: str | Path,
    tensors: Mapping[str, Tensor],
    *,
    stem: str = "model",
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
    digests = [_save(folder / name, shard, metadata or {}) for name, shard in zip(names, shards, strict=True)]
    total = {"total_size": sum(map(_num_bytes, tensors.values())), CHECKSUM: _joint(digests)}
    weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    content = json.dumps({"metadata": total, "weight_map": weight_map}, indent=2) + "\n"
    replace_file(index, [content.encode()], before_moving)
    _retire(whole)  # other readers prefer it to the index
    _sweep(folder, stem, _named(folder, other_indices).union(names))
    return [*(folder / name for name in names), index]


def load_sharded(
    folder: str | Path, stem: str = "model", device: str | torch.device = "cpu"
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
        shard, metadata, digest = _load(index.with_name(name), device)
        tensors.update(shard)
        found.update(dict.fromkeys(shard, name))
        digests.append(digest)
    if found != weight_map or _joint(digests) != checksum:
        raise DataError(f"{index}: its shards are not of one saving; one was interrupted, or files mixed.\n  {REMEDY}")
    return {name: tensors[name] for name in weight_map}, metadata


def _save(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    before_moving: Callable[[], None] | None = None,
) -> str:
    """Write one file and return its checksum.

    Our own writer: that of safetensors orders metadata at random, and hides the cause of a failure in a text.
    """
    _expect_text({**dict.fromkeys(tensors, ""), **metadata})
    # Wide types first, so that every tensor starts at a multiple of its width.
    ordered = {
        name: _on_disk(name, tensors[name])
        for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    }
    digest = _digest(ordered, metadata)
    header: dict[str, Any] = {"__metadata__": {**dict(sorted(metadata.items())), CHECKSUM: digest}}
    end = 0
    for name, x in ordered.items():
        start, end = end, end + _num_bytes(x)
        header[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    replace_file(path, [len(head).to_bytes(8, "little"), head, *map(_bytes, ordered.values())], before_moving)
    return digest


def _load(path: Path, device: str | torch.device) -> tuple[dict[str, Tensor], dict[str, str], str]:
    """Tensors, metadata and checksum of one file."""
    expect_file(path, "a .safetensors file")
    if not path.stat().st_size:
        raise DataError(f"{path}: the file is empty: writing or copying it was interrupted.\n  {REMEDY}")
    try:
        with safe_open(path, framework="pt") as stream:
            metadata = dict(stream.metadata() or {})
            tensors = {name: stream.get_tensor(name) for name in sorted(stream.keys())}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cut short or damaged: {error}.\n  {REMEDY}") from None
    checksum = metadata.pop(CHECKSUM, None)
    if checksum is None:
        raise DataError(
            f"{path}: no checksum under {CHECKSUM!r}: damaged, or written by another program.\n"
            "  In the latter case read it with safetensors.torch.load_file and write it with save_tensors."
        )
    if checksum != _digest(tensors, metadata):
        raise DataError(f"{path}: damaged: the content does not give the checksum stored with it.\n  {REMEDY}")
    # Copies: what was read so far is a view of the file, and changes if somebody writes into that.
    return {name: x.to(device, copy=True) for name, x in tensors.items()}, metadata, checksum


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
        if shards[-1] and _num_bytes(x) > room:
            shards.append({})
            room = limit
        shards[-1][name] = x
        room -= _num_bytes(x)
    return shards


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


def _expect_text(texts: Mapping[str, Any]) -> None:
    """Raise unless keys and values are strings that do not mean something else in a file."""
    for key, value in texts.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise DomainError(f"metadata and names are strings, but {key!r} has the value {value!r}.")
        if key in ("__metadata__", CHECKSUM):
            raise DomainError(f"the name {key!r} is taken by the file itself: choose another.")


def _on_disk(name: str, x: Tensor) -> Tensor:
    """A tensor as it is written: on the CPU, contiguous; a copy only where it is not that already."""
    if x.layout != torch.strided or x.is_meta or x.dtype not in DTYPES:
        raise UnsupportedError(f"{name} is a {x.device} tensor of {x.dtype}, {x.layout}: it has no place in a file.")
    return x.detach().cpu().resolve_neg().contiguous()


def _bytes(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor, not copied."""
    flat = x.as_strided((x.numel(),), (1,))  # one entry may have any stride and still count as contiguous
    return flat.view(torch.uint8).numpy().data


def _num_bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The sha256 of metadata, names, types, shapes and bytes, by name: the header counts as much as the numbers."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, x in sorted(tensors.items()):
        digest.update(json.dumps([name, str(x.dtype), list(x.shape)]).encode())
        digest.update(_bytes(x))
    return digest.hexdigest()


def _joint(digests: list[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
