"""Distributions of a frame given a state: one file for each kind, its log-weights, samples and steps of EM.

`OBSERVATIONS` is the catalogue: the name in a configuration, and the module. A file and a line here add another one.
"""

from rankfold.params.observations.additive_gaussian import AdditiveGaussianObservation
from rankfold.params.observations.bernoulli import BernoulliObservation, NeuralBernoulliObservation
from rankfold.params.observations.beta import BetaObservation
from rankfold.params.observations.categorical import CategoricalObservation
from rankfold.params.observations.exponential import ExponentialObservation, HalfNormalObservation
from rankfold.params.observations.gamma import GammaObservation
from rankfold.params.observations.gaussian import GaussianObservation
from rankfold.params.observations.log_normal import LogNormalObservation
from rankfold.params.observations.logistic import LogisticObservation
from rankfold.params.observations.mixture import GaussianMixtureObservation
from rankfold.params.observations.multinomial import MultinomialObservation
from rankfold.params.observations.multivariate_student import AutoregressiveTObservation, RegressionTObservation
from rankfold.params.observations.negative_binomial import NegativeBinomialObservation
from rankfold.params.observations.poisson import PoissonObservation
from rankfold.params.observations.product import ProductObservation
from rankfold.params.observations.protocol import CollapseError, Observation, ObservationModule
from rankfold.params.observations.regression import AutoregressiveObservation, RegressionObservation
from rankfold.params.observations.student import StudentTObservation
from rankfold.params.observations.von_mises import VonMisesObservation
from rankfold.params.observations.zero_inflated import (
    ZeroInflatedGammaObservation,
    ZeroInflatedLogNormalObservation,
    ZeroInflatedNegativeBinomialObservation,
    ZeroInflatedPoissonObservation,
)

OBSERVATIONS: dict[str, type[ObservationModule]] = {
    "gaussian": GaussianObservation,
    "bernoulli": BernoulliObservation,
    "categorical": CategoricalObservation,
    "gaussian_mixture": GaussianMixtureObservation,
    "poisson": PoissonObservation,
    "negative_binomial": NegativeBinomialObservation,
    "zero_inflated_poisson": ZeroInflatedPoissonObservation,
    "zero_inflated_negative_binomial": ZeroInflatedNegativeBinomialObservation,
    "multinomial": MultinomialObservation,
    "student_t": StudentTObservation,
    "gamma": GammaObservation,
    "exponential": ExponentialObservation,
    "half_normal": HalfNormalObservation,
    "log_normal": LogNormalObservation,
    "zero_inflated_gamma": ZeroInflatedGammaObservation,
    "zero_inflated_log_normal": ZeroInflatedLogNormalObservation,
    "beta": BetaObservation,
    "von_mises": VonMisesObservation,
    "regression": RegressionObservation,
    "regression_student_t": RegressionTObservation,
    "logistic": LogisticObservation,
    "autoregressive": AutoregressiveObservation,
    "autoregressive_student_t": AutoregressiveTObservation,
    "product": ProductObservation,
    "additive_gaussian": AdditiveGaussianObservation,
}
ProductObservation.catalogue = OBSERVATIONS

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
