"""From a record of sizes to the parts of a model of frames: one branch a choice.

Read next: `models/frame_config.py`.
"""

from __future__ import annotations

import torch
from torch import nn

from rankfold.models.frame_config import FrameConfig
from rankfold.params.durations import Duration, draw_duration
from rankfold.params.dynamics.free_tables import draw_free
from rankfold.params.dynamics.transitions import FrameDynamics, LowRankTransition, NeuralDynamics, SoftmaxTransition


class FrameModules(nn.Module):
    """The modules of a model of frames, from a seed."""

    def __init__(self, config: FrameConfig, generator: torch.Generator) -> None:
        super().__init__()
        # In this order, whatever the choices are: the seed decides.
        self.dynamics = draw_dynamics(config, generator)
        self.observation = config.observation.draw(config, generator)
        self.duration = draw_durations(config, generator) if config.has_segments else None


def draw_dynamics(config: FrameConfig, generator: torch.Generator) -> FrameDynamics:
    """Fresh start and transitions."""
    size, rank, may_repeat = config.num_states, config.own_rank, config.may_repeat
    if not config.neural:
        alike = config.init == "papers"
        return draw_free(size, rank, self_transitions=may_repeat, alike=alike, generator=generator)
    network: SoftmaxTransition | LowRankTransition = (
        SoftmaxTransition(size, config.dim, config.num_layers, generator=generator)
        if rank is None
        else LowRankTransition(
            size, rank, config.dim, config.num_layers, feature_map=config.feature_map, generator=generator
        )
    )
    # The papers' semi-Markov models have a vector of their own for the first segment, in U(0, 1) at the start.
    start = torch.rand(size, generator=generator, dtype=torch.float32) if config.has_segments else None
    return NeuralDynamics(network, start, self_transitions=may_repeat)


def draw_durations(config: FrameConfig, generator: torch.Generator) -> Duration:
    """Fresh durations. Papers: rate 1 for all states."""
    return draw_duration(
        config.durations,
        config.num_states,
        config.max_duration,
        normalised=config.normalised_durations,
        generator=None if config.init == "papers" else generator,
    )
