"""Sentences drawn from a model, exactly: words of a hidden chain, or words and trees of a grammar.

Of a chain a state, a word of it, the next state, until the end symbol, from the beginning or from where a prefix left
off. Of a grammar from the root down, all waiting nodes of all sentences at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.decoding.parsed_tree import ParsedTree
from rankfold.errors import DomainError, ShapeError
from rankfold.numerics.log_space import log_sum, pick
from rankfold.operators.binary import BinaryOperator, Branch, expect_branch
from rankfold.recursions.tree.termination import log_kinds


@dataclass(frozen=True)
class WordChoice:
    """A distribution of words, changed before a word is drawn from it: without some words, of the likeliest alone,
    flatter or sharper. Renormalised, so what is drawn from is

        q(w)  proportional to  p(w)^(1 / temperature)    for the top_k likeliest w that are not excluded, else 0

    Words of equal probability at the border of `top_k`: those of the smaller ids. The same for every temperature.
    """

    temperature: float = 1.0
    top_k: int | None = None  # None: all
    excluded: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise DomainError(
                f"temperature is {self.temperature}, but must be above 0 and finite.\n"
                "  The likeliest word each time is top_k = 1."
            )
        if self.top_k is not None and self.top_k < 1:
            raise DomainError(f"top_k is {self.top_k}, but must be at least 1.")

    @property
    def changes(self) -> bool:
        """Whether it changes any distribution."""
        return self != WordChoice()

    def __call__(self, log_words: Tensor) -> Tensor:  # "... v" -> "... v"
        """log q of each distribution; `DomainError` where only excluded words have a probability."""
        log_words = log_words.clone()
        log_words[..., list(self.excluded)] = float("-inf")
        if self.top_k is not None and self.top_k < log_words.shape[-1]:
            order = log_words.argsort(dim=-1, descending=True, stable=True)
            log_words.scatter_(-1, order[..., self.top_k :], float("-inf"))
        if not bool((log_words > float("-inf")).any(-1).all()):
            raise DomainError("only excluded words have a probability here: none is left to draw.\n  Exclude fewer.")
        return torch.log_softmax(log_words / self.temperature, -1)


def generate_chosen(
    log_next: Callable[[list[list[int]]], Tensor],  # beginnings of one length -> "b v"
    num: int,
    choice: WordChoice,
    *,
    prefix: Sequence[int] = (),
    end: int,
    max_length: int,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Continuations of a prefix, word by word: each is drawn from `choice` of p(word | all words before it).

    `end` is a word like others. The result is exactly the product of these distributions; with words excluded it is
    not p(sentence | no such word), which would weigh what may come later, too. Without `end` and the prefix; cut after
    `max_length` words. Cost: the distribution of the next word, after all words so far, for every word.
    """
    rows: list[list[int]] = [list(prefix) for _ in range(num)]
    alive = list(range(num))
    for _ in range(max_length):
        words = pick(choice(log_next([rows[i] for i in alive])), generator).tolist()
        for i, word in zip(alive, words, strict=True):
            rows[i].append(word)
        alive = [i for i, word in zip(alive, words, strict=True) if word != end]
        if not alive:
            break
    return [row[len(prefix) : len(row) - (row[-1] == end)] for row in rows]


def generate_words(
    log_next: Tensor,  # "b z"   the distribution of the next state
    log_transition_rows: Callable[[Tensor], Tensor],  # "k" -> "k z"
    log_emission_rows: Callable[[Tensor], Tensor],  # "k" -> "k v"
    *,
    end: int,
    max_length: int,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """A continuation for each row of `log_next`, `end` left out; cut after `max_length` words without one.

    Cost: one row of the transition and one of the emissions per word.
    """
    out: list[list[int]] = [[] for _ in log_next]
    with torch.no_grad():
        alive = torch.arange(len(log_next), device=log_next.device)
        for _ in range(max_length):
            state = pick(log_next, generator)
            word = pick(log_emission_rows(state), generator)
            for i, w in zip(alive.tolist(), word.tolist(), strict=True):
                if w != end:
                    out[i].append(w)
            going = word != end
            alive, state = alive[going], state[going]
            if not len(alive):
                break
            log_next = log_transition_rows(state)
    return out


class Generated(NamedTuple):
    """Sentences, and how many were rejected because they were too long."""

    words: list[list[int]]
    trees: list[ParsedTree]
    rejected: int


class _Sentence:
    """A sentence in the making: the symbols of its nodes, and the places of their children."""

    def __init__(self) -> None:
        self.symbols: list[int] = []
        self.children: dict[int, tuple[int, int]] = {}
        self.least = 0  # words that it has at least


def generate_trees(
    rules: Branch,
    log_root: Tensor,  # "n"
    log_emission_rows: Callable[[Tensor], Tensor],  # symbols of leaves "k" -> "k v"
    num_sentences: int,
    *,
    max_length: int,
    log_root_leaf: Tensor | None = None,  # "p"
    max_rejected: int = 100_000,
    choice: WordChoice | None = None,
    generator: torch.Generator | None = None,
) -> Generated:
    """Sentences of at most `max_length` words with the trees that made them, independent and exact.

    `choice`: each word is drawn from the choice of p(word | its symbol); the trees stay as they are.

    Rules, root and emissions are distributions: each parent's rules of all four kinds sum to 1. Sentences that grow
    longer are rejected and drawn anew, which leaves exactly p(sentence, tree | length <= max_length); how many there
    were is said. A grammar that hardly ever stops raises after `max_rejected` of them. Cost: r + n + m numbers for a
    node of rules with ranks, whose table is never written; n m for others. For rules shared by all sentences.
    """
    _expect(rules, log_root, log_root_leaf, num_sentences, max_length)
    with torch.no_grad():
        grammar = _Grammar(rules, log_root, log_root_leaf, generator)
        done: list[_Sentence] = []
        rejected = 0
        while len(done) < num_sentences:
            made = [grammar.start() for _ in range(num_sentences - len(done))]
            kept = grammar.grow(made, max_length)
            rejected += len(made) - len(kept)
            done += kept
            if rejected > max_rejected:
                raise DomainError(
                    f"{rejected} sentences grew beyond max_length={max_length} words while {len(done)} of "
                    f"{num_sentences} did not.\n  Allow longer sentences, or more to be rejected (max_rejected); a "
                    "grammar whose rules prefer spans to words may never stop."
                )
        trees = [_tree(sentence, grammar.num_spans) for sentence in done]
        tags = torch.tensor([tag for tree in trees for tag in tree.tags or ()], device=log_root.device)
        log_words = log_emission_rows(tags).double()
        if choice is not None and choice.changes:
            log_words = choice(log_words)
        drawn = iter(pick(log_words, generator).tolist())
    return Generated([[next(drawn) for _ in tree.tags or ()] for tree in trees], trees, rejected)


class _Grammar:
    """Draws of roots and rules. Symbols of leaves come after those of spans: p is n + p."""

    def __init__(
        self, rules: Branch, log_root: Tensor, log_root_leaf: Tensor | None, generator: torch.Generator | None
    ) -> None:
        self.rules = Branch(*(rule.with_factors(*(x.detach().double() for x in rule.factors())) for rule in rules))
        self.num_spans, num_leaves = expect_branch(rules)
        leaf = log_root.new_full((num_leaves,), float("-inf")) if log_root_leaf is None else log_root_leaf
        self.log_root = torch.cat([log_root, leaf]).detach().double()
        self.generator = generator
        self.log_mass = log_kinds(self.rules)[0]  # "n kind"

    def start(self) -> _Sentence:
        sentence = _Sentence()
        sentence.symbols.append(int(pick(self.log_root[None], self.generator)))
        sentence.least = 2 if sentence.symbols[0] < self.num_spans else 1
        return sentence

    def grow(self, sentences: list[_Sentence], max_length: int) -> list[_Sentence]:
        """The complete sentences, without the ones that grew too long."""
        alive = [x for x in sentences if x.least <= max_length]
        waiting = [(x, 0) for x in alive if x.symbols[0] < self.num_spans]
        while waiting:
            parents = torch.tensor([x.symbols[at] for x, at in waiting], device=self.log_root.device)
            left, right = self.children(parents)
            grown = []
            for (x, at), one, other in zip(waiting, left.tolist(), right.tolist(), strict=True):
                x.children[at] = len(x.symbols), len(x.symbols) + 1
                x.symbols += [one, other]
                x.least += (one < self.num_spans) + (other < self.num_spans)
                grown += [(x, child) for child in x.children[at] if x.symbols[child] < self.num_spans]
            waiting = [(x, at) for x, at in grown if x.least <= max_length]
        return [x for x in alive if x.least <= max_length]

    def children(self, parents: Tensor) -> tuple[Tensor, Tensor]:  # "k" -> "k" twice
        kind = pick(self.log_mass[parents], self.generator)
        left, right = torch.empty_like(parents), torch.empty_like(parents)
        # Symbols of leaves are counted after those of spans.
        shift = [(0, 0), (0, self.num_spans), (self.num_spans, 0), (self.num_spans, self.num_spans)]
        for number, rule in enumerate(self.rules):
            here = (kind == number).nonzero()[:, 0]
            if len(here):
                one, other = _draw(rule, parents[here], self.generator)
                left[here], right[here] = one + shift[number][0], other + shift[number][1]
        return left, right


def _draw(rule: BinaryOperator, parents: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Children of each parent: a rank and then each child by itself, or a pair."""
    if rule.cpd is not None:
        head, left, right = rule.cpd
        ranks = parents
        if head is not None:
            both = log_sum(left.log.mT) + log_sum(right.log.mT)
            ranks = pick(head.log[parents] + both, generator)
        return pick(left.log.mT[ranks], generator), pick(right.log.mT[ranks], generator)
    pairs = rule.log_rows(torch.zeros_like(parents), parents)
    chosen = pick(pairs.flatten(1), generator)
    return chosen // pairs.shape[-1], chosen % pairs.shape[-1]


def _tree(sentence: _Sentence, num_spans: int) -> ParsedTree:
    """Brackets and labels of a sentence's nodes, parents first, left before right."""
    spans: list[tuple[int, int]] = []
    labels: list[int] = []
    tags: list[int] = []
    open_at: list[int] = []
    waiting = [(0, False)]
    while waiting:
        node, closes = waiting.pop()
        if closes:
            at = open_at.pop()
            spans[at] = spans[at][0], len(tags)
        elif node in sentence.children:
            open_at.append(len(spans))
            spans.append((len(tags), 0))
            labels.append(sentence.symbols[node])
            left, right = sentence.children[node]
            waiting += [(node, True), (right, False), (left, False)]
        else:
            tags.append(sentence.symbols[node] - num_spans)
    return ParsedTree(spans, labels, tags)


def _expect(rules: Branch, log_root: Tensor, log_root_leaf: Tensor | None, num_sentences: int, max_length: int) -> None:
    num_spans, num_leaves = expect_branch(rules)
    for name, x, size in (("log_root", log_root, num_spans), ("log_root_leaf", log_root_leaf, num_leaves)):
        if x is not None and x.shape != (size,):
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)}, but one log-weight for each of {size} symbols is needed."
            )
    if any(rule.batch is not None for rule in rules):
        raise ShapeError(
            "sentences are drawn from rules shared by all, but these are one for each sentence.\n  Take one."
        )
    if num_sentences < 1:
        raise DomainError(f"num_sentences is {num_sentences}, but must be at least 1.")
    least = 2 if log_root_leaf is None else 1
    if max_length < least:
        raise DomainError(f"max_length is {max_length}, but the shortest sentence of this grammar has {least} words.")
