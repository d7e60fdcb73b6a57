"""Gaussian HMMs of few states next to hmmlearn's scaling mode: steps of EM, and questions about one long sequence."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.__main__ import NUM_THREADS
from benchmarks.libraries.estimators import NUM_FEATURES, data, ours, start, theirs
from benchmarks.libraries.process import Case, time_together
from benchmarks.steps.timed import Timed, em_step, write
from rankfold.cli.output import say
from rankfold.planning.measure import Spread

NUM_STEPS, NUM_FRAMES, REPEATS = 10, 20_000, 11
SHAPES = {(1, 10_000): (2, 4, 8, 16, 64), (50, 500): (2, 4, 16, 64), (1, 100_000): (2, 4, 8, 16)}
QUESTIONS = ("score", "predict", "predict_proba")
ASKED = (2, 4, 8, 16, 64)
OURS, PEER = "rankfold", "hmmlearn, scaling"


@dataclass(frozen=True)
class Few:
    """Milliseconds of one fit or call, by what was asked; a fit is `steps` steps."""

    steps: int
    fits: dict[str, dict[str, Spread]]
    calls: dict[str, dict[str, Spread]]


def measure_few(*, quick: bool, repeats: int = REPEATS) -> Few:
    """All of them; before anything is timed the answers are compared."""
    steps, wanted = (2, 3) if quick else (NUM_STEPS, repeats)
    fits = {}
    for (num, length), sizes in list(SHAPES.items())[: 1 if quick else None]:
        sequences = data(num, length)
        for num_states in sizes[: 1 if quick else None]:
            begin = start(np.concatenate(sequences), num_states)
            both = {OURS: ours(sequences, begin, steps), PEER: theirs(sequences, begin, steps, PEER)}
            what = f"EM step, {num} x {length:,} frames, {num_states} states"
            say(what)
            _expect_equal(what, both[OURS](), both[PEER]())
            fits[what] = time_together({name: Case(fit) for name, fit in both.items()}, wanted)
    calls = {}
    for num_states in ASKED[: 1 if quick else None]:
        say(f"questions, {num_states} states")
        for question, pair in _questions(num_states).items():
            what = f"{question}, 1 x {NUM_FRAMES:,} frames, {num_states} states"
            _expect_equal(what, pair[OURS](), pair[PEER]())
            calls[what] = time_together({name: Case(call) for name, call in pair.items()}, wanted)
    return Few(steps, fits, calls)


def _questions(num_states: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """Each question to both, of the same tables."""
    from hmmlearn.hmm import GaussianHMM

    from rankfold.estimators import HMM

    (frames,) = data(1, NUM_FRAMES)
    begin = start(frames, num_states)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = HMM(num_states, start=begin, max_iter=1, tol=None, min_variance=0.0, random_state=0).fit([frames])
    peer: Any = GaussianHMM(num_states, "diag", init_params="", implementation="scaling")
    tables = {**own.model_.dynamics.tables(), **own.model_.observation.tables()}
    peer.startprob_, peer.transmat_, peer.means_, peer.covars_ = (
        tables[name].value.numpy() for name in ("initial", "transition", "mean", "variance")
    )
    peer.n_features = frames.shape[1]

    def asked(model: Any, question: str) -> Callable[[], Any]:
        return lambda: getattr(model, question)(frames)

    return {question: {OURS: asked(own, question), PEER: asked(peer, question)} for question in QUESTIONS}


def _expect_equal(what: str, a: Any, b: Any) -> None:
    apart = float(np.abs(np.asarray(a, dtype=np.float64) - b).max() / max(1.0, float(np.abs(b).max())))
    if not apart < 1e-6:
        raise SystemExit(f"{what}: answers differ by {apart:.1e}: nothing is timed")


def main(given: Sequence[str]) -> int:
    """`python -m benchmarks few --json FILE`: these comparisons alone, as a record of `structures`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks few", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first of each, few repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("docs/results/timed-few.json"))
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each time (default: %(default)s)")
    arguments = parser.parse_args(given)
    torch.set_num_threads(NUM_THREADS)
    record(measure_few(quick=arguments.quick, repeats=arguments.repeats), arguments.json)
    say(f"wrote {arguments.json}")
    return 0


def record(few: Few, path: Path) -> None:
    """The rows of all comparisons, in milliseconds of a step or a call; medians."""
    rows = []
    for what, both in few.fits.items():
        question, size, states = what.split(", ")
        work = em_step(*_sizes(size), int(states.split()[0]), NUM_FEATURES)
        taken, peer = (both[name].median / few.steps for name in (OURS, PEER))
        rows.append(_row(question, states, size, taken, work, peer))
    for what, both in few.calls.items():
        question, size, states = what.split(", ")
        num, length = _sizes(size)
        adds, numbers = em_step(num, length, int(states.split()[0]), NUM_FEATURES)
        # Densities alone, and one pass; posteriors take two.
        work = (adds / (2 if question == "predict_proba" else 3), numbers)
        rows.append(_row(question, states, size, both[OURS].median, work, both[PEER].median))
    write(path, "python -m benchmarks few", rows)


def _sizes(size: str) -> tuple[int, int]:
    num, length = size.removesuffix(" frames").replace(",", "").split(" x ")
    return int(num), int(length)


def _row(question: str, states: str, size: str, ms: float, work: tuple[float, float], peer_ms: float) -> Timed:
    size = size.removesuffix(" frames")
    return Timed("Chains", f"Gaussian HMM, {states}, {question}", size, "float64", ms, *work, PEER, peer_ms)
