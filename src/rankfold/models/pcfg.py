"""The probabilistic context-free grammar of words: rules of any kind, words from preterminals.

    p(x, tree) = root[top]  prod_spans T[parent, left, right]  prod_words emission[preterminal, x_t]

Families "npcfg" (softmax), "tnpcfg" and "rankpcfg" (a rank between parent and children), "lpcfg" (low rank by kind of
child), "spcfg" (children independent given the parent). Where a rank lies between, the parents can be summed out: the
chart then holds ranks instead of nonterminals ("rank" space: the same numbers), and `plan` says which is cheaper.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.decoding.generate import Generated, WordChoice, generate_trees
from rankfold.decoding.online import next_words
from rankfold.decoding.prefix import prefix
from rankfold.decoding.query import TreeQuery
from rankfold.errors import UnsupportedError
from rankfold.models.base import Context, Shares, WordModel, linear
from rankfold.models.config import FACTORED, KINDS, GrammarConfig, GrammarFamily, PlanName
from rankfold.models.tables import GrammarTables, check_factors, expect_few_rules, validate_grammar
from rankfold.numerics.precision import Precision
from rankfold.numerics.scaled import largest
from rankfold.operators import Branch
from rankfold.operators.rank_space import rank_space
from rankfold.params.observations.categorical import Emission, FreeEmission
from rankfold.params.rules.factored import FactoredRules, FreeFactors, SimpleRules
from rankfold.params.rules.low_rank import LowRankRules
from rankfold.params.rules.root_leaves import FreeRoot, PreterminalWords, Root
from rankfold.params.rules.softmax import FreeRules, SoftmaxRules, from_dense, to_dense
from rankfold.planning.cost import Plans
from rankfold.planning.trees import TreeSizes, factored_rules, pair_rules, simple_rules, tree_plans
from rankfold.recursions.tree.potentials import TreePotentials

NO_LIMIT = 2**62  # words of a constituent
Rules = SoftmaxRules | FreeRules | FactoredRules | FreeFactors | SimpleRules | LowRankRules


class GrammarParts(NamedTuple):
    """The distributions of a grammar, and results computed from them so far, which batches share."""

    log_root: Tensor  # "n"
    log_root_leaf: Tensor | None  # "p"
    rules: Branch
    emission: Emission
    summed: list[tuple[Branch, Tensor]]  # rules and root of ranks, once a batch asked for them without a gradient

    def ranks(self) -> tuple[Branch, Tensor]:
        """The rules with the parents summed out, and the root's distribution of ranks."""
        if torch.is_grad_enabled():
            return rank_space(self.rules, self.log_root)[:2]
        if not self.summed:
            self.summed.append(rank_space(self.rules, self.log_root)[:2])
        return self.summed[0]


class NextWord(NamedTuple):
    """Log-probabilities, given the words so far; together they sum to 1. float64."""

    log_words: Tensor  # "b v"
    log_end: Tensor  # "b"


Parts = TypeVar("Parts")
Trees = TypeVar("Trees", bound=TreePotentials)


class Grammar(WordModel[Parts, Trees]):
    """The base of all grammars: sentences of words, each by itself."""

    config: GrammarConfig
    denominator = "words + sentences, although no end is generated"
    shortest = 2  # one word may be impossible
    widest: Tensor  # ""
    shared_rules: ClassVar[bool] = True  # whether all sentences have the same rules

    def __init__(self, config: GrammarConfig, num_words: int) -> None:
        super().__init__()
        self.config, self.num_words = config, num_words
        # Of constituents in training: a tensor, which captured graphs read again at each update.
        self.register_buffer("widest", torch.tensor(NO_LIMIT), persistent=False)

    def begin_update(self, update: int) -> None:
        if self.config.early_width:
            self.widest.fill_(self.config.early_width if update < self.config.early_updates else NO_LIMIT)

    def early_spans(self, batch: Batch, context: Context, like: Tensor) -> Tensor | None:  # "b t+1 t+1"
        """Log-weights of spans in training: -inf for longer ones than the limit, unless they end the sentence.

        Trees that branch to the right over short constituents remain. Without a limit, and in evaluations: None.
        """
        if not self.config.early_width or context.generator is None:
            return None
        at = torch.arange(batch.shape[1] + 1, device=like.device)
        short = at - at[:, None] <= self.widest
        return torch.where(short | (at == batch.lengths[:, None, None]), 0.0, -torch.inf).to(like)

    def expect_context(self, batch: Batch, context: Context) -> None:
        super().expect_context(batch, context)
        if context.carried is not None:
            raise UnsupportedError("a grammar is of sentences: it carries nothing from one to the next.")

    @abstractmethod
    def ask(self, batch: Batch, *, parts: Parts | None = None) -> TreeQuery:
        """The questions of a batch."""

    @abstractmethod
    def tree_potentials(self, batch: Batch, *, parts: Parts | None = None, labels: bool = False) -> Trees:
        """The potentials that trees are decoded from; with `labels` over nonterminals."""

    @abstractmethod
    def generate_trees(
        self,
        num: int = 1,
        *,
        max_length: int = 100,
        choice: WordChoice | None = None,
        generator: torch.Generator | None = None,
    ) -> Generated:
        """Sentences of at most `max_length` words and the trees that made them."""

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> TreeQuery:  # "b t", "b"
        """The questions one may ask of these sentences: `.log_partition`, `.mbr()`, `.viterbi()`, `.sample()`, ..."""
        return self.ask(self.batch(words, lengths))

    def query(self, potentials: Trees) -> TreeQuery:
        return TreeQuery(potentials, vocabulary=self.vocabulary)

    def num_counted(self, batch: Batch) -> int:
        """Words, and one end per sentence, as published."""
        return batch.num_tokens + len(batch.lengths)


class PCFG(Grammar[GrammarParts, TreePotentials]):
    """All families of grammars but the compound one."""

    def __init__(
        self,
        config: GrammarConfig,
        root: Root | FreeRoot,
        rules: Rules,
        emission: PreterminalWords | FreeEmission,
        num_words: int,
    ) -> None:
        super().__init__(config, num_words)
        self.root, self.rules, self.emission = root, rules, emission

    @classmethod
    def from_tables(cls, root: Tensor, rules: Tensor | Branch, emission: Tensor) -> PCFG:
        """The grammar with these probabilities, as trainable free tables: family "npcfg".

        root "n", or "n+p" where a sentence may be one word; rules "n (n+p) (n+p)", p(left, right | parent), children
        nonterminals first, or a `Branch`, which is written out; emission "p v". float32 or float64; every distribution
        sums to 1. Zeros stay zero, in training too.
        """
        root, rules, emission = (x.detach() for x in validate_grammar(root, rules, emission))
        table = from_dense(rules).log()
        return cls._free(root, FreeRules(table, len(emission)), emission, "npcfg", 1)

    @classmethod
    def from_factors(cls, root: Tensor, head: Tensor | None, left: Tensor, right: Tensor, emission: Tensor) -> PCFG:
        """The grammar with rules T[a, l, r] = sum_k head[a, k] left[l, k] right[r, k], as trainable free tables.

        head "n k", rows sum to 1; left, right "n+p k", columns sum to 1, nonterminals first: family "tnpcfg". A head of
        None is the identity, parents are the ranks: family "spcfg".
        """
        check_factors(root, head, left, right, emission)
        log_head = None if head is None else head.detach().log()
        rules = FreeFactors(log_head, left.detach().log(), right.detach().log())
        return cls._free(root.detach(), rules, emission.detach(), "spcfg" if head is None else "tnpcfg", left.shape[1])

    @classmethod
    def _free(
        cls, root: Tensor, rules: FreeRules | FreeFactors, emission: Tensor, family: GrammarFamily, rank: int
    ) -> PCFG:
        p, num_words = emission.shape
        single = len(root) > rules.num_spans
        config = GrammarConfig(
            family=family,
            num_nonterminals=rules.num_spans,
            num_preterminals=p,
            rank=rank,
            neural=False,
            single_words=single,
        )
        return cls(config, FreeRoot(root.log(), rules.num_spans), rules, FreeEmission(emission.log()), num_words)

    def to_tables(self) -> GrammarTables:
        """The grammar's probabilities, root, rules and emissions, written out; for grammars of up to 2^28 rules."""
        n, p = self.config.num_nonterminals, self.config.num_preterminals
        expect_few_rules(n, p)
        with torch.no_grad():
            parts = self.parts()
            log_emission = parts.emission.log_rows(torch.arange(p, device=self.device))
            roots = [x for x in (parts.log_root, parts.log_root_leaf) if x is not None]
            return GrammarTables(torch.cat(roots).exp(), to_dense(parts.rules), log_emission.exp())

    def shares(self, parts: GrammarParts) -> Shares:
        return Shares(linear(parts.rules))

    def own_parts(self, generator: torch.Generator | None = None) -> GrammarParts:
        """The grammar. Nothing is dropped: the papers' grammars are trained whole."""
        # Words first: gradients go the other way, so the tables of rules are gone when those of words are made.
        emission = self._emission()
        log_root, log_root_leaf = self.root()
        return GrammarParts(log_root, log_root_leaf, self.rules(), emission, [])

    def _emission(self) -> Emission:
        """Words given preterminals, by embeddings of their own or by those of the rules."""
        shares = isinstance(self.emission, PreterminalWords) and self.emission.symbol is None
        emission: Emission = self.emission(self.rules.preterminals if shares else None)
        return emission

    def own_potentials(
        self, batch: Batch, parts: GrammarParts, context: Context, plan: PlanName | None = None
    ) -> TreePotentials:
        """The weights of all trees of a batch: labels are nonterminals, or ranks in rank space."""
        in_ranks = self._order(plan or self.config.plan, batch) == "rank"
        rules, log_root = parts.ranks() if in_ranks else (parts.rules, parts.log_root)
        log_leaf = parts.emission.log_obs(batch.values)
        spans = self.early_spans(batch, context, log_leaf)
        return TreePotentials(log_leaf, rules, log_root, parts.log_root_leaf, spans, batch.lengths)

    def ask(self, batch: Batch, *, parts: GrammarParts | None = None) -> TreeQuery:
        """The questions of a batch. Sums over trees go the cheaper way; labels are nonterminals, whichever that is."""
        parts = self._wide(self.own_parts()) if parts is None else parts
        return TreeQuery(
            self.tree_potentials(batch, parts=parts),
            labelled=lambda: self.tree_potentials(batch, parts=parts, labels=True),
            words=batch.values,
            vocabulary=self.vocabulary,
        )

    def tree_potentials(
        self, batch: Batch, *, parts: GrammarParts | None = None, labels: bool = False
    ) -> TreePotentials:
        """The potentials that trees are decoded from: in the cheaper order, or with `labels` over nonterminals."""
        return self.potentials(batch, parts=parts, plan="state" if labels else None)

    def predict_ids(self, batch: Batch | None = None, *, parts: GrammarParts | None = None) -> NextWord:
        """How each beginning of a sentence goes on: its next word, or its end; see `rankfold.prefix`.

        Without a batch: the first word. All -inf after a prefix of probability 0.
        """
        with torch.no_grad():
            parts = self.parts() if parts is None else parts
            given = self.batch(torch.zeros(1, 1, dtype=torch.int64)) if batch is None else batch
            few = self.config.family in FACTORED and self.config.rank < self.config.num_nonterminals
            found = prefix(self.potentials(given, parts=parts, plan="rank" if few else "state"))  # symbols cubed
            each = torch.arange(len(given.lengths), device=given.lengths.device)
            at = given.lengths if batch is not None else torch.zeros_like(given.lengths)
            log_prefix = largest(found.log_prefix[each, at, None])
            words = next_words(found.log_next[each, at], parts.emission.log_rows, self.num_words)
            return NextWord(words - log_prefix, found.log_whole[each, at] - log_prefix.squeeze(-1))

    def generate_trees(
        self,
        num: int = 1,
        *,
        max_length: int = 100,
        choice: WordChoice | None = None,
        generator: torch.Generator | None = None,
    ) -> Generated:
        """Sentences of at most `max_length` words and the trees that made them; see `rankfold.generate_trees`."""
        with torch.no_grad():
            parts = self.parts()
            return generate_trees(
                parts.rules,
                parts.log_root,
                parts.emission.log_rows,
                num,
                max_length=max_length,
                log_root_leaf=parts.log_root_leaf,
                choice=choice,
                generator=generator,
            )

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        """The cost of a gradient step; the bytes of a token are those of a token in a sentence of this length."""
        config = self.config
        n, p, rank = config.num_nonterminals, config.num_preterminals, config.rank
        if config.family in FACTORED:
            orders = factored_rules(n, p, rank, shallow=config.released or config.family == "tnpcfg")
        elif config.family == "spcfg":
            orders = [simple_rules(n, p)]
        else:
            thin = config.low_rank if config.family == "lpcfg" else ()
            orders = [pair_rules(n, p, [rank if kind in thin else None for kind in KINDS])]
        sizes = TreeSizes(n, p, self.num_words, config.dim if config.neural else 0, self.num_parameters)
        return tree_plans(sizes, orders, batch, length, device, precision)

    def _order(self, plan: PlanName, batch: Batch) -> PlanName:
        return self.cheapest(plan, batch) if self.config.family in FACTORED else "state"
