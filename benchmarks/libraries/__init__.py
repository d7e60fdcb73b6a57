"""Speed and memory of rankfold next to other libraries and to itself: `python -m benchmarks libraries`."""
