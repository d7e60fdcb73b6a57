"""Block-sparse parts of the VL-HMM: one embedding of a state for all its roles, and networks that end in a LayerNorm.

The interface is that of `BlockParts`; so are the distributions it returns. Read next: `params/block_parts.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, relu

from rankfold.data.clusters import Clusters
from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.params.block_parts import BlockDynamics, BlockEmission, InnerDynamics, Members, border, within
from rankfold.params.blocks import normal
from rankfold.params.emissions import InitKind


class PostNormLayer(nn.Module):
    """LayerNorm(relu(L2 h) + h) with h = relu(L1 x): what is passed by is h, not x.   Cost: 2 d^2 a vector."""

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
    """One embedding e_z of a state, as where a path starts, comes from, goes to, and as what says a word.

        start[z]  = softmax_z( w . f1(e_z) + b )           A[z, y] = softmax_y( f2(e_z) . e_y )
        E[z, x]   = softmax_x( f3(e_z) . w_x + b_x ),  x in the cluster of z

    f1, f2, f3 are `num_layers` post-norm layers each. With `init="spread"` the logits of A begin with a spread of about
    1. Otherwise embeddings begin as standard normal vectors, as in the authors' code: the logits have a spread of
    sqrt(d), and a perplexity of a million is where training starts. Cost: as `BlockParts`.
    Source: Chiu and Rush 2020, by their code: dim 256, one layer, 11.36M parameters for 32,768 states.
    """

    def __init__(
        self,
        num_states: int,
        clusters: Clusters,
        dim: int,
        num_layers: int,
        *,
        init: InitKind = "spread",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.members = Members(clusters)
        shape = (clusters.num_clusters, num_states // clusters.num_clusters, dim)
        spread = dim**-0.5 if init == "spread" else 1.0
        self.state = nn.Parameter(normal(num_states, dim, spread=spread, generator=generator).data.reshape(shape))
        self.start_mlp, self.transition_mlp, self.emission_mlp = (
            nn.Sequential(*(PostNormLayer(dim, generator=generator) for _ in range(num_layers))) for _ in range(3)
        )
        self.start = uniform_linear(dim, 1, generator=generator)
        self.word = uniform_linear(dim, len(clusters.assignment), generator=generator)

    def forward(self, keep: Tensor | None = None) -> tuple[BlockDynamics, BlockEmission]:  # keep "c k"
        state = within(self.state, keep)
        log_initial = torch.log_softmax(self.start(self.start_mlp(state)).flatten(), 0).reshape(state.shape[:2])
        source = self.transition_mlp(state)
        log_norm = linear_logsumexp(source.flatten(0, 1), state.flatten(0, 1)).reshape(state.shape[:2])
        words = self.members.words
        logits = embedding(words, self.word.weight) @ self.emission_mlp(state).mT  # "c m k"
        logits = logits + embedding(words, self.word.bias[:, None])
        return InnerDynamics(log_initial, source, state, log_norm), self.members.emission(logits)

    def border(self, states: Tensor, block: Tensor, keep: Tensor | None) -> Tensor:  # "b j", "b", "c k" -> "b j k"
        """As `BlockParts.border`."""
        source = self.transition_mlp(embedding(states, self.state.flatten(0, 1)))
        return border(source, within(self.state, keep), block)


def uniform_linear(num_in: int, num_out: int, *, generator: torch.Generator) -> nn.Linear:
    """A linear layer, weights and bias uniform in +-1 / sqrt(num_in), which is what torch draws by default."""
    layer = nn.Linear(num_in, num_out, device="meta")  # no numbers drawn: they come from our generator
    reach = num_in**-0.5
    layer.weight, layer.bias = (
        nn.Parameter(torch.empty(shape, dtype=torch.float32).uniform_(-reach, reach, generator=generator))
        for shape in ((num_out, num_in), (num_out,))
    )
    return layer
