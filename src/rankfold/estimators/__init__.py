"""Estimators: arrays in, states and segments out, with the methods of scikit-learn."""

from rankfold.estimators.hidden_markov import HMM, HSMM

__all__ = ["HMM", "HSMM"]
