"""Mutations of binary files: arrays, archives of them, tensors."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from tests.hunt.mutate import bytes_of, json_bytes

DTYPES = (
    "|O",
    "<U8",
    ">f4",
    "<c16",
    "<M8[s]",
    "<f2",
    "|b1",
    "|V8",
    "<i8",
    "|u1",
    "<u8",
    "|S3",
    "<m8[D]",
    "<f16",
    "<f8",
)
SHAPES = ("(10**12, 3)", "(-1, 2)", "(0, 3)", "()", "(5,)", "((3,), 2)", "(2**62, 4)", "(1000000000000,)", "(3.0, 2)")
SHAPES = (
    *SHAPES,
    "(True, 3)",
    "(5, 10**6)",
    "(1,)*65",
    "'a'",
    "None",
    "(" * 300,
    "(9223372036854775808, 1)",
    "(5, -3)",
)


def npy_bytes(rng: Random, data: bytes) -> bytes:
    """An .npy file with its header changed, or its bytes."""
    if rng.random() < 0.3 or not data.startswith(b"\x93NUMPY"):
        return bytes_of(rng, data)
    length = struct.unpack("<H", data[8:10])[0]
    header, rest = data[10 : 10 + length].decode("latin-1"), data[10 + length :]
    kind = rng.randrange(7)
    if kind < 2:
        header = re.sub(r"'descr': '[^']*'", lambda _: f"'descr': '{rng.choice(DTYPES)}'", header)
    elif kind < 4:
        header = re.sub(r"'shape': \([^)]*\)", lambda _: f"'shape': {_plain(rng.choice(SHAPES))}", header)
    elif kind == 4:
        header = re.sub(r"'descr': '[^']*'", "'descr': [('a', '<f8'), ('a', '<f4')]", header)
    elif kind == 5:
        header = rng.choice(
            (header.replace("False", "True"), header.replace("False", "7"), header.replace(":", ""), "{}")
        )
        header = rng.choice((header, header.replace("{", "{" * 200, 1), "[" * 9000, header.replace("}", ", 'x': 1}")))
    else:
        header = bytes_of(rng, header.encode("latin-1")).decode("latin-1")
    head = header.encode("latin-1", "replace")[:60_000]
    version = rng.choice((b"\x01\x00",) * 6 + (b"\x02\x00", b"\x03\x00", b"\x00\x00", b"\xff\x01"))
    said = len(head) if rng.random() < 0.9 else rng.randrange(65536)
    size = struct.pack("<H", said) if version in (b"\x01\x00", b"\x00\x00", b"\xff\x01") else struct.pack("<I", said)
    return b"\x93NUMPY" + version + size + head + rng.choice((rest, rest, rest[: len(rest) // 2], rest * 3, b""))


def _plain(shape: str) -> str:
    """A shape as numpy reads it: literals only."""
    return shape.replace("10**12", "1" + "0" * 12).replace("2**62", str(2**62)).replace("10**6", "1000000")


def npz_bytes(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """An .npz file with a member changed, taken away or added, its directory edited, or its bytes changed."""
    kind = rng.randrange(10)
    if kind == 0:
        return bytes_of(rng, data, others)
    if kind == 1:
        return _directory(rng, data)
    members = _members(data)
    name = rng.choice(list(members))
    if kind < 5:
        members[name] = npy_bytes(rng, members[name])
    elif kind < 7:
        members[name] = _saved(_array(rng, np.load(io.BytesIO(members[name]), allow_pickle=False)))
    elif kind == 7:
        del members[name]
    elif kind == 8:
        new = rng.choice(
            ("x", "features.npy", "lengths.npy", "../a.npy", "a/b.npy", ".npy", "é.npy", "test_bits.npy", "split.npy")
        )
        members[new] = members.pop(name) if rng.random() < 0.5 else members[name]
    else:
        other = _members(rng.choice(others)) if others else members
        taken = rng.choice(list(other))
        members[rng.choice((taken, name))] = other[taken]
    return zipped(members, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file; equal members make equal bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return stream.getvalue()


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _saved(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def _array(rng: Random, x: Any) -> Any:
    """An array with its type, shape or values changed; some are of objects, which make a pickle."""
    kind = rng.randrange(9)
    with np.errstate(all="ignore"):
        if kind == 0:
            names = ("f2", "f4", "f8", ">f4", "i1", "u8", "?", "c8", "U4", "S4", "O", "M8[s]")
            return x.astype(rng.choice(names) if x.dtype.kind in "fiub" else "O")
        if kind == 1:
            x = np.atleast_1d(x)
            return rng.choice((x[None], x.ravel(), x[:0], x[..., :0], x[:1], x[:-1], np.array(3.0), x.T))
        if kind == 2 and x.dtype.kind in "fiu" and x.size:
            values = (-1, 0, 1, 2, 200, 2**31, 1e300, -1e300, np.nan, np.inf, -np.inf, 5e-324, 0.5)
            y = x.astype(np.float64) if rng.random() < 0.7 else x.copy()
            y.flat[rng.randrange(y.size)] = np.array(rng.choice(values)).astype(y.dtype)
            return y
        if kind == 3 and x.dtype.kind == "f" and x.ndim and len(x):
            y = x.copy()
            y[rng.randrange(len(y))] = np.nan
            return y
        if kind == 4 and x.dtype.kind in "iu":
            return rng.choice(
                (x - 1, x + 1, x.astype(np.int64) * 2**40, -x, x.astype(np.uint64), x.astype(np.float64), x[::-1])
            )
        if kind == 5:
            return np.repeat(x, 2, axis=0) if x.ndim else x
        if kind == 6:
            return np.array(rng.choice((["a", "b"], ["train"], [None], [{}], "text", [], [b"\xff"])))
        if kind == 7:
            return np.asfortranarray(x)
    return x[rng.randrange(len(x) or 1) :] if x.ndim and len(x) else x


def _directory(rng: Random, data: bytes) -> bytes:
    """A zip file whose central directory says something else: sizes, method, flags, places, names."""
    found = [m.start() for m in re.finditer(b"PK\x01\x02", data)]
    if not found:
        return data
    at = rng.choice(found)
    offset, width = rng.choice(((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4), (6, 2)))
    value = rng.choice((0, 1, 99, 8, 2 ** (8 * width) - 1, rng.randrange(2 ** (8 * width)), 2 ** (8 * width - 1)))
    return data[: at + offset] + value.to_bytes(width, "little") + data[at + offset + width :]


def header_bytes(rng: Random, data: bytes) -> bytes:
    """A safetensors file with its header changed as JSON, its length, or its bytes."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError:
        return bytes_of(rng, data)
    kind = rng.randrange(6)
    if kind < 3:
        return bytes_of(rng, data)
    if kind == 3:
        lengths = (0, 1, length - 1, length + 8, len(data), 2**40, 2**63, 2**64 - 1, 100_000_000)
        return rng.choice(lengths).to_bytes(8, "little") + data[8:]
    head = json_bytes(rng, header)
    return len(head).to_bytes(8, "little") + head + data[8 + length :]
