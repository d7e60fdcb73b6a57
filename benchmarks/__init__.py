"""The laboratory: measurements, published tables and the writers of result pages. `python -m benchmarks --help`."""
