"""Predicted segments against true ones: the scores of the literature, each with its mean stated.

Over frames: accuracy and normalised mutual information. Over segments: F1 at overlaps, edit score.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rankfold.analysis.states import How, Ints, Matching, contingency, match_states
from rankfold.data.frames import UNKNOWN
from rankfold.errors import DataError, DomainError


class LabelSegment(NamedTuple):
    """Frames start, ..., end - 1 have one label, and their neighbours another."""

    start: int
    end: int
    label: int


class SegmentF1(NamedTuple):
    """F1 of segments that overlap by at least so many percent, in [0, 1]."""

    percent: int
    sequence: float  # the mean over sequences, as Lea et al. 2017
    corpus: float  # of all segments together, as later papers
    precision: float  # of the corpus, as is recall
    recall: float


@dataclass(frozen=True)
class SegmentationScores:
    """All in [0, 1]. Frames without a true label are left out of everything.

    accuracy            the share of frames with the right label, over all frames
    accuracy_sequence   the same of each sequence, the mean over sequences
    edit                1 - Levenshtein distance of the labels of the segments / the larger number of segments; the mean
                        over sequences. Order counts, durations do not.
    f1                  by percent of overlap; see `segment_f1`
    nmi                 2 I(state; label) / (H(state) + H(label)) over all frames, of the states as they were predicted:
                        it needs no matching. 1 if both never change, 0 if one does not.
    """

    accuracy: float
    accuracy_sequence: float
    edit: float
    f1: tuple[SegmentF1, ...]
    nmi: float
    num_sequences: int
    num_frames: int  # with a true label
    num_predicted: int  # segments
    num_true: int
    matching: Matching | None  # None: predicted labels were taken as they are

    def __str__(self) -> str:
        matched = "as they are" if self.matching is None else self.matching.how.replace("_", " ")
        rows = [("frame accuracy", self.accuracy, self.accuracy_sequence)]
        rows += [(f"F1@{f1.percent}", f1.corpus, f1.sequence) for f1 in self.f1]
        lines = [f"{'score':16}{'all together':>14}{'sequence mean':>15}"]
        lines += [f"{name:16}{whole:14.2%}{mean:15.2%}" for name, whole, mean in rows]
        lines += [f"{'edit':16}{'':14}{self.edit:15.2%}", f"{'NMI':16}{self.nmi:14.4f}"]
        lines.append(
            f"{self.num_frames:,} frames, {self.num_predicted:,} predicted and {self.num_true:,} true segments in "
            f"{self.num_sequences:,} sequences; labels {matched}"
        )
        return "\n".join(lines)


def evaluate_segmentation(
    predicted: Sequence[Any],
    truth: Sequence[Any],
    *,
    matching: Matching | How | None = "one_to_one",
    percents: Sequence[int] = (10, 25, 50),
    background: Collection[int] = (),
) -> SegmentationScores:
    """How well predicted states "t" of each sequence agree with its true labels "t".

    `matching` says which label a state stands for: None if states are labels already, "one_to_one" or "many_to_one" to
    match them here, on the truth itself, or a `Matching` learnt on another set. Labels in `background` are no segments
    in F1 and edit score, on either side; accuracy counts their frames. Cost: O(frames + n^2), n segments per sequence.
    """
    states, labels = _checked(predicted, truth, percents)
    # Where the truth is not known, nothing is predicted either.
    states = [np.where(y == UNKNOWN, UNKNOWN, z) for z, y in zip(states, labels, strict=True)]
    nmi = normalised_mutual_information(states, labels)
    if isinstance(matching, str):
        matching = match_states(states, labels, how=matching)
    found = states if matching is None else [matching.apply(z) for z in states]
    right = [int(((x == y) & (y != UNKNOWN)).sum()) for x, y in zip(found, labels, strict=True)]
    known = [int((y != UNKNOWN).sum()) for y in labels]
    pairs = [
        tuple([s for s in segments_of(x) if s.label not in background] for x in pair)
        for pair in zip(found, labels, strict=True)
    ]
    num = len(labels)
    return SegmentationScores(
        accuracy=sum(right) / sum(known),
        accuracy_sequence=sum(a / b for a, b in zip(right, known, strict=True)) / num,
        edit=sum(edit_score([s.label for s in ours], [s.label for s in theirs]) for ours, theirs in pairs) / num,
        f1=tuple(_f1(pairs, percent) for percent in percents),
        nmi=nmi,
        num_sequences=num,
        num_frames=sum(known),
        num_predicted=sum(len(ours) for ours, _ in pairs),
        num_true=sum(len(theirs) for _, theirs in pairs),
        matching=matching,
    )


def segments_of(labels: Any) -> list[LabelSegment]:
    """The runs of equal labels; frames without a label (-1) are in none."""
    y = np.asarray(labels)
    starts = [0, *(np.flatnonzero(y[1:] != y[:-1]) + 1).tolist()] if len(y) else []
    return [
        LabelSegment(start, end, int(y[start]))
        for start, end in itertools.pairwise([*starts, len(y)])
        if y[start] != UNKNOWN
    ]


def labels_of(segments: Iterable[tuple[int, int, int]], length: int) -> Ints:  # "t"
    """The label of every frame; -1 where no segment is. Segments must lie inside and apart."""
    labels, reached = np.full(length, UNKNOWN, dtype=np.int64), 0
    for start, end, label in sorted(segments):
        if not reached <= start < end <= length or label < 0:
            raise DataError(
                f"the segment of label {label} from {start} to {end} does not fit: segments have a label of 0 or more, "
                f"a frame or more, end by {length} and do not overlap (the one before ends at {reached})."
            )
        labels[start:end] = label
        reached = end
    return labels


def segment_f1(
    predicted: Sequence[tuple[int, int, int]], truth: Sequence[tuple[int, int, int]], percent: int
) -> tuple[int, int, int]:
    """How many predicted segments are right, predicted and true, for one sequence. F1 is 2 right / (predicted + true).

    A predicted segment is right if its intersection over union with a true one of its label is at least `percent`. It
    is compared with the one of largest overlap only (the first of equals), and each true one is found once, by the
    first that claims it: a true segment in two pieces has one right and one wrong. From 50 percent on it is symmetric;
    below, it need not be. Segments of a side must not overlap; thresholds are compared in whole numbers. Source: Lea et
    al. 2017, "Temporal convolutional networks for action segmentation and detection".
    """
    ours, theirs = sorted(predicted), sorted(truth)
    ends = [end for _, end, _ in theirs]
    claimed: set[int] = set()
    right = 0
    for start, end, label in ours:
        best, shared, union = -1, 0, 1
        for j in range(bisect_right(ends, start), len(theirs)):
            other_start, other_end, other = theirs[j]
            if other_start >= end:
                break
            if other == label:
                overlap = min(end, other_end) - max(start, other_start)
                whole = end - start + other_end - other_start - overlap
                if overlap * union > shared * whole:
                    best, shared, union = j, overlap, whole
        if best >= 0 and best not in claimed and 100 * shared >= percent * union:
            claimed.add(best)
            right += 1
    return right, len(ours), len(theirs)


def edit_score(predicted: Sequence[int], truth: Sequence[int]) -> float:
    """1 - Levenshtein distance / the larger length; 1 if both are empty. Source: Lea et al. 2016."""
    if not predicted and not truth:
        return 1.0
    theirs = np.asarray(truth, dtype=np.int64)
    places = np.arange(len(theirs) + 1)
    row = places  # the distances of what was read of `predicted` to every beginning of `truth`
    for label in predicted:
        step = row + 1
        step[1:] = np.minimum(step[1:], row[:-1] + (theirs != label))
        # An insertion is a step of one to the right: the minimum over all places to the left, at once.
        row = np.minimum.accumulate(step - places) + places
    return float(1 - row[-1] / max(len(predicted), len(truth)))


def normalised_mutual_information(states: Sequence[Any], labels: Sequence[Any]) -> float:
    """2 I(state; label) / (H(state) + H(label)) over all frames where both are known; 1 if both entropies are 0."""
    table = contingency(states, labels).astype(np.float64)
    total = table.sum()
    if not total:
        return 0.0
    joint, of_state, of_label = (_entropy(x / total) for x in (table, table.sum(1), table.sum(0)))
    both = of_state + of_label
    return max(0.0, 2 * (both - joint) / both) if both else 1.0


def _entropy(p: Any) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def _f1(pairs: Sequence[Sequence[Any]], percent: int) -> SegmentF1:
    counts = [segment_f1(ours, theirs, percent) for ours, theirs in pairs]
    right, ours, theirs = (sum(column) for column in zip(*counts, strict=True))
    each = [2 * r / (n + m) if n + m else 1.0 for r, n, m in counts]
    corpus = 2 * right / (ours + theirs) if ours + theirs else 1.0
    precision, recall = (right / n if n else 0.0 for n in (ours, theirs))
    return SegmentF1(percent, sum(each) / len(each), corpus, precision, recall)


def _checked(predicted: Sequence[Any], truth: Sequence[Any], percents: Sequence[int]) -> tuple[list[Ints], list[Ints]]:
    for percent in percents:
        if not isinstance(percent, int) or not 0 < percent <= 100:
            raise DomainError(f"percents hold {percent!r}, but must be whole numbers from 1 to 100.")
    if len(predicted) != len(truth):
        raise DataError(f"{len(predicted)} predicted sequences, but {len(truth)} true ones: one each was expected.")
    if not len(truth):
        raise DataError("no sequences: at least one predicted and one true sequence was expected.")
    found: tuple[list[Ints], list[Ints]] = ([], [])
    for i, pair in enumerate(zip(predicted, truth, strict=True)):
        for what, x, rows in zip(("predicted states", "true labels"), map(np.asarray, pair), found, strict=True):
            if x.ndim != 1 or x.dtype.kind not in "iu" or bool((x < UNKNOWN).any()):
                raise DataError(
                    f"sequence {i}: {what} are {x.dtype} of shape {x.shape}, but one whole number per frame was "
                    f"expected, at least 0, or {UNKNOWN} where there is none."
                )
            rows.append(x.astype(np.int64))
        if len(found[0][i]) != len(found[1][i]):
            raise DataError(
                f"sequence {i}: {len(found[0][i]):,} predicted states, but {len(found[1][i]):,} true labels.\n"
                "  Are both in the same order, and at the same frames per second?"
            )
        if not (found[1][i] != UNKNOWN).any():
            raise DataError(f"sequence {i}: no frame has a true label.\n  Leave the sequence out.")
    return found
