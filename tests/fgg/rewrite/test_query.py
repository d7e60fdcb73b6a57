"""Queries: sentences, batches, missing words, brackets and automata, against enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.fgg import Grammar, Query, automaton_query, conjoin, parse, string_query
from tests.fgg.plain import HMM, PCFG, example, plain
from tests.oracles import fgg as oracle


def total(grammar: Grammar, query: Query, sentence: int = 0) -> float:
    return oracle.total(*plain(conjoin(grammar, query), sentence))


def test_a_sentence_of_an_hmm_is_the_sum_over_paths() -> None:
    g = example(HMM)
    initial, emit, step = g.tensor("initial"), g.tensor("emit"), g.tensor("next")
    expected = (initial * emit[:, 2]) @ step * emit[:, 0] @ step @ emit[:, 1]
    assert total(g, string_query([2, 0, 1])) == pytest.approx(float(expected), rel=1e-12)
    assert total(g, string_query(["c", "a", "b"])) == pytest.approx(float(expected), rel=1e-12)
    assert total(g, string_query(torch.tensor([2, 0, 1]))) == pytest.approx(float(expected), rel=1e-12)


def test_a_pcfg_has_catalan_many_derivations() -> None:
    for length, catalan in ((2, 1), (3, 2), (4, 5), (5, 14)):
        conjoined = conjoin(example(PCFG), string_query([0] * length))
        rules, _, start = plain(conjoined)
        assert oracle.derivations(rules, start) == catalan


def test_a_sentence_nobody_derives_sums_to_zero() -> None:
    conjoined = conjoin(example(PCFG), string_query([0]))
    assert conjoined.rules == ()
    assert oracle.total(*plain(conjoined)) == 0


def test_the_empty_sentence() -> None:
    g = example("domain Z = 2; observed V = 2; S() -> f(z: Z) X(z); X(z: Z) -> g(z, w: V) X(z) | h(z)")
    expected = float(g.tensor("f") @ g.tensor("h"))
    for words in ([], torch.zeros(0, dtype=torch.int64), [[], []], torch.zeros(2, 0, dtype=torch.int64)):
        assert total(g, string_query(words)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("text", [HMM, PCFG])
def test_missing_words_sum_over_all(text: str) -> None:
    g = example(text)
    expected = sum(total(g, string_query([0, word, 1])) for word in range(3))
    assert total(g, string_query([0, None, 1])) == pytest.approx(expected, rel=1e-12)
    assert total(g, string_query(torch.tensor([0, -1, 1]))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("text", [HMM, PCFG])
def test_a_batch_is_its_sentences(text: str) -> None:
    g = example(text)
    sentences = [[0, 1, 2], [2, None, 0], [None, None, 1]]
    query = string_query(sentences)
    assert conjoin(g, query).batch == 3
    for row, sentence in enumerate(sentences):
        assert total(g, query, row) == pytest.approx(total(g, string_query(sentence)), rel=1e-12)
    ids = torch.tensor([[0, 1, 2], [2, -1, 0], [-1, -1, 1]])
    for row in range(3):
        assert total(g, string_query(ids), row) == pytest.approx(total(g, query, row), rel=1e-12)


def test_sentences_of_a_length_share_their_structure() -> None:
    g = example(PCFG)
    one, two = conjoin(g, string_query([0, 1, 2])), conjoin(g, string_query([[2, 2, 2], [0, 0, 0]]))
    assert one.hrg is two.hrg
    assert one.factors["rule"] is g.factors["rule"]


def test_labels_and_rules_know_where_they_come_from() -> None:
    conjoined = conjoin(example(PCFG), string_query([0, 1, 2]))
    label = conjoined.label("Y[1,3]")
    assert (label.origin, label.span, label.type) == ("Y", (1, 3), ("N+P",))
    assert {rule.template for rule in conjoined.rules} == {"S.1", "X.1", "Y.1", "Y.2"}
    assert conjoined.start == "S[0,3]"


def test_brackets_split_the_trees() -> None:
    g = example(PCFG)
    whole = total(g, string_query([0, 1, 2]))
    left = total(g, string_query([0, 1, 2], brackets=[(0, 2)]))
    right = total(g, string_query([0, 1, 2], brackets=[(1, 3)]))
    assert left + right == pytest.approx(whole, rel=1e-12)
    assert total(g, string_query([0, 1, 2], brackets=[(0, 2), (1, 3)])) == 0
    assert total(g, string_query([0, 1, 2], brackets=[(0, 3), (1, 2)])) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    ("brackets", "trees"),
    [([(0, 2)], 2), ([(1, 3)], 2), ([(0, 3)], 2), ([(0, 2), (2, 4)], 1), ([(0, 3), (1, 3)], 1), ([(0, 3), (2, 4)], 0)],
)
def test_as_many_trees_as_have_the_bracket(brackets: list[tuple[int, int]], trees: int) -> None:
    rules, _, start = plain(conjoin(example(PCFG), string_query([0] * 4, brackets=brackets)))
    assert oracle.derivations(rules, start) == trees


FLAT = """
domain Z = 1; observed V = 1
S() -> X()
X() -> X() X() | X() X() X() | W()
W() -> f(w: V)
"""


def count(brackets: list[tuple[int, int] | tuple[int, int, str]]) -> int:
    rules, _, start = plain(conjoin(example(FLAT), string_query([0, 0, 0], brackets=brackets)))
    return oracle.derivations(rules, start)


def test_a_bracket_must_be_there_not_only_uncrossed() -> None:
    assert count([]) == 3
    assert count([(0, 2)]) == 1
    assert count([(0, 1)]) == 3
    assert count([(0, 2, "X")]) == 1
    assert count([(0, 2, "W")]) == 0
    assert count([(1, 2, "W"), (1, 2, "X")]) == 3


def test_a_word_alone_is_no_labelled_bracket() -> None:
    g = example("observed V = 1; S() -> X(); X() -> f(w: V) X() | f(w)")
    for bracket, number in [((0, 1), 1), ((0, 1, "X"), 0), ((1, 2, "X"), 1)]:
        rules, _, start = plain(conjoin(g, string_query([0, 0], brackets=[bracket])))
        assert oracle.derivations(rules, start) == number


def test_an_automaton_keeps_the_strings_it_accepts() -> None:
    g = example(HMM)
    # a, then b or c, then anything, of length 3 only.
    query = automaton_query([(0, 1, "a"), (1, 2, ["b", "c"]), (2, 3, None)], finals=[3])
    expected = sum(total(g, string_query([0, x, y])) for x in (1, 2) for y in range(3))
    assert total(g, query) == pytest.approx(expected, rel=1e-12)


def test_an_automaton_with_branches_and_two_ends() -> None:
    g = example(PCFG)
    # Strings of two words that begin with 0, and of three words that end with 1 after something other than 0.
    query = automaton_query([(0, 1, 0), (1, 4, None), (0, 2, [1, 2]), (2, 3, None), (3, 5, 1)], finals=[4, 5])
    expected = sum(total(g, string_query([0, x])) for x in range(3))
    expected += sum(total(g, string_query([x, y, 1])) for x, y in itertools.product((1, 2), range(3)))
    assert total(g, query) == pytest.approx(expected, rel=1e-12)


def test_an_automaton_with_a_loop_makes_a_recursive_grammar() -> None:
    g = example(HMM)
    conjoined = conjoin(g, automaton_query([(0, 0, "a"), (0, 1, "b")], finals=[1]))
    assert {rule.left for rule in conjoined.rules} == {"S[0,1]", "X[0,1]"}
    assert "X[0,1]" in {edge.label for rule in conjoined.rules_of("X[0,1]") for edge in rule.right.edges}


def test_arcs_that_go_back_are_followed_until_nothing_is_new() -> None:
    conjoined = conjoin(example(HMM), automaton_query([(0, 1, "a"), (1, 0, "b"), (0, 2, "c")], finals=[2]))
    assert {rule.left for rule in conjoined.rules} == {"S[0,2]", "X[0,2]", "X[1,2]"}


def test_a_start_symbol_of_several_ends_is_its_own() -> None:
    g = example('observed V = "a" "b" "c"; S() -> f(w: V) S() | f(w)')
    conjoined = conjoin(g, automaton_query([(0, 0, "a"), (0, 1, "b"), (0, 2, "c")], finals=[1, 2]))
    assert conjoined.start == "S[0,*]"
    assert conjoined.start not in {edge.label for rule in conjoined.rules for edge in rule.right.edges}
    assert sorted(rule.left for rule in conjoined.rules) == ["S[0,*]"] * 4 + ["S[0,1]"] * 2 + ["S[0,2]"] * 2


def test_words_come_in_the_order_the_edges_name_them() -> None:
    g = example(
        "domain Z = 2; observed V = 3; S() -> X(z: Z); X(z: Z) -> X(y: Z) step(y, z) emit(z, w: V) | emit(z, w)"
    )
    step, emit = g.tensor("step"), g.tensor("emit")
    expected = ((emit[:, 2] @ step) * emit[:, 0]).sum()
    assert total(g, string_query([2, 0])) == pytest.approx(float(expected), rel=1e-12)


def test_two_strings_are_asked_for_one_after_the_other() -> None:
    g = example("observed A = 2; observed B = 3; S() -> X(); X() -> f(a: A, b: B) X() | g(a: A) X() | 1")
    both = conjoin(conjoin(g, string_query([0, 1], domain="A")), string_query([2], domain="B"))
    f, h = g.tensor("f"), g.tensor("g")
    assert oracle.total(*plain(both)) == pytest.approx(float(f[0, 2] * h[1] + h[0] * f[1, 2]), rel=1e-12)


def test_wrong_queries_are_errors() -> None:
    g = example(HMM)
    for query, error, message in [
        (lambda: string_query("a b"), ShapeError, "one string, 'a b'; a sentence is a list"),
        (lambda: string_query([[0, 1], [0]], lengths=[2, 1]), ShapeError, "lists have the lengths they have"),
        (lambda: string_query(torch.tensor([[0, 1]]), lengths=[3]), ShapeError, "Sentence 0 has length 3, but its row"),
        (lambda: string_query(torch.tensor([[0, 1]]), lengths=[1, 1]), ShapeError, "one whole number for each row"),
        (
            lambda: string_query([[0, 1, 2], [0]], brackets=[(0, 2)]),
            DomainError,
            "not a span of sentence 1, which has 1",
        ),
        (lambda: conjoin(g, string_query([["a"], ["a", "q"]])), DomainError, "Sentence 1: Domain 'V' has no value 'q'"),
        (lambda: string_query(torch.tensor([0.0])), ShapeError, "ids are int64"),
        (lambda: string_query([0, 1], brackets=[(1, 3)]), DomainError, r"Bracket \(1, 3\) is not a span of 2 words"),
        (lambda: automaton_query([(0, 1, 0)], finals=[]), DomainError, "no final state"),
        (lambda: automaton_query([(0, -1, 0)], finals=[0]), DomainError, "negative state"),
        (
            lambda: automaton_query([(0, 1, 0), (0, 1, [0, 1])], finals=[1]),
            DomainError,
            "Two arcs from 0 to 1 read '0'",
        ),
    ]:
        with pytest.raises(error, match=message):
            query()
    for query, message in [
        (string_query(["d"]), r"'V' has no value 'd'"),
        (string_query([3]), "values from 3 to 3, but domain 'V' has the values 0 to 2"),
        (string_query([-1]), "Word -1 is no id"),
        (string_query([2**63]), "is no id: ids are whole numbers from 0, in 64 bits"),
        (string_query([[7], [None]]), r"Position 0 holds \[7, -1\], but domain 'V'"),
        (string_query(torch.tensor([[0, -2], [-1, 0]])), "values from -2 to 0"),
        (string_query(torch.tensor([[-2], [-1]])), r"Position 0 holds \[-2, -1\]"),
        (string_query([0], domain="Z"), "no observed domain 'Z'"),
        (string_query([0, 0], brackets=[(0, 1, "Q")]), "names 'Q', which is not a nonterminal"),
        (automaton_query([(0, 1, [7])], finals=[1]), "An arc reads 7"),
    ]:
        with pytest.raises(DomainError, match=message):
            conjoin(g, query)
    with pytest.raises(DomainError, match="'V' does not name its values, so 'a' is unknown"):
        conjoin(example(PCFG), string_query(["a", "a"]))
    with pytest.raises(DomainError, match="has 0 observed domains"):
        conjoin(parse("domain Z = 2; S() -> f(z: Z)"), string_query([0]))
    shared = parse("observed V = 2; S() -> f(w: V) X(w); X(w: V) -> f(w)")
    with pytest.raises(
        UnsupportedError, match=r"Node 'w' of rule 'S.1' has the observed domain 'V', but rules share it"
    ):
        conjoin(shared, string_query([0]))
