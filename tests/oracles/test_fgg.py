"""The enumeration of derivations, checked by hand."""

import pytest

from tests.oracles import fgg as oracle


def rule(nodes, externals, *edges, **observed):
    return {"nodes": nodes, "externals": externals, "edges": list(edges), "observed": observed}


# Two choices for S; the first sums over x and leaves y to A, which has one rule with an inner node and one without.
RULES = {
    "S": [rule({"x": 2, "y": 2}, [], ("f", ["x", "y"]), ("A", ["y"])), rule({}, [])],
    "A": [rule({"y": 2, "z": 2}, ["y"], ("f", ["y", "z"])), rule({"y": 2, "v": 3}, ["y"], ("g", ["y", "v"]), v=2)],
}
FACTORS = {"f": [[1.0, 2.0], [3.0, 0.0]], "g": [[9.0, 9.0, 5.0], [9.0, 9.0, 7.0]]}


def test_sum_best_and_count_by_hand() -> None:
    # y = 0: (1 + 3) (1 + 2 + 5); y = 1: (2 + 0) (3 + 0 + 7); the empty rule is 1.
    assert oracle.total(RULES, FACTORS, "S") == pytest.approx(4 * 8 + 2 * 10 + 1)
    assert oracle.best(RULES, FACTORS, "S") == 3 * 5
    assert oracle.count(RULES, FACTORS, "S") == 2 * 3 + 1 * 2 + 1
    assert oracle.derivations(RULES, "S") == 3


def test_a_nonterminal_without_rules_has_no_derivation() -> None:
    rules = {"S": [rule({"x": 2}, [], ("A", ["x"]))], "A": []}
    assert oracle.total(rules, {}, "S") == 0
    assert oracle.best(rules, {}, "S") == 0
    assert oracle.derivations(rules, "S") == 0


def test_a_repeated_node_is_a_diagonal() -> None:
    rules = {"S": [rule({"x": 2}, [], ("f", ["x", "x"]))]}
    assert oracle.total(rules, FACTORS, "S") == 1.0


def test_trees_of_a_recursive_grammar_are_a_geometric_series():
    rule = {"nodes": {}, "externals": []}
    rules = {"S": [{**rule, "edges": [("stop", [])]}, {**rule, "edges": [("go", []), ("S", [])]}]}
    found = list(oracle.trees(rules, {"stop": 0.5, "go": 0.25}, "S", 3))
    assert sorted(weight for weight, _ in found) == [0.03125, 0.125, 0.5]
    assert [len(uses) for _, uses in found] == [1, 2, 3]
