"""Every fast recursion, with every operator, equals its grammar: the same log Z, the same gradient of every tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold import (
    Banded,
    BinaryCPD,
    BinaryDense,
    BinaryMatricised,
    Branch,
    ChainPotentials,
    Dense,
    LowRank,
    Operator,
    RowScaled,
    SegmentPotentials,
    Sum,
    TreePotentials,
    WithoutDiagonal,
    fgg,
)
from rankfold.recursions import chain, tree
from rankfold.recursions import segments as semi_markov

STATES, RANK, WORDS, LENGTH = 4, 2, 3, 5
HEAD = (
    "domain Z = 4; domain Y = 4; domain K = 3; domain R = 2; domain Q = 2; observed V = 3\nS() -> initial(z: Z) X(z)\n"
)
END = "X(z: Z) -> emit(z, w: V) final(z)\n"


def rand(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()


def words() -> Tensor:
    return torch.randint(WORDS, (3, LENGTH), generator=torch.Generator().manual_seed(9))


def shifts() -> Tensor:
    """1 where y is the k-th neighbour of z, of a band one below to one above the diagonal."""
    out = torch.zeros(STATES, 3, STATES, dtype=torch.float64)
    for z in range(STATES):
        for k in range(3):
            if 0 <= z - 1 + k < STATES:
                out[z, k, z - 1 + k] = 1
    return out


def others() -> Tensor:
    return 1 - torch.eye(STATES, dtype=torch.float64)


Build = Callable[..., Operator]
CHAINS: dict[str, tuple[list[tuple[int, ...]], Build, list[str], dict[str, Tensor]]] = {
    "dense": ([(4, 4)], Dense, ["f0(z, y: Z)"], {}),
    "low rank": ([(4, 2), (4, 2)], LowRank, ["f0(z, r: R) f1(y: Z, r)"], {}),
    "banded": ([(4, 3)], lambda x: Banded(x, -1), ["f0(z, k: K) shift(z, k, y: Z)"], {"shift": shifts()}),
    "sum": (
        [(4, 2), (4, 2), (4, 3)],
        lambda u, v, x: Sum([LowRank(u, v), Banded(x, -1)]),
        ["f0(z, r: R) f1(y: Z, r)", "f2(z, k: K) shift(z, k, y: Z)"],
        {"shift": shifts()},
    ),
    "row scaled": ([(4,), (4, 4)], lambda s, x: RowScaled(Dense(x), s), ["f0(z) f1(z, y: Z)"], {}),
    "without diagonal": (
        [(4, 2), (4, 2)],
        lambda u, v: WithoutDiagonal(LowRank(u, v)),
        ["f0(z, r: R) f1(y: Z, r) other(z, y)"],
        {"other": others()},
    ),
}


def compare(fast: Tensor, grammar: Tensor, tensors: list[Tensor]) -> None:
    """The same values, and the same gradients of weights of the sentences that differ."""
    torch.testing.assert_close(grammar, fast, rtol=1e-11, atol=1e-11)
    weight = torch.arange(1.0, len(fast) + 1, dtype=torch.float64)
    wanted = torch.autograd.grad(fast, tensors, weight, retain_graph=True)
    found = torch.autograd.grad(grammar, tensors, weight)
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda text, k=k: f"tensor {k}: {text}")


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    shapes, build, moves, fixed = CHAINS[name]
    parts = [rand(*shape, seed=k) for k, shape in enumerate(shapes)]
    initial, emit, final = rand(STATES, seed=20), rand(STATES, WORDS, seed=21), rand(STATES, seed=22)
    log_obs = emit.log().mT[words()]
    fast = chain.log_z(ChainPotentials(initial.log(), build(*parts), log_obs, final.log()))
    rules = "".join(f"X(z: Z) -> emit(z, w: V) {move} X(y)\n" for move in moves)
    g = fgg.parse(HEAD + rules + END)
    own = {f"f{k}": x for k, x in enumerate(parts)}
    g = g.with_factors({"initial": initial, "emit": emit, "final": final, **own, **fixed})
    compare(fast, fgg.sum_product(fgg.conjoin(g, fgg.string_query(words()))), [initial, emit, final, *parts])


def test_rank_space_of_a_chain() -> None:
    """A CPD of transition and emission over ranks: the chain of ranks, with V^T U for its transition."""
    initial, u, v, emit = rand(4, seed=1), rand(4, 2, seed=2), rand(4, 2, seed=3), rand(2, 3, seed=4)
    obs = emit.log().mT[words()]
    fast = chain.log_z(ChainPotentials((initial @ u).log(), LowRank(v.mT @ u, torch.eye(2, dtype=u.dtype)), obs))
    g = fgg.library("cpd_hmm", Z=4, R=2, V=3).with_factors({"initial": initial, "u": u, "v": v, "emit": emit})
    query = fgg.string_query(words())
    for form in (fgg.conjoin(g, query), fgg.conjoin(fgg.rank_space(g), query)):
        compare(fast, fgg.sum_product(form), [initial, u, v, emit])


def test_segments() -> None:
    initial, move, duration = rand(4, seed=1), rand(4, 4, seed=2), rand(4, 3, seed=3)
    emit, final = rand(4, WORDS, seed=4), rand(4, seed=5)
    obs = emit.log().mT[words()]
    fast = semi_markov.log_z(SegmentPotentials(initial.log(), Dense(move), duration.log(), obs, log_final=final.log()))
    text = """
    domain Z = 4; domain D = 3; observed V = 3
    factor duration: Z, D
    factor emit: Z, V
    S() -> initial(z: Z) X(z)
    X(z: Z) -> duration(z, 0) emit(z, a) Next(z)
    X(z) -> duration(z, 1) emit(z, a) emit(z, b) Next(z)
    X(z) -> duration(z, 2) emit(z, a) emit(z, b) emit(z, c) Next(z)
    Next(z: Z) -> next(z, y: Z) X(y) | final(z)
    """
    tensors = {"initial": initial, "next": move, "duration": duration, "emit": emit, "final": final}
    g = fgg.parse(text).with_factors(tensors)
    compare(fast, fgg.sum_product(fgg.conjoin(g, fgg.string_query(words()))), list(tensors.values()))


N, P = 2, 3
SIZES = {"n": N, "p": P}
KINDS = ("nn", "np", "pn", "pp")  # children of rules: spans, words
TREE = """
domain N = 2; domain P = 3; domain R = 2; observed V = 3
factor emit: P, V
S() -> root(n: N) X(n)
T(p: P) -> emit(p, o)
"""


def tree_rules(body: str) -> str:
    """The four rules by kind of children, from a body in which {k} is the kind, {l} and {r} the children's domains."""
    lines = []
    for kind in KINDS:
        left, right = ("X(l)" if kind[0] == "n" else "T(l)"), ("X(r)" if kind[1] == "n" else "T(r)")
        domains = {"l": kind[0].upper(), "r": kind[1].upper(), "k": kind}
        lines.append(f"X(n: N) -> {body.format(**domains)} {left} {right}")
    return TREE + "\n".join(lines)


def tree_case(name: str) -> tuple[str, Branch, dict[str, Tensor]]:
    if name == "dense":
        own = {f"rule{k}": rand(N, SIZES[k[0]], SIZES[k[1]], seed=j) for j, k in enumerate(KINDS)}
        return tree_rules("rule{k}(n, l: {l}, r: {r})"), Branch(*(BinaryDense(x) for x in own.values())), own
    head = rand(N, RANK, seed=0)
    if name == "matricised":
        own = {f"pair{k}": rand(SIZES[k[0]], SIZES[k[1]], RANK, seed=1 + j) for j, k in enumerate(KINDS)}
        branch = Branch(*(BinaryMatricised(head, x) for x in own.values()))
        return tree_rules("head(n, q: R) pair{k}(l: {l}, r: {r}, q)"), branch, {"head": head, **own}
    left, right = ({k: rand(SIZES[k], RANK, seed=seed + j) for j, k in enumerate("np")} for seed in (1, 5))
    branch = Branch(*(BinaryCPD(head, left[k[0]], right[k[1]]) for k in KINDS))
    text = tree_rules("head(n, q: R) left{l}(l: {l}, q) right{r}(r: {r}, q)")
    own = {f"left{k.upper()}": x for k, x in left.items()} | {f"right{k.upper()}": x for k, x in right.items()}
    return text, branch, {"head": head, **own}


@pytest.mark.parametrize("name", ["dense", "cpd", "matricised"])
def test_trees(name: str) -> None:
    text, branch, own = tree_case(name)
    root, emit = rand(N, seed=30), rand(P, WORDS, seed=31)
    fast = tree.log_z(TreePotentials(emit.log().mT[words()], branch, root.log()))
    g = fgg.parse(text).with_factors({"root": root, "emit": emit, **own})
    query = fgg.string_query(words())
    compare(fast, fgg.sum_product(fgg.conjoin(g, query)), [root, emit, *own.values()])
    if name == "cpd":
        compare(fast, fgg.sum_product(fgg.conjoin(fgg.rank_space(g), query)), [root, emit, *own.values()])


def test_rank_space_derives_the_operands_of_the_fast_models() -> None:
    """`rankfold.rank_space` of the rules and `fgg.rank_space` of the grammar: H, I, J, K and L, and nothing else."""
    text, branch, own = tree_case("cpd")
    root, emit = rand(N, seed=30), rand(P, WORDS, seed=31)
    form = fgg.rank_space(fgg.parse(text).with_factors({"root": root, "emit": emit, **own}))
    fast = rankfold.rank_space(branch, root.log())
    span_span, leaf_leaf = fast.rules.span_span, fast.rules.leaf_leaf
    assert isinstance(span_span, BinaryCPD)
    assert isinstance(leaf_leaf, BinaryCPD)
    wanted = {
        "leftN[head]": span_span.parts[1].linear.mT,  # H
        "rightN[head]": span_span.parts[2].linear.mT,  # I
        "leftP[emit]": leaf_leaf.parts[1].linear.mT @ emit,  # J
        "rightP[emit]": leaf_leaf.parts[2].linear.mT @ emit,  # K
        "root[head]": fast.log_root.exp(),  # L
    }
    assert {label.name for label in form.labels if label.is_terminal} == set(wanted)
    for name, matrix in wanted.items():
        torch.testing.assert_close(form.tensor(name), matrix, rtol=1e-12, atol=0)
