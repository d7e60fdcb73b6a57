"""What a step of the plain reference needs at least, so that one that cannot fit or finish is not begun.

Read next: `bench/plain.py`, which asks.
"""

from __future__ import annotations

from typing import NamedTuple

from rankfold.bench.cases import Case
from rankfold.models.config import ModelConfig
from rankfold.models.frame_config import FrameConfig
from rankfold.models.grammar_config import KINDS, GrammarConfig


class Cost(NamedTuple):
    """At least so much."""

    multiply_adds: int
    bytes: int


def cost(case: Case) -> Cost:
    """What the plain step needs: each table with its logits and both gradients; three products for each."""
    config = case.config
    if isinstance(config, ModelConfig):
        return _chain(case, config)
    if isinstance(config, FrameConfig):
        return _frames(case, config)
    return _pairs(case, config) if config.family in ("npcfg", "lpcfg") else _ranks(case, config)


def _chain(case: Case, config: ModelConfig) -> Cost:
    tokens = case.batch * case.length
    z, r = config.num_states, config.rank
    dim = config.dim if config.neural else 0
    made = {"hmm": z * z, "block": z * z, "lhmm": 2 * z * r, "banded": 2 * z * r, "rank": 2 * z * r}[config.family]
    step = {"hmm": z * z, "block": z, "lhmm": 2 * z * r, "banded": 2 * z * r + z * z, "rank": r * r}[config.family]
    extra = {"banded": 2 * z * z, "rank": r * r}.get(config.family, 0)
    width = r if config.family == "rank" else z
    squared = z * r * r if config.family == "rank" else 0
    emissions = width * case.num_words
    messages = 6 * tokens * (z // config.num_clusters if config.family == "block" else width)
    return Cost(
        3 * ((made + emissions) * dim + squared + tokens * step), 4 * (4 * (made + extra + emissions) + messages)
    )


def _frames(case: Case, config: FrameConfig) -> Cost:
    """Densities written out feature by feature, every transition written, and for segments every open duration."""
    tokens, z, f = case.batch * case.length, config.num_states, config.num_features
    made = z * z * (config.rank if config.own_rank is not None else config.dim if config.neural else 1)
    open_segments = 4 * config.max_duration if config.has_segments else 0
    densities = 4 * f if config.observations == "gaussian" else 2
    held = tokens * z * (densities + open_segments + 6)
    return Cost(3 * (made + tokens * z * (z + f + open_segments)), 4 * (4 * z * z + held))


def _counts(case: Case) -> tuple[int, int, int]:
    """Words, spans of two words and more, and their splits."""
    b, t = case.batch, case.length
    return b * t, b * t * (t - 1) // 2, b * t * (t * t - 1) // 6


def _ranks(case: Case, config: GrammarConfig) -> Cost:
    """Rules with a rank: a sum for each split, its gradient, and the vectors of each span."""
    n, p = config.num_nonterminals, config.num_preterminals
    tokens, spans, splits = _counts(case)
    r = n if config.family == "spcfg" else config.rank
    a_span = 3 * n * r if config.family == "tnpcfg" else 2 * r * r
    once = 2 * n * r * r if config.family == "rankpcfg" else 0
    tables, emissions = 2 * (n + p) * r + (n * r if config.family != "spcfg" else 0), p * case.num_words
    work = (tables + emissions) * config.dim + once + tokens * 2 * p * r + spans * a_span + splits * r
    return Cost(3 * work, 4 * (4 * (tables + emissions) + splits * r + 6 * spans * r))


def _pairs(case: Case, config: GrammarConfig) -> Cost:
    """All pairs of children: of spans for each split, of a span and a word twice for each span."""
    n, p = config.num_nonterminals, config.num_preterminals
    tokens, spans, splits = _counts(case)
    thin = config.low_rank if config.family == "lpcfg" else ()
    counts = dict(zip(KINDS, (n * n, n * p, p * n, p * p), strict=True))
    height = {kind: config.rank if kind in thin else n for kind in KINDS}
    emissions, made = p * case.num_words, sum(counts[kind] * height[kind] for kind in KINDS)
    inner = sum(counts[kind] * height[kind] for kind in KINDS[:3])
    work = (emissions + made) * config.dim + spans * inner + tokens * counts["leaf_leaf"] * height["leaf_leaf"]
    held = splits * n * n + 2 * spans * (n * n + 2 * n * p) + 2 * tokens * p * p
    return Cost(3 * (work + splits * n * n), 4 * (4 * (made + emissions) + held))
