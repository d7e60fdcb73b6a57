"""`rankfold evaluate` on a model of frames: nats a frame, and with labels how well its segments agree with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankfold.analysis.segmentation import SegmentationScores, evaluate_segmentation
from rankfold.cli.frames_of import Asked, ask, batches, states_of
from rankfold.cli.model_of import say
from rankfold.data.frame_files import Header
from rankfold.data.frames import UNKNOWN, Missing
from rankfold.training.evaluation import evaluate

CHECKED, LONGEST = 4, 64  # recordings that are computed again with logarithms, and how many frames of each


def evaluate_recordings(
    path: Path,
    data: Path,
    *,
    split: str | None = "test",
    missing: Missing = "error",
    header: Header = "auto",
    device: str = "auto",
) -> dict[str, Any]:
    """The evaluation as plain data."""
    asked = ask(path, data, split=split, missing=missing, header=header, device=device)
    model, frames = asked.model, asked.frames
    for line in str(frames).splitlines()[1:]:
        if not line.endswith("labels"):
            say(line)
    say(f"evaluating {len(frames):,} recordings, {frames.num_frames:,} frames, on {model.device.type}")
    found = evaluate(model, frames)
    volume = asked.space.log_volume if model.observation.measured else 0.0
    result: dict[str, Any] = {
        "nats_per_frame": found.nats,
        "nats_per_frame_unscaled": None if volume is None else found.nats + volume,
        "log_likelihood": found.log_likelihood,
        "frames": found.tokens,
        "recordings": len(frames),
        "missing_frames": frames.num_missing,
        "standardise": asked.space.standardise,
        "denominator": model.denominator,
        "largest_log_difference": log_difference(asked),
    }
    labelled = labelled_places(asked)
    if labelled:
        result["segmentation"] = segmentation(asked, labelled)
    return result


def labelled_places(asked: Asked) -> list[int]:
    """The recordings with a true label at some frame."""
    labels = asked.given.labels or []
    return [i for i, y in enumerate(labels) if bool((y != UNKNOWN).any())]


def segmentation(asked: Asked, places: list[int]) -> dict[str, Any]:
    """Scores against the true labels: states matched to them one to one, many to one, and as training bound them."""
    assert asked.given.labels is not None
    truth = [asked.given.labels[i] for i in places]
    states = states_of(asked.model, asked.frames.subset(places))
    found = {how: _scores(evaluate_segmentation(states, truth, matching=how)) for how in ("one_to_one", "many_to_one")}
    if asked.space.labelled:
        found["as_labelled"] = _scores(evaluate_segmentation(states, truth, matching=None))
    most = np.bincount(np.concatenate([y[y != UNKNOWN] for y in truth])).max()
    return {
        "recordings": len(places),
        "states_used": len({int(z) for row in states for z in np.unique(row)}),
        "largest_label": float(most) / sum(int((y != UNKNOWN).sum()) for y in truth),
        **found,
    }


def log_difference(asked: Asked) -> float:
    """The largest difference, in nats a frame, between the fast arithmetic and logarithms, over a few beginnings."""
    model, worst = asked.model, 0.0
    some = asked.frames.subset(range(min(CHECKED, len(asked.frames))))
    with torch.no_grad():
        parts = model.parts()
        for _, batch in batches(model, some):
            short = batch._replace(
                values=batch.values[:, :LONGEST], lengths=batch.lengths.clamp(max=LONGEST), last=False
            )
            p = model.potentials(short, parts=parts)
            fast, slow = model.log_z(p), model.log_z(p, "log")
            gap = torch.where(fast == slow, 0.0, (fast - slow).abs() / short.lengths)
            worst = max(worst, float(gap.max()))
    return worst


def _scores(found: SegmentationScores) -> dict[str, Any]:
    return {
        "frame_accuracy": found.accuracy,
        "frame_accuracy_sequence_mean": found.accuracy_sequence,
        **{f"f1_{one.percent}": one.corpus for one in found.f1},
        **{f"f1_{one.percent}_sequence_mean": one.sequence for one in found.f1},
        "edit": found.edit,
        "nmi": found.nmi,
        "predicted_segments": found.num_predicted,
        "true_segments": found.num_true,
    }


def frames_text(result: dict[str, Any]) -> str:
    """The evaluation for a person."""
    unscaled = result["nats_per_frame_unscaled"]
    scaled = result["standardise"] != "none"
    lines = [
        f"nats a frame     {result['nats_per_frame']:.4f}" + (", of standardised features" if scaled else ""),
        *([f"                 {unscaled:.4f} in the features' own units"] if scaled and unscaled is not None else []),
        f"frames           {result['frames']:,} ({result['denominator']}), {result['recordings']:,} recordings",
        f"log-likelihood   {result['log_likelihood']:.4f} nats",
        f"check            {result['largest_log_difference']:.1e} nats a frame from logarithms at most",
    ]
    if "segmentation" not in result:
        return "\n".join(lines)
    scores = result["segmentation"]
    ways = [how for how in ("one_to_one", "many_to_one", "as_labelled") if how in scores]
    lines += ["", f"{'states as labels':<20}" + "".join(f"{how.replace('_', ' '):>14}" for how in ways)]
    shown = {"frame accuracy": "frame_accuracy", "F1@10": "f1_10", "F1@25": "f1_25", "F1@50": "f1_50", "edit": "edit"}
    for title, name in shown.items():
        lines.append(f"{title:<20}" + "".join(f"{scores[how][name]:>14.4f}" for how in ways))
    lines.append(f"{'NMI':<20}{scores['one_to_one']['nmi']:>14.4f}")
    own = scores["one_to_one"]
    lines.append(
        f"{scores['recordings']:,} recordings with labels; {scores['states_used']:,} states used; "
        f"{own['predicted_segments']:,} segments, {own['true_segments']:,} true ones; "
        f"the largest label has {scores['largest_label']:.4f} of the frames"
    )
    return "\n".join(lines)
