"""Start and transitions that depend on the inputs of each frame (a GLM-HMM): softmax regressions, or networks.

    A_t[z, y] = softmax_y(bias[z, y] + f(u_t)[z, y])        start[z] = softmax_z(bias[z] + g(u_1)[z])

A transition reads the inputs of the frame that it leads to. Biases are free tables, whose priors are those of the
distributions at inputs of zero. The maximum of a regression needs the expected uses at every frame: EM keeps them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.data.batch import Batch
from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.numerics.log_space import log_sum
from rankfold.operators import Dense, Operator, RowScaled
from rankfold.params.dynamics.ending import Ends
from rankfold.params.dynamics.free_tables import Dynamics, FreeDense
from rankfold.params.networks import normal
from rankfold.params.prior import Prior, Table, weighted_logs
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials

NEWTON = 256  # numbers of a row of a regression up to which a step solves for all of them; beyond, L-BFGS
ENTRIES = 2**22  # of a block of the second derivatives' factors: 32 MiB
STEPS = 100  # of Newton: it doubles its digits near the maximum, and stops there
HALVINGS = 40
CLIMBS = 20  # steps of L-BFGS in one step of EM


@dataclass(frozen=True, eq=False)
class Uses:
    """Inputs, and the expected uses of a distribution at each of them; the sum of two has the rows of both."""

    inputs: Tensor  # "n k"
    counts: Tensor  # "n y" or "n z y"   float64

    def __add__(self, other: Uses) -> Uses:
        return Uses(torch.cat([self.inputs, other.inputs]), torch.cat([self.counts, other.counts]))

    def __mul__(self, by: float) -> Uses:
        return Uses(self.inputs, self.counts * by)

    def numel(self) -> int:
        return self.counts.numel()


class LinearLogits(nn.Module):
    """weight . u: the logits of a softmax regression, besides its bias."""

    def __init__(self, weight: Tensor) -> None:  # "z k" or "z y k"
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, inputs: Tensor) -> Tensor:  # "n k" -> "n z" or "n z y"
        return torch.einsum("nk,...k->n...", inputs, self.weight)


class LowRankLogits(nn.Module):
    """The same with weights of rank r: weight[z, y, k] = sum_r left[z, r] right[y, r] inputs[k, r]."""

    def __init__(self, left: Tensor, right: Tensor, inputs: Tensor) -> None:  # "z r", "y r", "k r"
        super().__init__()
        self.left, self.right, self.inputs = nn.Parameter(left), nn.Parameter(right), nn.Parameter(inputs)

    @property
    def weight(self) -> Tensor:  # "z y k"
        """The weights, written out."""
        return torch.einsum("zr,yr,kr->zyk", self.left, self.right, self.inputs)

    def forward(self, inputs: Tensor) -> Tensor:  # "n k" -> "n z y"
        return torch.einsum("nr,zr,yr->nzy", inputs @ self.inputs, self.left, self.right)


class InputDriven(nn.Module):
    """Free tables whose logits are moved by inputs: of transitions, of the start, or of both (None: not moved)."""

    def __init__(
        self, tables: FreeDense, num_inputs: int, *, transition: nn.Module | None, start: nn.Module | None
    ) -> None:
        super().__init__()
        self.bias, self.num_inputs, self.transition, self.start = tables, num_inputs, transition, start

    @classmethod
    def draw(
        cls, tables: FreeDense, num_inputs: int, driven: Sequence[str], rank: int, generator: torch.Generator
    ) -> InputDriven:
        """Weights of zero; of a low rank (0: full) small random factors, which zeros would hold where they are."""
        z = len(tables.log_initial)
        transition: nn.Module | None = None
        if "transition" in driven and rank:
            transition = LowRankLogits(
                *(normal(size, rank, spread=0.1, generator=generator).data for size in (z, z, num_inputs))
            )
        elif "transition" in driven:
            transition = LinearLogits(torch.zeros(z, z, num_inputs, dtype=torch.float32))
        start = LinearLogits(torch.zeros(z, num_inputs, dtype=torch.float32)) if "start" in driven else None
        return cls(tables, num_inputs, transition=transition, start=start)

    @property
    def has_network(self) -> bool:
        """Whether a part is a module of the user's own, which a configuration cannot describe."""
        return any(not isinstance(x, LinearLogits | LowRankLogits | None) for x in (self.transition, self.start))

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        """Start and transitions at inputs of zero."""
        if keep is not None or stays is not None:
            raise UnsupportedError("state_dropout and transitions that inputs drive do not go together.")
        return Dynamics(self.log_start(self._nothing())[0], Dense.from_log(self.log_transition(self._nothing())[0]))

    def _nothing(self) -> Tensor:  # "1 k"
        return self.bias.log_initial.new_zeros(1, self.num_inputs)

    def log_start(self, inputs: Tensor) -> Tensor:  # "n k" -> "n z"
        """The log-distribution of the first state."""
        return _moved(self.bias.log_initial, self.start, inputs, "start").log_softmax(-1)

    def log_transition(self, inputs: Tensor) -> Tensor:  # "n k" -> "n z y"
        """The log-distribution of the next state after each state."""
        return _moved(self.bias.logits(), self.transition, inputs, "transition").log_softmax(-1)

    def potentials(
        self, log_obs: Tensor, batch: Batch, carried: Tensor | None, ends: Ends | None
    ) -> ChainPotentials | BlockPotentials:
        """The chain of these sequences; its transitions are written out for each frame, "b t z z", if inputs move them.

        `carried` "b z" is the distribution of the state before the first frame.
        """
        inputs = self._of(batch).to(log_obs)
        if self.transition is None:
            log_initial = self.log_start(inputs[:, 0]) if carried is None else carried
            transition: Operator = self.forward().transition
            if ends is not None:
                transition = RowScaled.from_log(transition, ends.log_go)
            log_final = ends.log_end if ends is not None and batch.last else None
            return ChainPotentials(log_initial, transition, log_obs, log_final, batch.lengths)
        each = self.log_transition(inputs.flatten(0, 1)).reshape(*log_obs.shape, -1)
        if ends is not None:
            each = each + ends.log_go[:, None]
            at_end = torch.arange(log_obs.shape[1], device=log_obs.device) == batch.lengths[:, None] - 1
            log_obs = log_obs + torch.where(at_end.unsqueeze(-1) & batch.last, ends.log_end, 0.0)
        if carried is None:
            log_initial = self.log_start(inputs[:, 0])
        else:
            log_initial = log_sum((carried.unsqueeze(-1) + each[:, 0]).mT)
        block = torch.zeros_like(log_obs[..., 0], dtype=torch.int64)
        return BlockPotentials(log_initial, each[:, 1:], log_obs, block, batch.lengths)

    def _of(self, batch: Batch) -> Tensor:  # "b t k"
        if batch.inputs is None:
            raise DomainError(
                "the frames came without inputs, but inputs drive this model.\n"
                "  Give them: inputs=..., one row for each frame."
            )
        if batch.inputs.shape != (*batch.shape, self.num_inputs):
            raise ShapeError(
                f"inputs have shape {tuple(batch.inputs.shape)}, but {(*batch.shape, self.num_inputs)} was expected."
            )
        return batch.inputs

    def count_sequences(self, counts: Any, batch: Batch) -> tuple[Any, ...]:
        """The expected uses of start and transitions, with the inputs of their frames where they depend on them."""
        inputs, first = self._of(batch).double(), counts.state[:, 0].double()
        start: Any = first.sum(0) if self.start is None else Uses(inputs[:, 0], first)
        if self.transition is None:
            return start, counts.transition[-1].double()
        inside = torch.arange(1, batch.shape[1], device=inputs.device) < batch.lengths[:, None]
        return start, Uses(inputs[:, 1:][inside], counts.transition[inside].double())

    def maximise(self, counts: tuple[Any, ...], prior: Prior) -> None:
        """Regressions to their maximum, by Newton's method; low ranks and networks by steps that never lose."""
        start, moves = counts
        held = prior._replace(
            fixed=prior.fixed
            | ({"initial"} if self.start is not None else set())
            | ({"transition"} if self.transition is not None else set())
        )
        nothing = torch.zeros_like(self.bias.log_transition, dtype=torch.float64)
        self.bias.maximise(
            (nothing[0] if self.start is not None else start, nothing if self.transition is not None else moves), held
        )
        by_start, by_move = self.bias.pseudo_counts(prior)
        if self.start is not None:
            rows = Uses(start.inputs, start.counts.unsqueeze(1))
            self._climb(self.bias.log_initial, self.start, rows, by_start[None], prior, "initial")
        if self.transition is not None:
            self._climb(self.bias.log_transition, self.transition, moves, by_move, prior, "transition")

    def _climb(
        self, bias: nn.Parameter, module: nn.Module, uses: Uses, pseudo: Tensor, prior: Prior, name: str
    ) -> None:
        """Raise the expected log-likelihood plus log-prior of one regression."""
        free = name not in prior.fixed, f"{name}_weight" not in prior.fixed
        square = self.bias.logits() if bias.ndim == 2 else bias[None]  # "z y"
        size = square.shape[1] * (self.num_inputs + 1)
        if isinstance(module, LinearLogits) and size <= NEWTON:
            weight = module.weight.reshape(*square.shape, -1)
            found = newton(square, weight, uses, pseudo, prior.weight_precision, free)
            with torch.no_grad():
                bias.copy_(torch.where(square > float("-inf"), found[..., 0], square).reshape(bias.shape))
                module.weight.copy_(found[..., 1:].reshape(module.weight.shape))
            return
        own = [*([bias] if free[0] else []), *(module.parameters() if free[1] else [])]
        if not own:
            return
        where = torch.cat([uses.inputs, torch.zeros_like(uses.inputs[:1])])
        counts = torch.cat([uses.counts, pseudo[None]])

        def objective() -> Tensor:
            table = self.bias.logits() if bias.ndim == 2 else bias
            log_p = _moved(table, module, where.to(bias), name).log_softmax(-1).reshape(counts.shape)
            return weighted_logs(counts, log_p.double()) - _penalty(module, prior)

        climb(own, objective)

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """Pseudo-counts of starts and transitions at inputs of zero, and a normal prior of the weights."""
        by_start, by_move = self.bias.pseudo_counts(prior)
        nothing = self._nothing()
        found = weighted_logs(by_start, self.log_start(nothing)[0].double())
        found = found + weighted_logs(by_move, self.log_transition(nothing)[0].double())
        for module in (self.start, self.transition):
            if module is not None:
                found = found - _penalty(module, prior)
        return found

    def initialise(self, runs: Sequence[Tensor], prior: Prior, rng: np.random.Generator) -> None:  # "t" each
        """The tables as without inputs; weights stay as they were drawn."""
        self.bias.initialise(runs, prior, rng)

    def _moves(self) -> dict[str, Tensor]:
        """The logits that are added to each table at inputs of zero: 0 of regressions."""
        z = len(self.bias.log_initial)
        found = {"initial": self.bias.log_initial.new_zeros(z), "transition": self.bias.log_initial.new_zeros(z, z)}
        for name, module in (("initial", self.start), ("transition", self.transition)):
            if module is not None:
                found[name] = module(self._nothing()).detach().reshape(found[name].shape)
        return found

    def _weights(self) -> dict[str, nn.Parameter]:
        """The weights of regressions by the names of their tables."""
        pairs = (("initial_weight", self.start), ("transition_weight", self.transition))
        return {name: module.weight for name, module in pairs if isinstance(module, LinearLogits)}

    def tables(self) -> dict[str, Table]:
        """Start and transitions at inputs of zero, and the weights of regressions."""
        at_zero = self.forward()
        initial, transition = at_zero.log_initial.detach().double().exp(), at_zero.transition.to_dense().detach()
        found = {"initial": Table(initial, 0), "transition": Table(transition.double(), 1)}
        return found | {name: Table(x.detach().double()) for name, x in self._weights().items()}

    def fill(self, **tables: Tensor) -> None:
        """Set start and transitions at inputs of zero, or the weights of regressions."""
        with torch.no_grad():
            weights, moves = self._weights(), self._moves()
            for name, table in tables.items():
                if name in weights:
                    weights[name].copy_(table)
                else:
                    self.bias.fill(**{name: (table.log() - moves[name].to(table)).exp()})

    def num_free(self, forbidden: Tensor | None = None) -> int:
        """The number of free parameters: of regressions those of all targets but one, times the inputs."""
        starts = len(self.bias.log_initial) - 1
        found = self.bias.num_free(forbidden)
        for module, targets in ((self.start, starts), (self.transition, found - starts)):
            if isinstance(module, LinearLogits):
                found += targets * self.num_inputs
            elif module is not None:
                found += sum(x.numel() for x in module.parameters())
        return found


def _moved(bias: Tensor, module: nn.Module | None, inputs: Tensor, name: str) -> Tensor:  # "...", "n k" -> "n ..."
    """The logits at each of the inputs."""
    if module is None:
        return bias.expand(len(inputs), *bias.shape)
    moves = module(inputs)
    if not isinstance(moves, Tensor) or moves.shape[:1] != inputs.shape[:1] or moves[0].numel() != bias.numel():
        came = tuple(moves.shape) if isinstance(moves, Tensor) else type(moves).__name__
        raise ShapeError(
            f"the network of the {name} gave {came} for inputs of shape {tuple(inputs.shape)}, but logits of shape "
            f"{(len(inputs), *bias.shape)} were expected."
        )
    return bias + moves.reshape(len(inputs), *bias.shape)


def _penalty(module: nn.Module, prior: Prior) -> Tensor | float:  # ""
    if not prior.weight_precision:
        return 0.0
    return prior.weight_precision / 2 * torch.stack([x.double().square().sum() for x in module.parameters()]).sum()


@torch.no_grad()
def newton(
    bias: Tensor, weight: Tensor, uses: Uses, pseudo: Tensor, precision: float, free: tuple[bool, bool]
) -> Tensor:  # "z y", "z y k" -> "z y k+1"   float64
    """Bias and weights of each row at the maximum of its expected log-likelihood, which is concave.

        sum_n counts[n, z, y] log softmax_y(bias[z] + weight[z] u_n) + pseudo[z, y] log softmax_y(bias[z])
            - precision / 2 |weight[z]|^2

    Newton's steps, each row's halved until it gains; where nothing is told apart the shortest step. `free`: whether
    bias and weights may change. Targets of bias -inf stay impossible. Cost of a step: n z (y k)^2 multiply-adds.
    """
    possible = bias > float("-inf")  # "z y"
    found = torch.cat([torch.where(possible, bias, 0.0).unsqueeze(-1), weight], -1).double()
    ones = torch.ones_like(uses.inputs[:, :1])
    x = torch.cat([torch.cat([ones, uses.inputs], 1), torch.eye(1, found.shape[-1]).to(ones)])  # "n p"
    counts = torch.cat([uses.counts, pseudo[None]])
    total = counts.sum(-1)  # "n z"
    ridge = torch.full_like(found[0, 0], precision)
    ridge[0] = 0.0
    fixed = torch.tensor([not free[0], *[not free[1]] * weight.shape[-1]], device=x.device)
    fixed = fixed | ~possible.unsqueeze(-1)  # "z y p"

    def log_shares(theta: Tensor) -> Tensor:  # "n z y"
        logits = torch.einsum("np,zyp->nzy", x, theta)
        return logits.masked_fill(~possible, float("-inf")).log_softmax(-1)

    def value(theta: Tensor) -> Tensor:  # "z"
        terms = counts * log_shares(theta).masked_fill(counts == 0, 0.0)
        return terms.sum((0, 2)) - (ridge * theta.square()).sum((1, 2)) / 2

    best, last = value(found), 0
    for _ in range(STEPS):
        p = log_shares(found).exp()
        slope = torch.einsum("nzy,np->zyp", counts - total.unsqueeze(-1) * p, x) - ridge * found
        slope = slope.masked_fill(fixed, 0.0)
        step = _solve(p, total, x, ridge, fixed, slope)
        gain = (slope * step).sum((1, 2))
        rounding = torch.finfo(best.dtype).eps * (1 + best.abs())
        # Values cannot tell gains below rounding; two more steps, whose digits double, settle the parameters.
        last += not bool((gain > rounding).any())
        if last > 2:
            break
        size = torch.ones_like(best)
        for _ in range(HALVINGS):
            moved = found + size[:, None, None] * step
            now = value(moved)
            short = ~(now >= best + size * gain / 4 - rounding)
            if not bool(short.any()):
                break
            size = torch.where(short, size / 2, size)
        found = torch.where(short[:, None, None], found, moved)
        best = torch.where(short, best, now)
    return found


def _solve(p: Tensor, total: Tensor, x: Tensor, ridge: Tensor, fixed: Tensor, slope: Tensor) -> Tensor:  # "z y p"
    """The step to the maximum of the second-order expansion; the shortest one where it has several."""
    z, y, k = slope.shape
    curve = x.new_zeros(z, y * k, y * k)
    for at in torch.split(torch.arange(len(x), device=x.device), max(1, ENTRIES // (z * y * k))):
        each = (p[at].unsqueeze(-1) * x[at, None, None]).flatten(2).transpose(0, 1)  # "z n (y p)"
        curve -= (each * total[at].mT.unsqueeze(-1)).mT @ each
        own = torch.einsum("nz,nzy,np,nq->zypq", total[at], p[at], x[at], x[at])
        curve.view(z, y, k, y, k).diagonal(dim1=1, dim2=3).add_(own.permute(0, 2, 3, 1))
    curve += torch.diag(ridge.repeat(y))
    held = fixed.flatten(1)
    curve = curve.masked_fill(held.unsqueeze(1) | held.unsqueeze(2), 0.0)
    step: Tensor = torch.linalg.pinv(curve, hermitian=True) @ slope.flatten(1).unsqueeze(-1)
    return step.reshape(slope.shape)


def climb(parameters: Sequence[Tensor], objective: Callable[[], Tensor]) -> None:
    """Steps of L-BFGS that raise an objective; where they would lower it, the parameters stay as they were."""
    before = [x.detach().clone() for x in parameters]
    optimiser = torch.optim.LBFGS(parameters, max_iter=CLIMBS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -objective()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        first = float(objective().detach())
        optimiser.step(closure)  # type: ignore[no-untyped-call]
        last = float(objective().detach())
    if not last >= first:
        with torch.no_grad():
            for x, y in zip(parameters, before, strict=True):
                x.copy_(y)
    optimiser.zero_grad()
