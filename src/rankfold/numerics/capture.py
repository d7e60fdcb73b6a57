"""Work recorded once as a CUDA graph: a replay is one launch, whatever the number of calls inside.

What is captured must not look at values (`errors.may_look` says whether it may). Read next: `training/graphs.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def captured(
    work: Callable[[], Result], *, pool: Any = None, generator: torch.Generator | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """The graph of `work`, and what it returned: tensors that every replay writes again.

    `work` runs twice beforehand, because libraries set themselves up on first use, which cannot be captured.
    Random numbers inside come from `generator`, which may be seeded anew before each replay.
    """
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    side = _side(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph, result


@functools.cache
def _side(device: int) -> torch.cuda.Stream:
    """One stream of a device for all: the products' library keeps its workspace for every stream it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
