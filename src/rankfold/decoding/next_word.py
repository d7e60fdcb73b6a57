"""From what comes next, hidden, to the next word: a mixture of emissions.

Read next: `models/sequence_model.py`, `models/pcfg.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

AT_ONCE = 2**24  # numbers of a block


def next_words(  # "b z" -> "b v"   float64
    log_next: Tensor, log_emission_rows: Callable[[Tensor], Tensor], num_words: int
) -> Tensor:
    """log sum_z next[z] emission[z, v], some hidden values at a time."""
    log_next = log_next.double()
    every = torch.arange(log_next.shape[1], device=log_next.device)
    total = log_next.new_full((len(log_next), num_words), float("-inf"))
    for index in torch.split(every, max(1, AT_ONCE // total.numel())):
        part = log_next[:, index, None] + log_emission_rows(index).double()
        total = torch.logaddexp(total, torch.logsumexp(part, 1))
    return total
