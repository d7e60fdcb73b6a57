"""One run of segmentation: a model of ours, k-means, or hmmlearn's Gaussian HMM, trained and scored on one set.

The others see exactly the frames that ours see: smoothed and scaled by the same code.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankfold.analysis.segmentation import evaluate_segmentation
from rankfold.cli.evaluate import evaluate_recordings
from rankfold.data.frame_space import FrameSpace
from rankfold.data.frames import Frames
from rankfold.training.loop import train
from rankfold.training.recipes import load_recipe
from rankfold.training.recordings import read_splits
from rankfold.training.report import Reporter

OTHERS = ("k-means", "hmmlearn")
STEPS = 30  # of EM at most, as many as the recipes have; hmmlearn's own default is 10
KEPT = ("features", "labels", "lengths", "split", "seq_id", "label_names", "feature_names", "fps")
SCORES = ("frame_accuracy", "f1_10", "f1_25", "f1_50", "edit", "nmi")


class Arm(NamedTuple):
    """What is run: a recipe with settings; or one of the others with the settings of the data, and states."""

    method: str  # a recipe, or one of OTHERS
    settings: tuple[str, ...] = ()  # in the order in which they were set; the last counts
    first: bool = True  # labelled recordings are the first of the file; false: drawn, by the seed

    def value(self, key: str) -> Any:
        """A setting as the arm has it."""
        recipe = load_recipe("segment-hsmm" if self.method in OTHERS else self.method, self.settings)
        table, _, name = key.partition(".")
        return getattr(getattr(recipe, table), name)


def run(arm: Arm, path: Path, seed: int, splits: Sequence[str]) -> dict[str, Any]:
    """The record of a run, with the scores of the splits asked for and of no other."""
    begin = time.perf_counter()
    found = _others(arm, path, seed, splits) if arm.method in OTHERS else _ours(arm, path, seed, splits)
    return {
        "method": arm.method,
        "settings": list(arm.settings),
        "first": arm.first,
        "seed": seed,
        "seconds": round(time.perf_counter() - begin, 1),
        **found,
    }


def _ours(arm: Arm, path: Path, seed: int, splits: Sequence[str]) -> dict[str, Any]:
    """`rankfold train` and `rankfold evaluate`."""
    config = load_recipe(arm.method, [*arm.settings, f"train.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        data = path if arm.first else drawn(path, Path(folder) / path.name, seed)
        out = Path(folder) / "run"
        result = train(config, data, out, report=Reporter())
        found: dict[str, Any] = {"valid_nats": round(result.best_valid, 4)}
        for split in splits:
            with contextlib.redirect_stderr(io.StringIO()):
                judged = evaluate_recordings(out, data, split=split)
            of = judged["segmentation"]
            own = of["as_labelled"] if config.data.labelled else of["one_to_one"]
            found[split] = {
                **{name: round(own[name], 4) for name in SCORES},
                "many_to_one": round(of["many_to_one"]["frame_accuracy"], 4),
                "segments": own["predicted_segments"],
                "true_segments": own["true_segments"],
                "nats": round(judged["nats_per_frame"], 4),
            }
    return found


def _others(arm: Arm, path: Path, seed: int, splits: Sequence[str]) -> dict[str, Any]:
    found = read_splits(path)
    space = FrameSpace.of(found["train"], standardise=arm.value("data.standardise"), smooth=arm.value("data.smooth"))
    fit = _kmeans if arm.method == "k-means" else _hmmlearn
    predict = fit(space.apply(found["train"]), arm.value("model.num_states"), seed)
    scored = {}
    for split in splits:
        frames = space.apply(found[split])
        states = predict(frames)
        assert frames.labels is not None
        one = evaluate_segmentation(states, frames.labels)
        many = evaluate_segmentation(states, frames.labels, matching="many_to_one")
        values = [one.accuracy, *(f1.corpus for f1 in one.f1), one.edit, one.nmi]
        scored[split] = {
            **{name: round(value, 4) for name, value in zip(SCORES, values, strict=True)},
            "many_to_one": round(many.accuracy, 4),
            "segments": one.num_predicted,
            "true_segments": one.num_true,
        }
    return scored


def _kmeans(train: Frames, num_states: int, seed: int) -> Callable[[Frames], list[NDArray[np.int64]]]:
    from sklearn.cluster import KMeans

    model: Any = KMeans(num_states, n_init=10, random_state=seed).fit(np.concatenate(train.features))
    return lambda frames: [model.predict(x).astype(np.int64) for x in frames.features]


def _hmmlearn(train: Frames, num_states: int, seed: int) -> Callable[[Frames], list[NDArray[np.int64]]]:
    """Diagonal covariances and its own priors and start (k-means), the best path."""
    from hmmlearn.hmm import GaussianHMM

    model: Any = GaussianHMM(num_states, "diag", n_iter=STEPS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged, which is so for all here
        model.fit(np.concatenate(train.features).astype(np.float64), train.lengths)
    return lambda frames: [model.predict(x.astype(np.float64)).astype(np.int64) for x in frames.features]


def drawn(path: Path, copy: Path, seed: int) -> Path:
    """A copy of a set whose training recordings are in an order drawn by the seed."""
    with np.load(path) as opened:
        arrays = dict(opened)
    train = np.flatnonzero(arrays["split"] == 0)
    order = np.arange(len(arrays["split"]))
    order[train] = np.random.default_rng(seed).permutation(train)
    cuts = np.cumsum(arrays["lengths"])[:-1]
    for name in ("features", "labels"):
        pieces = np.split(arrays[name], cuts)
        arrays[name] = np.concatenate([pieces[i] for i in order])
    for name in ("lengths", "seq_id"):
        arrays[name] = arrays[name][order]
    np.savez(copy, **{name: arrays[name] for name in KEPT if name in arrays})
    return copy
