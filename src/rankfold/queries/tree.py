"""Questions of a batch of sentences under a grammar: likelihood, brackets, best trees, samples.

A thin face on `decoding`, in the manner of torch.distributions. Read next: `decoding/tree_mbr.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from rankfold.data.text import escaped
from rankfold.data.trees import Tree, tree_of_spans
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.tree_best import joint_map_tree, sample_tree, viterbi_tree
from rankfold.decoding.tree_mbr import mbr_tree
from rankfold.decoding.tree_records import ParsedTree
from rankfold.decoding.trees import leaf_posterior, span_posterior
from rankfold.errors import UnsupportedError
from rankfold.recursions import tree
from rankfold.recursions.tree.potentials import TreePotentials

SPAN, LABEL, TAG = "X", "NT", "T"


class TreeQuery:
    """The posterior over trees of a batch of sentences.

    Trees are `rankfold.data.trees.Tree`, of the vocabulary's words, or of ids where there is none. Nonterminal 17 is
    written NT-17, preterminal 5 T-5; a tree without labels has X and T. A sentence of one word is a tag over it. None
    stands for a sentence of more words that no tree can make.

    `labelled` gives the potentials whose labels are the grammar's own symbols, where `potentials` are over ranks.
    """

    def __init__(
        self,
        potentials: TreePotentials,
        *,
        labelled: Callable[[], TreePotentials] | None = None,
        words: Tensor | None = None,  # "b t"
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.potentials, self.words, self.vocabulary = potentials, words, vocabulary
        self._labelled = labelled

    @cached_property
    def labelled(self) -> TreePotentials:
        """The potentials over the grammar's own symbols."""
        return self.potentials if self._labelled is None else self._labelled()

    @property
    def log_partition(self) -> Tensor:  # "b"   float64
        """The log-probability of each sentence, summed over all trees; differentiable. -inf for an impossible one."""
        return tree.log_z(self.potentials)

    def log_prob(self) -> Tensor:  # "b"   float64
        """The same: the log-probability of each sentence."""
        return self.log_partition

    def span_posterior(self) -> Tensor:  # "b t+1 t+1"
        """The probability that words i..j-1 form a constituent, in entry [i, j]; see `rankfold.span_posterior`."""
        return span_posterior(self.potentials)

    def leaf_posterior(self) -> Tensor:  # "b t p"
        """The probability of each preterminal of each word; see `rankfold.leaf_posterior`."""
        return leaf_posterior(self.potentials)

    def mbr(self, *, labels: bool = False) -> list[Tree | None]:
        """The trees with the most brackets (with `labels`: and their labels) expected to be right; see `mbr_tree`."""
        return self._trees(mbr_tree(self.labelled if labels else self.potentials, labels=labels))

    def viterbi(self) -> list[Tree | None]:
        """The most probable trees with their labels, exact; see `viterbi_tree` for what that costs."""
        return self._trees(viterbi_tree(self.labelled))

    def joint_map(self) -> list[Tree | None]:
        """The labels of the most probable trees and ranks together, of rules with ranks; see `joint_map_tree`."""
        return self._trees(joint_map_tree(self.labelled))

    def sample(self, num_samples: int = 1, *, generator: torch.Generator | None = None) -> list[list[Tree | None]]:
        """Trees with labels drawn from the posterior, exact and independent: by sample, then sentence."""
        drawn = sample_tree(self.labelled, num_samples, generator=generator)
        return [self._trees(trees) for trees in drawn]

    def _trees(self, found: list[ParsedTree]) -> list[Tree | None]:
        return [as_tree(one, words) for one, words in zip(found, self._sentences(), strict=True)]

    def _sentences(self) -> list[list[str]]:
        """The words of every sentence, without padding."""
        if self.words is None:
            raise UnsupportedError(
                "trees have words, but this query was made of potentials alone.\n"
                "  Ask model(words, lengths), or rankfold.mbr_tree(potentials) for brackets as numbers."
            )
        rows, lengths = self.words.tolist(), self.potentials.lengths
        ends = [len(row) for row in rows] if lengths is None else lengths.tolist()
        names = self.vocabulary.words if self.vocabulary is not None else None
        return [
            [escaped(str(i) if names is None else names[i]) for i in row[:n]] for row, n in zip(rows, ends, strict=True)
        ]

    def __repr__(self) -> str:
        num_sentences, num_words, num_leaves = self.potentials.log_leaf.shape
        num_spans = self.potentials.rules.span_span.shape[0]
        return (
            f"TreeQuery({num_sentences} sentences of up to {num_words} words, "
            f"over {num_spans:,} symbols of spans and {num_leaves:,} of words)"
        )


def as_tree(found: ParsedTree, words: Sequence[str]) -> Tree | None:
    """Brackets and symbols as a tree of these words; None for more than one word without a bracket."""
    tags = [TAG] * len(words) if not found.tags else [f"{TAG}-{tag}" for tag in found.tags]
    if len(words) == 1:
        return Tree(tags[0], (words[0],))
    if not found.spans:
        return None
    labels = [SPAN] * len(found.spans) if found.labels is None else [f"{LABEL}-{label}" for label in found.labels]
    spans = [(start, end, label) for (start, end), label in zip(found.spans, labels, strict=True)]
    return tree_of_spans(words, spans, tags=tags)
