"""Tables of cases: every family at modest sizes, and the papers' sizes with what the authors' own code takes there."""

from __future__ import annotations

from typing import Any

from benchmarks.steps.cases import NUM_WORDS, Case
from rankfold.models.config import FrameConfig, FrameFamily, GrammarConfig, GrammarFamily, ModelConfig


def modest_cases() -> list[Case]:
    """Every family at sizes that take seconds on two cores."""
    configs = (
        ModelConfig(family="hmm", num_states=256, dim=64),
        ModelConfig(family="lhmm", num_states=512, rank=64, dim=64),
        ModelConfig(family="banded", num_states=256, rank=32, band=16, dim=64),
        ModelConfig(family="rank", num_states=1024, rank=128, dim=64),
        ModelConfig(family="block", num_states=512, num_clusters=16, dim=64),
    )
    grammars = (
        GrammarConfig(family="npcfg", num_nonterminals=16, num_preterminals=32, dim=64),
        GrammarConfig(family="cpcfg", num_nonterminals=8, num_preterminals=16, dim=64, latent_dim=16, encoder_dim=64),
        GrammarConfig(family="tnpcfg", num_nonterminals=128, num_preterminals=256, rank=64, dim=64),
        GrammarConfig(family="rankpcfg", num_nonterminals=512, num_preterminals=1024, rank=64, dim=64),
        GrammarConfig(family="lpcfg", num_nonterminals=16, num_preterminals=32, rank=8, dim=64),
        GrammarConfig(family="spcfg", num_nonterminals=128, num_preterminals=256, dim=64),
    )
    return [Case(config) for config in configs] + [Case(config, batch=4, length=20) for config in grammars]


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
    """The published sizes, and what nobody has published: 2^20 states; 2^19 with an update, for a consumer's card."""
    half, million = (
        ModelConfig(family="lhmm", num_states=states, rank=rank, dim=256)
        for states, rank in ((2**19, 512), (2**20, 1024))
    )
    more = [Case(half, num_words=PUBLISHED_WORDS, update=True), Case(million, num_words=PUBLISHED_WORDS)]
    return [*published_cases(), *more]


def grammar_cases() -> list[Case]:
    """The sizes of the papers on grammars, with what the authors' code takes on an H200 (2026-11-15, torch 2.11, TF32).

    Sources: Yang, Liu, Tu 2022 (rankpcfg); Liu, Yang, Kim, Tu 2023 (spcfg); Yang, Zhao, Tu 2021 (tnpcfg); Kim, Dyer,
    Rush 2019 (npcfg); Chiu, Deng, Rush 2021 (lpcfg, and npcfg of 100 nonterminals).
    """

    def row(
        family: GrammarFamily, sizes: tuple[int, int], batch: int, length: int, ms: float, mib: float, **choices: Any
    ) -> Case:
        spans, leaves = sizes
        config = GrammarConfig(family=family, num_nonterminals=spans, num_preterminals=leaves, **choices)
        return Case(config, batch, length, NUM_WORDS, ms, mib)

    return [
        row("rankpcfg", (4500, 9000), 16, 40, 102.1, 4664, rank=1000),
        row("rankpcfg", (4500, 9000), 16, 20, 74.9, 4644, rank=1000),
        row("spcfg", (4096, 8192), 16, 40, 103.7, 4347, dim=512),
        row("tnpcfg", (250, 500), 4, 40, 104.9, 1788, rank=500),
        row("npcfg", (30, 60), 4, 40, 176.1, 354),
        row("lpcfg", (100, 200), 4, 40, 376.7, 60341, rank=32),
        row("npcfg", (100, 200), 4, 40, 416.6, 67238),
    ]


def frame_cases() -> list[Case]:
    """Segments and music at the papers' sizes, with what the authors' code takes on an H200 (2026-11-15, torch 2.11).

    A state may follow itself and durations lose the mass beyond 19, as there. Their low-rank semi-Markov model of 1,024
    states did not finish. Source: Chiu, Deng, Rush 2021, app. D (segments) and E (music).
    """

    def segments(family: FrameFamily, states: int, ms: float | None, mib: float | None, **choices: Any) -> Case:
        config = FrameConfig(
            family=family,
            num_states=states,
            num_features=300,
            max_duration=19,
            normalised_durations=False,
            self_transitions=True,
            tied_variance=True,
            dim=300,
            **choices,
        )
        return Case(config, 1, 200, published_ms=ms, published_mib=mib)

    def music(family: FrameFamily, ms: float, mib: float, **choices: Any) -> Case:
        config = FrameConfig(
            family=family, observations="bernoulli", num_states=2048, num_features=88, neural=True, dim=256, **choices
        )
        return Case(config, 8, 128, published_ms=ms, published_mib=mib)

    return [
        segments("hsmm", 64, 512.9, 276),
        segments("lhsmm", 128, 532.1, 1384, rank=128),
        segments("lhsmm", 1024, None, None, rank=16),
        segments("lhsmm", 8192, None, None, rank=64),
        music("frame_hmm", 1192.4, 9362),
        music("frame_lhmm", 1150.7, 9308, rank=512),
    ]
