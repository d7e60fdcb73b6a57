"""Word clusters: a map from every word to one of a few groups, read, written or drawn at random.

Block-sparse emissions give each cluster its own states, so a word is emitted only by the states of its cluster.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rankfold.data.text import BROKEN_GZIP, open_bytes
from rankfold.errors import DataError, DomainError, ShapeError
from rankfold.files import expect_file

_NUMBER = re.compile("[0-9]{1,18}")
_BITS = re.compile("[01]*")
_FORMATS = "Known are bits<TAB>word<TAB>count and word<TAB>cluster."


class Clusters(NamedTuple):
    """Every word in exactly one cluster."""

    assignment: Tensor  # "v"    int64, 0 <= assignment < num_clusters
    num_clusters: int


def uniform_clusters(num_words: int, num_clusters: int, *, seed: int) -> Clusters:
    """Clusters drawn uniformly among those whose sizes differ by at most one.

    Which clusters hold the extra words is stated, not drawn: those with the lowest numbers.
    """
    expect_sizes(num_words, num_clusters)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_words, generator=generator)
    assignment = torch.empty(num_words, dtype=torch.int64)
    assignment[order] = torch.arange(num_words) % num_clusters
    return Clusters(assignment, num_clusters)


def clusters_from_tensor(assignment: Tensor, num_clusters: int, where: str) -> Clusters:  # "v"
    """The clusters that a tensor from a file gives its words; `DataError` unless each of them has one."""
    good = assignment.ndim == 1 and assignment.dtype == torch.int64 and len(assignment) >= num_clusters
    if (
        not good
        or assignment.min() < 0
        or len(set(assignment.tolist())) != num_clusters
        or assignment.max() >= num_clusters
    ):
        raise DataError(f"{where}: not the clusters of words, int64 from 0 to {num_clusters - 1} with a word in each.")
    return Clusters(assignment, num_clusters)


def read_clusters(
    path: str | Path, words: Mapping[str, int] | Sequence[str], *, missing: Literal["error", "last"] = "error"
) -> Clusters:
    """The clusters a file gives to the words of a vocabulary.

    Two formats, told apart by the number of columns in the first line; a name that ends in .gz is unpacked:

        bits<TAB>word<TAB>count   brown-cluster's `paths`: equal bits are one cluster, numbered in order of the bits
        word<TAB>cluster          what `write_clusters` writes: the numbers 0, 1, ... are kept, none may be left out

    Words of the vocabulary that the file does not name are an error, or join the cluster with the highest number
    (`missing="last"`). Words of the file that the vocabulary does not have are an error. The counts are not used.
    """
    if missing not in ("error", "last"):
        raise DomainError(f'missing is {missing!r}, but must be "error" or "last".')
    numbers = _numbers(words)
    labels, columns = _labels(Path(path), numbers)
    names = sorted(set(labels.values()))
    position = {name: number if columns == 3 else int(name) for number, name in enumerate(names)}
    used = set(position.values())
    if len(used) <= max(used):
        gap = next(number for number in range(max(used)) if number not in used)
        raise DataError(
            f"{path} has no word in cluster {gap}, but one in cluster {max(used)}.\n"
            "  Clusters are numbered 0, 1, ... without a gap."
        )
    absent = [word for word in numbers if word not in labels]
    if absent and missing == "error":
        raise DataError(
            f"{path} has no line for {len(absent)} of {len(numbers)} words, the first of them {absent[0]!r}.\n"
            '  missing="last" puts them into the last cluster.'
        )
    assignment = [len(used) - 1] * len(numbers)
    for word, label in labels.items():
        assignment[numbers[word]] = position[label]
    return Clusters(torch.tensor(assignment), len(used))


def write_clusters(path: str | Path, clusters: Clusters, words: Mapping[str, int] | Sequence[str]) -> None:
    """One line word<TAB>cluster per word, in the order of the vocabulary; a name that ends in .gz is packed.

    A file of that name is never overwritten: FileExistsError. Paths and counts of other formats are not written.
    """
    numbers = _numbers(words)
    assignment = clusters.assignment.tolist()
    if len(assignment) != len(numbers):
        raise ShapeError(f'assignment "v" has {len(assignment)} entries, but there are {len(numbers)} words.')
    wrong = set(assignment) ^ set(range(clusters.num_clusters))
    if wrong:
        raise DomainError(
            f"assignment has {'a' if min(wrong) in assignment else 'no'} word in cluster {min(wrong)}, "
            f"but every cluster from 0 to num_clusters - 1 = {clusters.num_clusters - 1} has a word, and no other."
        )
    for word in numbers:
        if not word or "\t" in word or "\n" in word:
            raise DomainError(f"word {numbers[word]} is {word!r}, but a word is not empty and has no tab or line end.")
    lines = [f"{word}\t{assignment[number]}\n" for word, number in sorted(numbers.items(), key=lambda item: item[1])]
    data = "".join(lines).encode()
    with open(path, "xb") as file:
        # Without a time stamp equal clusters make equal files.
        file.write(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def expect_sizes(num_words: int, num_clusters: int) -> None:
    """Raise unless there are between one and `num_words` clusters."""
    if num_words < 1:
        raise DomainError(f"num_words is {num_words}, but must be at least 1.")
    if not 1 <= num_clusters <= num_words:
        raise DomainError(
            f"num_clusters is {num_clusters}, but must be at least 1 and at most num_words = {num_words}.\n"
            "  A cluster without words would be states that emit nothing."
        )


def _numbers(words: Mapping[str, int] | Sequence[str]) -> dict[str, int]:
    """The number of each word; raise unless they are 0, 1, ... and each word has one."""
    numbers = dict(words) if isinstance(words, Mapping) else {word: number for number, word in enumerate(words)}
    if len(numbers) != len(words):
        twice = next(word for number, word in enumerate(words) if numbers[word] != number)
        raise DomainError(f"words holds {twice!r} twice, but every word has one number.")
    if not numbers or sorted(numbers.values()) != list(range(len(numbers))):
        raise DomainError(f"words has {len(numbers)} words, but must have 1 or more, numbered 0, 1, ... without a gap.")
    return numbers


def _labels(path: Path, numbers: Mapping[str, int]) -> tuple[dict[str, str], int]:
    """The label of each word in the file, bits or the cluster's number, and how many columns the file has."""
    lines = _lines(path)
    columns = lines[0].count("\t") + 1
    if columns not in (2, 3):
        raise DataError(f"{path}, line 1: {lines[0]!r} has {columns} columns, an unknown format.\n  {_FORMATS}")
    labels: dict[str, str] = {}
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        fields = line.split("\t")
        if len(fields) != columns:
            raise DataError(f"{where}: {line!r} has {len(fields)} columns, but line 1 has {columns}.\n  {_FORMATS}")
        word, label = (fields[1], fields[0]) if columns == 3 else (fields[0], fields[1])
        if columns == 3 and not _BITS.fullmatch(label):
            raise DataError(f"{where}: the path {label!r} has characters other than 0 and 1.\n  {_FORMATS}")
        if not _NUMBER.fullmatch(fields[-1]):
            name = "count" if columns == 3 else "cluster"
            raise DataError(f"{where}: the {name} {fields[-1]!r} is not a whole number 0, 1, ...\n  {_FORMATS}")
        if word in labels:
            raise DataError(f"{where}: the word {word!r} was on line {first[word]} already; a word has one cluster.")
        if word not in numbers:
            raise DataError(
                f"{where}: the word {word!r} is not in the vocabulary of {len(numbers)} words.\n"
                "  Take the line out, or give the vocabulary the clusters were made for."
            )
        labels[word], first[word] = label, number
    return labels, columns


def _lines(path: Path) -> list[str]:
    """The lines of a text file, at least one; only a line feed ends a line, for words may hold other separators."""
    expect_file(path, "a file of word clusters")
    with open_bytes(path, gzipped=path.name.endswith(".gz")) as stream:
        try:
            data = stream.read()
        except (OSError, *BROKEN_GZIP) as error:
            raise DataError(f"{path} ends in .gz, but cannot be unpacked: {error}.") from error
    if not data.strip():
        raise DataError(f"{path} is empty, but every cluster needs a word.\n  {_FORMATS}")
    lines = data.removesuffix(b"\n").split(b"\n")
    decoded = []
    for number, line in enumerate(lines, 1):
        try:
            decoded.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number}: {line!r} is not UTF-8: {error.reason} at byte {error.start}.\n"
                "  Convert the file to UTF-8."
            ) from error
    return decoded
