"""Mixtures of Gaussians: each state has several, with weights; which of them a frame is of is summed out."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.params.networks import take_rows
from rankfold.params.observations.gaussian import GaussianObservation
from rankfold.params.observations.linear_gaussian import FullGaussianObservation
from rankfold.params.observations.protocol import Observation, ObservationModule, Sizes, one_hot
from rankfold.params.prior import Prior, Table, log_shares


class Mixture(NamedTuple):
    """The weights of the components, and their Gaussians, `num` for each state."""

    log_weight: Tensor  # "z m"
    components: Observation  # of "(z m)" states

    def log_joint(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z m"
        """The log-weight of each frame and component."""
        log_obs = self.components.log_obs(frames)
        return log_obs.reshape(*log_obs.shape[:-1], *self.log_weight.shape) + self.log_weight

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        gone = frames.isnan().all(-1, keepdim=True)
        return self.log_joint(frames).logsumexp(-1).masked_fill(gone, 0.0)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        which = torch.multinomial(self.log_weight.exp()[states], 1, generator=generator)[:, 0]
        return self.components.sample(states * self.log_weight.shape[1] + which, generator)


@dataclasses.dataclass(frozen=True)
class _Inner:
    """The sizes of the Gaussians of all states together."""

    num_states: int
    num_features: int
    covariance: str
    min_variance: float
    init: str
    covariance_rank: int = 1
    covariance_states: int = 1
    tied_variance: bool = False


class GaussianMixtureObservation(ObservationModule):
    """`num_components` Gaussians for each state; a "tied" covariance is shared by those of a state."""

    measured = True
    priors = ("mean", "variance")
    capturable = False

    def __init__(
        self, logits: Tensor, components: GaussianObservation | FullGaussianObservation, *, tied: bool = False
    ) -> None:  # "z m"
        super().__init__()
        self.logits, self.components, self.tied = nn.Parameter(logits), components, tied

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        num_states, num = sizes.num_states, sizes.num_components
        inner: Any = _Inner(
            num_states * num, sizes.num_features, sizes.covariance, sizes.min_variance, "spread", sizes.covariance_rank
        )
        components: Any = GaussianObservation.draw(inner, generator)
        tied = sizes.covariance == "tied"
        if tied:
            components = FullGaussianObservation(components.mean.detach(), num_states, min_variance=sizes.min_variance)
        return cls(torch.zeros(num_states, num, dtype=torch.float32), components, tied=tied)

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        return sizes.num_components * GaussianObservation.residuals(sizes)

    def forward(self, keep: Tensor | None = None) -> Mixture:
        num = self.logits.shape[1]
        inner = None if keep is None else (keep[:, None] * num + torch.arange(num, device=keep.device)).flatten()
        log_weight = take_rows(self.logits, keep).log_softmax(1)
        if keep is not None and isinstance(self.components, FullGaussianObservation):
            return Mixture(log_weight, self.components.kept(inner, keep))
        return Mixture(log_weight, self.components(inner))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n (f + s)"
        """The frames, and the statistics of the Gaussians."""
        return torch.cat([frames.double(), self.components.statistics(frames, prior)], 1)

    @torch.no_grad()
    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n (f + s)", "n z" -> "z (m + m s)"
        """The expected uses of each component, and its expected statistics."""
        num_states = len(self.logits)
        size = self.components.mean.shape[1]
        frames, inner = statistics[:, :size], statistics[:, size:]
        here = ~frames.isnan().all(1)
        joint = self.forward().log_joint(frames[None].to(self.logits.dtype))[0].double()
        share = joint.softmax(2) * posterior.double().unsqueeze(2)
        share = torch.where(here[:, None, None], share, 0.0)
        counts = self.components.count(inner, share.flatten(1)).reshape(num_states, -1)
        return torch.cat([share.sum(0), counts], 1)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z (m + m s)"
        num_states, num = self.logits.shape
        if "weight" not in prior.fixed:
            self.logits.copy_(log_shares(counts[:, :num] + prior.smoothing, self.logits))
        self.components.maximise(counts[:, num:].reshape(num_states * num, -1), prior)

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        return prior.of_shares(self.logits, 0.0) + self.components.log_prior(prior)

    def rounding(self, prior: Prior) -> float:
        return self.components.rounding(prior)

    def keep_within(self, prior: Prior) -> None:
        self.components.keep_within(prior)

    def move_to(self, frames: Any) -> None:
        self.components.move_to(frames)

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Components begin at random frames of their state, each with the frames nearest to it; weights are equal."""
        num_states, num = self.logits.shape
        start = means.repeat_interleave(num, 0)
        which = torch.full_like(states, -1)
        scale = torch.as_tensor(prior.spread).to(frames).sqrt()
        for z in range(num_states):
            own = (states == z).nonzero()[:, 0]
            if len(own) <= num:
                some = torch.from_numpy(rng.standard_normal((num, means.shape[1]))).to(frames)
                start[z * num : (z + 1) * num] += 0.1 * scale * some
                which[own] = z * num
                continue
            chosen = frames[own[torch.from_numpy(rng.choice(len(own), num, replace=False)).to(own.device)]]
            distance = ((frames[own].unsqueeze(1) - chosen) / scale).square().sum(2)
            start[z * num : (z + 1) * num] = chosen
            which[own] = z * num + distance.argmin(1)
        known = which >= 0
        self.components.initialise(frames[known], which[known], start, prior, rng, near=near)
        if not near:
            self.components.fill(mean=start)  # random frames, not the means of those nearest
        shares = one_hot(which, num_states * num).sum(0).reshape(num_states, num) + 1
        self.fill(weight=shares / shares.sum(1, keepdim=True))

    def tables(self) -> dict[str, Table]:
        """Weights "z m"; means "z m f" and covariances with an axis for the components."""
        num_states, num = self.logits.shape
        found = {"weight": Table(self.logits.detach().double().softmax(1), axis=1)}
        for name, table in self.components.tables().items():
            value = table.value if self._shares(name) else table.value.unflatten(0, (num_states, num))
            found[name] = table._replace(value=value)
        return found

    def _shares(self, name: str) -> bool:
        return self.tied and name == "covariance"

    def fill(self, *, weight: Tensor | None = None, **tables: Tensor) -> None:
        """Set the weights "z m", and the means and covariances of the components."""
        if weight is not None:
            with torch.no_grad():
                self.logits.copy_(weight.double().log())
        flat = {name: x if self._shares(name) else x.flatten(0, 1) for name, x in tables.items()}
        if flat:
            self.components.fill(**flat)

    @property
    def num_free(self) -> int:
        return self.logits.numel() - len(self.logits) + self.components.num_free
