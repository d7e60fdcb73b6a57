"""Tables in Parquet and Arrow files, read by pyarrow, an extra: as numbers, as fields like those of a .csv, as text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DataError, UnsupportedError
from rankfold.files import expect_file, expect_unpacked

ARROW = (".parquet", ".arrow", ".feather")
ROWS = 4096  # of a Parquet file that are in memory at a time
TEXTS = ("string", "large_string", "string_view")  # which pyarrow would read numbers from


def is_arrow(path: str | Path) -> bool:
    """Whether a file is called like one of these tables."""
    return Path(path).suffix.lower() in ARROW


def arrow_numbers(path: Path) -> tuple[NDArray[np.float64], tuple[str, ...]]:  # "t f"
    """All columns as numbers, NaN where a value is missing, and their names; raises on a column of anything else."""
    table = _read(path)
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            if str(column.type) in TEXTS:
                raise ValueError
            columns.append(column.cast("float64").to_numpy())
        except (ValueError, NotImplementedError):  # pyarrow's own errors are of these kinds
            raise DataError(
                f"{path}: column {name!r} holds {column.type}, no numbers that float64 holds, as features are.\n"
                "  Choose columns, and say which is the label or the recording: rankfold data prepare FILE --out DIR "
                "--columns A,B --label C --group D."
            ) from None
    if not columns or not len(columns[0]):
        raise DataError(f"{path}: the table is empty.")
    return np.stack(columns, 1), tuple(table.column_names)


def arrow_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The names of the columns, numbered 0, then the values of each row as text, an empty one where it is missing."""
    table = _read(path)
    yield 0, list(table.column_names)
    columns = [column.to_pylist() for column in table.columns]
    for number, row in enumerate(zip(*columns, strict=True), 1):
        yield number, ["" if x is None else repr(x) if isinstance(x, float) else str(x).strip() for x in row]


def arrow_lines(path: Path, column: str, ids: str | None = None) -> Iterator[tuple[str, str | None]]:
    """The texts of one column, row by row, "" where one is missing, and the value of the column `ids` as text.

    A Parquet file is read in batches of rows: memory does not grow with it. Arrow files are read as a whole.
    """
    for batch in _batches(path, [column] if ids in (None, column) else [column, str(ids)]):
        texts = batch.column(column)
        if str(texts.type) not in TEXTS:
            raise DataError(f"{path}: column {column!r} holds {texts.type}, no text.\n  Name another with --column.")
        names = [None] * len(texts) if ids is None else batch.column(ids).to_pylist()
        for text, name in zip(texts.to_pylist(), names, strict=True):
            yield text or "", None if ids is None else str(name)


def _batches(path: Path, columns: list[str]) -> Iterator[Any]:
    if path.suffix.lower() != ".parquet":
        table = _read(path)
        _expect_columns(path, columns, table.column_names)
        yield from table.select(columns).to_batches()
        return
    _, parquet = _pyarrow(path)
    expect_file(path, "a table")
    with _told(path), parquet.ParquetFile(path) as file:
        _expect_columns(path, columns, file.schema_arrow.names)
        yield from file.iter_batches(batch_size=ROWS, columns=columns)


def _expect_columns(path: Path, columns: list[str], there: list[str]) -> None:
    for column in columns:
        if column not in there:
            raise DataError(f"{path}: no column {column!r}; there are {', '.join(there)}.\n  Name one with --column.")


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnsupportedError(
            f"{path}: pyarrow, which reads {', '.join(ARROW)}, is not installed.\n"
            "  pip install 'rankfold[arrow]', or save the table as .csv."
        ) from None
    return pyarrow, parquet


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of pyarrow and of the disk as our own."""
    pyarrow, _ = _pyarrow(path)
    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        told = str(error).splitlines()[0] if str(error) else "broken"
        raise DataError(f"{path}: cannot be read as a table ({told:.120}).") from None


def _read(path: Path) -> Any:
    pyarrow, parquet = _pyarrow(path)
    expect_file(path, "a table")
    with _told(path):
        if path.suffix.lower() == ".parquet":
            with parquet.ParquetFile(path) as file:
                groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
                expect_unpacked(path, sum(group.total_byte_size for group in groups))
                table = file.read()
        else:
            with pyarrow.OSFile(str(path)) as source:
                try:
                    table = pyarrow.ipc.open_file(source).read_all()
                except pyarrow.ArrowInvalid:  # a stream has no end marker to look up
                    source.seek(0)
                    table = pyarrow.ipc.open_stream(source).read_all()
    names = table.column_names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path}: has the column {twice!r} twice.\n  Every column has a name of its own.")
    return table
