"""Trees of least expected error: no binary tree has a larger sum of posteriors, by enumeration."""

import pytest
import torch

from rankfold import mbr, posterior, rank_space
from rankfold.decoding.parsed_tree import ParsedTree
from rankfold.recursions.tree.best import best_brackets
from tests.oracles import tree as oracle
from tests.recursions.trees import EVERY, INF, doubled_range, enumerated, potentials, sentences

NEAR = 1e-9  # sums of a few posteriors in float64


def is_binary(tree: ParsedTree, length: int) -> bool:
    return frozenset(tree.spans) in set(oracle.bracketings(0, length)) and len(tree.spans) == length - 1


@pytest.mark.parametrize("name", EVERY)
def test_most_brackets_expected(name: str) -> None:
    p = potentials(name, (4, 1, 3), p=2)
    for tree, sentence in zip(mbr(p).trees, sentences(p), strict=True):
        length = len(sentence[0])
        assert is_binary(tree, length)
        assert tree.labels is None
        if length > 1:
            posterior = oracle.expected(oracle.weights(*sentence), oracle.brackets)
            assert tree.score == pytest.approx(oracle.best_expected(length, posterior), abs=NEAR)
            assert tree.score == pytest.approx(sum(posterior[ends] for ends in tree.spans), abs=NEAR)


@pytest.mark.parametrize("far", [0.0, 3000.0])
@pytest.mark.parametrize("name", EVERY)
def test_most_labelled_brackets_expected(name: str, far: float) -> None:
    """Far: words whose symbols are thousands of nats apart, in logarithms."""
    p = potentials(name, (4, 1, 3), p=2, seed=1)
    near = p
    if far:
        p = doubled_range(p, far)
    for tree, sentence in zip(mbr(p, labels=True).trees, sentences(near), strict=True):
        length = len(sentence[0])
        assert is_binary(tree, length)
        weights = oracle.weights(*sentence)
        posterior = oracle.expected(weights, oracle.labelled)
        best: dict[tuple[int, int], float] = {}
        for (i, j, _), x in posterior.items():
            best[i, j] = max(best.get((i, j), 0.0), x)
        assert tree.labels is not None
        assert tree.tags is not None
        chosen = [posterior[i, j, label] for (i, j), label in zip(tree.spans, tree.labels, strict=True)]
        assert tree.score == pytest.approx(sum(chosen), abs=NEAR)
        assert tree.score == pytest.approx(oracle.best_expected(length, best), abs=NEAR)
        words = oracle.expected(weights, lambda tree: list(enumerate(oracle.labels(tree))))
        assert tree.tags == [max(range(2), key=lambda tag: words[t, tag]) for t in range(length)]


def test_parents_first_left_before_right() -> None:
    p = potentials("shared", (9,), seed=2)
    (tree,) = mbr(p).trees
    assert tree.spans == sorted(tree.spans, key=lambda ends: (ends[0], -ends[1]))
    assert tree.spans[0] == (0, 9)


def test_known_and_forbidden_brackets() -> None:
    p = potentials("mixed", (5,), seed=3)
    log_span = torch.zeros(1, 6, 6, dtype=torch.float64)
    log_span[0, 1, 3] = 200.0
    log_span[0, 0, 4] = -INF
    (tree,) = mbr(p._replace(log_span=log_span)).trees
    assert (1, 3) in tree.spans
    assert (0, 4) not in tree.spans


@pytest.mark.parametrize("labels", [False, True])
def test_what_cannot_be_has_no_brackets(labels: bool) -> None:
    p = potentials("shared", (4, 3, 1, 2), seed=4)._replace(log_root_leaf=None)
    p.log_leaf[1, 0] = -INF
    found = mbr(p, labels=labels).trees
    assert [len(tree.spans) for tree in found] == [3, 0, 0, 1]
    assert found[1] == found[2] == ParsedTree([])


def test_ties_go_to_the_shortest_left_child() -> None:
    (spans, short), (total, _) = best_brackets(torch.ones(2, 5, 5), [4, 2])
    assert spans == [(0, 4), (1, 4), (2, 4)]
    assert short == [(0, 2)]
    assert total == 3.0


def test_in_rank_space_the_same_brackets() -> None:
    p = potentials("shared", (8, 5, 7), n=4, seed=6)
    rules, log_root = rank_space(p.rules, p.log_root)
    over_ranks = mbr(p._replace(rules=rules, log_root=log_root)).trees
    assert [tree.spans for tree in over_ranks] == [tree.spans for tree in mbr(p).trees]


def test_posteriors_of_words() -> None:
    p = potentials("shared log", (4, 1, 3), p=2, seed=7)
    torch.testing.assert_close(posterior(p).leaf, enumerated(p).leaf, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["shared", "mixed"])
def test_float32_and_inference_mode(name: str) -> None:
    p = potentials(name, (6, 3), seed=8, dtype=torch.float32)
    wanted = mbr(p).trees, mbr(p, labels=True).trees
    with torch.inference_mode():
        assert (mbr(p).trees, mbr(p, labels=True).trees) == wanted
