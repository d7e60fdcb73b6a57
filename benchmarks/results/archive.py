"""The runs of a results page in one file, `PAGE.jsonl.gz`: a line per run with its recipe, environment and metrics.

`python -m benchmarks.results docs/results --add results.tar.gz` puts run folders there, `--extract NAME FOLDER` makes
one of them a folder again. A run in a folder of its own, such as `ablations-lhmm/base`, keeps that in its name.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankfold.errors import DataError
from rankfold.files import read_json, replace_file, write_text
from rankfold.models.config import FrameConfig, GrammarConfig, ModelConfig
from rankfold.settings import build, read_toml, to_toml
from rankfold.training.config import Config
from rankfold.training.run_dir import METRICS, RECIPE, read_metrics

ENVIRONMENT, EVALUATION = "environment.json", "evaluation.json"
KEPT = (RECIPE, METRICS, ENVIRONMENT)  # of every run; grammars have an evaluation, too
ENDING = ".jsonl.gz"
PAGES = {ModelConfig: "hmm-language-models", GrammarConfig: "grammars", FrameConfig: "music"}  # by kind of model


@dataclass(frozen=True)
class Record:
    """All that is kept of a run: what its small files hold."""

    name: str
    recipe: dict[str, Any] = field(repr=False)  # every setting
    environment: dict[str, Any] = field(repr=False)
    metrics: list[dict[str, Any]] = field(repr=False)
    evaluation: dict[str, Any] | None = field(repr=False, default=None)  # of grammars, by gold trees

    @property
    def config(self) -> Config:
        """The settings."""
        return build(Config, self.recipe, source=f"run {self.name}, {RECIPE}")

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, by its budget or by early stopping."""
        return any(record.get("end") for record in self.metrics)

    @property
    def page(self) -> str:
        """The page that shows it, without its ending."""
        model = self.config.model
        if isinstance(model, FrameConfig) and model.observations != "bernoulli":
            raise DataError(f"run {self.name}: is a model of {model.observations} frames, whose runs no page shows.")
        return PAGES[type(model)]


def read_archives(folder: Path) -> list[Record]:
    """The runs of all pages of a folder, by name."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; one of result pages was expected.")
    found = [record for path in folder.glob(f"*{ENDING}") for record in _read_archive(path)]
    return sorted(found, key=lambda record: record.name)


def write_archives(folder: Path, records: Iterable[Record]) -> None:
    """Make these the runs of the folder's pages; a file whose runs are the same is left alone."""
    lines: dict[str, list[str]] = {page: [] for page in PAGES.values()}
    for record in sorted(records, key=lambda record: record.name):
        lines[record.page].append(json.dumps(asdict(record), separators=(",", ":")) + "\n")
    for page, own in lines.items():
        path, content = folder / f"{page}{ENDING}", "".join(own).encode()
        if content != (gzip.decompress(path.read_bytes()) if path.exists() else b""):
            replace_file(path, [gzip.compress(content, mtime=0)])


def read_run(folder: Path, name: str) -> Record | None:
    """The small files of a run's folder; None before its first line of metrics."""
    if not (folder / METRICS).is_file() or not (metrics := read_metrics(folder / METRICS)):
        return None
    environment = _read_object(folder / ENVIRONMENT)
    evaluation = _read_object(folder / EVALUATION) if (folder / EVALUATION).exists() else None
    return Record(name, read_toml(folder / RECIPE), environment, metrics, evaluation)


def read_run_folders(source: Path) -> list[Record]:
    """The runs of a folder, or of an archive of it: every folder with a recipe and at least one line of metrics."""
    with _opened(source) as root:
        paths = sorted(path.parent for path in root.rglob(RECIPE))
        found = [read_run(path, path.relative_to(root).as_posix()) for path in paths]
        return [record for record in found if record is not None]


def read_results(source: Path) -> dict[str, bytes]:
    """The files of a folder, or of an archive of it, that are results of commands: those beside the folders of runs."""
    with _opened(source) as root:
        return {path.name: path.read_bytes() for path in sorted(root.glob("*.json"))}


@contextmanager
def _opened(source: Path) -> Iterator[Path]:
    """A folder, or an archive of one."""
    with ExitStack() as stack:
        root = source
        if not source.is_dir():
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="results-")))
            try:
                stack.enter_context(tarfile.open(source)).extractall(root, filter="data")
            except (OSError, tarfile.TarError) as error:
                raise DataError(f"{source}: is neither a folder of runs nor an archive of one: {error}.") from None
        yield root


def write_run(record: Record, folder: Path) -> None:
    """The small files of a run; the recipe with every setting, those newer than the run at their defaults."""
    if folder.exists():
        raise DataError(f"{folder}: is there already; give a folder that is to be made.")
    folder.mkdir(parents=True)
    write_text(folder / RECIPE, to_toml(record.config))
    write_text(folder / METRICS, "".join(json.dumps(line) + "\n" for line in record.metrics))
    for name, content in ((ENVIRONMENT, record.environment), (EVALUATION, record.evaluation)):
        if content is not None:
            write_text(folder / name, json.dumps(content, indent=2) + "\n")


def _read_archive(path: Path) -> list[Record]:
    try:
        return [Record(**json.loads(line)) for line in gzip.decompress(path.read_bytes()).splitlines()]
    except (OSError, EOFError, zlib.error, ValueError, TypeError) as error:
        raise DataError(f"{path}: cannot be read ({error!r}); it holds a line of JSON per run.") from None


def _read_object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds no JSON object; what a run writes was expected.")
    return content
