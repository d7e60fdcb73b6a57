"""Trees to test on: grammars of every kind of rule, ragged batches, and their enumeration.

Words beyond a length always hold NaN, so that whoever reads one is found out.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from rankfold import BinaryCPD, BinaryDense, BinaryMatricised, Branch, TreePotentials
from tests.operators.binary_cases import BY_NAME, B, Draw
from tests.oracles import tree as oracle
from tests.recursions.build import INF, pad_with_nan, seeded

KINDS = ("ss", "sl", "ls", "ll")  # as the enumeration calls them, in the order of a Branch


def shapes(n: int, p: int) -> tuple[tuple[int, int, int], ...]:
    """Parents, left and right children of each kind of rule."""
    return (n, n, n), (n, n, p), (n, p, n), (n, p, p)


def _shared(draw: Draw, n: int, p: int, make: Callable[..., BinaryCPD], *lead: int) -> Branch:
    """One head, one left and one right factor for each kind of child: the papers' grammar."""
    head, span_left, leaf_left = draw(*lead, n, 3), draw(n, 3), draw(p, 3)
    span_right, leaf_right = draw(*lead, n, 3), draw(p, 3)
    return Branch(
        make(head, span_left, span_right),
        make(head, span_left, leaf_right),
        make(head, leaf_left, span_right),
        make(head, leaf_left, leaf_right),
    )


def _mixed(draw: Draw, n: int, p: int) -> Branch:
    return Branch(
        BinaryMatricised(draw(n, 2), draw(n, n, 2)),
        BinaryDense(draw(n, n, p)),
        BinaryCPD.from_log(draw(n, 4).log(), draw(p, 4).log(), draw(n, 4).log()),
        BinaryDense.from_log(3 * draw(n, p, p).log()),
    )


def _one_head_many_operators(draw: Draw, n: int, p: int) -> Branch:
    """Rules of two kinds share a head, those of the other two have none in common with them."""
    head = draw(n, 2)
    return Branch(
        BinaryCPD(head, draw(n, 2), draw(n, 2)),
        BinaryDense(draw(n, n, p)),
        BinaryCPD(head, draw(p, 2), draw(n, 2)),
        BinaryMatricised(head, draw(p, p, 2)),
    )


def _log_shared(draw: Draw, n: int, p: int) -> Branch:
    return _shared(lambda *shape: 3 * draw(*shape).log(), n, p, BinaryCPD.from_log)


GRAMMARS: dict[str, Callable[[Draw, int, int], Branch]] = {
    "shared": lambda draw, n, p: _shared(draw, n, p, BinaryCPD),
    "shared log": _log_shared,
    "shared batched": lambda draw, n, p: _shared(draw, n, p, BinaryCPD, B),
    "mixed": _mixed,
    "one head": _one_head_many_operators,
}
EVERY = [*BY_NAME, *GRAMMARS]


def grammar(name: str, n: int, p: int, g: Generator, dtype: torch.dtype = torch.float64) -> Branch:
    """Rules of one kind of operator, or of one of the mixtures above."""

    def draw(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=g, dtype=torch.float64) + 0.05).to(dtype)

    if name in GRAMMARS:
        return GRAMMARS[name](draw, n, p)
    return Branch(*(BY_NAME[name].build(*shape, g, dtype) for shape in shapes(n, p)))


def potentials(
    name: str,
    lengths: Sequence[int] = (4, 2, 3),
    *,
    n: int = 2,
    p: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    own_roots: bool = False,
) -> TreePotentials:
    """A ragged batch, every field given, of finite log-weights."""
    g = seeded(seed)
    rules = grammar(name, n, p, g, dtype)
    num, t = len(lengths), max(lengths)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    lead = (num,) if own_roots else ()
    log_leaf = pad_with_nan(2 * normal(num, t, p), lengths)
    return TreePotentials(
        log_leaf, rules, normal(*lead, n), normal(*lead, p), normal(num, t + 1, t + 1), torch.tensor(lengths)
    )


def distinct(rules: Branch) -> list[Tensor]:
    """Every factor once."""
    return list({id(x): x for x in rules.factors()}.values())


class Leaves(NamedTuple):
    """Potentials whose every tensor asks for a gradient, and those tensors."""

    potentials: TreePotentials
    fields: dict[str, Tensor]  # log_leaf, log_root and, unless None, log_root_leaf, log_span
    factors: list[Tensor]  # each once


def leaves(p: TreePotentials) -> Leaves:
    names = ("log_leaf", "log_root", "log_root_leaf", "log_span")
    fields = {k: x.detach().clone().requires_grad_() for k in names if (x := getattr(p, k)) is not None}
    factors = {id(x): x.detach().clone().requires_grad_() for x in distinct(p.rules)}
    rules = p.rules.with_factors(*(factors[id(x)] for x in p.rules.factors()))
    return Leaves(p._replace(rules=rules, **fields), fields, list(factors.values()))


class Enumerated(NamedTuple):
    """What the enumeration says of a batch."""

    log_z: Tensor  # "b"
    span: Tensor  # "b t+1 t+1"
    leaf: Tensor  # "b t p"
    root: Tensor  # "b n"
    root_leaf: Tensor  # "b p"
    rules: list[Tensor]  # "b a n m" by kind: d log Z / d rule


def sentences(p: TreePotentials) -> list[tuple[Any, ...]]:
    """Each sentence as the enumeration takes it: leaf, rules, root, root_leaf, span, in plain numbers."""
    num, t, num_leaves = p.log_leaf.shape
    lengths = [t] * num if p.lengths is None else p.lengths.tolist()
    num_spans = p.rules.span_span.shape[0]
    dense = [rule.to_dense().detach().double() for rule in p.rules]
    root = p.log_root.detach().double().exp().expand(num, num_spans).tolist()
    root_leaf = [[0.0] * num_leaves] * num
    if p.log_root_leaf is not None:
        root_leaf = p.log_root_leaf.detach().double().exp().expand(num, num_leaves).tolist()
    found = []
    for b, length in enumerate(lengths):
        leaf = p.log_leaf[b, :length].detach().double().exp().tolist()
        rules = {kind: (x[b] if x.ndim == 4 else x).tolist() for kind, x in zip(KINDS, dense, strict=True)}
        span = {}
        if p.log_span is not None:
            ends = [(i, j) for i in range(length) for j in range(i + 2, length + 1)]
            span = {(i, j): math.exp(p.log_span[b, i, j].item()) for i, j in ends}
        found.append((leaf, rules, root[b], root_leaf[b], span))
    return found


def enumerated(p: TreePotentials) -> Enumerated:
    """log Z and all its derivatives, sentence by sentence, from every tree."""
    num, t, num_leaves = p.log_leaf.shape
    num_spans = p.rules.span_span.shape[0]
    found = Enumerated(
        *(torch.zeros(shape, dtype=torch.float64) for shape in ((num,), (num, t + 1, t + 1), (num, t, num_leaves))),
        *(torch.zeros(num, size, dtype=torch.float64) for size in (num_spans, num_leaves)),
        [torch.zeros(num, *shape, dtype=torch.float64) for shape in shapes(num_spans, num_leaves)],
    )
    for b, sentence in enumerate(sentences(p)):
        _add(found, b, oracle.weights(*sentence))
        gradient = oracle.rule_gradient(*sentence)
        for kind, x in zip(KINDS, found.rules, strict=True):
            x[b] = torch.tensor(gradient[kind], dtype=torch.float64)
    return found


def _add(found: Enumerated, b: int, weights: dict) -> None:  # type: ignore[type-arg]
    total = sum(weights.values())
    found.log_z[b] = math.log(total) if total else -INF
    for tree, weight in weights.items():
        share = weight / total if total else 0.0
        for ends in oracle.brackets(tree):
            found.span[b][ends] += share
        for t, label in enumerate(oracle.labels(tree)):
            found.leaf[b, t, label] += share
        (found.root if len(tree) > 3 else found.root_leaf)[b, tree[2]] += share


def factor_gradients(p: TreePotentials, by_cell: list[Tensor]) -> list[Tensor]:  # "b a n m" by kind
    """The gradients of the rules' factors, each once, from those of the cells of their tensors, in float64."""
    factors = {id(x): x.detach().double().requires_grad_() for x in distinct(p.rules)}
    rules = p.rules.with_factors(*(factors[id(x)] for x in p.rules.factors()))
    total = sum(((rule.to_dense() * cells).sum() for rule, cells in zip(rules, by_cell, strict=True)), torch.zeros(()))
    return list(torch.autograd.grad(total, list(factors.values())))


def doubled_range(p: TreePotentials, gap: float) -> TreePotentials:
    """The same trees with the same shares, but every word beside a symbol e^gap more probable that no tree can use.

    Symbols of leaves one more, which the rules give no weight.
    """
    num, t, _ = p.log_leaf.shape
    log_leaf = torch.cat([p.log_leaf - gap, p.log_leaf.new_zeros(num, t, 1)], -1)
    wide = [
        BinaryDense(torch.nn.functional.pad(rule.to_dense(), (0, right, 0, left)))
        for rule, (left, right) in zip(p.rules, ((0, 0), (0, 1), (1, 0), (1, 1)), strict=True)
    ]
    root_leaf = None if p.log_root_leaf is None else torch.nn.functional.pad(p.log_root_leaf, (0, 1), value=-INF)
    return p._replace(log_leaf=log_leaf, rules=Branch(*wide), log_root_leaf=root_leaf)
