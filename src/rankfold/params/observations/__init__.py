"""What a state says of a frame: densities and masses as matrix products, and the modules that hold their parameters.

Each file has plain functions of tensors, a record of them (`Observation`: one training step's, over the states that
are kept) and a module that makes the record.
"""

from rankfold.params.observations.bernoulli import BernoulliObservation, NeuralBernoulliObservation
from rankfold.params.observations.categorical import CategoricalObservation
from rankfold.params.observations.gaussian import GaussianObservation
from rankfold.params.observations.protocol import Observation

__all__ = [
    "BernoulliObservation",
    "CategoricalObservation",
    "GaussianObservation",
    "NeuralBernoulliObservation",
    "Observation",
]
