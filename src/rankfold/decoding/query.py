"""The result of `model(words)`: all questions of one batch as methods, in the manner of torch.distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from rankfold.data.text import escape_brackets
from rankfold.data.trees import Tree
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.counts import expected_counts
from rankfold.decoding.entropy import Of, entropy
from rankfold.decoding.k_best import KBestTrees, k_best
from rankfold.decoding.mbr import LikelyTrees, mbr
from rankfold.decoding.parsed_tree import ParsedTree, as_tree
from rankfold.decoding.posterior import posterior
from rankfold.decoding.sample import SampledTrees, sample
from rankfold.decoding.viterbi import BestTrees, viterbi
from rankfold.errors import UnsupportedError
from rankfold.recursions import log_z
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.tree.potentials import TreePotentials

Values = Literal["states", "ranks"]


class Query:
    """The posterior over the hidden structures of a batch: each method is the question of that name."""

    def __init__(self, potentials: Any) -> None:
        self.potentials = potentials

    @property
    def log_partition(self) -> Tensor:  # "b"   float64
        """The log-probability of each sequence, summed over all structures; differentiable. -inf if impossible."""
        return log_z(self.potentials)

    def log_prob(self) -> Tensor:  # "b"   float64
        """The same: the log-probability of each sequence."""
        return self.log_partition

    def posterior(self) -> Any:
        """See `rankfold.posterior`."""
        return posterior(self.potentials)

    def viterbi(self, *, of: Of = "states") -> Any:
        """See `rankfold.viterbi`."""
        return viterbi(self.potentials, of=of)

    def k_best(self, k: int) -> Any:
        """See `rankfold.k_best`."""
        return k_best(self.potentials, k)

    def mbr(self) -> Any:
        """See `rankfold.mbr`."""
        return mbr(self.potentials)

    def sample(self, num_samples: int | None = None, *, generator: torch.Generator | None = None) -> Any:
        """See `rankfold.sample`."""
        return sample(self.potentials, num_samples=num_samples, generator=generator)

    def expected_counts(self) -> Any:
        """See `rankfold.expected_counts`."""
        return expected_counts(self.potentials)

    def entropy(self, *, of: Of = "states") -> Tensor:  # "b"   float64
        """See `rankfold.entropy`."""
        return entropy(self.potentials, of=of)


class PathQuery(Query):
    """Questions of hidden paths. `of` says what a path is made of: states, or ranks where the states are summed out."""

    def __init__(
        self, potentials: ChainPotentials | BlockPotentials, num_values: int, *, of: Values = "states"
    ) -> None:
        super().__init__(potentials)
        self.num_values, self.of = num_values, of

    def one_hot(self, path: Tensor) -> Tensor:  # "... t" -> "... t z"
        """A path as indicators; a position without a state has none."""
        there = path >= 0
        return one_hot(torch.where(there, path, 0), self.num_values) * there.unsqueeze(-1)

    def __repr__(self) -> str:
        num_sequences, num_positions, size = self.potentials.log_obs.shape
        own = "" if size == self.num_values else f"{size:,} {self.of} per word of "
        return f"PathQuery({num_sequences} sequences of up to {num_positions}, over {own}{self.num_values:,} {self.of})"


class TreeQuery(Query):
    """Questions of trees. `.trees` of the answers are `rankfold.data.trees.Tree` of the vocabulary's words, or of ids.

    Nonterminal 17 is written NT-17, preterminal 5 T-5; a tree without labels has X and T. A sentence of one word is a
    tag over it. None stands for a sentence of more words that no tree can make.

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
        super().__init__(potentials)
        self.words, self.vocabulary, self._labelled = words, vocabulary, labelled

    @cached_property
    def labelled(self) -> TreePotentials:
        """The potentials over the grammar's own symbols."""
        return self.potentials if self._labelled is None else self._labelled()

    def mbr(self, *, labels: bool = False) -> LikelyTrees[Tree | None]:
        """The trees with the most brackets (with `labels`: and their labels) to be right; see `rankfold.mbr`."""
        found = mbr(self.labelled if labels else self.potentials, labels=labels)
        return LikelyTrees(self._trees(found.trees), found.expected)

    def viterbi(self, *, of: Of = "states") -> BestTrees[Tree | None]:
        """The most probable trees with their labels, exact; see `rankfold.viterbi` for what that costs."""
        found = viterbi(self.labelled, of=of)
        return BestTrees(self._trees(found.trees), found.log_prob)

    def k_best(self, k: int) -> KBestTrees[Tree | None]:
        """The k most probable trees with their labels, by rank, then sentence; see `rankfold.k_best`."""
        found = k_best(self.labelled, k)
        trees = [self._trees(row) for row in found.trees]
        there = (found.log_prob > float("-inf")).tolist()  # one word is a tag, also of a tree that is not there
        kept = [[x if y else None for x, y in zip(*row, strict=True)] for row in zip(trees, there, strict=True)]
        return KBestTrees(kept, found.log_prob)

    def sample(self, num_samples: int | None = None, *, generator: torch.Generator | None = None) -> SampledTrees[Any]:
        """Trees with labels drawn from the posterior; with `num_samples` by sample, then sentence."""
        drawn = sample(self.labelled, num_samples=1 if num_samples is None else num_samples, generator=generator)
        rows = [self._trees(trees) for trees in drawn.trees]
        return SampledTrees(rows[0] if num_samples is None else rows)

    def entropy(self, *, of: Of = "states") -> Tensor:  # "b"   float64
        """The entropy of trees with the grammar's own labels."""
        return entropy(self.labelled, of=of)

    def _trees(self, found: Sequence[ParsedTree]) -> list[Tree | None]:
        return [as_tree(one, words) for one, words in zip(found, self._sentences(), strict=True)]

    def _sentences(self) -> list[list[str]]:
        """The words of every sentence, without padding."""
        if self.words is None:
            raise UnsupportedError(
                "trees have words, but this query was made of potentials alone.\n"
                "  Ask model(words, lengths), or rankfold.mbr(potentials) for brackets as numbers."
            )
        rows, lengths = self.words.tolist(), self.potentials.lengths
        ends = [len(row) for row in rows] if lengths is None else lengths.tolist()
        names = self.vocabulary.words if self.vocabulary is not None else None
        return [
            [escape_brackets(str(i) if names is None else names[i]) for i in row[:n]]
            for row, n in zip(rows, ends, strict=True)
        ]

    def __repr__(self) -> str:
        num_sentences, num_words, num_leaves = self.potentials.log_leaf.shape
        num_spans = self.potentials.rules.span_span.shape[0]
        return (
            f"TreeQuery({num_sentences} sentences of up to {num_words} words, "
            f"over {num_spans:,} symbols of spans and {num_leaves:,} of words)"
        )
