"""The likelihood of recordings, in nats a frame; long ones in windows, whose log-likelihoods add up exactly.

Read next: `training/windows.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from rankfold.data.batch import Batch
from rankfold.data.frames import Frames
from rankfold.models.frame_model import FrameModel
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.training.config import DataConfig
from rankfold.training.evaluation import Evaluation
from rankfold.training.windows import frame_batches

BYTES = 2**30  # of a batch's own tensors
TABLES = 6  # "b t z" that an evaluation holds at once, in float64


def evaluate_frames(
    model: FrameModel, frames: Frames, tokens: int = 4096, *, precision: Precision = "float32"
) -> Evaluation:
    """The log-likelihood of recordings, each by itself; tokens are the frames that are not missing.

    Recordings longer than a batch of `tokens` frames are cut into windows, with the state carried from one to the next.
    """
    total, seen = 0.0, 0
    tokens = max(1, min(tokens, BYTES // (8 * TABLES * model.config.num_states)))
    with torch.no_grad(), matmul_precision(parameter_precision(precision), model.device):
        parts = model.parts()
        carried: Any = None
        for batch in evaluation_batches(model, frames, tokens):
            p = model.potentials(batch.to(model.device), parts=parts, carried=None if batch.first else carried)
            total += float(model.log_z(p, precision=precision).sum())
            seen += num_seen(batch)
            carried = None if batch.last else model.carry(p)
    return Evaluation(total, seen, len(frames))


def evaluation_batches(model: FrameModel, frames: Frames, tokens: int) -> Any:
    """Batches without gradients: short recordings together, long ones alone and in windows."""
    symbols = model.config.observations == "categorical"
    short = [i for i, length in enumerate(frames.lengths) if length <= tokens]
    long = [i for i, length in enumerate(frames.lengths) if length > tokens]
    if short:
        yield from frame_batches(frames.subset(short), DataConfig(tokens=tokens), symbols=symbols)
    if long:
        config = DataConfig(batching="streams", num_streams=1, window=tokens)
        yield from frame_batches(frames.subset(long), config, symbols=symbols)


def num_seen(batch: Batch) -> int:
    """The frames of a batch that are not missing, padding left out."""
    inside = torch.arange(batch.values.shape[1]) < batch.lengths.cpu()[:, None]
    there = batch.values >= 0 if batch.values.ndim == 2 else ~batch.values.isnan().all(-1)
    return int((inside & there.cpu()).sum())
