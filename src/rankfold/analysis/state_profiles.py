"""What each state of a model of words does: its words, its use, its entropies, what follows and precedes it.

Results are arrays of numpy. At 16,384 states every table of states and words, or states and states, is seen in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.analysis.hidden_chain import HiddenChain, end_of
from rankfold.decoding.query import Values
from rankfold.errors import DomainError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Largest = tuple[Tensor, Tensor]  # "k n": values and ids
FEW = 64  # states whose columns of the transition are asked for one by one; more take a pass over all rows
MOVED = 1e-6  # of all mass, in a step: what float32 can tell


class Use(NamedTuple):
    """How often each state occurs, as shares of all positions; `<eos>` is a position, too."""

    share: Floats  # "z"     sums to 1
    leaving: Floats  # "z"   the part of it whose sentence goes on: not the position of <eos>
    moved: float = 0.0  # of the stationary share: the mass that the last step still moved


class Ranked(NamedTuple):
    """The largest entries of each row, the largest first; where a row has fewer above 0, -1 and 0 fill it."""

    ids: Ints  # "k n"
    values: Floats  # "k n"


class StateProfiles(NamedTuple):
    """One row for each of `states`, in their order."""

    of: Values  # "states", or "ranks" of a rank-space model
    states: Ints  # "k"
    share: Floats  # "k"         of all positions
    words: Ranked  # "k n"       p(word | state)
    typical: Ranked  # "k n"     lift: p(word | state) / p(word), of the words that tell the state from the text
    word_entropy: Floats  # "k"  of p(word | state), in nats
    next_entropy: Floats  # "k"  of p(next | state), in nats
    next: Ranked  # "k n"        p(next | state)
    previous: Ranked  # "k n"    p(previous | state), by Bayes' rule with the use of the previous state


def stationary_use(chain: HiddenChain, *, max_steps: int = 2000, tolerance: float = MOVED) -> Use:
    """The share of each state in endless text of the model: sentences one after the other, each from a fresh start.

        share' = (share * (1 - e)) A + (share . e) start          e_z = p(<eos> | z)

    Repeated from the start, every step averaged with the one before so that no cycle keeps it from settling, until a
    step moves less than `tolerance`; `moved` says how much. Cost: one product with the transition for each step.
    """
    start = chain.log_initial.exp()
    end = end_of(chain.model.vocabulary, chain.num_words)
    ends = torch.zeros_like(start) if end is None else chain.word_share(end)
    share, moved = start / start.sum(), 1.0
    for _ in range(max_steps):
        after = chain.push(share * (1 - ends)) + (share * ends).sum() * start
        after = (share + after / after.sum()) / 2
        moved, share = float((after - share).abs().sum()), after
        if moved < tolerance:
            break
    whole = share.double() / share.double().sum()
    return Use(_floats(whole), _floats(whole * (1 - ends.double())), moved)


def state_profiles(
    chain: HiddenChain, use: Use, states: Sequence[int] | None = None, *, top: int = 10, unigram: Tensor | None = None
) -> StateProfiles:  # unigram "v"
    """What these states (all by default) say, what follows and what precedes them; `top` entries of each list.

        previous[y] = p(z | y) = leaving[z] A[z, y] / sum_z' leaving[z'] A[z', y]

    Typical words are those with the largest share p log(p / p(word)) of the divergence between the state's words and
    the text's, p(word) = sum_z share[z] p(word | z); `unigram` saves computing it. The previous state is that of the
    model, not of a text: for a position of a text ask `sentence_states`.
    Cost: all rows of words (for `unigram`), all rows of the transition, and the rows of `states` again.
    """
    if top < 1:
        raise DomainError(f"top is {top}, but at least 1 entry of each list can be shown.")
    chosen = list(range(chain.num_values)) if states is None else list(states)
    for state in chosen:
        if not 0 <= state < chain.num_values:
            raise DomainError(f"there is no {chain.of[:-1]} {state}: this model has 0 to {chain.num_values - 1}.")
    index = torch.tensor(chosen, dtype=torch.int64, device=chain.device)
    share = torch.from_numpy(use.share).to(chain.device)
    unigram = chain.unigram(share) if unigram is None else unigram
    words, typical, word_entropy = _words(chain, index, unigram, top)
    following, preceding, next_entropy = _neighbours(chain, index, torch.from_numpy(use.leaving).to(chain.device), top)
    return StateProfiles(
        chain.of,
        np.array(chosen, dtype=np.int64),
        use.share[chosen],
        words,
        typical,
        word_entropy,
        next_entropy,
        following,
        preceding,
    )


def word_entropies(chain: HiddenChain) -> Floats:  # "z"
    """The entropy of p(word | state) of every state, in nats."""
    rows = (chain.word_rows(own) for own in chain.blocks(chain.num_words))
    return _floats(torch.cat([torch.special.entr(row).sum(1).double() for row in rows]))


def _words(chain: HiddenChain, index: Tensor, unigram: Tensor, top: int) -> tuple[Ranked, Ranked, Floats]:
    """The most probable words, the most typical ones with their lift, and the entropy of the words."""
    probable, typical, entropies = [], [], []
    log_unigram = torch.log(torch.where(unigram > 0, unigram, 1.0))
    for own in chain.blocks(chain.num_words, index):
        rows = chain.word_rows(own)
        surprise = torch.special.entr(rows)  # -p log p, 0 at 0
        entropies.append(surprise.sum(1).double())
        probable.append(_largest(rows, top))
        ids = _largest(-surprise - rows * log_unigram.to(rows.dtype), top)[1]
        there = torch.where(ids < 0, 0, ids)
        lift = rows.gather(1, there).double() / unigram.double()[there]
        typical.append((torch.where(ids < 0, 0.0, lift), ids))
    return _ranked(probable), _ranked(typical), _floats(torch.cat(entropies))


def _neighbours(chain: HiddenChain, index: Tensor, leaving: Tensor, top: int) -> tuple[Ranked, Ranked, Floats]:
    """The most probable next values of some values, their most probable previous ones, and the entropy of the next."""
    size = chain.num_values
    every = len(index) == size and bool((index == torch.arange(size, device=index.device)).all())
    following, entropies = [], []

    def look(rows: Tensor) -> None:
        following.append(_largest(rows, top))
        entropies.append(torch.special.entr(rows).sum(1).double())

    for own in () if every else chain.blocks(size, index):
        look(chain.next_rows(own))
    best = _Best(len(index), top, index)
    columns = chain.next_columns(index) if len(index) <= FEW else None
    if columns is not None:
        best.see(columns * leaving.to(columns.dtype), 0)
    for own in () if columns is not None and not every else chain.blocks(size):
        rows = chain.next_rows(own)
        if every:
            look(rows)
        if columns is None:
            best.see((rows if every else rows[:, index]).mT * leaving[own].to(rows.dtype), int(own[0]))
    return _ranked(following), _ranked([best.shares()]), _floats(torch.cat(entropies))


class _Best:
    """The largest entries of rows "k z" that come in pieces, as shares of the rows' sums."""

    def __init__(self, num_rows: int, top: int, like: Tensor) -> None:
        self.top = top
        self.total = torch.zeros(num_rows, dtype=torch.float64, device=like.device)
        self.values, self.ids = self.total.new_zeros(num_rows, 0), like.new_zeros(num_rows, 0)

    def see(self, rows: Tensor, first: int) -> None:  # "k n"
        """The next entries of each row, which begin at `first`."""
        values, ids = _largest(rows, self.top)
        values = torch.cat([self.values, values.double()], 1)
        ids = torch.cat([self.ids, torch.where(ids < 0, -1, ids + first)], 1)
        self.values, order = values.topk(min(self.top, values.shape[1]), dim=1)
        self.ids = ids.gather(1, order)
        self.total += rows.sum(1).double()

    def shares(self) -> Largest:
        """The largest so far; 0 and -1 for rows without any."""
        return self.values / torch.where(self.total > 0, self.total, 1.0)[:, None], self.ids


def _largest(rows: Tensor, top: int) -> Largest:  # "k n"
    """The largest entries above 0 of each row; fewer are filled with 0, of id -1."""
    values, ids = rows.topk(min(top, rows.shape[1]), dim=1)
    return torch.where(values < 0, 0.0, values), torch.where(values > 0, ids, -1)


def _ranked(blocks: Sequence[Largest]) -> Ranked:
    values, ids = (torch.cat(columns) for columns in zip(*blocks, strict=True))
    found: Ints = ids.cpu().numpy()
    return Ranked(found, _floats(values))


def _floats(x: Tensor) -> Floats:
    found: Floats = x.double().cpu().numpy()
    return found
