"""Whether Triton kernels can run here: with a CUDA device, or anywhere in Triton's interpreter, for tests."""

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
