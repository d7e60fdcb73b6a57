"""One self-contained page: settings and packed arrays of a model, and the scripts that show them.

Arrays are written byte plane by byte plane, deflated together and put into the page as base64: the page holds no text
of the user outside of them, so words with markup in them never meet the HTML parser.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DataError, DomainError, expect_absent
from rankfold.files import expect_file, read_head, write_text
from rankfold.version import __version__

VERSION = 1  # of the packed format
MARK = '<meta name="generator" content="rankfold explore">'  # only pages that hold it are written over
MOST_BYTES = 10_000_000  # of a page
NOTEBOOK = "notebook"  # in place of a server's token: the page asks the widget around it
DTYPES = ("uint8", "uint16", "uint32", "int32", "float32")
STYLE = ("page.css",)
VENDOR = ("color", "dispatch", "ease", "interpolate", "quadtree", "selection", "timer", "drag", "force", "transition")
SCRIPTS = ("data", "dom", "pattern", "map", "states", "sentences", "graph", "trees", "strips", "app")


class Bundle(NamedTuple):
    """The content of a page: plain settings, and arrays by name."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def pack(bundle: Bundle) -> bytes:
    """A bundle as deflated bytes: the length of a JSON head, the head, then the arrays in its order."""
    heads, blocks = [], []
    for name, array in bundle.arrays.items():
        if array.dtype.name not in DTYPES:
            raise DomainError(f"{name} is {array.dtype}, but arrays of a page are {', '.join(DTYPES)}.")
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        planes = little.view(np.uint8).reshape(-1, array.itemsize).T  # equal bytes come together and deflate better
        heads.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        blocks.append(planes.tobytes())
    content = {"version": VERSION, "meta": dict(bundle.meta), "arrays": heads}
    head = json.dumps(content, allow_nan=False).encode()
    return zlib.compress(len(head).to_bytes(4, "little") + head + b"".join(blocks), 9)


def unpack(packed: bytes) -> Bundle:
    """The bundle that `pack` wrote."""
    content = zlib.decompress(packed)
    end = 4 + int.from_bytes(content[:4], "little")
    head = json.loads(content[4:end])
    if head["version"] != VERSION:
        raise DataError(f"packed data of format {head['version']}, but this release reads {VERSION}.")
    arrays = {}
    for one in head["arrays"]:
        dtype = np.dtype(one["dtype"])
        size = dtype.itemsize * int(np.prod(one["shape"]))
        planes = np.frombuffer(content[end : end + size], np.uint8).reshape(dtype.itemsize, -1)
        arrays[one["name"]] = np.ascontiguousarray(planes.T).view(dtype).reshape(one["shape"])
        end += size
    return Bundle(head["meta"], arrays)


def page(bundle: Bundle, *, token: str = "") -> str:
    """The HTML of a bundle. With a `token` it asks the server that sent it, or its notebook; without, nobody."""
    script, style = _script(), _style()
    connect = "'self'" if token not in ("", NOTEBOOK) else "'none'"
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    data = base64.b64encode(pack(bundle)).decode()
    parts = {"mark": MARK, "policy": policy, "style": style, "data": data, "token": token, "script": script}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], static_text("page.html"))


def read_page(path: str | Path) -> Bundle:
    """The bundle inside a page; `DataError` for any other file."""
    expect_file(path, "a page of rankfold explore")
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    found = re.search(r'<script type="application/octet-stream" id="data">([^<]*)</script>', text)
    if not is_page(path) or found is None:
        raise DataError(f"{path}: not a page of rankfold explore.\n  Write one: rankfold explore RUN -o page.html")
    return unpack(base64.b64decode(found[1]))


def write_page(path: str | Path, text: str) -> None:
    """Write a page, whole or not at all; a file that is not a page of ours is left as it is, and refused."""
    expect_page_or_absent(path)
    write_text(path, text)


def expect_page_or_absent(path: str | Path) -> None:
    """Raise unless a page may be written there."""
    if not is_page(path):
        expect_absent(path, "a page that rankfold explore wrote")
    if not Path(path).absolute().parent.is_dir():
        raise DataError(f"{path}: there is no folder {Path(path).parent}.\n  Make it, or give another name.")


def is_page(path: str | Path) -> bool:
    """Whether a file is a page of ours, by its first lines."""
    return MARK.encode() in read_head(path, 1024)


def about(**more: Any) -> dict[str, Any]:
    """The settings that every page has."""
    return {"rankfold": __version__, **more}


def fractions(values: Any, dtype: type[np.uint8] | type[np.uint16]) -> NDArray[Any]:
    """Probabilities as whole numbers, 1 as the largest."""
    return np.rint(np.asarray(values, dtype=np.float64) * np.iinfo(dtype).max).astype(dtype)


def smallest(values: Any) -> NDArray[Any]:
    """Whole numbers, at least 0, in the smallest dtype that holds them."""
    array = np.asarray(values)
    top = int(array.max()) if array.size else 0
    return array.astype(np.uint8 if top < 2**8 else np.uint16 if top < 2**16 else np.uint32)


def joined(words: Any) -> NDArray[np.uint8]:
    """Words without line ends as one array of UTF-8 bytes."""
    return np.frombuffer("\n".join(words).encode("utf-8", "replace"), np.uint8)


@cache
def _script() -> str:
    vendored = [static_text(f"vendor/d3-{name}.min.js") for name in (*VENDOR, "zoom")]
    own = "\n".join(static_text(f"{name}.js") for name in SCRIPTS)
    return "\n".join(vendored) + '\n(() => {\n"use strict";\n' + own + "\n})();\n"


@cache
def _style() -> str:
    return "\n".join(map(static_text, STYLE))


def static_text(name: str) -> str:
    """A file of the page."""
    return files("rankfold.explore").joinpath("static", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
