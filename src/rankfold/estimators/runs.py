"""Training runs of models of frames: where they begin (k-means, labels), and steps of EM in place of gradients.

The loop, its folder and its checkpoints are those of every run. Read next: `training/loop.py`, `em.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.estimators.em import Priors, maximised
from rankfold.estimators.expectation import Tables, expected
from rankfold.estimators.observations import Bernoulli, Categorical, Family, Gaussian
from rankfold.estimators.packed import pack
from rankfold.estimators.start import Shape, drawn
from rankfold.estimators.wrapped import model_of, tables_of
from rankfold.models.frame_config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.params.observations import GaussianObservation
from rankfold.training import loop
from rankfold.training.config import Config
from rankfold.training.frame_task import FrameTask
from rankfold.training.report import Reporter
from rankfold.training.result import Result


def train(
    config: Config, data: str | Path, out: str | Path, *, resume: bool = False, report: Reporter | None = None
) -> Result:
    """Train a model, of words or of frames, into a run directory; with `resume`, go on from its last checkpoint."""
    steps = frame_steps if isinstance(config.model, FrameConfig) else None
    return loop.train(config, data, out, resume=resume, report=report, steps=steps)


def frame_steps(task: FrameTask, model: FrameModel, *made_of: Any) -> Any:
    """What updates a model of frames, which begins where the recipe says; a resumed one is filled afterwards."""
    em = task.config.train.optimizer == "em"
    if em and not model.config.normalised_durations:
        raise UnsupportedError(
            "model.normalised_durations is false, but EM maximises distributions that sum to 1.\n"
            '  Set it to true, or train.optimizer="adam".'
        )
    if model.config.init == "kmeans" or em:
        begin(task, model)
    return EMSteps(task, model, *made_of) if em else task.steps(model, *made_of)


def begin(task: FrameTask, model: FrameModel) -> None:
    """Let a model begin at the means of k-means and of labels, with the moves and runs of the nearest means.

    Of networks only the means and variances can be set.
    """
    config = model.config
    sequences, labels = training_set(task, model)
    diagonal = torch.eye(config.num_states, dtype=torch.bool, device=model.device)
    shape = Shape(
        num_states=config.num_states,
        rank=config.own_rank,
        diagonal=config.may_repeat,
        forbidden=None if config.may_repeat else diagonal,
        durations=config.durations if config.has_segments else None,
        longest=config.max_duration,
        censored=config.censored,
    )
    rng = np.random.default_rng(task.config.train.seed)
    family = family_of(config, sequences)
    fill(model, drawn(shape, family, sequences, labels, rng, spread_out=config.init == "kmeans"))


@torch.no_grad()
def fill(model: FrameModel, tables: Tables) -> None:
    """Put the tables into the model's parameters, as far as these are tables."""
    observed, own = tables.observed, model.state_dict()
    if isinstance(model.observation, GaussianObservation):
        assert observed.mean is not None
        assert observed.variance is not None
        model.observation.begin(observed.mean, observed.variance)
    if model.config.neural:
        return
    made = model_of(tables, categorical=model.config.observations == "categorical").state_dict()
    skipped = "observation." if isinstance(model.observation, GaussianObservation) else "nothing"
    for name, x in made.items():
        if not name.startswith(skipped):
            own[name].copy_(x)


def family_of(config: FrameConfig, sequences: list[Tensor], smoothing: float = 0.0) -> Family:
    """The observations as EM knows them."""
    if config.observations == "categorical":
        return Categorical(config.num_features, smoothing)
    if config.observations == "bernoulli":
        return Bernoulli(smoothing)
    frames = torch.cat(sequences)
    seen = frames[~frames[:, 0].isnan()]
    # A prior is of variance 1, as the recipe says; without one the features' own variances are their scale.
    spread = torch.ones_like(seen[0]) if config.variance_prior else seen.var(0, correction=0)
    return Gaussian(
        shift=seen.mean(0),
        spread=spread,
        floor=torch.full_like(spread, config.min_variance),
        tied=config.tied_variance,
        prior_frames=config.variance_prior,
    )


def training_set(task: FrameTask, model: FrameModel) -> tuple[list[Tensor], list[Tensor] | None]:
    """The training recordings in float64 (symbols as whole numbers), and their labels."""
    train, device = task.recordings.train, model.device
    arrays = [torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64)).to(device) for x in train.features]
    if model.config.observations == "categorical":
        arrays = [torch.where(x[:, 0].isnan(), -1.0, x[:, 0]).long() for x in arrays]
    labels = None if train.labels is None else [torch.from_numpy(y).to(device) for y in train.labels]
    return arrays, labels


class EMSteps:
    """A step of EM for each update, over all training recordings whatever the batches are; made as `Gradients` is.

    The model's parameters hold its state: a resumed run takes the same steps.
    """

    carried: Any = None  # recordings are whole

    def __init__(
        self,
        task: FrameTask,
        model: FrameModel,
        optimizer: torch.optim.Optimizer,
        config: Config,
        room: Any,
        not_finite: Callable[[list[Any], str], DomainError],
    ) -> None:
        self.model, smoothing = model, config.train.smoothing
        sequences, labels = training_set(task, model)
        self.family = family_of(model.config, sequences, smoothing)
        self.groups = pack([self.family.prepare(x) for x in sequences], labels, model.config.num_states)
        never = None
        if model.config.own_rank is None and not model.config.may_repeat:
            never = torch.eye(model.config.num_states, dtype=torch.bool, device=model.device)
        self.priors = Priors(smoothing, never)

    @torch.no_grad()
    def __call__(self, batches: list[Any], tokens: int, update: int) -> tuple[float, float]:
        """The log-likelihood before the step; there is no gradient, and its norm is 0."""
        tables = tables_of(copy.deepcopy(self.model).double())
        counts = expected(self.groups, tables, self.family)
        fill(self.model, maximised(counts, tables, self.family, self.priors))
        return counts.log_likelihood, 0.0
