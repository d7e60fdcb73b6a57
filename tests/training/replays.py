"""Captured graphs without a GPU: a stand-in that runs its work again at every replay, and refuses what a capture would.

Inputs and results stay in the tensors they had at the capture, as those of a CUDA graph do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankfold.training import graphs

LOOKS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "repeat_interleave"}


class NoLooks(TorchDispatchMode):
    """Raises where the host would read a value, or a result's size depend on one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        assert name not in LOOKS, f"{name} in a capture"
        assert not by_mask, f"{name} by a mask in a capture"
        return func(*args, **(kwargs or {}))


@contextmanager
def capturing() -> Iterator[None]:
    """As while a graph is captured: nothing may look, and whoever asks is told so."""
    modules = [m for name, m in sys.modules.items() if name.startswith("rankfold") and hasattr(m, "may_look")]
    with pytest.MonkeyPatch.context() as patch, NoLooks():
        for module in modules:
            patch.setattr(module, "may_look", lambda x: False)
        yield


class Replay:
    """What `CUDAGraph` is to a capture."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        with capturing():
            self.result = work()

    def replay(self) -> None:
        with capturing():
            result = self.work()
        for old, new in zip(_tensors(self.result), _tensors(result), strict=True):
            old.copy_(new)


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Let `GraphedGradients` run on the CPU."""

    def capture_graph(work: Any, *, pool: Any, generator: torch.Generator) -> tuple[Replay, Any]:
        for _ in range(2):
            work()
        replay = Replay(work)
        return replay, replay.result

    patch.setattr(graphs, "capture_graph", capture_graph)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [x for part in result for x in _tensors(part)] if isinstance(result, tuple) else []
