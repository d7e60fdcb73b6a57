"""The JSON of the `fggs` package: our own round trip, and that package's sums where it is installed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from rankfold.errors import DataError, UnsupportedError
from rankfold.fgg import conjoin, format_text, from_json, library, library_names, parse, string_query, to_json
from tests.fgg.plain import HMM, PCFG, example, plain, random_factors
from tests.oracles import fgg as oracle


def through_json(found: dict[str, Any]) -> dict[str, Any]:
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again


@pytest.mark.parametrize("name", library_names())
def test_structures_survive_a_round_trip(name: str) -> None:
    g = library(name)
    assert from_json(through_json(to_json(g))).hrg == g.hrg
    sized = g.with_domains({d.name: 3 for d in g.domains if d.size is None and not d.parts})
    again = from_json(through_json(to_json(sized)))
    assert again.hrg == sized.hrg
    assert format_text(again) == format_text(sized)


def test_tensors_survive_to_the_last_digit() -> None:
    g = example(HMM)
    again = from_json(through_json(to_json(g)))
    for name in g.factors:
        torch.testing.assert_close(again.tensor(name), g.tensor(name), rtol=0, atol=0)
    assert not from_json(through_json(to_json(g, weights=False))).factors


def test_observed_words_become_constants() -> None:
    g = conjoin(example(PCFG), string_query([2, 0, 1]))
    again = from_json(through_json(to_json(g)))
    values = {node.observed for rule in again.rules for node in rule.right.nodes}
    assert values == {None, 0, 1, 2}
    assert oracle.total(*plain(again)) == pytest.approx(oracle.total(*plain(g)), rel=1e-12)


def test_a_sentence_of_a_batch_is_chosen() -> None:
    g = conjoin(example(HMM), string_query([[0, 1], [2, None]]))
    with pytest.raises(UnsupportedError, match="a batch has no JSON"):
        to_json(g)
    for row in range(2):
        again = from_json(through_json(to_json(g, sentence=row)))
        assert oracle.total(*plain(again)) == pytest.approx(oracle.total(*plain(g, row)), rel=1e-12)


def test_the_ids_of_edges_sort_in_their_order() -> None:
    g = parse("domain Z = 1; factor f: Z; S() -> " + "f(z: Z) " * 12 + "X()\nX() -> f(z: Z)")
    for rule in to_json(g)["grammar"]["rules"]:
        edges = rule["rhs"]["edges"]
        assert sorted(edges, key=lambda edge: str(edge["id"])) == edges
        assert len({edge["id"] for edge in edges}) == len(edges)


def test_fggs_keeps_the_order_of_words() -> None:
    fggs = pytest.importorskip("fggs", reason="the fggs package is not installed")
    g = example("domain Z = 2; observed V = 3; factor e: Z, V\nS() -> " + "".join(f"e(z: Z, w{k}) " for k in range(12)))
    theirs = fggs.json_to_fgg(through_json(to_json(g)))
    again = from_json(through_json(fggs.fgg_to_json(theirs)))
    assert [edge.nodes for edge in again.rules[0].right.edges] == [("z", f"w{k}") for k in range(12)]


def test_values_that_are_not_there_are_an_error() -> None:
    g = parse("observed V = 2; factor f: V; S() -> f(w = V[0])")
    with pytest.raises(UnsupportedError, match="observes 'V', which it has not got"):
        to_json(g)


def broken(*path: Any, value: Any = None) -> dict[str, Any]:
    """The JSON of a grammar with one entry replaced, or removed."""
    found = through_json(to_json(example(HMM)))
    at = found
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (broken("grammar"), "grammar is missing"),
        (broken("interpretation", "domains"), "interpretation.domains is missing"),
        (broken("grammar", "rules", 1, "rhs", "nodes"), r"grammar.rules\[1\].rhs.nodes is missing"),
        (broken("grammar", "rules", 0, "lhs", value=3), r"grammar.rules\[0\].lhs is a int, expected a str"),
        (broken("grammar", "rules", 0, "rhs", "edges", 0, "attachments", value=[7]), r"edges\[0\]: there is no node 7"),
        (broken("grammar", "rules", 1, "rhs", "externals", value=[9]), r"externals: there is no node 9"),
        (broken("interpretation", "domains", "Z", value={"class": "infinite"}), "domains.Z: the class is 'infinite'"),
        (broken("interpretation", "factors", "emit", value={"function": "f"}), "factors.emit: the function is 'f'"),
        (
            broken("interpretation", "factors", "emit", "weights", value=[1, [2]]),
            "factors.emit.weights: expected nested",
        ),
    ],
)
def test_wrong_json_is_an_error_naming_the_key(found: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_json(found)


@pytest.mark.parametrize("name", library_names())
def test_the_fggs_package_agrees(name: str) -> None:
    fggs = pytest.importorskip("fggs", reason="the fggs package is not installed")
    g = library(name)
    sized = g.with_domains({d.name: 2 for d in g.domains if d.size is None and not d.parts})
    conjoined = conjoin(random_factors(sized), string_query([0, 1, 1]))
    theirs = fggs.json_to_fgg(through_json(to_json(conjoined, sentence=0)))
    for factor in theirs.factors.values():  # its reader leaves lists where its sums want tensors
        factor.weights = torch.as_tensor(factor.weights, dtype=torch.float64)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # the package makes its intermediate values in the default dtype
        found = float(fggs.sum_product(theirs))
    finally:
        torch.set_default_dtype(default)
    assert found == pytest.approx(oracle.total(*plain(conjoined)), rel=1e-12)
