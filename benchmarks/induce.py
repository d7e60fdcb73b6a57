"""`python -m benchmarks.induce`: train a grammar by a recipe, judge it by gold trees, keep the small files of it.

    python -m benchmarks.induce --recipe rankpcfg-gum --data treebank/gum --trees treebank/gum.test.trees.txt.gz \
        --seeds 1 2 --out results

The training is that of `rankfold train`, the judgement that of `rankfold evaluate --trees --json`. A folder NAME-sSEED
each has recipe.toml, metrics.jsonl, environment.json and evaluation.json; models stay in --work. Interrupted once
(Ctrl-C, SIGTERM), a run ends after its update, and its best model so far is judged; twice, at once. --resume goes on
with what was interrupted, from the checkpoints in --work, and judges a run at its end alone. Needs torch, numpy and
safetensors alone.
`python -m benchmarks.results docs/results --add results` puts them on the page.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.results.archive import ENVIRONMENT, EVALUATION, KEPT
from rankfold.cli.evaluate import pairs
from rankfold.cli.evaluate_trees import evaluate_trees, read_gold
from rankfold.cli.output import say, to_json
from rankfold.cli.train import INTERRUPTED, add_settings
from rankfold.data.trees import Tree
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.files import write_text
from rankfold.models.config import GrammarConfig
from rankfold.training import loop, report
from rankfold.training.config import Config
from rankfold.training.recipes import load_recipe
from rankfold.training.run_dir import BEST, CONFIG, METRICS, read_metrics
from rankfold.training.setup import signals

SAMPLE, SAMPLE_SEED = 300, 1  # trees a curve is of, the same for every run
NOTE = "best model so far, on a sample of the trees; nothing was selected by it"
End = Literal["finished", "interrupted", "broken off"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and judge, seed by seed: 0, 130 if interrupted, 1 if a run broke off, 2 if something given is wrong."""
    given = _parser().parse_args(arguments)
    try:
        return run(given)
    except KeyboardInterrupt:
        print("benchmarks.induce: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (DataError, DomainError, ShapeError, UnsupportedError, OSError) as error:
        print(f"benchmarks.induce: {error}", file=sys.stderr)
        return 2


def run(given: argparse.Namespace) -> int:
    """What is wrong is found before the first update; after an interruption no further seed is begun."""
    job = Job(
        recipe=given.recipe,
        settings=tuple(given.settings),
        data=given.data,
        trees=tuple(given.trees),
        replaced=pairs(given.replace),
        device=given.device,
        curve=given.curve,
    )
    configs = {seed: _config(job, seed) for seed in given.seeds}
    name = given.name or Path(given.recipe).name.removesuffix(".toml")
    folders = {seed: given.out / f"{name}-s{seed}" for seed in given.seeds}
    if given.resume and given.work is None:
        raise DataError("--resume goes on from the checkpoints in --work, but no --work is given.")
    for folder in folders.values():
        if given.resume and not _is_finished(folder):
            continue
        if (folder / EVALUATION).exists() or (folder.exists() and any(folder.iterdir())):
            raise DataError(f"{folder}: holds something already: give another --out or --name, or move it away.")
    gold, *_ = read_gold(job.trees, "test", configs[given.seeds[0]].data)
    status = 0
    with ExitStack() as stack:
        work = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="induce-")))
        for seed, config in configs.items():
            stop = Stop()
            resume = given.resume and (work / f"{name}-s{seed}" / METRICS).is_file()
            induction = Induction(job, config, work / f"{name}-s{seed}", folders[seed], gold, stop, resume=resume)
            induction.judges_interrupted = not given.resume
            with signals(stop):
                end = induction.run()
            print(folders[seed])
            if end == "interrupted" or stop.asked:
                return INTERRUPTED
            status = max(status, int(end == "broken off"))
    return status


class Stop:
    """What a signal calls: before the first update it ends the run; after the last, the judgement is finished first."""

    def __init__(self) -> None:
        self.asked = False
        self.patient = False  # whether there is something to finish

    def __call__(self) -> bool:
        if self.asked or not self.patient:
            return True
        self.asked = True
        os.write(2, b"finishing the evaluation; once more to stop at once\n")
        return False


def _is_finished(folder: Path) -> bool:
    """Whether the training of a folder's run came to its end, or was broken off by numbers that are none."""
    path = folder / EVALUATION
    return path.is_file() and json.loads(path.read_bytes()).get("end") != "interrupted"


def _config(job: Job, seed: int) -> Config:
    device = [] if job.device is None else [f"train.device={job.device}"]
    config = load_recipe(job.recipe, [*job.settings, f"train.seed={seed}", *device])
    if not isinstance(config.model, GrammarConfig):
        raise UnsupportedError(
            f'{job.recipe} is of the family "{config.model.family}", but trees are asked of grammars alone.\n'
            "  Give a recipe of a grammar, such as small-rankpcfg."
        )
    return config


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.induce",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--recipe", required=True, metavar="NAME_OR_FILE")
    parser.add_argument("--data", required=True, type=Path, metavar="FOLDER/NAME", help="as of rankfold train")
    parser.add_argument("--trees", required=True, type=Path, nargs="+", metavar="FILE", help="gold trees")
    parser.add_argument("--replace", nargs="+", default=[], metavar="WORD=OTHER", help="words of the trees: %%=N")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="gets a folder NAME-sSEED a seed")
    parser.add_argument("--name", help="what the folders are called (default: as the recipe)")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keeps models and checkpoints (default: none)")
    parser.add_argument("--resume", action="store_true", help="go on with runs of --work that were interrupted")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--curve",
        type=int,
        default=0,
        metavar="K",
        help="judge the best model so far at every K-th validation, too, on a sample of trees; selects nothing",
    )
    add_settings(parser)
    return parser


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

    def __init__(
        self,
        job: Job,
        config: Config,
        work: Path,
        out: Path,
        gold: Sequence[Tree],
        stop: Stop,
        *,
        resume: bool = False,
    ) -> None:
        self.resume, self.judges_interrupted = resume, True
        self.job, self.config, self.work, self.out, self.stop = job, config, work, out, stop
        self.sample = _sampled([tree for tree in gold if len(tree.words) > 1])
        self.points: list[dict[str, Any]] = []
        self.curve_seconds = 0.0
        before = read_metrics(work / METRICS) if resume else []
        self.best_at = max((record["update"] for record in before if record.get("best")), default=0)
        self.validations = 0

    def run(self) -> End:
        """Train, then judge the best model, however the training ended; before its first validation there is none."""
        end, updates, seconds, broken = self._train()
        self.stop.patient = True
        gc.collect()  # a trainer and its graphs refer to each other, and hold the device's memory until found
        torch.cuda.empty_cache()
        self._keep()
        if end == "interrupted" and not self.judges_interrupted:
            say("interrupted; the same command goes on")
            return end
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
            result = loop.train(self.config, self.job.data, self.work, resume=self.resume, report=Watch(self._seen))
        except DomainError as error:  # numbers that are none
            records = read_metrics(self.work / METRICS) if (self.work / METRICS).is_file() else []
            if not records:
                raise
            say(str(error))
            return "broken off", records[-1]["update"], records[-1]["seconds"], str(error).splitlines()[0]
        return "finished" if result.finished else "interrupted", result.updates, result.seconds, ""

    def _seen(self, done: int, record: dict[str, Any]) -> None:
        """A validation: the small files are kept at once, and a point of the curve is made if one is due."""
        self.stop.patient = True
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


if __name__ == "__main__":
    sys.exit(main())
