"""Grammars as text: what is read, what is written, and where errors point."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.fgg import Grammar, Node, format_text, library_names, library_text, parse, read, write
from tests.fgg.plain import HMM, PCFG, example


def test_a_text_becomes_rules_nodes_and_types() -> None:
    g = parse(HMM)
    assert g.start == "S"
    assert [(label.name, label.type, label.is_terminal) for label in g.labels] == [
        ("S", (), False),
        ("X", ("Z",), False),
        ("initial", ("Z",), True),
        ("emit", ("Z", "V"), True),
        ("next", ("Z", "Z"), True),
    ]
    first = g.rules_of("X")[0]
    assert first.right.externals == ("z",)
    assert first.right.nodes == (Node("z", "Z"), Node("w", "V"), Node("y", "Z"))
    assert [(edge.label, edge.nodes) for edge in first.right.edges] == [
        ("emit", ("z", "w")),
        ("next", ("z", "y")),
        ("X", ("y",)),
    ]
    assert [rule.name for rule in g.rules] == ["S.1", "X.1", "X.2"]
    assert g.domain("V").values == ("a", "b", "c")
    assert g.domain("V").is_observed


def test_a_node_of_a_union_is_tied_to_its_part() -> None:
    g = parse(PCFG)
    through, leaf = g.rules_of("Y")
    assert through.right.edges[0].label == "in[N,N+P]"
    assert [node.domain for node in through.right.nodes] == ["N+P", "N"]
    assert leaf.right.edges[0].label == "in[P,N+P]"
    expected = torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 1]])
    torch.testing.assert_close(g.tensor("in[P,N+P]"), expected, rtol=0, atol=0)
    assert g.size("N+P") == 4


def test_the_other_way_round_too() -> None:
    g = parse("domain N = 1; domain P = 2; factor f: N+P; S() -> f(n: N)")
    assert [edge.label for edge in g.rules[0].right.edges] == ["in[N,N+P]", "f"]
    assert g.rules[0].right.edges[0].nodes == ("n", "n1")


def test_a_node_between_a_union_and_a_part_is_of_the_union() -> None:
    g = parse("domain N = 1; domain P = 2; factor f: N+P; S() -> X(n) f(n); X(n: N) -> g(n)")
    assert [node.domain for node in g.rules_of("S")[0].right.nodes] == ["N", "N+P"]
    assert g.rules_of("S")[0].right.edges[-1].nodes == ("n",)


def test_constants_by_number_and_by_name() -> None:
    text = 'domain Z = 2; observed V = "a" "b"; factor f: Z, V\nS() -> f(1, "b") f(z, w = 0) f(z, "a") f(z, u = V[3])'
    nodes = {node.name: node.observed for node in parse(text).rules[0].right.nodes}
    assert nodes == {"c1": 1, "c2": 1, "z": None, "w": 0, "c3": 0, "u": ("V", 3)}


def test_a_constant_does_not_take_a_name_that_comes_later() -> None:
    g = parse("domain Z = 2; factor f: Z, Z; S() -> f(1, c1)")
    assert [(node.name, node.observed) for node in g.rules[0].right.nodes] == [("c2", 1), ("c1", None)]


def test_layout_comments_and_names() -> None:
    g = parse(
        """
        # a comment
        domain Z = 2; observed V     # sizes may come later
        start Top
        symbol x: Z
        X'(z: Z) -> one(z,       # lines within parentheses are joined
                        w: V)
          | 1
        go: Top() -> `odd name`(z) X'(z) x(z)
        x(z) ->
        """
    )
    assert g.start == "Top"
    assert [rule.name for rule in g.rules] == ["X'.1", "X'.2", "go", "x.1"]
    assert g.rules[1].right.edges == ()
    assert g.rules[3].right.edges == ()
    assert g.label("odd name").type == ("Z",)
    assert g.domain("V").size is None


def test_written_weights_are_a_factor() -> None:
    g = parse("domain Z = 2; factor f: Z, Z = [[1, 0.5], [0, 2e-3]]; factor half = 0.5; S() -> f(x, y) half()")
    torch.testing.assert_close(g.tensor("f"), torch.tensor([[1, 0.5], [0, 2e-3]], dtype=torch.float64), rtol=0, atol=0)
    assert float(g.tensor("half")) == 0.5


NAMED = "domain Z = 2; start T; X(z: Z) -> f(z); go: T() -> f(z: Z = 1) X(y: Z)"


@pytest.mark.parametrize("text", [PCFG, HMM, NAMED, *map(library_text, library_names())])
def test_text_round_trip(text: str) -> None:
    g = parse(text)
    again = parse(format_text(g))
    assert again.hrg == g.hrg
    assert format_text(again) == format_text(g)


def test_weights_survive_a_round_trip_to_the_last_digit() -> None:
    g = example(HMM)
    again = parse(format_text(g, weights=True))
    for name in g.factors:
        torch.testing.assert_close(again.tensor(name), g.tensor(name), rtol=0, atol=0)


def test_files(tmp_path: Path) -> None:
    g = example(PCFG)
    for name in ("g.fgg", "g.json"):
        write(g, tmp_path / name)
        assert read(tmp_path / name).hrg == g.hrg
    assert not read(tmp_path / "g.fgg").factors
    torch.testing.assert_close(read(tmp_path / "g.json").tensor("rule"), g.tensor("rule"), rtol=0, atol=0)
    with pytest.raises(DataError, match=r"g\.fgg exists; it is left as it is"):
        write(g, tmp_path / "g.fgg", weights=True)
    assert not read(tmp_path / "g.fgg").factors
    write(g, tmp_path / "weights.fgg", weights=True)
    torch.testing.assert_close(read(tmp_path / "weights.fgg").tensor("rule"), g.tensor("rule"), rtol=0, atol=0)


def test_errors_of_files_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "g.fgg").write_text("S( -> f()")
    with pytest.raises(DataError, match=r"g\.fgg: line 1, column 4: expected a node"):
        read(tmp_path / "g.fgg")
    (tmp_path / "g.json").write_text("{\n 1}")
    with pytest.raises(DataError, match=r"g\.json: line 2, column 2"):
        read(tmp_path / "g.json")


Z = "domain Z = 2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("S() => f()", r"line 1, column 6: expected a name, a number.* found '>'"),
        ("S() f()", r"line 1, column 5: expected ->, found 'f'"),
        ("S() -> f() )", r"line 1, column 12: expected a label, \| or the end of the line, found '\)'"),
        ("S -> f()", r"line 1, column 3: expected \( after S, found '->'"),
        ("S() -> f(z", r"line 1, column 11: expected , or \), found end of line"),
        (Z + "S() -> f(z: Z y)", r"line 2, column 15: expected , or \)"),
        ("domain Z = 0", r"line 1, column 12: expected a size, a whole number of at least 1, found 0"),
        ("domain Z = 2.5", r"column 12: expected a size, a whole number"),
        ("domain Z = 2 3", r"column 14: expected ; or the end of the line, found '3'"),
        ("domain Z = ", r"column 12: expected a size, values in quotes, or domains joined by \+, found end of line"),
        ("start S\nstart T", r"line 2, column 7: expected one start symbol, but 'S'"),
        (Z + "S() -> f(z: W)", r"line 2, column 13: there is no domain 'W'.*'Z'"),
        (Z + "S() -> f(z: Z+W)", r"line 2, column 13: there is no domain 'W'"),
        ("domain N = M", r"line 1, column 12: there is no domain 'M'"),
        (Z + Z, r"line 2, column 8: domain 'Z' is declared twice"),
        (Z + "factor f: Z\nfactor f: Z", r"line 3, column 8: label 'f' is declared twice"),
        ("S() -> f(z)", r"line 1, column 10: the domain of 'z' is not known"),
        (Z + "S() -> f(z: Z) f(z, z)", r"line 2, column 16: 'f' attaches to 1 nodes \(line 2\), found 2"),
        (Z + "S() -> f(z: Z) Xs(z)\nX(z: Z) -> f(z)", r"line 2, column 16: .*nonterminal 'Xs'. Did you mean 'X'\?"),
        (Z + "f(z: Z) -> g(z)", r"line 2, column 1: expected a nonterminal on the left side, found 'f'"),
        (Z + "factor F: Z\nF(z: Z) -> g(z)", r"line 3, column 1: expected a nonterminal .* 'F' is a factor"),
        (Z + "X(z: Z) -> f(z)\nX(z, y) -> f(z)", r"line 3, column 1: 'X' attaches to 1 nodes \(line 2\), found 2"),
        (Z + "X(z: Z, z) -> f(z)", r"line 2, column 1: expected distinct nodes"),
        (Z + "X(z: Z = 1) -> f(z)", r"line 2, column 3: .*not observed"),
        (Z + "domain W = 2\nX(z: Z) -> f(z)\nX(z: W) -> f(z)", r"line 4, column 6: 'X' has domain 'Z'.*found 'W'"),
        (Z + "domain W = 2\nS() -> f(z: Z, z: W)", r"line 3, column 16: node 'z' has domain 'Z' before, found 'W'"),
        (Z + "domain W = 2\nfactor f: W\nS() -> f(z: Z)", r"line 4, column 10: .*'Z', but 'f' wants 'W'; no union"),
        (Z + 'S() -> f(z: Z, y: Z = "a")', r"line 2, column 16: domain 'Z' has no value 'a'"),
        (Z + "S() -> f(z: Z = 0, z = 1)", r"line 2, column 20: node 'z' is observed twice"),
        (Z + "S() -> f(z: Z = words)", r"line 2, column 17: expected a cell such as words\[3\]"),
        (Z + "factor f: Z = [1, [2]]\nS() -> f(z)", r"line 2, column 8: the rows of factor 'f'"),
        (Z + "a: X() -> 1 | 1", r"line 2, column 13: expected one right side"),
        (Z + "start T\nS() -> f(z: Z)", r"line 2, column 7: there is no label 'T'"),
        (Z, r"line 2, column 1: the text has no rule"),
        ("", r"line 1, column 1: the text has no rule"),
        (Z + "S() -> f(z: Z, 5)\nS() -> f(z, y: Z)", r"line 2, column 16: domain 'Z' has the values 0 to 1, found 5"),
        (Z + "S() -> f(z: Z = 5)", r"line 2, column 10: domain 'Z' has the values 0 to 1, found 5"),
        (
            Z + "domain Y = 3\nS() -> f(z: Z+Y = 4, y: Z+Y = 5)",
            r"line 3, column 22: domain 'Z\+Y' has the values 0 to 4, found 5",
        ),
        (Z + "S() -> f(z: Z+Z)", r"line 2, column 13: the union 'Z\+Z' repeats a part"),
        (Z + "domain M = Z + Z\nS() -> f(z: M)", r"line 2, column 12: domain 'Z' is repeated"),
        ("domain M = N\ndomain N = K\ndomain K = N", r"line 2, column 12: domain 'N' would be a part of itself"),
        ('observed V = "a" "b" "a"', r"line 1, column 22: expected distinct values, found \"a\" again"),
        ('observed V = "a\nS() -> f(w: V)', r"line 1, column 14: expected a closing \" before the end of the line"),
        (Z + "S() -> `f(z: Z)", r"line 2, column 8: expected a closing ` before the end of the line"),
        ('observed V = "\\q"', r"line 1, column 14: .* an escape that JSON does not know"),
        (Z + "X(z: Z) -> f(z)", r"line 2, column 1: the start symbol 'X' attaches to 1 nodes"),
        (Z + "start f\nS() -> f(z: Z)", r"line 2, column 7: the start symbol 'f' is a factor"),
        (Z + "a: S() -> f(z: Z)\na: S() -> f(z: Z)", r"line 3, column 1: there is a rule 'a' before"),
        (Z + "X(z: Z) -> f(z)\nS() -> X(1)", r"line 3, column 10: the nonterminal 'X' touches a value; only factors"),
        (Z + "symbol X: Z batched", r"line 2, column 13: expected no `batched`"),
        ("given V = [1, x]", r"line 1, column 15: expected a number or \[, found 'x'"),
        ("given V = [0, -1]", r"line 1, column 15: expected a value, a whole number of at least 0, found -1"),
        (Z + "given V = [[1], [0, 1]]\nS() -> f(z: Z)", r"line 2, column 7: the rows of 'V' are not equally long"),
        (Z + "given V = [1]\ngiven V = [1]\nS() -> f(z: Z)", r"line 3, column 7: the observed 'V' are given twice"),
    ],
)
def test_a_wrong_text_is_an_error_with_its_place(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse(text)


def test_wrong_structure_and_numbers_in_texts() -> None:
    with pytest.raises(
        ShapeError, match=r"line 2, column 8: factor 'f' is written with shape \(2, 2\), but attaches to 1"
    ):
        parse(Z + "factor f: Z = [[1, 2], [3, 4]]\nS() -> f(z)")
    with pytest.raises(
        ShapeError, match=r"line 2, column 8: Factor 'f' has shape \(3,\), but its label wants \(Z = 2\)"
    ):
        parse(Z + "factor f: Z = [1, 2, 3]\nS() -> f(z)")
    with pytest.raises(DomainError, match=r"line 2, column 8: factor 'f'\[1\] is -1.0"):
        parse(Z + "factor f: Z = [0, -1]\nS() -> f(z)")
    with pytest.raises(DomainError, match=r"line 2, column 7: The observed 'V' hold values from 2 to 2"):
        parse(Z + "given V = [2]\nS() -> f(z: Z = V[0])")
    with pytest.raises(DataError, match=r"The text is a int, expected a str(.|\n)*read\(path\)"):
        parse(3)  # type: ignore[arg-type]


def test_what_takes_part_in_no_derivation_is_warned_of_or_pruned() -> None:
    text = Z + "S() -> f(z: Z) X(z)\nS() -> f(z)\nX(z: Z) -> f(z) X(z)\nY(z: Z) -> g(z)"
    with pytest.warns(UserWarning, match=r"'X' derives nothing|'Y' is never reached") as caught:
        g = parse(text)
    assert len(caught) == 2
    assert len(g.rules) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = parse(text, prune=True)
    assert [rule.name for rule in small.rules] == ["S.2"]
    assert [label.name for label in small.labels] == ["S", "f"]
    with pytest.raises(DomainError, match="'S' derives nothing"):
        parse(Z + "S() -> X()\nX() -> S()", prune=True)


def test_texts_hold_tensors_only_and_no_lonely_nodes() -> None:
    g = parse(Z + "S() -> f(z: Z)").with_factors({"f": torch.nn.Softmax(0)})
    with pytest.raises(UnsupportedError, match="'f' is a Softmax, and texts hold tensors only"):
        format_text(g, weights=True)
    lonely = Grammar(
        g.hrg.__class__(
            g.domains,
            g.labels,
            (g.rules[0].__class__("S.1", "S", g.rules[0].right.__class__((Node("z", "Z"),))),),
            "S",
        )
    )
    with pytest.raises(UnsupportedError, match=r"'z' of rule 'S.1' touches no edge"):
        format_text(lonely)
