"""Where a model of frames begins, given the frames it will be trained on. Read next: `models/frame_model.py`."""

from __future__ import annotations

import numpy as np

from rankfold.data.frames import Frames
from rankfold.errors import DomainError
from rankfold.models.frame_model import FrameModel


def start_from(model: FrameModel, frames: Frames) -> None:
    """Move fresh parameters to where the frames are.

    Gaussian: drawn means are taken as deviations from the mean of all frames, in units of their standard deviation;
    variances begin as those of all frames. With init "papers" there are no deviations: all states begin alike, as in
    the semi-Markov models of Chiu, Deng, Rush 2021. Bernoullis: drawn log-odds are added to those of all frames, with
    one more frame of each value, so that no feature begins impossible. Other parameters stay as they were drawn.
    """
    if frames.num_features != model.config.num_features and not model.observation.symbols:
        raise DomainError(f"the frames have {frames.num_features} features, but the model {model.config.num_features}.")
    if not model.observation.symbols:
        model.observation.move_to(np.concatenate([x[~np.isnan(x[:, 0])] for x in frames.features]).astype(np.float64))
