"""One EM step in each library, from the same parameters and the same tokens of one hidden Markov model.

Its transition is a product of two thin factors, so that the low-rank and the dense form are one model. Libraries are
imported where they are used: a process that measures one does not load the others.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rankfold
from benchmarks.libraries.process import Case
from rankfold.training.em import SMALL_STEP, one_thread

NUM_SYMBOLS = 1000
NUM_SEQUENCES = 4
NUM_TOKENS = 64
# From here on parameters are drawn in float32: in float64 the largest would not leave room for a library.
LARGE = 4096
RANKFOLD_64 = "rankfold dense float64"
RANKFOLD_32 = "rankfold dense float32"
RANKFOLD_LOW_RANK = "rankfold low rank float32"
HMMLEARN = "hmmlearn"
HMMLEARN_SCALING = "hmmlearn scaling"
POMEGRANATE = "pomegranate"
DYNAMAX = "dynamax"


@dataclass(frozen=True)
class Hmm:
    """A categorical HMM and its data."""

    initial: Tensor  # "z"
    left: Tensor  # "z r"         rows sum to 1
    right: Tensor  # "y r"        columns sum to 1
    emission: Tensor  # "z v"     rows sum to 1
    tokens: Tensor  # "b t"       int64

    @property
    def num_states(self) -> int:
        return self.left.shape[0]

    def transition(self) -> Tensor:  # "z y"
        """The dense transition, rows summing to 1 again after rounding."""
        dense = self.left @ self.right.mT
        return dense.div_(dense.sum(1, keepdim=True))

    def to(self, dtype: torch.dtype) -> Hmm:
        """The same model in another dtype."""
        return replace(
            self,
            initial=self.initial.to(dtype),
            left=self.left.to(dtype),
            right=self.right.to(dtype),
            emission=self.emission.to(dtype),
        )


def random_hmm(num_states: int, num_tokens: int = NUM_TOKENS, num_symbols: int = NUM_SYMBOLS, seed: int = 0) -> Hmm:
    """A model of rank states / 8 with every distribution drawn uniformly from its simplex."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if num_states >= LARGE else torch.float64
    rank = max(1, num_states // 8)

    def draw(rows: int, columns: int) -> Tensor:
        weights = torch.rand(rows, columns, generator=generator, dtype=dtype).clamp_(min=1e-6).log_().neg_()
        return weights.div_(weights.sum(1, keepdim=True))

    return Hmm(
        initial=draw(1, num_states)[0],
        left=draw(num_states, rank),
        right=draw(rank, num_states).mT.contiguous(),
        emission=draw(num_states, num_symbols),
        tokens=torch.randint(num_symbols, (NUM_SEQUENCES, num_tokens), generator=generator),
    )


@dataclass
class Stepper:
    """One EM step that can be repeated; `log_z` and `params` are of the last step."""

    step: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    log_z: Callable[[], float] = lambda: float("nan")  # of all sequences, before the step
    params: Callable[[], tuple[Any, Any, Any]] | None = None  # initial, transition, emission after the step
    notes: dict[str, float] = field(default_factory=dict)

    def case(self) -> Case:
        return Case(self.step, self.prepare)


class RankfoldEm:
    """EM with `rankfold.expected_counts`, dense or low rank."""

    def __init__(self, hmm: Hmm, dtype: torch.dtype, *, low_rank: bool) -> None:
        h = hmm.to(dtype)
        self.low_rank, self.tokens = low_rank, h.tokens
        self.initial, self.emission = h.initial, h.emission
        self.factors = (h.left, h.right) if low_rank else (h.transition(),)
        self.updated: tuple[Tensor, ...] = ()

    def potentials(self) -> rankfold.ChainPotentials:
        transition = rankfold.LowRank(*self.factors) if self.low_rank else rankfold.Dense(*self.factors)
        log_obs = self.emission.mT[self.tokens].log()
        return rankfold.ChainPotentials(self.initial.log(), transition, log_obs)

    def step(self) -> None:
        """On one thread where the work is small, as the fits of estimators are."""
        small = self.tokens.numel() * self.emission.shape[0] ** 2 < SMALL_STEP
        with one_thread() if small else nullcontext():
            self._step()

    def _step(self) -> None:
        counts = rankfold.expected_counts(self.potentials())
        states = counts.state.flatten(0, 1)
        uses = self.emission.new_zeros(self.emission.shape[1], states.shape[1])
        uses.index_add_(0, self.tokens.flatten(), states)
        emission = uses.div_(uses.sum(0)).mT
        first, *rest = counts.transition
        factors = [first / first.sum(1, keepdim=True), *(x / x.sum(0) for x in rest)]
        self.updated = (counts.initial / counts.initial.sum(), emission, *factors)

    def params(self) -> tuple[Tensor, Tensor, Tensor]:
        initial, emission, first, *rest = self.updated
        return initial, first @ rest[0].mT if rest else first, emission

    def log_z(self) -> float:
        return float(rankfold.log_z(self.potentials()).sum())


def rankfold_em(hmm: Hmm, dtype: torch.dtype, *, low_rank: bool = False) -> Stepper:
    """Our own step; its parameters stay where they are, the new ones are kept apart."""
    em = RankfoldEm(hmm, dtype, low_rank=low_rank)
    return Stepper(em.step, log_z=em.log_z, params=em.params)


def hmmlearn_em(hmm: Hmm, implementation: str) -> Stepper:
    """`CategoricalHMM.fit` with one iteration, float64, one thread."""
    from hmmlearn.hmm import CategoricalHMM

    logging.getLogger("hmmlearn").setLevel(logging.ERROR)
    h = hmm.to(torch.float64)
    initial, emission = h.initial.numpy(), h.emission.numpy()
    dense = hmm.transition().to(torch.float64)
    transition = dense.div_(dense.sum(1, keepdim=True)).numpy()
    num_sequences, num_tokens = hmm.tokens.shape
    column, lengths = hmm.tokens.reshape(-1, 1).numpy(), [num_tokens] * num_sequences
    model = CategoricalHMM(
        hmm.num_states, n_iter=1, init_params="", n_features=emission.shape[1], implementation=implementation
    )

    def prepare() -> None:
        model.startprob_, model.transmat_, model.emissionprob_ = initial, transition, emission

    return Stepper(
        lambda: model.fit(column, lengths),
        prepare,
        lambda: float(model.monitor_.history[-1]),
        lambda: (model.startprob_, model.transmat_, model.emissionprob_),
    )


def pomegranate_em(hmm: Hmm) -> Stepper:
    """`DenseHMM`: `summarize` and `from_summaries`, what one iteration of its `fit` does; float32."""
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    h = hmm.to(torch.float32)
    transition, tokens = h.transition(), h.tokens.unsqueeze(-1)
    last: dict[str, Any] = {}

    def prepare() -> None:
        states = [Categorical(row.unsqueeze(0)) for row in h.emission]
        last["model"] = DenseHMM(states, edges=transition, starts=h.initial, ends=torch.ones(h.num_states))

    def step() -> None:
        last["log_z"] = last["model"].summarize(tokens).sum()
        last["model"].from_summaries()

    return Stepper(step, prepare, lambda: float(last["log_z"]))


def dynamax_em(hmm: Hmm) -> Stepper:
    """`CategoricalHMM`: its E step and M step as `fit_em` joins them, compiled once beforehand; float32.

    `fit_em` compiles at every call; that is left out. Its Dirichlet priors (1.1) stay: without them its
    M step divides zero by zero where a symbol never occurs.
    """
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM

    h = hmm.to(torch.float32)
    model = CategoricalHMM(h.num_states, 1, h.emission.shape[1])
    params, props = model.initialize(
        initial_probs=jnp.asarray(h.initial.numpy()),
        transition_matrix=jnp.asarray(h.transition().numpy()),
        emission_probs=jnp.asarray(h.emission.numpy())[:, None],
    )
    tokens = jnp.asarray(h.tokens.numpy())[..., None]

    def em(params: Any, tokens: Any) -> Any:
        stats, log_z = jax.vmap(lambda one: model.e_step(params, one))(tokens)
        updated, _ = model.m_step(params, props, stats, model.initialize_m_step_state(params, props))
        return updated, log_z.sum()

    compiled = jax.jit(em).lower(params, tokens).compile()
    last: dict[str, Any] = {}

    def step() -> None:
        last["params"], last["log_z"] = jax.block_until_ready(compiled(params, tokens))

    def updated() -> tuple[Any, Any, Any]:
        p = last["params"]
        return tuple(np.asarray(x) for x in (p.initial.probs, p.transitions.transition_matrix, p.emissions.probs[:, 0]))  # type: ignore[return-value]

    return Stepper(step, log_z=lambda: float(last["log_z"]), params=updated)


MAKERS: dict[str, Callable[[Hmm], Stepper]] = {
    RANKFOLD_64: lambda hmm: rankfold_em(hmm, torch.float64),
    RANKFOLD_32: lambda hmm: rankfold_em(hmm, torch.float32),
    RANKFOLD_LOW_RANK: lambda hmm: rankfold_em(hmm, torch.float32, low_rank=True),
    HMMLEARN: lambda hmm: hmmlearn_em(hmm, "log"),
    HMMLEARN_SCALING: lambda hmm: hmmlearn_em(hmm, "scaling"),
    POMEGRANATE: pomegranate_em,
    DYNAMAX: dynamax_em,
}
OURS = (RANKFOLD_64, RANKFOLD_32, RANKFOLD_LOW_RANK)
PEERS = tuple(name for name in MAKERS if name not in OURS)


def make(name: str, hmm: Hmm) -> Stepper:
    """The step of one library, its import warnings kept quiet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MAKERS[name](hmm)
