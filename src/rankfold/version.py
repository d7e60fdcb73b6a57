"""The package's version, below everything: runs and benchmarks write it down."""

__version__ = "0.2.0"
