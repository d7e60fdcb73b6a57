"""Several processes that train one model: each takes some rows of every batch, and gradients or counts are added up.

`torchrun` starts them. Without it, or with one process, nothing here does anything. All of them read the data; the
first, rank 0, is the only one that writes.
"""

from __future__ import annotations

import atexit
import importlib
import os
import platform
import signal
import threading
import traceback
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
from rankfold.files import read_json
from rankfold.numerics.collectives import (
    all_reduce,
    exchange,
    gather_objects,
    is_broken,
    is_sent_from,
    raise_told,
    start_all_reduce,
    told_of,
)
from rankfold.training.board import Board, first_line, ranks_named, waiting_time
from rankfold.training.carried import join_rows, map_tensors
from rankfold.training.config import Config

Made = TypeVar("Made")
LARGE = 2**16  # numbers of a tensor that is a message of its own, not copied into one with others


def num_processes() -> int:
    """How many processes train together; 1 without torchrun."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    started = all(name in os.environ for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    return int(os.environ.get("WORLD_SIZE", "1")) if started else 1


def alone() -> bool:
    """Whether this is the only process."""
    return num_processes() == 1


def rank() -> int:
    """The number of this process, from 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return 0 if alone() else int(os.environ["RANK"])


def job() -> str | None:
    """A name that the processes of one torchrun share, those it starts again included; None without one."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if alone() or not name:
        return None
    return f"{platform.node()}, process {os.getppid()}" if name == "none" else name


def restarted(out: str | Path, recipe: str) -> bool:
    """Whether torchrun has started the processes again, after they had begun this run: it goes on then.

    Only the machine on which one had died counts that. A run of another job stays refused, however often it is tried.
    """
    again = not alone() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if not any_process(again):
        return False
    own = False
    if rank() == 0 and (Path(out) / recipe).is_file():  # without a name, torchruns of other machines are other jobs
        begun = read_json(Path(out) / "environment.json", "the environment.json of a run, which says what began it,")
        own = isinstance(begun, dict) and begun.get("job") is not None and begun["job"] == job()
    return any_process(own)


def num_sharing(device: str) -> int:
    """How many processes of this machine share the memory of a device."""
    local = 1 if alone() else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return -(-local // max(1, torch.cuda.device_count())) if device.startswith("cuda") else local


@contextmanager
def joined() -> Iterator[None]:
    """The process group, inside the block; none with one process. A group that is there already serves.

    gloo adds up on the CPU; NCCL on GPUs, where every process has one of its own. A process that ends with an error
    says so to the others, which end with it.
    """
    if alone() or dist.is_initialized():
        yield
        return
    board = Board.open(rank(), num_processes())
    number, size, gpus = board.number, board.size, torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    own = "nccl" if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= gpus else "gloo"
    backend = "cpu:gloo,cuda:nccl" if set(board.meet(own)) == {"nccl"} else "gloo"
    waited = timedelta(seconds=waiting_time())
    # Before the group: loaded later, as optimisers do, its functions would keep the group as their default argument,
    # whose threads then abort a process that ends.
    importlib.import_module("torch.distributed.nn.functional")
    with board.heartbeat():
        try:
            dist.init_process_group(backend, store=board.store, rank=number, world_size=size, timeout=waited)
            yield
        except (Exception, KeyboardInterrupt) as error:
            if not isinstance(error, Exception) or not is_broken(error):
                board.write("ended", f"{type(error).__name__}: {first_line(error)}")
                raise
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it at once, and waits for 30 seconds
            _let_go(error)
            raise board.broken(error) from error
        finally:
            _let_go()


def join() -> None:
    """The process group until this process ends, for a script that torchrun starts; none with one process."""
    group = joined()
    group.__enter__()
    atexit.register(group.__exit__, None, None, None)


def _let_go(error: BaseException | None = None) -> None:
    """Close the connections to the others; frames of an error would keep them, and those who wait would not notice."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    if dist.is_initialized():
        dist.destroy_process_group()


def attempt(compute: Callable[[], Made]) -> tuple[Made | None, Exception | None]:
    """The result of a function, or its error; one of the process group is raised at once."""
    try:
        return compute(), None
    except Exception as error:
        if is_broken(error):
            raise
        return None, error


def expect_none(error: Exception | None) -> None:
    """Raise on every process where there is an error on one: the own, or that of the first that has one."""
    raise_told(error, gathered(told_of(error)))


@contextmanager
def together() -> Iterator[None]:
    """Where one process fails inside the block, all do, each with the error of the first. Nothing is sent inside."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    if not alone() and total_of([float(error is not None)])[0]:
        expect_none(error)
    if error is not None:
        raise error


def in_turn(make: Callable[[], Made]) -> Made:
    """The result of a function that rank 0 calls first, and the others once it has: it may write what they read."""
    found: list[Made] = []
    for turn in (True, False) if not alone() else (True,):
        with together():
            if (rank() == 0) is turn:
                found.append(make())
    return found[0]


def gathered(x: Made) -> list[Made]:
    """An object of every process, in order of rank."""
    return [x] if alone() else gather_objects(x)


def expect_data(data: Any) -> None:
    """Raise, on every process, where some have a file or folder of data and others do not."""
    there = gathered(not isinstance(data, str | Path) or os.path.lexists(data))
    if any(there) and not all(there):
        missing = ranks_named([i for i, own in enumerate(there) if not own])
        raise DataError(f"{data}: not there on {missing} of {num_processes()}.\n  Bring the files to every machine.")


def expect_alike(config: Config, device: torch.device, fingerprint: str, update: int) -> None:
    """Raise, on every process, unless all of them have the same recipe, data, kind of device and checkpoint."""
    for what, own, remedy in (
        ("recipe", repr(config), "Start all with the same command."),
        ("kind of device", device.type, "Set train.device to cpu, or take machines of one kind."),
        ("data", fingerprint, "Bring the same files to every machine."),
        ("checkpoint", f"update {update}", "The folder of the run has to be on a disk that all machines see."),
    ):
        told = gathered(own)
        other = next((i for i, x in enumerate(told) if x != told[0]), None)
        if other is not None:
            shown = f" ({told[0]} and {told[other]})" if what in ("kind of device", "checkpoint") else ""
            raise UnsupportedError(f"ranks 0 and {other} do not have the same {what}{shown}.\n  {remedy}")


def expect_rows(config: Config, batches: Sequence[Batch]) -> None:
    """Raise if no batch of an epoch has a row for every process. Some may have fewer: the others then add nothing."""
    if alone():
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
    return batch if alone() else batch.rows(own_slice(num or len(batch.lengths)))


def any_process(x: bool) -> bool:
    """Whether it is true on any process."""
    return x if alone() else bool(total_of([float(x)])[0])


def total_of(numbers: Sequence[float]) -> list[float]:
    """The sums of some numbers over all processes."""
    if alone():
        return list(numbers)
    x = torch.tensor(numbers, dtype=torch.float64)
    all_reduce(x)
    found: list[float] = x.tolist()
    return found


def shared_total(compute: Callable[[], float]) -> float:
    """The sum of all processes' values. Where one raises, all do."""
    return _shared(compute, list)[0]


def _shared(compute: Callable[[], float], numbers: Callable[[], Sequence[float]]) -> tuple[float, list[float]]:
    if alone():
        return compute(), list(numbers())
    value, error = attempt(compute)
    total, failed, *others = total_of([value or 0.0, float(error is not None), *numbers()])
    if failed:
        expect_none(error)
    return total, others


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their sums over all processes: one message for each large one, one for all small ones."""
    if alone():
        return
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        own = [x for x in tensors if x.dtype == dtype]
        small = [x for x in own if x.numel() < LARGE or not x.is_contiguous()]
        for x in own:
            if x.numel() >= LARGE and x.is_contiguous():
                all_reduce(x)
        if small:
            flat = torch.cat([x.reshape(-1) for x in small])
            all_reduce(flat)
            for x, total in zip(small, torch.split(flat, [x.numel() for x in small]), strict=True):
                x.copy_(total.view(x.shape))


class EarlySums:
    """Sums over all processes of the gradients of large parameters, begun while the last backward pass goes on.

    They are the messages of `add_up`, one for each parameter, sent by every process in the order of the parameters:
    those of transitions come first, as in a backward pass. gloo sends early on a CPU, NCCL on GPUs.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        def is_large(x: Tensor) -> bool:
            return x.requires_grad and x.numel() >= LARGE and x.is_contiguous() and is_sent_from(x)

        self.parameters = [] if alone() else [x for x in parameters if is_large(x)]
        self.sent: list[Any] = []

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Inside, the last backward pass: a gradient is sent once it is whole, and those before it are sent."""
        whole: set[int] = set()

        def send(x: Tensor) -> None:
            whole.add(id(x))
            while len(self.sent) < len(self.parameters) and id(self.parameters[len(self.sent)]) in whole:
                self._send()

        hooks = [x.register_post_accumulate_grad_hook(send) for x in self.parameters]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def finish(self) -> None:
        """Send the others, zeros without a gradient, as after an error or without a row; wait for all sums."""

        def send_and_wait() -> None:
            while len(self.sent) < len(self.parameters):
                self._send()
            for begun in self.sent:
                begun.wait()

        exchange(send_and_wait)

    def _send(self) -> None:
        x = self.parameters[len(self.sent)]
        x.grad = torch.zeros_like(x) if x.grad is None else x.grad
        self.sent.append(start_all_reduce(x.grad))


def add_gradients(parameters: Sequence[Tensor], compute: Callable[[], float], early: EarlySums | None = None) -> float:
    """The sum of all processes' values of `compute`, which fills gradients; then these are added up, too.

    Where one raises, all do. A parameter that no process has a gradient of gets none. `early` has begun some sums.
    """

    def has_gradient() -> list[float]:
        found = [float(x.grad is not None) for x in parameters]
        if early is not None:
            early.finish()
        return found

    total, used = _shared(compute, has_gradient)
    if alone():
        return total
    begun, own = {id(x) for x in early.parameters} if early is not None else set(), []
    for x, num in zip(parameters, used, strict=True):
        if not num:
            x.grad = None
        elif id(x) not in begun:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
            own.append(x.grad)
    add_up(own)
    return total


def joined_rows(carried: Any) -> Any:
    """The state that streams carry, of the streams of all processes; on the CPU where there are several."""
    if alone():
        return carried
    parts = [x for x in gathered(map_tensors(carried, lambda x: x.cpu())) if x is not None]
    return join_rows(parts) if parts else None
