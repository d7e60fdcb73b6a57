"""Work recorded once as a CUDA graph: a replay is one launch, whatever the number of calls inside.

Captured work must not look at values (`errors.may_look` says whether it may).
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def capture_graph(
    work: Callable[[], Result], *, pool: Any = None, generator: torch.Generator | None = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """The graph of `work`, and its result: tensors that every replay writes again.

    `work` runs twice beforehand, because libraries set themselves up on first use, which cannot be captured.
    Random numbers inside come from `generator`, which may be seeded anew before each replay. Other threads may use the
    device meanwhile.
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
    with _collector_off(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = work()
    return graph, result


@contextmanager
def _collector_off() -> Iterator[None]:
    """Garbage is collected before, not inside: memory or a graph that the device is told to free ends a capture."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def graph_branch(*read: Tensor | None) -> Iterator[Callable[[Tensor | None], None]]:
    """A branch of the captured graph: work inside the block and its gradients run in parallel to the rest.

    For work that is bound by arithmetic where the rest is bound by memory. `read` are tensors it reads from outside,
    parameters apart. Yields a function that joins the branch: call it with each result of the branch before its use.
    Outside of a capture nothing happens: one stream needs less memory.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        yield lambda result: None
        return
    main, branch = torch.cuda.current_stream(), _side(torch.cuda.current_device())
    branch.wait_stream(main)
    for x in read:
        if x is not None:
            x.record_stream(branch)

    def join(result: Tensor | None) -> None:
        main.wait_stream(branch)
        if result is not None:
            result.record_stream(main)  # the memory is the branch's, which must not take it back too early

    with torch.cuda.stream(branch):
        yield join


@functools.cache
def _side(device: int) -> torch.cuda.Stream:
    """One stream of a device for all: the products' library keeps its workspace for every stream it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
