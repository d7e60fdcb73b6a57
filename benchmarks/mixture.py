"""`python -m benchmarks mixture`: trained HMMs side by side, as one HMM: each sentence comes from one of them.

    python -m benchmarks mixture runs/hmm runs/rank --data ptb --device cuda --json

p(sentence) = sum_k w_k p_k(sentence). That is an HMM of all their states: the first state is of model k with
probability w_k, and no transition leads from one model to another (blocks on the diagonal). The weights are those that
make the validation text most probable, by EM; the test text has no part in them. Every sentence starts afresh.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfold.cli.load import load_words
from rankfold.data.batch import length_batches
from rankfold.errors import DataError
from rankfold.models.base import Model
from rankfold.models.config import PERPLEXITY
from rankfold.models.strings import answer_each
from rankfold.training.config import DataConfig
from rankfold.training.corpus import read_corpus
from rankfold.training.run_dir import METRICS, read_metrics

TOKENS = 4096  # of a batch
SMALL = 1e-10  # nats a sentence: EM stops where a step gains less


def main(given: Sequence[str]) -> int:
    """Print the mixture and its parts."""
    args = _parser().parse_args(given)
    content = measure(args.runs, args.data, args.device)
    print(json.dumps(content, indent=2) if args.json else text(content))
    return 0


def measure(runs: Sequence[Path], data: Path, device: str) -> dict[str, Any]:
    """Perplexities of the mixture of runs, and of each; one model at a time is in memory."""
    vocabulary = load_words(runs[0], "cpu")[1]
    corpus = read_corpus(data, DataConfig(), vocabulary)
    held_out = {name: split for name, split in corpus.splits.items() if name != "train"}
    found = []
    for run in runs:
        model, words = load_words(run, device)
        if model.config.data != "text":
            raise DataError(f"{run}: is a model of {model.config.data}, but HMMs of words were expected.")
        if words.words != vocabulary.words:
            raise DataError(f"{run}: has other words than {runs[0]}.\n  Train both on the same text.")
        found.append({name: log_likelihoods(model, split.sentences) for name, split in held_out.items()})
    each = {name: torch.stack([own[name] for own in found]) for name in held_out}
    weights = mixture_weights(each["valid"])

    def perplexities(weights: Tensor) -> dict[str, float]:
        totals = {name: float((weights.log()[:, None] + own).logsumexp(0).sum()) for name, own in each.items()}
        return {name: PERPLEXITY(total, held_out[name].num_tokens) for name, total in totals.items()}

    parts = [
        {"run": run.name, "weight": weight, "minutes": _minutes(run), **perplexities(row)}
        for run, weight, row in zip(runs, weights.tolist(), torch.eye(len(runs), dtype=torch.float64), strict=True)
    ]
    minutes = [part["minutes"] for part in parts]
    total = None if None in minutes else sum(minutes)
    return {
        "data": data.name,
        "protocol": "sentences independent",
        "fingerprint": corpus.fingerprint,
        "minutes": total,
        **perplexities(weights),
        "parts": parts,
    }


def log_likelihoods(model: Model[Any, Any], sentences: Sequence[Sequence[int]]) -> Tensor:  # "n"
    """Of each sentence, in float64."""
    batches = length_batches(sentences, TOKENS)
    with torch.no_grad():
        parts = model.parts()
    values = answer_each(
        model, batches.groups, batches, lambda batch: model.log_likelihood(batch, parts=parts).tolist()
    )
    return torch.tensor(values, dtype=torch.float64)


def mixture_weights(log_likelihoods: Tensor) -> Tensor:  # "k n" -> "k"
    """The weights of models that make the sentences most probable: EM, from equal ones; the maximum is the only one."""
    num = len(log_likelihoods)
    weights = torch.full((num,), 1 / num, dtype=torch.float64)
    before = -torch.inf
    while True:
        joint = weights.log()[:, None] + log_likelihoods
        total = joint.logsumexp(0)
        if not total.isfinite().all():
            raise DataError("a sentence is impossible for every model, so no weights make the text possible.")
        value = float(total.mean())
        if value - before < SMALL:
            return weights
        before, weights = value, (joint - total).exp().mean(1)


def text(content: dict[str, Any]) -> str:
    """The parts, and the mixture last."""

    def line(name: str, weight: str, row: dict[str, Any]) -> str:
        cells = [f"{row[split]:.2f}" if split in row else "-" for split in ("valid", "test")]
        minutes = "-" if row["minutes"] is None else f"{row['minutes']:.1f}"
        return f"| {name} | {weight} | {' | '.join(cells)} | {minutes} |"

    lines = [line(f"`{part['run']}`", f"{part['weight']:.3f}", part) for part in content["parts"]]
    head = ["| model | weight | valid | test | minutes |", "|---|---:|---:|---:|---:|"]
    return "\n".join([*head, *lines, line("one HMM of them all", "", content)])


def _minutes(run: Path) -> float | None:
    """Of training, where the run's records are there."""
    if not (run / METRICS).is_file():
        return None
    return float(read_metrics(run / METRICS)[-1]["seconds"]) / 60


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks mixture",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="trained HMMs of the same words")
    parser.add_argument("--data", type=Path, required=True, help="folder or name of the splits, as of rankfold train")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser
