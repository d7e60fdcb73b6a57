"""Questions of a batch of chains: likelihood, posteriors, best paths, samples, entropy.

A thin face on `decoding`, in the manner of torch.distributions. Read next: `decoding/posterior.py`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from rankfold.decoding.entropy import entropy
from rankfold.decoding.posterior import state_posterior
from rankfold.decoding.sample import sample
from rankfold.decoding.viterbi import joint_map, viterbi
from rankfold.errors import UnsupportedError
from rankfold.recursions import chain
from rankfold.recursions.chain.potentials import ChainPotentials

Method = Literal["viterbi", "posterior", "joint"]
Of = Literal["states", "ranks"]


class ChainQuery:
    """The posterior over hidden paths of a batch of sequences.

    `of` says what a path is made of: states, or ranks where the states were summed out (rank-space models).
    """

    def __init__(self, potentials: ChainPotentials, *, of: Of = "states") -> None:
        self.potentials, self.of = potentials, of

    @property
    def num_values(self) -> int:
        """How many states (or ranks) a position may have."""
        return self.potentials.transition.shape[0]

    @property
    def log_partition(self) -> Tensor:  # "b"   float64
        """The log-probability of each sequence, summed over all paths; differentiable."""
        return chain.log_z(self.potentials)

    def log_prob(self) -> Tensor:  # "b"   float64
        """The same: the log-probability of each sequence."""
        return self.log_partition

    def marginals(self) -> Tensor:  # "b t z"
        """The posterior of every state at every position; differentiable where the model is being trained."""
        return state_posterior(self.potentials)

    def argmax(self, method: Method = "viterbi", *, as_one_hot: bool = False) -> Tensor:  # "b t", or "b t z"
        """One path for each sequence; -1 beyond a length and for impossible sequences.

        "viterbi": the most probable path, exact (O(t z^2) also for low rank). "posterior": the most probable state
        of each position by itself, which minimises the expected number of wrong states. "joint": the states of the
        most probable path of states and ranks together, at low-rank cost; only for a low-rank transition.
        """
        expect_method(method, get_args(Method))
        if method == "viterbi":
            path = viterbi(self.potentials).path
        elif method == "joint":
            path = joint_map(self.potentials).states
        else:
            with torch.no_grad():
                path = best_of(self.marginals())
        return spread(path, self.num_values) if as_one_hot else path

    def sample(
        self, num_samples: int | None = None, *, generator: torch.Generator | None = None, as_one_hot: bool = False
    ) -> Tensor:  # "b t", or "n b t", or with a last axis "z"
        """Paths drawn from the posterior, exact and independent; see `rankfold.sample`."""
        paths = sample(self.potentials, num_samples=num_samples, generator=generator)
        return spread(paths, self.num_values) if as_one_hot else paths

    def entropy(self) -> Tensor:  # "b"   float64
        """The entropy of the posterior over paths, in nats."""
        return entropy(self.potentials)

    def __repr__(self) -> str:
        num_sequences, num_positions, num_values = self.potentials.log_obs.shape
        return f"ChainQuery({num_sequences} sequences of up to {num_positions}, over {num_values:,} {self.of})"


def best_of(posterior: Tensor) -> Tensor:  # "b t z" -> "b t"
    """The likeliest state of each position, -1 where there is no posterior."""
    top = posterior.max(-1)
    return torch.where(top.values > 0, top.indices, -1)


def spread(path: Tensor, num_values: int) -> Tensor:  # "... t" -> "... t z"
    """A path as indicators; a position without a state has none."""
    there = path >= 0
    return one_hot(torch.where(there, path, 0), num_values) * there.unsqueeze(-1)


def expect_method(method: str, known: tuple[str, ...]) -> None:
    """Raise unless the method is known."""
    if method not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise UnsupportedError(f"argmax(method={method!r}) is unknown; use {names}.")
