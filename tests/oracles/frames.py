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


def normal(frame: Vector, mean: Vector, covariance: Matrix) -> float:
    """log N(frame; mean, covariance) over the features that are there, by elimination without pivots."""
    there = [i for i, x in enumerate(frame) if not math.isnan(x)]
    rows = [[covariance[i][j] for j in there] + [frame[i] - mean[i]] for i in there]
    log_det, square = 0.0, 0.0
    for i, row in enumerate(rows):
        log_det += math.log(row[i])
        square += row[-1] ** 2 / row[i]
        for other in rows[i + 1 :]:
            factor = other[i] / row[i]
            for j in range(i, len(row)):
                other[j] -= factor * row[j]
    return -(square + log_det + len(there) * math.log(2 * math.pi)) / 2


def linear(weight: Matrix, regressors: Vector) -> Vector:
    """weight times (regressors, 1)"""
    return [math.fsum(w * r for w, r in zip(row, [*regressors, 1.0], strict=True)) for row in weight]


def mixture(frame: Vector, weights: Vector, means: Matrix, covariances: list[Matrix]) -> float:
    """The log-density of a mixture of Gaussians; 0 for a missing frame."""
    if all(map(math.isnan, frame)):
        return 0.0
    terms = [w * math.exp(normal(frame, m, c)) for w, m, c in zip(weights, means, covariances, strict=True)]
    return math.log(math.fsum(terms))


def student(frame: Vector, centre: Vector, scale: Vector, dof: Vector) -> float:
    """Independent t distributions, `scale` squared, over the features that are there."""
    terms = [
        math.lgamma((v + 1) / 2)
        - math.lgamma(v / 2)
        - math.log(v * math.pi * s) / 2
        - (v + 1) / 2 * math.log(1 + (x - m) ** 2 / (v * s))
        for x, m, s, v in zip(frame, centre, scale, dof, strict=True)
        if not math.isnan(x)
    ]
    return math.fsum(terms)


def multivariate_t(frame: Vector, centre: Vector, scale: Matrix, dof: float) -> float:
    """A t distribution with a scale matrix, of the features that are there, from the Gaussian of that matrix."""
    size = sum(not math.isnan(x) for x in frame)
    if not size:
        return 0.0
    at_centre = normal([x if math.isnan(x) else m for x, m in zip(frame, centre, strict=True)], centre, scale)
    square = -2 * (normal(frame, centre, scale) - at_centre)
    log_root = -at_centre - size * math.log(2 * math.pi) / 2  # of the determinant
    level = math.lgamma((dof + size) / 2) - math.lgamma(dof / 2) - size / 2 * math.log(dof * math.pi)
    return level - log_root - (dof + size) / 2 * math.log(1 + square / dof)


def counts(frame: Vector, rates: Vector) -> float:
    """Independent Poisson counts over the features that are there; a rate of 0 allows 0 alone."""
    total = 0.0
    for x, rate in zip(frame, rates, strict=True):
        if not math.isnan(x):
            total += (x * log(rate) if x else 0.0) - rate - math.lgamma(x + 1)
    return total


def beta(frame: Vector, alpha: Vector, beta: Vector) -> float:
    """Independent beta distributions over the features that are there."""
    terms = [
        (a - 1) * math.log(x) + (b - 1) * math.log(1 - x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        for x, a, b in zip(frame, alpha, beta, strict=True)
        if not math.isnan(x)
    ]
    return math.fsum(terms)


def gamma(frame: Vector, shape: Vector, rate: Vector) -> float:
    """Independent gamma distributions over the features that are there."""
    terms = [
        (k - 1) * math.log(x) - r * x + k * math.log(r) - math.lgamma(k)
        for x, k, r in zip(frame, shape, rate, strict=True)
        if not math.isnan(x)
    ]
    return math.fsum(terms)


def von_mises(frame: Vector, mean: Vector, concentration: Vector) -> float:
    """Independent von Mises distributions over the features that are there; I0 by its series."""
    terms = []
    for x, m, k in zip(frame, mean, concentration, strict=True):
        if not math.isnan(x):
            i0 = math.fsum(((k / 2) ** n / math.factorial(n)) ** 2 for n in range(100))
            terms.append(k * math.cos(x - m) - math.log(2 * math.pi * i0))
    return math.fsum(terms)


def multinomial(frame: Vector, probability: Vector) -> float:
    """Counts of each kind given their sum; 0 for a missing frame."""
    if any(map(math.isnan, frame)):
        return 0.0
    ways = math.lgamma(sum(frame) + 1) - math.fsum(math.lgamma(x + 1) for x in frame)
    return ways + sum(x * log(p) for x, p in zip(frame, probability, strict=True) if x)


def exponential(frame: Vector, rate: Vector) -> float:
    """Independent exponential distributions over the features that are there."""
    return math.fsum(math.log(r) - r * x for x, r in zip(frame, rate, strict=True) if not math.isnan(x))


def half_normal(frame: Vector, deviation: Vector) -> float:
    """Twice the density of normal numbers around 0, over the features that are there."""
    return gaussian(frame, [0.0] * len(frame), [s * s for s in deviation]) + math.fsum(
        math.log(2) for x in frame if not math.isnan(x)
    )


def log_normal(frame: Vector, mean: Vector, covariance: Matrix) -> float:
    """The density of the logarithms, divided by the features."""
    logs = [x if math.isnan(x) else math.log(x) for x in frame]
    return normal(logs, mean, covariance) - math.fsum(x for x in logs if not math.isnan(x))


def negative_binomial_count(x: float, shape: float, rate: float) -> float:
    """Of a Poisson count whose rate has a gamma distribution; 0 if it is missing."""
    if math.isnan(x):
        return 0.0
    ways = math.lgamma(x + shape) - math.lgamma(shape) - math.lgamma(x + 1)
    return ways + shape * math.log(rate / (1 + rate)) - x * math.log(1 + rate)


def zero_inflated(x: float, zero: float, other: float | None) -> float:
    """A feature that is 0 with a probability of its own; `other`: the log-weight of another distribution, None: it has
    no zeros."""
    if math.isnan(x):
        return 0.0
    if x == 0:
        return log(zero + (0.0 if other is None else (1 - zero) * math.exp(other)))
    assert other is not None
    return log(1 - zero) + other
