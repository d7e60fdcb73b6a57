"""The oracles themselves: independent of what they judge, and right on an example worked by hand."""

import ast
import itertools
import math
from pathlib import Path

import pytest

from tests.oracles import chain

INF = float("inf")
FOLDER = Path(__file__).parent

# Two states, two positions. Path weights: 00: .5*.5*.2 = .05, 01: .5*.5*.8*3 = .6, 10: 0 (no way), 11: .5*2*1*3 = 3.
EXAMPLE = ([math.log(0.5)] * 2, [[0.2, 0.8], [0.0, 1.0]], [[math.log(0.5), math.log(2.0)], [0.0, math.log(3.0)]])


def imported(source: str) -> set[str]:
    """The top-level packages that a source imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_oracles_import_nothing_of_ours(path: Path) -> None:
    allowed = {
        "ast",
        "functools",
        "itertools",
        "math",
        "pathlib",
        "re",
        "numpy",
        "collections",
        "dataclasses",
        "typing",
        "__future__",
    }
    if path.name.startswith("test_"):
        allowed |= {"pytest", "tests"}
    source = path.read_text()
    assert imported(source) <= allowed
    assert "import_module" not in source.replace('"import_module"', "")


def test_the_scan_sees_every_kind_of_import() -> None:
    sources = ["import torch", "import torch.nn as nn", "from torch import nn", "def f():\n    import rankfold.errors"]
    assert [imported(source) for source in sources] == [{"torch"}, {"torch"}, {"torch"}, {"rankfold"}]
    assert imported("from . import chain") == {"."}


def test_paths_and_log_z_by_hand() -> None:
    weights = {path: math.exp(weight) for path, weight in chain.paths(*EXAMPLE).items()}
    assert weights == pytest.approx({(0, 0): 0.05, (0, 1): 0.6, (1, 0): 0.0, (1, 1): 3.0}, rel=1e-14)
    assert chain.paths(*EXAMPLE)[1, 0] == -INF
    assert chain.log_z(*EXAMPLE) == pytest.approx(math.log(3.65), rel=1e-14)
    assert chain.log_z(*EXAMPLE, [-INF, math.log(2.0)]) == pytest.approx(math.log(7.2), rel=1e-14)


def test_posterior_and_counts_by_hand() -> None:
    posterior = chain.posterior(*EXAMPLE)
    assert posterior[0] == pytest.approx([0.65 / 3.65, 3.0 / 3.65], rel=1e-14)
    assert posterior[1] == pytest.approx([0.05 / 3.65, 3.6 / 3.65], rel=1e-14)
    counts = chain.expected_transitions(*EXAMPLE)
    assert counts[0] == pytest.approx([0.05 / 3.65, 0.6 / 3.65], rel=1e-14)
    assert counts[1] == pytest.approx([0.0, 3.0 / 3.65], rel=1e-14)


def test_gradient_by_hand_also_at_zero() -> None:
    gradient = chain.grad_transition(*EXAMPLE)
    assert gradient[0] == pytest.approx([0.25 / 3.65, 0.75 / 3.65], rel=1e-14)
    assert gradient[1] == pytest.approx([1.0 / 3.65, 3.0 / 3.65], rel=1e-14)


def test_gradient_is_the_slope() -> None:
    log_initial, transition, _ = EXAMPLE
    log_obs = [[0.0, -1.0], [0.5, 0.3], [-0.2, 0.1], [0.0, 0.0]]
    gradient = chain.grad_transition(log_initial, transition, log_obs)
    step = 1e-6
    base = chain.log_z(log_initial, transition, log_obs)
    for z, y in itertools.product(range(2), repeat=2):
        moved = [list(row) for row in transition]
        moved[z][y] += step
        slope = (chain.log_z(log_initial, moved, log_obs) - base) / step
        # A one-sided difference, because weights below zero mean nothing: off by step times the curvature.
        assert gradient[z][y] == pytest.approx(slope, abs=1e-4)


def test_best_path_and_entropy_by_hand() -> None:
    path, weight = chain.best_path(*EXAMPLE)
    assert path == (1, 1)
    assert weight == pytest.approx(math.log(3.0), rel=1e-14)
    shares = [0.05 / 3.65, 0.6 / 3.65, 3.0 / 3.65]
    assert chain.entropy(*EXAMPLE) == pytest.approx(-sum(p * math.log(p) for p in shares), rel=1e-13)


def test_ties_go_to_the_smallest_state_from_the_end() -> None:
    even = ([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0]] * 3)
    assert chain.best_path(*even) == ((0, 0, 0), 0.0)
    # (0, 1) and (1, 0) tie: the one that ends in 0.
    crossed = ([0.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0]] * 2)
    assert chain.best_path(*crossed) == ((1, 0), 0.0)


def test_impossible_sequences() -> None:
    nowhere = ([0.0, -INF], [[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0]] * 2)
    assert chain.log_z(*nowhere) == -INF
    assert chain.entropy(*nowhere) == 0.0
    assert chain.best_path(*nowhere) == ((0, 0), -INF)
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    assert chain.posterior(*nowhere) == chain.expected_transitions(*nowhere) == chain.grad_transition(*nowhere) == zeros


def test_a_range_of_1000_nats() -> None:
    # Four paths of equal weight exp(-3000), one of which is doubled.
    log_initial, transition = [-1000.0, -1000.0], [[1.0, 1.0], [1.0, 2.0]]
    log_obs = [[-1000.0, -1000.0], [-1000.0, -1000.0]]
    assert chain.log_z(log_initial, transition, log_obs) == pytest.approx(-3000.0 + math.log(5.0), rel=1e-14)
    assert chain.posterior(log_initial, transition, log_obs)[1] == pytest.approx([0.4, 0.6], rel=1e-12)
    assert chain.log_sum_exp([0.0, -1000.0]) == 0.0
    assert chain.log_sum_exp([]) == chain.log_sum_exp([-INF, -INF]) == -INF


def test_states_and_ranks_together_by_hand() -> None:
    left, right = [[1.0, 2.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 3.0]]
    log_initial, log_obs = [0.0, math.log(2.0)], [[0.0, 0.0], [0.0, 0.0]]
    # weights (states, rank): 00,0: 1; 01,0: 1; 01,1: 6; 11,1: 2 * 3 = 6; the rest 0.
    found = {both: math.exp(w) for both, w in chain.joint_paths(log_initial, left, right, log_obs).items() if w > -INF}
    want = {((0, 0), (0,)): 1.0, ((0, 1), (0,)): 1.0, ((0, 1), (1,)): 6.0, ((1, 1), (1,)): 6.0}
    assert found == pytest.approx(want, rel=1e-14)
    states, ranks, weight = chain.joint_best([0.0, 0.5], left, right, log_obs)
    assert (states, ranks) == ((0, 1), (1,))
    assert weight == pytest.approx(math.log(6.0), rel=1e-14)
    shares = [weight / 14.0 for weight in want.values()]
    entropy = -sum(p * math.log(p) for p in shares)
    assert chain.joint_entropy(log_initial, left, right, log_obs) == pytest.approx(entropy, rel=1e-13)
    dense = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in right] for row in left]
    assert chain.log_z(log_initial, dense, log_obs) == pytest.approx(math.log(14.0), rel=1e-14)
    assert chain.joint_best([0.0, 0.0], [[1.0, 1.0]] * 2, [[1.0, 1.0]] * 2, log_obs) == ((0, 0), (0,), 0.0)
    assert chain.joint_best([0.0], [[1.0]], [[1.0]], [[0.25]]) == ((0,), (), 0.25)
