"""Segments of an ordinary chain: stretches of frames with one state, in the table that semi-Markov chains have.

Read next: `decoding/segments.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.decoding.posterior import state_posterior
from rankfold.decoding.segments import Segment
from rankfold.decoding.viterbi import BestPath, viterbi
from rankfold.recursions.chain import messages
from rankfold.recursions.chain.potentials import ChainPotentials, validate


def runs(p: ChainPotentials, best: BestPath | None = None) -> list[list[Segment]]:
    """The table of each sequence's stretches of equal states: start, end (exclusive), state, posterior.

    Of the best path, or of the one given. `posterior` is the probability that all frames of the stretch have its
    state, whatever is before and after: an ordinary chain has no segments of its own whose borders could be asked for.
    An impossible sequence has no stretches. Cost: that of `viterbi`, of a forward and of a backward pass.
    """
    c = validate(p).detach()
    best = viterbi(p) if best is None else best
    p = ChainPotentials(c.log_initial, c.transition, c.log_obs, c.log_final, c.lengths)
    with torch.no_grad():
        found, states = messages(p), state_posterior(p)
    weight = _Weight(p, *(x.mantissa.double().log() + x.log_scale.double().unsqueeze(-1) for x in found))
    table = []
    for i, length in enumerate(c.lengths.tolist()):
        path = best.path[i, :length]
        starts = [0, *((path[1:] != path[:-1]).nonzero()[:, 0] + 1).tolist()] if int(path[0]) >= 0 else []
        rows = []
        for start, end in zip(starts, [*starts[1:], length], strict=False):
            state = int(path[start])
            mean = float(states[i, start:end, state].mean())
            rows.append(Segment(start, end, state, weight(i, start, end, state), mean))
        table.append(rows)
    return table


class _Weight:
    """The posterior of single stretches, from the messages on both sides."""

    def __init__(self, p: ChainPotentials, filtered: Tensor, future: Tensor) -> None:  # "b t z"
        self._p, self._filtered, self._future = p, filtered, future
        self._stays: dict[int, float] = {}

    def __call__(self, i: int, start: int, end: int, state: int) -> float:
        if state not in self._stays:
            index = torch.tensor([state], device=self._filtered.device)
            self._stays[state] = float(self._p.transition.log_rows(index)[0, state])
        inside = self._p.log_obs[i, start + 1 : end, state].double().sum() + (
            (end - start - 1) * self._stays[state] if end - start > 1 else 0.0
        )
        log_z = (self._filtered[i, 0] + self._future[i, 0]).logsumexp(0)
        total = self._filtered[i, start, state] + inside + self._future[i, end - 1, state] - log_z
        return min(1.0, float(torch.exp(total)))
