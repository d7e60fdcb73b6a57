"""Files: only regular ones are read; a file that is written is whole or absent, and never written through a link."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rankfold.errors import DataError

PACKED, GROWTH = 2**28, 200  # bytes a compressed file may hold; more if it is not above so many times its own
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on every system


def expect_file(path: str | Path, what: str = "a file") -> None:
    """Raise unless a path is a regular file, before it is opened: a pipe or a device may be waited for without end."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {what} was expected.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"{path}: cannot be read: {_reason(error)}. {what.capitalize()} was expected.") from None
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no file")
        raise DataError(
            f"{path}: is {kind}, but {what} was expected.\n  Only regular files are read: write it to one first."
        )


def read_bytes(path: str | Path, what: str = "a file") -> bytes:
    """All of a regular file; `DataError` if it is none, or cannot be read."""
    expect_file(path, what)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}. {what.capitalize()} was expected.") from None


def read_head(path: str | Path, num_bytes: int) -> bytes:
    """The first bytes of a file, by which it says what wrote it; none where no file can be read."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(num_bytes)
    except OSError:
        return b""


def read_json(path: str | Path, what: str = "a JSON file") -> Any:
    """The content of a JSON file; `DataError` if it is no regular file, or not JSON in UTF-8."""
    content = read_bytes(path, what)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # RecursionError: nested without end
        raise DataError(
            f"{path}: not a whole JSON file: {error!s:.100}.\n  Copy it again from where it was saved."
        ) from None


def not_utf8(content: bytes, error: UnicodeDecodeError) -> tuple[int, str]:
    """The line of the first byte that is not UTF-8, and the byte."""
    return content.count(b"\n", 0, error.start) + 1, f"0x{content[error.start]:02x}"


def expect_unpacked(path: Path, num_bytes: int) -> None:
    """Raise on a compressed file that holds more than 256 MiB and 200 times its own bytes: few that are honest do."""
    size = path.stat().st_size
    if num_bytes > max(PACKED, GROWTH * size):
        raise DataError(
            f"{path}: {size:,} bytes that unpack to {num_bytes:,} or more, but at most {PACKED:,} or {GROWTH} times "
            "the file are read.\n  If it is right, unpack it: what is not compressed may have any size."
        )


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all; an `OSError` says that an earlier file is untouched."""
    replace_file(Path(path), [text.encode()])


def replace_file(
    path: Path, pieces: Iterable[bytes | memoryview], before_moving: Callable[[], None] | None = None
) -> None:
    """Write a file under a temporary name next to its place, and rename it once the disk holds all of it.

    `before_moving` is called in between: to put the earlier file elsewhere.
    """
    part = path.with_name(path.name + ".part")
    try:
        with os.fdopen(open_new(part), "wb") as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        if before_moving is not None:
            before_moving()
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        text = f"{path} could not be written: {error.strerror}. An earlier file of that name is untouched"
        raise OSError(error.errno, text) from error
    sync_folder(path)


def open_new(path: Path) -> int:
    """A descriptor of a new, empty file; what had its name, the rest of an earlier try or a link, is removed."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o666)


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a regular file, made if need be; an `OSError` for a link or anything else of that name."""
    # Without O_NONBLOCK a pipe would be waited for.
    descriptor = os.open(path, flags | os.O_CREAT | NO_FOLLOW | getattr(os, "O_NONBLOCK", 0), 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file")
    return descriptor


def sync_folder(path: Path) -> None:
    """Have the disk hold the new name of a file, too, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks sync no folders
            text = f"{path} is written, but its folder could not be synced: {error.strerror}"
            raise OSError(error.errno, text) from error
    finally:
        os.close(descriptor)


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)
