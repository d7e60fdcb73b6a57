"""What the decoding tests share: streams of words, and exact distributions over paths."""

import math
from typing import Any

import torch
from torch import Tensor

from rankfold import ChainPotentials, LowRank
from tests.oracles import chain as oracle
from tests.recursions.build import as_lists

LOW_RANK = ("low_rank_1", "low_rank_2", "low_rank_2_zeros", "low_rank_above_states", "low_rank_log")


def ranks_as_lists(p: ChainPotentials, i: int) -> dict[str, Any]:
    """Sequence i of a low-rank chain as the enumeration of states and ranks takes it."""
    assert isinstance(p.transition, LowRank)
    left, right = (x.double() for x in p.transition.factors())
    if any(p.transition.log_factors):
        left, right = left.exp(), right.exp()
    fields = as_lists(p, i)
    del fields["transition"]
    return {**fields, "left": left.tolist(), "right": right.tolist()}


def path_probabilities(p: ChainPotentials, i: int) -> dict[tuple[int, ...], float]:
    """p(path | sequence i) for every path."""
    log_weights = oracle.paths(**as_lists(p, i))
    total = oracle.log_sum_exp(list(log_weights.values()))
    return {path: math.exp(weight - total) for path, weight in log_weights.items()}


def words_to_potentials(
    log_initial: Tensor, transition: Any, log_emission: Tensor, words: list[list[int]]
) -> ChainPotentials:
    """Sequences of words under a hidden Markov model, ragged ones padded with NaN."""
    lengths = [len(row) for row in words]
    log_obs = torch.full((len(words), max(lengths), len(log_initial)), float("nan"), dtype=log_initial.dtype)
    for i, row in enumerate(words):
        log_obs[i, : len(row)] = log_emission.T[row]
    return ChainPotentials(log_initial, transition, log_obs, lengths=torch.tensor(lengths))
