"""Settings of the whole suite, and the fixtures that more than one folder uses."""

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

# Kernels are read as GPU code or as interpreted code once, when their modules are imported: none is so far.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The same examples on every run: a failure seen once can be seen again.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests are made, which all stay: the garbage collector looks at none of them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator; nothing here draws from the global one."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN (integers: a large negative number), so that an entry nobody wrote is seen."""
    with torch.device("cpu"):  # torch notes which functions make tensors at first use, and must not note ours
        torch.empty(0)
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoned(getattr(owner, name)))


def _poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        fresh = make(*args, **kwargs)
        with torch.no_grad():
            if fresh.dtype.is_floating_point or fresh.dtype.is_complex:
                fresh.fill_(float("nan"))
            elif fresh.dtype != torch.bool:
                fresh.fill_(torch.iinfo(fresh.dtype).min)
        return fresh

    return poisoned
