"""The compound PCFG: a neural grammar whose probabilities depend on a vector drawn for each sentence.

    h ~ normal(0, 1);   p(x | h) = sum over trees under the grammar of h

Given h trees are summed out exactly; over h there is no closed form, so a bound is trained and reported:

    log p(x) >= E_q(h | x)[log p(x | h)] - KL(q(h | x) || normal)          estimated with one draw of h

Source: Kim, Dyer, Rush 2019. Published figures put the mean of q in place of the
expectation, which is no bound of anything; ours are draws.
"""

from __future__ import annotations

import zlib
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.decoding.generate import Generated, WordChoice, generate_trees
from rankfold.decoding.parsed_tree import ParsedTree
from rankfold.decoding.query import TreeQuery
from rankfold.errors import DomainError, UnsupportedError, may_look
from rankfold.models.base import Context, Shares, linear
from rankfold.models.config import GrammarConfig
from rankfold.models.pcfg import Grammar, NextWord
from rankfold.numerics.precision import Precision
from rankfold.operators import BinaryDense, Branch
from rankfold.params.rules.compound import CompoundGrammar, Halves, LatentGaussian, SentenceEncoder
from rankfold.planning.cost import Plans
from rankfold.planning.trees import TreeSizes, pair_rules, tree_plans
from rankfold.recursions.ladder import Arithmetic
from rankfold.recursions.tree.potentials import TreePotentials

Latent = Literal["draw", "mean"]


class CompoundParts(NamedTuple):
    """The parts that do not depend on a sentence."""

    halves: Halves


class BoundPotentials(TreePotentials):
    """The trees of each sentence given its vector, and the KL divergence of the vector."""

    divergence: Tensor  # "b"   float64, nats

    def _replace(self, **changes: Any) -> BoundPotentials:
        """The same sentences and vectors, with constraints for instance."""
        changed: BoundPotentials = super()._replace(**changes)
        changed.divergence = self.divergence
        return changed


class CompoundPCFG(Grammar[CompoundParts, BoundPotentials]):
    """Family "cpcfg".

    Questions are answered given the mean of q: `.log_partition` is log p(x | h) there, not a likelihood: that is
    `log_likelihood`, a bound.
    """

    is_bound = True
    shared_rules = False

    def __init__(
        self, config: GrammarConfig, grammar: CompoundGrammar, encoder: SentenceEncoder, num_words: int
    ) -> None:
        super().__init__(config, num_words)
        self.grammar, self.encoder = grammar, encoder

    def own_parts(self, generator: torch.Generator | None = None) -> CompoundParts:
        return CompoundParts(self.grammar.halves())

    def posterior(self, batch: Batch) -> LatentGaussian:
        """q(h | x): the encoder's distribution of the vector of each sentence."""
        found: LatentGaussian = self.encoder(batch)
        return found

    def own_potentials(
        self, batch: Batch, parts: CompoundParts, context: Context, latent: Latent = "draw"
    ) -> BoundPotentials:
        """The trees of each sentence given one draw from q, or q's mean.

        Without a generator a sentence's draw is decided by its words: the same in every batch, at every evaluation.
        """
        found, trained = self._given(batch, parts, context.generator, latent), context.generator is not None
        found = found._replace(log_span=self.early_spans(batch, context, found.log_leaf))
        return found if trained or torch.is_grad_enabled() else self.wide_potentials(found, batch, latent)

    def _given(
        self, batch: Batch, parts: CompoundParts, generator: torch.Generator | None, latent: Latent
    ) -> BoundPotentials:
        posterior = self.posterior(batch)
        vector = posterior.mean if latent == "mean" else posterior.draw(self._noise(batch, posterior.mean, generator))
        roots, rules, words = self.grammar(vector, parts.halves)
        potentials = BoundPotentials(
            words.log_obs(batch.values), rules, roots.log_root, roots.log_root_leaf, lengths=batch.lengths
        )
        potentials.divergence = posterior.divergence()
        return potentials

    def wide_potentials(self, potentials: BoundPotentials, batch: Batch, latent: Latent = "draw") -> BoundPotentials:
        """The same in float64 where float32 lost a probability: the rules are made for each sentence."""

        def make() -> BoundPotentials:
            return self._given(batch, self.own_parts(), None, latent)

        return self.widen(potentials, make, lambda p: Shares(linear(p.rules)))

    def log_z(
        self,
        potentials: BoundPotentials,
        arithmetic: Arithmetic = "scaled",
        precision: Precision = "float32",
        *,
        wide: bool = False,
    ) -> Tensor:  # "b"
        """A lower bound of each sentence's log-probability, in expectation over the draws."""
        return super().log_z(potentials, arithmetic, precision, wide=wide) - potentials.divergence

    def ask(self, batch: Batch, *, parts: CompoundParts | None = None) -> TreeQuery:
        """The questions of a batch, given the mean of q."""
        return TreeQuery(self.tree_potentials(batch, parts=parts), words=batch.values, vocabulary=self.vocabulary)

    def tree_potentials(
        self, batch: Batch, *, parts: CompoundParts | None = None, labels: bool = False
    ) -> BoundPotentials:
        """The potentials that trees are decoded from, given the mean of q: over nonterminals, whatever `labels`."""
        return self.wide_potentials(self.potentials(batch, parts=parts, latent="mean"), batch, "mean")

    def predict_ids(self, batch: Batch | None = None, *, parts: CompoundParts | None = None) -> NextWord:
        """Refused: the next word has no closed form."""
        raise UnsupportedError(
            "the next word under a compound PCFG is a mean over vectors of sentences that nobody has seen to their "
            "end: there is no closed form.\n  Grammars of the other families have it exactly."
        )

    def generate_trees(
        self,
        num: int = 1,
        *,
        max_length: int = 100,
        max_rejected: int = 100_000,
        choice: WordChoice | None = None,
        generator: torch.Generator | None = None,
    ) -> Generated:
        """Sentences of at most `max_length` words and the trees that made them, each under a vector of its own.

        A sentence that grows longer is rejected with its vector, which leaves exactly p(sentence, tree | not longer).
        """
        least = 1 if self.config.single_words else 2
        if num < 1 or max_length < least:
            raise DomainError(
                f"num is {num} and max_length {max_length}, but at least 1 sentence of {least} words was expected."
            )
        words: list[list[int]] = []
        trees: list[ParsedTree] = []
        rejected = 0
        with torch.no_grad():
            halves = self.parts().halves
            while len(words) < num:
                drawn = self._attempt(halves, max_length, choice, generator)
                if drawn is not None:
                    words, trees = words + drawn.words, trees + drawn.trees
                    continue
                rejected += 1
                if rejected > max_rejected:
                    raise DomainError(
                        f"{rejected} sentences grew beyond max_length={max_length} words while {len(words)} of {num} "
                        "did not.\n  Allow longer sentences, or max_rejected."
                    )
        return Generated(words, trees, rejected)

    def _attempt(
        self, halves: Halves, max_length: int, choice: WordChoice | None, generator: torch.Generator | None
    ) -> Generated | None:
        """One sentence under the grammar of a vector; None if it grew too long."""
        like = halves.root
        vector = torch.randn(1, self.config.latent_dim, generator=generator, device=like.device, dtype=like.dtype)
        roots, rules, words = self.grammar(vector, halves)
        log_rows = words.log_rows(0)
        if choice is not None and choice.changes:
            log_rows = choice(log_rows)
        try:
            return generate_trees(
                Branch(*(BinaryDense.unchecked(rule.factors()[0][0]) for rule in rules)),
                roots.log_root[0],
                lambda symbols: log_rows[symbols],
                1,
                max_length=max_length,
                log_root_leaf=None if roots.log_root_leaf is None else roots.log_root_leaf[0],
                max_rejected=0,
                generator=generator,
            )
        except DomainError:  # too long: sizes and sums are right
            return None

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        """The cost of a gradient step; the bytes of a token are those of a token in a sentence of this length."""
        n, p = self.config.num_nonterminals, self.config.num_preterminals
        sizes = TreeSizes(n, p, self.num_words, self.config.dim, self.num_parameters)
        return tree_plans(sizes, [pair_rules(n, p, [None] * 4, own_rules=True)], batch, length, device, precision)

    def draw_noise(self, num: int, generator: torch.Generator) -> Tensor:  # "b h"
        """The noise of the vectors of a whole batch: parts of it, on whatever process, take their own rows."""
        like = next(self.parameters())
        return torch.randn(num, self.config.latent_dim, generator=generator, device=like.device, dtype=like.dtype)

    def _noise(self, batch: Batch, like: Tensor, generator: torch.Generator | None) -> Tensor:  # "b h"
        if batch.noise is not None:
            return batch.noise
        if generator is not None:
            return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        if not may_look(batch.values):
            raise UnsupportedError("a captured step draws from a generator: give one.")
        lengths = batch.lengths.tolist()
        rows = [row[:length] for row, length in zip(batch.values.tolist(), lengths, strict=True)]
        own = [torch.Generator().manual_seed(zlib.crc32(repr(row).encode())) for row in rows]
        drawn = [torch.randn(like.shape[1], generator=one, dtype=torch.float64) for one in own]
        return torch.stack(drawn).to(like)
