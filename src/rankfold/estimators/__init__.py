"""Estimators: arrays in, states and segments out, with the methods of scikit-learn."""

from rankfold.estimators.bayesian import BayesianHMM
from rankfold.estimators.hidden_markov import HMM, HSMM
from rankfold.estimators.selection import Selection, select
from rankfold.estimators.structured import FactorialHMM, HierarchicalHMM
from rankfold.estimators.switching import SwitchingLDS

__all__ = ["HMM", "HSMM", "BayesianHMM", "FactorialHMM", "HierarchicalHMM", "Selection", "SwitchingLDS", "select"]
