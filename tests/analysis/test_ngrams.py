"""Unigram and Kneser-Ney bigram: distributions that sum to 1, and the formula worked in plain Python."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.analysis.ngrams import KneserNeyBigram, Unigram
from rankfold.data.text import read_splits
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError
from tests.data.corpora import FOLDER, needs_texts

Corpus = list[list[int]]

SMALL: Corpus = [[2, 3, 1], [2, 3, 4, 1], [3, 2, 1], [2, 4, 1], [2, 3, 1], [5, 1]]
corpora = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=12)


def rows(model: KneserNeyBigram) -> np.ndarray:
    """p(w | h) for every context, the start of a sentence last."""
    size = model.num_words
    contexts, words = np.meshgrid(np.arange(size + 1), np.arange(size), indexing="ij")
    return model.probability(contexts, words)


def plain_discount(counts: list[int]) -> float:
    ones, twos = counts.count(1), counts.count(2)
    return ones / (ones + 2 * twos) if ones and twos else 0.5


def plain_kneser_ney(corpus: Corpus, context: int | None, word: int, num_words: int) -> float:
    """The formula, one pair at a time; the start of a sentence is None."""
    pairs = Counter(pair for row in corpus for pair in zip([None, *row], row, strict=False))
    before = Counter(word for _, word in pairs)
    lower = plain_discount(list(before.values()))
    continuation = max(before[word] - lower, 0) / len(pairs) + lower * len(before) / len(pairs) / num_words
    total = sum(count for (left, _), count in pairs.items() if left == context)
    if total == 0:
        return continuation
    discount = plain_discount(list(pairs.values()))
    followers = sum(left == context for left, _ in pairs)
    return max(pairs[context, word] - discount, 0) / total + discount * followers / total * continuation


@given(corpora)
def test_every_context_sums_to_one_and_no_word_is_impossible(corpus: Corpus) -> None:
    table = rows(KneserNeyBigram.fit(corpus, 7))
    np.testing.assert_allclose(table.sum(1), 1, rtol=0, atol=1e-12)  # 7 terms below 1 in float64
    assert (table > 0).all()
    np.testing.assert_allclose(Unigram.fit(corpus, 7).probability.sum(), 1, rtol=0, atol=1e-12)


@given(corpora)
def test_bigram_is_the_formula(corpus: Corpus) -> None:
    table = rows(KneserNeyBigram.fit(corpus, 7))
    truth = [[plain_kneser_ney(corpus, h, w, 7) for w in range(7)] for h in [*range(7), None]]
    np.testing.assert_allclose(table, truth, rtol=1e-12, atol=0)


def test_a_probability_worked_by_hand() -> None:
    # 11 different pairs, 7 of them seen once and 2 twice; 3 words with two contexts, 1 with one.
    model = KneserNeyBigram.fit(SMALL, 6)
    discount, lower = 7 / (7 + 2 * 2), 1 / (1 + 2 * 3)
    continuation = (2 - lower) / 11 + lower * 5 / 11 / 6  # 3 comes after 2 and after the start; 5 words were seen
    assert model.discount == discount
    assert model.continuation[3] == pytest.approx(continuation, rel=1e-14)
    # 2 comes 5 times: three times before 3, once before 1, once before 4
    expected = (3 - discount) / 5 + discount * 3 / 5 * continuation
    assert rows(model)[2, 3] == pytest.approx(expected, rel=1e-14)


def test_the_start_is_a_context_and_never_a_word() -> None:
    table = rows(KneserNeyBigram.fit([[2, 1]] * 4 + [[3, 2, 1]], 4))
    assert table.shape == (5, 4)
    assert table[4, 2] > 0.5
    assert table[1].argmax() == 2  # nothing follows the end: the continuation distribution, where 2 and 1 differ
    alone = KneserNeyBigram.fit([[2, 1], [3, 1]], 4).log_likelihood([[2, 1]])
    assert KneserNeyBigram.fit([[2, 1], [3, 1]], 4).log_likelihood([[2, 1], [2, 1]]) == pytest.approx(2 * alone)


@given(corpora, corpora)
def test_likelihood_multiplies_tokens_and_perplexity_counts_ends(corpus: Corpus, held_out: Corpus) -> None:
    num_tokens = sum(map(len, held_out))
    bigram, unigram = KneserNeyBigram.fit(corpus, 7), Unigram.fit(corpus, 7)
    log_bigram = sum(
        math.log(plain_kneser_ney(corpus, h, w, 7)) for row in held_out for h, w in zip([None, *row], row, strict=False)
    )
    log_unigram = sum(math.log(unigram.probability[w]) for row in held_out for w in row)
    for model, truth in ((bigram, log_bigram), (unigram, log_unigram)):
        assert model.log_likelihood(held_out) == pytest.approx(truth, rel=1e-12)
        assert model.perplexity(held_out) == pytest.approx(math.exp(-truth / num_tokens), rel=1e-12)


def test_unigram_adds_one_only_if_a_word_is_missing() -> None:
    np.testing.assert_array_equal(Unigram.fit([[0, 2, 1], [2, 1]], 3).probability, np.array([1, 2, 2]) / 5)
    np.testing.assert_array_equal(Unigram.fit([[0, 2, 1], [2, 1]], 4).probability, np.array([2, 3, 3, 1]) / 9)


def test_one_word_is_certain() -> None:
    for model in (Unigram.fit([[0], [0, 0]], 1), KneserNeyBigram.fit([[0], [0, 0]], 1)):
        assert model.perplexity([[0, 0, 0]]) == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize(
    ("corpus", "discount"),
    [([[1]] * 3, 0.5), ([[2, 1]], 0.5), ([[2, 1], [2, 1]], 0.5), ([[2, 1], [2, 1], [3, 1]], 2 / (2 + 2 * 2))],
)
def test_discount_is_a_half_where_counts_say_nothing(corpus: Corpus, discount: float) -> None:
    assert KneserNeyBigram.fit(corpus, 4).discount == discount


def test_bad_input_is_named() -> None:
    for model in (Unigram, KneserNeyBigram):
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


@needs_texts
def test_penn_treebank() -> None:
    splits = read_splits(FOLDER / "ptb-lm")
    vocabulary = Vocabulary.build(splits["train"])
    train, valid, test = (vocabulary.encode_all(splits[name]) for name in ("train", "valid", "test"))
    unigram, bigram = Unigram.fit(train, len(vocabulary)), KneserNeyBigram.fit(train, len(vocabulary))
    # An independent computation of the bigram gave 201.4 and 186.8.
    assert [bigram.perplexity(text) for text in (valid, test)] == pytest.approx([201.4, 186.8], rel=1e-3)
    assert [unigram.perplexity(text) for text in (valid, test)] == pytest.approx([687.0, 639.3], rel=1e-3)
