"""Brown clusters: the choices of the naive search, and mutual information worked by hand."""

import gzip
import itertools
import math
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rankfold
from rankfold.data.brown import Window, _pairs, brown, merge_paths, mutual_information
from rankfold.data.clusters import Clusters, read_clusters, uniform_clusters

Corpus = list[list[int]]
DATA = Path(os.environ.get("RANKFOLD_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


def neighbours(corpus: Corpus, joined: bool) -> list[tuple[int, int]]:
    rows = [[word for sentence in corpus for word in sentence]] if joined else corpus
    return [pair for row in rows for pair in itertools.pairwise(row)]


def information(clusters: list[list[int]], pairs: list[tuple[int, int]]) -> float:
    """Number of pairs times mutual information, summed over these clusters; margins are those of the whole corpus."""
    here = {word: number for number, cluster in enumerate(clusters) for word in cluster}
    first = Counter(here.get(one) for one, _ in pairs)
    second = Counter(here.get(two) for _, two in pairs)
    both = Counter((here[one], here[two]) for one, two in pairs if one in here and two in here)
    return math.fsum(n * math.log(n * len(pairs) / (first[c] * second[e])) for (c, e), n in both.items())


def naive_merge(clusters: list[list[int]], pairs: list[tuple[int, int]]) -> tuple[int, int]:
    """Try every pair: the first of those that keep the most. Clusters are in the order of their first words."""
    kept = {}
    for one, two in itertools.combinations(range(len(clusters)), 2):
        rest = [cluster for number, cluster in enumerate(clusters) if number not in (one, two)]
        kept[one, two] = information([*rest, clusters[one] + clusters[two]], pairs)
    return next(pair for pair, value in kept.items() if value >= max(kept.values()) - 1e-9)


def naive(corpus: Corpus, num_words: int, num_clusters: int, joined: bool) -> tuple[list[int], list[str]]:
    """The cluster of each word, and the path of each cluster."""
    pairs = neighbours(corpus, joined)
    frequency = Counter(word for sentence in corpus for word in sentence)
    clusters: list[list[int]] = []
    for word in sorted(range(num_words), key=lambda word: (-frequency[word], word)):
        clusters.append([word])
        if len(clusters) > num_clusters:
            one, two = naive_merge(clusters, pairs)
            clusters[one] += clusters.pop(two)
    found = [next(number for number, cluster in enumerate(clusters) if word in cluster) for word in range(num_words)]
    paths = [""] * num_clusters
    while len(clusters) > 1:
        one, two = naive_merge(clusters, pairs)
        for bit, chosen in (("0", one), ("1", two)):
            for number in {found[word] for word in clusters[chosen]}:
                paths[number] = bit + paths[number]
        clusters[one] += clusters.pop(two)
    return found, paths


def check(corpus: Corpus, num_words: int, num_clusters: int, joined: bool) -> None:
    clusters = brown(corpus, num_words, num_clusters, joined=joined)
    found, paths = naive(corpus, num_words, num_clusters, joined)
    assert clusters.assignment.dtype == torch.int64
    assert clusters.num_clusters == num_clusters
    assert clusters.assignment.tolist() == found
    assert merge_paths(corpus, clusters, joined=joined) == paths


def zipf(seed: int, num_words: int, num_sentences: int) -> Corpus:
    """Sentences of unequal lengths, words by Zipf's law; every other word leans on the one before."""
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, num_words + 1)
    corpus = []
    for length in draw.integers(0, 12, num_sentences):
        words = draw.choice(num_words, length, p=weights / weights.sum())
        words[1::2] = np.where(
            draw.random(length // 2) < 0.5, (words[0 : length - 1 : 2] * 3 + 1) % num_words, words[1::2]
        )
        corpus.append(words.tolist())
    return corpus


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("num_words", "num_clusters", "num_sentences"), [(5, 2, 9), (17, 3, 40), (17, 1, 9), (29, 5, 90), (29, 12, 40)]
)
def test_choices_are_those_of_the_naive_search(
    num_words: int, num_clusters: int, num_sentences: int, joined: bool
) -> None:
    for seed in range(2):
        check(zipf(seed, num_words, num_sentences), num_words, num_clusters, joined)


@given(st.data())
def test_choices_agree_where_ties_abound(data: st.DataObject) -> None:
    """Few counts, so most losses are shared by many pairs; words that never occur, sentences of length 0 and 1."""
    num_words = data.draw(st.integers(2, 9))
    word = st.integers(0, num_words - 1)
    corpus = data.draw(st.lists(st.lists(word, max_size=5), max_size=6))
    corpus.append([data.draw(word), data.draw(word)])
    check(corpus, num_words, data.draw(st.integers(1, num_words)), data.draw(st.booleans()))


@pytest.mark.parametrize(
    "corpus",
    [
        [[0, 1], [2, 3], [4, 5]],
        [[0, 1, 2, 3, 4, 5, 6, 7, 0]],
        [[3, 3, 3], [1, 1, 1], [2, 2], [0, 0]],
        [[7, 6, 5, 4], [3, 2, 1, 0], [7, 2, 5, 0]],
        [[0, 2], [1, 2], [0, 3], [1, 3], [4, 6], [5, 6], [4, 7], [5, 7]],
        [[4, 1, 1], [0, 1]],  # a tie that rounding breaks
        [[1, 4, 2, 3, 7], [0, 1]],  # merges of clusters whose later words came to earlier slots
    ],
)
def test_choices_agree_on_corpora_with_ties(corpus: Corpus) -> None:
    for num_clusters in (1, 2, 3, 5):
        check(corpus, 8, num_clusters, joined=False)


def test_words_of_equal_company_share_a_cluster() -> None:
    corpus = [[0, 2], [1, 2], [0, 3], [1, 3], [2, 0], [2, 1], [3, 0], [3, 1]] * 3
    assert brown(corpus, 4, 2).assignment.tolist() == [0, 0, 1, 1]


def test_mutual_information_by_hand() -> None:
    """Pairs 01, 10, 01, 22: p(01) = 1/2, p(10) = p(22) = 1/4; margins 1/2, 1/4, 1/4 left and 1/4, 1/2, 1/4 right."""
    corpus = [[0, 1, 0, 1], [], [2], [2, 2]]
    by_hand = 0.5 * math.log(0.5 / 0.25) + 2 * 0.25 * math.log(0.25 / 0.0625)
    assert mutual_information(corpus, torch.arange(3)) == pytest.approx(by_hand, rel=1e-14)
    # Words 0 and 1 together: pairs 00 three times, 11 once.
    by_hand = 0.75 * math.log(0.75 / 0.75**2) + 0.25 * math.log(0.25 / 0.25**2)
    assert mutual_information(corpus, torch.tensor([0, 0, 1])) == pytest.approx(by_hand, rel=1e-14)
    assert mutual_information(corpus, torch.tensor([0, 0, 0])) == 0.0
    assert mutual_information(corpus, torch.tensor([5, 5, 5])) == 0.0


@pytest.mark.parametrize("joined", [False, True])
def test_pairs_are_counted_in_stretches_of_any_size(joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = [*zipf(3, 17, 30), [], [4], *zipf(4, 17, 30)]
    frequency, pairs = _pairs(corpus, 17, joined=joined)
    assert dict(Counter(neighbours(corpus, joined))) == {
        (one, two): times for one, two, times in zip(*(x.tolist() for x in pairs), strict=True)
    }
    for size in (1, 7, 64):
        monkeypatch.setattr("rankfold.data.brown.STRETCH", size)
        again, cut = _pairs(corpus, 17, joined=joined)
        assert all(map(np.array_equal, (frequency, *pairs), (again, *cut)))


def test_joined_sentences_are_one_stream() -> None:
    corpus = zipf(3, 17, 30)
    stream = [[word for sentence in corpus for word in sentence]]
    table = uniform_clusters(17, 5, seed=0).assignment
    assert mutual_information(corpus, table, joined=True) == mutual_information(stream, table)
    assert mutual_information(corpus, table, joined=True) != mutual_information(corpus, table)
    joined = brown(corpus, 17, 5, joined=True)
    assert torch.equal(joined.assignment, brown(stream, 17, 5).assignment)
    assert merge_paths(corpus, joined, joined=True) == merge_paths(stream, joined)


def test_cached_losses_are_differences_of_mutual_information() -> None:
    """With every word in the window, after some merges: what is cached is what recomputing gives."""
    corpus = zipf(1, 17, 60)
    _, pairs = _pairs(corpus, 17, joined=False)
    window = Window(pairs, 17, 17)
    for item in range(17):
        window.add(item)
    for _ in range(6):
        window.merge(*window.best())
    before = mutual_information(corpus, torch.from_numpy(window.slot))
    active = np.flatnonzero(window.lead >= 0).tolist()
    assert len(active) == 11
    losses = window.losses()
    for one, two in itertools.combinations(active, 2):
        merged = np.where(window.slot == two, one, window.slot)
        loss = before - mutual_information(corpus, torch.from_numpy(merged))
        # Both sides are differences of sums of about 500 terms below 1.
        assert losses[one, two] / pairs.times.sum() == pytest.approx(loss, rel=0, abs=1e-13)


def test_runs_are_equal_whatever_holds_the_sentences() -> None:
    corpus = zipf(5, 29, 60)
    first = brown(corpus, 29, 5).assignment
    assert torch.equal(brown(corpus, 29, 5).assignment, first)
    assert torch.equal(brown([np.array(row, np.int32) for row in corpus], 29, 5).assignment, first)
    assert torch.equal(brown([torch.tensor(row) for row in corpus], 29, 5).assignment, first)
    assert torch.equal(brown([tuple(row) for row in corpus], 29, 5).assignment, first)


def test_equal_counts_go_by_the_number_of_the_word() -> None:
    """All words once each; the window opens with words 0 and 1, and clusters are numbered by their first words."""
    assert brown([[3, 2, 1, 0]], 4, 4).assignment.tolist() == [0, 1, 2, 3]
    assert brown([[3, 2, 1, 0, 3]], 4, 4).assignment.tolist() == [1, 2, 3, 0]


def test_words_that_never_occur_join_the_most_frequent() -> None:
    assert brown([[2, 4, 2, 4, 2, 2]], 6, 2).assignment.tolist() == [0, 0, 0, 0, 1, 0]


def test_progress_counts_the_words() -> None:
    calls: list[tuple[int, int]] = []
    brown([[0, 1, 2]], 5, 2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 5) for done in range(1, 6)]


@pytest.mark.parametrize(
    ("num_words", "num_clusters", "match"),
    [
        (0, 1, "num_words is 0, but must be at least 1"),
        (2, 0, "num_clusters is 0"),
        (2, 3, "num_clusters is 3, .* at most num_words = 2"),
    ],
)
def test_sizes_out_of_range_are_refused(num_words: int, num_clusters: int, match: str) -> None:
    with pytest.raises(rankfold.DomainError, match=match):
        brown([[0, 1]], num_words, num_clusters)


@pytest.mark.parametrize("corpus", [[], [[]], [[0], [1], []]])
def test_a_corpus_without_pairs_is_refused(corpus: Corpus) -> None:
    clusters = Clusters(torch.tensor([0, 1]), 2)
    for call in (
        lambda: brown(corpus, 2, 1),
        lambda: mutual_information(corpus, clusters.assignment),
        lambda: merge_paths(corpus, clusters),
    ):
        with pytest.raises(rankfold.DomainError, match="sentences has no two neighbouring words"):
            call()


@pytest.mark.parametrize(
    ("corpus", "match"),
    [
        ([[0, 1], [1, 2, 0]], r"sentences\[1\]\[1\] is word 2, but words are numbered 0 to num_words - 1 = 1"),
        ([[0, -1]], r"sentences\[0\]\[1\] is word -1"),
        ([[0, 1], ["a", "b"]], r"sentences\[1\] must be a row of word numbers, but is \['a', 'b'\]"),
        ([[0.0, 1.0]], r"sentences\[0\] must be a row of word numbers"),
        ([0, 1], r"sentences\[0\] must be a row of word numbers, but is 0"),
    ],
)
def test_words_that_are_none_are_named(corpus: Corpus, match: str) -> None:
    with pytest.raises(rankfold.DomainError, match=match):
        brown(corpus, 2, 1)


def test_bad_assignments_are_refused() -> None:
    for bad, match in (
        (torch.tensor([[0, 1]]), r"shape \(1, 2\)"),
        (torch.tensor([0.0, 1.0]), "torch.float32"),
        (torch.tensor([], dtype=torch.int64), r"v >= 1"),
        ([0, 1], "must be a torch.Tensor"),
    ):
        with pytest.raises(rankfold.ShapeError, match=match):
            mutual_information([[0, 1]], bad)  # type: ignore[arg-type]
    with pytest.raises(rankfold.DomainError, match=r"assignment\[1\] is -3"):
        mutual_information([[0, 1]], torch.tensor([0, -3]))
    with pytest.raises(rankfold.DomainError, match="uses cluster 2, but num_clusters is 2"):
        merge_paths([[0, 1]], Clusters(torch.tensor([0, 2]), 2))


def penn_treebank(run: str, folder: Path) -> tuple[Corpus, Clusters]:
    """The training text and the clusters of one run over it; runs whose name begins with flm saw line ends."""
    text, table = DATA / "ptb-lm" / "ptb.train.txt.gz", DATA / "clusters" / "ptb-brown.tsv.gz"
    for path in (text, table):
        if not path.exists():
            pytest.skip(f"{path} is absent; RANKFOLD_DATA names the folder it is looked for in")
    head, *rows = (line.split("\t") for line in gzip.decompress(table.read_bytes()).decode().splitlines())
    rows = [[row[head.index(run)], row[0], row[1]] for row in rows if row[head.index(run)] != "-"]
    (folder / "paths").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    words = {row[1]: number for number, row in enumerate(rows)}
    end = ["<eos>"] if run.startswith("flm") else []
    lines = gzip.decompress(text.read_bytes()).decode().splitlines()
    return [[words[word] for word in line.split() + end] for line in lines], read_clusters(folder / "paths", words)


def test_mutual_information_of_given_clusters_is_the_stated_one(tmp_path: Path) -> None:
    """The README beside the tables states 1.33457 bits."""
    corpus, given = penn_treebank("lm-128", tmp_path)
    assert given.num_clusters == 128
    bits = mutual_information(corpus, given.assignment, joined=True) / math.log(2)
    assert bits == pytest.approx(1.33457, rel=0, abs=6e-6)  # it is rounded to five digits


@pytest.mark.slow
@pytest.mark.parametrize("run", ["lm-128", "flm-128"])
def test_clusters_are_as_good_as_the_given_ones(tmp_path: Path, run: str) -> None:
    corpus, given = penn_treebank(run, tmp_path)
    start = time.process_time()
    clusters = brown(corpus, len(given.assignment), 128, joined=True)
    seconds = time.process_time() - start
    ours, theirs = (mutual_information(corpus, x.assignment, joined=True) for x in (clusters, given))
    print(f"{run}: ours {ours:.6f} nats, given {theirs:.6f} nats, {seconds:.1f} s")
    assert ours >= 0.99 * theirs
    assert seconds < 180
    paths = merge_paths(corpus, clusters, joined=True)
    assert len(set(paths)) == 128
    assert sum(0.5 ** len(path) for path in paths) == 1.0
