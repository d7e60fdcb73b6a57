"""What is measured: sizes of models and batches, and what the authors' own code takes at the published ones.

Read next: `bench/row.py`, which measures one.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankfold.bench.given import GivenTables
from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.catalog import build_model
from rankfold.models.config import ModelConfig
from rankfold.numerics.precision import Precision
from rankfold.params.dropout import num_kept
from rankfold.planning import Plan

NUM_WORDS = 10_000


class Case(NamedTuple):
    """A model and a batch; what other code takes for the same step on an H200, where that was measured."""

    config: ModelConfig
    batch: int = 8
    length: int = 32
    num_words: int = NUM_WORDS
    published_ms: float | None = None
    published_mib: float | None = None

    @property
    def given(self) -> bool:
        """Whether the tables themselves are the parameters (`bench/given.py`)."""
        return not self.config.neural

    @property
    def dropout(self) -> bool:
        """Whether a step of training leaves something out."""
        config = self.config
        return bool(config.logit_dropout if config.family == "rank" else config.state_dropout)

    @property
    def name(self) -> str:
        """The sizes in words."""
        config = self.config
        what = [f"{config.family}{', given tables' if self.given else ''}", f"{config.num_states:,} states"]
        if config.family in ("lhmm", "banded", "rank"):
            what.append(f"rank {config.rank:,}")
        if config.family == "banded":
            what.append(f"{config.band} diagonals each side")
        if config.family == "block":
            what.append(f"{config.num_clusters:,} clusters")
        if self.dropout and config.family == "block":
            size = config.num_states // config.num_clusters
            what.append(f"{num_kept(size, config.state_dropout)} of {size} kept")
        elif self.dropout:
            what.append(f"dropout {config.logit_dropout if config.family == 'rank' else config.state_dropout:.2g}")
        return ", ".join(what)

    def checked(self) -> Case:
        """The same; raises on sizes that no batch has, and on choices the reference does not know."""
        for name in ("batch", "length", "num_words"):
            if getattr(self, name) < 1:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if (self.given and self.config.family != "hmm") or getattr(self.config, "tied", False):
            raise UnsupportedError(
                f"{self.config.family} with neural = {self.config.neural} or tied embeddings has no reference here.\n"
                "  Measure neural models with embeddings of their own, or an hmm's given tables."
            )
        if self.config.family == "block" and self.num_words < self.config.num_clusters:
            raise DomainError(
                f"num_words is {self.num_words}, but each of {self.config.num_clusters} clusters needs a word.\n"
                "  Take more words, or fewer clusters."
            )
        return self

    def build(self, device: torch.device) -> Any:
        """The model, with fresh parameters; on the device "meta" without memory for them."""
        num = self.config.num_clusters
        clusters = uniform_clusters(self.num_words, num, seed=0) if self.config.family == "block" else None
        with torch.device("meta" if device.type == "meta" else "cpu"):
            if self.given:
                return GivenTables(self.config.num_states, self.num_words).to(device)
            return build_model(self.config, self.num_words, clusters=clusters).to(device)

    def plan(self, device: torch.device, precision: Precision) -> Plan:
        """What a step costs, in the order that is asked for, or the cheapest."""
        plans = self.build(torch.device("meta")).plan(self.batch, self.length, device.type, precision)
        asked = self.config.plan if self.config.family == "rank" else "auto"
        found: Plan = next((way for way in plans.ways if way.order == asked), plans.best)
        return found

    def settled(self, device: torch.device, precision: Precision) -> Case:
        """The same with the order of a rank-space model fixed, so that the order checked and priced is the one run."""
        if self.config.family != "rank":
            return self
        order: Any = self.plan(device, "tf32" if precision == "bf16" else precision).order  # as the model itself asks
        return self._replace(config=dataclasses.replace(self.config, plan=order))

    def draw(self, device: torch.device) -> Batch:
        """Sequences of random words, all as long as the batch is wide."""
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(self.num_words, (self.batch, self.length), generator=generator)
        return Batch(words, torch.full((self.batch,), self.length)).to(device)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, as the reference reads them."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def small(case: Case) -> Case:
    """The same family and choices at a size where every check takes a moment; without dropout."""
    config = dataclasses.replace(
        case.config,
        num_states=24,
        rank=10,
        dim=8,
        band=3,
        num_clusters=4,
        state_dropout=0.0,
        logit_dropout=0.0,
    )
    return Case(config, batch=4, length=7, num_words=31)


def modest_cases() -> list[Case]:
    """Every family at sizes that take seconds on two cores."""
    configs = (
        ModelConfig(family="hmm", num_states=256, dim=64),
        ModelConfig(family="lhmm", num_states=512, rank=64, dim=64),
        ModelConfig(family="banded", num_states=256, rank=32, band=16, dim=64),
        ModelConfig(family="rank", num_states=1024, rank=128, dim=64),
        ModelConfig(family="block", num_states=512, num_clusters=16, dim=64),
    )
    return [Case(config) for config in configs]


# The vocabulary of Penn Treebank and one more symbol, as the authors' code has it.
PUBLISHED_WORDS = 10_001


def published_cases() -> list[Case]:
    """The sizes of the papers, with what the authors' code takes on an H200 (2026-11-15, torch 2.11, TF32).

    The last row is PyJuice's dense HMM, forward and backward of the same tables; its memory was not measured.
    Sources: Yang, Liu, Tu 2022 (rank); Chiu, Deng, Rush 2021 (lhmm, hmm, banded); Chiu, Rush 2020 (block).
    """

    def row(family: Any, states: int, ms: float, mib: float | None, *, batch: int = 8, **choices: Any) -> Case:
        config = ModelConfig(family=family, num_states=states, **({"dim": 256} | choices))
        return Case(config, batch=batch, num_words=PUBLISHED_WORDS, published_ms=ms, published_mib=mib)

    ranked: dict[str, Any] = {"logit_dropout": 0.1, "plan": "rank"}
    return [
        row("rank", 16384, 55.0, 1962, rank=2048, **ranked),
        row("rank", 16384, 64.6, 3596, rank=4096, **ranked),
        row("rank", 32768, 104.4, 6722, rank=4096, **ranked),
        row("lhmm", 16384, 42.1, 3145, rank=2048),
        row("lhmm", 16384, 56.7, 4358, rank=4096),
        row("hmm", 16384, 80.1, 6837),
        row("banded", 4096, 44.6, 796, rank=512, band=256),
        row("block", 16384, 32.2, 6276, num_clusters=128, state_dropout=13 / 128),
        row("block", 32768, 36.5, 10876, num_clusters=128, state_dropout=0.5, batch=16),
        row("hmm", 4096, 39.1, None, batch=256, neural=False),
    ]


def million_cases() -> list[Case]:
    """The published sizes, and 2^20 states, which nobody has published."""
    million = ModelConfig(family="lhmm", num_states=2**20, rank=1024, dim=256)
    return [*published_cases(), Case(million, num_words=PUBLISHED_WORDS)]
