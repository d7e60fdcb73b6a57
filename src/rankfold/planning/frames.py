"""The plans of models of frames: chains whose states see vectors, and chains of segments with durations.

Read next: `planning/families.py`, whose parts these share; `models/frame_plans.py` for who asks.
"""

from __future__ import annotations

from typing import NamedTuple

from rankfold.kernels.segment_scan import LARGEST, LONGEST, WIDEST
from rankfold.numerics.precision import Precision
from rankfold.operators.without_diagonal import block_size
from rankfold.planning import held
from rankfold.planning.cost import FLOAT, Plan, Plans, Work, device_kind, rates_of
from rankfold.planning.families import REST, STEP, made_work, scan_work, transition_bytes
from rankfold.planning.held import Held, num_bytes, total

# Multiply-adds a CPU does in the time of an exponential: 2 ns, 2026-11-15. On a GPU exponentials hide behind memory.
EXPONENTIAL = {"cpu": 80, "cuda": 4}
# Calls of a frame, forward and backward; and more of one whose product leaves the diagonal out by blocks.
FRAME_CALLS, APART_CALLS = 24, 8
# Where one launch takes all frames: seconds of a program for a number of a frame, and how many run at once on an H200;
# steps of 64 to 1,024 states are estimated within a factor of 1.3, 2026-11-16.
PROGRAM, PROGRAMS = 0.5e-9, 132
# For each token, slopes of a process's peak in "t z", torch 2.13, 2026-11-15: passes in both directions, messages with
# their scales in float64, posteriors.
SEGMENTS = Held(23, 10)
BORDERS = Held(2, 1)  # "d z" for each stretch; log-densities and their gradient alone are as long as the sequence
# For each token: the observations' products are made in float64, of "3 f" and of "z".
GAUSSIAN = Held(4, 4), Held(12, 12)
BERNOULLI = Held(2, 2), Held(2, 2)


class FrameSizes(NamedTuple):
    """What a plan asks of a model of frames."""

    num_states: int
    rank: int | None  # None: a dense transition
    max_duration: int  # 0: a chain of frames
    num_features: int
    gaussian: bool
    may_repeat: bool
    dim: int  # 0: free tables
    params: int


def frame_plan(
    sizes: FrameSizes, batch: int, length: int, device: str, precision: Precision, stretch: int | None = None
) -> Plans:
    """State space is the only order: each state sees a frame in its own way.

    With `stretch`, messages of so many frames of segments are held at once, and a window for each of these stretches.
    """
    z, rank, f = sizes.num_states, sizes.rank, sizes.num_features
    kind, tokens = device_kind(device), batch * length
    made = z * z if rank is None else 2 * z * rank
    columns = 3 * f if sizes.gaussian else 2 * f
    wide = 2 if sizes.gaussian else 1  # float64
    parts = (
        made_work("transition", made, sizes.dim),
        Work(
            "observations",
            STEP * wide * tokens * columns * z,
            STEP * wide * FLOAT * (tokens * (columns + z) + columns * z),
            10 * STEP,
        ),
        *(
            _segments(sizes, made, batch, length, kind)
            if sizes.max_duration
            else scan_work(
                made, z, batch, length, kind, precision, held.readings(kind, precision, batch), 1 if rank is None else 2
            )
        ),
        Work("the rest", 0, 24 * FLOAT * z * sizes.dim, REST[kind]),
    )
    fixed = total(
        transition_bytes(z, rank, sizes.dim, kind),
        num_bytes(held.CHAIN_NETWORK[kind], z * sizes.dim),
        num_bytes(Held(6, 3), wide * columns * z),
        num_bytes(Held(8, 4), sizes.max_duration * z),
    )
    by_state, by_feature = GAUSSIAN if sizes.gaussian else BERNOULLI
    messages = SEGMENTS if sizes.max_duration else held.MESSAGES
    if stretch is not None and stretch < length and sizes.max_duration:
        windows = num_bytes(BORDERS, batch * -(-length // stretch) * sizes.max_duration * z)
        at_once = total(num_bytes(messages, batch * stretch * z), windows)
        fixed, messages = (fixed[0] + at_once[0], fixed[1] + at_once[1]), Held(0, 0)
    token = total(num_bytes(messages, z), num_bytes(by_state, z), num_bytes(by_feature, f))
    state = 2 * FLOAT * sizes.params
    rates = rates_of(device, precision)
    return Plans((Plan("state", parts, state + fixed[0], token[0], tokens, rates, sizes.params, fixed[1], token[1]),))


def _segments(sizes: FrameSizes, made: int, batch: int, length: int, kind: str) -> tuple[Work, Work]:
    """Windows of both passes and the posteriors of all durations, a product a frame; the transition's gradient."""
    z, tokens = sizes.num_states, batch * length
    window = sizes.max_duration * z
    exponentials = STEP * EXPONENTIAL[kind] * tokens * window
    cells, blocks = (made, 1) if sizes.rank is None or sizes.may_repeat else _apart(z, sizes.rank)
    beside = 0 if sizes.rank is None or blocks == 1 else blocks**2 * sizes.rank
    fused = kind == "cuda" and sizes.max_duration <= LONGEST and 2 * window + cells + beside <= LARGEST
    fused = fused and (blocks == 1 or cells // z <= 3 * WIDEST)
    # One launch takes all frames, one program for each sequence; else the calls of every frame.
    calls = 2 * length if fused else (FRAME_CALLS + APART_CALLS * (blocks > 1)) * length
    moved = 2 * length * FLOAT * cells + 10 * FLOAT * tokens * window
    rounds = -(-batch // PROGRAMS) if fused else 0
    least = rounds * 2 * length * PROGRAM * (cells + 2 * window)
    return (
        Work("segments", 2 * tokens * cells + exponentials, moved, calls, "triton" if fused else "torch", least),
        Work("scan gradient", STEP * tokens * cells, STEP * FLOAT * cells + 4 * FLOAT * tokens * z, 2 * STEP),
    )


def _apart(num_states: int, rank: int) -> tuple[int, int]:
    """What a product without the diagonal reads, and how many blocks it has: one is a matrix."""
    size = block_size(num_states, rank)
    blocks = -(-num_states // size)
    return (num_states**2 if blocks == 1 else num_states * (2 * rank + size)), blocks
