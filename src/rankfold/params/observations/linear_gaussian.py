"""Gaussian frames with a covariance matrix, around a mean, a linear regression on inputs or on the frames before.

x = W r + noise, where the regressors r end with a 1: without others W is the mean. Covariances are kept as Cholesky
factors; missing features are summed out exactly, by the marginal of the others. The noise may have heavy tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.errors import DomainError, UnsupportedError
from rankfold.params.networks import take_rows
from rankfold.params.observations.protocol import CollapseError, ObservationModule, Sizes, draw_table, means_of
from rankfold.params.prior import Prior, Table

LOG_TWO_PI = math.log(2 * math.pi)
MOST = 2**24  # numbers of one tensor of states, frames and features, where no gradient keeps them all


def patterns(here: Tensor) -> Iterator[tuple[Tensor, Tensor]]:  # "n f" bool -> ("k" frames, "s" features)
    """The frames that have the same features, and which features those are; frames without any are left out."""
    if bool(here.all()):
        yield torch.arange(len(here), device=here.device), torch.arange(here.shape[1], device=here.device)
        return
    kinds, which = torch.unique(here, dim=0, return_inverse=True)
    for k, kind in enumerate(kinds):
        if bool(kind.any()):
            yield (which == k).nonzero()[:, 0], kind.nonzero()[:, 0]


def marginal_root(root: Tensor, features: Tensor) -> Tensor:  # "c f f", "s" -> "c s s"
    """A lower triangular factor of the covariance of some features, by QR: nothing is squared."""
    if len(features) == root.shape[1]:
        return root
    triangle: Tensor = torch.linalg.qr(root.index_select(1, features).mT)[1]
    return triangle.mT


def log_density(
    x: Tensor, mean: Tensor, root: Tensor, dof: Tensor | None = None
) -> Tensor:  # "n f", "z f" or "z n f", "c f f", "z" -> "n z"
    """log N(x_n; mean_z, root root^T) over the features that are not NaN, float64; of `dof` degrees Student's t.

    -1/2 |root^-1 (x - mean)|^2 - sum log diag(root) - f/2 log 2 pi
    """
    squares, log_det = distances(x, mean, root)
    size = (~x.isnan()).sum(1, keepdim=True).double()
    if dof is None:
        return -squares / 2 - log_det - size * (LOG_TWO_PI / 2)
    dof = dof.double()
    level = torch.lgamma((dof + size) / 2) - torch.lgamma(dof / 2) - size / 2 * (dof * math.pi).log()
    return level - log_det - (dof + size) / 2 * torch.log1p(squares / dof)


def distances(
    x: Tensor, mean: Tensor, root: Tensor
) -> tuple[Tensor, Tensor]:  # "n f", "z f" or "z n f", "c f f" -> "n z", "n z" or "1 z"
    """|root^-1 (x - mean)|^2 and sum log diag(root), of the features that are not NaN, float64.

    z / c states in a row share a covariance. Cost: n z f^2 multiply-adds, and a QR for each set of missing features.
    """
    x, mean, root = x.double(), mean.double(), root.double()
    each = len(mean) // len(root)
    found = levels = x.new_zeros(len(x), len(mean))
    for rows, features in patterns(~x.isnan()):
        part = marginal_root(root, features)
        eye = torch.eye(len(features), dtype=x.dtype, device=x.device).expand_as(part)
        inverse = torch.linalg.solve_triangular(part, eye, upper=False).repeat_interleave(each, 0)
        log_det = part.diagonal(dim1=1, dim2=2).abs().log().sum(1).repeat_interleave(each)[None]
        own = x[rows].index_select(1, features)
        centre = mean.unsqueeze(1) if mean.ndim == 2 else mean[:, rows]
        centre = centre.index_select(2, features)
        step = len(mean) if torch.is_grad_enabled() else max(1, MOST // max(1, own.numel()))
        squares = [
            ((own - centre[at : at + step]) @ inverse[at : at + step].mT).square().sum(2)
            for at in range(0, len(mean), step)
        ]
        value = torch.cat(squares).mT
        if len(rows) == len(x):
            return value, log_det
        found = found.index_copy(0, rows, value)
        levels = levels.index_copy(0, rows, log_det.expand(len(rows), -1))
    return found, levels


def draw_noise(
    root: Tensor, dof: Tensor | None, states: Tensor, num: int, generator: torch.Generator | None
) -> Tensor:  # "c f f", "z", "n" -> "n f"
    """Noise of the states' covariances, or of t distributions; `num` states in all."""
    own, size = root[states // (num // len(root))], None
    if dof is not None:
        half = dof[states] / 2
        size = (half / torch._standard_gamma(half, generator=generator)).sqrt().unsqueeze(1)
    noise = torch.randn(own.shape[:2], generator=generator, dtype=own.dtype, device=own.device)
    found = (own @ noise.unsqueeze(2)).squeeze(2)
    return found if size is None else found * size


class FullGaussian(NamedTuple):
    """Means, and Cholesky factors of the covariances, of the states that dropout keeps; of Student's t the degrees."""

    mean: Tensor  # "z f"
    root: Tensor  # "c f f"
    dof: Tensor | None = None  # "z"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        found = log_density(frames.flatten(0, 1), self.mean, self.root, self.dof)
        return found.reshape(*frames.shape[:2], -1).to(self.mean.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        return self.mean[states] + draw_noise(self.root, self.dof, states, len(self.mean), generator)


class LinearGaussianObservation(ObservationModule):
    """Weights "z f p" of the regressors, the last of which is 1, and Cholesky factors "c f f" of the covariances.

    covariance = root root^T + min_variance I. `diagonal`: root has no entries below its diagonal.
    """

    measured = True
    priors: ClassVar[tuple[str, ...]] = ("variance",)
    capturable = False  # which features are missing decides the shapes
    weight: nn.Parameter  # "z f p"
    log_diagonal: nn.Parameter  # "c f"
    lower: Tensor | None  # "c f f", read below the diagonal; None: the covariance is diagonal

    def __init__(
        self, weight: Tensor, num_covariances: int, *, diagonal: bool = False, min_variance: float = 0.0
    ) -> None:
        super().__init__()
        size = weight.shape[1]
        self.weight, self.min_variance = nn.Parameter(weight), min_variance
        start = 0.5 * math.log(1.0 - min_variance) if min_variance < 1 else 0.0
        self.log_diagonal = nn.Parameter(torch.full((num_covariances, size), start, dtype=weight.dtype))
        self.lower = None if diagonal else nn.Parameter(weight.new_zeros(num_covariances, size, size))

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        return sizes.num_states * sizes.num_features

    def outputs(self, frames: Tensor) -> tuple[Tensor, Tensor]:  # "b t f" -> "b t o", "b t p"
        """The modelled features of each frame, and its regressors."""
        raise NotImplementedError

    def beside(self, regressors: Tensor) -> Tensor | None:  # "n p" -> "n z o"
        """What is added to the linear function in each state, if anything is."""
        return None

    @property
    def dof(self) -> Tensor | None:  # "z"
        """Degrees of freedom of the noise; None: it is Gaussian."""
        return None

    def weigh(
        self, y: Tensor, mean: Callable[[], Tensor], posterior: Tensor
    ) -> tuple[Tensor, Tensor]:  # "n o", "z f" or "z n f", "n z" -> "n z", "z k"
        """The weight of each frame in the sums of each state, and what else is counted."""
        return posterior, posterior.new_zeros(posterior.shape[1], 0)

    def maximise_tails(self, counts: Tensor) -> None:  # "z k"
        """Set what else there is of the noise."""

    @property
    def root(self) -> Tensor:  # "c f f"
        """A Cholesky factor of each covariance."""
        factor = torch.diag_embed(self.log_diagonal.exp())
        if self.lower is not None:
            factor = factor + self.lower.tril(-1)
        if not self.min_variance:
            return factor
        eye = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
        found: Tensor = torch.linalg.cholesky(factor @ factor.mT + self.min_variance * eye)
        return found

    @property
    def covariance(self) -> Tensor:  # "c f f"
        """The covariances."""
        root = self.root.double()
        return root @ root.mT

    def _kept_root(self, keep: Tensor | None) -> Tensor:
        root = self.root
        return root if len(root) < len(self.weight) else take_rows(root, keep)

    def _kept_dof(self, keep: Tensor | None) -> Tensor | None:
        dof = self.dof
        return None if dof is None else take_rows(dof, keep)

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n (2o + 2p)"
        return self.sequence_statistics(frames.unsqueeze(1), prior)

    def sequence_statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "b t f" -> "(t b) (2o + 2p)"
        """The modelled features, NaN where missing, and the regressors, around the centre of all; and that centre."""
        y, r = (x.transpose(0, 1).flatten(0, 1).double() for x in self.outputs(frames))
        own, theirs = self.centres(prior)
        return torch.cat([y - own, r - theirs, torch.cat([own, theirs]).expand(len(y), -1)], 1)

    def centres(self, prior: Prior) -> tuple[Tensor, Tensor]:  # "o", "p", 0 for the last regressor
        """The centre of the modelled features, and of the regressors."""
        size, num = self.weight.shape[1:]
        zeros = torch.zeros(num, dtype=torch.float64, device=self.weight.device)
        return torch.as_tensor(prior.centre).to(zeros).expand(size), zeros

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n (2o + 2p)", "n z" -> "z s"
        """Sums of r r^T, y r^T and y y^T; of missing features their expectations given the others and the state."""
        num_states, size, num = self.weight.shape
        y, r, own, theirs = statistics.split([size, num, size, num], 1)
        weight = _shifted(self.weight.detach().double(), own[0], theirs[0], 1.0)
        weights, covariance, each = posterior.double(), self.covariance.detach(), num_states // len(self.log_diagonal)
        found: Tensor = y.new_zeros(num_states, num * num + size * num + size * size)
        added = self.beside(r + theirs)
        sizes, more = self.weigh(y, lambda: means_at(r, weight, added), weights)
        for rows, features in patterns(~y.isnan()):
            here, beside = y[rows], r[rows]
            part = marginal_root(self.root.detach().double(), features)
            for z in range(num_states):
                own_y = here if added is None else here - added[rows, z]
                filled, extra = own_y, y.new_zeros(size, size)
                if len(features) < size:
                    mean = beside @ weight[z].mT
                    filled, left = conditional(own_y, mean, covariance[z // each], part[z // each], features)
                    extra = left * weights[rows, z].sum()
                joint = torch.cat([beside, filled], 1)
                products = joint.mT @ (joint * sizes[rows, z : z + 1])
                rr, yr, yy = products[:num, :num], products[num:, :num], products[num:, num:] + extra
                found[z] += torch.cat([rr.flatten(), yr.flatten(), yy.flatten()])
        return torch.cat([found, more], 1)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z s"
        """Weighted least squares, then the covariance of what is left, with the prior's frames and above the floor.

        The regressors of a state may be collinear: of all its best weights the smallest are taken.
        """
        size, num = self.weight.shape[1:]
        ends = [num * num, num * num + size * num, num * num + size * num + size * size]
        rr, yr, yy, more = counts.tensor_split(ends, 1)
        number = more[:, 0] if more.shape[1] else rr[:, -1]  # of frames; sums may be weighted
        rr, yr, yy = rr.unflatten(1, (num, num)), yr.unflatten(1, (size, num)), yy.unflatten(1, (size, size))
        own, theirs = self.centres(prior)
        rr, yr, yy = self._with_mean_prior(rr, yr, yy, own, prior)
        before = _shifted(self.weight.double(), own, theirs, 1.0)
        weight = self._best_weight(rr, yr, before, prior)
        cross = weight @ yr.mT
        scatter = yy - cross - cross.mT + weight @ rr @ weight.mT
        self.set_covariance((scatter + scatter.mT) / 2, number, weight, prior)
        self.set_weight(_shifted(weight, own, theirs, -1.0))
        if "dof" not in prior.fixed:
            self.maximise_tails(more)

    def set_weight(self, weight: Tensor) -> None:  # "z o p"
        """Set the weights."""
        self.weight.copy_(weight)

    def _best_weight(self, rr: Tensor, yr: Tensor, before: Tensor, prior: Prior) -> Tensor:  # "z o p"
        """The least squares, with the weights that are fixed, or of states without counts, where they were."""
        if "mean" in prior.fixed or {"coefficient", "intercept"} <= prior.fixed:
            return before
        if "intercept" in prior.fixed:
            raise UnsupportedError('the intercept alone cannot be fixed.\n  Fix "coefficient", too, or neither.')
        if "coefficient" in prior.fixed:
            number = torch.where(rr[:, -1, -1] > 0, rr[:, -1, -1], 1.0)[:, None]
            left = yr[:, :, -1] - (before[:, :, :-1] @ rr[:, :-1, -1:]).squeeze(2)
            found = torch.cat([before[:, :, :-1], (left / number).unsqueeze(2)], 2)
        else:
            found = yr @ torch.linalg.pinv(rr, hermitian=True)
        return torch.where((rr[:, -1, -1] > 0)[:, None, None], found, before)

    def _with_mean_prior(
        self, rr: Tensor, yr: Tensor, yy: Tensor, own: Tensor, prior: Prior
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sums with the frames of the prior of the mean, which lie at its centre; of means alone."""
        if not prior.mean_frames or rr.shape[1] > 1:
            return rr, yr, yy
        n, at = prior.mean_frames, (torch.as_tensor(prior.mean).to(yr) - own).expand(*yr.shape[:2])
        return rr + n, yr + n * at.unsqueeze(2), yy + n * at.unsqueeze(2) * at.unsqueeze(1)

    def set_covariance(self, scatter: Tensor, number: Tensor, weight: Tensor, prior: Prior) -> None:
        """Set covariances to their maximum, from the scatter "z o o" of the frames around their means."""
        if prior.fixed & {"covariance", "variance", "scale"}:
            return
        size, each = scatter.shape[1], len(scatter) // len(self.log_diagonal)
        scatter, number = scatter.unflatten(0, (-1, each)).sum(1), number.unflatten(0, (-1, each)).sum(1)
        spread = torch.as_tensor(prior.spread).to(scatter).expand(size)
        total = number + prior.variance_frames
        found = scatter + prior.variance_frames * torch.diag_embed(spread)
        found = found / torch.where(total > 0, total, 1.0)[:, None, None]
        if self.lower is None:
            found = torch.diag_embed(found.diagonal(dim1=1, dim2=2))
        found = raise_to_floor(found, prior.min_variance)
        found = torch.where((number > 0)[:, None, None], found, self.covariance)
        # A covariance is a difference of sums: below their rounding error it is taken for 0.
        level = (weight[:, :, -1].square() + spread).amax(0)
        scaled = found / (level.sqrt()[:, None] * level.sqrt())
        least = torch.linalg.eigvalsh(scaled)[:, 0]
        if bool((least <= 4 * size * torch.finfo(found.dtype).eps).any()):
            which = int(least.argmin())
            whose = f"state {which}" if len(found) > 1 else "all states"
            raise CollapseError(
                f"the covariance of {whose} became singular: the likelihood has no maximum.\n"
                "  Give covariances a floor (min_variance above 0), a prior (variance_prior above 0), fewer states, "
                'or covariance_type="diag".'
            )
        self.fill_covariance(found)

    def fill_covariance(self, covariance: Tensor) -> None:  # "c o o"
        """Set the covariances; none below twice the parameter's own floor, where no gradient leads away."""
        if not bool(torch.isfinite(covariance).all()):
            raise DomainError("a covariance has an entry that is not finite.")
        covariance = covariance.double()
        if self.lower is None and bool((covariance.tril(-1) != 0).any()):
            raise DomainError(
                'a covariance has numbers off its diagonal, but here it is diagonal.\n  Set covariance_type="full".'
            )
        if self.min_variance:
            covariance = raise_to_floor(covariance, 2 * self.min_variance)
            eye = torch.eye(covariance.shape[1], dtype=covariance.dtype, device=covariance.device)
            covariance = covariance - self.min_variance * eye
        root, failed = torch.linalg.cholesky_ex(covariance)
        if bool((failed > 0).any()):
            raise DomainError(
                f"covariance {int((failed > 0).nonzero()[0])} is not positive definite.\n"
                "  A feature that is a sum of others has no density: leave it out, or give covariances a floor."
            )
        with torch.no_grad():
            self.log_diagonal.copy_(root.diagonal(dim1=1, dim2=2).log())
            if self.lower is not None:
                self.lower.copy_(root.tril(-1))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        """-n/2 (log det C + tr C^-1 S), n = variance_frames, S = diag(spread): an inverse Wishart distribution.

        And of means -k/2 (m - mean)^T C^-1 (m - mean), k = mean_frames.
        """
        total = super().log_prior(prior)
        root = self.root.double()
        spread = torch.as_tensor(prior.spread).to(root).expand(root.shape[1])
        if prior.variance_frames:
            log_det = 2 * root.diagonal(dim1=1, dim2=2).log().sum()
            whitened = torch.linalg.solve_triangular(root, torch.diag(spread.sqrt()).expand_as(root), upper=False)
            total = total - prior.variance_frames / 2 * (log_det + whitened.square().sum())
        if prior.mean_frames and self.weight.shape[2] == 1:
            away = self.weight.double() - torch.as_tensor(prior.mean).to(root).expand(*self.weight.shape[:2])[..., None]
            own = root.repeat_interleave(len(self.weight) // len(root), 0)
            total = total - prior.mean_frames / 2 * torch.linalg.solve_triangular(own, away, upper=False).square().sum()
        return total

    @torch.no_grad()
    def rounding(self, prior: Prior) -> float:
        """The rounding of the squares whose difference is a density, and of the means to the parameters' dtype."""
        root = self.root.double()
        eye = torch.eye(root.shape[1], dtype=root.dtype, device=root.device).expand_as(root)
        precision = torch.linalg.solve_triangular(root, eye, upper=False).square().sum(1)  # "c f", diag of C^-1
        precision = precision.repeat_interleave(len(self.weight) // len(root), 0)
        mean, (own, _) = self.weight[:, :, -1].double(), self.centres(prior)
        squares = (((mean - own).square() + prior.spread) * precision).sum(1).amax()
        moved = ((mean * torch.finfo(self.weight.dtype).eps).square() * precision).sum(1).amax()
        return float(root.shape[1] * torch.finfo(torch.float64).eps * squares + moved)

    @torch.no_grad()
    def keep_within(self, prior: Prior) -> None:
        if bool((torch.as_tensor(prior.min_variance) > 0).any()):
            self.fill_covariance(raise_to_floor(self.covariance, prior.min_variance))

    @property
    def num_free(self) -> int:
        size = self.log_diagonal.shape[1]
        each = size if self.lower is None else size * (size + 1) // 2
        return self.weight.numel() + len(self.log_diagonal) * each


class FullGaussianObservation(LinearGaussianObservation):
    """A mean for each state, and covariance matrices: for each state, for several, or one `shared` by all, "f f"."""

    priors = ("mean", "variance")

    def __init__(
        self, mean: Tensor, num_covariances: int, *, min_variance: float = 0.0, shared: bool = False
    ) -> None:  # "z f"
        super().__init__(mean.unsqueeze(2), num_covariances, min_variance=min_variance)
        self.shared = shared

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Covariances of one, and means drawn from the standard normal; with `init` "papers" all means are 0."""
        shared = sizes.covariance == "tied"
        num = 1 if shared else sizes.num_states // sizes.covariance_states
        return cls(draw_table(sizes, generator), num, min_variance=sizes.min_variance, shared=shared)

    @property
    def mean(self) -> Tensor:  # "z f"
        """The means."""
        return self.weight.squeeze(2)

    def outputs(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        return frames, torch.ones_like(frames[..., :1])

    def forward(self, keep: Tensor | None = None) -> FullGaussian:
        return FullGaussian(take_rows(self.mean, keep), self._kept_root(keep), self._kept_dof(keep))

    def kept(self, keep: Tensor | None, groups: Tensor) -> FullGaussian:  # "k", "g"
        """The distributions of some states; `groups`: those of the covariances, where several states share one."""
        root = self.root
        return FullGaussian(
            take_rows(self.mean, keep), take_rows(root, keep if len(root) == len(self.mean) else groups)
        )

    def move_to(self, frames: Any) -> None:  # "n f"
        """Drawn means are taken as standard scores of all frames; covariances are the variances of all frames."""
        centre, variance = (torch.from_numpy(x).to(self.weight.device) for x in (frames.mean(0), frames.var(0)))
        with torch.no_grad():
            self.weight.copy_((centre + self.mean.detach().double() * variance.sqrt()).unsqueeze(2))
            self.fill_covariance(torch.diag(variance).expand(len(self.log_diagonal), -1, -1))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The means of the frames; covariances as if each state had seen one more frame, of the variances of all."""
        num_states, size = means.shape
        number = torch.bincount(states, minlength=num_states).to(frames.dtype)
        mean, each = means_of(frames, states, means), num_states // len(self.log_diagonal)
        spread = torch.diag(torch.as_tensor(prior.spread).to(frames).expand(size))
        scatter = spread.expand(num_states, -1, -1).clone()
        for z in range(num_states if near else 0):
            away = frames[states == z] - mean[z]
            scatter[z] += away.mT @ away
        number = number + 1 if near else torch.ones_like(number)
        shared = (x.unflatten(0, (-1, each)).sum(1) for x in (scatter, number))
        total, frames_seen = shared
        with torch.no_grad():
            self.weight.copy_(mean.unsqueeze(2))
            self.fill_covariance(raise_to_floor(total / frames_seen[:, None, None], prior.min_variance))

    def tables(self) -> dict[str, Table]:
        covariance = self.covariance.detach()
        return {
            "mean": Table(self.mean.detach().double()),
            "covariance": Table(covariance[0] if self.shared else covariance, positive="definite"),
        }

    def fill(self, *, mean: Tensor | None = None, covariance: Tensor | None = None) -> None:  # type: ignore[override]
        """Set the means "z f" and covariances "z f f", or "f f" where all states share one."""
        with torch.no_grad():
            if mean is not None:
                self.weight.copy_(mean.expand(*self.mean.shape).unsqueeze(2))
            if covariance is not None:
                size = self.weight.shape[1]
                self.fill_covariance(covariance.expand(len(self.log_diagonal), size, size))


def raise_to_floor(covariance: Tensor, floor: Tensor | float) -> Tensor:  # "c f f", "f" -> "c f f"
    """The maximum of the likelihood among covariances C with C - diag(floor) positive semi-definite.

    In units in which the floor is the identity: eigenvalues below 1 are raised to 1.
    """
    low = torch.as_tensor(floor).to(covariance).expand(covariance.shape[1])
    if not bool((low > 0).all()):
        return covariance
    unit = low.sqrt()
    scale = unit[:, None] * unit
    values, vectors = torch.linalg.eigh(covariance / scale)
    if bool((values >= 1).all()):
        return covariance
    raised = (vectors * torch.maximum(values, torch.ones_like(values)).unsqueeze(1)) @ vectors.mT
    return torch.where((values >= 1).all(1)[:, None, None], covariance, raised * scale)


def conditional(
    y: Tensor, mean: Tensor, covariance: Tensor, part: Tensor, features: Tensor
) -> tuple[Tensor, Tensor]:  # "n o", "n o", "o o", "s s", "s" -> "n o", "o o"
    """Frames with the expectation of what is missing given the `features`, and the covariance that is left."""
    gain = torch.cholesky_solve(covariance.index_select(0, features), part).mT  # "o s"
    filled = mean + (y - mean).index_select(1, features) @ gain.mT
    filled = filled.index_copy(1, features, y.index_select(1, features))
    left = covariance - gain @ covariance.index_select(0, features)
    return filled, left.index_fill(0, features, 0.0).index_fill(1, features, 0.0)


def means_at(
    r: Tensor, weight: Tensor, added: Tensor | None = None
) -> Tensor:  # "n p", "z o p", "n z o" -> "z o" or "z n o"
    """The linear functions of the regressors, and what is added; without either the means."""
    if weight.shape[2] == 1 and added is None:
        return weight.squeeze(2)
    found = torch.einsum("np,zop->zno", r, weight)
    return found if added is None else found + added.transpose(0, 1)


def _shifted(weight: Tensor, own: Tensor, theirs: Tensor, sign: float) -> Tensor:  # "z o p", "o", "p" -> "z o p"
    """The weights for features and regressors that are taken around their centres (sign 1), or back (-1)."""
    constant = weight[:, :, -1] + sign * (weight @ theirs - own)
    return torch.cat([weight[:, :, :-1], constant.unsqueeze(2)], 2)
