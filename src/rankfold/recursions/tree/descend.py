"""From the top of a chart down to the words: nodes of all trees at once, width by width.

At each node a split and an option of the rule there, a rank or a pair of children, are chosen together. Choosing by
chance from a chart of sums gives samples, choosing the largest of a chart of maxima gives the best tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankfold.kernels.log_products import BLOCK
from rankfold.operators.binary import CPD, BinaryOperator, rows_of
from rankfold.operators.factor import Factor
from rankfold.recursions.tree.potentials import Forest

Choose = Callable[[Tensor], Tensor]  # "k n" logarithms -> "k" indices
LogSide = Callable[[Tensor, Factor], Tensor]  # "b s n", the factor "n r" -> "b s r"


class View(Protocol):
    """A rule as a tree is traced through it; k nodes, their sentences b, all in logarithms."""

    width: int  # options of a split
    cost: int  # numbers held for an option while all are made

    def left(self, x: Tensor) -> Tensor: ...  # "b s n" -> "b s l"   what options need of a left child
    def right(self, x: Tensor) -> Tensor: ...
    def options(self, b: Tensor, parent: Tensor, left: Tensor, right: Tensor) -> Tensor: ...  # "k c l" -> "k c o"
    def children(
        self, b: Tensor, option: Tensor, left: Tensor, right: Tensor, choose: Choose
    ) -> tuple[Tensor, Tensor]: ...  # "k", "k n", "k m" -> "k" twice


class Ranks:
    """A CPD by its rank first, r options per split, then each child by itself, n and m."""

    def __init__(self, cpd: CPD, log_side: LogSide) -> None:
        self._cpd, self._log_side = cpd, log_side
        self.width, self.cost = cpd[1].value.shape[-1], 1

    def left(self, x: Tensor) -> Tensor:
        return self._log_side(x, self._cpd[1])

    def right(self, x: Tensor) -> Tensor:
        return self._log_side(x, self._cpd[2])

    def options(self, b: Tensor, parent: Tensor, left: Tensor, right: Tensor) -> Tensor:
        head, both = self._cpd[0], left + right
        if head is not None:
            return both + rows_of(head.log, b, parent).unsqueeze(1)
        only = both.new_full((len(b), self.width), float("-inf"))
        return both + only.scatter(1, parent[:, None], 0.0).unsqueeze(1)

    def children(self, b: Tensor, option: Tensor, left: Tensor, right: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        one, other = (x.log.mT for x in self._cpd[1:])
        return choose(rows_of(one, b, option) + left), choose(rows_of(other, b, option) + right)


class Pairs:
    """Any rule by its pair of children, n m options per split."""

    def __init__(self, rule: BinaryOperator) -> None:
        self._rule = rule
        self.width = rule.shape[1] * rule.shape[2]
        self.cost = rule.row_cost

    def left(self, x: Tensor) -> Tensor:
        return x

    def right(self, x: Tensor) -> Tensor:
        return x

    def options(self, b: Tensor, parent: Tensor, left: Tensor, right: Tensor) -> Tensor:
        both = left.unsqueeze(-1) + right.unsqueeze(-2)
        return (both + self._rule.log_rows(b, parent).unsqueeze(1)).flatten(-2)

    def children(self, b: Tensor, option: Tensor, left: Tensor, right: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        many = self._rule.shape[2]
        return option // many, option % many


class Nodes(NamedTuple):
    """Places in trees that are to be filled, or have been."""

    tree: Tensor  # "k"   which of several trees of a sentence
    sentence: Tensor  # "k"
    start: Tensor  # "k"
    symbol: Tensor  # "k"

    def take(self, index: Tensor | slice) -> Nodes:
        return Nodes(*(x[index] for x in self))

    @staticmethod
    def cat(parts: list[Nodes]) -> Nodes:
        return Nodes(*(torch.cat(same) for same in zip(*parts, strict=True)))


class Traced(NamedTuple):
    """All nodes of all trees, as plain numbers."""

    spans: list[list[list[tuple[int, int, int]]]]  # by tree and sentence: (start, end, symbol), parents first
    tags: list[list[list[int]]]  # the symbols of words; empty where there is no tree


class Sides:
    """The vectors of every child that options are made of, kind by kind, computed at first use."""

    def __init__(self, f: Forest, vectors: list[Tensor], views: Sequence[View]) -> None:
        self.vectors, self.views = vectors, views
        self._keys = [(rule.left_of, rule.right_of) for rule in f.rules]
        self._made: dict[tuple[object, ...], Tensor] = {}

    def of(self, kind: int, width: int, *, left: bool) -> Tensor:  # "b s l"
        view = self.views[kind]
        key = (type(view), self._keys[kind][not left], width, left)
        if key not in self._made:
            self._made[key] = (view.left if left else view.right)(self.vectors[width])
        return self._made[key]


def kinds_of(width: int) -> list[tuple[int, list[int]]]:
    """The kinds of children that a span of this width may have, by place in a Branch, and their words on the left."""
    if width == 2:
        return [(3, [1])]
    return [(2, [1]), (1, [width - 1]), (0, list(range(2, width - 1)))][: 3 if width > 3 else 2]


def trace(f: Forest, vectors: list[Tensor], views: Sequence[View], choose: Choose, num_trees: int = 1) -> Traced:
    """Trees of every sentence, `num_trees` of each. `vectors`: by width, "b s n" logarithms, those of words at 1."""
    sides = Sides(f, vectors, views)
    num, num_words = len(f.lengths), f.log_leaf.shape[1]
    spans: list[list[list[tuple[int, int, int]]]] = [[[] for _ in range(num)] for _ in range(num_trees)]
    tags: list[list[list[int]]] = [[[] for _ in range(num)] for _ in range(num_trees)]
    waiting: dict[int, list[Nodes]] = {width: [] for width in range(1, num_words + 1)}
    every = torch.arange(num_trees, device=f.lengths.device)
    for width in range(1, num_words + 1):
        root = f.log_root_leaf if width == 1 else f.log_root
        top = root + vectors[width][:, 0]
        at = ((f.lengths == width) & (top > float("-inf")).any(-1)).nonzero()[:, 0]
        if len(at):
            tree, b = every.repeat_interleave(len(at)), at.repeat(num_trees)
            waiting[width].append(Nodes(tree, b, torch.zeros_like(b), choose(top[b])))
    for width in range(num_words, 1, -1):
        if not waiting[width]:
            continue
        nodes = Nodes.cat(waiting[width])
        for tree, b, i, symbol in torch.stack(nodes, 1).tolist():
            spans[tree][b].append((i, i + width, symbol))
        for part in pieces(nodes, views, width):
            for child_width, child in _children(part, sides, width, choose):
                waiting[child_width].append(child)
    if waiting[1]:
        nodes = Nodes.cat(waiting[1])
        for tree, b, _, symbol in sorted(torch.stack(nodes, 1).tolist(), key=lambda row: row[2]):
            tags[tree][b].append(symbol)
    for tree_spans in spans:
        for found in tree_spans:
            found.sort(key=lambda ends: (ends[0], -ends[1]))
    return Traced(spans, tags)


def pieces(nodes: Nodes, views: Sequence[View], width: int) -> list[Nodes]:
    """The nodes in pieces whose options, all at once, have a bounded number of entries."""
    each = sum(len(k) * views[kind].width * views[kind].cost for kind, k in kinds_of(width))
    size = max(1, BLOCK // each)
    return [nodes.take(slice(at, at + size)) for at in range(0, len(nodes.tree), size)]


def node_options(nodes: Nodes, sides: Sides, width: int) -> list[Tensor]:  # "k o" by kind of child
    """The log-weights of all options of nodes of a width: splits, and for each the options of the rule."""
    _, b, i, parent = nodes
    found = []
    for kind, cuts in kinds_of(width):
        left = torch.stack([sides.of(kind, k, left=True)[b, i] for k in cuts], 1)
        right = torch.stack([sides.of(kind, width - k, left=False)[b, i + k] for k in cuts], 1)
        found.append(sides.views[kind].options(b, parent, left, right).flatten(1))
    return found


def _children(nodes: Nodes, sides: Sides, width: int, choose: Choose) -> list[tuple[int, Nodes]]:
    """The children of nodes of a width, with their own widths."""
    kinds, logits = kinds_of(width), node_options(nodes, sides, width)
    chosen = choose(torch.cat(logits, 1))
    found, before = [], 0
    for (kind, cuts), options in zip(kinds, logits, strict=True):
        view = sides.views[kind]
        here = ((chosen >= before) & (chosen < before + options.shape[1])).nonzero()[:, 0]
        option = chosen[here] - before
        before += options.shape[1]
        for at, k in enumerate(cuts):
            some = (option // view.width == at).nonzero()[:, 0]
            if len(some):
                part = nodes.take(here[some])
                x, y = (
                    sides.vectors[k][part.sentence, part.start],
                    sides.vectors[width - k][part.sentence, part.start + k],
                )
                one, other = view.children(part.sentence, option[some] % view.width, x, y, choose)
                found.append((k, part._replace(symbol=one)))
                found.append((width - k, part._replace(start=part.start + k, symbol=other)))
    return found
