"""Models of words: each chooses its parts and states its maths."""

from rankfold.models.block_hmm import BlockHMM
from rankfold.models.catalog import build_model
from rankfold.models.config import ModelConfig
from rankfold.models.hmm import HMM
from rankfold.models.pretrained import load_model
from rankfold.models.rank_hmm import RankHMM

__all__ = ["HMM", "BlockHMM", "ModelConfig", "RankHMM", "build_model", "load_model"]
