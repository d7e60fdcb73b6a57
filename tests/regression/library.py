"""All that the fixed seeds take from the library: where a name moves, this file follows and the others stay."""

# ruff: noqa: F401  (the other files take the names from here)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankfold import (
    Banded,
    BinaryCPD,
    BinaryDense,
    BinaryMatricised,
    BlockPotentials,
    Branch,
    ChainPotentials,
    Dense,
    LowRank,
    RowScaled,
    SegmentPotentials,
    Sum,
    TreePotentials,
    WithoutDiagonal,
    entropy,
    expected_counts,
    mbr,
    posterior,
    sample,
    segment_table,
    viterbi,
)
from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.estimators import HMM, HSMM
from rankfold.models import FrameConfig, GrammarConfig, ModelConfig, build_model
from rankfold.recursions import blocks, chain, tree
from rankfold.recursions import segments as semi_markov

Numbers = dict[str, Any]  # name: tensor, array, number or nested lists of them
LOG_Z: dict[str, Callable[..., Tensor]] = {
    "chain": chain.log_z,
    "segments": semi_markov.log_z,
    "tree": tree.log_z,
    "blocks": blocks.log_z,
}


def chain_answers(p: Any, g: torch.Generator) -> dict[str, Any]:
    counts, best = expected_counts(p), viterbi(p)
    found: Numbers = {
        "posterior": posterior(p).state,
        "counts.initial": counts.initial,
        "viterbi.path": best.path,
        "viterbi.log_prob": best.log_prob,
        "sample": sample(p, num_samples=3, generator=g).path,
        "entropy": entropy(p),
        "filtered": chain.messages(p).filtered.log(),
        "future": chain.messages(p).future.log(),
    }
    if isinstance(p.transition, LowRank):
        joint = viterbi(p, of="joint")
        found |= {"joint_map.state": joint.path, "joint_map.rank": joint.ranks, "joint_map.log_prob": joint.log_prob}
    if p.log_final is None:
        found["carry"] = chain.carry(p)
    return found | {f"counts.transition.{i}": x for i, x in enumerate(counts.transition)}


def segment_answers(p: Any, g: torch.Generator) -> dict[str, Any]:
    counts, best, probability = expected_counts(p), viterbi(p), posterior(p)
    states, begins = sample(p, num_samples=3, generator=g)
    found: Numbers = {
        "posterior.state": probability.state,
        "posterior.start": probability.start,
        "posterior.end": probability.end,
        "counts.initial": counts.initial,
        "counts.duration": counts.duration,
        "viterbi.state": best.path,
        "viterbi.begin": best.begins,
        "viterbi.log_prob": best.log_prob,
        "sample.state": states,
        "sample.begin": begins,
        "table": [(x.start, x.end, x.state, x.posterior, x.frames) for rows in segment_table(p) for x in rows],
    }
    if p.censored and p.log_final is None:
        found["carry"] = semi_markov.carry(p)
    return found | {f"counts.transition.{i}": x for i, x in enumerate(counts.transition)}


def tree_answers(p: Any, g: torch.Generator) -> dict[str, Any]:
    found: Numbers = {
        "posterior.span": posterior(p).span,
        "posterior.leaf": posterior(p).leaf,
        "viterbi": [parsed(x) for x in viterbi(p).trees],
        "mbr": [parsed(x) for x in mbr(p).trees],
        "mbr.labels": [parsed(x) for x in mbr(p, labels=True).trees],
        "sample": [parsed(x) for drawn in sample(p, num_samples=3, generator=g).trees for x in drawn],
        "chart": tree.chart(p),
    }
    if all(isinstance(rule, BinaryCPD) for rule in p.rules):
        found["joint_map"] = [parsed(x) for x in viterbi(p, of="joint").trees]
    return found


def parsed(x: Any) -> list[Any]:
    """A parsed tree as numbers: brackets, labels, tags, score."""
    return [x.spans, x.labels or [], x.tags or [], -1.0 if x.score is None else x.score]


def block_answers(p: Any, g: torch.Generator) -> dict[str, Any]:
    best = viterbi(p)
    filtered, total = blocks.advance(p)
    return {
        "posterior": posterior(p).state,
        "entropy": entropy(p),
        "viterbi.path": best.path,
        "viterbi.log_prob": best.log_prob,
        "sample": sample(p, num_samples=3, generator=g).path,
        "filtered": filtered,
        "log_z of filtered": total,
    }


ANSWERS: dict[str, Callable[..., Numbers]] = {
    "chain": chain_answers,
    "segments": segment_answers,
    "tree": tree_answers,
    "blocks": block_answers,
}
