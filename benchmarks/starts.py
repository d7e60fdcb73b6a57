"""How often a fit with the defaults comes near the best one known: `rankfold.estimators.HMM` next to hmmlearn.

    python -m benchmarks starts [--data FOLDER] [--seeds 10] [--out docs/results/starts.md]

Gaussian HMMs with diagonal covariances of 4, 8 and 16 states. The best known likelihood of a set and a size is the
largest of all fits here: those of both libraries, and one of ours that is the best of as many starts of 500 steps.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import marks
from rankfold.cli.output import say

NUM_STATES = (4, 8, 16)
NEAR = 10.0  # nats
Array = NDArray[np.float64]
Fit = Callable[[list[Array], int, int], float]  # sequences, states, seed -> log-likelihood of the sequences


def simulated(num_states: int, apart: float) -> list[Array]:
    """20 sequences of 100 frames, 4 features: means `apart` deviations from 0, states that last 10 frames."""
    from rankfold.estimators import HMM

    rng = np.random.default_rng(num_states)
    moves = np.full((num_states, num_states), 0.1 / (num_states - 1))
    np.fill_diagonal(moves, 0.9)
    made = HMM.from_tables(
        initial=np.full(num_states, 1 / num_states), transition=moves,
        means=apart * rng.standard_normal((num_states, 4)), covariances=rng.uniform(0.5, 1.5, (num_states, 4)),
    )  # fmt: skip
    return list(made.sample(100, n_sequences=20, random_state=num_states)[0])


def activity(folder: Path) -> list[Array]:
    """42 recordings of phone and watch at 10 Hz: the magnitudes of both, smoothed, each recording on its own scale."""
    from rankfold.data.frame_files import read_frames
    from rankfold.data.frame_space import FrameSpace

    frames = read_frames(folder / "segmentation" / "phone-watch-har-10hz.npz", split="train")
    ready = FrameSpace.of(frames, standardise="recording", smooth=7).apply(frames)
    return [x[:, -8:].astype(np.float64) for x in ready.features[::3]]


def ours(sequences: list[Array], num_states: int, seed: int, **settings: Any) -> float:
    """A fit of ours."""
    from rankfold.estimators import HMM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        return HMM(num_states, random_state=seed, **settings).fit(sequences).score(sequences)


def theirs(sequences: list[Array], num_states: int, seed: int, **settings: Any) -> float:
    """A fit of hmmlearn's."""
    from hmmlearn.hmm import GaussianHMM

    x, lengths = np.concatenate(sequences), [len(rows) for rows in sequences]
    model: Any = GaussianHMM(num_states, "diag", random_state=seed, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(model.fit(x, lengths).score(x, lengths))


LIBRARIES: dict[str, Fit] = {
    "rankfold": ours,
    "hmmlearn": theirs,
    "hmmlearn, 100 steps": lambda x, z, seed: theirs(x, z, seed, n_iter=100),
}


def main(given: Sequence[str]) -> int:
    """Fit, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks starts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of real data: phone and watch, too")
    parser.add_argument("--seeds", type=int, default=10, help="fits of each library, set and size")
    parser.add_argument("--states", type=int, nargs="+", default=NUM_STATES, help="sizes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page whose table is replaced")
    asked = parser.parse_args(given)
    sets: dict[str, Callable[[int], list[Array]]] = {
        "simulated, far apart": lambda z: simulated(z, 2.0),
        "simulated, overlapping": lambda z: simulated(z, 1.0),
    }
    if asked.data is not None:
        sets["phone and watch"] = lambda z: activity(asked.data)
    rows = [row for name, make in sets.items() for z in asked.states for row in _rows(name, make(z), z, asked.seeds)]
    head = ("frames", "states", "library", f"within {NEAR:g} nats", "median below the best", "seconds a fit")
    table = marks.table(head, rows, left={0, 2})
    if asked.out is None:
        print(table)
    else:
        marks.replace(asked.out.parent, [asked.out.name], "starts", lambda _: table)
    return 0


def _rows(name: str, sequences: list[Array], num_states: int, num_seeds: int) -> list[list[str]]:
    found, seconds = {}, {}
    for library, fit in LIBRARIES.items():
        begin = time.process_time()
        found[library] = np.array([fit(sequences, num_states, seed) for seed in range(num_seeds)])
        seconds[library] = (time.process_time() - begin) / num_seeds
        say(f"{name}, {num_states} states, {library}: {found[library].max():.1f} at best ({seconds[library]:.2f} s)")
    long = ours(sequences, num_states, 1000, n_init=num_seeds, max_iter=500, tol=1e-6)
    best = max(long, *(float(values.max()) for values in found.values()))
    return [
        [
            name,
            str(num_states),
            library,
            f"{(values > best - NEAR).sum()} of {num_seeds}",
            f"{np.median(best - values):.1f}",
            f"{seconds[library]:.2f}",
        ]
        for library, values in found.items()
    ]
