"""A semi-Markov chain by enumeration: every segmentation and labelling of ONE sequence, in plain Python.

Arguments are nested lists of floats: `log_initial` "z", `transition` "z y" (linear weights), `log_duration` "z d"
(first column: duration 1), `log_obs` "t z" (frames inside the length only), `log_final` "z" or None, and
`censored`. A segmentation is a tuple of (start, end, state, duration), end exclusive; the duration of a last
segment that the end cuts is larger than end - start. Meant for at most three states and six frames.
"""

import itertools
import math
from collections.abc import Iterator

Vector = list[float]
Matrix = list[list[float]]
Segment = tuple[int, int, int, int]
Segmentation = tuple[Segment, ...]

IMPOSSIBLE = float("-inf")


def log(weight: float) -> float:
    """The natural logarithm; -inf for 0."""
    return math.log(weight) if weight > 0 else IMPOSSIBLE


def exp(log_weight: float) -> float:
    """The exponential; inf where a float cannot hold it."""
    try:
        return math.exp(log_weight)
    except OverflowError:
        return math.inf


def log_sum_exp(terms: list[float]) -> float:
    """log sum_k exp(terms[k]); -inf for no terms, and where every term is -inf."""
    top = max(terms, default=IMPOSSIBLE)
    if top == IMPOSSIBLE:
        return IMPOSSIBLE
    return top + math.log(math.fsum(math.exp(term - top) for term in terms))


def segmentations(length: int, num_states: int, longest: int, *, censored: bool) -> Iterator[Segmentation]:
    """Every way to cut `length` frames into labelled segments of at most `longest` frames."""

    def rest(start: int) -> Iterator[Segmentation]:
        if start == length:
            yield ()
            return
        for state in range(num_states):
            for duration in range(1, longest + 1):
                end = start + duration
                if end <= length:
                    for tail in rest(end):
                        yield ((start, end, state, duration), *tail)
                elif censored:
                    yield ((start, length, state, duration),)

    yield from rest(0)


def weights(
    log_initial: Vector,
    transition: Matrix,
    log_duration: Matrix,
    log_obs: Matrix,
    log_final: Vector | None = None,
    *,
    censored: bool = False,
) -> dict[Segmentation, float]:
    """The log-weight of every segmentation; -inf for an impossible one."""
    found = {}
    for segments in segmentations(len(log_obs), len(log_initial), len(log_duration[0]), censored=censored):
        total = log_initial[segments[0][2]]
        for k, (start, end, state, duration) in enumerate(segments):
            if k:
                total += log(transition[segments[k - 1][2]][state])
            total += sum(log_obs[t][state] for t in range(start, end))
            total += log_duration[state][duration - 1]
        if log_final is not None:
            total += log_final[segments[-1][2]]
        found[segments] = total
    return found


def log_z(found: dict[Segmentation, float]) -> float:
    """The logarithm of the summed weight of all segmentations."""
    return log_sum_exp(list(found.values()))


def shares(found: dict[Segmentation, float]) -> dict[Segmentation, float]:
    """The posterior of every segmentation that has any; empty if none is possible."""
    total = log_z(found)
    return {segments: math.exp(weight - total) for segments, weight in found.items() if weight > IMPOSSIBLE}


def states(found: dict[Segmentation, float], length: int, num_states: int) -> Matrix:
    """p(state of frame t is z) as "t z"."""
    out = [[0.0] * num_states for _ in range(length)]
    for segments, share in shares(found).items():
        for start, end, state, _ in segments:
            for t in range(start, end):
                out[t][state] += share
    return out


def starts(found: dict[Segmentation, float], length: int, num_states: int) -> Matrix:
    """p(a segment of z begins at frame t) as "t z"."""
    out = [[0.0] * num_states for _ in range(length)]
    for segments, share in shares(found).items():
        for start, _, state, _ in segments:
            out[start][state] += share
    return out


def durations(found: dict[Segmentation, float], num_states: int, longest: int) -> Matrix:
    """The expected number of segments of z with duration d as "z d"; of cut ones their whole duration counts."""
    out = [[0.0] * longest for _ in range(num_states)]
    for segments, share in shares(found).items():
        for _, _, state, duration in segments:
            out[state][duration - 1] += share
    return out


def moves(found: dict[Segmentation, float], num_states: int) -> Matrix:
    """The expected number of moves from z to y as "z y"."""
    out = [[0.0] * num_states for _ in range(num_states)]
    for segments, share in shares(found).items():
        for before, after in itertools.pairwise(segments):
            out[before[2]][after[2]] += share
    return out


def grad_transition(
    log_initial: Vector,
    transition: Matrix,
    log_duration: Matrix,
    log_obs: Matrix,
    log_final: Vector | None = None,
    *,
    censored: bool = False,
) -> Matrix:
    """d log Z / d transition[z][y] as "z y", right at zero weights too: each factor is left out once."""
    num_states = len(log_initial)
    total = log_z(weights(log_initial, transition, log_duration, log_obs, log_final, censored=censored))
    terms: list[list[list[float]]] = [[[] for _ in range(num_states)] for _ in range(num_states)]
    ones = [[1.0] * num_states for _ in range(num_states)]
    bare = weights(log_initial, ones, log_duration, log_obs, log_final, censored=censored)
    for segments, weight in bare.items():
        steps = [(a[2], b[2]) for a, b in itertools.pairwise(segments)]
        for skipped, (source, target) in enumerate(steps):
            kept = sum(log(transition[z][y]) for k, (z, y) in enumerate(steps) if k != skipped)
            terms[source][target].append(weight + kept)
    if total == IMPOSSIBLE:
        return [[0.0] * num_states for _ in range(num_states)]
    return [[exp(log_sum_exp(cell) - total) for cell in row] for row in terms]


def best(found: dict[Segmentation, float]) -> tuple[Segmentation, float]:
    """A heaviest segmentation and its log-weight."""
    segments = max(found, key=lambda segments: found[segments])
    return segments, found[segments]
