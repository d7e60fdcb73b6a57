"""What a run needs before its first update: folder, device, clusters, room in memory, optimiser; and its signals.

Read next: `training/loop.py`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rankfold.data.clusters import Clusters, checked_clusters
from rankfold.errors import DataError, UnsupportedError
from rankfold.files import read_json
from rankfold.models.base import Model
from rankfold.models.pretrained import CLUSTER
from rankfold.settings import build, differences, read_toml
from rankfold.training.checkpoint import Loaded, Progress
from rankfold.training.config import Config, TrainConfig
from rankfold.training.corpus import Corpus, find_clusters
from rankfold.training.memory import GIB, Room, Text, available, fit
from rankfold.training.report import Reporter
from rankfold.training.run_dir import RECIPE, RunDir


def opened(config: Config, out: str | Path, *, resume: bool) -> RunDir:
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


def text_of(path: Path) -> str:
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
        found = checked_clusters(held, model.num_clusters, f"{loaded.path}: {CLUSTER}")
        given, own = len(found.assignment), len(corpus.vocabulary)
        if given != own:
            raise DataError(f"{loaded.path}: clusters of {given:,} words, but the vocabulary has {own:,}.")
        return found
    return find_clusters(model, corpus, config.train.seed, report.say)


def chosen_device(name: str, asked: str = "train.device") -> torch.device:
    """The device of a name; "auto" is a GPU if there is one. `asked` is who asks, for the error."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(f"{asked} is cuda, but torch sees no CUDA device here.\n  Use auto, or cpu.")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def fitted(
    config: Config,
    corpus: Corpus,
    groups: Clusters | None,
    device: torch.device,
    progress: Progress,
    say: Callable[[str], None],
) -> Room:
    """What fits at once."""
    held_out = [row for split in (corpus.valid, corpus.test) if split is not None for row in split]
    text = Text(len(corpus.vocabulary), max(map(len, corpus.train)), max(map(len, held_out)), groups)
    memory = available(str(device), config.train.memory)
    return settled(fit(config, text, str(device), memory), memory, progress, say)


def settled(
    room: Room, memory: int | None, progress: Progress, say: Callable[[str], None], what: str = "tokens"
) -> Room:
    """The room a run keeps to: when it is resumed, what fitted when it began, as long as that still does."""
    resumed = progress.update > 0
    part = _kept(progress.part_tokens, room.part_tokens, resumed=resumed)
    evaluated = _kept(progress.eval_tokens, room.eval_tokens, resumed=resumed)
    if resumed and (part, evaluated) != (progress.part_tokens, progress.eval_tokens):
        say("there is less memory than when the run began: parts are smaller, and the last digits may differ")
    if part and memory is not None:
        of = f" of sentences of {room.tree_width} words" if room.tree_width else ""
        say(f"batches are computed in parts of at most {part:,} {what}{of}, to fit into {memory / GIB:.3g} GiB")
    progress.part_tokens, progress.eval_tokens = part, evaluated
    return Room(part, evaluated, room.graphs, room.tree_width)


def _kept(before: int, now: int, *, resumed: bool) -> int:
    """The tokens at once, 0 for any number: as before, or fewer if there is less room now."""
    if not resumed:
        return now
    return min(x for x in (before, now) if x) if before or now else 0


def optimizer(model: Model[Any, Any], config: TrainConfig) -> torch.optim.Optimizer:
    """Adam, or AdamW; on a GPU one kernel for all parameters."""
    betas, fused = (config.betas[0], config.betas[1]), model.device.type == "cuda"
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(model.parameters(), lr=config.lr, betas=betas, weight_decay=config.weight_decay, fused=fused)


@contextmanager
def signals(stop: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal call `stop`, which says whether to stop at once; only in the main thread.

    What was started to outlive its terminal (nohup) does.
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
