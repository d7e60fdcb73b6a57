"""Recordings from tables (CSV, Parquet, Arrow): columns to features, labels and recordings, split by recording.

The folder holds train.npz, valid.npz and test.npz, which `rankfold train --data` reads, and prepared.json.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankfold.data.arrow_files import arrow_fields, is_arrow
from rankfold.data.frames import UNKNOWN
from rankfold.data.prepare import FILE, FORMAT, ONE_OF, SPLITS, VERSION, Placement, expect_new_folder, new_folder
from rankfold.errors import DataError, DomainError, quantity
from rankfold.files import expect_file, write_text
from rankfold.version import __version__


@dataclass
class Table:
    """How tables were prepared: recordings and frames by split, the features, the labels in order of their numbers."""

    files: list[str]
    columns: list[str]
    group: str | None
    label: str | None
    seed: int
    recordings: dict[str, int]
    frames: dict[str, int]
    labels: list[str]

    def lines(self) -> list[str]:
        """Counts for a person."""
        by = f"column {self.group}" if self.group else "file"
        found = [
            f"{quantity(len(self.files), 'file')}, {quantity(sum(self.frames.values()), 'row')}; "
            f"features: {', '.join(self.columns)}",
            f"{quantity(sum(self.recordings.values()), 'recording')} by {by}, seed {self.seed}: "
            + ", ".join(f"{name} {self.recordings[name]:,} ({self.frames[name]:,} frames)" for name in self.recordings),
        ]
        if self.label:
            found.append(f"{len(self.labels)} labels in column {self.label}: {', '.join(self.labels)}")
        if len(self.recordings) == 1:
            found.append("fewer than three recordings: nothing is held out")
        return found


def prepare_tables(
    names: Sequence[str],
    out: str | Path,
    *,
    columns: Sequence[str] = (),
    group: str | None = None,
    label: str | None = None,
    seed: int = 1,
) -> Table:
    """Write the recordings of .csv files, each with a line of names first, or .parquet or .arrow, into a new folder.

    `columns`: the features (all but group and label). `group`: rows with one value of it, one after the other, are a
    recording; None: a file is one. `label`: names of what each row is, empty where not known. Features are as in the
    table: training standardises them (data.standardise). Of every 20 recordings one drawn is in valid, one in test.
    """
    out = Path(out)
    expect_new_folder(out)
    if seed < 0:
        raise DomainError(f"seed is {seed}, but must be at least 0.")
    rows: dict[str, list[tuple[list[float], str]]] = {}
    header: list[str] = []
    for name in names:
        lines = _read(Path(name))
        first = next(lines)[1]
        if header and first != header:
            raise DataError(f"{name}, line 1: columns {', '.join(first)}, but {names[0]} has {', '.join(header)}.")
        header = first
        chosen = list(columns) or [column for column in header if column not in (group, label)]
        for column in (*chosen, *(x for x in (group, label) if x is not None)):
            if column not in header:
                raise DataError(f"{name}: no column {column!r}; there are {', '.join(header)}.")
        places = [header.index(column) for column in chosen]
        before = None
        for number, fields in lines:
            where = f"{name}, {'row' if is_arrow(name) else 'line'} {number}"
            if len(fields) != len(header):
                raise DataError(f"{where}: {len(fields)} fields, but the first line has {len(header)}.")
            key = Path(name).stem if group is None else fields[header.index(group)]
            if group is not None and key != before:
                _expect_new(key, rows, f"{where}, column {group}")
            before = key
            values = [_number(fields[i], f"{where}, column {header[i]}") for i in places]
            rows.setdefault(key, []).append((values, "" if label is None else fields[header.index(label)]))
    if not rows:
        raise DataError(f"{', '.join(names)}: a line of names and no rows.")
    known = list(dict.fromkeys(mark for recording in rows.values() for _, mark in recording if mark))
    found = Table(list(names), chosen, group, label, seed, {}, {}, known)
    with new_folder(out) as work:
        _write(work, rows, found)
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "rankfold": __version__, **vars(found)}
        write_text(work / FILE, json.dumps(content, indent=2) + "\n")
    return found


def _write(folder: Path, rows: dict[str, list[tuple[list[float], str]]], found: Table) -> None:
    split: dict[str, list[str]] = {name: [] for name in SPLITS}
    place = Placement(found.seed, min(ONE_OF, len(rows))) if len(rows) >= len(SPLITS) else None
    for key in rows:
        split["train" if place is None else place(0)].append(key)
    ids = {mark: i for i, mark in enumerate(found.labels)} | {"": UNKNOWN}
    for name, keys in split.items():
        if not keys:
            continue
        taken = [row for key in keys for row in rows[key]]
        arrays: dict[str, Any] = {
            "features": np.array([values for values, _ in taken]),
            "lengths": np.array([len(rows[key]) for key in keys]),
            "seq_id": np.array(keys),
            "feature_names": np.array(found.columns),
        }
        if found.label is not None:
            arrays |= {"labels": np.array([ids[mark] for _, mark in taken]), "label_names": np.array(found.labels)}
        np.savez(folder / f"{name}.npz", **arrays)
        found.recordings[name], found.frames[name] = len(keys), len(taken)


def _read(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that is not empty, and its number."""
    if is_arrow(path):
        yield from arrow_fields(path)
        return
    expect_file(path, "a .csv file")
    empty = True
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for fields in (lines := csv.reader(stream)):
                if fields:
                    empty = False
                    yield lines.line_num, [field.strip() for field in fields]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is not a csv file in UTF-8 ({error}).") from None
    if empty:
        raise DataError(f"{path}: the file is empty; a line of names and rows were expected.")


def _expect_new(key: str, known: Container[str], where: str) -> None:
    """Raise unless a recording begins here: rows of one that lie apart would be taken for neighbours."""
    if not key:
        raise DataError(f"{where}: empty, but every row is of a recording.\n  Fill it in, or leave the row out.")
    if key in known:
        raise DataError(
            f"{where}: {key[:40]!r} comes back after rows of another recording or file.\n"
            "  Sort the rows by it; where a new recording begins, give it a name of its own."
        )


def _number(field: str, where: str) -> float:
    try:
        return float(field or "nan")
    except ValueError:
        raise DataError(
            f"{where}: {field[:40]!r} is no number.\n  Choose the columns that are features, or name it label or group."
        ) from None
