"""Ends of sequences: after each frame (of segments: after each segment) with a probability of its state."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from rankfold.data.batch import Batch
from rankfold.errors import DomainError
from rankfold.numerics.log_space import pick
from rankfold.operators import Operator
from rankfold.params.networks import take_rows
from rankfold.params.prior import Prior, Table, shares, weighted_logs


class Ends(NamedTuple):
    """The log-probabilities of ending after each state, and of going on."""

    log_end: Tensor  # "z"
    log_go: Tensor  # "z"


class Ending(nn.Module):
    """end[z] = sigmoid(logit[z]), of any range, 0 and 1 included."""

    def __init__(self, logit: Tensor) -> None:  # "z"
        super().__init__()
        self.logit = nn.Parameter(logit)

    def forward(self, keep: Tensor | None = None) -> Ends:
        logit = take_rows(self.logit, keep)
        return Ends(logsigmoid(logit), logsigmoid(-logit))

    def count(self, counts: Any, batch: Batch, *, driven: bool) -> Tensor:  # "z 2"   float64
        """How often each state ends a sequence, and how often one goes on after it."""
        last = batch.lengths - 1
        ended = counts.state[torch.arange(len(last), device=last.device), last].sum(0, dtype=torch.float64)
        if driven:
            inner = torch.arange(batch.shape[1], device=last.device) < last[:, None]
            went = torch.where(inner.unsqueeze(-1), counts.state, 0.0).sum((0, 1), dtype=torch.float64)
        else:  # the first factor of the transition is the probability of going on
            went = counts.transition[0].double()
        return torch.stack([ended, went], 1)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 2"
        """The share of ends, with the prior's; a state that is never used keeps its own."""
        if "end" in prior.fixed:
            return
        counts = counts + prior.smoothing + prior.end
        found = shares(counts).log()
        self.logit.copy_(torch.where(counts.sum(1) > 0, found[:, 0] - found[:, 1], self.logit.double()))

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the beta prior, up to a constant; 0 without one."""
        logit = self.logit.double()
        return weighted_logs(prior.smoothing + prior.end, torch.stack([logsigmoid(logit), logsigmoid(-logit)], 1))

    def tables(self) -> dict[str, Table]:
        """The probability of ending after each state."""
        return {"end": Table(self.logit.detach().double().sigmoid(), positive="share")}

    def fill(self, *, end: Tensor) -> None:  # "z"
        """Set the probabilities."""
        with torch.no_grad():
            self.logit.copy_(end.log() - torch.log1p(-end))

    @property
    def num_free(self) -> int:
        """The number of free parameters."""
        return len(self.logit)


def draw_lengths(
    log_initial: Tensor,
    transition: Operator,
    ends: Ends,
    log_duration: Tensor | None,
    num: int,
    generator: torch.Generator | None,
) -> list[Tensor]:  # "t" each
    """States of `num` sequences that end by themselves. Cost: a row of the transition for each frame or segment."""
    _expect_an_end(log_initial, transition, ends)
    state = pick(log_initial.expand(num, -1), generator)
    rows: list[list[Tensor]] = [[] for _ in range(num)]
    open_ = torch.arange(num, device=state.device)
    while len(open_):
        long = torch.ones_like(state) if log_duration is None else 1 + pick(log_duration[state], generator)
        for i, z, size in zip(open_.tolist(), state, long.tolist(), strict=True):
            rows[i].append(z.expand(size))
        both = torch.stack([ends.log_go[state], ends.log_end[state]], 1)
        stays = pick(both, generator) == 0
        open_, state = open_[stays], state[stays]
        if len(open_):
            state = pick(transition.log_rows(state), generator)
    return [torch.cat(row) for row in rows]


def _expect_an_end(log_initial: Tensor, transition: Operator, ends: Ends) -> None:
    """Raise if a sequence can come to states after which it never ends."""
    can_end = ends.log_end > float("-inf")
    reached = log_initial > float("-inf")
    goes_on = (ends.log_go > float("-inf")).to(log_initial.dtype)
    for _ in range(len(can_end)):
        can_end = can_end | (transition.pull(can_end.to(goes_on)) * goes_on > 0)
        reached = reached | (transition.push(reached.to(goes_on) * goes_on) > 0)
    if bool((reached & ~can_end).any()):
        raise DomainError(
            f"a sequence that comes to state {int((reached & ~can_end).nonzero()[0])} never ends.\n"
            "  Give a length: sample(n). Priors (smoothing, end_prior) keep end probabilities above 0."
        )
