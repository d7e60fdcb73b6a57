"""Every kind of model of frames, tiny and in float64, with its distributions written out in plain Python."""

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.models import FrameModel
from rankfold.params.dynamics.rank_dynamics import RankSpace
from tests.oracles import chain, frames, semi_markov

LONGEST = 3


class Case(NamedTuple):
    """A model given by its tables, a batch for it, and what plain Python makes of both."""

    model: FrameModel
    batch: Batch
    transition: list[list[float]]
    log_duration: list[list[float]] | None
    log_obs: list[list[list[float]]]  # of each sequence, frames inside the length

    def enumerated(self, i: int) -> dict[Any, float]:
        """The log-weight of every path, or segmentation, of sequence i."""
        log_initial = self.model.parts().log_initial.tolist()
        if self.log_duration is None:
            return chain.paths(log_initial, self.transition, self.log_obs[i])
        censored = self.model.config.censored
        return semi_markov.weights(log_initial, self.transition, self.log_duration, self.log_obs[i], censored=censored)

    def log_likelihoods(self) -> list[float]:
        """By enumeration."""
        return [chain.log_sum_exp(list(self.enumerated(i).values())) for i in range(len(self.log_obs))]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(*shape: int, g: torch.Generator) -> Tensor:
    """Distributions along the last axis."""
    return torch.rand(*shape, generator=g, dtype=torch.float64).add(0.1).log().softmax(-1)


def build(
    observations: str = "gaussian",
    durations: str | None = None,
    *,
    num_states: int = 3,
    rank: int | None = None,
    summed_states: int | None = None,
    self_transitions: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    far: float = 0.0,
    **choices: Any,
) -> Case:
    """Two sequences, the second shorter, with missing frames; beyond a length stands what must never be read.

    `summed_states`: a model of segments in rank space, whose states are the ranks.
    """
    g = generator(seed)
    tables: dict[str, Any] = {}
    lengths = [4, 3]
    if observations == "categorical":
        symbols = torch.randint(0, 4, (2, 4), generator=g)
        symbols[0, 2], symbols[1, 3] = -1, 99
        tables["emission"] = emission = shares(num_states, 4, g=g)
        x: Tensor = symbols
        score = [
            [[frames.categorical(int(s), row) for row in emission.tolist()] for s in symbols[i, :n]]
            for i, n in enumerate(lengths)
        ]
    else:
        x = torch.randn(2, 4, 5, generator=g, dtype=torch.float64) + far
        if observations == "bernoulli":
            x = (x > 0).double()
            tables["probability"] = probability = torch.rand(num_states, 5, generator=g, dtype=torch.float64)
            if num_states > 1:
                probability[0, 1] = x[0, 0, 1]  # certain, and right at the first frame
        else:
            tables["mean"] = mean = torch.randn(num_states, 5, generator=g, dtype=torch.float64) + far
            shape = (5,) if observations == "tied" else (num_states, 5)
            tables["variance"] = variance = torch.rand(shape, generator=g, dtype=torch.float64) + 0.2
        x[0, 2], x[1, 1, 3], x[1, 3] = math.nan, math.nan, math.inf
        score = []
        for i, n in enumerate(lengths):
            if observations == "bernoulli":
                score.append([[frames.bernoulli(f, row) for row in probability.tolist()] for f in x[i, :n].tolist()])
            else:
                spread = variance.expand(num_states, 5).tolist()
                pairs = list(zip(mean.tolist(), spread, strict=True))
                score.append([[frames.gaussian(f, m, v) for m, v in pairs] for f in x[i, :n].tolist()])
    log_duration = None
    if durations is not None:
        log_duration, given = _durations(durations, num_states, g)
        tables |= given
    left, right = shares(num_states, rank or 1, g=g), shares(rank or 1, num_states, g=g).mT.contiguous()
    if rank is not None:
        transition = frames.low_rank(left.tolist(), right.tolist(), self_transitions=self_transitions)
        pair: Any = (left.to(dtype), right.to(dtype))
    else:
        dense = shares(num_states, num_states, g=g)
        if not self_transitions:
            dense = dense.masked_fill(torch.eye(num_states, dtype=torch.bool), 0.0)
            dense = dense / dense.sum(1, keepdim=True)
        transition, pair = dense.tolist(), dense.to(dtype)
    tables = {name: y.to(dtype) if isinstance(y, Tensor) else y for name, y in tables.items()}
    log_initial = shares(num_states, g=g).log().to(dtype)
    model = FrameModel.from_tables(log_initial, pair, self_transitions=self_transitions, **tables, **choices)
    if summed_states is not None:
        model, transition = _in_rank_space(model, summed_states, g)
    batch = Batch(x if observations == "categorical" else x.to(dtype), torch.tensor(lengths))
    return Case(model, batch, transition, log_duration, score)


def _in_rank_space(model: FrameModel, num: int, g: torch.Generator) -> tuple[FrameModel, list[list[float]]]:
    """The model with its states as ranks between `num` states, and the transition of ranks."""
    size, dtype = model.config.num_states, model.dtype
    start, rank, state = shares(num, g=g), shares(num, size, g=g), shares(size, num, g=g).mT
    config = dataclasses.replace(model.config, family="rank_hsmm", summed_states=num, self_transitions=None)
    dynamics = RankSpace(*(x.log().to(dtype) for x in (start, rank, state)))
    u, v = rank.tolist(), state.tolist()
    transition = [[sum(v[n][i] * u[n][j] for n in range(num)) for j in range(size)] for i in range(size)]
    return FrameModel(config, dynamics, model.observation, model.duration), transition


def _durations(kind: str, num_states: int, g: torch.Generator) -> tuple[list[list[float]], dict[str, Any]]:
    one, two = (torch.randn(num_states, generator=g, dtype=torch.float64) for _ in range(2))
    if kind == "categorical":
        table = shares(num_states, LONGEST, g=g)
        return table.log().tolist(), {"log_duration": table.log()}
    if kind == "negative_binomial":
        pairs = zip(one.tolist(), two.tolist(), strict=True)
        table_of = [frames.negative_binomial(a, b, LONGEST) for a, b in pairs]
        return table_of, {"log_shape": one, "log_odds": two, "max_duration": LONGEST}
    normalised = kind == "poisson"
    table_of = [frames.poisson(a, LONGEST, normalised=normalised) for a in one.tolist()]
    given = {"log_rate": one, "max_duration": LONGEST, "normalised_durations": normalised}
    return table_of, given


KINDS = ("gaussian", "tied", "bernoulli", "categorical")
DURATIONS = (None, "poisson", "lost", "negative_binomial", "categorical")  # "lost": Poisson, not normalised
CASES: dict[str, dict[str, Any]] = {
    f"{kind}-{durations or 'chain'}-{rank or 'dense'}-{'any' if repeats else 'others'}": {
        "observations": kind,
        "durations": durations,
        "rank": rank,
        "self_transitions": repeats,
    }
    for kind in KINDS
    for durations in DURATIONS
    for rank in (None, 1, 2)
    for repeats in (True, False)
}
CASES["one-state"] = {"num_states": 1, "durations": "categorical"}
CASES["one-state-chain"] = {"num_states": 1, "observations": "bernoulli"}
CASES["rank-above-states"] = {"rank": 7, "durations": "poisson", "self_transitions": False}
CASES["cut"] = {"durations": "poisson", "censored": True, "self_transitions": False}
CASES["cut-low-rank"] = {"durations": "negative_binomial", "censored": True, "self_transitions": False, "rank": 2}
CASES |= {
    f"rank-space-{kind}-{durations}-{num}": {"observations": kind, "durations": durations, "summed_states": num}
    for kind, durations, num in (
        ("gaussian", "poisson", 5),
        ("gaussian", "categorical", 2),  # fewer states than ranks: two thin products
        ("bernoulli", "negative_binomial", 3),
        ("categorical", "lost", 1),
    )
}
CASES["rank-space-cut"] = {"durations": "poisson", "censored": True, "summed_states": 4}
CASES["rank-space-one-rank"] = {"num_states": 1, "durations": "categorical", "summed_states": 3}
