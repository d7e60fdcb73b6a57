"""What a capture needs besides its work; the device is a fake, `tests/cuda` captures."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankfold.numerics import capture
from rankfold.numerics.capture import capture_graph


class Ring:
    """Garbage that the collector alone finds; says when it goes."""

    def __init__(self, gone: list[str]) -> None:
        self.gone, self.me = gone, self

    def __del__(self) -> None:
        self.gone.append("ring")


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The captures that are asked of a fake device."""
    asked: list[dict[str, Any]] = []

    @contextmanager
    def graph(graph: Any, **options: Any) -> Iterator[None]:
        asked.append(options)
        yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(capture, "_side", lambda device: stream)
    for name, fake in {
        "graph": graph,
        "CUDAGraph": SimpleNamespace,
        "current_device": lambda: 0,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    was_on = gc.isenabled()
    yield asked
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_during_a_capture(before: bool, fails: bool, captures: list[dict[str, Any]]) -> None:
    """It goes before, as memory that is freed meanwhile would end the capture; then the collector is as it was."""
    (gc.enable if before else gc.disable)()
    gone: list[str] = []
    Ring(gone)
    inside: list[tuple[bool, int]] = []

    def work() -> int:
        if captures:
            inside.append((gc.isenabled(), len(gone)))
            if fails:
                raise RuntimeError("no capture")
        return 3

    with pytest.raises(RuntimeError, match="no capture") if fails else nullcontext():
        assert capture_graph(work, pool="its own")[1] == 3
    assert inside == [(False, 1)]
    assert gc.isenabled() is before
    assert captures == [{"pool": "its own", "capture_error_mode": "thread_local"}]
