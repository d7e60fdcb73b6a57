"""Tensors on disk without pickle: whole or not at all, and checked to the last bit when they come back.

A file is in the safetensors format, with a sha256 of everything in it among its metadata. Each file is written next
to the one it replaces and takes its name at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.files import expect_file, replace_file

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
REMEDY = "Copy it again from where it was saved, or take an earlier one."


def save_tensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    before_moving: Callable[[], None] | None = None,
) -> str:
    """Write one safetensors file, whole or not at all; its checksum. An `OSError` says that an earlier file is there.

    Tensors may be on any device, strided, or share memory; each is written in full. Equal content is equal bytes.
    `before_moving` is called when the disk holds all of it, before it takes its name. Our own writer: that of
    safetensors orders metadata at random, and hides the cause of a failure in a text.
    """
    metadata = metadata or {}
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
        start, end = end, end + num_bytes(x)
        header[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    replace_file(Path(path), [len(head).to_bytes(8, "little"), head, *map(_bytes, ordered.values())], before_moving)
    return digest


def load_tensors(path: str | Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata that `save_tensors` wrote; `DataError` if a bit of them has changed.

    Not a reader of every safetensors file: one without our checksum is refused, since damage could not be seen.
    """
    tensors, metadata, _ = load_checked(path, device)
    return tensors, metadata


def load_checked(path: str | Path, device: str | torch.device = "cpu") -> tuple[dict[str, Tensor], dict[str, str], str]:
    """The same, and the checksum."""
    path = Path(path)
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


def num_bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The sha256 of metadata, names, types, shapes and bytes, by name: the header counts as much as the numbers."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, x in sorted(tensors.items()):
        digest.update(json.dumps([name, str(x.dtype), list(x.shape)]).encode())
        digest.update(_bytes(x))
    return digest.hexdigest()
