"""The memory budget of recordings: parts fit by the plan, graphs need twice, long ones are summed in stretches."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from rankfold.errors import UnsupportedError
from rankfold.models import build_model
from rankfold.models.config import FrameConfig
from rankfold.planning.measure import GIB
from rankfold.training.config import Config
from rankfold.training.memory_budget import Budget, DataSizes, fit
from tests.training.recordings import tiny

FAMILIES = ("hsmm", "lhsmm", "frame_hmm", "frame_lhmm")
LENGTHS = [90, 200, 310]


def asked(**settings: Any) -> tuple[Config, FrameConfig]:
    sizes = {"num_states": 40, "rank": 8, "num_features": 6, "tokens": 4096, "eval_tokens": 8192}
    config = tiny(**{**sizes, **settings})
    assert isinstance(config.model, FrameConfig)
    return config, config.model


def budget(memory: int | None, device: str = "cpu", lengths: list[int] | None = None, **settings: Any) -> Budget:
    config, _ = asked(**settings)
    return budget_of(config, memory, device, lengths)


def budget_of(config: Config, memory: int | None, device: str = "cpu", lengths: list[int] | None = None) -> Budget:
    lengths = lengths or LENGTHS
    return fit(config, DataSizes(6, max(lengths), lengths=tuple(lengths)), device, memory)


def least(device: str, lengths: list[int] | None = None, **settings: Any) -> int:
    """The fewest bytes that are not refused."""
    low, high = 1, 2**40
    while high - low > 1:
        middle = (low + high) // 2
        try:
            budget(middle, device, lengths, **settings)
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
        found = budget(memory, **settings)
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
    assert not budget(smallest, "cuda", family=family).graphs
    assert budget(4 * smallest, "cuda", family=family).graphs
    assert not budget(4 * smallest, "cuda", family=family, graphs=False).graphs
    assert not budget(4 * smallest, "cpu", family=family).graphs
    assert budget(None, "cuda", family=family).graphs


def test_a_long_recording_is_summed_in_stretches() -> None:
    """Segments of 40 states and 300,000 frames: all messages at once would not fit, those of a stretch do."""
    long = [1000, 300_000]
    whole = build_model(asked()[1]).plan(1, 1, "cpu").best.token_bytes * 300_000
    smallest = least("cpu", long)
    assert smallest < whole / 3
    found = budget(smallest, lengths=long)
    assert 0 < found.part_tokens < 300_000
    least_eval = budget(smallest, lengths=long, eval_tokens=10**6).eval_tokens
    assert 1000 < least_eval < 10**6
    assert least("cpu", long, family="frame_hmm") > 300_000 * 40 * 4 * 7
    short = [x // 2 for x in long]  # not long enough to be cut, and longer than what is left for one that is
    assert least("cpu", short) > smallest


def test_dropped_states_take_no_memory_but_in_evaluations() -> None:
    config, model = asked(state_dropout=0.5)
    kept = replace(model, state_dropout=0.0)
    sizes = [budget_of(replace(config, model=x), int(0.003 * GIB)).part_tokens for x in (model, kept)]
    assert sizes[0] > 1.5 * sizes[1]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"hsmm of 40 states cannot be trained.*the longest recording alone"):
        budget(1000)
    with pytest.raises(UnsupportedError, match=r"even with one window alone"):
        budget(1000, batching="streams", window=64)


def test_what_would_fit_fits() -> None:
    """Every setting that a refusal names is taken at its word: windows of the recordings, fewer states."""
    config, model = asked(window=64)
    memory = least("cpu") - 1
    with pytest.raises(UnsupportedError) as caught:
        budget_of(config, memory)
    assert 'data.batching="streams"' in str(caught.value)
    assert budget_of(replace(config, data=replace(config.data, batching="streams")), memory)
    fewer = re.search(r"model\.num_states=(\d+)", str(caught.value))
    assert fewer is not None
    assert budget_of(replace(config, model=replace(model, num_states=int(fewer[1]))), memory)
