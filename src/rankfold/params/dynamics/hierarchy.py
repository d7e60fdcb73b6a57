"""States that call chains of their own: the dynamics of a hierarchical HMM, flattened exactly.

A tree: its leaves say the frames, every other node is a chain whose states are the node's children. A child that is a
chain itself is called: it enters one of its own states, moves among them, and ends; then its parent moves on. A state
of the flat chain is a leaf, which stands for the whole stack above it. Source: Fine, Singer, Tishby 1998.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.errors import DomainError
from rankfold.numerics.log_space import log_weights
from rankfold.operators import Dense
from rankfold.params.dynamics.free_tables import Dynamics
from rankfold.params.networks import normal
from rankfold.params.prior import Prior, Table, log_shares, weighted_logs


class Tree:
    """Nodes in the order of their numbers, each after its parent; -1 is the root, which never ends."""

    def __init__(self, parents: Sequence[int]) -> None:
        if not parents or any(not -1 <= parent < i for i, parent in enumerate(parents)):
            raise DomainError(
                f"parents are {list(parents)!r:.80}, but every node comes after its parent, and -1 is the root."
            )
        inner = sorted(set(parents))
        if inner[0] != -1:
            raise DomainError("no node has the parent -1, the root.")
        self.chains = [[i for i, parent in enumerate(parents) if parent == node] for node in inner]  # children
        self.leaves = [i for i in range(len(parents)) if i not in inner]
        # member[chain][leaf]: which child of the chain the leaf is below; -1: none
        self.member = torch.full((len(inner), len(self.leaves)), -1, device="cpu")
        for z, leaf in enumerate(self.leaves):
            node = leaf
            while node != -1:
                chain = inner.index(parents[node])
                self.member[chain, z] = self.chains[chain].index(node)
                node = parents[node]
        # Of each chain but the root, the number of the chain that calls it.
        self.below = [inner.index(parents[node]) for node in inner[1:]]
        self.paths = [[int(x) for x in self.member[:, z] if x >= 0] for z in range(len(self.leaves))]  # root first


class FreeHierarchy(nn.Module):
    """Of every chain the entry, softmax over its states, and the moves, softmax over its states and, last, its end.

        A[a, b] = sum over the chains that hold both leaves a and b:
                  ends of all chains below on the way up from a  x  move  x  entries of all chains on the way down to b

    More than one chain may have moved: a chain may end and be entered again. EM counts each in proportion. Chain 0 is
    the root, whose moves have no end. Cost: that of a dense transition, and z^2 for each chain to make it.
    """

    def __init__(self, tree: Tree, entries: Sequence[Tensor], moves: Sequence[Tensor]) -> None:  # "c", "c (c 1)" each
        super().__init__()
        self.tree = tree
        self.log_entry = nn.ParameterList([nn.Parameter(x) for x in entries])
        self.log_move = nn.ParameterList([nn.Parameter(x) for x in moves])

    @classmethod
    def draw(cls, parents: Sequence[int], *, generator: torch.Generator) -> FreeHierarchy:
        """Tables near uniform."""
        tree = Tree(parents)
        sizes = [len(children) for children in tree.chains]
        moves = [normal(n, n + (i > 0), spread=0.1, generator=generator).data for i, n in enumerate(sizes)]
        return cls(tree, [torch.zeros(n, dtype=torch.float32) for n in sizes], moves)

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        assert keep is None, "configurations of hierarchies have no dropout"
        assert stays is None, "configurations of hierarchies have no dropout"
        entries, moves = ([x.softmax(-1) for x in logits] for logits in (self.log_entry, self.log_move))
        up, down = self._ways(entries, moves)
        terms = [self._term(i, up[i], moves[i], down[i]) for i in range(len(moves))]
        return Dynamics(log_weights(self._at(entries[0], 0) * down[0]), Dense.unchecked(torch.stack(terms).sum(0)))

    def _at(self, values: Tensor, chain: int) -> Tensor:  # "c" -> "z"
        """The value of the child that each leaf is below; 1 for leaves elsewhere."""
        member = self.tree.member[chain].to(values.device)
        return torch.where(member >= 0, values[member], 1.0)

    def _ways(self, entries: Sequence[Tensor], moves: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """For every chain and leaf below it: the ends of, and the entries into, the chains between them, "z" each."""
        num = len(moves)
        one = torch.ones(len(self.tree.leaves), dtype=entries[0].dtype, device=entries[0].device)
        up, down = [one] * num, [one] * num
        for i in reversed(range(1, num)):  # chains come after their parents
            parent, inside = self.tree.below[i - 1], (self.tree.member[i] >= 0).to(one.device)
            up[parent] = torch.where(inside, up[i] * self._at(moves[i][:, -1], i), up[parent])
            down[parent] = torch.where(inside, down[i] * self._at(entries[i], i), down[parent])
        return up, down

    def _term(self, chain: int, up: Tensor, move: Tensor, down: Tensor) -> Tensor:  # "z z"
        """The transitions between leaves by a move of one chain."""
        member = self.tree.member[chain].to(move.device)
        both = (member[:, None] >= 0) & (member >= 0)
        return torch.where(both, up[:, None] * move[member[:, None], member] * down, 0.0)

    def count(self, initial: Tensor, uses: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # "c", "c (c 1)", "c", ...
        """The expected uses of every chain's entry and moves; which chain moved is hidden."""
        entries, moves = (
            [table.value for name, table in self.tables().items() if name.startswith(kind)]
            for kind in ("entry", "move")
        )
        up, down = self._ways(entries, moves)
        terms = [self._term(i, up[i], moves[i], down[i]) for i in range(len(moves))]
        total = torch.stack(terms).sum(0)
        ratio = torch.where(total > 0, uses[0].double() / torch.where(total > 0, total, 1.0), 0.0)
        moved = [ratio * term for term in terms]  # "z z" each
        left, entered = ([x.sum(axis) for x in moved] for axis in (1, 0))  # "z" each: by moves of each chain
        found: list[Tensor] = []
        over_left, over_entered = [torch.zeros_like(x) for x in left], [initial.double() for _ in entered]
        for i, entry in enumerate(entries):
            if i:  # a leaf below chain i leaves it, or comes into it, where any chain above moves
                parent = self.tree.below[i - 1]
                over_left[i] = over_left[parent] + left[parent]
                over_entered[i] = over_entered[parent] + entered[parent]
            child = nn.functional.one_hot(self.tree.member[i].to(entry.device) + 1, len(entry) + 1)[:, 1:].to(entry)
            used = child.mT @ moved[i] @ child
            if i:
                used = torch.cat([used, (over_left[i] @ child)[:, None]], 1)
            found += [over_entered[i] @ child, used]
        return tuple(found)

    @torch.no_grad()
    def maximise(self, counts: tuple[Tensor, ...], prior: Prior) -> None:
        """The shares, with `smoothing` of each; what is never used stays as it is."""
        for (name, own), used in zip(self._named(), counts, strict=True):
            if name not in prior.fixed:
                own.copy_(log_shares(used + prior.smoothing, own, -1))

    def _named(self) -> list[tuple[str, Tensor]]:
        pairs = zip(self.log_entry, self.log_move, strict=True)
        return [
            named for i, (entry, move) in enumerate(pairs) for named in ((f"entry_{i}", entry), (f"move_{i}", move))
        ]

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the Dirichlet prior, up to a constant; 0 without one."""
        logs = [x.double().log_softmax(-1) for _, x in self._named()]
        return torch.stack([weighted_logs(prior.smoothing, x) for x in logs]).sum()

    def initialise(self, runs: Sequence[Tensor], prior: Prior, rng: np.random.Generator) -> None:  # "t" each
        """Uniform entries; moves drawn at random. EM has to find out which leaves belong together."""
        made = {}
        for name, table in self.tables().items():
            value = torch.ones_like(table.value)
            if name.startswith("move"):
                value = value + torch.from_numpy(rng.random(tuple(value.shape))).to(value)
            made[name] = value / value.sum(-1, keepdim=True)
        self.fill(**made)

    def tables(self) -> dict[str, Table]:
        """Of chain 0, the root, `entry_0` and `move_0`, and so on; the last column of other moves is the end."""
        return {name: Table(x.detach().double().softmax(-1), x.ndim - 1) for name, x in self._named()}

    def fill(self, **tables: Tensor) -> None:
        """Set some of the distributions."""
        own = dict(self._named())
        with torch.no_grad():
            for name, table in tables.items():
                own[name].copy_(table.log())

    def num_free(self, forbidden: Tensor | None = None) -> int:
        """The number of free parameters: one less for each distribution."""
        return sum(x.numel() - (1 if x.ndim == 1 else len(x)) for _, x in self._named())
