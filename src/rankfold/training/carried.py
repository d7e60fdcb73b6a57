"""The state that streams carry from batch to batch: None, a tensor or a tuple of tensors; first axis: streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def leaves(carried: Any) -> list[Tensor]:
    """The tensors of a carried state."""
    if carried is None:
        return []
    return [carried] if isinstance(carried, Tensor) else list(carried)


def map_tensors(carried: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A carried state with each of its tensors changed."""
    if carried is None or isinstance(carried, Tensor):
        return None if carried is None else change(carried)
    return type(carried)(*map(change, carried))


def rows_of(carried: Any, rows: slice) -> Any:
    """The carried state of some streams."""
    return map_tensors(carried, lambda x: x[rows])


def join_rows(parts: Sequence[Any]) -> Any:
    """The carried state of all streams, from those of the parts."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return type(parts[0])(*(torch.cat(same) for same in zip(*parts, strict=True)))
