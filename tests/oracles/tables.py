"""Distributions from parameters, entry by entry: networks, softmax, and the generalised softmax with a band.

Arguments are nested lists of floats; results too. Nothing is rearranged for speed or for range: logarithms are meant to
lie within a few nats of 0.
"""

import math

Vector = list[float]
Matrix = list[list[float]]
Layer = tuple[Matrix, Vector]  # weight "o i", bias "o"


def dot(x: Vector, y: Vector) -> float:
    """The inner product."""
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def linear(x: Vector, layer: Layer) -> Vector:
    """W x + b."""
    weight, bias = layer
    return [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]


def residual(x: Vector, first: Layer, second: Layer) -> Vector:
    """x + relu(W2 relu(W1 x + b1) + b2)."""
    inner = [max(0.0, h) for h in linear(x, first)]
    return [a + max(0.0, h) for a, h in zip(x, linear(inner, second), strict=True)]


def layer_norm(x: Vector, scale: Vector, shift: Vector, eps: float) -> Vector:
    """(x - mean) / sqrt(variance + eps), entry by entry times scale plus shift; the variance is divided by d."""
    mean = math.fsum(x) / len(x)
    spread = math.sqrt(math.fsum((a - mean) ** 2 for a in x) / len(x) + eps)
    return [(a - mean) / spread * s + b for a, s, b in zip(x, scale, shift, strict=True)]


def log_features(x: Vector, projection: Matrix, kind: str) -> Vector:
    """log phi(x) as "r" for a projection "d r": x W, and for "positive" less |x|^2 / 2."""
    shift = dot(x, x) / 2 if kind == "positive" else 0.0
    return [dot(x, [row[r] for row in projection]) - shift for r in range(len(projection[0]))]


def normalised(weights: Vector) -> Vector:
    """Divided by their sum."""
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def softmax(logits: Vector) -> Vector:
    """exp(logits), normalised; an entry of -inf has none."""
    return normalised([math.exp(logit) for logit in logits])


def kernel(log_x: Vector, log_y: Vector) -> float:
    """phi(x) . phi(y)."""
    return math.fsum(math.exp(a) * math.exp(b) for a, b in zip(log_x, log_y, strict=True))


def generalised_softmax(
    log_source: Matrix,
    log_target: Matrix,
    log_band: Matrix | None = None,
    allowed: list[int] | None = None,
) -> Matrix:
    """A[z][y] proportional to phi(u_z) . phi(v_y) + exp(log_band[z][y - z + reach]), over the allowed targets y.

    A band has 2 reach + 1 diagonals; cells beyond it, or outside the matrix, get nothing from it.
    """
    out = []
    for z, log_u in enumerate(log_source):
        row = []
        for y, log_v in enumerate(log_target):
            weight = kernel(log_u, log_v)
            if log_band is not None:
                reach = len(log_band[z]) // 2
                weight += math.exp(log_band[z][y - z + reach]) if abs(y - z) <= reach else 0.0
            row.append(weight if allowed is None or y in allowed else 0.0)
        out.append(normalised(row))
    return out
