"""Distributions of a frame given a state: one file for each kind, its log-weights, samples and steps of EM.

`OBSERVATIONS` is the catalogue: the name in a configuration, and the module. A file and a line here add another one.
"""

from rankfold.params.observations.bernoulli import BernoulliObservation, NeuralBernoulliObservation
from rankfold.params.observations.categorical import CategoricalObservation
from rankfold.params.observations.gaussian import GaussianObservation
from rankfold.params.observations.protocol import CollapseError, Observation, ObservationModule

OBSERVATIONS: dict[str, type[ObservationModule]] = {
    "gaussian": GaussianObservation,
    "bernoulli": BernoulliObservation,
    "categorical": CategoricalObservation,
}

__all__ = [
    "OBSERVATIONS",
    "BernoulliObservation",
    "CategoricalObservation",
    "CollapseError",
    "GaussianObservation",
    "NeuralBernoulliObservation",
    "Observation",
    "ObservationModule",
]
