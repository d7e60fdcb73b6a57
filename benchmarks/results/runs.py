"""Runs of a folder of results as its pages show them, and the papers' figures next to which they stand."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results.archive import read_archives
from rankfold.models.config import FrameConfig
from rankfold.settings import build, read_toml, to_mapping
from rankfold.training.config import Config
from rankfold.training.recipes import load_recipe, recipe_names
from rankfold.training.run_dir import RECIPE

FAITHFUL = "-faithful"
MUSIC = ("nottingham", "piano-midi", "musedata", "jsb-chorales")
CORPORA = {
    "ptb": "ptb",
    "wt2": "wikitext-2",
    **{name: f"{name}.npz" for name in MUSIC},
}  # by a part of a run's name; what --data is given has the second name
# Settings that change nothing but where a run writes and what it runs on.
NAMES = ("device", "graphs", "memory", "tensorboard", "log_every", "checkpoint_every", "checkpoint_shard_mb")
SILENT = {f"train.{name}" for name in NAMES}


@dataclass(frozen=True)
class Row:
    """A row of a paper's table."""

    corpus: str
    recipe: str  # runs of it, or of it with -faithful, stand next to the row
    model: str
    source: str = ""
    note: str = ""
    valid: float | None = None
    test: float | None = None
    second_hand: bool = False  # figures from a listing, not from the paper itself


@dataclass(frozen=True)
class Run:
    """A run: its end, or how far it came."""

    name: str
    config: Config
    recipe: str | None  # the shipped recipe it is named after
    gpu: str | None
    records: list[dict[str, Any]] = field(repr=False)
    evaluation: dict[str, Any] = field(repr=False, default_factory=dict)  # of a grammar, by gold trees; or empty

    @property
    def corpus(self) -> str | None:
        """The text or the music, by the run's name."""
        name = f"-{self.name.replace('.', '-')}-"
        return next((corpus for part, corpus in CORPORA.items() if f"-{part}-" in name), None)

    @property
    def unit(self) -> str:
        """How well a model does is measured in this: nats per frame, or perplexity."""
        return "nats" if isinstance(self.config.model, FrameConfig) else "perplexity"

    @property
    def updates(self) -> int:
        """Updates reached."""
        return int(self.records[-1]["update"])

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, by its budget or by early stopping."""
        return any(record.get("end") for record in self.records)

    @property
    def minutes(self) -> float:
        """Of training, evaluations included."""
        return float(self.records[-1]["seconds"]) / 60

    @property
    def curve(self) -> list[tuple[float, float]]:
        """(minutes, validation perplexity or nats) of every evaluation."""
        found = [(r, _number(r, f"valid_{self.unit}")) for r in self.records]
        return [(r["seconds"] / 60, value) for r, value in found if value is not None]

    @property
    def valid(self) -> float | None:
        """The best validation perplexity, or nats per frame."""
        return min((value for _, value in self.curve), default=None)

    @property
    def test(self) -> float | None:
        """The test perplexity, or nats per frame, of the best model; None before the end."""
        return next(iter(self._all("test")), None)

    @property
    def train(self) -> float | None:
        """The last training perplexity, or nats per frame, with dropout where the recipe has it."""
        return next(reversed(self._all("train")), None)

    def _all(self, split: str) -> list[float]:
        values = [_number(r, f"{split}_{self.unit}") for r in self.records]
        return [value for value in values if value is not None]

    @property
    def protocol(self) -> str:
        """What a perplexity is conditioned on."""
        return "state carried" if self.config.data.batching == "streams" else "sentences independent"

    @property
    def command(self) -> str:
        """What repeats the run."""
        recipe = self.recipe or f"{self.name}/{RECIPE}"
        settings = [] if self.recipe is None else list(changes(load_recipe(self.recipe), self.config))
        sets = [word for setting in settings for word in ("--set", setting)]
        data = self.corpus or "DIR"
        return shlex.join(["rankfold", "train", "--recipe", recipe, *sets, "--data", data, "--out", "run"])


def read_runs(folder: Path, part: str = "") -> list[Run]:
    """The runs of a folder's pages, by name; or those of a part of their own, such as `ablations-lhmm`."""
    records = {record.name.rpartition("/"): record for record in read_archives(folder)}
    return [
        Run(
            name,
            record.config,
            _recipe(name),
            record.environment.get("cuda_device"),
            record.metrics,
            record.evaluation or {},
        )
        for (within, _, name), record in records.items()
        if within == part
    ]


def read_published(name: str = "published.toml") -> list[Row]:
    """The papers' rows, their sources written out."""
    path = Path(__file__).with_name(name)
    content = read_toml(path)
    sources = content["sources"]
    rows = [build(Row, row, source=f"{path}, row {i}") for i, row in enumerate(content["rows"], 1)]
    return [Row(**{**vars(row), "source": sources[row.source] if row.source else ""}) for row in rows]


def belongs(run: Run, row: Row) -> bool:
    """Whether a run is of a row's recipe, trained in either way."""
    return run.recipe is not None and run.recipe.removesuffix(FAITHFUL) == row.recipe


def ending(run: Run) -> list[str]:
    """The last cells of a run's line: seed, updates, minutes, name."""
    updates, planned = run.updates, run.config.train.updates
    reached = f"{updates:,} of {planned:,}, {'stopped early' if run.finished else 'unfinished'}"
    return [
        str(run.config.train.seed),
        f"{planned:,}" if updates == planned and run.finished else reached,
        f"{run.minutes:.1f}" + ("" if run.gpu else " (CPU)"),
        f"`{run.name}`",
    ]


def footnote(source: str, note: str, notes: list[str]) -> str:
    """The number of a row's source and note, which is added to the notes if it is new."""
    text = ". ".join(part.removesuffix(".") for part in (source, note) if part)
    if not text:
        return ""
    if text + "." not in notes:
        notes.append(text + ".")
    return f" ({notes.index(text + '.') + 1})"


def _recipe(name: str) -> str | None:
    """The longest recipe whose name a run's begins with: lhmm-4096-1024-ptb-seed2 is of lhmm-4096-1024-ptb."""
    begun = [recipe for recipe in recipe_names() if name == recipe or name.startswith((f"{recipe}-", f"{recipe}."))]
    return max(begun, key=len, default=None)


def _number(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def changes(shipped: Config, own: Config) -> Iterator[str]:
    """What --set turns the one into the other."""
    before, after = to_mapping(shipped), to_mapping(own)
    for table, values in after.items():
        for key, value in values.items():
            if before[table][key] != value and f"{table}.{key}" not in SILENT:
                yield f"{table}.{key}={value if isinstance(value, str) else json.dumps(value)}"
