"""What each symbol of a grammar does: its use in trees, the spans it yields, its most probable rules or words.

Rules of low rank are multiplied out for one parent at a time, in blocks: never the table of all parents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rankfold.data.trees import Tree
from rankfold.decoding.parsed_tree import LABEL, TAG
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models.base import Model
from rankfold.models.parsing import draw_trees, expect_grammar
from rankfold.models.pcfg import PCFG, GrammarParts
from rankfold.operators.binary import BinaryOperator

ENTRIES = 2**24  # of a block of one parent's rules


class SymbolUse(NamedTuple):
    """How often each symbol, written NT-k or T-k, stands in some trees, and over which words."""

    counts: Counter[str]
    yields: dict[str, Counter[str]]  # by symbol
    num_trees: int

    def share(self, symbol: str) -> float:
        """The share of all symbols of its kind, spans or words, that are this one; 0 where there are none."""
        kind = symbol.split("-")[0]
        total = sum(count for name, count in self.counts.items() if name.split("-")[0] == kind)
        return self.counts[symbol] / total if total else 0.0

    def most_used(self, kind: str, num: int) -> list[str]:
        """The symbols NT-k or T-k in the most places, the most frequent first; of equal ones the smallest number."""
        found = [name for name in self.counts if name.split("-")[0] == kind]
        return sorted(found, key=lambda name: (-self.counts[name], int(name.split("-")[1])))[:num]


def symbol_use(trees: Iterable[Tree]) -> SymbolUse:
    """The use of symbols in labelled trees."""
    counts: Counter[str] = Counter()
    yields: dict[str, Counter[str]] = defaultdict(Counter)
    num = 0
    for tree in trees:
        num += 1
        words = tree.words
        for start, end, label in tree.spans(tags=True):
            counts[label] += 1
            yields[label][" ".join(words[start:end])] += 1
    return SymbolUse(counts, dict(yields), num)


def generated_trees(grammar: PCFG, num: int, *, max_length: int = 40, seed: int = 0) -> list[Tree]:
    """Trees of sentences that the grammar makes, of at most `max_length` words each."""
    return draw_trees(grammar, num, max_length=max_length, generator=torch.Generator().manual_seed(seed)).trees


def expect_shared_rules(model: Model[Any, Any]) -> PCFG:
    """The grammar, if its rules are the same for all sentences; `UnsupportedError` for other models."""
    grammar = expect_grammar(model)
    if not grammar.shared_rules:
        raise UnsupportedError(
            f'family "{model.config.family}" has other rules for every sentence: its symbols have none to show.\n'
            "  rankfold parse --labels shows its symbols in trees."
        )
    return cast(PCFG, grammar)


def symbol_number(symbol: str, grammar: PCFG) -> tuple[str, int]:
    """The kind and number of NT-k or T-k; raises on any other text."""
    kind, _, digits = symbol.partition("-")
    sizes = {LABEL: grammar.config.num_nonterminals, TAG: grammar.config.num_preterminals}
    if kind not in sizes or not digits.isascii() or not digits.isdigit():
        raise DataError(f"the symbol {symbol!r} is not known: nonterminals are NT-0, NT-1, ..., preterminals T-0, ...")
    if int(digits) >= sizes[kind]:
        raise DomainError(f"there is no symbol {symbol}: this grammar has {kind}-0 to {kind}-{sizes[kind] - 1}.")
    return kind, int(digits)


def best_rules(parts: GrammarParts, parent: int, top: int) -> list[tuple[str, str, float]]:
    """The most probable pairs of children of a nonterminal, with p(left, right | parent)."""
    best: list[tuple[float, str, str]] = []
    kinds = ((LABEL, LABEL), (LABEL, TAG), (TAG, LABEL), (TAG, TAG))
    for rule, (left, right) in zip(parts.rules, kinds, strict=True):
        for first, block in parent_rules(rule, parent):
            values, places = block.flatten().topk(min(top, block.numel()))
            for value, place in zip(values.tolist(), places.tolist(), strict=True):
                row, column = divmod(place, block.shape[1])
                best.append((value, f"{left}-{first + row}", f"{right}-{column}"))
        best = sorted((entry for entry in best if entry[0] > 0), key=lambda entry: -entry[0])[:top]
    return [(left, right, value) for value, left, right in best]


def parent_rules(rule: BinaryOperator, parent: int) -> Iterator[tuple[int, Tensor]]:
    """The probabilities of one parent's pairs of children, some rows "k m" at a time, with the first row's number."""
    _, num_left, num_right = rule.shape
    height = max(1, ENTRIES // num_right)
    scale = torch.as_tensor(rule.log_scale, dtype=torch.float64).exp()
    here = torch.tensor([parent], device=rule.factors()[0].device)
    for first in range(0, num_left, height):
        rows = slice(first, min(num_left, first + height))
        if rule.cpd is None:
            yield first, rule.log_rows(torch.zeros_like(here), here, rows)[0].double().exp()
            continue
        head, left, right = (None if factor is None else factor.linear.double() for factor in rule.cpd)
        assert left is not None
        assert right is not None
        if head is None:  # parents are the ranks themselves
            yield first, torch.outer(left[rows, parent], right[:, parent]) * scale.to(left.device)
        else:
            yield first, (left[rows] * head[parent]) @ right.mT * scale.to(left.device)


def preterminal_words(
    parts: GrammarParts, preterminal: int, words: Sequence[str], top: int
) -> tuple[list[tuple[str, float]], float]:
    """The most probable words of a preterminal with p(word | preterminal), and their entropy in nats."""
    index = torch.tensor([preterminal], device=parts.log_root.device)
    row = parts.emission.log_rows(index)[0].detach().double().exp()
    values, ids = row.topk(min(top, len(row)))
    found = [(words[i], value) for i, value in zip(ids.tolist(), values.tolist(), strict=True) if value > 0]
    return found, float(torch.special.entr(row).sum())


def symbol_profile(grammar: PCFG, parts: GrammarParts, symbol: str, use: SymbolUse, *, top: int = 8) -> dict[str, Any]:
    """A symbol as plain data: use, most frequent yields, and rules [left, right, p] or words [word, p] with entropy."""
    assert grammar.vocabulary is not None
    kind, number = symbol_number(symbol, grammar)
    yields = use.yields.get(symbol, Counter())
    found: dict[str, Any] = {
        "symbol": symbol,
        "use": use.share(symbol),
        "count": use.counts[symbol],
        "yields": [list(item) for item in sorted(yields.items(), key=_frequent_and_short)[:top]],
    }
    with torch.no_grad():
        if kind == LABEL:
            return found | {"rules": [list(rule) for rule in best_rules(parts, number, top)]}
        words, entropy = preterminal_words(parts, number, grammar.vocabulary.words, top)
    return found | {"words": [list(word) for word in words], "word_entropy": entropy}


def _frequent_and_short(item: tuple[str, int]) -> tuple[int, int, str]:
    text, count = item
    return -count, len(text), text
