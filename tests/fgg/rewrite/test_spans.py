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


def test_a_first_sum_writes_no_rules_out() -> None:
    asked = fgg.conjoin(_weighted(fgg.library("pcfg")), fgg.string_query([0, 1, 2, 1, 0, 2, 2, 1]))
    fgg.sum_product(asked).backward()
    assert "plain" not in vars(asked.hrg)
    assert len(asked.rules) == len(fgg.pruned(asked).rules) > 0  # written out where someone asks


def test_brackets_and_missing_words_are_written_out() -> None:
    g = _weighted(fgg.library("pcfg"))
    for query in (fgg.string_query([0, 1, 2], brackets=[(0, 2)]), fgg.string_query([0, None, 2])):
        assert not isinstance(fgg.conjoin(g, query).hrg, SpanHRG)
