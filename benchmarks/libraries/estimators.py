"""A Gaussian HMM fitted by `rankfold.estimators.HMM` and by hmmlearn: the same start, the same steps, no priors.

    python -m benchmarks estimators [--quick]

100 sequences of 200 frames and one of 20,000, 12 features. Likelihoods are compared before anything is timed; then all
take turns in one process, on two CPUs.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.libraries.process import Case, time_together
from rankfold.cli.output import say
from rankfold.planning.measure import Spread

NUM_FEATURES, NUM_FRAMES, NUM_STEPS = 12, 20_000, 5
SHAPES = ((100, 200), (1, 20_000))
NUM_STATES = (16, 256)
OURS, THEIRS = "rankfold", ("hmmlearn, log (its default)", "hmmlearn, scaling")
Array = NDArray[np.float64]


def data(num_sequences: int, length: int) -> list[Array]:
    """Segments of 10 frames around one of 8 means."""
    rng = np.random.default_rng(0)
    means = 2 * rng.standard_normal((8, NUM_FEATURES))
    return [
        means[np.repeat(rng.integers(0, 8, length // 10), 10)] + rng.standard_normal((length, NUM_FEATURES))
        for _ in range(num_sequences)
    ]


def start(frames: Array, num_states: int) -> dict[str, Array]:
    """Tables everyone begins with: frames for means, the variance of all, random moves."""
    rng = np.random.default_rng(1)
    return {
        "initial": np.full(num_states, 1 / num_states),
        "transition": rng.dirichlet(np.full(num_states, 5.0), num_states),
        "mean": frames[rng.choice(len(frames), num_states, replace=False)],
        "variance": np.tile(frames.var(0), (num_states, 1)),
    }


def ours(sequences: list[Array], begin: dict[str, Array], num_steps: int) -> Callable[[], list[float]]:
    """A fit of ours; returns the likelihood before each step."""
    from rankfold.estimators import HMM

    model = HMM(len(begin["initial"]), start=begin, max_iter=num_steps, tol=None, min_variance=0.0, random_state=0)
    return lambda: model.fit(sequences).history_


def theirs(sequences: list[Array], begin: dict[str, Array], num_steps: int, name: str) -> Callable[[], list[float]]:
    """A fit of hmmlearn's."""
    from hmmlearn.hmm import GaussianHMM

    frames, lengths = np.concatenate(sequences), [len(x) for x in sequences]
    implementation = "scaling" if "scaling" in name else "log"

    def fit() -> list[float]:
        model: Any = GaussianHMM(
            len(begin["initial"]), "diag", n_iter=num_steps, tol=-np.inf, init_params="", covars_prior=0.0,
            implementation=implementation,
        )  # fmt: skip
        model.startprob_, model.transmat_ = begin["initial"], begin["transition"]
        model.means_, model.covars_ = begin["mean"], begin["variance"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(frames, lengths)
        return list(model.monitor_.history)

    return fit


def measured(num_sequences: int, length: int, num_states: int, *, quick: bool) -> tuple[dict[str, Spread], int, float]:
    """Seconds of a fit by each, the number of steps, and the largest relative difference of any likelihood."""
    sequences = data(num_sequences, length)
    begin = start(np.concatenate(sequences), num_states)
    num_steps = 2 if quick or num_states > 64 else NUM_STEPS
    fits = {OURS: ours(sequences, begin, num_steps)}
    fits.update({name: theirs(sequences, begin, num_steps, name) for name in THEIRS})
    if quick and num_states > 64:
        del fits[THEIRS[0]]
    own = np.array(fits[OURS]())
    say(f"{num_sequences} x {length:,} frames, {num_states} states")
    apart = 0.0
    for name, fit in fits.items():
        if name != OURS and (num_states <= 64 or "scaling" in name):
            apart = max(apart, float(np.abs(np.array(fit()) / own - 1).max()))
    if not apart < 1e-6:
        raise SystemExit(f"likelihoods differ by {apart:.1e}: nothing is timed")
    return time_together({name: Case(fit) for name, fit in fits.items()}, 3 if quick else 11), num_steps, apart


def main(given: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks estimators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps and repeats; not hmmlearn's slower mode")
    quick = parser.parse_args(given).quick
    print(
        "| sequences | states | library | seconds a step | quartiles | rankfold is faster by | likelihoods differ by |"
    )
    print("|---|---|---|---|---|---|---|")
    for num_sequences, length in SHAPES:
        for num_states in NUM_STATES:
            timings, num_steps, apart = measured(num_sequences, length, num_states, quick=quick)
            for name, timing in timings.items():
                low, high = (x / num_steps / 1e3 for x in (timing.low, timing.high))
                ratio = "" if name == OURS else f"{timing.median / timings[OURS].median:.2f}x"
                print(
                    f"| {num_sequences} x {length:,} | {num_states} | {name} | {timing.median / num_steps / 1e3:.4f} "
                    f"| {low:.4f}..{high:.4f} | {ratio} | {'' if name == OURS else f'{apart:.0e}'} |",
                    flush=True,
                )
    return 0
