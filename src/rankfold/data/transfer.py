"""Files from the network or a folder into a `.part` file that a later try goes on from, and what they hold.

Failures of the network and of the disk are told apart, and both keep what has arrived.
Read next: `data/catalog.py`, which knows what should arrive.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, cast

from rankfold.data.text import BROKEN_GZIP, open_bytes
from rankfold.errors import DataError
from rankfold.files import expect_file, open_own

CHUNK = 2**16
TIMEOUT = 30.0  # seconds without a byte

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the bytes that have arrived and the bytes expected."""


class Content(NamedTuple):
    """The text inside a file, which gzip may wrap."""

    sha256: str
    num_bytes: int


def download(url: str, part: Path, num_bytes: int, *, progress: Progress) -> None:
    """Fetch `url` into `part`, from where `part` ends if the server can; `DataError` unless all bytes arrive."""
    _expect_own(part)
    start = part.stat().st_size if part.exists() else 0
    if start >= num_bytes:
        return  # whole, or wrong: the checksum tells
    with _open(url, start) as response:
        # A server that ignores the range sends everything from the beginning.
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        start = start if resumed else 0
        if response.status != (206 if resumed else 200):
            raise DataError(f"{url}: the server sent another part of the file than was asked for.\n{_elsewhere()}")
        if response.length is not None and start + response.length != num_bytes:
            raise DataError(
                f"{url}: the server has {start + response.length:,} bytes, but {num_bytes:,} were expected: another "
                f"file.\n{_elsewhere()}"
            )
        done = _write(
            _received(response, url), part, start, num_bytes, mode="ab" if resumed else "wb", progress=progress
        )
    if done < num_bytes:
        raise DataError(_interrupted(url, "it ended early"))


def copy(source: Path, part: Path, *, progress: Progress) -> None:
    """Copy `source` into `part`, from the beginning."""
    expect_file(source)
    _expect_own(part)
    _write(_read(source), part, 0, source.stat().st_size, mode="wb", progress=progress)


def content(path: Path, *, gzipped: bool) -> Content | None:
    """Checksum and size of the text in a file; None if its gzip data is damaged."""
    digest, num_bytes = hashlib.sha256(), 0
    with open_bytes(path, gzipped=gzipped) as stream:
        try:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                num_bytes += len(chunk)
        except BROKEN_GZIP:
            return None
    return Content(digest.hexdigest(), num_bytes)


def aside(path: Path) -> Path:
    """Where a bad file is kept: the first of `x.bad`, `x.bad2`, ... that is free."""
    number, kept = 1, path.with_name(path.name + ".bad")
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.name}.bad{number}")
    return kept


def _open(url: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "rankfold"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
        return cast(http.client.HTTPResponse, response)
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{url}: the server answered {error.code} {error.reason}.\n{_elsewhere()}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"{url}: cannot be reached ({error}).\n{_elsewhere()}") from None


def _received(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """Chunks of a response; its failures become `DataError`, so that an `OSError` outside is the disk's."""
    try:
        while chunk := response.read(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise DataError(_interrupted(url, repr(error))) from None


def _read(source: Path) -> Iterator[bytes]:
    try:
        with source.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}.") from None


def _write(
    chunks: Iterator[bytes], part: Path, done: int, num_bytes: int, *, mode: Literal["ab", "wb"], progress: Progress
) -> int:
    """Write the chunks and return the size of `part`; stops soon after more has come than was expected."""
    try:
        flags = os.O_WRONLY | (os.O_APPEND if mode == "ab" else os.O_TRUNC)
        with os.fdopen(open_own(part, flags), mode) as out:
            for chunk in chunks:
                out.write(chunk)
                done += len(chunk)
                progress(part.name.removesuffix(".part"), done, num_bytes)
                if done > num_bytes:
                    break
    except OSError as error:
        raise DataError(
            f"{part}: cannot be written: {error.strerror or error}.\n"
            "  Free some space or choose another folder, then run the same command again."
        ) from None
    return done


def _expect_own(part: Path) -> None:
    """Raise on anything but the rest of an earlier try: what a link names is not ours to write into."""
    if os.path.lexists(part) and (part.is_symlink() or not part.is_file()):
        raise DataError(f"{part}: a link, or no file, where a download would be kept: move it away.")


def _interrupted(url: str, why: str) -> str:
    return f"{url}: the connection broke ({why}).\n  What arrived is kept; the same command again goes on from there."


def _elsewhere() -> str:
    return (
        "  Fetch the files by other means and name their folder: source=FOLDER in Python, --from FOLDER as a command."
    )
