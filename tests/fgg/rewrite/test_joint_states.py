"""Structures with two nodes to a symbol as B-FGGs over joint states: enumeration, the two-node grammar, rank space."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.fgg import Grammar, conjoin, library, parse, rank_space, string_query, sum_product
from tests.fgg.plain import plain
from tests.oracles import fgg as oracle

N, P, H, V, RANK = 2, 2, 2, 3, 3  # nonterminals, preterminals, heads or source nodes, words, ranks of symbols
WORDS = [0, 2, 1]
Tables = dict[str, Tensor]


def rand(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def lexicalised() -> tuple[Grammar, Grammar]:
    """left(n, h, l, r, k) = sum_q U(n, h, q) L(l, h, q) W(r, k, h, q), and right alike; as one state and as two."""
    size, eye = N + P, torch.eye(H, dtype=torch.float64)
    tag, same, root = rand(P, H, seed=1), rand(H, V, seed=2), rand(N, H, seed=3)
    pairs: Tables = {"root": root, "tag": tag, "same": same}
    joint: Tables = {"root": root.flatten(), "emit": torch.einsum("ph,hv->phv", tag, same).reshape(P * H, V)}
    for i, (name, factors) in enumerate({"left": "uvw", "right": "abc"}.items()):
        parent, own, other = (
            rand(N, H, RANK, seed=10 + i),
            rand(size, H, RANK, seed=20 + i),
            rand(size, H, H, RANK, seed=30 + i),
        )
        order = "nhlrk" if name == "left" else "nhrlk"  # the child with the parent's head is the left, or the right one
        pairs[name] = torch.einsum(f"nhq,lhq,rkhq->{order}", parent, own, other)
        # The head word is part of the rank: (q, g).
        heads = [
            torch.einsum("nhq,hg->nhqg", parent, eye).reshape(N * H, -1),
            torch.einsum("lhq,hg->lhqg", own, eye).reshape(size * H, -1),
            other.permute(0, 1, 3, 2).reshape(size * H, -1),
        ]
        above, keeps, brings = heads
        joint |= dict(zip(factors, (above, keeps, brings) if name == "left" else (above, brings, keeps), strict=True))
    two = library("lexicalised_pcfg", N=N, P=P, H=H, V=V).with_factors(pairs)
    one = library("joint_lexicalised_pcfg", N=N * H, P=P * H, Q=RANK * H, R=RANK * H, V=V).with_factors(joint)
    return two, one


def quasi_synchronous() -> tuple[Grammar, Grammar]:
    """rule = sum_q u v w and align = sum_s e f g, so their product has ranks (q, s)."""
    size, ranks = N + P, 2
    rule = [rand(n, RANK, seed=40 + i) for i, n in enumerate((N, size, size))]
    align = [rand(1, H, ranks, seed=50 + i) for i in range(3)]
    root, emit = rand(1, N, H, seed=60), rand(1, P, H, V, seed=61)
    pairs = {
        "root": root,
        "emit": emit,
        "rule": torch.einsum("nq,lq,rq->nlr", *rule),
        "align": torch.einsum("zas,zbs,zcs->zabc", *align),
    }
    joint = {"root": root.flatten(1), "emit": emit.reshape(1, P * H, V)}
    for name, own, other in zip("uvw", rule, align, strict=True):
        joint[name] = torch.einsum("nq,zas->znaqs", own, other).reshape(1, len(own) * H, RANK * ranks)
    two = library("quasi_synchronous", N=N, P=P, A=H, V=V).with_factors(pairs)
    one = library("joint_quasi_synchronous", N=N * H, P=P * H, R=RANK * ranks, V=V).with_factors(joint)
    return two, one


@pytest.mark.parametrize("build", [lexicalised, quasi_synchronous])
def test_one_state_two_nodes_rank_space_and_enumeration_agree(build: object) -> None:
    two, one = build()  # type: ignore[operator]
    query = string_query(WORDS)
    expected = oracle.total(*plain(conjoin(two, query)))
    ranks = rank_space(one)
    with pytest.raises(UnsupportedError, match="2 external nodes"):
        rank_space(two)
    for g in (two, one, ranks):
        assert sum_product(conjoin(g, query)).exp().item() == pytest.approx(expected, rel=1e-10)
    assert not {"N", "P"} & {d for label in ranks.labels if not label.is_terminal for d in label.type}


@pytest.mark.parametrize("build", [lexicalised, quasi_synchronous])
def test_gradients_pass_through_rank_space(build: object) -> None:
    _, one = build()  # type: ignore[operator]
    query, found = string_query(WORDS), []
    for rewrite in (lambda g: g, rank_space):
        u = one.tensor("u").clone().requires_grad_()
        sum_product(conjoin(rewrite(one.with_factors({"u": u})), query)).sum().backward()
        found.append(u.grad)
    assert torch.allclose(*found, rtol=1e-10, atol=1e-12)


CROSSING = """
domain Z = 2
domain I = {places}
factor first: Z
factor next: Z, Z
factor left: Z, I, I
factor right: Z, I, I
factor begin: I
factor end: I
S() -> first(z) begin(i) end(l) X(z, i, j, j, l)
X(z: Z, i: I, j: I, k: I, l: I) -> left(z, i, j) right(z, k, l)
X(z, i, j, k, l) -> left(z, i, a) right(z, k, b) next(z, y) X(y, a, j, b, l)
"""


def crossing(words: list[int], emit: Tensor, answer: Tensor, first: Tensor, step: Tensor) -> Grammar:
    """A discontinuous structure, fan-out 2: X covers i to j and k to l; places of the sentence are nodes."""
    places = len(words) + 1
    left, right = (torch.zeros(2, places, places, dtype=torch.float64) for _ in range(2))
    for i, word in enumerate(words):
        left[:, i, i + 1], right[:, i, i + 1] = emit[:, word], answer[:, word]
    begin, *_, end = torch.eye(places, dtype=torch.float64)
    factors = {"first": first, "next": step, "left": left, "right": right, "begin": begin, "end": end}
    return parse(CROSSING.format(places=places)).with_factors(factors)


@pytest.mark.parametrize("words", [[0, 1], [0, 2, 1, 1]])
def test_crossing_dependencies(words: list[int]) -> None:
    """Word k of the first half and word k of the second are of one state: a chain over pairs of words."""
    emit, answer, first, step = rand(2, 3, seed=1), rand(2, 3, seed=2), rand(2, seed=3), rand(2, 2, seed=4)
    half = len(words) // 2
    message = first
    for k in range(half):
        message = (message if k == 0 else message @ step) * emit[:, words[k]] * answer[:, words[half + k]]
    g = crossing(words, emit, answer, first, step)
    assert sum_product(g).exp().item() == pytest.approx(float(message.sum()), rel=1e-10)
    with pytest.raises(UnsupportedError, match="5 external nodes"):
        rank_space(g)
