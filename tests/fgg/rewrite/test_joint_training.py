"""Both joint grammars, trained in rank space by gradients: the loss falls to its optimum, the entropy of the sentences.

Distributions can give no sentence more than its share (Gibbs' inequality), so the optimum is known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankfold.fgg import Grammar, conjoin, library, rank_space, string_query, sum_product

SENTENCES, TIMES = [[0, 1], [1, 0]], torch.tensor([3.0, 1.0], dtype=torch.float64)  # how often each was seen
OPTIMUM = -3 * math.log(3 / 4) - math.log(1 / 4)
NUM, HEADS, RANKS = 2, 2, 3  # nonterminals, and as many preterminals; heads, or nodes of the source; ranks without them


def lexicalised(root: Tensor, rule: Tensor, keeps: Tensor, brings: Tensor) -> Grammar:
    """Symbols with their head word: a rule hands its head to one child, the other brings its own."""
    same = torch.eye(HEADS, dtype=torch.float64)
    shares = rule.flatten(2).softmax(2).reshape(rule.shape)  # side and rank, given symbol and head
    tables = {"root": root.flatten().softmax(0), "emit": same.repeat(NUM, 1)}
    for side, names in enumerate(("uvw", "abc")):
        parent = torch.einsum("nhq,hg->nhqg", shares[:, :, side], same).reshape(NUM * HEADS, -1)
        own = torch.einsum("lhq,hg->lhqg", keeps[side].softmax(0), same).reshape(2 * NUM * HEADS, -1)
        other = brings[side].flatten(0, 1).softmax(0).flatten(1)
        children = (own, other) if side == 0 else (other, own)
        tables |= dict(zip(names, (parent, *children), strict=True))
    sizes = {"N": NUM * HEADS, "P": NUM * HEADS, "Q": RANKS * HEADS, "R": RANKS * HEADS, "V": HEADS}
    return library("joint_lexicalised_pcfg", **sizes).with_factors(tables)


def quasi_synchronous(rule: Tensor, dictionary: Tensor, left: Tensor, right: Tensor) -> Grammar:
    """Symbols with the node of a source they are aligned to; the source of all sentences is the same."""
    same = torch.eye(HEADS, dtype=torch.float64)
    own = torch.einsum("nq,as->naqs", rule.softmax(1), same).reshape(NUM * HEADS, -1)
    children = [x.flatten(0, 1).softmax(0).flatten(1) for x in (left, right)]  # symbol and node, given rank and node
    root = torch.zeros(NUM * HEADS, dtype=torch.float64)
    root[0] = 1
    tables = {"root": root, "u": own, "v": children[0], "w": children[1], "emit": dictionary.softmax(1).repeat(NUM, 1)}
    g = library("joint_quasi_synchronous", N=NUM * HEADS, P=NUM * HEADS, R=RANKS * HEADS, V=2)
    return g.with_factors({name: x.expand(len(SENTENCES), *x.shape) for name, x in tables.items()})


PAIRS = (2 * NUM, HEADS, RANKS, HEADS)
CASES: dict[str, tuple[Callable[..., Grammar], list[tuple[int, ...]]]] = {
    "lexicalised": (lexicalised, [(NUM, HEADS), (NUM, HEADS, 2, RANKS), (2, 2 * NUM, HEADS, RANKS), (2, *PAIRS)]),
    "quasi-synchronous": (quasi_synchronous, [(NUM, RANKS), (HEADS, 2), PAIRS, PAIRS]),
}


@pytest.mark.parametrize(("build", "shapes"), CASES.values(), ids=CASES)
def test_the_loss_falls_to_the_entropy(build: Callable[..., Grammar], shapes: list[tuple[int, ...]]) -> None:
    g = torch.Generator().manual_seed(2)
    parameters = [torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_() for shape in shapes]
    optimizer, losses = torch.optim.Adam(parameters, lr=0.3), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = -sum_product(conjoin(rank_space(build(*parameters)), string_query(SENTENCES))) @ TIMES
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 2 * OPTIMUM
    assert min(losses) >= OPTIMUM - 1e-10
    assert losses[-1] == pytest.approx(OPTIMUM, rel=0.05)
