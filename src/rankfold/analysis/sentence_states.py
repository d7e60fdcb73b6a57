"""The states of every position of a text: the most probable ones with their probabilities, best paths, and their use.

A text of any size streams through in batches; sentences are read each by itself, as `rankfold tag` reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.state_profiles import Use
from rankfold.data.batch import Batch, length_batches
from rankfold.decoding.posterior import posterior
from rankfold.decoding.viterbi import viterbi
from rankfold.errors import DomainError

ENTRIES = 2**24  # of a posterior "b t z"
AT_ONCE = 4096  # sentences that are sorted by length together


class SentenceStates(NamedTuple):
    """The states of one sentence, `<eos>` included; -1 throughout where the model cannot say it."""

    states: NDArray[np.int32]  # "t k"         the most probable first; -1 where fewer have a probability above 0
    probability: NDArray[np.float32]  # "t k"  of each, given the whole sentence
    path: NDArray[np.int32] | None = None  # "t"   the most probable path, where asked for


class UseCounter:
    """Adds up the posteriors of positions: the expected number of positions of each state."""

    def __init__(self, chain: HiddenChain) -> None:
        self.mass = torch.zeros(chain.num_values, dtype=torch.float64, device=chain.device)
        self.leaving = torch.zeros_like(self.mass)  # without the last position of each sentence
        self.num_positions = 0

    def add(self, state: Tensor, lengths: Tensor, block: Tensor | None = None) -> None:  # "b t z", "b", "b t"
        """Count a batch; beyond the lengths posteriors are 0."""
        width = state.shape[1]
        goes_on = torch.arange(width, device=state.device) < lengths[:, None] - 1
        for total, chosen in ((self.mass, state), (self.leaving, state * goes_on.unsqueeze(-1))):
            flat = chosen.flatten(0, 1)
            if block is None:
                total += flat.sum(0, dtype=torch.float64)
            else:
                total.view(-1, state.shape[2]).index_add_(0, block.flatten(), flat.double())
        self.num_positions += int(lengths.sum())

    def use(self) -> Use:
        """The shares of all positions that were counted."""
        total = self.mass.sum()
        if not bool(total > 0):
            raise DomainError(
                "no position has a state: there were no sentences, or none that the model can say.\n"
                "  Give a text of the model's words, one sentence per line."
            )
        return Use((self.mass / total).cpu().numpy(), (self.leaving / total).cpu().numpy())


def sentence_states(
    chain: HiddenChain,
    sentences: Iterable[Sequence[int]],
    *,
    top: int = 5,
    paths: bool = False,
    counter: UseCounter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[SentenceStates]:
    """The `top` most probable states of every position of each sentence (word ids with `<eos>`), in the text's order.

    `paths`: with the most probable path; its cost is z^2 for each position, also of a low-rank transition. `counter`
    adds up the use of all states on the way. `progress` is told the number of sentences done.
    """
    if top < 1:
        raise DomainError(f"top is {top}, but at least 1 state of each position can be shown.")
    done, following = 0, iter(sentences)
    while chunk := list(itertools.islice(following, AT_ONCE)):
        batches = length_batches(chunk, max(1, ENTRIES // chain.position_entries))
        answers: dict[int, SentenceStates] = {}
        for places, batch in zip(batches.groups, batches, strict=True):
            answers.update(zip(places, _answer(chain, batch.to(chain.device), top, paths, counter), strict=True))
            if progress is not None:
                progress(done + len(answers))
        done += len(chunk)
        yield from (answers[place] for place in range(len(chunk)))


def text_use(
    chain: HiddenChain, sentences: Iterable[Sequence[int]], *, progress: Callable[[int], None] | None = None
) -> Use:
    """The expected share of the positions of a text that each state has: the exact posteriors, added up."""
    counter = UseCounter(chain)
    for _ in sentence_states(chain, sentences, top=1, counter=counter, progress=progress):
        pass
    return counter.use()


def _answer(
    chain: HiddenChain, batch: Batch, top: int, paths: bool, counter: UseCounter | None
) -> Iterator[SentenceStates]:
    with torch.no_grad():
        potentials = chain.model.potentials(batch, parts=chain.parts)
        state = posterior(potentials).state  # "b t z" or, of blocks, "b t k"
        block = potentials.block if chain.has_blocks else None
        if counter is not None:
            counter.add(state, batch.lengths, block)
        best = state.topk(min(top, state.shape[2]), dim=2)
        ids = best.indices if block is None else best.indices + block.unsqueeze(-1) * state.shape[2]
        ids = torch.where(best.values > 0, ids, -1).to(torch.int32).cpu().numpy()
        values = best.values.float().cpu().numpy()
        best_paths = viterbi(potentials).path.to(torch.int32).cpu().numpy() if paths else None
    for i, length in enumerate(batch.lengths.tolist()):
        yield SentenceStates(
            ids[i, :length], values[i, :length], None if best_paths is None else best_paths[i, :length]
        )
