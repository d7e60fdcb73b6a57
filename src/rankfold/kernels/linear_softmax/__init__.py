"""Tables of softmax distributions made of inner products, normalised in place."""

from rankfold.kernels.linear_softmax.torch import SoftmaxTable, linear_softmax

__all__ = ["SoftmaxTable", "linear_softmax"]
