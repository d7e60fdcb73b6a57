"""Ragged sequences as a few padded groups, so that a step of all of them is one product.

Read next: `expectation.py`, which asks each group for its counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankfold.data.batch import Batch

# Entries "t b z" of one table of a group: 64 MiB in float64; an E step holds about seven such tables.
MOST = 2**23


class Group(NamedTuple):
    """Some of the sequences, padded to the longest of them; time first."""

    which: list[int]  # of the sequences they are
    lengths: Tensor  # "b"
    data: Tensor  # "t b s"   what the observations are prepared to; means nothing beyond a length
    labels: Tensor | None  # "t b"   -1: not known
    dtype: torch.dtype = torch.float64  # what the recursion runs in; the tables are float64


def grouped(lengths: Sequence[int], num_states: int, most: int = MOST) -> list[list[int]]:
    """Groups of sequences of about one length, none with more than `most` entries "t b z" (one sequence excepted).

    A group ends where a sequence would be padded to more than twice its length.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and longest <= 2 * lengths[i] and longest * (len(groups[-1]) + 1) * num_states <= most:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def pack(
    data: Sequence[Tensor],
    labels: Sequence[Tensor] | None,
    num_states: int,
    dtype: torch.dtype = torch.float64,
    most: int = MOST,
) -> list[Group]:  # "t s" or "t" each
    """The groups of prepared sequences."""
    found = []
    for index in grouped([len(x) for x in data], num_states, most):
        padded = pad_sequence([data[i] for i in index])
        lengths = torch.tensor([len(data[i]) for i in index], device=padded.device)
        found.append(Group(index, lengths, padded, _labels(index, labels), dtype))
    return found


def batches(
    sequences: Sequence[Tensor], labels: Sequence[Tensor] | None, num_states: int
) -> list[tuple[list[int], Batch, Tensor | None]]:  # "t f" or "t" each; allowed "b t z"
    """The groups as batches of a model, and the states that labels allow."""
    found = []
    for index in grouped([len(x) for x in sequences], num_states):
        padded = pad_sequence([sequences[i] for i in index], batch_first=True)
        lengths = torch.tensor([len(sequences[i]) for i in index], device=padded.device)
        known = _labels(index, labels)
        allowed = None if known is None else ~ruled_out(known, num_states).transpose(0, 1)
        found.append((index, Batch(padded, lengths), allowed))
    return found


def ruled_out(labels: Tensor, num_states: int) -> Tensor:  # "t b" -> "t b z"
    """The states a frame cannot have, because another one is known."""
    states = torch.arange(num_states, device=labels.device)
    return (labels >= 0).unsqueeze(-1) & (states != labels.unsqueeze(-1))


def _labels(index: list[int], labels: Sequence[Tensor] | None) -> Tensor | None:  # "t b"
    if labels is None or not any(bool((labels[i] >= 0).any()) for i in index):
        return None
    return pad_sequence([labels[i] for i in index], padding_value=-1)
