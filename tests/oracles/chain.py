"""A chain by enumeration: every state path of ONE sequence, in plain Python.

Arguments are nested lists of floats: `log_initial` "z", `transition` "z y" (linear weights), `log_obs` "t z"
(positions inside the length only) and `log_final` "z" or None. Sums of exponentials are shifted by hand, so
a range of 1000 nats is fine. Meant for at most four states and five positions.
"""

import itertools
import math

Vector = list[float]
Matrix = list[list[float]]
Path = tuple[int, ...]

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


def paths(
    log_initial: Vector, transition: Matrix, log_obs: Matrix, log_final: Vector | None = None
) -> dict[Path, float]:
    """The log weight of every path (z_1, ..., z_T); -inf for an impossible one.

    Added up from left to right, as a recursion does, so that exact ties stay exact.
    """
    log_transition = [[log(weight) for weight in row] for row in transition]
    found = {}
    for path in itertools.product(range(len(log_initial)), repeat=len(log_obs)):
        total = log_initial[path[0]] + log_obs[0][path[0]]
        for t in range(1, len(path)):
            total = total + log_transition[path[t - 1]][path[t]] + log_obs[t][path[t]]
        if log_final is not None:
            total = total + log_final[path[-1]]
        found[path] = total
    return found


def log_z(log_initial: Vector, transition: Matrix, log_obs: Matrix, log_final: Vector | None = None) -> float:
    """The logarithm of the summed weight of all paths."""
    return log_sum_exp(list(paths(log_initial, transition, log_obs, log_final).values()))


def posterior(log_initial: Vector, transition: Matrix, log_obs: Matrix, log_final: Vector | None = None) -> Matrix:
    """p(z_t = z | x) as "t z"; all zeros for an impossible sequence."""
    weights = paths(log_initial, transition, log_obs, log_final)
    total = log_sum_exp(list(weights.values()))
    out = [[0.0] * len(log_initial) for _ in log_obs]
    for path, weight in weights.items():
        for t, state in enumerate(path):
            out[t][state] += _share(weight, total)
    return out


def best_path(
    log_initial: Vector, transition: Matrix, log_obs: Matrix, log_final: Vector | None = None
) -> tuple[Path, float]:
    """The heaviest path and its log weight.

    Ties go to the smallest last state, then to the smallest one before it, and so on back: what following
    back-pointers to the smallest index gives. Without any possible path: the path of zeros and -inf.
    """
    weights = paths(log_initial, transition, log_obs, log_final)
    path = min(weights, key=lambda path: (-weights[path], path[::-1]))
    return path, weights[path]


def entropy(log_initial: Vector, transition: Matrix, log_obs: Matrix, log_final: Vector | None = None) -> float:
    """The entropy, in nats, of the path given the sequence; 0 for an impossible sequence."""
    return _entropy(list(paths(log_initial, transition, log_obs, log_final).values()))


def expected_transitions(
    log_initial: Vector, transition: Matrix, log_obs: Matrix, log_final: Vector | None = None
) -> Matrix:
    """The expected number of moves from z to y as "z y"; all zeros for an impossible sequence."""
    weights = paths(log_initial, transition, log_obs, log_final)
    total = log_sum_exp(list(weights.values()))
    out = [[0.0] * len(log_initial) for _ in log_initial]
    for path, weight in weights.items():
        for source, target in itertools.pairwise(path):
            out[source][target] += _share(weight, total)
    return out


def grad_transition(
    log_initial: Vector, transition: Matrix, log_obs: Matrix, log_final: Vector | None = None
) -> Matrix:
    """d log Z / d transition[z][y] as "z y", right at zero weights too; all zeros for an impossible sequence.

    The product rule, path by path: each factor of a path's product is left out once.
    """
    total = log_z(log_initial, transition, log_obs, log_final)
    terms: list[list[list[float]]] = [[[] for _ in log_initial] for _ in log_initial]
    for path in itertools.product(range(len(log_initial)), repeat=len(log_obs)):
        ends = [log_initial[path[0]]] + ([] if log_final is None else [log_final[path[-1]]])
        seen = [log_obs[t][state] for t, state in enumerate(path)]
        moves = list(itertools.pairwise(path))
        for skipped, (source, target) in enumerate(moves):
            kept = [log(transition[z][y]) for t, (z, y) in enumerate(moves) if t != skipped]
            terms[source][target].append(sum(ends + seen + kept))
    if total == IMPOSSIBLE:
        return [[0.0] * len(log_initial) for _ in log_initial]
    return [[exp(log_sum_exp(cell) - total) for cell in row] for row in terms]


def joint_paths(
    log_initial: Vector, left: Matrix, right: Matrix, log_obs: Matrix, log_final: Vector | None = None
) -> dict[tuple[Path, Path], float]:
    """The log weight of every (states, ranks), where A[z][y] = sum_r left[z][r] right[y][r].

    A path has one rank fewer than it has states: rank t leads from state t to state t + 1.
    """
    log_left = [[log(weight) for weight in row] for row in left]
    log_right = [[log(weight) for weight in row] for row in right]
    found = {}
    for states in itertools.product(range(len(log_initial)), repeat=len(log_obs)):
        for ranks in itertools.product(range(len(left[0])), repeat=len(log_obs) - 1):
            total = log_initial[states[0]] + log_obs[0][states[0]]
            for t, rank in enumerate(ranks, start=1):
                total = total + log_left[states[t - 1]][rank] + log_right[states[t]][rank] + log_obs[t][states[t]]
            if log_final is not None:
                total = total + log_final[states[-1]]
            found[states, ranks] = total
    return found


def joint_best(
    log_initial: Vector, left: Matrix, right: Matrix, log_obs: Matrix, log_final: Vector | None = None
) -> tuple[Path, Path, float]:
    """The heaviest (states, ranks) and its log weight.

    Ties go to the smallest last state, then the smallest rank that led there, then the state before, and so
    on back. Without any possible path: zeros and -inf.
    """
    weights = joint_paths(log_initial, left, right, log_obs, log_final)

    def key(both: tuple[Path, Path]) -> tuple[float, list[int]]:
        states, ranks = both
        back = [states[-1]]
        for t in reversed(range(len(ranks))):
            back += [ranks[t], states[t]]
        return -weights[both], back

    states, ranks = min(weights, key=key)
    return states, ranks, weights[states, ranks]


def joint_entropy(
    log_initial: Vector, left: Matrix, right: Matrix, log_obs: Matrix, log_final: Vector | None = None
) -> float:
    """The entropy, in nats, of states and ranks together; 0 for an impossible sequence."""
    return _entropy(list(joint_paths(log_initial, left, right, log_obs, log_final).values()))


def _entropy(log_weights: list[float]) -> float:
    total = log_sum_exp(log_weights)
    shares = [(_share(weight, total), weight - total) for weight in log_weights if weight > IMPOSSIBLE]
    return -math.fsum(share * log_share for share, log_share in shares)


def _share(log_weight: float, total: float) -> float:
    """exp(log_weight - total); 0 where there is nothing to share."""
    return math.exp(log_weight - total) if log_weight > IMPOSSIBLE else 0.0
