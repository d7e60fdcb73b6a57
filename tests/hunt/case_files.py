"""The files of a case: bytes as JSON, written into a folder, listed, made shorter; small files that hold much."""

from __future__ import annotations

import base64
import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

TEXT = 20_000  # bytes of a file that is kept as it is; larger ones are packed

Files = dict[str, bytes]


def is_plain(content: Any) -> bool:
    """Whether what a case holds under a name is a plain file."""
    return isinstance(content, str) or (isinstance(content, dict) and "packed" in content)


def packed(data: bytes) -> Any:
    """Bytes as JSON: text as itself, others in base64."""
    if len(data) <= TEXT:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("utf-8")
    return {"packed": base64.b64encode(zlib.compress(data, 9)).decode()}


def unpacked(content: Any) -> bytes:
    """The bytes that `packed` was given."""
    return content.encode() if isinstance(content, str) else zlib.decompress(base64.b64decode(content["packed"]))


def put(folder: Path, files: dict[str, Any]) -> None:
    """Write the files of a case."""
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_plain(content):
            path.write_bytes(unpacked(content))
        elif "bomb" in content:
            path.write_bytes(bomb(content["bomb"], content["mib"]))
        elif "link" in content:
            path.symlink_to(content["link"])
        elif "fifo" in content:
            os.mkfifo(path)
        else:
            path.mkdir()


def listed(folder: Path, without: tuple[str, ...]) -> dict[str, Any]:
    """What is in a folder, by name: bytes, or what else it is."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(without or ("\0",)):
            continue
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_file():
            found[name] = path.read_bytes() if path.stat().st_size < 2**20 else path.stat().st_size
        else:
            found[name] = "folder" if path.is_dir() else "fifo"
    return found


def shorter(data: bytes) -> Iterator[bytes]:
    """The data without a half, a quarter, ... of it."""
    size = len(data) // 2
    while size:
        for start in range(0, len(data), size):
            yield data[:start] + data[start + size :]
        size = 0 if len(data) > 5000 and size < 64 else size // 2


@cache
def bomb(kind: str, mib: int) -> bytes:
    """A small file that unpacks to so many MiB."""
    letter = b"a" if kind == "gz" else b"\0"
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = block.compress(letter * 2**20) + block.flush(zlib.Z_FULL_FLUSH)
    end = b"\x03\x00"  # an empty last block
    if kind == "gz":
        crc = 0
        for _ in range(mib):
            crc = zlib.crc32(letter * 2**20, crc)
        tail = crc.to_bytes(4, "little") + (mib * 2**20 % 2**32).to_bytes(4, "little")
        return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + one * mib + end + tail
    shape = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({mib * 2**18}, 1), }}"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + shape.ljust(117).encode() + b"\n"
    first = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = first.compress(header) + first.flush(zlib.Z_FULL_FLUSH) + one * mib + end
    crc, size = zlib.crc32(header), len(header) + mib * 2**20
    for _ in range(mib):
        crc = zlib.crc32(letter * 2**20, crc)
    name = b"features.npy"
    common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, crc, len(data), size, len(name), 0)
    local = b"PK\x03\x04" + common + name + data
    central = b"PK\x01\x02" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    return local + central + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
