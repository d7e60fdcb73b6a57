"""Structured latent-variable models with very large state spaces, and exact inference."""

from rankfold import estimators, fgg
from rankfold.data.frame_batch import FrameBatch, frame_batch, symbol_batch
from rankfold.decoding.entropy import entropy
from rankfold.decoding.online import Filtered, FilterState, filter, predict, step
from rankfold.decoding.posterior import ExpectedCounts, expected_counts, state_posterior
from rankfold.decoding.sample import sample
from rankfold.decoding.segments import (
    BestSegments,
    Segment,
    SegmentCounts,
    SegmentPosterior,
    sample_segments,
    segment_counts,
    segment_posterior,
    segments,
    viterbi_segments,
)
from rankfold.decoding.tree_best import joint_map_tree, sample_tree, viterbi_tree
from rankfold.decoding.tree_generate import Generated, generate_trees
from rankfold.decoding.tree_mbr import mbr_tree
from rankfold.decoding.tree_prefix import Prefixes, prefixes
from rankfold.decoding.tree_records import ParsedTree
from rankfold.decoding.trees import leaf_posterior, span_posterior
from rankfold.decoding.viterbi import BestPath, JointPath, joint_map, viterbi
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.models import (
    HMM,
    BlockHMM,
    FrameConfig,
    FrameModel,
    ModelConfig,
    RankHMM,
    build_frame_model,
    build_model,
    load_model,
)
from rankfold.numerics.scaled import Scaled
from rankfold.operators import (
    Banded,
    BinaryCPD,
    BinaryDense,
    BinaryMatricised,
    Branch,
    Dense,
    LowRank,
    MaxOperator,
    Operator,
    RowScaled,
    Sum,
    WithoutDiagonal,
    rank_space,
)
from rankfold.recursions import chain, tree
from rankfold.recursions import segments as semi_markov
from rankfold.recursions.blocks import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.tree.potentials import TreePotentials
from rankfold.version import __version__

__all__ = [
    "HMM",
    "Banded",
    "BestPath",
    "BestSegments",
    "BinaryCPD",
    "BinaryDense",
    "BinaryMatricised",
    "BlockHMM",
    "BlockPotentials",
    "Branch",
    "ChainPotentials",
    "DataError",
    "Dense",
    "DomainError",
    "ExpectedCounts",
    "FilterState",
    "Filtered",
    "FrameBatch",
    "FrameConfig",
    "FrameModel",
    "Generated",
    "JointPath",
    "LowRank",
    "MaxOperator",
    "ModelConfig",
    "Operator",
    "ParsedTree",
    "Prefixes",
    "RankHMM",
    "RowScaled",
    "Scaled",
    "Segment",
    "SegmentCounts",
    "SegmentPosterior",
    "SegmentPotentials",
    "ShapeError",
    "Sum",
    "TreePotentials",
    "UnsupportedError",
    "WithoutDiagonal",
    "__version__",
    "build_frame_model",
    "build_model",
    "chain",
    "entropy",
    "estimators",
    "expected_counts",
    "fgg",
    "filter",
    "frame_batch",
    "generate_trees",
    "joint_map",
    "joint_map_tree",
    "leaf_posterior",
    "load_model",
    "mbr_tree",
    "predict",
    "prefixes",
    "rank_space",
    "sample",
    "sample_segments",
    "sample_tree",
    "segment_counts",
    "segment_posterior",
    "segments",
    "semi_markov",
    "span_posterior",
    "state_posterior",
    "step",
    "symbol_batch",
    "tree",
    "viterbi",
    "viterbi_segments",
    "viterbi_tree",
]
