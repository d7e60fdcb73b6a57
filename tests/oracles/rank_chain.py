"""A rank-space chain by enumeration: every path of states and ranks of ONE sequence of words, in plain Python.

    z_1 ~ start,  r_t ~ rank[z_t],  w_t ~ emission[r_t],  z_t+1 ~ state[.][r_t]

Arguments are nested lists of probabilities: `start` "z", `rank` "z r", `state` "z r" (columns sum to 1), `emission`
"r v". Meant for at most four states and ranks and three words.
"""

import itertools

Matrix = list[list[float]]
Path = tuple[int, ...]


def paths(
    start: list[float], rank: Matrix, state: Matrix, emission: Matrix, words: list[int]
) -> dict[tuple[Path, Path], float]:
    """The probability of every (states, ranks) together with the words."""
    found = {}
    for states in itertools.product(range(len(start)), repeat=len(words)):
        for ranks in itertools.product(range(len(emission)), repeat=len(words)):
            total = start[states[0]]
            for t, (z, r) in enumerate(zip(states, ranks, strict=True)):
                total *= rank[z][r] * emission[r][words[t]]
                if t + 1 < len(words):
                    total *= state[states[t + 1]][r]
            found[states, ranks] = total
    return found


def probability(start: list[float], rank: Matrix, state: Matrix, emission: Matrix, words: list[int]) -> float:
    """The probability of the words."""
    return sum(paths(start, rank, state, emission, words).values())


def rank_posterior(start: list[float], rank: Matrix, state: Matrix, emission: Matrix, words: list[int]) -> Matrix:
    """p(r_t = r | words) as "t r"."""
    out = [[0.0] * len(emission) for _ in words]
    weights = paths(start, rank, state, emission, words)
    total = sum(weights.values())
    for (_, ranks), weight in weights.items():
        for t, r in enumerate(ranks):
            out[t][r] += weight / total
    return out
