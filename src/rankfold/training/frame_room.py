"""How much of an update on recordings fits into memory at once. Read next: `training/memory.py`.

Estimated, not planned: what a gradient of a batch "b t z" holds is a number of tables of that size, counted below.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rankfold.errors import UnsupportedError
from rankfold.models.frame_config import FrameConfig
from rankfold.training.checkpoint import Progress
from rankfold.training.config import Config
from rankfold.training.memory import FLOAT, GIB, Room, available
from rankfold.training.recordings import Recordings

# Tables "b t z" of float32 that a gradient holds at its peak: densities in float64 and their copy, messages and what
# the backward pass makes of them.
TABLES = 14
COPIES = 5  # of parameters: themselves, gradients, two moments, an average or a best model beside them


def frame_room(
    config: Config,
    model: FrameConfig,
    recordings: Recordings,
    device: torch.device,
    progress: Progress,
    say: Callable[[str], None],
) -> Room:
    """What fits at once; `UnsupportedError` if not even one recording, or window, does. No graphs are captured."""
    memory = available(str(device), config.train.memory)
    if memory is None:
        return Room(graphs=False)
    lengths = [length for split in recordings.splits.values() for length in split.lengths]
    data = config.data
    longest = min(max(lengths), data.window) if data.batching == "streams" else max(recordings.train.lengths)
    fixed = FLOAT * COPIES * num_numbers(model)
    each = FLOAT * (TABLES * model.num_states + 8 * model.num_features)
    fitting = (memory - fixed) // each
    if fitting < longest:
        cut = "" if data.batching == "streams" else '\n  data.batching="streams" cuts recordings into windows.'
        raise UnsupportedError(
            f"{model.family} of {model.num_states:,} states cannot be trained: {longest:,} frames at once need "
            f"{(fixed + each * longest) / GIB:.3g} GiB, but there are {memory / GIB:.3g} GiB.{cut}"
        )
    largest = data.batch_tokens(longest)
    part = fitting if fitting < largest else 0
    if progress.update and progress.part_tokens:
        part = min(part or progress.part_tokens, progress.part_tokens)
    if part:
        say(f"batches are computed in parts of at most {part:,} frames, to fit into {memory / GIB:.3g} GiB")
    progress.part_tokens = part
    return Room(part, min(fitting, data.eval_tokens) if fitting < data.eval_tokens else 0, graphs=False)


def num_numbers(model: FrameConfig) -> int:
    """How many numbers the parameters and the distributions made of them are, to a good guess."""
    states, rank = model.num_states, model.own_rank
    moves = states * states if rank is None else 2 * states * rank
    longest = model.max_duration if model.has_segments else 1
    return moves + states * (2 * model.num_features + longest) + (4 * states * model.dim if model.neural else 0)
