"""Gradient steps, checked and then timed: what `rankfold bench` does, without its words. Read next: `bench/row.py`."""
