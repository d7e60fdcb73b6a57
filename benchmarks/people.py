"""Segmentation of people who were not in the training set: all of them, four at a time.

    python -m benchmarks people --data FOLDER/phone-watch-har-10hz.npz [--seeds 2] [--out docs/results]

A person is what a recording's name has before "_". Each is left out once, with three others; a model is trained on the
recordings of all others and scored on these. Without labels states are matched one to one to the labels of the four.
With labels: those of the first 12 recordings of the others, and for each further seed of 12 that are drawn.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import marks
from benchmarks.segment_runs import KEPT, Arm, run
from rankfold.cli.output import say
from rankfold.errors import DataError

RECIPES = (
    "segment-hsmm",
    "segment-activity",
    "segment-hsmm-labelled",
    "segment-hsmm-labelled data.parts=4 model.num_states=20 data.smooth=5 "
    "model.covariance=full model.covariance_states=4 model.variance_prior=100",
)
HEAD = ("recipe", "frame accuracy", "lowest", "highest", "F1@50", "people left out together", "runs")
AT_ONCE = 4


def main(given: Sequence[str]) -> int:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks people", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="a .npz with seq_id and labels")
    parser.add_argument("--recipes", nargs="+", default=RECIPES, help="these alone, settings after a space")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each recipe and group of people")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of segments.md, whose table is replaced")
    asked = parser.parse_args(given)
    with np.load(asked.data) as opened:
        arrays = {name: opened[name] for name in KEPT if name in opened}
    groups = left_out(arrays, asked.data)
    rows = []
    for recipe in asked.recipes:
        found = []
        name, *settings = recipe.split()
        for people in groups:
            for seed in range(1, asked.seeds + 1):
                arm = Arm(name, tuple(settings), first=seed == 1 or "labelled" not in recipe)
                own = scores(arrays, people, arm, seed)
                say(f"{recipe}, without {' '.join(people)}, seed {seed}: {own['frame_accuracy']:.3f}")
                found.append(own)
        accuracy = np.array([one["frame_accuracy"] for one in found])
        f1 = np.mean([one["f1_50"] for one in found])
        cells = [f"{accuracy.mean():.3f}", f"{accuracy.min():.3f}", f"{accuracy.max():.3f}", f"{f1:.3f}"]
        rows.append([f"`{recipe}`", *cells, f"{len(groups[0])}, {len(groups)} times", str(len(found))])
    table = marks.table(HEAD, rows, left={0})
    print(table)
    if asked.out is not None and not marks.replace(asked.out, ["segments.md"], "people", lambda _: table):
        raise DataError(f"{asked.out / 'segments.md'}: has no <!-- people --> and <!-- end of people -->.")
    return 0


def left_out(arrays: dict[str, Any], path: Path) -> list[list[str]]:
    """Groups of people, each person in one of them."""
    if "seq_id" not in arrays or "labels" not in arrays:
        raise DataError(f"{path}: has no seq_id or no labels.")
    people = sorted({str(name).partition("_")[0] for name in arrays["seq_id"]})
    if len(people) < 2:
        raise DataError(f"{path}: has recordings of one person, {people[0]!r}; at least two were expected.")
    num = max(2, -(-len(people) // AT_ONCE))
    return [people[i::num] for i in range(num)]


def scores(arrays: dict[str, Any], people: Sequence[str], arm: Arm, seed: int) -> dict[str, Any]:
    """Those of the people left out, of a model that has seen the others."""
    tested = np.array([str(name).partition("_")[0] in people for name in arrays["seq_id"]])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recordings.npz"
        np.savez(path, **{**arrays, "split": np.where(tested, 2, 0).astype(np.uint8)})
        found: dict[str, Any] = run(arm, path, seed, ["test"])["test"]
    return found
