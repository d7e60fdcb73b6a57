"""How much of an update on recordings fits into memory at once. Read next: `training/memory.py`.

Bytes are those of the model's plan (`models/frame_plans.py`): of whole batches, or, where not even one recording fits
so, of single recordings whose segments are summed in stretches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from rankfold.errors import UnsupportedError
from rankfold.models.catalog import sized_model
from rankfold.models.frame_config import FrameConfig
from rankfold.planning import Plan
from rankfold.training.checkpoint import Progress
from rankfold.training.config import Config
from rankfold.training.graphs import graphs_serve
from rankfold.training.memory import FLOAT, GIB, Room, available, room_in, state_bytes
from rankfold.training.recordings import Recordings
from rankfold.training.setup import settled
from rankfold.training.shapes import FRAMES_WIDEST, FrameShapes, padded_width


def frame_room(
    config: Config,
    model: FrameConfig,
    recordings: Recordings,
    device: torch.device,
    progress: Progress,
    say: Callable[[str], None],
) -> Room:
    """What fits at once; `UnsupportedError` if not even one recording, or window, does."""
    memory = available(str(device), config.train.memory)
    return settled(
        room_for(config, model, recordings.train.lengths, str(device), memory), memory, progress, say, "frames"
    )


def room_for(config: Config, model: FrameConfig, lengths: list[int], device: str, memory: int | None) -> Room:
    """What fits into so many bytes, of recordings of these lengths. An evaluation cuts recordings as it needs."""
    captured = graphs_serve(config, device)
    if memory is None:
        return Room(graphs=captured)
    data, streams = config.data, config.data.batching == "streams"
    rows = sorted({min(length, data.window) for length in lengths} if streams else set(lengths))

    def plan(of: FrameConfig, length: int, *, whole: bool) -> Plan:
        found: Plan = sized_model(of, of.num_features).plan(1, length, device, config.train.precision, whole=whole).best
        return found

    plans = plan(model, 1, whole=True), plan(_whole(model), 1, whole=True)
    for graphs in (True, False) if captured else (False,):
        longest = _filled(config, rows[-1]) if graphs else rows[-1]
        sizes = (max(data.batch_tokens(longest), longest), longest, 1)
        room = room_in(memory, config, plans, sizes, graphs=graphs)
        if room is not None:
            return room
    need = max(_bytes(config, plan(model, length, whole=False), length) for length in rows)
    if need > memory:
        raise UnsupportedError(_refusal(config, model, rows[-1], need, memory))
    step, evaluation = plans
    part = max(1, (memory - _bytes(config, step, 0)) // step.token_bytes)
    fitting = evaluation.largest_evaluation(memory - state_bytes(config, step) - FLOAT * step.parameters)
    return Room(part, max(1, fitting) if fitting < data.eval_tokens else 0, graphs=False)


def _filled(config: Config, longest: int) -> int:
    """The widest row of a graph; wider ones run without."""
    shapes = FrameShapes(config.data)
    padded = padded_width(longest, shapes.multiple(longest))
    return padded if padded <= FRAMES_WIDEST else longest


def _whole(model: FrameConfig) -> FrameConfig:
    """The model of an evaluation, which drops nothing."""
    return dataclasses.replace(model, state_dropout=0.0, feature_dropout=0.0)


def _bytes(config: Config, plan: Plan, tokens: int) -> int:
    return state_bytes(config, plan) + plan.work_bytes + plan.token_bytes * tokens


def _refusal(config: Config, model: FrameConfig, longest: int, need: int, memory: int) -> str:
    cut = "" if config.data.batching == "streams" else '\n  data.batching="streams" cuts recordings into windows.'
    return (
        f"{model.family} of {model.num_states:,} states cannot be trained: {longest:,} frames at once need "
        f"{need / GIB:.3g} GiB, but there are {memory / GIB:.3g} GiB.{cut}"
    )
