"""Chains that run side by side, each with its own start and transitions: the dynamics of a factorial HMM.

The state is the tuple of the chains' states, numbered with the last chain fastest. The transition is a Kronecker
product, so a step costs z (z_1 + z_2 + ...) instead of z^2, and the chains are counted one by one: EM is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.operators import Dense, Kronecker, Operator
from rankfold.params.dynamics.free_tables import Dynamics, FreeDense, draw_free
from rankfold.params.prior import Prior, Table

# Joint states of which the whole matrix is written out, as many as compiled loops on a CPU take: an EM step of one
# sequence of 2,000 frames takes a 20th of the Kronecker product's time with 4 joint states, a 6th with 64 (2026-11-17).
WRITTEN = 128


class FreeKronecker(nn.Module):
    """initial[(i, j)] = first[i] second[j],  A[(i, j), (k, l)] = A_1[i, k] A_2[j, l],  and so on for more chains."""

    def __init__(self, chains: Sequence[FreeDense]) -> None:
        super().__init__()
        self.chains = nn.ModuleList(chains)
        self.sizes = tuple(len(chain.log_initial) for chain in chains)

    @classmethod
    def draw(cls, sizes: Sequence[int], *, generator: torch.Generator) -> FreeKronecker:
        """Tables near uniform."""
        drawn = [draw_free(size, None, self_transitions=True, alike=False, generator=generator) for size in sizes]
        return cls([chain for chain in drawn if isinstance(chain, FreeDense)])

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        assert keep is None, "configurations of chains have no dropout"
        assert stays is None, "configurations of chains have no dropout"
        parts: list[Dynamics] = [chain() for chain in self.chains]
        log_initial = reduce(lambda x, y: (x[:, None] + y).flatten(), [part.log_initial for part in parts])
        transition: Operator = reduce(Kronecker, [part.transition for part in parts])
        if len(log_initial) <= WRITTEN:
            transition = Dense.from_log(transition.log_rows(torch.arange(len(log_initial), device=log_initial.device)))
        return Dynamics(log_initial, transition)

    def count(self, initial: Tensor, uses: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # "z_1", "z_1 z_1", "z_2", ...
        """The expected uses of every chain's tables."""
        first, every = initial.double().reshape(self.sizes), range(len(self.sizes))
        joint = uses[0].double().reshape(self.sizes * 2) if len(uses) < len(every) else None
        found: list[Tensor] = []
        for i in every:
            others = [other for other in every if other != i]
            used = uses[i].double() if joint is None else joint.sum([*others, *(len(every) + x for x in others)])
            found += [first.sum(others) if others else first, used]
        return tuple(found)

    def maximise(self, counts: tuple[Tensor, ...], prior: Prior) -> None:
        """The maximum of each chain's tables by itself."""
        for i, chain in enumerate(self.chains):
            chain.maximise(counts[2 * i : 2 * i + 2], self._own(prior, i))  # type: ignore[operator]

    def _own(self, prior: Prior, number: int) -> Prior:
        """The prior of one chain: smoothing, and which of its tables are fixed."""
        fixed = {name for name in ("initial", "transition") if f"{name}_{number}" in prior.fixed}
        return Prior(prior.smoothing, fixed=frozenset(fixed))

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the Dirichlet priors of all chains, up to a constant; 0 without one."""
        found = [chain.log_prior(self._own(prior, i)) for i, chain in enumerate(self.chains)]  # type: ignore[operator]
        return torch.stack(found).sum()

    def initialise(self, runs: Sequence[Tensor], prior: Prior, rng: np.random.Generator) -> None:  # "t" each
        """Uniform starts; chains that stay, all together, as often as the states of the runs do, and else go anywhere.

        Which state of which chain a mean stands for is not known: only how often something changes is.
        """
        pairs = [(states[:-1], states[1:]) for states in runs]
        known = sum(int(((source >= 0) & (target >= 0)).sum()) for source, target in pairs)
        same = sum(int(((source >= 0) & (source == target)).sum()) for source, target in pairs)
        stay = math.exp(math.log((same + 1) / (known + 2)) / len(self.sizes))
        for chain, size in zip(self.chains, self.sizes, strict=True):
            table = torch.from_numpy(rng.dirichlet(np.ones(size), size))
            table = stay * torch.eye(size, dtype=torch.float64) + (1 - stay) * table
            chain.fill(initial=torch.full((size,), 1 / size, dtype=torch.float64), transition=table)  # type: ignore[operator]

    def tables(self) -> dict[str, Table]:
        """The parameters of chain 0 as `initial_0` and `transition_0`, and so on."""
        return {
            f"{name}_{i}": table
            for i, chain in enumerate(self.chains)
            for name, table in chain.tables().items()  # type: ignore[operator]
        }

    def fill(self, **tables: Tensor) -> None:
        """Set some of the distributions."""
        for name, table in tables.items():
            kind, _, number = name.rpartition("_")
            self.chains[int(number)].fill(**{kind: table})  # type: ignore[operator]

    def num_free(self, forbidden: Tensor | None = None) -> int:
        """The number of free parameters: one less for each distribution."""
        return sum(size - 1 + size * (size - 1) for size in self.sizes)
