"""Several processes that train one model: each takes some rows of every batch, and gradients or counts are added up.

`torchrun` starts them. Without it, or with one process, nothing here does anything. All of them read the data; the
first, rank 0, is the only one that writes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.training.carried import join_rows, map_tensors
from rankfold.training.config import Config

Made = TypeVar("Made")
TIMEOUT = "RANKFOLD_TIMEOUT"  # of the environment: seconds that a process waits for the others
SECONDS = 1800.0  # without it
GONE = ("timed out", "timeout", "connection", "socket", "peer", "gloo")  # errors of a process that is gone


def num_processes() -> int:
    """How many processes train together; 1 without torchrun."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    started = all(name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    return int(os.environ.get("WORLD_SIZE", "1")) if started else 1


def rank() -> int:
    """The number of this process, from 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if num_processes() > 1 else 0


def restarted(out: str | Path, recipe: str) -> bool:
    """Whether torchrun has started this process again, after the run had begun: it goes on then."""
    again = num_processes() > 1 and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return again and (Path(out) / recipe).is_file()


@contextmanager
def joined() -> Iterator[None]:
    """The process group, inside the block; none with one process. A group that is there already serves.

    gloo adds up on the CPU; NCCL on GPUs, where every process of a machine has one of its own.
    """
    if num_processes() == 1 or dist.is_initialized():
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        local, num = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        torch.cuda.set_device(local % num)
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= num:
            backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=waiting_time()))
    number, size = dist.get_rank(), dist.get_world_size()
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in GONE):
            raise
        raise ConnectionError(
            f"rank {number} of {size}: another process is gone, or did not answer within {waiting_time():g} seconds "
            f"({str(error).splitlines()[0][:120]}).\n  torchrun names the first that failed. Go on with --resume; "
            f"{TIMEOUT} sets the seconds."
        ) from error
    finally:
        dist.destroy_process_group()


def waiting_time() -> float:
    """The seconds that a process waits for the others."""
    given = os.environ.get(TIMEOUT, str(SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise DomainError(f"{TIMEOUT} is {given!r}, but a number of seconds above 0 was expected.")
    return seconds


@contextmanager
def together() -> Iterator[None]:
    """Where one process fails inside the block, all do, each with the error of the first. Nothing is sent inside."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    if num_processes() > 1:
        told = gathered(None if error is None else str(error))
        failed = [i for i, text in enumerate(told) if text is not None]
        if failed and error is None:
            raise DataError(f"rank {failed[0]}: {told[failed[0]]}\n  Rank {rank()} stops with it.")
    if error is not None:
        raise error


def in_turn(make: Callable[[], Made]) -> Made:
    """The result of a function that rank 0 calls first, and the others once it has: it may write what they read."""
    found: list[Made] = []
    for turn in (True, False) if num_processes() > 1 else (True,):
        with together():
            if (rank() == 0) is turn:
                found.append(make())
    return found[0]


def gathered(x: Made) -> list[Made]:
    """An object of every process, in order of rank."""
    if num_processes() == 1:
        return [x]
    found: list[Any] = [None] * num_processes()
    dist.all_gather_object(found, x)
    return found


def expect_alike(config: Config, device: torch.device, fingerprint: str) -> None:
    """Raise, on every process, unless all of them have the same recipe, data and kind of device."""
    for what, own, remedy in (
        ("recipe", repr(config), "Start all with the same command."),
        ("kind of device", device.type, "Set train.device to cpu, or take machines of one kind."),
        ("data", fingerprint, "Bring the same files to every machine."),
    ):
        told = gathered(own)
        other = next((i for i, x in enumerate(told) if x != told[0]), None)
        if other is not None:
            shown = f" ({told[0]} and {told[other]})" if what == "kind of device" else ""
            raise UnsupportedError(f"ranks 0 and {other} do not have the same {what}{shown}.\n  {remedy}")


def expect_rows(config: Config, batches: Sequence[Batch]) -> None:
    """Raise if no batch of an epoch has a row for every process. Some may have fewer: the others then add nothing."""
    if num_processes() == 1:
        return
    most = 0
    for i in range(len(batches)):
        most = max(most, len(batches[i].lengths))
        if most >= num_processes():
            return
    name = "data.num_streams" if config.data.batching == "streams" else "data.tokens or data.sentences"
    raise DomainError(
        f"the largest batch has {most} sequences, but there are {num_processes()} processes: some would never have "
        f"any.\n  Raise {name}, or start fewer processes."
    )


def own_slice(num: int) -> slice:
    """The share of this process in `num` rows: neighbours, and as many as the others have, or one more or less."""
    size, number = num_processes(), rank()
    return slice(num * number // size, num * (number + 1) // size)


def own_rows(batch: Batch, num: int = 0) -> Batch:
    """The rows of a batch that are this process's. `num`: they are dealt as if there were so many, as of streams,
    of which the last windows may have fewer.
    """
    return batch if num_processes() == 1 else batch.rows(own_slice(num or len(batch.lengths)))


def any_process(x: bool) -> bool:
    """Whether it is true on any process."""
    return x if num_processes() == 1 else bool(total_of([float(x)])[0])


def total_of(numbers: Sequence[float]) -> list[float]:
    """The sums of some numbers over all processes."""
    if num_processes() == 1:
        return list(numbers)
    x = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(x)
    found: list[float] = x.tolist()
    return found


def shared_total(compute: Callable[[], float]) -> float:
    """The sum of all processes' values. Where one raises a `DomainError`, all raise, the others in other words."""
    if num_processes() == 1:
        return compute()
    error, value = None, math.nan
    try:
        value = compute()
    except DomainError as caught:
        error = caught
    total, failed = total_of([value, float(error is not None)])
    if error is not None:
        raise error
    if failed:
        raise DomainError(f"rank {rank()} stops: the rows of another process have no finite likelihood; it says which.")
    return total


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their sums over all processes: one message for each dtype."""
    if num_processes() == 1:
        return
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        own = [x for x in tensors if x.dtype == dtype]
        flat = torch.cat([x.reshape(-1) for x in own])
        there = flat.cpu() if flat.is_cuda and "nccl" not in str(dist.get_backend_config()) else flat
        dist.all_reduce(there)
        flat = there.to(flat.device)
        for x, total in zip(own, torch.split(flat, [x.numel() for x in own]), strict=True):
            x.copy_(total.view(x.shape))


def add_gradients(parameters: Sequence[Tensor]) -> None:
    """Add up the gradients of all processes. A parameter that no process has a gradient of gets none."""
    if num_processes() == 1:
        return
    used = total_of([float(x.grad is not None) for x in parameters])
    own = []
    for x, num in zip(parameters, used, strict=True):
        if num:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
            own.append(x.grad)
    add_up(own)


def joined_rows(carried: Any) -> Any:
    """The state that streams carry, of the streams of all processes; on the CPU where there are several."""
    if num_processes() == 1:
        return carried
    parts = [x for x in gathered(map_tensors(carried, lambda x: x.cpu())) if x is not None]
    return join_rows(parts) if parts else None
