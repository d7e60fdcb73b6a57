"""Every model the suites run on, tiny and in float64. A new family or size joins by adding a line to SIZES."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.data.clusters import Clusters
from rankfold.models import ModelConfig, build_model
from rankfold.models.catalog import AnyModel
from tests.params.build import seeded, stirred

INF = float("inf")

# Family, then what differs from COMMON. Odd on purpose: one state, rank 1, rank above states, a band above the matrix.
SIZES: list[tuple[str, dict[str, Any]]] = [
    ("hmm", {"num_states": 3}),
    ("hmm", {"num_states": 1}),
    ("lhmm", {"num_states": 3, "rank": 2}),
    ("lhmm", {"num_states": 1, "rank": 1}),
    ("lhmm", {"num_states": 2, "rank": 5, "feature_map": "positive"}),
    ("lhmm", {"num_states": 4, "rank": 3, "state_dropout_kind": "bernoulli"}),
    ("hmm", {"num_states": 3, "printed": True}),
    ("lhmm", {"num_states": 3, "rank": 2, "printed": True}),
    ("banded", {"num_states": 3, "rank": 2, "band": 1, "printed": True}),
    ("rank", {"num_states": 3, "rank": 2, "printed": True}),
    ("banded", {"num_states": 4, "rank": 2, "band": 1}),
    ("banded", {"num_states": 2, "rank": 3, "band": 5, "feature_map": "positive"}),
    ("banded", {"num_states": 1, "rank": 1, "band": 0}),
    ("block", {"num_states": 6, "num_clusters": 2}),
    ("block", {"num_states": 3, "num_clusters": 1}),
    ("block", {"num_states": 3, "num_clusters": 3}),
    ("block", {"num_states": 6, "num_clusters": 2, "dim": 3, "tied": True}),
    ("block", {"num_states": 3, "num_clusters": 3, "dim": 3, "tied": True, "num_layers": 0}),
    ("rank", {"num_states": 3, "rank": 2}),
    ("rank", {"num_states": 1, "rank": 1}),
    ("rank", {"num_states": 2, "rank": 3}),
    ("rank", {"num_states": 3, "rank": 2, "plan": "rank"}),
]
COMMON: dict[str, Any] = {"dim": 2, "num_layers": 1, "state_dropout": 0.4, "feature_dropout": 0.4, "logit_dropout": 0.4}
NUM_WORDS = 3
ASSIGNMENT = {1: [0, 0, 0], 2: [1, 0, 1], 3: [2, 0, 1]}


class Case(NamedTuple):
    """A named configuration."""

    name: str
    config: ModelConfig

    def clusters(self) -> Clusters | None:
        if self.config.family != "block":
            return None
        return Clusters(torch.tensor(ASSIGNMENT[self.config.num_clusters]), self.config.num_clusters)

    def plain(self, seed: int = 0) -> AnyModel:
        """The model as it is built."""
        return build_model(self.config, NUM_WORDS, clusters=self.clusters(), seed=seed)

    def build(self, seed: int = 0) -> AnyModel:
        """The model in float64, no table of it nearly uniform."""
        return stirred(self.plain(seed), seed=seed + 1)


def _name(family: str, sizes: dict[str, Any], neural: bool) -> str:
    return "-".join([family, "neural" if neural else "free", *(str(value) for value in sizes.values())])


CASES = [
    Case(_name(family, sizes, neural), ModelConfig(family=family, neural=neural, **{**COMMON, **sizes}))
    for (family, sizes), neural in itertools.product(SIZES, (True, False))
    if neural or not (sizes.get("tied") or sizes.get("printed"))
]
BY_NAME = {case.name: case for case in CASES}


class Tables(NamedTuple):
    """An HMM written out: probabilities over states, or over the ranks that say the words."""

    start: Tensor  # "z"
    transition: Tensor  # "z z"
    emission: Tensor  # "z v"

    def as_lists(self, words: list[int]) -> dict[str, Any]:
        """A sequence of words as the enumeration of state paths takes it."""
        return {
            "log_initial": self.start.log().tolist(),
            "transition": self.transition.tolist(),
            "log_obs": self.emission.log().mT[words].tolist(),
        }


def tables(parts: Any) -> Tables:
    """The distributions of a model's parts; states that dropout took keep a row but have no mass."""
    with torch.no_grad():
        if hasattr(parts, "dynamics"):
            every = torch.arange(parts.dynamics.log_initial.numel())
            start = parts.dynamics.log_initial.flatten()
            return Tables(start.exp(), parts.dynamics.log_rows(every).exp(), parts.emission.log_rows(every).exp())
        every = torch.arange(len(parts.log_initial))
        emission = parts.emission.log_rows(every).exp()
        if hasattr(parts, "factors"):
            transition = parts.factors.state.mT @ parts.factors.rank
        else:
            transition = parts.transition.to_dense()
            if parts.log_mask is not None:
                emission = emission * parts.log_mask.exp()[:, None]
        return Tables(parts.log_initial.exp(), transition, emission)


def all_strings(length: int) -> Batch:
    """Every sequence of words of a length."""
    words = torch.tensor(list(itertools.product(range(NUM_WORDS), repeat=length)))
    return Batch(words, torch.full((len(words),), length))


def some_strings() -> Batch:
    """A ragged batch with length 1, and padding that is a word like any other."""
    words = torch.tensor([[0, 2, 1, 1], [2, 2, 2, 2], [1, 0, 0, 2], [1, 1, 0, 0]])
    return Batch(words, torch.tensor([4, 1, 2, 3]))


def as_rows(batch: Batch) -> list[list[int]]:
    """The sequences without padding."""
    return [row[:n] for row, n in zip(batch.values.tolist(), batch.lengths.tolist(), strict=True)]


__all__ = ["BY_NAME", "CASES", "Case", "Tables", "all_strings", "as_rows", "seeded", "some_strings", "tables"]
