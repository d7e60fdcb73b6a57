"""The VL-HMM's parts against the same tables written out, and the number of their parameters against the paper's."""

import math

import pytest
import torch
from torch import nn

from rankfold.data.clusters import Clusters, uniform_clusters
from rankfold.params.block_sparse import InnerDynamics, TiedBlockParts, uniform_linear
from rankfold.params.networks import InitKind, Network
from tests.oracles import tables
from tests.params.build import EXACT, close, layer, seeded, stirred

ASSIGNMENT = [1, 0, 2, 0, 1, 0, 2]  # clusters of 3, 2 and 2 words
NUM, SIZE, DIM = 3, 3, 4
KEEPS = [None, [[0, 1], [1, 2], [0, 2]], [[2], [0], [1]]]
keeps = pytest.mark.parametrize("keep", KEEPS)
layers = pytest.mark.parametrize("num_layers", [0, 1, 2])


def module_of(num_layers: int = 1) -> TiedBlockParts:
    clusters = Clusters(torch.tensor(ASSIGNMENT), NUM)
    return stirred(TiedBlockParts(NUM * SIZE, clusters, Network(DIM, num_layers, seeded())), scale=0.3)


def through(network: nn.Sequential, x: list[float]) -> list[float]:
    for part in network:
        hidden = [max(0.0, h) for h in tables.linear(x, layer(part.first))]
        added = [max(0.0, h) + a for h, a in zip(tables.linear(hidden, layer(part.second)), hidden, strict=True)]
        x = tables.layer_norm(added, part.norm.weight.tolist(), part.norm.bias.tolist(), part.norm.eps)
    return x


def whole_tables(
    module: TiedBlockParts, keep: list[list[int]] | None
) -> tuple[list[float], list[list[float]], list[list[float]]]:
    """Start "z", transition "z z" and emission "z v" of the kept states, by the oracle."""
    e = module.state.tolist()
    states = [(c, k) for c in range(NUM) for k in (range(SIZE) if keep is None else keep[c])]
    start = [tables.linear(through(module.start_mlp, e[c][k]), layer(module.start))[0] for c, k in states]
    rows = [[tables.dot(through(module.transition_mlp, e[c][k]), e[d][j]) for d, j in states] for c, k in states]
    says = [tables.linear(through(module.emission_mlp, e[c][k]), layer(module.word)) for c, k in states]
    says = [
        [x if ASSIGNMENT[v] == c else -math.inf for v, x in enumerate(row)]
        for (c, _), row in zip(states, says, strict=True)
    ]
    return tables.softmax(start), [tables.softmax(row) for row in rows], [tables.softmax(row) for row in says]


@keeps
@layers
def test_tables(keep: list[list[int]] | None, num_layers: int) -> None:
    module = module_of(num_layers)
    dynamics, emission = module(None if keep is None else torch.tensor(keep))
    start, rows, says = whole_tables(module, keep)
    every = torch.arange(len(start))
    close(dynamics.log_initial.flatten().exp(), start)
    close(dynamics.log_rows(every).exp(), rows)
    close(emission.log_rows(every).exp(), says)
    block = torch.tensor([[0, 2, 1]])
    assert isinstance(dynamics, InnerDynamics)
    size = len(start) // NUM
    expected = [rows[2 * size + k][size : 2 * size] for k in range(size)]
    close(dynamics.steps(block[:, :-1], block[:, 1:]).exp()[0, 1], expected)


@layers
def test_gradients_reach_every_parameter(num_layers: int) -> None:
    module = module_of(num_layers)
    dynamics, emission = module(torch.tensor([[0, 1], [1, 2], [0, 2]]))
    block = torch.tensor(ASSIGNMENT)[None]
    total = emission.log_obs(torch.arange(7)[None]).sum() + dynamics.log_initial[0].sum()
    (total + dynamics.steps(block, block.flip(1)).sum()).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(("num_states", "count"), [(2**14, 7_161_106), (2**15, 11_355_410)])
def test_as_many_parameters_as_the_paper(num_states: int, count: int) -> None:
    """Chiu and Rush 2020: 7.2M and 11.4M, with the 10,001 words of their code, 128 clusters, dim 256."""
    clusters = uniform_clusters(10_001, 128, seed=0)
    with torch.device("meta"):
        module = TiedBlockParts(num_states, clusters, Network(256, 1, torch.Generator("cpu")))
    assert sum(x.numel() for x in module.parameters()) == count


@pytest.mark.parametrize(("init", "spread"), [("spread", 1 / 8), ("xavier", 1.0)])
def test_how_parameters_begin(init: InitKind, spread: float) -> None:
    clusters = Clusters(torch.tensor([0, 1] * 50), 2)
    module = TiedBlockParts(2**10, clusters, Network(64, 1, seeded(), init))
    assert module.state.shape == (2, 512, 64)
    # 65,536 numbers: the mean is off by 1/256, the spread by less, 5 times that is allowed.
    assert abs(float(module.state.detach().mean())) < 0.02 * spread
    assert abs(float(module.state.detach().std()) / spread - 1) < 0.02
    dynamics, _ = module()
    logits = dynamics.log_rows(torch.arange(2**10)).detach()
    # Of vectors of norm sqrt(d) after a LayerNorm, times vectors of this spread: a spread of 8 times it, to a tenth.
    assert float(logits.std(1).mean()) == pytest.approx(8 * spread, rel=0.1, abs=0)
    for part in (module.word, module.start, module.emission_mlp[0].first):
        for x in (part.weight.detach(), part.bias.detach()):
            assert float(x.abs().max()) <= 1 / 8
    weight = module.word.weight.detach()
    assert float(weight.abs().max()) > 0.124
    # Uniform in +-1/8: spread 1/8/sqrt(3), of 6,400 numbers.
    assert abs(float(weight.std()) * 8 * math.sqrt(3) - 1) < 0.05


def test_default_layers_are_drawn_from_the_generator() -> None:
    one, two, other = (uniform_linear(3, 5, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(one.bias, two.bias)
    assert not torch.equal(one.weight, other.weight)
    assert one.weight.shape == (5, 3)
    assert one.bias.shape == (5,)
    x = torch.tensor([[1.0, -2.0, 0.5]])
    torch.testing.assert_close(one(x), x @ one.weight.T + one.bias, **EXACT)
