"""Sentences of unequal lengths in one call: sums, gradients and all other answers are those of each by itself."""

from __future__ import annotations

import math

import pytest
import torch

from rankfold import fgg
from rankfold.fgg.inference.schedule import schedule
from rankfold.fgg.rewrite.spans import SpanHRG
from tests.fgg.cases import TD_PCFG, TEXTS
from tests.fgg.plain import example, plain
from tests.oracles import fgg as oracle

SENTENCES = [[0, 1, 1], [1], [], [1, 0], [0, 0, 1, 1], [1, 1, 0]]
FEW = [[0, 1, 1], [1], [], [1, 0]]  # to be enumerated


def leaves_of(g: fgg.Grammar) -> tuple[fgg.Grammar, list[torch.Tensor]]:
    leaves = {name: x.clone().requires_grad_() for name, x in g.factors.items() if isinstance(x, torch.Tensor)}
    return g.with_factors(leaves), list(leaves.values())


@pytest.mark.parametrize("name", [*TEXTS, "ranks"])
def test_sums_and_gradients_are_those_of_each_sentence(name: str) -> None:
    g, leaves = leaves_of(example(TEXTS.get(name, TD_PCFG)))
    asked = fgg.conjoin(g, fgg.string_query(SENTENCES))
    found = fgg.sum_product(asked)
    alone = [fgg.sum_product(fgg.conjoin(g, fgg.string_query(words))) for words in SENTENCES]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-12, atol=0)
    weights = torch.arange(1.0, len(SENTENCES) + 1, dtype=torch.float64)
    grads = [
        torch.autograd.grad((torch.where(x > -math.inf, x, 0.0) * weights).sum(), leaves, materialize_grads=True)
        for x in (found, torch.stack(alone))
    ]
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("is_written_out", [False, True])
def test_sums_are_those_of_enumeration(name: str, is_written_out: bool) -> None:
    g = fgg.conjoin(example(TEXTS[name]), fgg.string_query(FEW))
    assert isinstance(g.hrg, SpanHRG) == (name in ("hmm", "pcfg", "two heads"))
    found = g.plain() if is_written_out else g
    total, count, best = (fgg.sum_product(found, semiring) for semiring in ("real", "counting", "max"))
    for k in range(len(FEW)):
        rules, factors, start = plain(g, k)
        weights = list(oracle.scores(rules, factors, start))
        assert float(total[k]) == pytest.approx(sum(weights), rel=1e-10)
        assert int(count[k]) == sum(weight > 0 for weight in weights)
        assert float(best[k].exp()) == pytest.approx(max(weights, default=0.0), rel=1e-10)


def test_a_start_symbol_of_two_parts() -> None:
    """Sentences of different lengths have different numbers of places to part them at."""
    g = example(
        "observed V = 2\nS() -> A() B() | B() A() | t(w: V)\nA() -> t(w) A() | t(w)\nB() -> u(w: V) B() | u(w: V)"
    )
    read = fgg.conjoin(g, fgg.string_query([[0, 1], [1], [1, 0, 0, 1], [0, 1, 1]]))
    found = fgg.sum_product(read, "real")
    truth = [oracle.total(*plain(read, k)) for k in range(4)]
    assert found.tolist() == pytest.approx(truth, rel=1e-12)


def test_rows_of_a_tensor_are_read_up_to_their_lengths() -> None:
    g = example(TEXTS["pcfg"])
    words = torch.tensor([[0, 1, 2, -7], [2, 2, 99, 99]])
    found = fgg.sum_product(fgg.conjoin(g, fgg.string_query(words, lengths=[3, 2])))
    alone = [fgg.sum_product(fgg.conjoin(g, fgg.string_query(own))) for own in ([0, 1, 2], [2, 2])]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-12, atol=0)


def test_missing_words_of_unequal_lengths() -> None:
    g = example(TEXTS["hmm"])
    sentences = [[0, None, 2], [None, 1], [1]]
    found = fgg.sum_product(fgg.conjoin(g, fgg.string_query(sentences)))
    alone = [fgg.sum_product(fgg.conjoin(g, fgg.string_query(own))) for own in sentences]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-12, atol=0)


@pytest.mark.parametrize("is_written_out", [False, True])
def test_short_and_long_sentences_need_no_wider_arithmetic(is_written_out: bool) -> None:
    """Their weights are hundreds of nats apart, and float32 has 87: a sentence's own weight sets its scale."""
    from rankfold.fgg.inference.solve import solve

    g = example(TEXTS["pcfg"]).to(torch.float32)
    g = g.with_factors({name: 1e-6 * g.tensor(name) for name in ("rule", "emit")})
    asked = fgg.conjoin(g, fgg.string_query([[0] * 2, [1] * 12]))
    asked = asked.plain() if is_written_out else asked
    assert float(fgg.sum_product(asked).diff().abs()) > 200
    run = solve(asked, is_packed=True)
    assert run.arithmetic.is_scaled
    assert next(iter(run.weights.values())).dtype == torch.float32


def test_gradients_of_a_mixed_batch_are_right() -> None:
    g = example(TEXTS["pcfg"])
    names = ["root", "rule", "emit"]

    def total(*factors: torch.Tensor) -> torch.Tensor:
        own = g.with_factors(dict(zip(names, factors, strict=True)))
        return fgg.sum_product(fgg.conjoin(own, fgg.string_query([[0, 1, 2], [2, 0]])))

    leaves = [g.tensor(name).clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(total, leaves)
    assert torch.autograd.gradgradcheck(total, leaves)


def test_no_row_lies_beyond_a_sentence_and_the_others_have_weight() -> None:
    from rankfold.fgg.inference.solve import solve, structural_support

    def num_rows(sentences: list[list[int]]) -> int:
        run = solve(fgg.conjoin(g, fgg.string_query(sentences)), is_packed=True)
        support = structural_support(run)
        for table, begins in run.begins.items():
            for begin, x in zip(begins, run.blocks[table], strict=True):
                assert (x > 0).equal((support[table, begin] > 0).expand_as(x))
        return sum(x.shape[0] * x.shape[1] for own in run.blocks.values() for x in own)

    g = example(TEXTS["pcfg"])
    g = g.with_factors({name: 0.1 + x for name, x in g.factors.items()})
    sentences = [[0, 1, 2, 1], [2, 2], [1, 0, 0]]
    of_short = 2  # the whole of a shorter sentence as a part of the longest
    assert num_rows(sentences) == sum(num_rows([own]) for own in sentences) + of_short


def test_a_sum_that_takes_words_in() -> None:
    """Its rules are rewritten one by one, so that no pattern is left."""
    g = example("""
domain N = 5; observed V = 3
factor t: V, N
S() -> u(n: N) X(n)
X(n: N) -> t(w: V, m: N) c(n, l: N) Y(m) X(l) | emit(n, w: V)
Y(m: N) -> X(m)
""")
    sentences = [[0, 2, 1, 1, 2], [1], [2, 0, 1]]
    asked, *each = [fgg.conjoin(g, fgg.string_query(own)) for own in (sentences, *sentences)]
    assert isinstance(asked.hrg, SpanHRG)
    assert not schedule(asked.hrg, frozenset()).spans
    torch.testing.assert_close(
        fgg.sum_product(asked), torch.stack([fgg.sum_product(own) for own in each]), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_brackets_of_unequal_lengths(order: list[int]) -> None:
    g, leaves = leaves_of(example(TEXTS["pcfg"]))
    sentences = [[[0, 1, 2, 1, 0], [2, 2], [1, 0, 0]][k] for k in order]
    queries = [fgg.string_query(own, brackets=[(0, 2)]) for own in (sentences, *sentences)]
    found, *alone = [fgg.sum_product(fgg.conjoin(g, query)) for query in queries]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-12, atol=0)
    for x, y in zip(*(torch.autograd.grad(z, leaves) for z in (found.sum(), sum(alone))), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


def test_rows_that_are_all_shorter_than_their_tensor() -> None:
    """Nothing reads the rule then, and its gradient is 0."""
    g, leaves = leaves_of(example(TEXTS["hmm"]))
    words = torch.tensor([[0, 1, 2, 2, 1], [2, 2, 0, 0, 0]])
    for lengths in ([1, 1], [2, 1]):
        found = fgg.sum_product(fgg.conjoin(g, fgg.string_query(words, lengths=lengths)))
        alone = [
            fgg.sum_product(fgg.conjoin(g, fgg.string_query(own[:k]))) for own, k in zip(words, lengths, strict=True)
        ]
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-12, atol=0)
        grads = torch.autograd.grad(found.sum(), leaves)
        expected = torch.autograd.grad(torch.stack(alone).sum(), leaves, materialize_grads=True)
        for x, y in zip(grads, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


def test_tables_of_sentences_of_unequal_lengths() -> None:
    """Each sentence has its own table of a rule, and ends where a factor says, twice as heavy."""
    from rankfold.fgg.inference.solve import solve

    text, generator = TEXTS["pcfg"], torch.Generator().manual_seed(2)
    sentences = [[0, 1, 2, 1], [2, 2], [1, 0, 0]]
    one = example(text)
    own = torch.rand(3, *one.tensor("rule").shape, generator=generator, dtype=torch.float64)
    several = fgg.parse(text.replace("factor rule: N, N+P, N+P", "factor rule: N, N+P, N+P batched"))
    several = several.with_factors({"rule": own, "emit": one.tensor("emit"), "root": one.tensor("root")})
    for g, tables in ((several, own), (one.with_factors({"rule": own[0]}), own[:1].expand_as(own))):
        asked = fgg.conjoin(g, fgg.string_query(sentences))
        ends = 2 * asked.tensor("end[V]")
        alone = [
            fgg.sum_product(fgg.conjoin(one.with_factors({"rule": x}), fgg.string_query(words)))
            for x, words in zip(tables, sentences, strict=True)
        ]
        found = fgg.sum_product(asked.with_factors({"end[V]": ends}))
        torch.testing.assert_close(found, torch.stack(alone) + math.log(2), rtol=1e-12, atol=0)
        prefix = fgg.sum_product(fgg.conjoin(one.with_factors({"rule": own[0]}), fgg.string_query(sentences[0][:2])))
        asked_of_ends = asked.with_factors({"end[V]": ends.clone().requires_grad_()})
        assert solve(asked_of_ends, is_packed=True).schedule.whole is None  # ends that it does not take matter, too
        found = fgg.sum_product(asked.with_factors({"end[V]": ends[1:2]}))  # one table serves all
        torch.testing.assert_close(found[:2], torch.stack([prefix, alone[1]]) + math.log(2), rtol=1e-12, atol=0)
        ends[0, 2] = 0.5
        found = fgg.sum_product(asked.with_factors({"end[V]": ends}))  # it may end earlier, too
        torch.testing.assert_close(found[0].exp(), 2 * alone[0].exp() + 0.5 * prefix.exp(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("power", [0, -300])
def test_gradients_at_zeros_are_those_of_each_sentence(power: int) -> None:
    """In a range that only logarithms have, too; a sentence without weight has none."""
    from rankfold.fgg.contraction import LOGS
    from rankfold.fgg.inference.solve import solve

    g = example(TEXTS["pcfg"])
    rule, emit = g.tensor("rule").clone(), g.tensor("emit").clone()
    emit[1] *= 10.0**power
    rule[0, 1], emit[:, 2] = 0, 0
    g, leaves = leaves_of(g.with_factors({"rule": rule, "emit": emit}))
    sentences = [[0, 1, 1, 0, 1], [2, 0], [1, 0, 0]]
    asked = fgg.conjoin(g, fgg.string_query(sentences))
    assert (solve(asked, is_packed=True).arithmetic is LOGS) == (power < 0)
    found = fgg.sum_product(asked)
    alone = torch.stack([fgg.sum_product(fgg.conjoin(g, fgg.string_query(own))) for own in sentences])
    assert float(found[1].detach()) == -math.inf
    torch.testing.assert_close(found, alone, rtol=1e-12, atol=0)
    kept = torch.tensor([0, 2])
    for x, y in zip(*(torch.autograd.grad(z[kept].sum(), leaves) for z in (found, alone)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=0)


def test_samples_of_unequal_lengths_are_of_their_sentences() -> None:
    g = example(TEXTS["pcfg"])
    sentences = [[0, 1, 2, 1], [2, 2], [1, 0, 0]]
    asked = fgg.conjoin(g, fgg.string_query(sentences))
    drawn = fgg.sample(asked, num=500, generator=torch.Generator().manual_seed(3))
    for own, words in zip(drawn, sentences, strict=True):
        alone = fgg.marginals(fgg.conjoin(g, fgg.string_query(words)))
        for name, x in alone.rules.items():
            if name not in asked.hrg.plain._rule:  # that of the start symbol
                continue
            used = sum(_uses(derivation, name) for derivation in own) / 500
            assert used == pytest.approx(float(x), abs=0.1)  # of 500, more than four deviations


def _uses(derivation: fgg.Derivation, rule: str) -> int:
    return (derivation.rule == rule) + sum(_uses(child, rule) for child in derivation.children)


def test_a_structure_serves_all_batches_as_long() -> None:
    g = example(TEXTS["pcfg"])
    first, second = (fgg.conjoin(g, fgg.string_query(own)) for own in ([[0], [1, 2, 0]], [[1, 1, 1], [2, 2]]))
    assert first.hrg is second.hrg


@pytest.mark.parametrize("way", ["pattern", "written out", "recursive"])
def test_spans_are_those_of_each_sentence_the_start_symbol_included(way: str) -> None:
    turn = "\nX(n: N) -> turn(n) X(n)" if way == "recursive" else ""
    g = example(TEXTS["pcfg"] + turn)
    if turn:
        g = g.with_factors({"turn": 0.5 * torch.ones_like(g.tensor("turn"))})
    sentences = [[0, 1, 2, 1], [2, 2], [1, 0, 0]]
    asked = fgg.conjoin(g, fgg.string_query(sentences))
    spans = fgg.marginals(asked.plain() if way == "written out" else asked).spans
    for k, own in enumerate(sentences):
        alone = fgg.marginals(fgg.conjoin(g, fgg.string_query(own))).spans
        assert {"S", "X"} <= alone.keys() <= spans.keys()
        n = len(own) + 1
        for name, expected in alone.items():
            torch.testing.assert_close(spans[name][k, :n, :n], expected, rtol=1e-10, atol=1e-12)
            assert float(spans[name][k].sum()) == pytest.approx(float(expected.sum()), rel=1e-10)
