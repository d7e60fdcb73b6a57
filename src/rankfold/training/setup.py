"""Preparation of a run before its first update: folder, device, clusters, optimiser; and its signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rankfold.data.clusters import Clusters, clusters_from_tensor
from rankfold.errors import DataError, DomainError, UnsupportedError, refuse_mps
from rankfold.files import read_json
from rankfold.models.base import Model
from rankfold.models.config import ModelConfig
from rankfold.models.pretrained import CLUSTER
from rankfold.settings import build, differences, read_toml
from rankfold.training.config import Config, TrainConfig
from rankfold.training.corpus import Corpus, find_clusters
from rankfold.training.report import Reporter
from rankfold.training.run_dir import RECIPE, RunDir


def open_run(config: Config, out: str | Path, *, resume: bool) -> tuple[RunDir, Config]:
    """The run's folder, and the recipe it has so far.

    A resumed run must be of the same recipe, but for its device and for more updates, by which it is extended.
    """
    if not resume:
        return RunDir.create(out), config
    run = RunDir.open(out)
    try:
        before = build(Config, read_toml(run.path / RECIPE), source=run.path / RECIPE)
        now, first = config.train, before.train
        same = replace(before, train=replace(first, updates=now.updates, device=now.device))
        if isinstance(same.model, ModelConfig) and isinstance(config.model, ModelConfig):
            same = replace(same, model=replace(same.model, shards=config.model.shards))  # rows are dealt anew
        changed = differences(same, config)
        if changed:
            raise DataError(
                f"{out} was started with another recipe: {'; '.join(changed)}.\n"
                "  Only train.updates may grow, and train.device and model.shards change. Resume without --recipe and "
                "--set, start another run, or one from this one: --init-from."
            )
        if now.updates < first.updates:
            raise DataError(
                f"{out}: train.updates is {now.updates:,}, but the run is one of {first.updates:,}: it can be "
                "extended, not cut.\n  Give more updates, or start another run."
            )
    except ValueError:
        run.close()
        raise
    return run, before


def data_fingerprint(path: Path) -> str:
    """The fingerprint of the text a run was started with."""
    file = path / "data.json"
    content = read_json(file, "the data.json of a run, which says what text it is of,")
    if not isinstance(content, dict) or not isinstance(content.get("fingerprint"), str):
        raise DataError(f'{file}: holds no "fingerprint"; it says which text the run is of.')
    fingerprint: str = content["fingerprint"]
    return fingerprint


def clusters(
    config: Config, corpus: Corpus, report: Reporter, held: Mapping[str, torch.Tensor] | None, path: Path | None
) -> Clusters | None:
    """Clusters of the words. Those of a checkpoint, or of the model that a run starts from, are not searched again:
    `held` are its tensors, `path` names it.
    """
    model: Any = config.model
    if held is not None and model.has_clusters:
        found = clusters_from_tensor(held.get(CLUSTER, torch.zeros(0)), model.num_clusters, f"{path}: {CLUSTER}")
        given, own = len(found.assignment), len(corpus.vocabulary)
        if given != own:
            raise DataError(f"{path}: clusters of {given:,} words, but the vocabulary has {own:,}.")
        return found
    return find_clusters(model, corpus, config.train.seed, report.say)


@contextmanager
def num_threads(num: int | None) -> Iterator[None]:
    """So many threads of torch on the CPU; as many as before at the end. None changes nothing."""
    if num is None:
        yield
        return
    if num < 1:
        raise DomainError(f"threads is {num}, but must be at least 1.")
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_device(name: str, asked: str = "train.device") -> torch.device:
    """The device of a name; "auto" is a GPU if there is one. `asked` names the setting in errors."""
    refuse_mps(name, name=asked)
    if name == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(f"{asked} is cuda, but torch sees no CUDA device here.\n  Use auto, or cpu.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def optimizer(model: Model[Any, Any], config: TrainConfig) -> torch.optim.Optimizer:
    """Adam, or AdamW; on a GPU one kernel for all parameters."""
    betas, fused = (config.betas[0], config.betas[1]), model.device.type == "cuda"
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(model.parameters(), lr=config.lr, betas=betas, weight_decay=config.weight_decay, fused=fused)


@contextmanager
def signals(stop: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal call `stop`, which says whether to stop at once; only in the main thread.

    A process started with nohup still outlives its terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stop():
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on every system
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        numbers.append(hang_up)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
