"""The max-plus matrix product with its argmax, for best paths."""

from rankfold.kernels.max_matmul.torch import max_matmul

__all__ = ["max_matmul"]
