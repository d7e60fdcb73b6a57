"""Estimators: arrays in, states and segments out, with the methods of scikit-learn."""

from rankfold.estimators.bayesian import BayesianHMM
from rankfold.estimators.hidden_markov import HMM, HSMM
from rankfold.estimators.selection import Selection, select

__all__ = ["HMM", "HSMM", "BayesianHMM", "Selection", "select"]
