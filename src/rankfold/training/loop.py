"""The training loop: batches to gradients to parameters, evaluated, checkpointed, resumed to the last digit."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rankfold.errors import DataError, DomainError, quantity
from rankfold.files import write_text
from rankfold.models.base import Model
from rankfold.models.pretrained import load_any, save_model
from rankfold.settings import to_toml
from rankfold.training.automatic import resolve
from rankfold.training.callbacks import Callback
from rankfold.training.checkpoint import (
    Loaded,
    Progress,
    expect_shards,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from rankfold.training.config import Config
from rankfold.training.distributed import (
    alone,
    any_process,
    expect_alike,
    expect_data,
    expect_rows,
    gathered,
    in_turn,
    job,
    joined,
    rank,
    restarted,
    together,
)
from rankfold.training.evaluation import Evaluation, evaluate
from rankfold.training.in_memory import is_in_memory, name_data
from rankfold.training.init_from import Origin, expect_checkpoint
from rankfold.training.memory_budget import Budget, agreed
from rankfold.training.report import Reporter, reporter, summary, tensorboard_writer
from rankfold.training.run_dir import (
    BEST,
    CHECKPOINT,
    METRICS,
    RECIPE,
    Onlooker,
    RunDir,
    environment,
    load,
    read_metrics,
)
from rankfold.training.schedule import Average, extension_line, learning_rate, warmup_warnings
from rankfold.training.setup import choose_device, data_fingerprint, num_threads, open_run, optimizer, signals
from rankfold.training.sharded_checkpoint import fill_shares, load_shares, save_shares
from rankfold.training.sharding import expect_processes, shard_model
from rankfold.training.task import Task, read_task


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    run: Path
    updates: int
    finished: bool  # false: interrupted, and `--resume` goes on
    best_valid: float  # the best validation: perplexity of words, nats per frame of recordings
    test: Evaluation | None  # of the best model, once finished
    seconds: float  # of training, over all its parts
    device: str = "cpu"  # where it was trained

    @cached_property
    def model(self) -> Model[Any, Any]:
        """The best model so far, by the validation set, on the device of the training; loaded when asked for."""
        return load(self.run, device=self.device)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All records of the run, in order: those of training, evaluations, and the last one with the test."""
        return read_metrics(self.run / METRICS)

    @property
    def best_valid_perplexity(self) -> float:
        """The best validation perplexity, of a model of words."""
        return self.best_valid


def train(
    recipe: Config | str | Path | None = None,
    data: Any = None,
    out: str | Path | None = None,
    *,
    settings: Sequence[str] = (),
    resume: bool = False,
    init_from: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    device: str | None = None,
    threads: int | None = None,
    quiet: bool = False,
    report: Reporter | None = None,
) -> Result:
    """Train a model into the run directory `out`; with `resume`, go on from its last checkpoint.

    `recipe`: a built-in name, a TOML file, or a `Config`; None takes that of the run to resume or to start from, else
    one is chosen for the data. `data`: a folder or file (a text is prepared into the run), a list of sentences
    (strings or lists of words), recordings (arrays "t f"), or a dictionary of these by split: train, valid, test.
    `settings` such as "model.rank=64" change the recipe; `device` is train.device. `init_from`: a run or model whose
    parameters are the first. A resumed run may be extended by more train.updates. Progress is shown on standard error,
    unless `quiet`. Processes that torchrun started train together: the updates are those of one process.
    """
    if data is None or out is None:
        raise DataError("train needs data and out: the data to train on, and the folder of the run.")
    leads = rank() == 0
    report = Reporter() if quiet or not leads else report or reporter()
    asked = (recipe, data, out, settings, report.say)
    with joined(), num_threads(threads):
        if restarted(out, RECIPE):
            resume, init_from = True, None
        expect_data(data)
        config, data = in_turn(lambda: resolve(*asked, resume=resume, init_from=init_from, device=device))
        return _train(config, data, Path(out), report, callbacks if leads else (), init_from, resume=resume)


def _train(
    config: Config,
    data: Any,
    out: Path,
    report: Reporter,
    callbacks: Sequence[Callback],
    init_from: str | Path | None,
    *,
    resume: bool,
) -> Result:
    if resume and init_from is not None:
        raise DataError("a resumed run has its own parameters: give --resume or --init-from, one of them.")
    leads, opened, before = rank() == 0, None, config
    with together():
        device = choose_device(config.train.device)  # found missing before any work
        expect_processes(config)
        origin = None if init_from is None else Origin(init_from)
        if origin is not None:
            origin.expect_kind(config.model)
        if leads:
            opened, before = open_run(config, out, resume=resume)
    before = gathered(before)[0]
    with opened or Onlooker(out) as run:
        with together():
            task = read_task(config, data, run.path, report, resume=resume, origin=origin)
            if config.model.shards == 1:
                expect_rows(config, task.epoch(0))
        for line in origin.tokenizer_warnings(data) if origin else ():
            report.say(line)
        extended = config.train.updates > before.train.updates
        with together():
            loaded = _last_checkpoint(run.path, task, data, report, extended=extended) if resume else None
        expect_alike(config, device, task.fingerprint, loaded.progress.update if loaded else 0)
        trainer = Trainer(config, task, run, report, loaded, callbacks, origin)
        if loaded and loaded.damage:
            kept = ", ".join(file.name for file in loaded.put_aside(run.path / CHECKPOINT)) if leads else ""
            told = f"{loaded.damage}\n  The run goes on from the checkpoint before it, after update "
            told += f"{loaded.progress.update:,}" + (f"; the damaged one is kept as {kept}" if kept else "")
            report.say(told)
            run.note(told)
        if not resume and leads:  # the recipe last: a folder with one is a run
            task.keep(run.path)
            path = None if is_in_memory(data) else str(Path(data).absolute())
            noted = {"path": path, **task.summary()}
            where = environment() | ({} if job() is None else {"job": job()})
            for name, content in (("environment", where), ("data", noted)):
                write_text(run.path / f"{name}.json", json.dumps(content, indent=2) + "\n")
            if origin is not None:
                origin.note(run.path)
        if extended:
            told = extension_line(before.train, config.train, trainer.progress.update, trainer.progress.plateau)
            report.say(told)
            run.note(told)
        if leads and (not resume or config != before):
            write_text(run.path / RECIPE, to_toml(config))
        result = None
        try:
            if origin is not None:
                trainer.checkpoint()  # a run that goes on needs no other
            result = trainer.run()
        finally:
            trainer.close()
            for callback in callbacks:
                callback.end(result)
        return result


def newest_checkpoint(path: Path) -> Loaded | None:
    """The checkpoint to go on from, whether one process wrote it or several did, each its own states; None: none."""
    found = [load_checkpoint(path) if has_checkpoint(path) else None, load_shares(path.parent)]
    return max((x for x in found if x is not None), key=lambda x: x.progress.update, default=None)


def _last_checkpoint(run: Path, task: Task, data: Any, report: Reporter, *, extended: bool) -> Loaded | None:
    """The checkpoint that a run goes on from, None where it has written none; raises where it cannot go on."""
    loaded = newest_checkpoint(run / CHECKPOINT)
    if not loaded:
        expect_checkpoint(run)
        report.say(f"{run} holds no checkpoint: the run starts again from its first update")
    if data_fingerprint(run) != task.fingerprint:
        raise DataError(
            f"{name_data(data)}: {task.changed} {run} was started with.\n"
            "  Resume with the same --data, or start another run."
        )
    if loaded and math.isfinite(loaded.progress.plateau.best) and not (run / BEST / "config.json").is_file():
        raise DataError(
            f"{run / BEST}: no such model, but the checkpoint knows of one, which the test needs.\n"
            "  Bring that folder back, too."
        )
    if extended and loaded and loaded.progress.stopped:
        raise DataError(
            f"{run} stopped early, after update {loaded.progress.update:,}, with train.patience="
            f"{task.config.train.patience}: more updates would not be made.\n"
            "  Start another run from it: --init-from."
        )
    return loaded


class Trainer:
    """A run in progress."""

    def __init__(
        self,
        config: Config,
        task: Task,
        run: RunDir,
        report: Reporter,
        loaded: Loaded | None,
        callbacks: Sequence[Callback] = (),
        origin: Origin | None = None,
    ) -> None:
        self.config, self.task, self.run_dir, self.report = config, task, run, report
        self.callbacks, self.origin = callbacks, origin
        self.device = choose_device(config.train.device)
        self.progress = loaded.progress if loaded else Progress()
        if self.progress.update < config.train.updates and not self.progress.stopped:
            self.progress.finished = False  # extended
        self.leads = rank() == 0  # the others write nothing
        self.shares_batches = config.model.shards == 1  # else all take every batch, each its own states
        with together():
            opens = tensorboard_writer() if config.train.tensorboard and self.leads else None  # found missing now
            task.prepare(loaded, origin)
            task.expect_batches()  # too few tokens are found out before any work
            budget = task.budget(self.device, self.progress, report.say)
        budget = agreed(budget, self.progress)
        with self._together():
            self._build(budget, loaded)
        moved = run.cut_metrics(self.progress.metrics_size)
        if moved:
            report.say(f"{quantity(moved, 'line')} of metrics after the last checkpoint moved to metrics.lost.jsonl")
        self.writer = opens(run.path, self.progress.update) if opens else None
        self.interrupted = False
        self.latest: dict[str, Any] = {}  # the last record of training

    def _build(self, budget: Budget, loaded: Loaded | None) -> None:
        """Model, optimiser and steps, with the state of a checkpoint where there is one."""
        config, task, origin = self.config, self.task, self.origin
        self.eval_data = replace(config.data, eval_tokens=budget.eval_tokens or config.data.eval_tokens)
        self.model = shard_model(task.model(), config)
        if not loaded:
            expect_shards(self.model, config)
        self.model.to(self.device)
        self.optimizer = optimizer(self.model, config.train)
        self.gradients = task.steps(self.model, self.optimizer, config, budget, self._not_finite)
        self.gradients.progress, self.gradients.say = self.progress, self._say
        if origin is not None:
            origin.fill(self.model)
        self.average = Average(self.model, config.train.average)
        if loaded:
            fill_shares(loaded, self.model, self.optimizer)
            self.average.load(loaded.of("average"), loaded.path)
            self.gradients.carried = self.gradients.own_carried(loaded.carried_state(self.gradients, self.device))

    def run(self) -> Result:
        """Train until the budget is spent, early stopping says so, or a signal comes."""
        progress, config = self.progress, self.config.train
        first, *lines = self.task.lines(self.model)
        going_on = f", from update {progress.update:,}" if progress.update else ""
        started_from = self.origin.lines(self.task.data) if self.origin else []
        for line in (f"{first}, on {self.device}{going_on}", *started_from, *lines):
            self.report.say(line)
        if config.optimizer_state == "bf16":
            self.report.say(
                "checkpoints keep the optimiser's moments in bf16: a run resumed from one is close to an uninterrupted "
                "one, not equal to it"
            )
        for line in warmup_warnings(config):
            self.report.say(line)
        if progress.finished:
            self.report.say("the run was finished already")
        for callback in self.callbacks:
            callback.start(self.run_dir.path, self.config, progress.update)
        self.report.start(progress.update, config.updates)
        with signals(self._stop):
            for batches in self._updates():
                started = time.perf_counter()
                record = self._step(batches)
                done = progress.update
                if done % config.evaluate_every == 0 or done == config.updates:
                    record |= self._evaluate()
                progress.seconds += time.perf_counter() - started
                if record:
                    with together():
                        self._write({"update": done, "epoch": progress.epoch, **record})
                self.report.update(done, record)
                self.latest |= record
                if "best" in record:
                    for callback in self.callbacks:
                        callback.evaluation(done, {"epoch": progress.epoch, **self.latest})
                interrupted = any_process(self.interrupted)  # read once: a signal may come between the lines
                if interrupted or progress.stopped or done == config.updates or done % config.checkpoint_every == 0:
                    self.checkpoint()
                if progress.stopped:
                    self.report.say(f"stopped early: no better evaluation in the last {config.patience}")
                if interrupted:
                    self.report.say(f"interrupted after update {done:,}; --resume goes on from there")
                    return self._result(finished=False)
        return self._finish()

    def _updates(self) -> Iterator[list[Any]]:
        """The batches of every update still to come; the place in the epoch is kept in `progress`."""
        config, progress = self.config, self.progress
        gathered: list[Any] = []
        epoch, position = progress.epoch, progress.position
        while progress.update < config.train.updates and not progress.stopped:
            batches = self.task.epoch(epoch)
            whole = config.train.optimizer == "em" and not config.train.momentum
            gathering = len(batches) if whole else config.train.accumulate
            for i in range(position, len(batches)):
                gathered.append(batches[i])
                if len(gathered) < gathering:
                    continue
                after = (epoch, i + 1) if i + 1 < len(batches) else (epoch + 1, 0)
                progress.epoch, progress.position = after
                yield gathered
                gathered = []
                if progress.update == config.train.updates or progress.stopped:
                    return
            epoch, position = epoch + 1, 0

    def _step(self, batches: list[Any]) -> dict[str, Any]:
        """One update; the metrics of the last `log_every` updates if they are due."""
        config, progress = self.config.train, self.progress
        rate = learning_rate(progress.update, config, progress.plateau)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens = sum(map(self.model.num_counted, batches))
        total, norm = self.gradients(batches, tokens, progress.update)
        if not math.isfinite(norm):  # alike on all processes
            raise self._not_finite(batches, f"the gradient's norm is {norm}", whole=True)
        self.optimizer.step()
        self.average.update()
        progress.update += 1
        progress.window_log_likelihood += total
        progress.window_tokens += tokens
        if progress.update % config.log_every and progress.update != config.updates:
            return {}
        found = self.task.measure(progress.window_log_likelihood, progress.window_tokens)
        progress.window_log_likelihood, progress.window_tokens = 0.0, 0
        stepped = {} if config.optimizer == "em" else {"lr": rate, "gradient_norm": norm}
        return {f"train_{self.task.measure.name}": found, **stepped, **self._bound()}

    def _not_finite(self, batches: list[Any], what: str, *, whole: bool = False) -> DomainError:
        """The error that ends a run whose loss is not finite; the batch that caused it is saved.

        `whole`: all processes have found it, and the first writes. Else each has rows of its own.
        """
        whole = whole or not self.shares_batches
        own = "" if whole or alone() else f"-rank-{rank()}"
        path = self.run_dir.path / f"bad-batch-{self.progress.update + 1}{own}.json"
        if self.leads or not whole:
            content = {"update": self.progress.update + 1, **self.task.plain(batches)}
            write_text(path, json.dumps(content, indent=1) + "\n")
        return DomainError(
            f"update {self.progress.update + 1}: {what.removesuffix('.')}. The run has stopped; "
            "its last checkpoint is untouched.\n"
            f"  The batch is in {path}. A lower train.lr or a smaller train.clip usually helps."
        )

    def _evaluate(self) -> dict[str, Any]:
        """The measure of the validation set; the model is saved if it is the best so far."""
        with self.average.swap_in():
            return self._evaluated()

    def _evaluated(self) -> dict[str, Any]:
        config, plateau = self.config, self.progress.plateau
        try:
            valid, precision = self.task.split("valid"), config.train.precision
            found = evaluate(self.model, valid, self.eval_data, precision=precision, shared=self.shares_batches)
        except DomainError as error:  # the update before it left no numbers
            raise DomainError(
                f"update {self.progress.update}: the evaluation after it found none but: {error}\n"
                "  The run has stopped; its last checkpoint is untouched. A lower train.lr usually helps."
            ) from None
        measure = self.task.measure
        value = found.value(measure)
        best = plateau.see(value, config.train, of_words=measure.of_words)
        with self._together():
            if best and (self.leads or self.model.shard is not None):
                save_model(self.model, self.run_dir.path / BEST, file_bytes=config.train.shard_bytes)
        self.progress.stopped = bool(config.train.patience) and plateau.since_best >= config.train.patience
        return {
            f"valid_{measure.name}": value,
            "valid_log_likelihood": found.log_likelihood,
            "valid_tokens": found.tokens,
            **({"valid_bound": True} if found.is_bound else {}),
            "best": best,
            **self._bound(),
        }

    def _bound(self) -> dict[str, Any]:  # said by every record of a compound grammar
        return {"bound": True} if self.model.is_bound else {}

    def _say(self, line: str) -> None:
        """On the screen and in the run's log."""
        self.report.say(line)
        if self.leads:
            self.run_dir.note(line)

    def _write(self, record: dict[str, Any]) -> None:
        self.run_dir.append({**record, "seconds": round(self.progress.seconds, 3)})
        if self.writer is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    self.writer.add_scalar(name, value, record["update"])

    def checkpoint(self) -> None:
        """Write down where the run stands."""
        carried = self.gradients.whole_carried()
        with self._together():  # a disk may be full
            if self.leads or self.model.shard is not None:
                self._save(carried)

    def _together(self) -> contextlib.AbstractContextManager[None]:
        """Where one process fails all do. Those that share states send inside: there an error ends the connection."""
        return together() if self.shares_batches else contextlib.nullcontext()

    def _save(self, carried: Any) -> None:
        self.run_dir.sync()
        self.progress.metrics_size = self.run_dir.metrics_size()
        if self.model.shard is not None:
            state = self.progress, carried, self.task.fingerprint, self.average.tensors()
            moments = self.config.train.optimizer_state
            save_shares(self.run_dir.path, self.model, self.optimizer, *state, moments)
            return
        save_checkpoint(
            self.run_dir.path / CHECKPOINT,
            self.model,
            self.optimizer,
            self.progress,
            carried,
            self.task.fingerprint,
            average=self.average.tensors(),
            shard_bytes=self.config.train.shard_bytes,
            moments=self.config.train.optimizer_state,
        )

    def _finish(self) -> Result:
        """The measure of the test set under the best model, once."""
        result = self._result(finished=True)
        measure = self.task.measure
        if self.task.has_test and math.isfinite(self.progress.plateau.best):
            best = self._best()
            test = evaluate(
                best, self.task.split("test"), self.eval_data, shared=self.shares_batches
            )  # float32, as `rankfold evaluate` does
            result = replace(result, test=test)
        final: dict[str, Any] = {"update": self.progress.update, "epoch": self.progress.epoch, "end": True}
        final |= {f"best_valid_{measure.name}": result.best_valid, **self._bound()}
        if result.test:
            final |= {
                f"test_{measure.name}": result.test.value(measure),
                "test_tokens": result.test.tokens,
            }
        self.report.say(f"done: {summary({**final, f'valid_{measure.name}': result.best_valid})}")
        if not self.progress.finished:
            self._write(final)
            self.progress.finished = True
            self.checkpoint()
        return result

    def _best(self) -> Model[Any, Any]:
        """The best model so far, once it is written."""
        folder, device = self.run_dir.path / BEST, str(self.device)
        if self.model.shard is None:
            return in_turn(lambda: load_any(folder, device=device))
        return load_any(folder, device=device, shards=self.model.shard.num)

    def close(self) -> None:
        """Let go of the screen and of TensorBoard."""
        self.report.close()
        if self.writer is not None:
            self.writer.close()

    def _result(self, *, finished: bool) -> Result:
        progress = self.progress
        run, best, device = self.run_dir.path, progress.plateau.best, str(self.device)
        return Result(run, progress.update, finished, best, None, progress.seconds, device)

    def _stop(self) -> bool:
        """A signal came: the first lets the update finish and a checkpoint be written, the second ends at once."""
        if self.interrupted:
            return True
        self.interrupted = True
        with contextlib.suppress(OSError):  # a terminal that was closed
            os.write(2, b"finishing this update; once more to stop at once\n")  # print may be interrupted in another
        return False
