"""Densities of frames and tables of durations, one entry at a time, in plain Python.

A frame is a list of floats, NaN where a feature is missing; a symbol is a whole number, -1 where it is missing.
"""

import math

Vector = list[float]
Matrix = list[list[float]]


def log(weight: float) -> float:
    """The natural logarithm; -inf for 0."""
    return math.log(weight) if weight > 0 else float("-inf")


def gaussian(frame: Vector, mean: Vector, variance: Vector) -> float:
    """log N(frame; mean, diag(variance)) over the features that are there."""
    terms = [
        -((x - m) ** 2) / (2 * v) - math.log(2 * math.pi * v) / 2
        for x, m, v in zip(frame, mean, variance, strict=True)
        if not math.isnan(x)
    ]
    return math.fsum(terms)


def bernoulli(frame: Vector, probability: Vector) -> float:
    """The log-probability of zeros and ones over the features that are there."""
    terms = [log(p if x == 1 else 1 - p) for x, p in zip(frame, probability, strict=True) if not math.isnan(x)]
    return sum(terms)


def categorical(symbol: int, probability: Vector) -> float:
    """The log-probability of a symbol; 0 if it is missing."""
    return log(probability[symbol]) if symbol >= 0 else 0.0


def poisson(log_rate: float, longest: int, *, normalised: bool) -> Vector:
    """The log-probability of 1..longest under a Poisson distribution, given that it is one of them if normalised."""
    rate = math.exp(log_rate)
    mass = [rate**d * math.exp(-rate) / math.factorial(d) for d in range(1, longest + 1)]
    total = math.fsum(mass) if normalised else 1.0
    return [math.log(x / total) for x in mass]


def negative_binomial(log_shape: float, log_odds: float, longest: int) -> Vector:
    """The log-probability of d, d - 1 negative binomial, given that d is at most the longest."""
    shape, q = math.exp(log_shape), 1 / (1 + math.exp(-log_odds))
    mass = [
        math.gamma(k + shape) / (math.gamma(shape) * math.factorial(k)) * (1 - q) ** shape * q**k
        for k in range(longest)
    ]
    return [math.log(x / math.fsum(mass)) for x in mass]


def low_rank(left: Matrix, right: Matrix, *, self_transitions: bool) -> Matrix:
    """sum_r left[z][r] right[y][r]; without self-transitions 0 on the diagonal and rows divided by their sum."""
    out = []
    for z, by_rank in enumerate(left):
        row = [math.fsum(a * b for a, b in zip(by_rank, other, strict=True)) for other in right]
        if not self_transitions:
            row[z] = 0.0
            total = math.fsum(row)
            row = [x / total for x in row]
        out.append(row)
    return out
