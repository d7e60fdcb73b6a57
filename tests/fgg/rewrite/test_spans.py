"""A sentence as a pattern of spans: the same sums and gradients as with every rule written out."""

import pytest
import torch

from rankfold import fgg
from rankfold.fgg.rewrite.spans import SpanHRG

OWN = """
domain N = 3
observed V = 4
S() -> root(n: N) X(n)
X(n) -> open(n, w: V) pair(n, l: N, r: N) X(l) mid(w2: V) X(r) | emit(n, w) | wrap(n, m: N, w: V, w2: V) Z(m)
Z(m: N) -> emit(m, w) X(m) emit(m, w2: V)
"""


def _weighted(g: fgg.Grammar) -> fgg.Grammar:
    generator = torch.Generator().manual_seed(0)
    g = g.with_domains({d.name: 3 for d in g.domains if not d.parts and g.hrg.known_size(d.name) is None})
    labels = [x for x in g.labels if x.is_terminal and not x.name.startswith("in[")]
    return g.with_factors(
        {
            x.name: torch.rand([g.size(d) for d in x.type], generator=generator, dtype=torch.float64).requires_grad_()
            for x in labels
            if not x.is_batched
        }
    )


def _agree(g: fgg.Grammar, words: torch.Tensor) -> None:
    asked = fgg.conjoin(g, fgg.string_query(words))
    assert isinstance(asked.hrg, SpanHRG)
    leaves = [x for x in asked.factors.values() if isinstance(x, torch.Tensor)]
    found = [fgg.sum_product(h) for h in (asked, asked.plain())]
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=0)
    grads = [torch.autograd.grad(z.sum(), leaves, allow_unused=True, materialize_grads=True) for z in found]
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(*(fgg.sum_product(h, "max") for h in (asked, asked.plain())), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["pcfg", "hmm", "td_pcfg", "lpcfg"])
@pytest.mark.parametrize("length", [2, 3, 7])
def test_sums_by_pattern_are_those_of_rules(name: str, length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    _agree(_weighted(fgg.library(name)), torch.randint(3, (2, length), generator=generator))


@pytest.mark.parametrize("length", [1, 4, 7])
def test_words_before_between_and_behind_nonterminals(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    _agree(_weighted(fgg.parse(OWN)), torch.randint(4, (length,), generator=generator))


WORDS = [0, 1, 2, 1, 0, 2, 2, 1]
BRACKETS = [(1, 4), (2, 4), (5, 6)]


@pytest.mark.parametrize("name", ["pcfg", "hmm", "td_pcfg", "lpcfg"])
def test_no_answer_writes_rules_out(name: str, generator: torch.Generator) -> None:
    for query in (
        fgg.string_query(WORDS),
        fgg.string_query([WORDS, WORDS[:3]]),
        fgg.string_query(WORDS, brackets=BRACKETS if name != "hmm" else [(3, 8)]),
    ):
        asked = fgg.conjoin(_weighted(fgg.library(name)), query)
        fgg.sum_product(asked).sum().backward()
        fgg.sum_product(asked, "max")
        fgg.marginals(asked).spans["X"].sum()
        fgg.sample(asked, num=3, generator=generator)
        fgg.best(asked)
        fgg.sum_product(asked, "real")
        assert "plain" not in vars(asked.hrg)
        assert len(asked.rules) == len(fgg.pruned(asked).rules) > 0  # written out where someone asks


def test_answers_by_pattern_are_those_of_rules(generator: torch.Generator) -> None:
    for query in (fgg.string_query([WORDS[:4], WORDS[2:6]]), fgg.string_query([[0, 1, 2, 1], [1]])):
        asked = fgg.conjoin(_weighted(fgg.parse(OWN)), query)
        assert isinstance(asked.hrg, SpanHRG)
        one, two = (fgg.marginals(g) for g in (asked, asked.plain()))
        for field in ("nonterminals", "rules", "factors", "spans"):
            mine, its = getattr(one, field), getattr(two, field)
            assert set(mine) == set(its)
            for key in its:
                torch.testing.assert_close(mine[key], its[key], rtol=1e-10, atol=1e-12)
        for mine, its in zip(fgg.best(asked), fgg.best(asked.plain()), strict=True):  # type: ignore[arg-type]
            assert [(x.rule, x.values) for x in mine] == [(x.rule, x.values) for x in its]
            assert mine.log_weight == pytest.approx(its.log_weight, rel=1e-12)
        known = {rule.name for rule in asked.rules}
        for own in fgg.sample(asked, generator=generator):  # type: ignore[union-attr]
            assert {part.rule for part in own} <= known


@pytest.mark.parametrize("name", ["pcfg", "td_pcfg"])
def test_brackets_by_pattern_are_those_of_rules(name: str) -> None:
    g = _weighted(fgg.library(name))
    query = fgg.string_query(WORDS, brackets=BRACKETS)
    asked = fgg.conjoin(g, query)
    assert isinstance(asked.hrg, SpanHRG)
    torch.testing.assert_close(fgg.sum_product(asked), fgg.sum_product(asked.plain()), rtol=1e-12, atol=0)
    span = fgg.marginals(asked).spans["X"].sum(-1)
    for i, j in BRACKETS[:2]:
        torch.testing.assert_close(span[i, j], torch.ones_like(span[i, j]), rtol=1e-10, atol=0)


def test_missing_words_and_labelled_brackets_are_written_out() -> None:
    g = _weighted(fgg.library("pcfg"))
    for query in (fgg.string_query([0, 1, 2], brackets=[(0, 2, "X")]), fgg.string_query([0, None, 2])):
        assert not isinstance(fgg.conjoin(g, query).hrg, SpanHRG)
