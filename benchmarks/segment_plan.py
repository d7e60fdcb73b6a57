"""What is run on the segmentation sets: what is chosen on valid splits, and then the lines of every table."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.segment_runs import Arm

SMOOTH = (1, 3, 5, 7, 9, 11, 15)
STANDARDISE = ("train", "recording")
DURATIONS = ("poisson", "negative_binomial", "categorical")
LABELLED = 12
RECIPES = ("segment-hmm", "segment-hsmm", "segment-hsmm-labelled")  # for each a choice of its own


class Set(NamedTuple):
    """A set: as many states as it has labels, the longest segment there may be, and what is tried on it."""

    title: str
    num_labels: int
    max_duration: int
    smooth: tuple[int, ...] = SMOOTH
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    whole: bool = True  # false: HSMMs take the scale chosen for the HMM and the durations chosen on the first set
    tables: tuple[str, ...] = ("unsupervised", "labelled")

    @property
    def sizes(self) -> tuple[str, ...]:
        """Settings that are not chosen."""
        return (f"model.num_states={self.num_labels}", f"model.max_duration={self.max_duration}")


SALADS: Any = {"smooth": (1, 5, 15), "seeds": (1, 2, 3), "whole": False}
SETS = {
    "phone-watch-har-10hz": Set(
        "Phone and watch, 10 frames a second", 5, 60, tables=("unsupervised", "labelled", "by-size")
    ),
    "50salads-eval": Set("50 salads, 10 labels, 1 frame a second", 10, 120, **SALADS),
    "50salads-mid": Set("50 salads, 18 labels, 1 frame a second", 18, 120, **SALADS),
}
BEGINNING = {  # durations while scale and smoothing are chosen
    "segment-hmm": (),
    "segment-hsmm": ("model.durations=negative_binomial",),
    "segment-hsmm-labelled": ("model.durations=categorical",),
}
OF_FIRST = "model.durations=poisson"  # what the first set's HSMM has chosen


def tried(name: str, recipe: str, settings: tuple[str, ...]) -> Arm:
    """An arm of a choice; labels are always those of the first recordings."""
    return Arm(recipe, (*SETS[name].sizes, *settings))


def scales(name: str, recipe: str) -> list[tuple[str, ...]]:
    """Scale and smoothing, among which is chosen first."""
    return [
        (f"data.smooth={n}", f"data.standardise={how}", *BEGINNING[recipe])
        for n in SETS[name].smooth
        for how in STANDARDISE
    ]


def durations(name: str, recipe: str, scale: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Kinds of durations, among which is chosen then."""
    if recipe == "segment-hmm" or not SETS[name].whole:
        return []
    return [(*scale[:2], f"model.durations={kind}") for kind in DURATIONS]


def choice_seeds(recipe: str) -> tuple[int, ...]:
    """Labels leave a start nothing to draw."""
    return (1,) if recipe == "segment-hsmm-labelled" else (1, 2, 3)


class Line(NamedTuple):
    """A line of a table."""

    title: str
    arm: Arm
    seeds: tuple[int, ...]


def unsupervised(name: str, chosen: dict[str, tuple[str, ...]]) -> list[Line]:
    """As many states as labels, by family, next to others."""
    sizes, k = SETS[name].sizes, SETS[name].num_labels
    given, hmm, hsmm = ("data.smooth=1", "data.standardise=none"), chosen["segment-hmm"], chosen["segment-hsmm"]
    rank, seeds = max(2, k // 2), SETS[name].seeds
    return [
        Line("k-means, features as given", Arm("k-means", (*sizes, *given)), seeds),
        Line("k-means, features as chosen for the HMM", Arm("k-means", (*sizes, *hmm)), seeds),
        Line("hmmlearn's Gaussian HMM, features as given", Arm("hmmlearn", (*sizes, *given)), seeds),
        Line("hmmlearn's Gaussian HMM, features as chosen for the HMM", Arm("hmmlearn", (*sizes, *hmm)), seeds),
        Line("HMM, features as given", Arm("segment-hmm", (*sizes, *given)), seeds),
        Line("HMM", Arm("segment-hmm", (*sizes, *hmm)), seeds),
        Line("HSMM", Arm("segment-hsmm", (*sizes, *hsmm)), seeds),
        Line(f"LHMM, rank {rank}", Arm("segment-hmm", (*sizes, *hmm, *_low("frame_lhmm", rank))), seeds),
        Line(f"LHSMM, rank {rank}", Arm("segment-hsmm", (*sizes, *hsmm, *_low("lhsmm", rank))), seeds),
    ]


def by_size(name: str, chosen: dict[str, tuple[str, ...]]) -> list[Line]:
    """More states than labels, by states and rank."""
    sizes, hmm, hsmm = SETS[name].sizes, chosen["segment-hmm"], chosen["segment-hsmm"]
    lines = []
    for z, ranks, seeds in ((16, (4, 8), (1, 2, 3)), (64, (8, 32), (1,))):
        states = f"model.num_states={z}"
        lines += [Line(f"HMM, {z} states", Arm("segment-hmm", (*sizes, *hmm, states)), seeds)]
        for r in ranks:
            settings = (*sizes, *hmm, states, *_low("frame_lhmm", r))
            lines.append(Line(f"LHMM, {z} states, rank {r}", Arm("segment-hmm", settings), seeds))
        lines += [Line(f"HSMM, {z} states", Arm("segment-hsmm", (*sizes, *hsmm, states)), seeds)]
        for r in ranks:
            settings = (*sizes, *hsmm, states, *_low("lhsmm", r))
            lines.append(Line(f"LHSMM, {z} states, rank {r}", Arm("segment-hsmm", settings), seeds))
    return lines


def labelled(name: str, chosen: dict[str, tuple[str, ...]]) -> list[Line]:
    """Some training recordings with labels, the others left out."""
    sizes, own, seeds = SETS[name].sizes, chosen["segment-hsmm-labelled"], SETS[name].seeds
    recipe, whole = "segment-hsmm-labelled", (*sizes, *own)
    lines = [Line(f"HSMM, the first {LABELLED} of the file", Arm(recipe, whole), (1,))]
    for num in (3, 6, LABELLED, 24):
        settings = (*whole, f"data.labelled={num}")
        lines.append(Line(f"HSMM, {num} drawn", Arm(recipe, settings, first=False), seeds))
    both = (*whole, "data.unlabelled=true")
    hmm = (*whole, "model.family=frame_hmm")
    return [
        *lines,
        Line(f"HSMM, {LABELLED} drawn, and all others without labels", Arm(recipe, both, first=False), seeds),
        Line(f"HMM, {LABELLED} drawn", Arm(recipe, hmm, first=False), seeds),
    ]


NEEDS = {  # what has to be chosen first
    "unsupervised": ("segment-hmm", "segment-hsmm"),
    "labelled": ("segment-hsmm-labelled",),
    "by-size": ("segment-hmm", "segment-hsmm"),
}
TABLES = {"unsupervised": unsupervised, "labelled": labelled, "by-size": by_size}


def _low(family: str, rank: int) -> tuple[str, str]:
    return f"model.family={family}", f"model.rank={rank}"
