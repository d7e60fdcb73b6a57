"""The enumeration of segmentations, checked by hand and by counting."""

import math

import pytest

from tests.oracles import semi_markov as oracle

UNIFORM = {
    "log_initial": [0.0, 0.0],
    "transition": [[1.0, 1.0], [1.0, 1.0]],
    "log_duration": [[0.0] * 4, [0.0] * 4],
    "log_obs": [[0.0, 0.0]] * 4,
}


def test_as_many_segmentations_as_there_are() -> None:
    # 2^(t-1) cuts, and a label for each segment: sum over k of C(3, k-1) 2^k = 2 * 3^3.
    found = oracle.weights(**UNIFORM)
    assert len(found) == 54
    assert oracle.log_z(found) == pytest.approx(math.log(54))


def test_what_the_end_cuts_has_every_longer_duration() -> None:
    found = oracle.weights(**{**UNIFORM, "log_obs": [[0.0, 0.0]]}, censored=True)
    assert sorted(found) == [((0, 1, z, d),) for z in range(2) for d in range(1, 5)]


def test_two_frames_by_hand() -> None:
    p = {
        "log_initial": [math.log(0.5), math.log(0.25)],
        "transition": [[0.0, 2.0], [3.0, 0.0]],
        "log_duration": [[math.log(0.1), math.log(0.9)], [math.log(0.2), math.log(0.8)]],
        "log_obs": [[math.log(2.0), math.log(3.0)], [math.log(5.0), math.log(7.0)]],
        "log_final": [0.0, math.log(2.0)],
    }
    weights = {"00": 0.5 * 0.9 * 10, "11": 0.25 * 0.8 * 21 * 2, "0|1": 0.5 * 0.1 * 2 * 2 * 0.2 * 7 * 2}
    weights["1|0"] = 0.25 * 0.2 * 3 * 3 * 0.1 * 5
    total = sum(weights.values())
    found = oracle.weights(**p)
    assert oracle.log_z(found) == pytest.approx(math.log(total))
    assert oracle.states(found, 2, 2)[0][0] == pytest.approx((weights["00"] + weights["0|1"]) / total)
    assert oracle.starts(found, 2, 2)[1] == pytest.approx([weights["1|0"] / total, weights["0|1"] / total])
    assert oracle.durations(found, 2, 2)[0] == pytest.approx(
        [(weights["0|1"] + weights["1|0"]) / total, weights["00"] / total]
    )
    assert oracle.moves(found, 2)[1] == pytest.approx([weights["1|0"] / total, 0.0])
    grad = oracle.grad_transition(**p)
    assert grad[1][0] == pytest.approx(weights["1|0"] / total / 3.0)
    assert grad[0][0] == pytest.approx(0.5 * 0.1 * 2 * 0.1 * 5 / total)  # of a weight that is zero
    assert oracle.best(found) == (((0, 2, 1, 2),), pytest.approx(math.log(weights["11"])))
