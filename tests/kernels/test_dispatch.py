"""Kernels are launched on the current device: tensors of another one are not theirs."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankfold.kernels import dispatch
from rankfold.kernels.dispatch import triton_serves


def on(index: int | None) -> Any:
    """What a tensor says of where it is: a GPU, or the CPU."""
    return SimpleNamespace(is_cuda=index is not None, device=SimpleNamespace(index=index))


@pytest.mark.parametrize(
    ("tensors", "served"),
    [([on(1)], True), ([on(1), on(1)], True), ([on(0)], False), ([on(1), on(0)], False), ([on(1), on(None)], False)],
)
def test_only_the_current_device(tensors: list[Any], served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert triton_serves(*tensors) == served


def test_nobody_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert not triton_serves(on(1))


def test_a_cpu_asks_no_device() -> None:
    """Where there is no GPU, torch would raise at the question which one is current."""
    assert not triton_serves(torch.zeros(1))
