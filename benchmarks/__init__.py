"""Speed and memory of rankfold against other libraries and against itself: `python -m benchmarks`."""
