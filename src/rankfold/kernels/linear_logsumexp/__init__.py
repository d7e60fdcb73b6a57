"""The log of the summed exponentials of a linear map: the log-normaliser of a softmax over many words."""

from rankfold.kernels.linear_logsumexp.torch import linear_logsumexp

__all__ = ["linear_logsumexp"]
