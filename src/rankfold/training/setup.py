"""Preparation of a run before its first update: folder, device, clusters, optimiser; and its signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rankfold.data.clusters import Clusters, clusters_from_tensor
from rankfold.errors import DataError, UnsupportedError
from rankfold.files import read_json
from rankfold.models.base import Model
from rankfold.models.pretrained import CLUSTER
from rankfold.settings import build, differences, read_toml
from rankfold.training.checkpoint import Loaded
from rankfold.training.config import Config, TrainConfig
from rankfold.training.corpus import Corpus, find_clusters
from rankfold.training.report import Reporter
from rankfold.training.run_dir import RECIPE, RunDir


def open_run(config: Config, out: str | Path, *, resume: bool) -> RunDir:
    """The run's folder; a resumed run must be of the same recipe."""
    if not resume:
        return RunDir.create(out)
    run = RunDir.open(out)
    try:
        before = build(Config, read_toml(run.path / RECIPE), source=run.path / RECIPE)
        changed = differences(before, config)
        if changed:
            raise DataError(
                f"{out} was started with another recipe: {'; '.join(changed)}.\n"
                "  Resume without --recipe and --set, or start another run."
            )
    except ValueError:
        run.close()
        raise
    return run


def data_fingerprint(path: Path) -> str:
    """The fingerprint of the text a run was started with."""
    file = path / "data.json"
    content = read_json(file, "the data.json of a run, which says what text it is of,")
    if not isinstance(content, dict) or not isinstance(content.get("fingerprint"), str):
        raise DataError(f'{file}: holds no "fingerprint"; it says which text the run is of.')
    fingerprint: str = content["fingerprint"]
    return fingerprint


def clusters(config: Config, corpus: Corpus, report: Reporter, loaded: Loaded | None) -> Clusters | None:
    """A resumed run has its clusters in the checkpoint; they are not searched again."""
    model: Any = config.model
    if loaded and model.has_clusters:
        held = loaded.of("model").get(CLUSTER, torch.zeros(0))
        found = clusters_from_tensor(held, model.num_clusters, f"{loaded.path}: {CLUSTER}")
        given, own = len(found.assignment), len(corpus.vocabulary)
        if given != own:
            raise DataError(f"{loaded.path}: clusters of {given:,} words, but the vocabulary has {own:,}.")
        return found
    return find_clusters(model, corpus, config.train.seed, report.say)


def choose_device(name: str, asked: str = "train.device") -> torch.device:
    """The device of a name; "auto" is a GPU if there is one. `asked` names the setting in errors."""
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
