"""The factor that ties a variable of a union of domains to a variable of one of its parts: `in[N,N+P]`.

A label of that name needs no tensor: its entries are 1 where the union's value is the part's value, else 0, a slice of
the identity.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Label

_NAME = re.compile(r"in\[([^,\]]+),([^,\]]+)\]")


def inclusion_label(part: str, union: str) -> Label:
    """The label `in[part,union]`, which attaches to a node of the part and a node of the union."""
    return Label(f"in[{part},{union}]", (part, union), is_terminal=True)


def is_inclusion(label: str) -> bool:
    """Whether a label is an inclusion by its name."""
    return _NAME.fullmatch(label) is not None


def inclusion(hrg: HRG, label: str, *, dtype: torch.dtype, device: torch.device) -> Tensor:  # "part union"
    """The matrix of ones and zeros of an inclusion label."""
    part, union = hrg.label(label).type
    values = hrg.part(part, union)
    if values is None:
        raise DomainError(f"Label {label!r} names {part!r} as a part of {union!r}, which it is not.")
    return torch.eye(hrg.size(union), dtype=dtype, device=device)[values.start : values.stop]
