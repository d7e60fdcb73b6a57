"""Block-sparse emissions: words in clusters, each with states of its own, and transitions between their blocks.

States are laid out "c k": k states for each of c clusters, state = cluster * k + index. `TiedBlockParts` has one
embedding of a state for all its roles, and networks that end in a LayerNorm.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, relu

from rankfold.data.clusters import Clusters
from rankfold.errors import DomainError
from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.numerics.function import Function
from rankfold.numerics.shard import Shard
from rankfold.params.dynamics.transitions import Start
from rankfold.params.networks import Network, normal, take_rows, xavier


class BlockDynamics(Protocol):
    """The first state, and the next state given one, of which only the blocks a text visits are ever computed."""

    @property
    def log_initial(self) -> Tensor: ...  # "c k"
    def steps(self, source: Tensor, target: Tensor) -> Tensor: ...  # "b s", "b s" -> "b s k k"  log-transitions
    def log_rows(self, states: Tensor) -> Tensor: ...  # "n" -> "n z"


class InnerDynamics(NamedTuple):
    """log A[z, y] = source_z . target_y - log_norm_z"""

    log_initial: Tensor  # "c k"
    source: Tensor  # "c k d"
    target: Tensor  # "c k d"
    log_norm: Tensor  # "c k"

    def steps(self, source: Tensor, target: Tensor) -> Tensor:  # "b s", "b s" -> "b s k k"
        pairs: Tensor = _Pairs.apply(_blocks(self.source, source), _blocks(self.target, target))
        return pairs - embedding(source, self.log_norm).unsqueeze(-1)

    def log_rows(self, states: Tensor) -> Tensor:  # "n" -> "n z"
        logits = self.source.flatten(0, 1)[states] @ self.target.flatten(0, 1).mT
        return logits - self.log_norm.flatten()[states, None]


class TableDynamics(NamedTuple):
    """log A as a table, block by block."""

    log_initial: Tensor  # "c k"
    log_table: Tensor  # "c c k k"

    def steps(self, source: Tensor, target: Tensor) -> Tensor:  # "b s", "b s" -> "b s k k"
        shape = self.log_table.shape
        pair = embedding(source * shape[1] + target, self.log_table.flatten(0, 1).flatten(1))
        return pair.reshape(*source.shape, *shape[2:])

    def log_rows(self, states: Tensor) -> Tensor:  # "n" -> "n z"
        cluster, index = states // self.log_table.shape[2], states % self.log_table.shape[2]
        return self.log_table[cluster, :, index].flatten(1)


class BlockEmission(NamedTuple):
    """log p(v | z), for the words of each cluster and its states alone."""

    log_table: Tensor  # "c m k"   m members of a cluster; -inf beyond their number
    cluster: Tensor  # "v"
    position: Tensor  # "v"   of a word among the members of its cluster

    def log_obs(self, words: Tensor) -> Tensor:  # "b t" -> "b t k"
        row = self.cluster[words] * self.log_table.shape[1] + self.position[words]
        return embedding(row, self.log_table.flatten(0, 1))

    def log_rows(self, states: Tensor) -> Tensor:  # "n" -> "n v"
        num_states = self.log_table.shape[2]
        cluster, index = states // num_states, states % num_states
        own = self.log_table[cluster, :, index].gather(1, self.position.expand(len(states), -1))
        return torch.where(self.cluster == cluster[:, None], own, float("-inf"))


class Members(nn.Module):
    """Which words are in which cluster, as buffers: saved with the model, so that it needs no cluster file."""

    shard: Shard | None = None  # of the clusters, where other processes have the rest of them

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        # On the CPU, whatever the parameters are made on: sizes are read here.
        assignment = clusters.assignment.cpu()
        sizes = _cluster_sizes(assignment, clusters.num_clusters)
        self.cluster: Tensor
        self.register_buffer("cluster", assignment)
        order = assignment.argsort(stable=True)
        position = torch.empty_like(assignment)
        position[order] = torch.arange(len(order), device="cpu") - (sizes.cumsum(0) - sizes)[assignment[order]]
        self.position: Tensor
        self.register_buffer("position", position, persistent=False)
        words = assignment.new_zeros(clusters.num_clusters, int(sizes.max()))
        words[assignment, position] = torch.arange(len(assignment), device="cpu")
        self.words: Tensor  # "c m"
        self.register_buffer("words", words, persistent=False)
        self.inside: Tensor  # "c m"
        inside = torch.arange(words.shape[1], device="cpu") < sizes[:, None]
        self.register_buffer("inside", inside, persistent=False)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Other clusters would need other positions: refused, not mixed."""
        other = state_dict.get(prefix + "cluster")
        if other is not None and not torch.equal(other.cpu(), self.cluster.cpu()):
            raise DomainError("the weights are those of other word clusters.\n  Build the model with their clusters.")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def own_words(self) -> Tensor:  # "c m"
        """The words of the clusters that this process has: of all, where it has them all."""
        return self.words if self.shard is None else self.words[self.shard.own]

    def emission(self, logits: Tensor) -> BlockEmission:  # "c m k"
        """Softmax over the members of each cluster."""
        inside = self.inside if self.shard is None else self.inside[self.shard.own]
        logits = logits.masked_fill(~inside.unsqueeze(-1), float("-inf"))
        cluster = self.cluster if self.shard is None else self.shard.local(self.cluster)
        return BlockEmission(torch.log_softmax(logits, 1), cluster, self.position)


class BlockParts(nn.Module):
    """Softmax start, transitions and emissions of the softmax HMM, with p(v | z) = 0 outside the cluster of z.

    Cost: z^2 d for the rows' normalisers, never written out; the padded clusters' c m k d for the emissions.
    Source: Chiu and Rush 2020.
    """

    state_tables = ("source", "target", "state")
    shard: Shard | None = None  # of the clusters, where other processes have the rest of them

    def __init__(self, num_states: int, clusters: Clusters, network: Network) -> None:
        super().__init__()
        self.members, dim, generator = Members(clusters), network.dim, network.generator
        shape = (clusters.num_clusters, num_states // clusters.num_clusters, dim)
        self.start = Start(dim, network.num_layers, generator=generator)
        # Drawn as tables of all states, so that their spread is that of the other families.
        self.source, self.target = (
            nn.Parameter(xavier(num_states, dim, generator=generator).data.reshape(shape)) for _ in range(2)
        )
        state, self.word = network.embeddings(num_states, len(clusters.assignment))
        self.state = nn.Parameter(state.data.reshape(shape))
        self.mlp = network.mlp()

    def forward(self, keep: Tensor | None = None) -> tuple[BlockDynamics, BlockEmission]:  # keep "c k"
        source, target, state = (within(x, keep) for x in (self.source, self.target, self.state))
        log_initial = log_start(target @ self.start(), self.shard)
        target = all_blocks(target, self.shard)
        log_norm = linear_logsumexp(source.flatten(0, 1), target.flatten(0, 1)).reshape(source.shape[:2])
        logits = embedding(self.members.own_words(), self.word) @ self.mlp(state).mT  # "c m k"
        return InnerDynamics(log_initial, source, target, log_norm), self.members.emission(logits)

    def border(self, states: Tensor, block: Tensor, keep: Tensor | None) -> Tensor:  # "b j", "b", "c k" -> "b j k"
        """log A out of any states of the whole model, kept or not, into the kept states of one block each.

        Rows are normalised over all kept states: for streams whose last states are dropped in the next step.
        """
        target = all_blocks(within(self.target, keep), self.shard)
        return border(embedding(states, self.source.flatten(0, 1)), target, block)


class FreeBlockParts(nn.Module):
    """The same of free logits: z^2 parameters of the transitions, v k of the emissions."""

    state_tables = ("log_initial", "log_transition")
    shard: Shard | None = None  # of the clusters, where other processes have the rest of them

    def __init__(self, num_states: int, clusters: Clusters, *, generator: torch.Generator) -> None:
        super().__init__()
        self.members = Members(clusters)
        num, size = clusters.num_clusters, num_states // clusters.num_clusters
        self.log_initial = nn.Parameter(torch.zeros(num, size, dtype=torch.float32))
        self.log_transition = nn.Parameter(
            xavier(num_states, num_states, generator=generator).data.reshape(num, size, num, size)
        )
        self.log_emission = xavier(len(clusters.assignment), size, generator=generator)

    def forward(self, keep: Tensor | None = None) -> tuple[BlockDynamics, BlockEmission]:  # keep "c k"
        log_initial = within(self.log_initial.unsqueeze(-1), keep).squeeze(-1)
        table = within(self.log_transition.flatten(2), keep)
        table = table.reshape(*table.shape[:2], *self.log_transition.shape[2:])
        logits = embedding(self.members.own_words(), self.log_emission)  # "c m k"
        if keep is not None:
            targets = all_blocks(keep[..., None].double(), self.shard)[..., 0].long()  # which others keep
            table = table.gather(3, targets.expand(*table.shape[:2], *targets.shape))
            logits = logits.gather(2, keep[:, None].expand(-1, logits.shape[1], -1))
        rows = torch.log_softmax(table.flatten(2), 2).reshape(table.shape)
        log_initial = log_start(log_initial, self.shard)
        return TableDynamics(log_initial, rows.transpose(1, 2).contiguous()), self.members.emission(logits)

    def border(self, states: Tensor, block: Tensor, keep: Tensor | None) -> Tensor:  # "b j", "b", "c k" -> "b j k"
        """As `BlockParts.border`."""
        rows = embedding(states, self.log_transition.flatten(0, 1).flatten(1))
        table = rows.reshape(*states.shape, *self.log_transition.shape[2:])  # "b j c k"
        if keep is not None:
            keep = all_blocks(keep[..., None].double(), self.shard)[..., 0].long()
            table = table.gather(3, keep.expand(*states.shape, *keep.shape))
        rows = torch.log_softmax(table.flatten(2), 2).reshape(table.shape)
        index = block[:, None, None, None].expand(-1, table.shape[1], 1, table.shape[3])
        return rows.gather(2, index)[:, :, 0]


def log_start(logits: Tensor, shard: Shard | None) -> Tensor:  # "c k" -> "c k"
    """log softmax over all states, those of other processes included."""
    flat = logits.flatten()
    return (torch.log_softmax(flat, 0) if shard is None else shard.log_softmax(flat)).reshape(logits.shape)


def all_blocks(x: Tensor, shard: Shard | None) -> Tensor:  # "c k d" -> "c k d"
    """The vectors of all clusters, gathered once: "z d" numbers."""
    if shard is None:
        return x
    return shard.gather(x.flatten(1).mT.contiguous()).mT.reshape(shard.size, *x.shape[1:])


def border(source: Tensor, target: Tensor, block: Tensor) -> Tensor:  # "b j d", "c k d", "b" -> "b j k"
    """log softmax of inner products over all targets, of which those of one block are returned.   Cost: b j z d."""
    log_norm = linear_logsumexp(source.flatten(0, 1), target.flatten(0, 1)).reshape(source.shape[:2])
    own = embedding(block, target.flatten(1)).reshape(len(block), *target.shape[1:])
    return source @ own.mT - log_norm.unsqueeze(-1)


def _cluster_sizes(assignment: Tensor, num_clusters: int) -> Tensor:  # "v" -> "c"
    """The number of words in each cluster; raises unless every one has a word and no word is elsewhere."""
    low, high = int(assignment.min()), int(assignment.max())
    if low < 0 or high >= num_clusters:
        raise DomainError(
            f"a word is in cluster {low if low < 0 else high}, but clusters are numbered 0 to {num_clusters - 1}."
        )
    sizes = torch.bincount(assignment, minlength=num_clusters)
    if not bool((sizes > 0).all()):
        raise DomainError(
            f"cluster {int((sizes == 0).nonzero()[0])} of {num_clusters} has no word.\n"
            "  Its states would say nothing: give every cluster a word."
        )
    return sizes


def within(x: Tensor, keep: Tensor | None) -> Tensor:  # "c k d", "c j" -> "c j d"
    """Some states of each cluster, or all."""
    if keep is None:
        return x
    rows = keep + x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
    return take_rows(x.flatten(0, 1), rows.flatten()).reshape(*keep.shape, -1)


def _blocks(table: Tensor, index: Tensor) -> Tensor:  # "c k d", "b s" -> "b s k d"
    """The states of some clusters."""
    flat = table.flatten(1)
    taken = _Blocks.apply(flat, index) if table.is_cuda else embedding(index, flat)
    return taken.reshape(*index.shape, *table.shape[1:])


class _Blocks(Function):
    """Rows of a table of few and long ones, whose gradient is a product: on a GPU adding row by row takes four times
    as long.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:  # "c n", "b s" -> "b s n"
        ctx.save_for_backward(index)
        ctx.num = len(table)
        return embedding(index, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        (index,) = ctx.saved_tensors
        chosen = torch.arange(ctx.num, device=index.device)[:, None] == index.flatten()
        return chosen.to(grad.dtype) @ grad.flatten(0, -2), None


class _Pairs(Function):
    """left right^T, block by block. autograd's own gradient of `right` comes transposed, and is copied to be used."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:  # "... k d", "... j d" -> "... k j"
        ctx.save_for_backward(left, right)
        return left @ right.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        (grad,) = grads
        return grad @ right, grad.mT @ left


class PostNormLayer(nn.Module):
    """LayerNorm(relu(L2 h) + h) with h = relu(L1 x): the shortcut carries h, not x.   Cost: 2 d^2 per vector."""

    def __init__(self, dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.first = uniform_linear(dim, dim, generator=generator)
        self.second = uniform_linear(dim, dim, generator=generator)
        self.norm = nn.LayerNorm(dim, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:  # "... d" -> "... d"
        hidden = relu(self.first(x))
        out: Tensor = self.norm(relu(self.second(hidden)) + hidden)
        return out


class TiedBlockParts(nn.Module):
    """One embedding e_z per state, for all its roles: start, source and target of transitions, emission.

        start[z]  = softmax_z( w . f1(e_z) + b )           A[z, y] = softmax_y( f2(e_z) . e_y )
        E[z, x]   = softmax_x( f3(e_z) . w_x + b_x ),  x in the cluster of z

    f1, f2, f3 are `num_layers` post-norm layers each. With `init="spread"` the logits of A begin with a spread of about
    1. Otherwise embeddings begin as standard normal vectors, as in the authors' code: the logits have a spread of
    sqrt(d), and a perplexity of a million is where training starts. Cost: as `BlockParts`.
    Source: Chiu and Rush 2020, by their code: dim 256, one layer, 11.36M parameters for 32,768 states.
    """

    state_tables = ("state",)
    shard: Shard | None = None  # of the clusters, where other processes have the rest of them

    def __init__(self, num_states: int, clusters: Clusters, network: Network) -> None:
        super().__init__()
        self.members, dim, generator = Members(clusters), network.dim, network.generator
        shape = (clusters.num_clusters, num_states // clusters.num_clusters, dim)
        spread = dim**-0.5 if network.init == "spread" else 1.0
        self.state = nn.Parameter(normal(num_states, dim, spread=spread, generator=generator).data.reshape(shape))
        self.start_mlp, self.transition_mlp, self.emission_mlp = (
            nn.Sequential(*(PostNormLayer(dim, generator=generator) for _ in range(network.num_layers)))
            for _ in range(3)
        )
        self.start = uniform_linear(dim, 1, generator=generator)
        self.word = uniform_linear(dim, len(clusters.assignment), generator=generator)

    def forward(self, keep: Tensor | None = None) -> tuple[BlockDynamics, BlockEmission]:  # keep "c k"
        state = within(self.state, keep)
        log_initial = log_start(self.start(self.start_mlp(state))[..., 0], self.shard)
        source, target = self.transition_mlp(state), all_blocks(state, self.shard)
        log_norm = linear_logsumexp(source.flatten(0, 1), target.flatten(0, 1)).reshape(state.shape[:2])
        words = self.members.own_words()
        logits = embedding(words, self.word.weight) @ self.emission_mlp(state).mT  # "c m k"
        logits = logits + embedding(words, self.word.bias[:, None])
        return InnerDynamics(log_initial, source, target, log_norm), self.members.emission(logits)

    def border(self, states: Tensor, block: Tensor, keep: Tensor | None) -> Tensor:  # "b j", "b", "c k" -> "b j k"
        """As `BlockParts.border`."""
        source = self.transition_mlp(embedding(states, self.state.flatten(0, 1)))
        return border(source, all_blocks(within(self.state, keep), self.shard), block)


def uniform_linear(num_in: int, num_out: int, *, generator: torch.Generator) -> nn.Linear:
    """A linear layer, weights and bias uniform in +-1 / sqrt(num_in), which is what torch draws by default."""
    layer = nn.Linear(num_in, num_out, device="meta")  # no numbers drawn: they come from our generator
    reach = num_in**-0.5
    layer.weight, layer.bias = (
        nn.Parameter(torch.empty(shape, dtype=torch.float32).uniform_(-reach, reach, generator=generator))
        for shape in ((num_out, num_in), (num_out,))
    )
    return layer
