"""The training loop: batches to gradients to parameters, evaluated, checkpointed, resumed to the last digit.

Read next: `models/base.py` for the likelihood, `training/checkpoint.py` for resuming, `training/setup.py` for a start.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankfold.data.batch import Batch
from rankfold.data.vocab import Vocabulary
from rankfold.data.weights import write_text
from rankfold.errors import DataError, DomainError
from rankfold.models.block_hmm import BlockCarried
from rankfold.models.catalog import build_model
from rankfold.models.pretrained import load_model
from rankfold.numerics.precision import matmul_precision, parameter_precision
from rankfold.settings import to_toml
from rankfold.training.checkpoint import Loaded, Progress, load_checkpoint, save_checkpoint, update_seed
from rankfold.training.config import Config
from rankfold.training.corpus import Corpus, read_corpus
from rankfold.training.evaluation import Evaluation, evaluate
from rankfold.training.graphs import GraphedGradients
from rankfold.training.report import Reporter, summary, tensorboard_writer
from rankfold.training.run_dir import CHECKPOINT, RECIPE, RunDir, environment
from rankfold.training.schedule import learning_rate
from rankfold.training.setup import chosen_device, clusters, opened, optimizer, signals, text_of


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    run: Path
    updates: int
    finished: bool  # false: interrupted, and `--resume` goes on
    best_valid_perplexity: float
    test: Evaluation | None  # of the best model, once finished
    seconds: float  # of training, over all its parts


def train(
    config: Config, data: str | Path, out: str | Path, *, resume: bool = False, report: Reporter | None = None
) -> Result:
    """Train a model on the text of a folder, into a run directory; with `resume`, go on from its last checkpoint."""
    report = report or Reporter()
    with opened(config, out, resume=resume) as run:
        vocabulary = Vocabulary.load(run.path / "vocab.json") if resume else None
        corpus = read_corpus(data, config.data, vocabulary)
        checkpoint = run.path / CHECKPOINT
        loaded = load_checkpoint(checkpoint) if resume and checkpoint.exists() else None
        if resume and not loaded:
            report.say(f"{run.path} holds no checkpoint: the run starts again from its first update")
        if resume and text_of(run.path) != corpus.fingerprint:
            raise DataError(
                f"{data}: the text is not the one {run.path} was started with.\n"
                "  Resume with the same --data, or start another run."
            )
        trainer = Trainer(config, corpus, run, report, loaded)
        if not resume:  # the recipe last: a folder with one is a run
            corpus.vocabulary.save(run.path / "vocab.json")
            for name, content in (("environment", environment()), ("data", corpus.summary())):
                write_text(run.path / f"{name}.json", json.dumps(content, indent=2) + "\n")
            write_text(run.path / RECIPE, to_toml(config))
        try:
            return trainer.run()
        finally:
            trainer.close()


class Trainer:
    """A run in progress."""

    def __init__(self, config: Config, corpus: Corpus, run: RunDir, report: Reporter, loaded: Loaded | None) -> None:
        self.config, self.corpus, self.run_dir, self.report = config, corpus, run, report
        self.device = chosen_device(config.train.device)
        self.progress = loaded.progress if loaded else Progress()
        self.writer = tensorboard_writer(run.path, self.progress.update) if config.train.tensorboard else None
        groups = clusters(config, corpus, report, loaded)
        if config.data.batching == "streams":
            corpus.epoch(config.data, config.train.seed, 0)  # too few tokens are found out before any work
        self.model = build_model(config.model, len(corpus.vocabulary), clusters=groups, seed=config.train.seed)
        self.model.vocabulary = corpus.vocabulary
        self.model.to(self.device)
        self.optimizer = optimizer(self.model, config.train)
        self.carried: Any = None
        if loaded:
            loaded.fill(self.model, self.optimizer)
            self.carried = loaded.carried(BlockCarried, self.device)
        moved = run.cut_metrics(self.progress.metrics_size)
        if moved:
            report.say(f"{moved} lines of metrics after the last checkpoint moved to metrics.lost.jsonl")
        self.graphs = GraphedGradients.of(self.model, config)
        self.interrupted = False

    def run(self) -> Result:
        """Train until the budget is spent, early stopping says so, or a signal comes."""
        progress, config = self.progress, self.config.train
        count = sum(x.numel() for x in self.model.parameters())
        self.report.say(
            f"{self.config.model.family}, {count:,} parameters, {len(self.corpus.vocabulary):,} words, "
            f"{self.corpus.train.num_tokens:,} training tokens, on {self.device}"
            + (f", from update {progress.update:,}" if progress.update else "")
        )
        for line in self.corpus.warnings():
            self.report.say(line)
        if progress.finished:
            self.report.say("the run was finished already")
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
                    self._write({"update": done, "epoch": progress.epoch, **record})
                self.report.update(done, record)
                interrupted = self.interrupted  # read once: a signal may come between the lines
                if interrupted or progress.stopped or done == config.updates or done % config.checkpoint_every == 0:
                    self._checkpoint()
                if progress.stopped:
                    self.report.say(f"stopped early: no better evaluation in the last {config.patience}")
                if interrupted:
                    self.report.say(f"interrupted after update {done:,}; --resume goes on from there")
                    return self._result(finished=False)
        return self._finish()

    def _updates(self) -> Iterator[list[Batch]]:
        """The batches of every update still to come; the place in the epoch is kept in `progress`."""
        config, progress = self.config, self.progress
        gathered: list[Batch] = []
        epoch, position = progress.epoch, progress.position
        while progress.update < config.train.updates and not progress.stopped:
            batches = self.corpus.epoch(config.data, config.train.seed, epoch)
            for i in range(position, len(batches)):
                gathered.append(batches[i])
                if len(gathered) < config.train.accumulate:
                    continue
                after = (epoch, i + 1) if i + 1 < len(batches) else (epoch + 1, 0)
                progress.epoch, progress.position = after
                yield gathered
                gathered = []
                if progress.update == config.train.updates or progress.stopped:
                    return
            epoch, position = epoch + 1, 0

    def _step(self, batches: list[Batch]) -> dict[str, Any]:
        """One update; the metrics of the last `log_every` updates if they are due."""
        config, progress = self.config.train, self.progress
        rate = learning_rate(progress.update, config, progress.plateau)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens = sum(batch.num_tokens for batch in batches)
        total, norm = self._gradients(batches, tokens)
        if not math.isfinite(norm):
            raise self._not_finite(batches, f"the gradient's norm is {norm}")
        self.optimizer.step()
        progress.update += 1
        progress.window_log_likelihood += total
        progress.window_tokens += tokens
        if progress.update % config.log_every and progress.update != config.updates:
            return {}
        perplexity = math.exp(min(700.0, -progress.window_log_likelihood / progress.window_tokens))
        progress.window_log_likelihood, progress.window_tokens = 0.0, 0
        return {"train_perplexity": perplexity, "lr": rate, "gradient_norm": norm}

    def _gradients(self, batches: list[Batch], tokens: int) -> tuple[float, float]:
        """The log-likelihood of an update's batches, and the norm of the gradient before it is clipped."""
        config, update = self.config.train, self.progress.update
        seeds = [update_seed(config.seed, update, part) for part in range(len(batches))]
        if self.graphs is not None and all(self.graphs.takes(batch) for batch in batches):
            self.optimizer.zero_grad(set_to_none=False)
            total = sum(float(self.graphs(batch, tokens, seed)) for batch, seed in zip(batches, seeds, strict=True))
            norm = self._clipped()
            if math.isfinite(total) and math.isfinite(norm):
                return total, norm
        self.optimizer.zero_grad(set_to_none=self.graphs is None)
        total = sum(self._gradient(batch, tokens, seed) for batch, seed in zip(batches, seeds, strict=True))
        return total, self._clipped()

    def _clipped(self) -> float:
        """The norm of the gradient, which is then no longer than the recipe allows."""
        return float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.train.clip or math.inf))

    def _gradient(self, batch: Batch, tokens: int, seed: int) -> float:
        """Add the gradient of one batch's share of the loss; its log-likelihood."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        precision = self.config.train.precision
        streams = self.config.data.batching == "streams"
        carried = None if batch.first else self.carried
        with matmul_precision(parameter_precision(precision), self.device):
            try:
                p = self.model.potentials(batch.to(self.device), carried=carried, generator=generator)
                log_likelihood = self.model.log_z(p, precision=precision).sum()
            except DomainError as error:  # NaN among the weights
                raise self._not_finite([batch], str(error).splitlines()[0]) from None
            value = float(log_likelihood.detach())
            if not math.isfinite(value):
                raise self._not_finite([batch], f"its log-likelihood is {value}")
            (log_likelihood / -tokens).backward()  # type: ignore[no-untyped-call]
        if streams:
            self.carried = self.model.carry(p)
        return value

    def _not_finite(self, batches: list[Batch], what: str) -> DomainError:
        """The error that ends a run whose numbers are none, with the sentences that did it on disk."""
        path = self.run_dir.path / f"bad-batch-{self.progress.update + 1}.json"
        rows = [
            self.corpus.vocabulary.decode(words[:length].tolist())
            for batch in batches
            for words, length in zip(batch.words, batch.lengths.tolist(), strict=True)
        ]
        write_text(path, json.dumps({"update": self.progress.update + 1, "sentences": rows}, indent=1) + "\n")
        return DomainError(
            f"update {self.progress.update + 1}: {what.removesuffix('.')}. The run has stopped; "
            "its last checkpoint is untouched.\n"
            f"  The batch is in {path}. A lower train.lr or a smaller train.clip usually helps."
        )

    def _evaluate(self) -> dict[str, Any]:
        """Validation perplexity; the model is saved if it is the best so far."""
        config, plateau = self.config, self.progress.plateau
        try:
            found = evaluate(self.model, self.corpus.valid, config.data, precision=config.train.precision)
        except DomainError as error:  # the update before it left no numbers
            raise DomainError(
                f"update {self.progress.update}: the evaluation after it found none but: {error}\n"
                "  The run has stopped; its last checkpoint is untouched. A lower train.lr usually helps."
            ) from None
        best = plateau.see(found.perplexity, config.train)
        if best:
            self.model.save_pretrained(self.run_dir.path / "best")
        self.progress.stopped = bool(config.train.patience) and plateau.since_best >= config.train.patience
        return {
            "valid_perplexity": found.perplexity,
            "valid_log_likelihood": found.log_likelihood,
            "valid_tokens": found.tokens,
            "best": best,
        }

    def _write(self, record: dict[str, Any]) -> None:
        self.run_dir.append({**record, "seconds": round(self.progress.seconds, 3)})
        if self.writer is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    self.writer.add_scalar(name, value, record["update"])

    def _checkpoint(self) -> None:
        self.run_dir.sync()
        self.progress.metrics_size = self.run_dir.metrics_size()
        path = self.run_dir.path / CHECKPOINT
        save_checkpoint(path, self.model, self.optimizer, self.progress, self.carried, self.corpus.fingerprint)

    def _finish(self) -> Result:
        """The test perplexity of the best model, once."""
        result = self._result(finished=True)
        if self.corpus.test is not None and math.isfinite(self.progress.plateau.best):
            best = load_model(self.run_dir.path / "best", device=str(self.device))
            test = evaluate(best, self.corpus.test, self.config.data)  # float32, as `rankfold evaluate` does
            result = Result(**{**vars(result), "test": test})
        final: dict[str, Any] = {"update": self.progress.update, "epoch": self.progress.epoch, "end": True}
        final |= {"best_valid_perplexity": result.best_valid_perplexity}
        if result.test:
            final |= {"test_perplexity": result.test.perplexity, "test_tokens": result.test.tokens}
        self.report.say(f"done: {summary({**final, 'valid_perplexity': result.best_valid_perplexity})}")
        if not self.progress.finished:
            self._write(final)
            self.progress.finished = True
            self._checkpoint()
        return result

    def close(self) -> None:
        """Let go of the screen and of TensorBoard."""
        self.report.close()
        if self.writer is not None:
            self.writer.close()

    def _result(self, *, finished: bool) -> Result:
        progress = self.progress
        return Result(self.run_dir.path, progress.update, finished, progress.plateau.best, None, progress.seconds)

    def _stop(self) -> bool:
        """A signal came: the first lets the update finish and a checkpoint be written, the second ends at once."""
        if self.interrupted:
            return True
        self.interrupted = True
        os.write(2, b"finishing this update; once more to stop at once\n")  # print may be interrupted in another print
        return False
