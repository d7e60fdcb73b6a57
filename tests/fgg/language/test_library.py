"""The grammars that come with the package: their sums are the models' own formulas, and enumeration's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfold.errors import DataError
from rankfold.fgg import Grammar, conjoin, library, library_names, string_query, why_not_b_fgg
from tests.fgg.plain import plain, random_factors
from tests.oracles import fgg as oracle

WORDS = [0, 2, 1]
SIZES = {"Z": 3, "R": 2, "Q": 2, "V": 3, "N": 2, "P": 2, "K": 2, "D": 3, "H": 2, "A": 2, "B": 3}


def example(name: str) -> Grammar:
    g = library(name)
    return random_factors(g.with_domains({d.name: SIZES[d.name] for d in g.domains if not d.parts}))


def total(g: Grammar) -> float:
    return oracle.total(*plain(conjoin(g, string_query(WORDS))))


def chain(initial: Tensor, emit: Tensor, step: Tensor) -> float:
    message = initial
    for place, word in enumerate(WORDS):
        message = (message if place == 0 else message @ step) * emit[:, word]
    return float(message.sum())


def inside(root: Tensor, rule: Tensor, emit: Tensor, num_nonterminals: int) -> float:
    """The inside algorithm for three words, all symbols numbered as N+P."""
    leaves = [torch.cat([emit.new_zeros(num_nonterminals), emit[:, word]]) for word in WORDS]

    def join(left: Tensor, right: Tensor) -> Tensor:
        parents = torch.einsum("nlr,l,r->n", rule, left, right)
        return torch.cat([parents, emit.new_zeros(len(left) - len(parents))])

    top = join(join(leaves[0], leaves[1]), leaves[2]) + join(leaves[0], join(leaves[1], leaves[2]))
    return float(root @ top[:num_nonterminals])


def test_names() -> None:
    assert set(library_names()) == {
        "banded_hmm",
        "cpd_hmm",
        "cpd_hsmm",
        "factorial_hmm",
        "hmm",
        "hsmm",
        "joint_lexicalised_pcfg",
        "joint_quasi_synchronous",
        "lexicalised_pcfg",
        "lhmm",
        "lpcfg",
        "pcfg",
        "quasi_synchronous",
        "rank_hmm",
        "rank_hsmm",
        "rank_pcfg",
        "td_pcfg",
    }
    with pytest.raises(DataError, match=r"no grammar 'hm' in the library. Did you mean 'hmm'"):
        library("hm")
    assert library("hmm", Z=7).size("Z") == 7


def test_which_have_a_rank_space() -> None:
    without = [name for name in library_names() if why_not_b_fgg(library(name)) is not None]
    assert without == ["factorial_hmm", "hsmm", "lexicalised_pcfg", "quasi_synchronous"]


def test_chains() -> None:
    g = example("hmm")
    t = g.tensor
    assert total(g) == pytest.approx(chain(t("initial"), t("emit"), t("next")), rel=1e-12)
    g = example("lhmm")
    t = g.tensor
    assert total(g) == pytest.approx(chain(t("initial"), t("emit"), t("left") @ t("right").T), rel=1e-12)
    g = example("banded_hmm")
    t = g.tensor
    band = torch.einsum("zk,zky->zy", t("band"), t("shift"))
    assert total(g) == pytest.approx(chain(t("initial"), t("emit"), t("left") @ t("right").T + band), rel=1e-12)
    g = example("factorial_hmm")
    t = g.tensor
    joint = torch.einsum("ac,bd->abcd", t("move"), t("turn")).reshape(6, 6)
    first = torch.outer(t("first"), t("second")).reshape(6)
    assert total(g) == pytest.approx(chain(first, t("emit").reshape(6, 3), joint), rel=1e-12)


def test_trees() -> None:
    g = example("pcfg")
    t = g.tensor
    assert total(g) == pytest.approx(inside(t("root"), t("rule"), t("emit"), 2), rel=1e-12)
    g = example("lpcfg")
    t = g.tensor
    rule = torch.einsum("nq,qlr->nlr", t("head"), t("body"))
    assert total(g) == pytest.approx(inside(t("root"), rule, t("emit"), 2), rel=1e-12)
    g = example("td_pcfg")
    t = g.tensor
    rule = torch.einsum("nq,lq,rq->nlr", t("u"), t("v"), t("w"))
    assert total(g) == pytest.approx(inside(t("root"), rule, t("emit"), 2), rel=1e-12)


def test_rank_space_by_hand() -> None:
    g, small = example("cpd_hmm"), example("rank_hmm")
    t = g.tensor
    derived = {"first": t("initial") @ t("u"), "h": t("v").T @ t("u"), "emit": t("emit")}
    assert total(small.with_factors(derived)) == pytest.approx(total(g), rel=1e-12)
    g, small = example("cpd_hsmm"), example("rank_hsmm")
    t = g.tensor
    derived = {"first": t("initial") @ t("u"), "h": t("v").T @ t("u"), "emit": t("emit"), "duration": t("duration")}
    assert total(small.with_factors(derived)) == pytest.approx(total(g), rel=1e-12)
    g, small = example("td_pcfg"), example("rank_pcfg")
    u, v, w, e = (g.tensor(name) for name in ("u", "v", "w", "emit"))
    derived = {"h": v[:2].T @ u, "i": w[:2].T @ u, "j": v[2:].T @ e, "k": w[2:].T @ e, "l": g.tensor("root") @ u}
    assert total(small.with_factors(derived)) == pytest.approx(total(g), rel=1e-12)


def test_segments() -> None:
    g = example("hsmm")
    less = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)
    last = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    g = g.with_factors({"less": less, "last": last})
    t = g.tensor
    # All ways to cut three words into runs; a run of d + 1 words weighs duration(z, d) and its emissions.
    expected = 0.0
    for cuts in ((1, 2, 3), (1, 3), (2, 3), (3,)):
        message, begin = t("initial"), 0
        for end in cuts:
            message = message if begin == 0 else message @ t("next")
            message = message * t("duration")[:, end - begin - 1] * t("emit")[:, WORDS[begin:end]].prod(1)
            begin = end
        expected += float(message.sum())
    assert total(g) == pytest.approx(expected, rel=1e-12)


def test_lexicalised_trees_are_trees_over_pairs() -> None:
    g = example("lexicalised_pcfg")
    t = g.tensor
    eye = torch.eye(2, dtype=torch.float64)
    # A symbol with its head is one symbol: the head child's head is the parent's.
    rule = torch.einsum("nhlrk,hi->nhlirk", t("left"), eye) + torch.einsum("nhlrk,hi->nhlkri", t("right"), eye)
    emit = torch.einsum("ph,hv->phv", t("tag"), t("same")).reshape(4, 3)
    assert total(g) == pytest.approx(inside(t("root").reshape(4), rule.reshape(4, 8, 8), emit, 4), rel=1e-12)


def test_quasi_synchronous_trees_are_trees_over_aligned_symbols() -> None:
    g = example("quasi_synchronous")
    t = g.tensor
    rule = torch.einsum("nlr,abc->nalbrc", t("rule"), t("align")[0]).reshape(4, 8, 8)
    assert total(g) == pytest.approx(inside(t("root")[0].reshape(4), rule, t("emit")[0].reshape(4, 3), 4), rel=1e-12)
