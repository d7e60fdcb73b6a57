"""Weights of which several processes hold some rows each: every process writes its own file, and reads its own rows.

The files are shards as one process writes them, so that one process can read them, and any number of processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from rankfold.data.weights import (
    CHECKSUM,
    MARK,
    _free_letter,
    _joint,
    _load,
    _num_bytes,
    _read_index,
    _retire,
    _save,
    _sweep,
)
from rankfold.errors import DataError
from rankfold.files import replace_file

STEM = "model"


def save_shares(
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
    digest = _save(folder / name, own, {})
    told = gather((name, digest, list(own), sum(map(_num_bytes, own.values()))))
    if number:
        return
    total = {"total_size": sum(size for *_, size in told), CHECKSUM: _joint([x[1] for x in told])}
    weight_map = {key: file for file, _, keys, _ in told for key in keys}
    content = json.dumps({"metadata": total, "weight_map": weight_map}, indent=2) + "\n"
    replace_file(index, [content.encode()])
    _retire(whole)
    _sweep(folder, STEM, {file for file, *_ in told})


def load_shares(folder: Path, own: Callable[[str, int], slice]) -> dict[str, Tensor]:
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
        tensors, _, digest = _load(folder / file, "cpu")
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
