"""Arithmetic that keeps exact zeros and any range: scaled vectors, logarithms, matmul precision."""
