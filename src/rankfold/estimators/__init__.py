"""Estimators: arrays in, states and segments out, with the methods of scikit-learn."""

from rankfold.estimators.hmm import HMM
from rankfold.estimators.hsmm import HSMM

__all__ = ["HMM", "HSMM"]
