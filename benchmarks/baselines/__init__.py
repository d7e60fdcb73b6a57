"""Alternatives to a hidden Markov model of words, trained on the same text and judged on the same tokens."""
