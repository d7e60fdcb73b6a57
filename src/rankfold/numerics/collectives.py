"""Messages that processes exchange, each with a note that this process waits, and errors that all of them are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from rankfold.errors import DataError

Made = TypeVar("Made")
WAITS = threading.Event()  # whether this process waits for the others


class UnansweredError(RuntimeError):
    """A message that failed after so many seconds."""

    def __init__(self, error: Exception, seconds: float) -> None:
        super().__init__(str(error))
        self.seconds = seconds


def is_broken(error: BaseException) -> bool:
    """Whether it is an error of the group: another process is gone, or did not answer in time."""
    told = str(error).lower() if isinstance(error, RuntimeError) else ""
    # gloo names itself, but not to sums that another sum's time-out ends.
    return "gloo" in told or "caused pair closure" in told or isinstance(error, dist.DistError | UnansweredError)


def exchange(send: Callable[[], Any]) -> None:
    """Send a message and wait for the others; `UnansweredError` where they are gone."""
    began = time.monotonic()
    WAITS.set()
    try:
        send()
    except RuntimeError as error:
        if not is_broken(error):
            raise
        raise UnansweredError(error, time.monotonic() - began) from error
    WAITS.clear()


def all_reduce(x: Tensor, operation: Any = None) -> None:
    """Replace a contiguous tensor by its sum over all processes, or by what another operation makes of them."""
    there = sendable(x)
    exchange(lambda: dist.all_reduce(there, operation or dist.ReduceOp.SUM))
    if there is not x:
        x.copy_(there)


def start_all_reduce(x: Tensor) -> Any:
    """Begin the sum of a tensor that is sent from where it is. It is there once `wait()` of the result has returned."""
    return dist.all_reduce(x, async_op=True)


def sendable(x: Tensor) -> Tensor:
    """A tensor that the processes' backend can send: gloo sends from the CPU."""
    x = x.contiguous()
    return x if is_sent_from(x) else x.cpu()


def is_sent_from(x: Tensor) -> bool:
    """Whether the processes' backend sends from the device of a tensor."""
    return not x.is_cuda or "nccl" in str(dist.get_backend_config())


def gather_objects(x: Made) -> list[Made]:
    """An object of every process, in order of rank."""
    found: list[Any] = [None] * dist.get_world_size()
    exchange(lambda: dist.all_gather_object(found, x))
    return found


def raise_told(error: Exception | None, told: list[str | None]) -> None:
    """Raise this process's error; without one, that of the first process that `told` of any."""
    if error is not None:
        raise error
    failed = next((i for i, text in enumerate(told) if text is not None), None)
    if failed is not None:
        raise DataError(f"rank {failed}: {told[failed]}\n  Rank {dist.get_rank()} stops with it.")


def told_of(error: BaseException | None) -> str | None:
    """What the other processes are told of an error."""
    return None if error is None else str(error) or type(error).__name__
