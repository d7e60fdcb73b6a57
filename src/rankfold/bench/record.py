"""What a row says: its sizes, and places for what will be measured. Read next: `bench/row.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankfold.bench.cases import Case
from rankfold.models.config import ModelConfig
from rankfold.models.frame_config import LOW_RANK, FrameConfig
from rankfold.models.grammar_config import FACTORED, GrammarConfig
from rankfold.numerics.precision import Precision

# What a row has only if every check passed: none of it says anything about code that is wrong.
TIMES = (
    "step_ms",
    "eager_ms",
    "forward_ms",
    "recursion_ms",
    "update_ms",
    "update_mib",
    "peak_mib",
    "same_step_ms",
    "reference_ms",
    "reference_mib",
    "ratio",
    "against",
    "floor_ms",
    "share",
)
RANKED = ("lhmm", "banded", "rank", "lpcfg", *FACTORED)


def new_record(case: Case, precision: Precision, plans: Sequence[str]) -> dict[str, Any]:
    """The sizes, None where a family has no such; `plans` are those that were asked for, where there is a choice."""
    config, family = case.config, case.config.family
    states = config if isinstance(config, ModelConfig) else None
    frames = config if isinstance(config, FrameConfig) else None
    symbols = config if isinstance(config, GrammarConfig) else None
    return {
        "name": case.name,
        "family": family,
        "given_tables": case.given,
        "num_states": None if isinstance(config, GrammarConfig) else config.num_states,
        "num_nonterminals": symbols and symbols.num_nonterminals,
        "num_preterminals": symbols and symbols.num_preterminals,
        "rank": config.rank if family in (*RANKED, *LOW_RANK) else None,
        "band": states.band if states and family == "banded" else None,
        "num_clusters": states.num_clusters if states and family == "block" else None,
        "dim": config.dim if config.neural else None,
        "state_dropout": 0.0 if isinstance(config, GrammarConfig) else config.state_dropout,
        "logit_dropout": states.logit_dropout if states else 0.0,
        "num_words": None if frames else case.num_words,
        "observations": frames and frames.observations,
        "num_features": frames and frames.num_features,
        "max_duration": frames.max_duration if frames and frames.has_segments else None,
        "self_transitions": frames and frames.may_repeat,
        "batch": case.batch,
        "length": case.length,
        "precision": precision,
        "plans": list(plans) if case.ordered else [],
        "order": None,
        "error": None,
        "order_error": None,
        "captured": False,
        **dict.fromkeys(TIMES),
        "held_mib": None,
        "note": "",
        "reference_note": "",
        "estimate_ms": None,
        "estimate_mib": None,
        "published_ms": case.published_ms,
        "published_mib": case.published_mib,
    }
