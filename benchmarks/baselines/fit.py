"""Training of a network: AdamW, a rate that rises and falls to zero, a checkpoint per epoch, the best by validation."""

from __future__ import annotations

import copy
import io
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.baselines.networks import FeedForward, Network, Recurrent, perplexity, token_losses, windows
from rankfold.errors import DataError
from rankfold.files import replace_file
from rankfold.training.corpus import Corpus

WARMUP = 0.05  # share of the updates in which the rate rises


@dataclass(frozen=True)
class Setting:
    """A network and its training."""

    kind: Literal["feed-forward", "lstm"]
    dim: int = 256
    dropout: float = 0.5
    epochs: int = 25
    tokens: int = 1024  # of a batch
    lr: float = 2e-3
    clip: float = 1.0
    seed: int = 1
    carried: bool = False
    precision: Literal["float32", "bf16"] = "bf16"  # of the products in training

    def network(self, num_words: int) -> Network:
        """With parameters drawn by the seed."""
        kind = FeedForward if self.kind == "feed-forward" else Recurrent
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return kind(num_words, self.dim, dropout=self.dropout)


@dataclass(frozen=True)
class Fitted:
    """What a network reached, by the epoch of the best validation."""

    network: Network
    valid: float
    test: float | None
    epochs: int
    seconds: float


def fit(setting: Setting, corpus: Corpus, checkpoint: Path, device: torch.device) -> Fitted:
    """Train a network, or go on where `checkpoint` ends; one that is done is judged again and not trained."""
    network = setting.network(len(corpus.vocabulary)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=setting.lr, weight_decay=0.0, fused=device.type == "cuda")
    done: dict[str, Any] = {"epoch": 0, "valid": math.inf, "best": copy.deepcopy(network.state_dict()), "seconds": 0.0}
    if checkpoint.is_file():
        done = _resume(checkpoint, setting, corpus, network, optimizer, device)
    begun = time.monotonic() - done["seconds"]
    for epoch in range(done["epoch"], setting.epochs):
        train = _epoch(network, optimizer, setting, corpus, epoch, device)
        valid = perplexity(network, corpus.valid, carried=setting.carried, device=device)
        if valid < done["valid"]:
            done |= {"valid": valid, "best": copy.deepcopy(network.state_dict())}
        done |= {"epoch": epoch + 1, "seconds": time.monotonic() - begun}
        _write(checkpoint, done | {"model": network.state_dict(), "optimizer": optimizer.state_dict()}, setting, corpus)
        line = f"epoch {epoch + 1}/{setting.epochs}  train {train:.1f}  valid {valid:.1f}  {done['seconds']:.0f} s"
        print(f"{setting.kind}: {line}", file=sys.stderr, flush=True)
    network.load_state_dict(done["best"])
    test = None
    if corpus.test is not None:
        test = perplexity(network, corpus.test, carried=setting.carried, device=device)
    return Fitted(network, done["valid"], test, done["epoch"], done["seconds"])


def _epoch(
    network: Network,
    optimizer: torch.optim.Optimizer,
    setting: Setting,
    corpus: Corpus,
    epoch: int,
    device: torch.device,
) -> float:
    """The training perplexity, with dropout."""
    network.train()
    batches = list(windows(corpus.train, setting.tokens, carried=setting.carried, shuffle=(setting.seed, epoch)))
    loss = torch.zeros((), dtype=torch.float64, device=device)
    count = 0
    # The optimizer writes the weights in place: a cache of their bfloat16 copies would keep those of the first batch.
    autocast = torch.autocast(device.type, torch.bfloat16, setting.precision == "bf16", cache_enabled=False)
    # Dropout draws from the global generator: it is put back afterwards, and an epoch's draws are its own.
    with torch.random.fork_rng(), autocast:
        torch.manual_seed(setting.seed * 1000 + epoch)
        for i, (part, num) in enumerate(token_losses(network, batches, device)):
            for group in optimizer.param_groups:
                group["lr"] = setting.lr * _rate((epoch + (i + 1) / len(batches)) / setting.epochs)
            optimizer.zero_grad(set_to_none=True)
            (part / num).backward()
            nn.utils.clip_grad_norm_(network.parameters(), setting.clip)
            optimizer.step()
            loss += part.detach()
            count += num
    return math.exp(float(loss) / count)


def _rate(done: float) -> float:
    """Of the largest: a line up, then a cosine down to zero. `done`: share of the updates."""
    if done < WARMUP:
        return done / WARMUP
    return (1 + math.cos(math.pi * (done - WARMUP) / (1 - WARMUP))) / 2


def _write(path: Path, content: dict[str, Any], setting: Setting, corpus: Corpus) -> None:
    buffer = io.BytesIO()
    torch.save(content | {"setting": asdict(setting), "fingerprint": corpus.fingerprint}, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [buffer.getvalue()])


def _resume(
    path: Path,
    setting: Setting,
    corpus: Corpus,
    network: Network,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    if (content["setting"], content["fingerprint"]) != (asdict(setting), corpus.fingerprint):
        raise DataError(f"{path}: of other settings or of another text.\n  Give another --work, or remove it.")
    network.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return {name: content[name] for name in ("epoch", "valid", "best", "seconds")}
