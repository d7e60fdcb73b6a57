"""Tests of rankfold; the expected values come from `tests/oracles`, which knows nothing of it."""
