"""Whether Triton kernels and compiled loops can run here."""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor


@functools.cache
def has_triton() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec("triton") is not None


def triton_serves(*tensors: Tensor) -> bool:
    """Whether a Triton kernel can take these tensors: all on the current device, which is where it is launched."""
    return has_triton() and all(x.is_cuda and x.device.index == torch.cuda.current_device() for x in tensors)


@functools.cache
def has_numba() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec("numba") is not None


# States up to which a loop over positions is faster compiled than as calls of torch.
FEW_STATES = 128


def loops_serve(num_states: int, *tensors: Tensor) -> bool:
    """Whether compiled loops over positions can take these tensors, and pay."""
    return num_states <= FEW_STATES and has_numba() and all(x.device.type == "cpu" for x in tensors)


def scans_serve(num_states: int, *tensors: Tensor) -> bool:
    """Whether kernels that run along all positions in one launch can take these tensors, and pay."""
    return num_states <= FEW_STATES and triton_serves(*tensors)
