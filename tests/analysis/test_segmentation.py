"""Scores of segmentations: by hand, by definition in plain Python, and the laws they keep."""

import itertools
import math
from collections import Counter
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.analysis.segmentation import (
    edit_score,
    evaluate_segmentation,
    labels_of,
    normalised_mutual_information,
    segment_f1,
    segments_of,
)
from rankfold.analysis.states import Matching, match_states
from rankfold.data.frame_files import read_frames
from rankfold.errors import DataError, DomainError
from tests.data.recordings import SEGMENTATION, needs_recordings

# Runs, so that segments are longer than a frame.
runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=6)
labelings = runs.map(lambda rows: [label for label, length in rows for _ in range(length)])
pairs = st.tuples(labelings, labelings).map(lambda pair: tuple(x[: min(map(len, pair))] for x in pair))
sets = st.lists(pairs, min_size=1, max_size=4).map(lambda rows: ([a for a, _ in rows], [b for _, b in rows]))


def frames_f1(predicted: list[int], truth: list[int], percent: int) -> tuple[int, int, int]:
    """The definition over sets of frames, in fractions."""
    sides = []
    for labels in (predicted, truth):
        groups = itertools.groupby(enumerate(labels), key=lambda pair: pair[1])
        sides.append([(label, {t for t, _ in group}) for label, group in groups])
    free = [True] * len(sides[1])
    right = 0
    for label, frames in sides[0]:
        ious = [Fraction(len(frames & other), len(frames | other)) * (label == name) for name, other in sides[1]]
        best = ious.index(max(ious))
        if ious[best] >= Fraction(percent, 100) and free[best]:
            free[best] = False
            right += 1
    return right, len(sides[0]), len(sides[1])


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    @cache
    def of(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return of(len(a), len(b))


def test_segments_by_hand() -> None:
    assert segments_of([2, 2, 0, -1, 0, 0]) == [(0, 2, 2), (2, 3, 0), (4, 6, 0)]
    assert segments_of([]) == []
    assert labels_of([(4, 6, 0), (0, 2, 2), (2, 3, 0)], 6).tolist() == [2, 2, 0, -1, 0, 0]


@given(st.lists(st.integers(-1, 3), max_size=20))
def test_segments_and_back(labels: list[int]) -> None:
    assert labels_of(segments_of(labels), len(labels)).tolist() == labels


@pytest.mark.parametrize("bad", [(3, 3, 0), (2, 7, 0), (1, 4, 0), (-1, 0, 0), (3, 4, -1)])
def test_segments_that_do_not_fit(bad: tuple[int, int, int]) -> None:
    with pytest.raises(DataError, match="does not fit"):
        labels_of([(0, 2, 1), bad], 6)


def test_scores_by_hand() -> None:
    truth = [[0] * 4 + [1] * 4 + [0] * 2, [1] * 2]
    found = [[0] * 5 + [1] * 2 + [2] * 1 + [0] * 2, [0] * 2]
    scores = evaluate_segmentation(found, truth, matching=None)
    assert scores.accuracy == 8 / 12
    assert scores.accuracy_sequence == (8 / 10 + 0) / 2
    # 0 1 2 0 against 0 1 0: one more; 0 against 1: one other.
    assert scores.edit == (3 / 4 + 0) / 2
    # Overlaps 4/5, 2/4 and 2/2; the segment of 2 is nowhere, nor is the second sequence's.
    by_percent = {f1.percent: f1 for f1 in scores.f1}
    assert list(by_percent) == [10, 25, 50]
    for f1 in scores.f1:
        assert (f1.precision, f1.recall, f1.corpus) == (3 / 5, 3 / 4, 6 / 9)
        assert f1.sequence == pytest.approx((6 / 7 + 0) / 2, rel=1e-15)
    (at_51,) = evaluate_segmentation(found, truth, matching=None, percents=[51]).f1
    assert at_51.corpus == 4 / 9
    assert (scores.num_sequences, scores.num_frames, scores.num_predicted, scores.num_true) == (2, 12, 5, 4)
    for row in (
        "frame accuracy          66.67%         40.00%",
        "F1@50                   66.67%",
        "labels as they are",
    ):
        assert row in str(scores)


def test_a_segment_in_two_pieces_is_found_once() -> None:
    assert segment_f1([(0, 2, 0), (3, 6, 0)], [(0, 6, 0)], 10) == (1, 2, 1)


def test_the_first_of_equal_overlaps_counts() -> None:
    """The first overlaps equally with both; if it claimed the later one, the second would find nothing."""
    ours, theirs = [(2, 12, 0), (13, 15, 0)], [(0, 6, 0), (8, 14, 0)]
    assert segment_f1(ours, theirs, 10) == segment_f1(ours[::-1], theirs[::-1], 10) == (2, 2, 2)


def test_below_one_half_f1_depends_on_the_side() -> None:
    """The second segment of `ours` overlaps most with one that is claimed, while the other one would be free."""
    ours, theirs = [(0, 4, 0), (5, 14, 0)], [(0, 10, 0), (11, 14, 0)]
    assert segment_f1(ours, theirs, 25) == (1, 2, 2)
    assert segment_f1(theirs, ours, 25) == (2, 2, 2)


@given(pairs, st.sampled_from([1, 10, 25, 50, 75, 100]))
def test_f1_is_its_definition(pair: tuple[list[int], list[int]], percent: int) -> None:
    predicted, truth = pair
    assert segment_f1(segments_of(predicted), segments_of(truth), percent) == frames_f1(predicted, truth, percent)


@given(pairs, st.sampled_from([50, 51, 75, 100]))
def test_f1_is_symmetric_from_one_half_on(pair: tuple[list[int], list[int]], percent: int) -> None:
    ours, theirs = map(segments_of, pair)
    right, n, m = segment_f1(ours, theirs, percent)
    assert segment_f1(theirs, ours, percent) == (right, m, n)


@given(st.lists(st.integers(0, 3), max_size=7), st.lists(st.integers(0, 3), max_size=7))
def test_edit_score_is_its_definition(a: list[int], b: list[int]) -> None:
    expected = 1 - distance(tuple(a), tuple(b)) / max(len(a), len(b)) if a or b else 1.0
    assert edit_score(a, b) == expected == edit_score(b, a)


@given(sets)
def test_mutual_information_is_its_definition(given_sets: tuple[list[list[int]], list[list[int]]]) -> None:
    a, b = (list(itertools.chain.from_iterable(rows)) for rows in given_sets)
    n = len(a)
    shares = [{k: c / n for k, c in Counter(rows).items()} for rows in (a, b, list(zip(a, b, strict=True)))]
    information = sum(p * math.log(p / (shares[0][x] * shares[1][y])) for (x, y), p in shares[2].items())
    entropies = [-sum(p * math.log(p) for p in share.values()) for share in shares[:2]]
    expected = 2 * information / sum(entropies) if sum(entropies) else 1.0
    # Differences of entropies lose some digits.
    assert normalised_mutual_information(*given_sets) == pytest.approx(expected, rel=0, abs=1e-12)


@given(sets, st.permutations(range(4)))
def test_renaming_states_changes_nothing(given_sets: tuple[list[list[int]], list[list[int]]], names: list[int]) -> None:
    states, truth = given_sets
    renamed = [[names[z] + 3 for z in row] for row in states]
    before, after = (evaluate_segmentation(rows, truth) for rows in (states, renamed))
    assert after.accuracy == before.accuracy
    assert after.nmi == pytest.approx(before.nmi, rel=0, abs=1e-12)  # another order of additions
    assert after.num_predicted == before.num_predicted
    # And where the best matching is the only one, nothing at all.
    perfect = evaluate_segmentation([[names[y] + 3 for y in row] for row in truth], truth)
    assert (perfect.accuracy, perfect.accuracy_sequence, perfect.edit) == (1, 1, 1)
    assert all(f1[1:] == (1, 1, 1, 1) for f1 in perfect.f1)
    assert perfect.nmi == pytest.approx(1, abs=1e-12)


@given(sets)
def test_matching_is_at_least_as_good_as_none(given_sets: tuple[list[list[int]], list[list[int]]]) -> None:
    states, truth = given_sets
    plain, one, many = (
        evaluate_segmentation(states, truth, matching=how) for how in (None, "one_to_one", "many_to_one")
    )
    assert plain.accuracy <= one.accuracy <= many.accuracy


def test_accuracy_is_that_of_the_best_renaming() -> None:
    rng = np.random.default_rng(0)
    states, truth = rng.integers(0, 5, (2, 3, 20))
    best = max(np.mean(np.array(names)[states] == truth) for names in itertools.permutations(range(5)))
    assert evaluate_segmentation(states, truth).accuracy == pytest.approx(best, rel=1e-15)


def test_a_matching_of_one_set_is_applied_to_another() -> None:
    matching = match_states([[0, 0, 1, 1]], [[1, 1, 0, 0]])
    scores = evaluate_segmentation([[0, 1, 2, 2]], [[1, 0, 4, 4]], matching=matching)
    assert scores.accuracy == 0.5  # state 2 was never matched, and is no label by chance
    assert scores.matching is matching
    assert scores.num_predicted == 3
    assert evaluate_segmentation([[0]], [[1]], matching=Matching((), "one_to_one")).accuracy == 0


def test_frames_without_a_label_are_in_no_score() -> None:
    truth, found = [[0, 0, -1, -1, 1, 1]], [[0, 0, 2, 3, 1, 1]]
    for matching in (None, "one_to_one"):
        scores = evaluate_segmentation(found, truth, matching=matching)  # type: ignore[arg-type]
        assert (scores.accuracy, scores.edit, scores.num_frames, scores.num_predicted) == (1, 1, 4, 2)
        assert (scores.f1[2].corpus, scores.nmi) == (1, pytest.approx(1))
    # A frame without a predicted state is wrong.
    assert evaluate_segmentation([[0, -1]], [[0, 0]]).accuracy == 0.5


def test_background_is_no_segment() -> None:
    truth, found = [[9, 0, 0, 9, 1, 1]], [[0, 0, 0, 9, 9, 1]]
    scores = evaluate_segmentation(found, truth, matching=None, background=[9])
    assert (scores.num_predicted, scores.num_true, scores.edit) == (2, 2, 1)
    assert scores.accuracy == 4 / 6


@pytest.mark.parametrize(
    ("predicted", "truth", "named"),
    [
        ([[0, 1]], [[0]], "sequence 0: 2 predicted states, but 1 true labels"),
        ([[0]], [[0], [1]], "1 predicted sequences, but 2 true"),
        ([], [], "no sequences"),
        ([[0], [0.5]], [[0], [0]], "sequence 1: predicted states are float64"),
        ([[0]], [[-2]], "sequence 0: true labels"),
        ([[0]], [[-1]], "no frame has a true label"),
        ([[[0]]], [[0]], r"shape \(1, 1\)"),
    ],
)
def test_bad_input(predicted: Any, truth: Any, named: str) -> None:
    with pytest.raises(DataError, match=named):
        evaluate_segmentation(predicted, truth)


@pytest.mark.parametrize("percent", [0, 101, 0.5])
def test_bad_percents(percent: Any) -> None:
    with pytest.raises(DomainError, match="from 1 to 100"):
        evaluate_segmentation([[0]], [[0]], percents=[percent])


@needs_recordings
@pytest.mark.parametrize(("name", "accuracy"), [("mid", 0.549), ("eval", 0.681)])
def test_published_accuracy_of_real_scores(name: str, accuracy: float) -> None:
    """How often the largest score of a frame is right in 50 salads, as published: the mean over videos."""
    path = SEGMENTATION / f"50salads-{name}.npz"
    frames = read_frames(path)
    assert frames.labels is not None
    with np.load(path) as stored:  # the scores are stored standardised
        best = [(x * stored["feature_std"] + stored["feature_mean"]).argmax(1) for x in frames]
    scores = evaluate_segmentation(best, frames.labels, matching=None)
    assert scores.accuracy_sequence == pytest.approx(accuracy, abs=5e-4)  # three digits
