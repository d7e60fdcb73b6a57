"""The values of grammars: what is checked at the door, what factors and domains may be."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.fgg import (
    HRG,
    Domain,
    Edge,
    Factored,
    Fragment,
    Grammar,
    Label,
    Node,
    Rule,
    conjoin,
    parse,
    rank_space,
    string_query,
    sum_product,
    why_not_b_fgg,
)
from tests.fgg.cases import TD_PCFG
from tests.fgg.plain import HMM, PCFG, example

DOMAINS = (Domain("Z", 2), Domain("W", 3))
LABELS = (Label("S", (), False), Label("X", ("Z",), False), Label("f", ("Z", "W"), True))
NODES = (Node("z", "Z"), Node("w", "W"))
GOOD = Rule("x", "X", Fragment(NODES, (Edge("f", ("z", "w")),), ("z",)))


def build(rule: Rule = GOOD, *, labels: tuple[Label, ...] = LABELS, start: str = "S") -> HRG:
    return HRG(DOMAINS, labels, (rule,), start)


def test_a_good_grammar() -> None:
    hrg = build()
    assert hrg.rules_of("X") == (GOOD,)
    assert hrg.rules_of("S") == ()
    assert hrg.terminal_edges(GOOD) == GOOD.right.edges
    assert hrg.nonterminal_edges(GOOD) == ()
    assert hash(hrg) == hash(build())


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (Rule("x", "Q", GOOD.right), DomainError, "no label 'Q', named by rule 'x'"),
        (Rule("x", "f", GOOD.right), DomainError, "left side of rule 'x' is the terminal 'f'"),
        (Rule("x", "X", Fragment(NODES, (Edge("g", ("z",)),), ("z",))), DomainError, "no label 'g', named by rule 'x'"),
        (
            Rule("x", "X", Fragment(NODES, (Edge("f", ("z",)),), ("z",))),
            ShapeError,
            r"'f' attaches to 2 nodes .* has 1",
        ),
        (Rule("x", "X", Fragment(NODES, (Edge("f", ("w", "z")),), ("z",))), DomainError, "'w' .* has domain 'W'.*'Z'"),
        (Rule("x", "X", Fragment(NODES, (Edge("f", ("z", "v")),), ("z",))), DomainError, "no node 'v'"),
        (
            Rule("x", "X", Fragment(NODES, (), ("v",))),
            DomainError,
            "no external node 'v', named by the left side of rule 'x'",
        ),
        (Rule("x", "X", Fragment(NODES, (), ("w",))), DomainError, "External node 'w' .* domain 'W'.*'Z'"),
        (Rule("x", "X", Fragment(NODES, (), ())), ShapeError, "'X' attaches to 1 nodes .* has 0"),
        (Rule("x", "X", Fragment((*NODES, NODES[0]), (), ("z",))), DomainError, "2 of one name: node of rule 'x', 'z'"),
        (Rule("x", "X", Fragment((Node("z", "Q"),), (), ("z",))), DomainError, "no domain 'Q', named by node 'z'"),
        (Rule("x", "X", Fragment((Node("z", "Z", 1),), (), ("z",))), DomainError, "External node 'z' .* is observed"),
        (Rule("x", "S", Fragment((Node("z", "Z", 7),))), DomainError, "observed as 7, .* values 0 to 1"),
        (
            Rule("x", "S", Fragment((Node("z", "Z", 1),), (Edge("X", ("z",)),))),
            DomainError,
            "'X' .* touches an observed",
        ),
    ],
)
def test_a_wrong_rule_is_an_error_naming_it(rule: Rule, error: type[ValueError], message: str) -> None:
    with pytest.raises(error, match=message):
        build(rule)


def test_wrong_structures() -> None:
    with pytest.raises(DomainError, match="start symbol 'X' attaches to 1 nodes"):
        build(start="X")
    with pytest.raises(DomainError, match="start symbol 'f' is a terminal"):
        build(start="f")
    with pytest.raises(DomainError, match=r"no label 'T', named by the start symbol.\n  Known: 'S', 'X', 'f'"):
        build(start="T")
    with pytest.raises(DomainError, match="2 of one name: label 'f'"):
        build(labels=(*LABELS, LABELS[2]))
    with pytest.raises(DomainError, match="no domain 'Q', named by the type of label 'g'"):
        build(labels=(*LABELS, Label("g", ("Q",), True)))
    with pytest.raises(DomainError, match="Nonterminal 'Y' is batched"):
        build(labels=(*LABELS, Label("Y", (), False, is_batched=True)))
    with pytest.raises(DomainError, match="2 of one name: rule 'x'"):
        HRG(DOMAINS, LABELS, (GOOD, GOOD), "S")


@pytest.mark.parametrize(
    ("domain", "error", "message"),
    [
        (Domain("Z", 3), DomainError, "2 of one name: domain 'Z'"),
        (Domain("U", parts=("Z", "Q")), DomainError, "no domain 'Q', named by domain 'U'"),
        (Domain("U", 5, parts=("Z", "W")), ShapeError, "'U' is a union: its size"),
        (Domain("U", parts=("Z", "Z")), DomainError, "'U' repeats a part"),
        (Domain("U", parts=("U",)), DomainError, "'U' is a part of itself"),
        (Domain("U", 0), ShapeError, "size 0, but needs at least one"),
        (Domain("U", 2, values=("a",)), ShapeError, "size 2, but names 1 values"),
        (Domain("U", 2, values=("a", "a")), DomainError, "2 of one name: value of domain 'U', 'a'"),
    ],
)
def test_a_wrong_domain_is_an_error(domain: Domain, error: type[ValueError], message: str) -> None:
    with pytest.raises(error, match=message):
        HRG((*DOMAINS, domain), LABELS, (GOOD,), "S")


def test_unions_number_their_values_part_after_part() -> None:
    domains = (
        Domain("A", 2),
        Domain("B", 3),
        Domain("C", 4),
        Domain("I", parts=("A", "B")),
        Domain("U", parts=("C", "I")),
    )
    hrg = HRG(domains, (Label("S", (), False),), (), "S")
    assert hrg.size("U") == 9
    assert hrg.part("B", "U") == range(6, 9)
    assert hrg.part("U", "B") is None
    assert hrg.contains("U", "B")
    assert not hrg.contains("I", "C")


def test_sizes_come_from_domains_or_factors() -> None:
    g = parse("domain Z; observed V; factor f: Z, V; S() -> f(z, w)")
    with pytest.raises(ShapeError, match="size of domain 'Z' is not known yet"):
        g.size("Z")
    assert g.with_domains({"Z": 4}).size("Z") == 4
    assert g.with_factors({"f": torch.ones(2, 5)}).size("V") == 5
    with pytest.raises(ShapeError, match=r"Factor 'f' has shape \(2, 5\), but its label wants \(Z = 4, V = 5\)"):
        g.with_domains({"Z": 4}).with_factors({"f": torch.ones(2, 5)})
    with pytest.raises(DomainError, match="no domain 'Q'"):
        g.with_domains({"Q": 4})
    with pytest.raises(ShapeError, match="'N\\+P' is a union: give the sizes of its parts N, P"):
        parse(PCFG).with_domains({"N+P": 4})
    with pytest.raises(ShapeError, match=r"'Z' has size 9223372036854775808"):
        g.with_domains({"Z": 2**63})
    with pytest.raises(ShapeError, match=r"Label 'f' has .*4294967296.* values, more than 64 bits count"):
        parse("domain Z = 4294967296\nfactor f: Z, Z\nS() -> f(a, b)")


def test_attaching_factors_leaves_the_grammar_as_it_was() -> None:
    g = parse(HMM)
    one = g.with_factors({"initial": torch.ones(2)})
    two = one.with_factors({"initial": torch.zeros(2), "emit": torch.ones(2, 3)})
    assert not g.factors
    assert list(one.factors) == ["initial"]
    assert float(one.tensor("initial").sum()) == 2
    assert float(two.tensor("initial").sum()) == 0
    with pytest.raises(TypeError):
        one.factors["emit"] = torch.ones(2, 3)  # type: ignore[index]


@pytest.mark.parametrize(
    ("factors", "error", "message"),
    [
        ({"emitt": torch.ones(2, 3)}, DomainError, r"no label 'emitt', named by the factors.\n  Did you mean 'emit'\?"),
        ({"X": torch.ones(2)}, DomainError, "'X' is a nonterminal: its value is computed"),
        ({"emit": torch.ones(3, 2)}, ShapeError, r"'emit' has shape \(3, 2\), .* wants \(Z = 2, V = 3\)"),
        ({"emit": torch.ones(2)}, ShapeError, r"'emit' has shape \(2,\)"),
        ({"emit": torch.ones(2, 3, dtype=torch.int64)}, UnsupportedError, "dtype torch.int64"),
        ({"emit": [[1.0]]}, UnsupportedError, "is a list, but must be a tensor"),
        ({"initial": torch.tensor([-1.0, 1.0])}, DomainError, r"factor 'initial'\[0\] is -1.0"),
        ({"initial": torch.tensor([float("nan"), 1.0])}, DomainError, r"factor 'initial'\[0\] is nan"),
        ({"next": Factored.cpd(torch.ones(2, 4), torch.ones(3, 4))}, ShapeError, r"'next' has shape \(2, 3\)"),
        (
            {"next": Factored.cpd(torch.ones(2, 1), -torch.ones(2, 1))},
            DomainError,
            r"factor 'next', axes \(1,\),\[0,0\]",
        ),
    ],
)
def test_a_wrong_factor_is_an_error(factors: dict[str, torch.Tensor], error: type[ValueError], message: str) -> None:
    with pytest.raises(error, match=message):
        parse(HMM).with_factors(factors)


class Weights(torch.nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        return self.logits.softmax(-1)


def test_modules_give_their_tensor_when_it_is_asked_for() -> None:
    module = Weights(2, 3)
    g = parse(HMM).with_factors({"emit": module})
    torch.testing.assert_close(g.tensor("emit"), torch.full((2, 3), 1 / 3, dtype=torch.float64))
    with torch.no_grad():
        module.logits[0, 0] = 100.0
    assert float(g.tensor("emit").detach()[0, 0]) == pytest.approx(1)
    assert g.dtype == torch.float64
    with pytest.raises(ShapeError, match=r"'emit' has shape \(3, 2\)"):
        parse(HMM).with_factors({"emit": Weights(3, 2)}).tensor("emit")
    with pytest.raises(DomainError, match="'next' has no tensor yet"):
        g.tensor("next")


def test_the_package_has_the_grammars_by_name() -> None:
    command = [sys.executable, "-c", "import rankfold; print(rankfold.fgg.parse.__name__)"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == "parse\n"


def test_batched_factors_lead_with_the_batch() -> None:
    g = parse("domain Z = 2; factor f: Z batched; factor h batched; S() -> f(z) h()")
    g = g.with_factors({"f": torch.ones(3, 2), "h": torch.ones(3)})
    assert g.batch == 3
    for wrong in (torch.ones(2), torch.ones(3, 3)):
        with pytest.raises(ShapeError, match=r"wants \(b, Z = 2\)"):
            g.with_factors({"f": wrong})
    with pytest.raises(ShapeError, match=r"Factor 'h' has shape \(\)"):
        g.with_factors({"h": torch.ones(())})
    with pytest.raises(UnsupportedError, match="'f' is batched, and factored forms have no batch"):
        g.with_factors({"f": Factored(((torch.ones(2, 4), (0,)),))})


def test_observed_tables() -> None:
    g = parse("domain Z = 2; observed V = 3; factor f: Z, V; S() -> f(z, w = V[1])")
    assert g.batch is None
    assert g.with_observed({"V": torch.tensor([[0, 1], [5 % 3, 2]])}).batch == 2
    for wrong, error, message in [
        (torch.tensor([0]), ShapeError, "have 1 positions, but nodes look at 2"),
        (torch.tensor([0, 3]), DomainError, "values from 0 to 3, but domain 'V' has the values 0 to 2"),
        (torch.tensor([0.0, 1.0]), ShapeError, "must be int64"),
    ]:
        with pytest.raises(error, match=message):
            g.with_observed({"V": wrong})
    with pytest.raises(ShapeError, match=r"batches of \[2, 3\] sentences"):
        g.with_observed({"V": torch.zeros(2, 2, dtype=torch.int64), "W": torch.zeros(3, 2, dtype=torch.int64)})


def test_equal_fragments_are_equal_whatever_the_order_of_their_nodes() -> None:
    edges = (Edge("f", ("z", "w")),)
    assert Fragment(NODES, edges, ("z",)) == Fragment(NODES[::-1], edges, ("z",))
    assert Fragment(NODES, edges, ("w",)).nodes == NODES[::-1]


def test_which_grammars_are_b_fggs() -> None:
    assert why_not_b_fgg(parse(HMM)) is None
    assert why_not_b_fgg(parse(PCFG)) is None
    touched = parse("domain Z = 2; S() -> f(z: Z) X(z); X(z: Z) -> f(z) | X(z) f(z)")
    assert why_not_b_fgg(touched) == "the external node 'z' of rule 'X.2' is touched by the nonterminal 'X'"
    two = parse("domain Z = 2; S() -> f(z: Z) X(z, z); X(z: Z, y: Z) -> f(z) f(y)")
    assert why_not_b_fgg(two) == "rule 'X.1' has 2 external nodes (z, y), not one"
    none = parse("domain Z = 2; S() -> f(z: Z) X(); X() -> f(z: Z)")
    assert why_not_b_fgg(none) == "rule 'X.1' has 0 external nodes (none), not one"


def test_of_builds_from_parts() -> None:
    g = example(HMM)
    again = Grammar.of(g.domains, g.labels, g.rules, g.start, g.factors)
    assert again.hrg == g.hrg
    assert again.factors == g.factors


DURATIONS = """
domain Z = 2; domain D = 2; observed V = 3
factor lasts: D = [0.3, 0.7]
S() -> i(z) X(z)
X(z: Z) -> lasts(0) e(z, w: V) | lasts(1) e(z, w) X(z)
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_a_text_take_the_dtype_of_the_others(dtype: torch.dtype) -> None:
    """So training in float32 works at once, whether the query comes before or after the factors."""
    i, e = torch.rand(2, dtype=dtype).requires_grad_(), torch.rand(2, 3, dtype=dtype).requires_grad_()
    query = string_query([[0, None, 1], [2, 1, 0]])
    g = parse(DURATIONS)
    first = conjoin(g.with_factors({"i": i, "e": e}), query)
    second = conjoin(g, query).with_factors({"i": i, "e": e})
    assert first.dtype == second.dtype == first.tensor("lasts").dtype == dtype
    torch.testing.assert_close(sum_product(first), sum_product(second), rtol=0, atol=0)
    sum_product(first).sum().backward()
    assert i.grad is not None
    again = first.with_factors({"i": i.detach().double(), "e": e.detach().double()})
    assert again.tensor("lasts").tolist() == [0.3, 0.7]  # as written, whatever it was in between


def test_to_another_dtype_or_device() -> None:
    g = parse(DURATIONS).with_factors({"i": torch.rand(2), "e": Factored.cpd(torch.rand(2, 1), torch.rand(3, 1))})
    wide = g.to(torch.float64)
    assert {wide.tensor(name).dtype for name in ("lasts", "i", "e")} == {torch.float64}
    assert g.dtype == torch.float32
    asked = conjoin(wide, string_query([0, 1])).to("cpu")
    assert asked.to(torch.float32).dtype == torch.float32
    assert parse(DURATIONS).to(torch.float32).dtype == torch.float32
    ranked = rank_space(example(TD_PCFG)).to(torch.float32)
    assert sum_product(conjoin(ranked, string_query([0, 1])), "real").dtype == torch.float32
    with pytest.raises(UnsupportedError, match=r"'i' is a module(?s:.*)module.to"):
        g.with_factors({"i": nn.Identity()}).to(torch.float64)


def test_batches_of_different_sizes_are_an_error() -> None:
    g = parse("domain Z = 2; observed V = 3\nfactor e: Z, V batched\nfactor i: Z batched\nS() -> i(z) e(z, w)")
    factors = {"e": torch.rand(3, 2, 3), "i": torch.rand(3, 2)}
    with pytest.raises(ShapeError, match=r"Factor 'i' has a batch of 4 .*'e' of 3|Factor 'e' .* 3 .*'i' of 4"):
        g.with_factors({**factors, "i": torch.rand(4, 2)})
    with pytest.raises(ShapeError, match=r"observed 'V' has a batch of 2 sentences, but factor 'e' of 3"):
        conjoin(g.with_factors(factors), string_query([[0], [1]]))

    class Start(nn.Module):
        def forward(self) -> Tensor:
            return torch.rand(4, 2)

    module = conjoin(g.with_factors({**factors, "i": Start()}), string_query([[0], [1], [2]]))
    with pytest.raises(ShapeError, match=r"factor 'i' of 4"):
        sum_product(module)
    one = g.with_factors({"e": torch.rand(1, 2, 3), "i": torch.rand(3, 2)})
    assert sum_product(conjoin(one, string_query([[0], [1], [2]]))).shape == (3,)
    assert sum_product(conjoin(one, string_query([0]))).shape == (3,)


def test_an_empty_batch_and_a_device_that_is_not_here_are_refused() -> None:
    g = parse("domain Z = 2\nfactor a: Z batched\nS() -> a(z)")
    with pytest.raises(ShapeError, match="at least one sentence"):
        g.with_factors({"a": torch.ones(0, 2)})
    with pytest.raises(UnsupportedError, match="torch has not here"):
        g.with_factors({"a": torch.ones(1, 2)}).to("cuda:99")
