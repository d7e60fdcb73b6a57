"""`python -m benchmarks em`: the time of one update of mini-batch EM, a dense HMM of words with free tables.

Captured as a graph and call by call, by precision; medians by the host's clock, with the device waited for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from rankfold.cli.bench import device_name
from rankfold.data.batch import Batch
from rankfold.errors import DomainError
from rankfold.models import ModelConfig, build_model
from rankfold.numerics.precision import Precision
from rankfold.training.batch_em import BatchEM
from rankfold.training.config import Config, DataConfig, TrainConfig
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer

NUM_TOKENS = 930_000  # of the training set: how many tokens the running counts stand for


def main(given: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks em", description=__doc__)
    for name, default in (("states", 4096), ("words", 10_000), ("sentences", 256), ("length", 32), ("repeats", 30)):
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    args = parser.parse_args(given)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = f"{args.states} states, {args.sentences} x {args.length} tokens, {args.words} words"
    print(f"{device_name(torch.device(device))}: {size}")
    print("| precision | update | median ms | quartiles ms | log-likelihood a token |")
    print("|---|---|---:|---:|---:|")
    precisions: tuple[Precision, ...] = ("tf32", "float32") if device == "cuda" else ("float32",)
    for precision in precisions:
        for graphs in (True, False) if device == "cuda" else (False,):
            ms, log_likelihood = update_times(args, precision, device, graphs=graphs)
            low, middle, high = statistics.quantiles(ms, n=4)
            kind = "captured" if graphs else "eager"
            print(
                f"| {precision} | {kind} | {middle:.2f} | {low:.2f} to {high:.2f} | {log_likelihood:.4f} |", flush=True
            )
    return 0


def update_times(
    args: argparse.Namespace, precision: Precision, device: str, *, graphs: bool
) -> tuple[list[float], float]:
    """Milliseconds of each update, and the log-likelihood of a token at the last."""
    tokens = args.sentences * args.length
    train = TrainConfig(optimizer="em", momentum=0.98, smoothing=0.003, precision=precision, graphs=graphs)
    shape = ModelConfig(family="hmm", num_states=args.states, neural=False)
    config = Config(shape, DataConfig(tokens=tokens, rounding=8), train)
    model = build_model(shape, args.words, seed=1).to(device)
    step = BatchEM(model, optimizer(model, train), config, Budget(), _not_finite, NUM_TOKENS)
    batches, found, value = _batches(args), [], 0.0
    for i in range(4 + args.repeats):
        start = time.perf_counter()
        value, _ = step([batches[i % len(batches)]], tokens, i)
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start))
    return found[4:], value / tokens


def _batches(args: argparse.Namespace) -> list[Batch]:
    """Words drawn by Zipf's law."""
    generator = torch.Generator().manual_seed(0)
    often = 1.0 / (torch.arange(args.words, dtype=torch.float64) + 2.7)
    shape = args.sentences, args.length
    lengths = torch.full((args.sentences,), args.length)
    drawn = (torch.multinomial(often, shape[0] * shape[1], replacement=True, generator=generator) for _ in range(5))
    return [Batch(words.reshape(shape), lengths) for words in drawn]


def _not_finite(batches: list[Batch], why: str) -> DomainError:
    return DomainError(f"an update of {len(batches)} batches: {why}")
