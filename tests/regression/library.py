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
    FrameConfig,
    LowRank,
    ModelConfig,
    RowScaled,
    SegmentPotentials,
    Sum,
    TreePotentials,
    WithoutDiagonal,
    build_model,
    chain,
    entropy,
    expected_counts,
    joint_map,
    joint_map_tree,
    leaf_posterior,
    mbr_tree,
    sample,
    sample_segments,
    sample_tree,
    segment_counts,
    segment_posterior,
    segments,
    semi_markov,
    span_posterior,
    state_posterior,
    tree,
    viterbi,
    viterbi_segments,
    viterbi_tree,
)
from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.decoding.blocks import block_entropy, block_posterior
from rankfold.estimators import HMM, HSMM
from rankfold.models import GrammarConfig
from rankfold.recursions import blocks

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
        "posterior": state_posterior(p),
        "counts.initial": counts.initial,
        "viterbi.path": best.path,
        "viterbi.log_prob": best.log_prob,
        "sample": sample(p, num_samples=3, generator=g),
        "entropy": entropy(p),
        "filtered": chain.messages(p).filtered.log(),
        "future": chain.messages(p).future.log(),
    }
    if isinstance(p.transition, LowRank):
        joint = joint_map(p)
        found |= {"joint_map.state": joint.states, "joint_map.rank": joint.ranks, "joint_map.log_prob": joint.log_prob}
    if p.log_final is None:
        found["carry"] = chain.carry(p)
    return found | {f"counts.transition.{i}": x for i, x in enumerate(counts.transition)}


def segment_answers(p: Any, g: torch.Generator) -> dict[str, Any]:
    counts, best, posterior = segment_counts(p), viterbi_segments(p), segment_posterior(p)
    states, begins = sample_segments(p, num_samples=3, generator=g)
    found: Numbers = {
        "posterior.state": posterior.states,
        "posterior.start": posterior.starts,
        "posterior.end": posterior.ends,
        "counts.initial": counts.initial,
        "counts.duration": counts.durations,
        "viterbi.state": best.states,
        "viterbi.begin": best.begins,
        "viterbi.log_prob": best.log_prob,
        "sample.state": states,
        "sample.begin": begins,
        "table": [(x.start, x.end, x.state, x.posterior, x.frames) for rows in segments(p) for x in rows],
    }
    if p.censored and p.log_final is None:
        found["carry"] = semi_markov.carry(p)
    return found | {f"counts.transition.{i}": x for i, x in enumerate(counts.transition)}


def tree_answers(p: Any, g: torch.Generator) -> dict[str, Any]:
    found: Numbers = {
        "posterior.span": span_posterior(p),
        "posterior.leaf": leaf_posterior(p),
        "viterbi": [parsed(x) for x in viterbi_tree(p)],
        "mbr": [parsed(x) for x in mbr_tree(p)],
        "mbr.labels": [parsed(x) for x in mbr_tree(p, labels=True)],
        "sample": [parsed(x) for drawn in sample_tree(p, num_samples=3, generator=g) for x in drawn],
        "chart": tree.chart(p),
    }
    if all(isinstance(rule, BinaryCPD) for rule in p.rules):
        found["joint_map"] = [parsed(x) for x in joint_map_tree(p)]
    return found


def parsed(x: Any) -> list[Any]:
    """A parsed tree as numbers: brackets, labels, tags, score."""
    return [x.spans, x.labels or [], x.tags or [], -1.0 if x.score is None else x.score]


def block_answers(p: Any, g: torch.Generator) -> dict[str, Any]:
    path, log_prob = blocks.best_path(p)
    filtered, total = blocks.advance(p)
    return {
        "posterior": block_posterior(p),
        "entropy": block_entropy(p),
        "viterbi.path": path,
        "viterbi.log_prob": log_prob,
        "sample": blocks.draw(p, 3, g),
        "filtered": filtered,
        "log_z of filtered": total,
    }


ANSWERS: dict[str, Callable[..., Numbers]] = {
    "chain": chain_answers,
    "segments": segment_answers,
    "tree": tree_answers,
    "blocks": block_answers,
}
