"""Pieces answered by a pool of actors of Ray Data, on this machine or on the cluster that RAY_ADDRESS names.

A source is one read task, a piece one block, a result one block. Ray restarts actors that die and tries their piece
again; how often, and which piece it was, is counted in a ledger, an actor too.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

from rankfold.corpora.engines import (
    Engine,
    Failed,
    Opener,
    Source,
    Worker,
    attempt,
    expect_ray,
    given_up,
    num_cpus,
    readable,
)

LOCAL: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}


def run_ray(engine: Engine, opener: Opener, sources: Sequence[Source]) -> Generator[Any, None, None]:
    """The result of each piece, or the `Failed` that it ended in, in their order."""
    ray = expect_ray()
    own = not ray.is_initialized()
    if own and os.environ.get("RAY_ADDRESS"):
        ray.init(**LOCAL)
    elif own:
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray of ours calls nobody
        ray.init(address="local", num_cpus=engine.workers or num_cpus(), **LOCAL)
    try:
        yield from _results(ray, engine, opener, sources)
    finally:
        if own:
            ray.shutdown()


def _results(ray: Any, engine: Engine, opener: Opener, sources: Sequence[Source]) -> Iterator[Any]:
    num = engine.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    ledger = ray.remote(num_cpus=0)(_Ledger).remote()
    # Reading takes no CPU of its own: the actors may hold all of them.
    data = ray.data.read_datasource(_datasource(ray, sources), override_num_blocks=len(sources), num_cpus=0)
    data = data.map_batches(
        _Actor,
        batch_size=None,
        zero_copy_batch=True,
        compute=ray.data.ActorPoolStrategy(size=num),
        fn_constructor_args=(opener, ledger, engine.retries, engine.threads or 1),
        num_cpus=1,
        num_gpus=1 if engine.gpus else 0,
    )
    settings = data.context
    settings.execution_options.preserve_order = True
    settings.enable_progress_bars = False
    settings.print_on_execution_start = False
    settings.target_max_block_size = 1  # bytes: every piece is a block by itself
    settings.target_min_block_size = 0
    for batch in data.iter_batches(batch_size=None, prefetch_batches=1, batch_format="numpy"):
        for content in batch["result"]:
            yield pickle.loads(content)


def _datasource(ray: Any, sources: Sequence[Source]) -> Any:
    from ray.data.block import BlockMetadata

    class Pieces(ray.data.Datasource):  # type: ignore[misc]
        def estimate_inmemory_data_size(self) -> None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
            return [ray.data.ReadTask(partial(_read, i, source), unknown) for i, source in enumerate(sources)]

    return Pieces()


def _read(place: int, source: Source) -> Iterator[Any]:
    import pyarrow

    for number, piece in enumerate(readable(source)):
        yield pyarrow.table({"key": [f"{place} {number}"], "piece": [pickle.dumps(piece)]})


class _Ledger:
    """How often each piece was begun; those that are finished are forgotten."""

    def __init__(self) -> None:
        self.begun: dict[str, int] = {}

    def begin(self, key: str) -> int:
        self.begun[key] = self.begun.get(key, 0) + 1
        return self.begun[key]

    def finish(self, key: str) -> None:
        self.begun.pop(key, None)


class _Actor:
    """A worker with its model, as Ray Data calls it."""

    def __init__(self, opener: Opener, ledger: Any, retries: int, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.ledger, self.retries = ledger, retries
        self.worker: Worker | None = None
        try:
            self.worker = opener()
        except Exception as error:
            self.failed = Failed.of(error, "the model")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        pairs = zip(batch["key"], batch["piece"], strict=True)
        return {"result": [pickle.dumps(self.answer(str(key), pickle.loads(piece))) for key, piece in pairs]}

    def answer(self, key: str, piece: Any) -> Any:
        """The result of a piece; the error if workers died of it more often than they may."""
        if isinstance(piece, Failed) or self.worker is None:
            return piece if isinstance(piece, Failed) else self.failed
        ray, result = expect_ray(), None
        while (tries := ray.get(self.ledger.begin.remote(key))) <= self.retries + 1:
            result = attempt(self.worker, piece)
            if not (isinstance(result, Failed) and result.passing):
                break
        self.ledger.finish.remote(key)
        if result is None:
            return Failed(piece.label, given_up(piece.label, tries - 1, "an actor of Ray died"))
        return result
