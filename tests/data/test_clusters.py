"""Clusters drawn at random, read from files and written to them."""

import gzip
import os
from pathlib import Path

import pytest
import torch

import rankfold
from rankfold.data.clusters import Clusters, read_clusters, uniform_clusters, write_clusters

WORDS = ["the", "a", "of", "cat"]
PATHS = b"10\tthe\t50\n0\tof\t7\n10\ta\t20\n11\tcat\t1\n"


def saved(folder: Path, data: bytes, name: str = "paths") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("num_words", "num_clusters"), [(1, 1), (5, 1), (5, 5), (17, 3), (129, 63)])
def test_uniform_sizes_differ_by_at_most_one(num_words: int, num_clusters: int) -> None:
    clusters = uniform_clusters(num_words, num_clusters, seed=0)
    sizes = torch.bincount(clusters.assignment)
    assert clusters.num_clusters == len(sizes) == num_clusters
    assert clusters.assignment.dtype == torch.int64
    assert len(clusters.assignment) == num_words
    assert sizes.max() - sizes.min() <= 1


def test_uniform_is_drawn_from_its_seed_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (uniform_clusters(63, 5, seed=seed).assignment for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_uniform_puts_each_word_into_each_cluster_equally_often() -> None:
    """1,000 draws: a share of 1/3 has the standard error 0.015."""
    draws = torch.stack([uniform_clusters(6, 3, seed=seed).assignment for seed in range(1000)])
    shares = torch.stack([(draws == cluster).double().mean(0) for cluster in range(3)])
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / 3), rtol=0, atol=0.075)  # five standard errors


@pytest.mark.parametrize(
    ("num_words", "num_clusters", "match"),
    [(0, 1, "num_words is 0"), (3, 0, "num_clusters is 0"), (3, 4, "at most num_words = 3")],
)
def test_uniform_refuses_empty_clusters(num_words: int, num_clusters: int, match: str) -> None:
    with pytest.raises(rankfold.DomainError, match=match):
        uniform_clusters(num_words, num_clusters, seed=0)


@pytest.mark.parametrize("packed", [False, True])
def test_paths_are_numbered_in_the_order_of_their_bits(tmp_path: Path, packed: bool) -> None:
    path = saved(tmp_path, gzip.compress(PATHS, mtime=0), "paths.gz") if packed else saved(tmp_path, PATHS)
    for words in (WORDS, {word: number for number, word in enumerate(WORDS)}):
        clusters = read_clusters(path, words)
        assert clusters.num_clusters == 3
        assert clusters.assignment.tolist() == [1, 1, 0, 2]
        assert clusters.assignment.dtype == torch.int64


def test_one_cluster_has_an_empty_path(tmp_path: Path) -> None:
    clusters = read_clusters(saved(tmp_path, b"\tthe\t3\n\ta\t1\n"), ["a", "the"])
    assert clusters.num_clusters == 1
    assert clusters.assignment.tolist() == [0, 0]


def test_numbers_are_kept_and_the_last_line_needs_no_end(tmp_path: Path) -> None:
    words = ["the", "a", *(f"w{number}" for number in range(10))]
    data = "the\t10\na\t2" + "".join(f"\nw{number}\t{number}" for number in range(10))
    clusters = read_clusters(saved(tmp_path, data.encode()), words)
    assert clusters.num_clusters == 11
    assert clusters.assignment.tolist() == [10, 2, *range(10)]


def test_missing_words_are_an_error_or_join_the_last_cluster(tmp_path: Path) -> None:
    path = saved(tmp_path, PATHS)
    words = ["the", "<eos>", "a", "<pad>", "of", "cat"]
    with pytest.raises(rankfold.DataError, match=r"paths has no line for 2 of 6 words, the first of them '<eos>'"):
        read_clusters(path, words)
    assert read_clusters(path, words, missing="last").assignment.tolist() == [1, 2, 1, 2, 0, 2]
    with pytest.raises(rankfold.DomainError, match="missing is 'first'"):
        read_clusters(path, words, missing="first")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["clusters.tsv", "clusters.tsv.gz"])
def test_what_was_written_is_read_back(tmp_path: Path, name: str) -> None:
    words = ["the", "caf\u00e9", "\u4e2d", "a b", "line\u2028end", "\r", "1", "<unk>", "#", "\ufeff"]
    clusters = uniform_clusters(len(words), 3, seed=0)
    write_clusters(tmp_path / name, clusters, words)
    again = read_clusters(tmp_path / name, words)
    assert again.num_clusters == 3
    assert torch.equal(again.assignment, clusters.assignment)


def test_the_file_is_one_line_per_word_in_the_order_of_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "clusters.tsv"
    write_clusters(path, Clusters(torch.tensor([1, 0, 1]), 2), {"c": 2, "a": 0, "b": 1})
    assert path.read_bytes() == b"a\t1\nb\t0\nc\t1\n"
    with pytest.raises(FileExistsError):
        write_clusters(path, Clusters(torch.tensor([0]), 1), ["x"])
    assert path.read_bytes() == b"a\t1\nb\t0\nc\t1\n"


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "paths is empty"),
        (b"\n \n", "paths is empty"),
        (b"the a of\n", r"line 1: 'the a of' has 1 columns, an unknown format"),
        (b"the\t1\t2\t3\n", r"line 1: 'the\\t1\\t2\\t3' has 4 columns, an unknown format"),
        (b"the\t0\n0\ta\t1\n", r"line 2: '0\\ta\\t1' has 3 columns, but line 1 has 2"),
        (b"0\tthe\t5\na\t1\n", r"line 2: 'a\\t1' has 2 columns, but line 1 has 3"),
        (b"the\t0\n\na\t0\n", "line 2: '' has 1 columns"),
        (b"0\tthe\t5\n012\ta\t5\n", "line 2: the path '012' has characters other than 0 and 1"),
        (b"the\t5\t010\n", "line 1: the path 'the'"),
        (b"0\tthe\tmany\n", "line 1: the count 'many' is not a whole number"),
        (b"the\t0\na\t-1\n", "line 2: the cluster '-1' is not a whole number"),
        (b"the\t0\r\n", r"line 1: the cluster '0\\r' is not a whole number"),
        (b"the\t\xd9\xa3\n", "line 1: the cluster '\u0663' is not a whole number"),
        (b"the\t0\na\t0\nthe\t0\n", "line 3: the word 'the' was on line 1 already"),
        (b"the\t0\ndog\t0\n", "line 2: the word 'dog' is not in the vocabulary of 4 words"),
        (b"the\t0\na\t3\nof\t1\ncat\t0\n", "paths has no word in cluster 2, but one in cluster 3"),
        (b"the\t0\n\xff\xfe\t0\n", r"line 2: b'\\xff\\xfe\\t0' is not UTF-8: invalid start byte at byte 0"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, data: bytes, match: str) -> None:
    with pytest.raises(rankfold.DataError, match=match) as caught:
        read_clusters(saved(tmp_path, data), WORDS)
    assert str(tmp_path / "paths") in str(caught.value)


@pytest.mark.parametrize(
    "data", [PATHS, gzip.compress(PATHS, mtime=0)[:-9], gzip.compress(PATHS, mtime=0)[:10] + b"\xff" * 30]
)
def test_damaged_archives_are_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(rankfold.DataError, match=r"paths\.gz ends in \.gz, but cannot be unpacked"):
        read_clusters(saved(tmp_path, data, "paths.gz"), WORDS)


def test_bad_vocabularies_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, PATHS)
    with pytest.raises(rankfold.DomainError, match="words holds 'a' twice"):
        read_clusters(path, ["a", "b", "a"])
    with pytest.raises(rankfold.DomainError, match="words has 0 words"):
        read_clusters(path, [])
    for gap in ({"the": 0, "a": 2}, {"the": 0, "a": 0}, {"the": 1, "a": 2}):
        with pytest.raises(rankfold.DomainError, match=r"numbered 0, 1, \.\.\. without a gap"):
            read_clusters(path, gap)


@pytest.mark.parametrize(
    ("assignment", "words", "error", "match"),
    [
        ([0, 1], ["a"], rankfold.ShapeError, "has 2 entries, but there are 1 words"),
        ([0, 2], ["a", "b"], rankfold.DomainError, "no word in cluster 1"),
        ([0, 1, 2, 3], ["a", "b", "c", "d"], rankfold.DomainError, "a word in cluster 3"),
        ([0, 1, 2], ["a", "b\tc", "d"], rankfold.DomainError, r"word 1 is 'b\\tc'"),
        ([0, 1, 2], ["a", "b", "c\n"], rankfold.DomainError, r"word 2 is 'c\\n'"),
        ([0, 1, 2], ["", "b", "c"], rankfold.DomainError, "word 0 is ''"),
    ],
)
def test_what_no_file_can_hold_is_not_written(
    tmp_path: Path, assignment: list[int], words: list[str], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        write_clusters(tmp_path / "clusters.tsv", Clusters(torch.tensor(assignment), 3), words)
    assert not (tmp_path / "clusters.tsv").exists()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe", tmp_path / "loop"):
        with pytest.raises(rankfold.DataError, match=rf"{path}: .*(a|A) file of word clusters was expected"):
            read_clusters(path, ["a"])
