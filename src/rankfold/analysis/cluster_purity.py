"""How well states keep to classes of words: the share of a state's words in one class, and the states of a class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.state_profiles import Floats, Ints, Use
from rankfold.data.clusters import Clusters
from rankfold.errors import ShapeError


class Purity(NamedTuple):
    """Of every state its class of words; and of every class the states that say its words."""

    cluster: Ints  # "z"      the class with the largest share of p(word | state)
    purity: Floats  # "z"     that share
    mean: float  # sum_z use[z] purity[z]
    chance: float  # the same of one state that says all words: the largest class of the text
    states: Floats  # "k"     exp(entropy of p(state | class)): as many equally used states say the class's words


def cluster_purity(chain: HiddenChain, use: Use, clusters: Clusters) -> Purity:
    """purity[z] = max_c sum of p(word | z) over the words of class c.   Cost: all rows of words once.

    Where each cluster has states of its own, and these are the clusters, every purity is 1.
    """
    if len(clusters.assignment) != chain.num_words:
        raise ShapeError(
            f"the clusters are of {len(clusters.assignment):,} words, but the model knows {chain.num_words:,}.\n"
            "  Read them with the words of the model's vocabulary."
        )
    of_word = clusters.assignment.to(chain.device)
    shares = []
    for own in chain.blocks(chain.num_words):
        rows = chain.word_rows(own).double()
        shares.append(rows.new_zeros(len(own), clusters.num_clusters).index_add_(1, of_word, rows).cpu())
    share = torch.cat(shares)  # "z k"
    purity, best = share.max(1)
    joint = torch.from_numpy(use.share)[:, None] * share
    total = joint.sum(0)
    given = joint / torch.where(total > 0, total, 1.0)
    states = torch.where(total > 0, torch.special.entr(given).sum(0).exp(), 0.0)
    mean = float(np.dot(use.share, purity.numpy()))
    return Purity(best.numpy(), purity.numpy(), mean, float(total.max()), states.numpy())
