"""A chain of blocks by enumeration: every path of ONE sequence through the k states of each position.

Arguments are nested lists of floats, all of them logarithms: `log_initial` "k", `log_transition` "s k k" with one
transition fewer than there are positions, `log_obs` "t k" (positions inside the length only). Paths are indices
into the blocks. Meant for at most four states and five positions.
"""

import itertools
import math

Vector = list[float]
Matrix = list[list[float]]
Path = tuple[int, ...]

IMPOSSIBLE = float("-inf")


def log_sum_exp(terms: list[float]) -> float:
    """log sum_k exp(terms[k]); -inf for no terms, and where every term is -inf."""
    top = max(terms, default=IMPOSSIBLE)
    if top == IMPOSSIBLE:
        return IMPOSSIBLE
    return top + math.log(math.fsum(math.exp(term - top) for term in terms))


def paths(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> dict[Path, float]:
    """The log weight of every path (i_1, ..., i_T), added up from left to right; -inf for an impossible one."""
    found = {}
    for path in itertools.product(*(range(len(states)) for states in log_obs)):  # k may differ from place to place
        total = log_initial[path[0]] + log_obs[0][path[0]]
        for t in range(1, len(path)):
            total = total + log_transition[t - 1][path[t - 1]][path[t]] + log_obs[t][path[t]]
        found[path] = total
    return found


def log_z(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> float:
    """The logarithm of the summed weight of all paths."""
    return log_sum_exp(list(paths(log_initial, log_transition, log_obs).values()))


def probabilities(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> dict[Path, float]:
    """p(path | x) of every path; 0 throughout for an impossible sequence."""
    weights = paths(log_initial, log_transition, log_obs)
    total = log_sum_exp(list(weights.values()))
    return {path: math.exp(w - total) if w > IMPOSSIBLE else 0.0 for path, w in weights.items()}


def posterior(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> Matrix:
    """p(i_t = i | x) as "t k"; all zeros for an impossible sequence."""
    out = [[0.0] * len(log_initial) for _ in log_obs]
    for path, share in probabilities(log_initial, log_transition, log_obs).items():
        for t, state in enumerate(path):
            out[t][state] += share
    return out


def pairs(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> list[Matrix]:
    """p(i_t = i, i_t+1 = j | x) as "s k k"; all zeros for an impossible sequence."""
    out = [[[0.0] * len(log_initial) for _ in log_initial] for _ in log_transition]
    for path, share in probabilities(log_initial, log_transition, log_obs).items():
        for t, (source, target) in enumerate(itertools.pairwise(path)):
            out[t][source][target] += share
    return out


def best_path(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> tuple[Path, float]:
    """The heaviest path and its log weight; ties to the smallest last index, then the one before it, and so on."""
    weights = paths(log_initial, log_transition, log_obs)
    path = min(weights, key=lambda path: (-weights[path], path[::-1]))
    return path, weights[path]


def filtered(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> Vector:
    """log p(i_T | x) as "k"; -inf throughout for an impossible sequence."""
    weights = paths(log_initial, log_transition, log_obs)
    total = log_sum_exp(list(weights.values()))
    if total == IMPOSSIBLE:
        return [IMPOSSIBLE] * len(log_initial)
    return [
        log_sum_exp([w for path, w in weights.items() if path[-1] == state]) - total
        for state in range(len(log_initial))
    ]


def entropy(log_initial: Vector, log_transition: list[Matrix], log_obs: Matrix) -> float:
    """The entropy, in nats, of the path given the sequence; 0 for an impossible sequence."""
    weights = paths(log_initial, log_transition, log_obs)
    total = log_sum_exp(list(weights.values()))
    possible = [w - total for w in weights.values() if w > IMPOSSIBLE]
    return -math.fsum(math.exp(log_share) * log_share for log_share in possible)
