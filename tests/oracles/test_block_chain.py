"""The enumeration of block chains: right on an example worked by hand, and the ordinary one where that can say it."""

import math

import pytest

from tests.oracles import block_chain, chain

INF = float("inf")

# Path weights: 00: 1 * 1 = 1, 01: 1 * 2 * 3 = 6, 10: 2 * 0 = 0, 11: 2 * 4 * 3 = 24.
EXAMPLE = ([0.0, math.log(2.0)], [[[0.0, math.log(2.0)], [-INF, math.log(4.0)]]], [[0.0, 0.0], [0.0, math.log(3.0)]])


def test_by_hand() -> None:
    found = {path: math.exp(weight) for path, weight in block_chain.paths(*EXAMPLE).items()}
    assert found == pytest.approx({(0, 0): 1.0, (0, 1): 6.0, (1, 0): 0.0, (1, 1): 24.0}, rel=1e-14)
    assert block_chain.log_z(*EXAMPLE) == pytest.approx(math.log(31.0), rel=1e-14)
    assert block_chain.posterior(*EXAMPLE)[0] == pytest.approx([7 / 31, 24 / 31], rel=1e-14)
    assert block_chain.pairs(*EXAMPLE)[0][0] == pytest.approx([1 / 31, 6 / 31], rel=1e-14)
    assert block_chain.filtered(*EXAMPLE) == pytest.approx([math.log(1 / 31), math.log(30 / 31)], rel=1e-14)
    assert block_chain.best_path(*EXAMPLE)[0] == (1, 1)
    shares = [1 / 31, 6 / 31, 24 / 31]
    assert block_chain.entropy(*EXAMPLE) == pytest.approx(-sum(p * math.log(p) for p in shares), rel=1e-13)


def test_one_transition_for_all_positions_is_the_ordinary_chain() -> None:
    log_initial, weight, log_obs = [0.1, -0.4], [[0.5, 2.0], [0.0, 1.5]], [[0.3, 0.2], [-1.0, 0.0], [0.7, -0.2]]
    same = (log_initial, [[[chain.log(x) for x in row] for row in weight]] * 2, log_obs)
    assert block_chain.paths(*same) == chain.paths(log_initial, weight, log_obs)
    assert block_chain.posterior(*same) == chain.posterior(log_initial, weight, log_obs)
    assert block_chain.best_path(*same) == chain.best_path(log_initial, weight, log_obs)


def test_an_impossible_sequence() -> None:
    nothing = ([0.0, 0.0], [], [[-INF, -INF]])
    assert block_chain.log_z(*nothing) == -INF
    assert block_chain.filtered(*nothing) == [-INF, -INF]
    assert block_chain.posterior(*nothing) == [[0.0, 0.0]]
    assert block_chain.entropy(*nothing) == 0.0
