"""States and ranks change places: a rank-space HMM of m states and rank r is an HMM of r states and rank at most m.

Words come from ranks, so ranks are the states of a chain with the transition V^T U, "r r", and the start s U.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.matrix_ranks import Spectrum, transition_spectrum
from rankfold.errors import UnsupportedError
from rankfold.models.base import Model
from rankfold.models.rank_hmm import RankHMM
from rankfold.models.sequence import HMM
from rankfold.training.evaluation import Evaluation, evaluate


class Interchange(NamedTuple):
    """One text by three roads to the same number, and the spectrum of the transition of ranks."""

    as_states: Evaluation  # V^T and U one after the other: the LHMM of r states and rank m
    as_ranks: Evaluation  # V^T U multiplied out
    as_hmm: Evaluation  # an HMM of r states with free tables, built from the model's numbers
    spectrum: Spectrum

    @property
    def gap(self) -> float:
        """The largest difference of two of them, in nats per token."""
        nats = [found.nats for found in self[:3]]
        return max(nats) - min(nats)


def interchanged(model: Model[Any, Any]) -> HMM:
    """The HMM whose states are the ranks of a rank-space model, with the same probability of every sentence. float64.

    Its transition "r r" is written out: p(rank' | rank) = sum_z p(z | rank) p(rank' | z).
    """
    if not isinstance(model, RankHMM):
        raise UnsupportedError(
            f'the family is "{model.config.family}", but states and ranks change places in a rank-space HMM alone.\n'
            '  There words come from ranks; train a model of the family "rank", recipe small-rank for one.'
        )
    chain = HiddenChain(model)
    every = torch.arange(chain.num_values, device=chain.device)
    rows = chain.log_initial.exp()[None], chain.next_rows(every), chain.word_rows(every)
    start, transition, emission = (x.double() / x.double().sum(1, keepdim=True) for x in rows)
    found = HMM.from_tables(start[0], transition, emission)
    found.vocabulary = model.vocabulary
    return found.to(chain.device)


def interchange(model: Model[Any, Any], sentences: Sequence[Sequence[int]]) -> Interchange:
    """The likelihood of sentences, as ids, by both orders of a rank-space HMM and by the HMM of its ranks."""
    other = interchanged(model)  # refuses other families
    return Interchange(
        evaluate(model, sentences, plan="state"),
        evaluate(model, sentences, plan="rank"),
        evaluate(other, sentences),
        transition_spectrum(HiddenChain(model)),
    )
