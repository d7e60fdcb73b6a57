"""What a row says: its sizes, and places for what will be measured. Read next: `bench/row.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankfold.bench.cases import Case
from rankfold.models.grammar_config import FACTORED, GrammarConfig
from rankfold.numerics.precision import Precision

# What a row has only if every check passed: none of it says anything about code that is wrong.
TIMES = (
    "step_ms",
    "eager_ms",
    "forward_ms",
    "recursion_ms",
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
    states = None if isinstance(config, GrammarConfig) else config
    symbols = config if isinstance(config, GrammarConfig) else None
    return {
        "name": case.name,
        "family": family,
        "given_tables": case.given,
        "num_states": states and states.num_states,
        "num_nonterminals": symbols and symbols.num_nonterminals,
        "num_preterminals": symbols and symbols.num_preterminals,
        "rank": config.rank if family in RANKED else None,
        "band": states.band if states and family == "banded" else None,
        "num_clusters": states.num_clusters if states and family == "block" else None,
        "dim": None if case.given else config.dim,
        "state_dropout": states.state_dropout if states else 0.0,
        "logit_dropout": states.logit_dropout if states else 0.0,
        "num_words": case.num_words,
        "batch": case.batch,
        "length": case.length,
        "precision": precision,
        "plans": list(plans) if case.ordered else [],
        "order": None,
        "error": None,
        "order_error": None,
        "captured": False,
        **dict.fromkeys(TIMES),
        "note": "",
        "reference_note": "",
        "estimate_ms": None,
        "estimate_mib": None,
        "published_ms": case.published_ms,
        "published_mib": case.published_mib,
    }
