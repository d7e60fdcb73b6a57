"""The package's version, below everything: runs and benchmarks write it down. Read next: `errors.py`."""

__version__ = "0.1.0"
