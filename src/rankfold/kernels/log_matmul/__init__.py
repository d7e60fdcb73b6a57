"""The matrix product in log arithmetic: any range, no product of the factors' size times the batch."""

from rankfold.kernels.log_matmul.torch import log_matmul

__all__ = ["log_matmul"]
