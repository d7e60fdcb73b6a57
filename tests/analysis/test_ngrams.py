"""Unigram and Kneser-Ney of every order: distributions that sum to 1, and the formula worked in plain Python."""

import math
from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.analysis.ngrams import KneserNey, Unigram, baselines
from rankfold.data.text import read_splits
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError
from tests.data.corpora import FOLDER, needs_texts

Corpus = list[list[int]]
START = "start"

SMALL: Corpus = [[2, 3, 1], [2, 3, 4, 1], [3, 2, 1], [2, 4, 1], [2, 3, 1], [5, 1]]
corpora = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=12)
orders = st.integers(1, 5)
kinds = st.sampled_from(["one", "three"])


class Plain:
    """Kneser-Ney, one n-gram at a time: sets of symbols and the text itself in place of arrays."""

    def __init__(self, corpus: Corpus, num_words: int, order: int, kind: str) -> None:
        self.num_words, self.order = num_words, order
        text: Counter[tuple] = Counter()
        before: dict[tuple, set] = defaultdict(set)
        for row in corpus:
            row = [START, *row]
            for end in range(1, len(row)):
                for length in range(1, min(order, end + 1) + 1):
                    gram = tuple(row[end - length + 1 : end + 1])
                    text[gram] += 1
                    if length <= end:
                        before[gram].add(row[end - length])
        self.count = {
            gram: times if len(gram) == order or gram[0] == START else len(before[gram]) for gram, times in text.items()
        }
        self.discount = {
            length: plain_discounts([c for gram, c in self.count.items() if len(gram) == length], kind)
            for length in range(1, order + 1)
        }

    def __call__(self, history: list[int], word: int) -> float:
        context = [START, *history][-(self.order - 1) :] if self.order > 1 else []
        return self.given(tuple(context), word)

    def given(self, context: tuple, word: int) -> float:
        lower = 1 / self.num_words if not context else self.given(context[1:], word)
        after = {gram[-1]: c for gram, c in self.count.items() if gram[:-1] == context}
        if not after:
            return lower if context else 1 / self.num_words
        spared = {w: self.discount[len(context) + 1][min(c, 3)] for w, c in after.items()}
        kept = after.get(word, 0) - spared.get(word, 0)
        return (kept + sum(spared.values()) * lower) / sum(after.values())


def plain_discounts(counts: list[int], kind: str) -> dict[int, float]:
    n = Counter(counts)
    if not n[1] or not n[2]:
        return dict.fromkeys((1, 2, 3), 0.5)
    y = n[1] / (n[1] + 2 * n[2])
    if kind == "three" and n[3]:
        three = {1: 1 - 2 * y * n[2] / n[1], 2: 2 - 3 * y * n[3] / n[2], 3: 3 - 4 * y * n[4] / n[3]}
        if all(0 < three[i] <= i for i in three):
            return three
    return dict.fromkeys((1, 2, 3), y)


def following(model: KneserNey, history: list[int]) -> np.ndarray:
    """p(w | history) for every word."""
    return np.array([model.probability([[*history, word]])[-1] for word in range(model.num_words)])


def histories(num_words: int, longest: int) -> list[list[int]]:
    return [list(words) for length in range(longest + 1) for words in product(range(num_words), repeat=length)]


@given(corpora, orders, kinds)
def test_every_context_sums_to_one_and_no_word_is_impossible(corpus: Corpus, order: int, kind: str) -> None:
    model = KneserNey.fit(corpus, 7, order, discounts=kind)
    seen = [row[:end] for row in corpus for end in range(len(row) + 1)]
    for history in [*seen, *histories(7, 1), [6, 6, 6], [1, 6, 1]]:
        row = following(model, history)
        assert row.sum() == pytest.approx(1, abs=1e-12)  # 7 terms below 1 in float64
        assert (row > 0).all()
    np.testing.assert_allclose(Unigram.fit(corpus, 7).probability.sum(), 1, rtol=0, atol=1e-12)


@given(corpora, orders, kinds)
def test_probabilities_are_the_formula(corpus: Corpus, order: int, kind: str) -> None:
    model, plain = KneserNey.fit(corpus, 7, order, discounts=kind), Plain(corpus, 7, order, kind)
    held_out = [*corpus, [0, 1, 2, 3, 4, 5, 6], [6, 6], [5, 4, 3, 2, 1, 0]]
    truth = [plain(row[:at], word) for row in held_out for at, word in enumerate(row)]
    np.testing.assert_allclose(model.probability(held_out), truth, rtol=1e-12, atol=0)


@pytest.mark.parametrize("order", [2, 3])
def test_three_discounts_are_the_formula_where_all_are_defined(order: int) -> None:
    generator = np.random.default_rng(3)
    corpus = [generator.zipf(1.7, size=generator.integers(1, 9)).clip(max=39).tolist() for _ in range(80)]
    model, plain = KneserNey.fit(corpus, 40, order), Plain(corpus, 40, order, "three")
    assert len(set(model.levels[-1].discounts)) == 4
    truth = [plain(row[:at], word) for row in corpus for at, word in enumerate(row)]
    np.testing.assert_allclose(model.probability(corpus), truth, rtol=1e-12, atol=0)


def test_a_probability_worked_by_hand() -> None:
    # 11 different pairs, 7 of them seen once and 2 twice; 3 words with two contexts, 1 with one.
    model = KneserNey.fit(SMALL, 6, 2, discounts="one")
    discount, lower = 7 / (7 + 2 * 2), 1 / (1 + 2 * 3)
    continuation = (2 - lower) / 11 + lower * 5 / 11 / 6  # 3 comes after 2 and after the start; 5 words were seen
    # 2 comes 5 times: three times before 3, once before 1, once before 4
    expected = (3 - discount) / 5 + discount * 3 / 5 * continuation
    assert following(model, [2])[3] == pytest.approx(expected, rel=1e-14)


def test_the_start_is_a_context_and_never_a_word() -> None:
    model = KneserNey.fit([[2, 1]] * 4 + [[3, 2, 1]], 4, 2)
    assert following(model, [])[2] > 0.5
    assert following(model, [1]).argmax() == 2  # nothing follows the end: the lower order, where 2 and 1 differ
    alone = model.log_likelihood([[2, 1]])
    assert model.log_likelihood([[2, 1], [2, 1]]) == pytest.approx(2 * alone)


def test_beginnings_of_sentences_are_counted_by_their_occurrences() -> None:
    """Nothing stands before a start: (start, 2) occurs 4 times, and backing off from (start, 2, 5) sees them."""
    model = KneserNey.fit([[2, 1]] * 4 + [[3, 1]], 6, 3)
    assert model.levels[1].counts.tolist() == [1, 1, 4, 1]  # (2, 1), (3, 1) after one symbol; (start, 2), (start, 3)


@given(corpora, corpora, orders)
def test_likelihood_multiplies_tokens_and_perplexity_counts_ends(corpus: Corpus, held_out: Corpus, order: int) -> None:
    num_tokens = sum(map(len, held_out))
    kneser_ney, unigram = KneserNey.fit(corpus, 7, order), Unigram.fit(corpus, 7)
    plain = Plain(corpus, 7, order, "three")
    log_kneser_ney = sum(math.log(plain(row[:i], word)) for row in held_out for i, word in enumerate(row))
    log_unigram = sum(math.log(unigram.probability[w]) for row in held_out for w in row)
    for model, truth in ((kneser_ney, log_kneser_ney), (unigram, log_unigram)):
        assert model.log_likelihood(held_out) == pytest.approx(truth, rel=1e-12)
        assert model.perplexity(held_out) == pytest.approx(math.exp(-truth / num_tokens), rel=1e-12)


def test_unigram_adds_one_only_if_a_word_is_missing() -> None:
    np.testing.assert_array_equal(Unigram.fit([[0, 2, 1], [2, 1]], 3).probability, np.array([1, 2, 2]) / 5)
    np.testing.assert_array_equal(Unigram.fit([[0, 2, 1], [2, 1]], 4).probability, np.array([2, 3, 3, 1]) / 9)


def test_one_word_is_certain() -> None:
    for model in (Unigram.fit([[0], [0, 0]], 1), KneserNey.fit([[0], [0, 0]], 1)):
        assert model.perplexity([[0, 0, 0]]) == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize(
    ("corpus", "discount"),
    [([[1]] * 3, 0.5), ([[2, 1]], 0.5), ([[2, 1], [2, 1]], 0.5), ([[2, 1], [2, 1], [3, 1]], 2 / (2 + 2 * 2))],
)
def test_discount_is_a_half_where_counts_say_nothing(corpus: Corpus, discount: float) -> None:
    assert KneserNey.fit(corpus, 4, 2).levels[-1].discounts.tolist() == [0, discount, discount, discount]


def test_baselines_are_each_models_own() -> None:
    found = baselines(SMALL, [[2, 3, 1], [5, 1]], 6, orders=(2, 4))
    assert list(found) == ["unigram", "Kneser-Ney, order 2", "Kneser-Ney, order 4"]
    assert found["unigram"] == Unigram.fit(SMALL, 6).log_likelihood([[2, 3, 1], [5, 1]])
    assert found["Kneser-Ney, order 4"] == KneserNey.fit(SMALL, 6, 4).log_likelihood([[2, 3, 1], [5, 1]])


def test_bad_input_is_named() -> None:
    for model in (Unigram, KneserNey):
        with pytest.raises(DomainError, match=r"sentence 2 holds the id 9.*0 to 3"):
            model.fit([[2, 1], [9, 1]], 4)
        with pytest.raises(DomainError, match="id -1"):
            model.fit([[-1]], 4)
        with pytest.raises(DataError, match="sentence 2 is empty"):
            model.fit([[1], []], 4)
        with pytest.raises(DataError, match="no sentences"):
            model.fit([], 4)
        with pytest.raises(DomainError, match="num_words is 0"):
            model.fit([[0]], 0)
        with pytest.raises(DataError, match="no sentences"):
            model.fit([[1]], 2).perplexity([])
    with pytest.raises(DomainError, match="order is 0"):
        KneserNey.fit([[1]], 2, 0)


@needs_texts
def test_penn_treebank() -> None:
    splits = read_splits(FOLDER / "ptb-lm")
    vocabulary = Vocabulary.build(splits["train"])
    train, valid, test = (vocabulary.encode_all(splits[name]) for name in ("train", "valid", "test"))
    unigram, bigram = Unigram.fit(train, len(vocabulary)), KneserNey.fit(train, len(vocabulary), 2, discounts="one")
    # An independent computation of the bigram gave 201.4 and 186.8.
    assert [bigram.perplexity(text) for text in (valid, test)] == pytest.approx([201.4, 186.8], rel=1e-3)
    assert [unigram.perplexity(text) for text in (valid, test)] == pytest.approx([687.0, 639.3], rel=1e-3)
    # The figure of this code on 2026-11-17; Mikolov and Zweig 2012 have 141.2 for an order of 5.
    assert KneserNey.fit(train, len(vocabulary), 5).perplexity(test) == pytest.approx(141.2, rel=1e-3)
