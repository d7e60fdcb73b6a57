"""Room for recordings: what is said to fit does by the plan, graphs need twice, long ones are summed in stretches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankfold.errors import UnsupportedError
from rankfold.models import build_model
from rankfold.models.frame_config import FrameConfig
from rankfold.training.config import Config
from rankfold.training.frame_room import room_for
from rankfold.training.memory import GIB, Room
from tests.training.recordings import tiny

FAMILIES = ("hsmm", "lhsmm", "frame_hmm", "frame_lhmm")
LENGTHS = [90, 200, 310]


def asked(**settings: Any) -> tuple[Config, FrameConfig]:
    sizes = {"num_states": 40, "rank": 8, "num_features": 6, "tokens": 4096, "eval_tokens": 8192}
    config = tiny(**{**sizes, **settings})
    assert isinstance(config.model, FrameConfig)
    return config, config.model


def room(memory: int | None, device: str = "cpu", lengths: list[int] | None = None, **settings: Any) -> Room:
    config, model = asked(**settings)
    return room_for(config, model, lengths or LENGTHS, device, memory)


def least(device: str, lengths: list[int] | None = None, **settings: Any) -> int:
    """The fewest bytes that are not refused."""
    low, high = 1, 2**40
    while high - low > 1:
        middle = (low + high) // 2
        try:
            room(middle, device, lengths, **settings)
            high = middle
        except UnsupportedError:
            low = middle
    return high


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batching", ["length", "streams"])
def test_what_is_said_to_fit_does(family: str, batching: str) -> None:
    """Of the smallest memory, of more and of much: parts and the optimiser's numbers are within it."""
    settings = {"family": family, "batching": batching, "window": 64, "num_streams": 16}
    config, model = asked(**settings)
    plan = build_model(model).plan(1, 1, "cpu").best
    smallest = least("cpu", **settings)
    parts = []
    for memory in (smallest, 2 * smallest, 100 * smallest):
        found = room(memory, **settings)
        tokens = found.part_tokens or config.data.batch_tokens(64 if batching == "streams" else max(LENGTHS))
        assert plan.with_optimiser().fixed_bytes + tokens * plan.token_bytes <= memory
        parts.append(found.part_tokens)
    assert parts[0] < parts[1]
    assert parts[2] == 0  # whole batches
    assert parts[0] >= (64 if batching == "streams" else max(LENGTHS))
    if batching == "streams":  # a window is enough
        assert smallest < least("cpu", family=family)


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_hold_their_memory_beside_a_step_without(family: str) -> None:
    smallest = least("cuda", family=family)
    assert not room(smallest, "cuda", family=family).graphs
    assert room(4 * smallest, "cuda", family=family).graphs
    assert not room(4 * smallest, "cuda", family=family, graphs=False).graphs
    assert not room(4 * smallest, "cpu", family=family).graphs
    assert room(None, "cuda", family=family).graphs


def test_a_long_recording_is_summed_in_stretches() -> None:
    """Segments of 40 states and 300,000 frames: all messages at once would not fit, those of a stretch do."""
    long = [1000, 300_000]
    whole = build_model(asked()[1]).plan(1, 1, "cpu").best.token_bytes * 300_000
    smallest = least("cpu", long)
    assert smallest < whole / 3
    found = room(smallest, lengths=long)
    assert 0 < found.part_tokens < 300_000
    least_eval = room(smallest, lengths=long, eval_tokens=10**6).eval_tokens
    assert 1000 < least_eval < 10**6
    assert least("cpu", long, family="frame_hmm") > 300_000 * 40 * 4 * 7
    short = [x // 2 for x in long]  # not long enough to be cut, and longer than what is left for one that is
    assert least("cpu", short) > smallest


def test_dropped_states_take_no_room_but_in_evaluations() -> None:
    config, model = asked(state_dropout=0.5)
    kept = replace(model, state_dropout=0.0)
    sizes = [room_for(config, x, LENGTHS, "cpu", int(0.003 * GIB)).part_tokens for x in (model, kept)]
    assert sizes[0] > 1.5 * sizes[1]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"hsmm of 40 states cannot be trained: 310 frames at once need"):
        room(1000)
    with pytest.raises(UnsupportedError, match=r"64 frames at once need [^\n]*$"):
        room(1000, batching="streams", window=64)
