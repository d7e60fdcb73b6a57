"""Words that rules write as constants, and queries one after another, against enumeration and what strings are."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from rankfold.errors import DomainError, UnsupportedError
from rankfold.fgg import (
    Factored,
    Grammar,
    Query,
    automaton_query,
    conjoin,
    count,
    decompose,
    from_json,
    merge,
    parse,
    rank_space,
    string_query,
    sum_product,
    to_json,
)
from tests.fgg.plain import HMM, example, plain
from tests.oracles import fgg as oracle

BRACKETS = """
observed V = "(" ")" "x"
factor t: V = [1, 1, 1]
S() -> t("(") S() t(")") S() | t("x") S() | 1
"""
ARTICLE = 'domain Z = 2; observed V = "the" "dog" "cat"; S() -> X(n: Z); X(n: Z) -> emit(n, "the") emit(n, w: V)'
LOOP = "domain Z = 2; observed V = 3; S() -> X(z: Z); X(z: Z) -> e(z, w: V) | e(z, w) X(y: Z)"


def total(grammar: Grammar, *queries: Query, sentence: int = 0) -> float:
    for query in queries:
        grammar = conjoin(grammar, query)
    return oracle.total(*plain(grammar, sentence))


def is_balanced(words: tuple[int, ...]) -> bool:
    depth = 0
    for word in words:
        depth += (1, -1, 0)[word]
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize("length", range(6))
def test_a_constant_is_that_word(length: int) -> None:
    g = parse(BRACKETS)
    strings = list(product(range(3), repeat=length))
    found = sum_product(conjoin(g, string_query([list(words) for words in strings])), "real")
    assert found.tolist() == [float(is_balanced(words)) for words in strings]
    # No word is known: as many strings as there are.
    assert count(conjoin(g, string_query([None] * length))) == sum(map(is_balanced, strings))


def test_a_constant_beside_a_word() -> None:
    g = example(ARTICLE)
    emit = g.tensor("emit")
    assert total(g, string_query(["the", "dog"])) == pytest.approx(float(emit[:, 0] @ emit[:, 1]), rel=1e-12)
    assert total(g, string_query(["dog", "the"])) == 0
    assert total(g, string_query(["dog"])) == 0
    batch = string_query([["the", "cat"], [None, "cat"], ["cat", None]])
    expected = float(emit[:, 0] @ emit[:, 2])
    for row, wanted in enumerate((expected, expected, 0.0)):
        assert total(g, batch, sentence=row) == pytest.approx(wanted, rel=1e-12)


def test_an_automaton_reads_constants() -> None:
    g = example(ARTICLE)
    emit = g.tensor("emit")
    wanted = float((emit[:, 0] * emit[:, 1:].sum(1)).sum())
    for first in ("the", ["the", "dog"], None):
        query = automaton_query([(0, 1, first), (1, 2, ["dog", "cat"])], finals=[2])
        assert total(g, query) == pytest.approx(wanted, rel=1e-12)
    assert total(g, automaton_query([(0, 1, ["dog", "cat"]), (1, 2, None)], finals=[2])) == 0


def test_constants_of_other_domains_are_no_words() -> None:
    g = example("domain D = 3; observed V = 3; factor d: D, V; S() -> d(2, w)")
    assert total(g, string_query([1])) == pytest.approx(float(g.tensor("d")[2, 1]), rel=1e-12)
    assert total(g, string_query([2, 1])) == 0


def test_a_word_that_two_edges_name_is_one_word() -> None:
    g = example("observed V = 3; factor f: V; factor h: V; S() -> f(w = 2) h(w)")
    wanted = float(g.tensor("f")[2] * g.tensor("h")[2])
    assert total(g, string_query([2])) == pytest.approx(wanted, rel=1e-12)
    assert total(g, string_query([2, 2])) == 0


def test_constants_of_any_names_are_compared_each_with_its_own_word() -> None:
    names = ["a", *(f"a{k}" for k in range(1, 11))]  # the second nodes of a and a1 would both be a11
    words = [k % 3 for k in range(11)]
    edges = " ".join(f"f({name}: V = {word})" for name, word in zip(names, words, strict=True))
    g = parse(f"observed V = 3; factor f: V = [1, 1, 1]; S() -> {edges}")
    assert total(g, string_query(words)) == 1
    for place in range(11):
        assert (
            total(g, string_query([w + (k == place) if w < 2 else w - (k == place) for k, w in enumerate(words)])) == 0
        )


@pytest.mark.parametrize(
    "right",
    [
        "d(z, x: Z) T(x) e(z, 1) | e(z, w: V)",
        "e(z, 2) d(z, x: Z) T(x) e(z, 0) | e(z, w: V)",
        "e(z, 2) d(z, x: Z) e(x, w: V) | e(z, w: V)",
    ],
)
def test_constants_keep_their_place_in_rank_space(right: str) -> None:
    g = example("domain Z = 3; observed V = 3; factor e: Z, V\nS() -> f(z: Z) T(z)\nT(z: Z) -> " + right)
    generator = torch.Generator().manual_seed(1)
    parts = [torch.rand(3, 2, generator=generator, dtype=torch.float64) for _ in range(2)]
    given = decompose(g, {"d": parts})
    small, some = rank_space(given), 0.0
    for length in (1, 2, 3, 4):
        strings = torch.tensor(list(product(range(3), repeat=length)))
        wanted = sum_product(conjoin(given, string_query(strings)), "real")
        found = sum_product(conjoin(small, string_query(strings)), "real")
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
        some += float((wanted > 0).sum())
    assert some > 3


def test_parts_name_words_in_the_order_of_the_factor() -> None:
    g = example("observed V = 3; domain Z = 2; S() -> f(w: V, v: V, z: Z)")
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.rand(n, 2, generator=generator, dtype=torch.float64) for n in (3, 3, 2))
    given = Factored(((b, (1,)), (c, (2,)), (a, (0,))))
    wanted = total(g.with_factors({"f": given.to_dense()}), string_query([0, 2]))
    assert total(decompose(g, {"f": given}), string_query([0, 2])) == pytest.approx(wanted, rel=1e-12)
    three = example("observed V = 3; domain Z = 2; S() -> f(w: V, z: Z, v: V, u: V)")
    wide = torch.rand(3, 3, 2, generator=generator, dtype=torch.float64)
    fits = Factored(((wide, (0, 2)), (c, (1,)), (a, (3,))))
    assert [edge.nodes[0] for edge in decompose(three, {"f": fits}).rules[0].right.edges] == ["w", "z", "u"]
    with pytest.raises(UnsupportedError, match="'f' would name the symbols of a string in another order"):
        decompose(three, {"f": Factored(((a, (2,)), (wide, (0, 3)), (c, (1,))))})


def test_a_merge_that_moves_a_constant_is_refused() -> None:
    g = example("domain Z = 2; observed V = 3; factor e: Z, V\nS() -> X(z: Z)\nX(z: Z) -> a(z) X(y: Z) e(z, 1) | a(z)")
    with pytest.raises(UnsupportedError, match="would name its symbols in another order"):
        merge(g)


def test_a_sentence_comes_after_all_automata() -> None:
    g = parse(LOOP).with_factors({"e": torch.ones(2, 3, dtype=torch.float64)})
    automaton = automaton_query([(0, 0, [0, 1])], finals=[0])
    for query in (automaton, string_query([2, 0]), string_query([None, None])):
        with pytest.raises(UnsupportedError, match=r"is a word of a sentence already(.|\n)*the sentence last"):
            conjoin(conjoin(g, string_query([2, 0])), query)
    assert total(g, automaton, string_query([2, 0])) == 0
    assert total(g, automaton, string_query([1, 0])) == 4


def test_automata_one_after_another_are_their_intersection() -> None:
    g = example(LOOP)
    one = automaton_query([(0, 1, [0, 1]), (1, 2, [0, 1]), (2, 2, [0, 1])], finals=[2])
    two = automaton_query([(0, 1, [1, 2]), (1, 2, None), (2, 2, [0, 2])], finals=[2])
    some = 0.0
    for words in product(range(3), repeat=3):
        fits = set(words) <= {0, 1} and words[0] in (1, 2) and words[2] in (0, 2)
        wanted = total(g, string_query(list(words))) if fits else 0.0
        some += wanted
        assert total(g, one, two, string_query(list(words))) == pytest.approx(wanted, rel=1e-12)
    assert some > 0
    # Of a batch in which some miss a word, the evidence of the sentence is beside the automaton's.
    batch = string_query([[1, None], [None, 0]])
    for row, strings in enumerate(([(1, 0), (1, 1)], [(0, 0), (1, 0)])):
        wanted = sum(total(g, string_query(list(words))) for words in strings)
        assert total(g, one, batch, sentence=row) == pytest.approx(wanted, rel=1e-12)


def test_a_sentence_that_was_written_as_constants_is_still_read() -> None:
    g = example(HMM)
    again = from_json(to_json(conjoin(g, string_query([2, 0]))))
    for arcs, wanted in [([(0, 0, [0, 2])], 1.0), ([(0, 0, [0, 1])], 0.0)]:
        found = sum_product(conjoin(again, automaton_query(arcs, finals=[0])), "real")
        assert float(found) == pytest.approx(wanted * total(g, string_query([2, 0])), rel=1e-12)


def test_a_string_is_weighed_once_for_each_accepting_path() -> None:
    g = example(HMM)
    weight = total(g, string_query([0, 1]))
    split = [(0, 1, 0), (0, 1, [1, 2]), (1, 2, 1)]  # two arcs between two states, of different words
    assert total(g, automaton_query(split, finals=[2]), string_query([0, 1])) == pytest.approx(weight, rel=1e-12)
    twice = [(0, 1, 0), (0, 2, None), (1, 3, 1), (2, 3, 1)]
    assert total(g, automaton_query(twice, finals=[3]), string_query([0, 1])) == pytest.approx(2 * weight, rel=1e-12)
    never = [(0, 1, 0), (0, 2, []), (1, 3, 1), (2, 3, 1)]
    assert total(g, automaton_query(never, finals=[3]), string_query([0, 1])) == pytest.approx(weight, rel=1e-12)
    assert total(g, automaton_query([(0, 1, [])], finals=[1])) == 0


def test_the_empty_string_alone() -> None:
    g = example("observed V = 2; S() -> h() | f(w: V) S()")
    assert total(g, automaton_query([], finals=[0])) == pytest.approx(float(g.tensor("h")), rel=1e-12)


@pytest.mark.parametrize(
    ("arcs", "initial", "finals", "message"),
    [
        ([(0, 1, None), (0, 1, 2)], 0, [1], "Two arcs from 0 to 1 read the same word, one of them any"),
        ([(0, 1, 2), (0, 1, None)], 0, [1], "Two arcs from 0 to 1 read the same word, one of them any"),
        ([(0, 1, None), (0, 1, None)], 0, [1], "Two arcs from 0 to 1 read the same word, one of them any"),
        ([(0, 1, None)], 0, [7], r"The final state 7 does not exist: arcs name \[0, 1\]"),
        ([(0, 1, None)], 0, [1, -1], "The final state -1 does not exist"),
        ([(1, 2, None)], 0, [2], r"The initial state 0 is at no arc; the arcs name \[1, 2\]"),
        ([(0, 1, None)], -1, [1], "The initial state -1 is at no arc"),
    ],
)
def test_states_that_do_not_exist_and_words_read_twice(
    arcs: list[tuple[int, int, int | None]], initial: int, finals: list[int], message: str
) -> None:
    with pytest.raises(DomainError, match=message):
        automaton_query(arcs, initial=initial, finals=finals)


def test_a_word_by_name_and_by_number_is_one_word() -> None:
    with pytest.raises(DomainError, match="from 0 to 1 read a word twice, by name and by number"):
        conjoin(example(HMM), automaton_query([(0, 1, "a"), (0, 1, 0)], finals=[1]))
