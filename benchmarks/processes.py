"""`python -m benchmarks processes`: what several processes cost and bring, a low-rank HMM of words.

First one process: without torchrun, as torchrun starts one, and with all sums made in a group of one, in turns, update
by update. Then 1, 2 and 4 processes that share the batch of an update, with gloo on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from rankfold.cli.bench import device_name
from rankfold.data.batch import Batch
from rankfold.errors import DataError, DomainError
from rankfold.files import write_text
from rankfold.models import ModelConfig, build_model
from rankfold.planning.measure import Spread
from rankfold.training import distributed
from rankfold.training.board import TIMEOUT
from rankfold.training.config import Config, DataConfig, TrainConfig
from rankfold.training.gradients import Gradients
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer

ROOT = Path(__file__).parents[1]
SIZES = {"states": 2048, "rank": 256, "words": 10_000, "sequences": 32, "length": 32, "repeats": 30}
ALLOWED = 0.03  # of a plain update's time, for one process with the distributed code
Update = Callable[[], float]


def main(given: Sequence[str]) -> int:
    """Print the tables; 1 if one process with the distributed code costs more than is allowed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks processes", description=__doc__)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument(
        "--num", type=int, nargs="*", default=[1, 2, 4], help="processes (default: 1 2 4); none: no sharing"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the record, written row by row")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.worker:
        return _worker(args)
    torch.set_num_threads(1)
    size = f"{args.states:,} states, rank {args.rank}, {args.sequences} x {args.length} tokens, float32"
    kind = device_name(torch.device(args.device))
    _say(f"{kind}, torch {torch.__version__}, one thread each: {size}\n")
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": kind,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": str(torch.__version__),
        **{name: getattr(args, name) for name in SIZES},
        "one": {},
        "several": [],
    }
    costs, plain = record["one"], None
    _say(f"| one process | {'ms' if args.device == 'cuda' else 'ms of CPU time'} | quartiles | ratio | quartiles |")
    _say("|---|---:|---:|---:|---:|")
    for name, times in one_process(args).items():
        plain = plain or times
        found, ratio = Spread.of(times), Spread.of([x / y for x, y in zip(times, plain, strict=True)])
        costs[name] = {"ms": found._asdict(), "ratio": ratio._asdict()}
        quartiles = f"{ratio.low:.3f} to {ratio.high:.3f}"
        _say(
            f"| {name} | {found.median:.2f} | {found.low:.2f} to {found.high:.2f} | {ratio.median:.3f} | {quartiles} |"
        )
    _write(args.out, record)
    if args.num:
        _say("\n| processes | update, ms | one alone, its share of the batch | of it sums, ms | numbers summed |")
        _say("|---:|---:|---:|---:|---:|")
    for num in args.num:
        row = several(args, num) | {"share_ms": share(args, num)}
        cells = " | ".join(f"{row[name]:.1f}" for name in ("update_ms", "share_ms", "sum_ms"))
        _say(f"| {row['processes']} | {cells} | {row['numbers']:,} |")
        record["several"].append(row)
        _write(args.out, record)
    return int(costs["torchrun, one process"]["ratio"]["median"] > 1 + ALLOWED)


def _say(line: str) -> None:
    print(line, flush=True)  # a run that is cut short has said what it knew


def _write(out: Path | None, record: dict[str, Any]) -> None:
    if out is not None:
        write_text(out, json.dumps(record, indent=1) + "\n")


def make_update(args: argparse.Namespace, device: Any, clock: Callable[[], float]) -> Update:
    """A function that makes one update and returns the milliseconds it took; the same batch each time."""
    tokens = args.sequences * args.length
    shape = ModelConfig(family="lhmm", num_states=args.states, rank=args.rank, dim=64)
    config = Config(shape, DataConfig(tokens=tokens), TrainConfig(device=device))
    model = build_model(shape, args.words, seed=1).to(device)
    steps = optimizer(model, config.train)
    gradients = Gradients(model, steps, config, Budget(graphs=device == "cuda"), _not_finite)
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(args.words, (args.sequences, args.length), generator=generator)
    batch = Batch(words, torch.full((args.sequences,), args.length))

    def update() -> float:
        start = clock()
        gradients([batch], tokens, 0)
        steps.step()
        distributed.any_process(False)  # whether one was asked to stop
        _wait_for(device)
        return 1e3 * (clock() - start)

    return update


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def one_process(args: argparse.Namespace) -> dict[str, list[float]]:
    """The times of updates of one process, by how it was started; the three take turns.

    On a CPU the time of the process, which no other takes from; on a GPU that of the host's clock.
    """
    clock = time.perf_counter if args.device == "cuda" else time.process_time
    made = {name: make_update(args, args.device, clock) for name in WAYS}
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    with _group_of_one():
        for i in range(3 + args.repeats):
            turn = [*WAYS.items()][i % len(WAYS) :] + [*WAYS.items()][: i % len(WAYS)]  # none is always the first
            for name, way in turn:
                with way():
                    taken = made[name]()
                if i >= 3:
                    found[name].append(taken)
    return found


def _no() -> bool:
    return False


@contextmanager
def _plain() -> Iterator[None]:
    """No group, no variables of torchrun: the group that is there is not seen."""
    with mock.patch.object(dist, "is_initialized", _no):
        yield


@contextmanager
def _started() -> Iterator[None]:
    """The variables that torchrun sets for one process."""
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "1"}
    with mock.patch.object(dist, "is_initialized", _no), mock.patch.dict(os.environ, own):
        yield


@contextmanager
def _summed() -> Iterator[None]:
    """Every message is sent, though nobody else is there."""
    with mock.patch.object(distributed, "alone", _no):
        yield


WAYS = {"without torchrun": _plain, "torchrun, one process": _started, "all sums made, a group of one": _summed}


@contextmanager
def _group_of_one() -> Iterator[None]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def share(args: argparse.Namespace, num: int) -> float:
    """The time of one process, alone, for its share of the batch; the tables of parameters it makes whole."""
    part = argparse.Namespace(**{**vars(args), "sequences": -(-args.sequences // num)})
    update = make_update(part, args.device, time.perf_counter)
    return statistics.median([update() for _ in range(3 + args.repeats)][3:])


def several(args: argparse.Namespace, num: int) -> dict[str, Any]:
    """The time of an update that so many processes share."""
    sizes = [f"--{name}={getattr(args, name)}" for name in SIZES]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num)]
    command += ["-m", "benchmarks", "processes", "--worker", f"--device={args.device}", *sizes]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), TIMEOUT: "60"}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(f"{num} processes failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _worker(args: argparse.Namespace) -> int:
    """One of the processes; the first prints the medians."""
    torch.set_num_threads(1)
    add_up, finish = distributed.add_up, distributed.EarlySums.finish
    sums: list[float] = []  # of each update, the time that it waits for sums
    numbers = 0

    def timed(send: Callable[[], None]) -> None:
        _wait_for(args.device)  # for the gradients: the time of sums is their own
        start = time.perf_counter()
        send()
        _wait_for(args.device)
        sums[-1] += 1e3 * (time.perf_counter() - start)

    def add_up_timed(tensors: Sequence[torch.Tensor]) -> None:
        nonlocal numbers
        numbers += sum(x.numel() for x in tensors)
        timed(lambda: add_up(tensors))

    def finish_timed(early: distributed.EarlySums) -> None:
        nonlocal numbers
        numbers += sum(x.numel() for x in early.parameters)
        timed(lambda: finish(early))

    with (
        distributed.joined(),
        mock.patch.object(distributed, "add_up", add_up_timed),
        mock.patch.object(distributed.EarlySums, "finish", finish_timed),
    ):
        update = make_update(args, args.device, time.perf_counter)
        times = []
        for _ in range(3 + args.repeats):
            numbers = 0
            sums.append(0.0)
            times.append(update())
        row = {
            "processes": distributed.num_processes(),
            "update_ms": statistics.median(times[3:]),
            "sum_ms": statistics.median(sums[3:]),
            "numbers": numbers,
        }
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(row), flush=True)
    return 0


def _not_finite(batches: list[Batch], why: str) -> DomainError:
    return DomainError(f"an update of {len(batches)} batches: {why}")
