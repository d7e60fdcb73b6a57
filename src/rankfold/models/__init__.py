"""Models of words and of frames: each chooses its parts and states its maths."""

from rankfold.models.block_hmm import BlockHMM
from rankfold.models.catalog import build_model
from rankfold.models.compound_pcfg import CompoundPCFG
from rankfold.models.config import FrameConfig, GrammarConfig, ModelConfig
from rankfold.models.frame_model import FrameModel
from rankfold.models.pcfg import PCFG
from rankfold.models.pretrained import load_model
from rankfold.models.rank_hmm import RankHMM
from rankfold.models.sequence import HMM

__all__ = [
    "HMM",
    "PCFG",
    "BlockHMM",
    "CompoundPCFG",
    "FrameConfig",
    "FrameModel",
    "GrammarConfig",
    "ModelConfig",
    "RankHMM",
    "build_model",
    "load_model",
]
