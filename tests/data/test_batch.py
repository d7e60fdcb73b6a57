"""Batches hold every token once, within the budget, in an order that (seed, epoch) fixes."""

import itertools
from collections.abc import Callable, Iterable

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from rankfold.data.batch import PADDING, Batch, Batches, epoch_generator, length_batches, streams, unsorted_batches
from rankfold.data.text import read_sentences
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DomainError
from tests.data.corpora import FOLDER, needs_texts

CUTS = [length_batches, unsorted_batches]
cuts = pytest.mark.parametrize("cut", CUTS)
seeds = st.none() | st.integers(0, 5)


def corpus_of(lengths: Iterable[int]) -> list[list[int]]:
    """Sentences of these lengths in which no id occurs twice, none of them the padding."""
    ids = itertools.count(1)
    return [[next(ids) for _ in range(length)] for length in lengths]


corpora = st.lists(st.integers(1, 17), min_size=1, max_size=40).map(corpus_of)


def seeded(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


def rows(batch: Batch) -> list[list[int]]:
    return [row[:length] for row, length in zip(batch.values.tolist(), batch.lengths.tolist(), strict=True)]


def padding(batch: Batch) -> torch.Tensor:
    return batch.values[torch.arange(batch.values.shape[1]) >= batch.lengths[:, None]]


@hypothesis.given(corpora, st.integers(1, 64), seeds, st.sampled_from(CUTS))
def test_every_sentence_once_within_the_budget(
    corpus: list[list[int]], max_tokens: int, seed: int | None, cut: Callable[..., Batches]
) -> None:
    batches = cut(corpus, max_tokens, generator=seeded(seed))
    found = [row for batch in batches for row in rows(batch)]
    assert sorted(found) == corpus
    assert [corpus[i] for group in batches.groups for i in group] == found
    for batch in batches:
        assert batch.values.shape[1] == batch.lengths.max()
        assert batch.values.numel() <= max_tokens or len(batch.values) == 1
        assert (padding(batch) == PADDING).all()
        assert batch.first


@hypothesis.given(corpora, st.integers(1, 64), seeds, st.integers(1, 9))
def test_rounded_widths_stay_within_the_budget(
    corpus: list[list[int]], max_tokens: int, seed: int | None, rounding: int
) -> None:
    batches = length_batches(corpus, max_tokens, generator=seeded(seed), rounding=rounding)
    assert sorted(row for batch in batches for row in rows(batch)) == corpus
    for batch in batches:
        width = batch.values.shape[1]
        assert width % rounding == 0
        assert width - rounding < batch.lengths.max() <= width
        assert batch.values.numel() <= max_tokens or len(batch.values) == 1


def test_buckets_hold_like_lengths(generator: torch.Generator) -> None:
    """24 sentences of each width fill as many batches of 24 tokens as they are wide: nothing is padded."""
    batches = length_batches(corpus_of([1, 2, 3, 4, 6, 8] * 24), 24, generator=generator)
    assert len(batches) == sum((1, 2, 3, 4, 6, 8))
    assert all(padding(batch).numel() == 0 for batch in batches)


def test_shuffled_buckets_shuffle_ties_and_batches() -> None:
    corpus = corpus_of([3, 5] * 50)
    plain = length_batches(corpus, 15)
    assert plain.groups[0] == [0, 2, 4, 6, 8]  # short ones first, in file order
    mixed = length_batches(corpus, 15, generator=epoch_generator(0, 0))
    assert len(mixed) == len(plain)
    assert {frozenset(group) for group in mixed.groups} != {frozenset(group) for group in plain.groups}
    widths = [batch.values.shape[1] for batch in mixed]
    assert widths != sorted(widths)


def test_file_order_without_generator() -> None:
    batches = unsorted_batches(corpus_of([2, 3, 1, 9, 1, 1]), 6)
    assert batches.groups == [[0, 1], [2], [3], [4, 5]]


def test_a_shuffled_epoch_is_cut_into_pools() -> None:
    """Budget 7, width 2: batches of 3 in pools of 700 // 2 = 350, so a pool ends with a batch of 2."""
    groups = unsorted_batches(corpus_of([2] * 400), 7, generator=epoch_generator(0, 0)).groups
    assert [len(group) for group in groups] == [3] * 116 + [2] + [3] * 16 + [2]
    in_file_order = unsorted_batches(corpus_of([2] * 400), 7).groups
    assert [len(group) for group in in_file_order] == [3] * 133 + [1]


@cuts
def test_the_same_seed_and_epoch_give_the_same_order(cut: Callable[..., Batches]) -> None:
    corpus = corpus_of([1, 2, 3, 5] * 20)
    orders = {
        (seed, epoch): cut(corpus, 12, generator=epoch_generator(seed, epoch)).groups
        for seed, epoch in itertools.product((0, 1, 11), (0, 1, 11))
    }
    assert len({str(groups) for groups in orders.values()}) == len(orders)
    assert cut(corpus, 12, generator=epoch_generator(1, 11)).groups == orders[1, 11]
    assert cut(corpus, 12, generator=epoch_generator(11, 1)).groups == orders[11, 1]


def test_orders_stay_what_earlier_runs_saw() -> None:
    """Written out: a resumed run must not see another order than the one it began with."""
    assert torch.randperm(8, generator=epoch_generator(3, 7)).tolist() == [5, 1, 4, 0, 6, 7, 2, 3]
    assert length_batches(corpus_of([1, 2, 3, 2, 1]), 4, generator=epoch_generator(3, 7)).groups == [
        [4, 0],
        [2],
        [1, 3],
    ]


@cuts
def test_an_epoch_resumes_at_any_batch(cut: Callable[..., Batches]) -> None:
    corpus = corpus_of([1, 2, 3, 5] * 20)
    whole = list(cut(corpus, 12, generator=epoch_generator(0, 4)))
    again = cut(corpus, 12, generator=epoch_generator(0, 4))
    for i in range(5, len(again)):
        assert torch.equal(again[i].values, whole[i].values)
    with pytest.raises(IndexError):
        again[len(again)]


def test_nothing_touches_the_global_generator() -> None:
    before = torch.get_rng_state()
    for cut in CUTS:
        cut(corpus_of([1, 2]), 4, generator=epoch_generator(0, 0))
    streams(corpus_of([1, 2]), 1, 1, generator=epoch_generator(0, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_knows_its_tokens_and_moves() -> None:
    batch = length_batches(corpus_of([2, 3]), 6)[0]
    assert batch.num_tokens == 5
    assert (batch.values.dtype, batch.lengths.dtype) == (torch.int64, torch.int64)
    assert batch.values.tolist() == [[1, 2, 0], [3, 4, 5]]
    moved = batch._replace(first=False).to("meta")
    assert (moved.values.device.type, moved.lengths.device.type, moved.first) == ("meta", "meta", False)


@hypothesis.given(corpora, st.integers(1, 7), st.integers(1, 9), seeds)
def test_streams_hold_every_token_once_and_in_order(
    corpus: list[list[int]], num_streams: int, num_positions: int, seed: int | None
) -> None:
    hypothesis.assume(sum(map(len, corpus)) >= num_streams)
    batches = streams(corpus, num_streams, num_positions, generator=seeded(seed))
    assert [batch.first for batch in batches] == [True] + [False] * (len(batches) - 1)
    table: list[list[int]] = [[] for _ in range(num_streams)]
    for i, batch in enumerate(batches):
        last = i == len(batches) - 1
        assert batch.lengths.min() >= 1
        assert last or (batch.lengths == num_positions).all() or i == len(batches) - 2
        assert batch.values.shape[1] == batch.lengths.max() <= num_positions
        assert (padding(batch) == PADDING).all()
        for row, tokens in zip(table, rows(batch), strict=False):
            row += tokens
    sizes = [len(row) for row in table]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    joined = [token for row in table for token in row]
    order = list(range(len(corpus))) if seed is None else torch.randperm(len(corpus), generator=seeded(seed)).tolist()
    assert joined == [token for i in order for token in corpus[i]]


def test_streams_side_by_side() -> None:
    first, second, third = streams([[1, 2, 3], [4, 5, 6, 7], [8, 9]], 2, 2)
    assert first.values.tolist() == [[1, 2], [6, 7]]
    assert second.values.tolist() == [[3, 4], [8, 9]]
    assert third.values.tolist() == [[5]]  # one token more than the other stream: one row less
    assert first.values.is_contiguous()
    narrow = streams([[1, 2, 3, 4, 5]], 2, 8)
    assert [batch.values.tolist() for batch in narrow] == [[[1, 2, 3], [4, 5, PADDING]]]
    assert narrow[0].lengths.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: length_batches([[1]], 0), "max_tokens is 0, but must be at least 1"),
        (lambda: unsorted_batches([[1]], -3), "max_tokens is -3"),
        (lambda: length_batches([[1]], 1, rounding=0), "rounding is 0"),
        (lambda: streams([[1]], 0, 1), "num_streams is 0"),
        (lambda: streams([[1]], 1, 0), "num_positions is 0"),
        (lambda: streams([[1], [2, 3]], 4, 1), "num_streams is 4, but the corpus has 3 tokens"),
        (lambda: length_batches([], 1), "no sentences"),
        (lambda: unsorted_batches([], 1), "no sentences"),
        (lambda: streams([], 1, 1), "no sentences"),
        (lambda: unsorted_batches([[1], []], 1), r"sentences\[1\] has no tokens.*<eos>"),
    ],
)
def test_bad_sizes(call: Callable[[], object], words: str) -> None:
    with pytest.raises(DomainError, match=words):
        call()


@needs_texts
def test_penn_treebank_batches_as_the_authors_code_cuts_them() -> None:
    """6,523 batches of 6.45 sentences, width 36.7, padded to real 1.60 there, in one shuffle; others differ by 10."""
    text = read_sentences(FOLDER / "ptb-lm" / "ptb.train.txt.gz")
    corpus = Vocabulary.build(text).encode_all(text)
    for max_tokens, expected in ((128, 12_325), (256, 6_523), (512, 3_488)):
        assert abs(len(unsorted_batches(corpus, max_tokens, generator=epoch_generator(0, 0))) - expected) <= 60
    batches = unsorted_batches(corpus, 256, generator=epoch_generator(0, 0))
    assert abs(len(batches) - 6_523) <= 20
    shapes = [(len(group), max(len(corpus.sentences[i]) for i in group)) for group in batches.groups]
    assert sum(width for _, width in shapes) / len(shapes) == pytest.approx(36.7, abs=0.2)
    assert sum(size * width for size, width in shapes) / corpus.num_tokens == pytest.approx(1.60, abs=0.01)
    assert abs(len(length_batches(corpus, 256)) - 3_820) <= 10
