"""Symbols whose distribution depends on inputs: a softmax regression for each state, of two symbols a logistic one."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from rankfold.errors import DomainError, UnsupportedError, may_look
from rankfold.numerics.log_space import pick
from rankfold.params.dynamics.input_driven import Uses, climb
from rankfold.params.networks import normal, take_rows
from rankfold.params.observations.protocol import ObservationModule, Sizes
from rankfold.params.observations.regression import of_network, with_one
from rankfold.params.prior import Prior, Table, weighted_logs


class Logistic(NamedTuple):
    """p(c | z, u) = softmax_c(W (u, 1)); a frame is the symbol c and then the inputs u."""

    weight: Tensor  # "z c k+1"
    network: nn.Module | None = None  # "n k" -> "n z c"   logits that are added

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t (1 + k)" -> "b t z"
        symbol = frames[..., 0]
        if may_look(symbol) and bool((symbol >= self.weight.shape[1]).any()):
            raise DomainError(
                f"a symbol is {float(symbol[symbol >= self.weight.shape[1]][0]):g}, but this model knows 0 to "
                f"{self.weight.shape[1] - 1}.\n  n_symbols=... says how many there are."
            )
        here = ~symbol.isnan()
        index = torch.where(here, symbol, 0.0).long()[..., None, None].expand(*symbol.shape, len(self.weight), 1)
        found = self.log_shares(with_one(frames[..., 1:])).gather(-1, index).squeeze(-1)
        return torch.where(here.unsqueeze(-1), found, 0.0)

    def log_shares(self, regressors: Tensor) -> Tensor:  # "... k+1" -> "... z c"
        """The log-probability of every symbol in every state."""
        x = regressors.to(self.weight)
        logits = torch.einsum("...p,zcp->...zc", x, self.weight)
        if self.network is not None:
            logits = logits + of_network(self.network, x, self.weight)
        return logits.log_softmax(-1)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:
        raise DomainError("a sample of a regression needs its inputs.\n  Give them: sample(n, inputs=...).")

    def sample_sequence(
        self, states: Tensor, inputs: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:  # "t", "t k" -> "t (1 + k)"
        """Symbols of one sequence of states, given its inputs."""
        num = self.weight.shape[2] - 1
        if inputs is None:
            return self.sample(states, generator)
        if inputs.shape != (len(states), num) or not bool(inputs.isfinite().all()):
            raise DomainError(
                f"inputs have shape {tuple(inputs.shape)}, but {num} finite ones of each of {len(states)} frames were "
                "expected."
            )
        u = inputs.to(self.weight)
        log_p = self.log_shares(with_one(u[None])[0])[torch.arange(len(states), device=states.device), states]
        return torch.cat([pick(log_p, generator).to(u)[:, None], u], 1)


class LogisticObservation(ObservationModule):
    """Softmax regressions on the last columns of a frame, which have no distribution; the first is a symbol.

    A step of EM goes to the maximum of a lower bound of the expected log-likelihood, whose curvature is constant
    (Boehning 1992): it never loses, and its counts add up. `smoothing` counts as so many frames of each symbol at
    inputs of zero.
    """

    values = "a symbol 0, 1, 2, ... in the first column, and finite inputs"
    remedy = "Number the symbols from 0 on, mark a missing one as NaN."
    needs = "inputs"
    joins = False
    capturable = False

    def __init__(self, weight: Tensor) -> None:  # "z c k+1"
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.network: nn.Module | None = None

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        if sizes.num_features != 1 + sizes.num_covariates or sizes.num_covariates < 1:
            raise DomainError(
                f"num_covariates is {sizes.num_covariates} of {sizes.num_features} columns, but logistic observations "
                "have one symbol, and then at least one input.\n"
                "  Inputs come as inputs=..., or are the last n_inputs columns of X."
            )
        shape = (sizes.num_states, sizes.num_classes, sizes.num_covariates + 1)
        return cls(normal(*shape, spread=0.5, generator=generator).data)

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        symbol = frames[..., :1]
        return torch.cat([(symbol < 0) | (symbol != symbol.round()) & ~symbol.isnan(), frames[..., 1:].isinf()], -1)

    def forward(self, keep: Tensor | None = None) -> Logistic:
        if keep is not None and self.network is not None:
            raise UnsupportedError("state_dropout and a network of the observations do not go together.")
        return Logistic(take_rows(self.weight, keep), self.network)

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n (1 + k)" -> "n (1 + k+1)"
        """The symbol, -1 where it is missing, and the regressors."""
        symbol = torch.where(frames[:, :1].isnan(), -1.0, frames[:, :1])
        return torch.cat([symbol, with_one(frames[None, :, 1:])[0]], 1).double()

    def count(self, statistics: Tensor, posterior: Tensor) -> Any:  # "n s", "n z" -> "z (c p + p p)"
        """Slopes at the present weights, and sums of products of regressors; of a network the uses at every frame."""
        symbol, x = statistics[:, 0].long(), statistics[:, 1:]
        share = torch.where((symbol >= 0)[:, None], posterior.double(), 0.0)
        if self.network is not None:
            seen = one_hot(torch.where(symbol < 0, 0, symbol), self.weight.shape[1]).double()
            return Uses(x, share.unsqueeze(-1) * seen[:, None])
        with torch.no_grad():
            gap = self._gap(symbol, x)
        slope = torch.einsum("nz,nzc,np->zcp", share, gap, x)
        return torch.cat([slope.flatten(1), torch.einsum("nz,np,nq->zpq", share, x, x).flatten(1)], 1)

    def _gap(self, symbol: Tensor, x: Tensor) -> Tensor:  # "n", "n p" -> "n z c"
        log_p = torch.einsum("np,zcp->nzc", x, self.weight.double()).log_softmax(-1)
        seen = one_hot(torch.where(symbol < 0, 0, symbol), self.weight.shape[1]).double()
        return seen[:, None] - log_p.exp()

    def maximise(self, counts: Any, prior: Prior) -> None:  # "z (c p + p p)"
        """The maximum of the bound: the slope over half the products of regressors, and the prior's.

        Of a network steps that never lose.
        """
        if self.network is None:
            self._to_the_bound(counts, prior)
            return

        def objective() -> Tensor:
            return weighted_logs(counts.counts, self.forward().log_shares(counts.inputs).double()) + self.log_prior(
                prior
            )

        if prior.fixed & {"coefficient", "intercept"}:
            raise UnsupportedError("fixed coefficients and a network of the observations do not go together.")
        climb(list(self.parameters()), objective)

    @torch.no_grad()
    def _to_the_bound(self, counts: Tensor, prior: Prior) -> None:  # "z (c p + p p)"
        z, c, p = self.weight.shape
        slope, products = counts[:, : c * p].reshape(z, c, p), counts[:, c * p :].reshape(z, p, p)
        at_zero = torch.zeros(c, p, dtype=torch.float64, device=counts.device)
        at_zero[:, -1] = 1.0
        pseudo = self._gap(torch.arange(c, device=counts.device), at_zero).sum(0)  # "z c", of one frame of each symbol
        ridge = torch.full((p,), prior.weight_precision, dtype=torch.float64, device=counts.device)
        ridge[-1] = 0.0
        slope = slope - ridge * self.weight.double()
        slope[..., -1] += prior.smoothing * pseudo
        curve = products / 2 + torch.diag(ridge)
        curve[:, -1, -1] += prior.smoothing * c / 2
        held = torch.full((p,), "coefficient" in prior.fixed, device=counts.device)
        held[-1] = "intercept" in prior.fixed
        curve = curve.masked_fill(held[:, None] | held, 0.0)
        self.weight.add_(slope.masked_fill(held, 0.0) @ torch.linalg.pinv(curve, hermitian=True))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        weight = self.weight.double()
        weights = [weight[..., :-1], *([] if self.network is None else self.network.parameters())]
        found = -prior.weight_precision / 2 * torch.stack([x.double().square().sum() for x in weights]).sum()
        if not prior.smoothing:
            return found
        at_zero = torch.zeros_like(weight[0, :1])
        at_zero[:, -1] = 1.0
        return found + prior.smoothing * self.forward().log_shares(at_zero).double().sum()

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Shares of symbols in each state's frames, and of one more of each; random coefficients tell states apart."""
        z, c, p = self.weight.shape
        pair = states * c + frames[:, 0].round().long()
        counts = torch.bincount(pair[states >= 0], minlength=z * c).reshape(z, c).double() + 1
        coefficient = torch.from_numpy(rng.standard_normal((z, c, p - 1))).to(counts)
        self.fill(coefficient=coefficient, intercept=(counts / counts.sum(1, keepdim=True)).log())

    def tables(self) -> dict[str, Table]:
        weight = self.weight.detach().double()
        return {"coefficient": Table(weight[..., :-1]), "intercept": Table(weight[..., -1])}

    def fill(self, *, coefficient: Tensor | None = None, intercept: Tensor | None = None) -> None:  # type: ignore[override]
        """Set the coefficients "z c k" and intercepts "z c"."""
        with torch.no_grad():
            if coefficient is not None:
                self.weight[..., :-1].copy_(coefficient)
            if intercept is not None:
                self.weight[..., -1].copy_(intercept)

    @property
    def num_free(self) -> int:
        z, c, p = self.weight.shape
        return z * (c - 1) * p + sum(x.numel() for x in self.parameters()) - self.weight.numel()
