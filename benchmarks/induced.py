"""One induction: a training run in a work folder, its judgement by gold trees, and the small files that are kept.

Read next: `training/loop.py`, `cli/evaluate_trees.py`, whose work this is.
"""

from __future__ import annotations

import gc
import io
import json
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from benchmarks.results.archive import ENVIRONMENT, EVALUATION
from rankfold.cli.evaluate_trees import evaluate_trees
from rankfold.cli.model_of import CONFIG, say
from rankfold.cli.output import to_json
from rankfold.data.trees import Tree
from rankfold.errors import DomainError
from rankfold.files import write_text
from rankfold.training import loop, report
from rankfold.training.config import Config
from rankfold.training.run_dir import BEST, METRICS, RECIPE, read_metrics

KEPT = (RECIPE, METRICS, ENVIRONMENT)
SAMPLE, SAMPLE_SEED = 300, 1  # trees a curve is of, the same for every run
NOTE = "best model so far, on a sample of the trees; nothing was selected by it"
End = Literal["finished", "interrupted", "broken off"]


@dataclass(frozen=True)
class Job:
    """What all seeds share."""

    recipe: str
    settings: tuple[str, ...]
    data: Path
    trees: tuple[Path, ...]
    replaced: Mapping[str, str]
    device: str | None = None  # None: as the recipe says
    curve: int = 0  # at every so-manieth validation; 0: none

    def command(self, seed: int) -> str:
        """What repeats a run, with names in place of paths."""
        replaced = [f"{word}={other}" for word, other in self.replaced.items()]
        words = ["python", "-m", "benchmarks.induce", "--recipe", Path(self.recipe).name]
        words += [word for setting in self.settings for word in ("--set", setting)]
        words += ["--data", self.data.name, "--trees", *(path.name for path in self.trees)]
        words += ["--replace", *replaced] if replaced else []
        return shlex.join([*words, "--seeds", str(seed), "--out", "results"])


class Patient(Protocol):
    """Whoever hears signals is told when there is something to finish."""

    patient: bool


class Watch(report.Reporter):
    """Passes everything on, and calls `seen` after every validation."""

    def __init__(self, seen: Callable[[int, dict[str, Any]], None]) -> None:
        self.inner, self.seen = report.reporter(), seen

    def start(self, done: int, total: int) -> None:
        self.inner.start(done, total)

    def say(self, line: str) -> None:
        self.inner.say(line)

    def update(self, done: int, record: dict[str, Any]) -> None:
        self.inner.update(done, record)
        if "valid_perplexity" in record:
            self.seen(done, record)

    def close(self) -> None:
        self.inner.close()


class Induction:
    """A recipe trained into the folder `work`, judged by `gold`, its small files in `out`."""

    def __init__(self, job: Job, config: Config, work: Path, out: Path, gold: Sequence[Tree], signals: Patient) -> None:
        self.job, self.config, self.work, self.out, self.signals = job, config, work, out, signals
        self.sample = _sampled([tree for tree in gold if len(tree.words) > 1])
        self.points: list[dict[str, Any]] = []
        self.curve_seconds = 0.0
        self.best_at, self.validations = 0, 0

    def run(self) -> End:
        """Train, then judge the best model, however the training ended; before its first validation there is none."""
        end, updates, seconds, broken = self._train()
        self.signals.patient = True
        gc.collect()  # a trainer and its graphs refer to each other, and hold the device's memory until found
        torch.cuda.empty_cache()
        self._keep()
        record: dict[str, Any] = {
            "recipe": Path(self.job.recipe).name.removesuffix(".toml"),
            "data": self.job.data.name,
            "gold": [path.name for path in self.job.trees],
            "replaced": dict(self.job.replaced),
            "seed": self.config.train.seed,
            "end": end,
            **({"error": broken} if broken else {}),
            "updates": updates,
            "planned_updates": self.config.train.updates,
            "best_model_updates": self.best_at,
            "gpu": torch.cuda.get_device_name() if self._on_gpu() else None,
            "command": self.job.command(self.config.train.seed),
        }
        started = time.perf_counter()
        if (self.work / BEST / CONFIG).is_file():
            record |= self._judged(self.job.trees)
        else:
            say("no validation was reached, so there is no model to judge")
        record["seconds"] = {
            "training": round(seconds, 3),
            "curve": round(self.curve_seconds, 3),
            "evaluation": round(time.perf_counter() - started, 3),
        }
        if self.job.curve:
            record["curve"] = {"note": NOTE, "trees": len(self.sample), "points": self.points}
        write_text(self.out / EVALUATION, to_json(record, indent=1) + "\n")
        return end

    def _train(self) -> tuple[End, int, float, str]:
        """How the training ended, its updates and seconds, and what broke it off."""
        try:
            result = loop.train(self.config, self.job.data, self.work, report=Watch(self._seen))
        except DomainError as error:  # numbers that are none
            records = read_metrics(self.work / METRICS) if (self.work / METRICS).is_file() else []
            if not records:
                raise
            say(str(error))
            return "broken off", records[-1]["update"], records[-1]["seconds"], str(error).splitlines()[0]
        return "finished" if result.finished else "interrupted", result.updates, result.seconds, ""

    def _seen(self, done: int, record: dict[str, Any]) -> None:
        """A validation: the small files are kept at once, and a point of the curve is made if one is due."""
        self.signals.patient = True
        self.validations += 1
        self.best_at = done if record["best"] else self.best_at
        self._keep()
        if not self.job.curve or self.validations % self.job.curve or not (self.work / BEST / CONFIG).is_file():
            return
        started = time.perf_counter()
        path = self.work / "sample.trees"
        if not path.exists():
            write_text(path, "".join(f"{tree}\n" for tree in self.sample))
        with redirect_stderr(io.StringIO()):  # the same words are unknown every time
            scores = self._judged([path])["scores"]["mbr"]
        uf1, kim = (scores[name]["sentence"] for name in ("uf1", "kim"))
        valid = record["valid_perplexity"]
        self.points.append(
            {"updates": done, "model_updates": self.best_at, "uf1": uf1, "kim": kim, "valid_perplexity": valid}
        )
        self.curve_seconds += time.perf_counter() - started
        say(f"update {done:,}: sentence F1 {100 * uf1:.1f} on {len(self.sample)} trees (selects nothing)")

    def _judged(self, trees: Sequence[Path]) -> dict[str, Any]:
        device = self.config.train.device
        return evaluate_trees(self.work, trees, replaced=self.job.replaced, device=device)

    def _keep(self) -> None:
        """Copy the small files; the command line loses its paths."""
        self.out.mkdir(parents=True, exist_ok=True)
        for name in (name for name in KEPT if (self.work / name).is_file()):
            shutil.copyfile(self.work / name, self.out / name)
        path = self.out / ENVIRONMENT
        content = json.loads(path.read_bytes())
        content["argv"] = shlex.split(self.job.command(self.config.train.seed))
        write_text(path, json.dumps(content, indent=2) + "\n")

    def _on_gpu(self) -> bool:
        return self.config.train.device != "cpu" and torch.cuda.is_available()


def _sampled(trees: Sequence[Tree]) -> list[Tree]:
    """The trees of a curve, in order: drawn once, by a seed of their own."""
    generator = torch.Generator().manual_seed(SAMPLE_SEED)
    drawn = torch.randperm(len(trees), generator=generator)[:SAMPLE].sort().values
    return [trees[i] for i in drawn.tolist()]
