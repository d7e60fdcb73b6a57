"""Sentences of unequal lengths in one call: sums, gradients and all other answers are those of each by itself."""

from __future__ import annotations

import math

import pytest
import torch

from rankfold import fgg
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
    run = solve(asked)
    assert run.arithmetic.is_scaled
    assert next(iter(run.weights.values())).dtype == torch.float32


def test_gradients_of_a_mixed_batch_are_right() -> None:
    g = example(TEXTS["pcfg"])
    names = ["root", "rule", "emit"]

    def total(*factors: torch.Tensor) -> torch.Tensor:
        own = g.with_factors(dict(zip(names, factors, strict=True)))
        return fgg.sum_product(fgg.conjoin(own, fgg.string_query([[0, 1, 2], [2, 0]])))

    assert torch.autograd.gradcheck(total, [g.tensor(name).clone().requires_grad_() for name in names])


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
