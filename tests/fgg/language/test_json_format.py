"""The JSON of the `fggs` package: our own round trip, and that package's sums where it is installed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.fgg import (
    conjoin,
    format_text,
    from_json,
    library,
    library_names,
    parse,
    read,
    string_query,
    sum_product,
    to_json,
)
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
        (
            broken("grammar", "rules", 0, "rhs", "edges", 0, "attachments", value=[7]),
            r"edges\[0\].attachments: there is no node 7",
        ),
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


def test_what_no_rule_uses_is_kept_and_passed_over_by_fggs() -> None:
    fggs = pytest.importorskip("fggs", reason="the fggs package is not installed")
    text = "domain A = 2; domain B = 3; domain Z = 2\nS() -> first(z: A+B)"
    g = parse(text + "\nfactor spare: Z").with_factors({"first": torch.ones(5), "spare": torch.ones(2)})
    found = through_json(to_json(g))
    assert set(found["interpretation"]["unused"]["domains"]) == {"A", "B", "Z"}
    assert set(found["interpretation"]["unused"]["factors"]) == {"spare"}
    assert set(fggs.json_to_fgg(found).factors) == {"first"}
    again = from_json(found)
    assert again.hrg == g.hrg
    assert set(again.factors) == {"first", "spare"}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1, 2], "The whole is a list, expected an object with 'grammar'"),
        (broken("grammar", "order", value=[["Z"]]), r"grammar.order\[0\] is a list"),
        (broken("grammar", "order", value=7), "grammar.order is a int, expected a list"),
        (broken("grammar", "terminals", "emit", value="Z"), "grammar.terminals.emit is a str, expected an object"),
        (broken("grammar", "rules", 0, value=7), r"grammar.rules\[0\] is a int"),
        (broken("grammar", "rules", 0, "name", value=[1]), r"rules\[0\].name is a list, expected a str"),
        (broken("grammar", "rules", 0, "rhs", "nodes", 0, value="z"), r"rhs.nodes\[0\] is a str"),
        (broken("grammar", "rules", 0, "rhs", "edges", 0, "attachments", value=["z"]), "there is no node 'z'"),
        (broken("grammar", "rules", 0, "rhs", "edges", 0, "attachments", value=[True]), "there is no node True"),
        (broken("grammar", "rules", 0, "rhs", "edges", 0, "label", value="is[Q,3]"), "one node of domain 'Q'"),
        (broken("grammar", "rules", 0, "rhs", "edges", 0, "label", value="\ud800"), "half of a surrogate pair"),
        (broken("interpretation", "domains", "Z", value=3), "interpretation.domains.Z is a int, expected an object"),
        (broken("interpretation", "domains", "Z", "values", value=3), "domains.Z.values is a int, expected a list"),
        (broken("interpretation", "domains", "Z", "parts", value=[3]), r"domains.Z.parts\[0\] is a int"),
        (broken("interpretation", "factors", "emit", value=3), "factors.emit is a int, expected an object"),
        (
            broken("interpretation", "factors", "emit", "weights", value=[10**400]),
            "factors.emit.weights: expected nested",
        ),
        (broken("interpretation", "factors", "nobody", value={"weights": 1}), "grammar.terminals has no 'nobody'"),
    ],
)
def test_json_of_another_shape_is_an_error_naming_the_place(found: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_json(found)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.json", b"[" * 100_000, "g.json: no JSON of a grammar"),
        ("g.json", b"1" * 10_000, "g.json: no JSON of a grammar"),
        ("g.json", b'{"grammar": 1, "grammar": 2}', "g.json: the key 'grammar' comes twice"),
        ("g.json", b'{"a":\n "\xe9"}', "g.json: line 2: the byte 0xe9 is not UTF-8"),
        ("g.fgg", b"domain Z = 2\n# caf\xe9\n", "g.fgg: line 2: the byte 0xe9 is not UTF-8"),
        ("g.fgg", b"factor f: Z = " + b"[" * 5000, "g.fgg: line 1, column 17: .*nested too deep for 1 domain"),
        ("g.fgg", b"given V = " + b"[" * 5000, "g.fgg: line 1, column 14: .*nested too deep"),
        ("g.fgg", b"domain Z = " + b"9" * 5000, "g.fgg: line 1, column 12: .*at most 18 digits"),
        ("g.fgg", b"S() -> f(w: V = V[" + b"9" * 5000 + b"])\nobserved V = 2", "g.fgg: line 1.*expected a cell"),
        (
            "g.fgg",
            b"".join(b"domain D%d = D%d\n" % (k, k + 1) for k in range(3000)) + b"domain D3000 = 2\nS() -> 1",
            "g.fgg: line 1, column 8: .*nested more than",
        ),
        (
            "g.fgg",
            b"".join(
                b"domain A%d = A%d + B%d\ndomain B%d = A%d + B%d\n" % (k, k + 1, k + 1, k, k + 1, k + 1)
                for k in range(50)
            )
            + b"domain A50 = 2\ndomain B50 = 2\nS() -> 1",
            "g.fgg: line 1, column 8: .*repeats a part",
        ),
    ],
)
def test_hostile_files_are_errors_naming_file_and_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, DomainError), match=message):
        read(tmp_path / name)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.fgg: no such file; a grammar was expected"):
        read(tmp_path / "nowhere.fgg")
    with pytest.raises(DataError, match=r"is a folder, but a grammar was expected"):
        read(tmp_path)


VALUES: list[Any] = [None, True, 0, -1, 2.5, 1e308, 10**30, "", "Z", "is[V,99]", "\ud800", [], {}, [[1], 2], {"a": 1}]


@pytest.mark.parametrize("seed", range(4))
def test_json_with_anything_anywhere_is_a_grammar_or_our_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = json.dumps(to_json(conjoin(example(HMM), string_query([2, 0]))))

    def places(x: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
        return [above, *(place for key, value in items for place in places(value, (*above, key)))]

    for _ in range(100):
        found = json.loads(whole)
        *above, key = rng.choice([place for place in places(found) if place])
        inner = found
        for step in above:
            inner = inner[step]
        if rng.random() < 0.3:
            del inner[key]
        else:
            inner[key] = rng.choice(VALUES)
        path = tmp_path / "g.json"
        path.write_text(json.dumps(found))
        message = f"{path}: "
        try:
            read(path, prune=True)
        except (DataError, DomainError, ShapeError, UnsupportedError) as error:
            message = str(error)
        assert message.startswith(f"{path}: ")


def test_an_open_start_symbol_is_summed_over() -> None:
    fggs = pytest.importorskip("fggs", reason="the fggs package is not installed")
    closed = example("domain Z = 2\nS() -> X(z, y)\nX(z: Z, y: Z) -> f(z, y) g(y, w: Z) | f(y, z)")
    found = through_json(to_json(closed))
    found["grammar"]["rules"] = [rule for rule in found["grammar"]["rules"] if rule["lhs"] != "S"]
    found["grammar"]["start"] = "X"
    del found["grammar"]["nonterminals"]["S"]
    theirs = fggs.json_to_fgg(through_json(found))
    again = from_json(through_json(fggs.fgg_to_json(theirs)))
    for factor in theirs.factors.values():
        factor.weights = torch.as_tensor(factor.weights, dtype=torch.float64)
    assert again.start == "S"
    assert oracle.total(*plain(again)) == pytest.approx(oracle.total(*plain(closed)), rel=1e-12)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        table = fggs.sum_product(theirs)
    finally:
        torch.set_default_dtype(default)
    assert table.shape == (2, 2)
    torch.testing.assert_close(sum_product(again, "real"), table.sum(), rtol=1e-12, atol=0)
