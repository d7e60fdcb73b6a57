"""What states are used for: how many of them do the work, and which words they say.

Read next: `plots/learning.py`, which draws the shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, expect, expect_logs, expect_weights


class StateUse(NamedTuple):
    """One state and the share of all tokens it accounts for."""

    state: int
    share: float


class UsageSummary(NamedTuple):
    """How evenly the tokens are spread over the states."""

    by_share: list[StateUse]  # the most used first; equal shares in the order of their numbers
    effective: float  # exp(entropy of the shares): 1 if one state does all, z if all do the same
    num_used: int  # states with more than a tenth of an equal share, 1 / (10 z)

    @property
    def shares(self) -> list[float]:
        """The shares alone, falling; they sum to 1."""
        return [use.share for use in self.by_share]


def state_usage(posterior_mass: Tensor) -> UsageSummary:  # "z"
    """The shares of tokens by state, for the posterior p(z_t | x) summed over all tokens; any scale will do."""
    expect(posterior_mass, "z", name="posterior_mass")
    expect_weights(posterior_mass, name="posterior_mass")
    mass = posterior_mass.detach().double().cpu()
    if not mass.any():
        raise DomainError("posterior_mass is 0 for every state, but shares need at least one token.")
    shares = mass / mass.sum()
    falling, states = shares.sort(descending=True, stable=True)
    return UsageSummary(
        by_share=[StateUse(*use) for use in zip(states.tolist(), falling.tolist(), strict=True)],
        effective=float(torch.special.entr(shares).sum().exp()),
        num_used=int((shares > 1 / (10 * len(shares))).sum()),
    )


def top_words(log_emission_rows: Tensor, words: Sequence[str], num: int = 8) -> list[list[tuple[str, float]]]:  # "k v"
    """The `num` most probable words of each row and p(word | state), the most probable first.

    Words of probability 0 are left out, so a list may be shorter; equal ones come in the order of their ids.
    """
    expect(log_emission_rows, "k v", name="log_emission_rows")
    expect_logs(log_emission_rows, name="log_emission_rows")
    if len(words) != log_emission_rows.shape[1]:
        raise ShapeError(
            f"log_emission_rows has {log_emission_rows.shape[1]} words in its last axis, but {len(words)} words came.\n"
            "  Rows are states: log_emission[states], and words those of the vocabulary the model was trained with."
        )
    if num < 1:
        raise DomainError(f"num is {num}, but at least 1 word of each state can be shown.")
    falling, order = log_emission_rows.detach().cpu().sort(dim=1, descending=True, stable=True)
    return [
        [(words[i], p) for i, p in zip(ids, probabilities, strict=True) if p > 0]
        for ids, probabilities in zip(order[:, :num].tolist(), falling[:, :num].exp().tolist(), strict=True)
    ]
