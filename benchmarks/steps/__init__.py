"""Gradient steps, checked and then timed: `python -m benchmarks steps`."""
