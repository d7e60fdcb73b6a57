"""States with their words as text: plain data for tables, JSON and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rankfold.analysis.hidden_chain import HiddenChain, end_of
from rankfold.analysis.state_profiles import Ranked, StateProfiles, Use
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DomainError


def named_states(chain: HiddenChain, profiles: StateProfiles, words: Sequence[str]) -> list[dict[str, Any]]:
    """One mapping for each state: lists are [word, number] or [state, number, the state's most probable word].

    `ends` is p(<eos> | state): what follows such a state is of sentences that go on, and unknown where it is 1.
    """
    if len(words) != chain.num_words:
        raise DomainError(f"{len(words)} words came, but the model knows {chain.num_words}.")
    neighbours = np.unique(np.concatenate([profiles.next.ids.ravel(), profiles.previous.ids.ravel()]))
    end = end_of(chain.model.vocabulary, chain.num_words)
    ends = np.zeros(chain.num_values) if end is None else chain.word_share(end).double().cpu().numpy()
    says = best_words(chain, [state for state in neighbours.tolist() if state >= 0], words)
    return [
        {
            "state": int(profiles.states[i]),
            "use": float(profiles.share[i]),
            "ends": float(ends[profiles.states[i]]),
            "word_entropy": float(profiles.word_entropy[i]),
            "next_entropy": float(profiles.next_entropy[i]),
            "words": _pairs(profiles.words, i, words),
            "typical": _pairs(profiles.typical, i, words),
            "next": _states(profiles.next, i, says),
            "previous": _states(profiles.previous, i, says),
        }
        for i in range(len(profiles.states))
    ]


def best_words(chain: HiddenChain, states: Sequence[int], words: Sequence[str]) -> dict[int, str]:
    """The most probable word of each of these states."""
    index = torch.tensor(list(states), dtype=torch.int64, device=chain.device)
    found = [chain.word_rows(own).argmax(1) for own in chain.blocks(chain.num_words, index)] if len(index) else []
    ids = torch.cat(found).tolist() if found else []
    return {state: words[i] for state, i in zip(states, ids, strict=True)}


def most_used(use: Use, num: int) -> list[int]:
    """The states of the largest share, the largest first; of equal ones the smallest number. None without a share."""
    order = np.argsort(-use.share, kind="stable")[:num]
    return [int(state) for state in order if use.share[state] > 0]


def telling_first(chain: HiddenChain, states: Sequence[int]) -> list[int]:
    """The same states; those whose most probable word is `<unk>` or `<eos>`, which tell little, after all others."""
    end = end_of(chain.model.vocabulary, chain.num_words)
    index = torch.tensor(list(states), dtype=torch.int64, device=chain.device)
    rows = (chain.word_rows(own).argmax(1).tolist() for own in chain.blocks(chain.num_words, index))
    words = [word for block in rows for word in block] if len(states) else []
    silent = [word in (Vocabulary.unk_id, end) for word in words]
    return [state for last in (False, True) for state, s in zip(states, silent, strict=True) if s == last]


def _pairs(ranked: Ranked, row: int, words: Sequence[str]) -> list[list[Any]]:
    entries = zip(ranked.ids[row].tolist(), ranked.values[row].tolist(), strict=True)
    return [[words[i], value] for i, value in entries if i >= 0]


def _states(ranked: Ranked, row: int, says: dict[int, str]) -> list[list[Any]]:
    entries = zip(ranked.ids[row].tolist(), ranked.values[row].tolist(), strict=True)
    return [[state, value, says[state]] for state, value in entries if state >= 0]
