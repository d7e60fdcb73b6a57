"""Frames from files: .npy, .npz, .csv, .parquet, .arrow, and folders of them. Nothing is ever unpickled."""

from __future__ import annotations

import ast
import csv
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from rankfold.data.arrow_files import ARROW, arrow_numbers, is_arrow
from rankfold.data.frames import Frames, Missing, expect_one_width, frames_of, validate_features
from rankfold.errors import DataError, DomainError
from rankfold.files import expect_file, expect_unpacked

SUFFIXES = (".npy", ".npz", ".csv", *ARROW)
Header = Literal["auto", "yes", "no"]
ZIP, NPY = b"PK", b"\x93NUMPY"
LONGEST_HEADER = 10_000  # bytes, as numpy allows; its own have about 100
PLAIN_TYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,6})")
# What zipfile, its decompressors and the parser of headers raise on bytes that are no archive of arrays.
BROKEN_ARRAYS = (
    *(ValueError, SyntaxError, TypeError, LookupError, EOFError, OSError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
SPLITS = ("train", "valid", "test")  # what 0, 1 and 2 mean in the key `split`


def read_frames(
    path: str | Path, *, split: str | None = None, missing: Missing = "error", header: Header = "auto"
) -> Frames:
    """The sequences of a file, or of all files of a folder in the order of their names.

    .npy  one sequence "t f".
    .csv  one sequence: a line per frame, commas between numbers, a line of names first or not. An empty field and `nan`
          are missing values. `header` says whether the first line is names: "yes", "no", or "auto": it is if it holds
          no number, and is not if it holds nothing else; whole numbers that may be either are refused.
    .parquet, .arrow, .feather  one sequence: a row per frame, columns of numbers with their names (extra `arrow`).
    .npz  with the key `features`: all frames "n f", cut by `lengths`; `labels` "n", `split` (0 train, 1 valid, 2 test),
          `seq_id`, `label_names`, `feature_names` and `fps` are read where they are there. Without: every array is a
          sequence "t f", named by its key.

    A folder's other files are passed over, and so are folders inside it. `split` keeps one split.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder.")
    if header not in get_args(Header):
        raise DomainError(f'header is {header!r}, but must be "auto", "yes" or "no".')
    found = _folder(path, missing, header) if path.is_dir() else _file(path, missing, header)
    return found if split is None else found.split(split)


def load_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .npz by their keys; that of a .npy has the key "". Pickles are refused.

    Headers are held to the bytes that are there before anything is unpacked; `files.expect_unpacked` has the limit.
    """
    expect_file(path, "a file of arrays")
    size = path.stat().st_size
    if not size:
        raise DataError(f"{path}: the file is empty.")
    try:
        with open(path, "rb") as stream:
            if stream.read(2) != ZIP:
                stream.seek(0)
                return {"": _array(stream, size)}
            stream.seek(0)
            return _members(path, stream)
    except DataError:
        raise
    except BROKEN_ARRAYS as error:
        raise DataError(
            f"{path}: cannot be read as arrays of numbers ({str(error).splitlines()[0] if str(error) else 'broken'}).\n"
            "  Arrays of objects and pickles are never loaded: save one array of numbers a sequence, with numpy.save, "
            "or several with numpy.savez."
        ) from error


def _members(path: Path, stream: IO[bytes]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an archive."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        expect_unpacked(path, sum(member.file_size for member in members))
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for member in members:
            key = member.filename.removesuffix(".npy")
            if key in arrays:
                raise DataError(f"{path}: holds two arrays {key!r}; a key has one.")
            with archive.open(member) as content:
                arrays[key] = _array(content, member.file_size)
                content.read(1)  # the end, where the checksum is compared
    return arrays


def _array(stream: IO[bytes], size: int) -> np.ndarray[Any, Any]:
    """The array of a .npy file of so many bytes; `ValueError` unless numpy.save wrote it, of plain numbers."""
    magic = stream.read(8)
    if magic[:6] != NPY or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError("not an array that numpy.save wrote")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"a header of {length:,} bytes")
    header = ast.literal_eval(stream.read(length).decode("utf-8" if magic[6] == 3 else "latin1"))
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("a header without type, order and shape")
    descr, shape = header["descr"], header["shape"]
    if not isinstance(descr, str) or not PLAIN_TYPE.fullmatch(descr):
        raise ValueError(f"numbers of type {descr!r:.40}")
    if type(header["fortran_order"]) is not bool:
        raise ValueError(f"an order of {header['fortran_order']!r:.40}")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"a shape of {shape!r:.40}")
    dtype = np.dtype(descr)
    num = math.prod(shape)
    if not dtype.itemsize or num * dtype.itemsize != size - len(magic) - width - length:
        raise ValueError(f"{num:,} numbers of {dtype}, which are not the bytes of the file: it is cut short, or longer")
    content = stream.read(num * dtype.itemsize)
    if len(content) != num * dtype.itemsize:
        raise ValueError("cut short")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if header["fortran_order"] else "C")


def _file(path: Path, missing: Missing, header: Header) -> Frames:
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _csv(path, missing, header)
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: frames are read from {', '.join(SUFFIXES)} and folders of them, not from {suffix!r}.")
    if is_arrow(path):
        numbers, columns = arrow_numbers(path)
        return frames_of([numbers], names=[path.stem], feature_names=columns, missing=missing, source=path)
    arrays = load_arrays(path)
    if "features" in arrays:
        return _stacked(path, arrays, missing)
    if not arrays:
        raise DataError(f"{path}: the file holds no arrays.")
    names = list(arrays) if suffix == ".npz" else [path.stem]
    return frames_of(list(arrays.values()), names=names, missing=missing, source=path)


def _stacked(path: Path, arrays: Mapping[str, Any], missing: Missing) -> Frames:
    """One array of all frames, with the arrays about its frames, sequences and features."""
    features = arrays["features"]
    lengths = arrays.get("lengths", np.array([len(features) if features.ndim else 0]))
    splits = arrays.get("split")
    if splits is not None:
        bad = [code for code in np.ravel(splits).tolist() if code not in range(len(SPLITS))]
        if bad:
            raise DataError(f"{path}: the key split holds {bad[0]!r}, but 0 is train, 1 valid and 2 test.")
        splits = [SPLITS[int(code)] for code in np.ravel(splits)]
    fps = arrays.get("fps")
    if fps is not None and (fps.size != 1 or fps.dtype.kind not in "iuf" or not 0 < float(fps.ravel()[0]) < math.inf):
        raise DataError(f"{path}: fps is {fps!s:.40}, but must be one number above 0: frames a second.")
    return frames_of(
        features,
        lengths=lengths,
        labels=arrays.get("labels"),
        names=_listed(path, arrays, "seq_id"),
        label_names=_listed(path, arrays, "label_names"),
        feature_names=_listed(path, arrays, "feature_names"),
        splits=splits,
        fps=None if fps is None else float(np.ravel(fps)[0]),
        missing=missing,
        source=path,
    )


def _listed(path: Path, arrays: Mapping[str, Any], key: str) -> list[Any] | None:
    """An array of names or numbers as a list; None where there is none."""
    if key in arrays and arrays[key].ndim != 1:
        raise DataError(f"{path}: {key} has shape {arrays[key].shape}, but a list was expected.")
    return arrays[key].tolist() if key in arrays else None


def _csv(path: Path, missing: Missing, header: Header) -> Frames:
    names: tuple[str, ...] | None = None
    rows: list[list[float]] = []
    lines = _lines(path)
    for number, fields in enumerate(lines, 1):
        no_number = any(fields) and not any(field and _is_number(field) for field in fields)
        if number == 1 and (header == "yes" or (header == "auto" and no_number)):
            names = _header(fields, f"{path}, line 1")
            continue
        width = len(names) if names is not None else len(rows[0]) if rows else len(fields)
        if len(fields) != width:
            what = "is empty" if not fields else f"has {len(fields)} fields"
            raise DataError(
                f"{path}, line {number}: {what}, but the first line has {width}.\n"
                "  Every line is a frame; a missing one is written as nan,nan,..."
            )
        rows.append([_number(field, f"{path}, line {number}, column {j}") for j, field in enumerate(fields, 1)])
    if not rows:
        raise DataError(f"{path}: {'a line of names and no frames' if names else 'the file is empty'}.")
    first = 1 if names is None else 2
    x, partly = validate_features(np.array(rows), str(path), missing=missing, row="line", first=first)
    if header == "auto" and names is None and _may_be_names(lines):
        raise DataError(
            f"{path}, line 1: {','.join(lines[0])[:40]!r} may be names of columns or the first frame.\n"
            "  Say which: --header yes or no, data.header in a recipe, read_frames(..., header=...); or give names "
            "that are no numbers."
        )
    found = frames_of([x], names=[path.stem], feature_names=names, missing=missing, source=path)
    return replace(found, num_partly_missing=partly)


def _may_be_names(lines: list[list[str]]) -> bool:
    """Whether a first line of whole numbers may be names: all different, and evenly spaced or unlike the others.

    Programs number columns from 0 or 1, or name them by years or frequencies; where the other lines have fractions or
    signs a first one without any is not like them.
    """
    first, *others = lines
    if not all(_is_whole(field) for field in first) or len(set(first)) < len(first):
        return False
    steps = set(np.diff([int(field) for field in first]).tolist())
    counted = steps == {1} or (len(first) > 2 and len(steps) == 1 and min(steps) > 0)
    unlike = any(field and not _is_whole(field) and not math.isnan(float(field)) for row in others for field in row)
    return counted or unlike


def _is_whole(field: str) -> bool:
    return field.isascii() and field.isdigit()


def _lines(path: Path) -> list[list[str]]:
    """The fields of each line, without the empty lines at the end."""
    expect_file(path, "a file of frames")
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            lines = [[field.strip() for field in fields] for fields in csv.reader(stream)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is not a csv file in UTF-8 ({error}).") from error
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _header(fields: list[str], where: str) -> tuple[str, ...]:
    if "" in fields:
        raise DataError(
            f"{where}: the names are {', '.join(fields)[:60]!r}, but column {fields.index('') + 1} has none.\n"
            "  Leave a column of row numbers out: it is no feature."
        )
    return tuple(fields)


def _is_number(field: str) -> bool:
    """Whether a field can stand in a row of numbers; an empty one can."""
    try:
        float(field or "nan")
    except ValueError:
        return False
    return "_" not in field


def _number(field: str, where: str) -> float:
    if not _is_number(field):
        hint = (
            "Fields are parted by commas."
            if ";" in field or "\t" in field
            else "Leave columns of text out. Those of labels or recordings: rankfold data prepare, --label, --group."
        )
        raise DataError(
            f"{where}: {field[:40]!r} is no number.\n  {hint}\n  A first line of names has no numbers in it."
        )
    return float(field or "nan")


def _folder(path: Path, missing: Missing, header: Header) -> Frames:
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        held = sorted(file.name for file in path.iterdir())
        listed = ", ".join(held[:8]) + (f" and {len(held) - 8} more" if len(held) > 8 else "")
        raise DataError(f"{path}: no files in {', '.join(SUFFIXES)}; the folder holds {listed or 'nothing'}.")
    parts = [_file(file, missing, header) for file in files]
    expect_one_width([p.features[0] for p in parts], list(map(str, files)), None)
    for p, file in zip(parts, files, strict=True):
        for what in ("feature_names", "label_names", "fps"):
            if getattr(p, what) != getattr(parts[0], what):
                raise DataError(
                    f"{file}: {what} are {getattr(p, what)!r:.80}, but in {files[0]} {getattr(parts[0], what)!r:.80}.\n"
                    "  All files of a folder agree in them, or none has any."
                )
        for what in ("labels", "splits"):
            if (getattr(p, what) is None) != (getattr(parts[0], what) is None):
                raise DataError(
                    f"{file} and {files[0]}: one has {what}, the other has none; all files or none have them."
                )
    whole = frames_of(
        [x for p in parts for x in p.features],
        labels=None if parts[0].labels is None else [y for p in parts for y in p.labels or ()],
        # A key of a .npz may be that of another file too.
        names=[
            name if len(p) == 1 else f"{file.stem}/{name}"
            for p, file in zip(parts, files, strict=True)
            for name in p.names
        ],
        label_names=parts[0].label_names,
        feature_names=parts[0].feature_names,
        splits=None if parts[0].splits is None else [name for p in parts for name in p.splits or ()],
        fps=parts[0].fps,
        missing=missing,
        source=path,
    )
    return replace(whole, num_partly_missing=sum(p.num_partly_missing for p in parts))
