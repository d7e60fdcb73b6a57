"""Tensors too large for one file, cut by rows into pieces that are not, and put together again.

Read next: `data/weights.py`, which writes the pieces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rankfold.errors import DataError, DomainError

MARK = "#"  # name#0, name#1, ...: never part of a parameter's name
# Bytes of a file beside its numbers and texts: its length and checksum; for each tensor, its type, shape and place.
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
    """Of the slices along the first axis, which are never cut; a number by itself is one."""
    return x.element_size() * max(1, x[0].numel() if x.ndim and len(x) else 1)
