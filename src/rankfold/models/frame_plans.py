"""What a gradient step of a model of frames costs: from its record to the planner's sizes.

Read next: `planning/frames.py`.
"""

from __future__ import annotations

from rankfold.models.frame_config import FrameConfig
from rankfold.numerics.precision import Precision
from rankfold.params.dropout import num_kept
from rankfold.planning import FrameSizes, Plans, frame_plan
from rankfold.recursions.segments.stretches import usual_stretch


def frame_plans(
    config: FrameConfig,
    batch: int,
    length: int,
    device: str,
    precision: Precision,
    params: int,
    *,
    whole: bool = False,
) -> Plans:
    """The one order there is. `whole`: long sequences are not cut into stretches, as in a captured graph."""
    masked = config.state_dropout_kind == "bernoulli" and device.startswith("cuda")
    sizes = FrameSizes(
        config.num_states if masked else num_kept(config.num_states, config.state_dropout),
        None if config.own_rank is None else num_kept(config.rank, config.feature_dropout),
        config.max_duration if config.has_segments else 0,
        config.num_features,
        config.observations == "gaussian",
        config.may_repeat,
        config.dim if config.neural else 0,
        params,
    )
    longest = min(config.max_duration, length)
    stretch = None if whole else usual_stretch(batch, length, sizes.num_states, longest)
    return frame_plan(sizes, batch, length, device, precision, stretch)
