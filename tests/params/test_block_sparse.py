"""Block-sparse parts against the same tables written out over all states and words."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold import DomainError
from rankfold.data.clusters import Clusters
from rankfold.params.block_sparse import BlockParts, FreeBlockParts, InnerDynamics, Members
from rankfold.params.networks import Network
from tests.oracles import tables
from tests.params.build import EXACT, close, seeded, stirred, through

INF = float("inf")
ASSIGNMENT = [1, 0, 2, 0, 1, 0, 2]  # clusters of 3, 2 and 2 words
neural_or_free = pytest.mark.parametrize("neural", [True, False])
keeps = pytest.mark.parametrize("keep", [None, [[0, 1], [1, 2], [0, 2]], [[2], [0], [1]]])


def clusters(assignment: list[int] | None = None) -> Clusters:
    assignment = ASSIGNMENT if assignment is None else assignment
    return Clusters(torch.tensor(assignment), max(assignment) + 1)


def module_of(neural: bool, num_states: int = 9, assignment: list[int] | None = None) -> BlockParts | FreeBlockParts:
    if neural:
        return stirred(BlockParts(num_states, clusters(assignment), Network(2, 1, seeded())), scale=0.4)
    return stirred(FreeBlockParts(num_states, clusters(assignment), generator=seeded()))


def whole_tables(
    module: BlockParts | FreeBlockParts, keep: list[list[int]] | None
) -> tuple[list[float], list[list[float]], list[list[float]]]:
    """Start "z", transition "z z" and emission "z v" of the kept states, by the oracle."""
    num, size = (module.source if isinstance(module, BlockParts) else module.log_initial).shape[:2]
    states = [(c, k) for c in range(num) for k in (range(size) if keep is None else keep[c])]
    assignment = module.members.cluster.tolist()
    if isinstance(module, BlockParts):
        source, target, state = (x.tolist() for x in (module.source, module.target, module.state))
        begin = through(module.start.mlp, module.start.embedding.tolist())
        start = [tables.dot(begin, target[c][k]) for c, k in states]
        rows = [[tables.dot(source[c][k], target[d][j]) for d, j in states] for c, k in states]
        says = [[tables.dot(through(module.mlp, state[c][k]), w) for w in module.word.tolist()] for c, k in states]
    else:
        initial, moves, words = (x.tolist() for x in (module.log_initial, module.log_transition, module.log_emission))
        start = [initial[c][k] for c, k in states]
        rows = [[moves[c][k][d][j] for d, j in states] for c, k in states]
        says = [[w[k] for w in words] for _, k in states]
    for (c, _), row in zip(states, says, strict=True):
        row[:] = [x if assignment[v] == c else -math.inf for v, x in enumerate(row)]
    return tables.softmax(start), [tables.softmax(row) for row in rows], [tables.softmax(row) for row in says]


def kept(keep: list[list[int]] | None) -> Tensor | None:
    return None if keep is None else torch.tensor(keep)


@neural_or_free
@keeps
def test_tables(neural: bool, keep: list[list[int]] | None) -> None:
    module = module_of(neural)
    dynamics, emission = module(kept(keep))
    start, rows, says = whole_tables(module, keep)
    size = len(start) // 3
    every = torch.arange(len(start))
    assert dynamics.log_initial.shape == (3, size)
    close(dynamics.log_initial.flatten().exp(), start)
    close(dynamics.log_rows(every).exp(), rows)
    close(emission.log_rows(every).exp(), says)
    words = torch.tensor([[0, 1, 2, 3], [6, 5, 4, 3]])
    expected = [[[says[ASSIGNMENT[v] * size + k][v] for k in range(size)] for v in row] for row in words.tolist()]
    close(emission.log_obs(words).exp(), expected)


@neural_or_free
@keeps
def test_steps_are_blocks_of_the_whole_table(neural: bool, keep: list[list[int]] | None) -> None:
    module = module_of(neural)
    dynamics, _ = module(kept(keep))
    start, rows, _ = whole_tables(module, keep)
    size = len(start) // 3
    source, target = torch.tensor([[0, 1, 2], [2, 2, 0]]), torch.tensor([[1, 1, 0], [2, 0, 1]])
    expected = [
        [
            [[rows[c * size + k][d * size + j] for j in range(size)] for k in range(size)]
            for c, d in zip(cs, ds, strict=True)
        ]
        for cs, ds in zip(source.tolist(), target.tolist(), strict=True)
    ]
    close(dynamics.steps(source, target).exp(), expected)
    none = torch.empty(2, 0, dtype=torch.int64).zero_()
    assert dynamics.steps(none, none).shape == (2, 0, size, size)


@neural_or_free
@keeps
def test_rows_sum_to_one_and_are_zero_outside_the_cluster(neural: bool, keep: list[list[int]] | None) -> None:
    dynamics, emission = module_of(neural)(kept(keep))
    every = torch.arange(dynamics.log_initial.numel())
    one = torch.ones(len(every), dtype=torch.float64)
    torch.testing.assert_close(dynamics.log_initial.exp().sum(), one[0], **EXACT)
    torch.testing.assert_close(dynamics.log_rows(every).exp().sum(1), one, **EXACT)
    says = emission.log_rows(every)
    torch.testing.assert_close(says.exp().sum(1), one, **EXACT)
    outside = torch.tensor(ASSIGNMENT) != (every // dynamics.log_initial.shape[1])[:, None]
    assert (says[outside] == -INF).all()
    assert (says[~outside] > -INF).all()


@neural_or_free
@pytest.mark.parametrize(("num_states", "assignment"), [(1, [0]), (3, [0, 0, 0]), (3, [2, 0, 1]), (4, [0, 1, 1, 1])])
def test_odd_sizes(neural: bool, num_states: int, assignment: list[int]) -> None:
    module = module_of(neural, num_states, assignment)
    dynamics, emission = module()
    start, rows, says = whole_tables(module, None)
    close(dynamics.log_initial.flatten().exp(), start)
    close(dynamics.log_rows(torch.arange(num_states)).exp(), rows)
    close(emission.log_rows(torch.arange(num_states)).exp(), says)


def test_members() -> None:
    members = Members(clusters())
    assert members.position.tolist() == [0, 0, 0, 1, 1, 2, 1]
    assert members.words.tolist() == [[1, 3, 5], [0, 4, 0], [2, 6, 0]]
    assert members.inside.tolist() == [[True, True, True], [True, True, False], [True, True, False]]
    assert set(members.state_dict()) == {"cluster"}
    for word, cluster in enumerate(ASSIGNMENT):
        assert int(members.words[cluster, members.position[word]]) == word


def test_an_empty_cluster_raises() -> None:
    with pytest.raises(DomainError, match="cluster 1 of 3 has no word"):
        Members(Clusters(torch.tensor([0, 2, 0]), 3))
    with pytest.raises(DomainError, match="cluster 3 of 4 has no word"):
        Members(Clusters(torch.tensor([0, 2, 1]), 4))


@pytest.mark.parametrize("assignment", [[0, 1, 2], [0, 1, -1]])
def test_a_cluster_that_is_not_there_raises(assignment: list[int]) -> None:
    with pytest.raises(DomainError, match="cluster"):
        Members(Clusters(torch.tensor(assignment), 2))


@neural_or_free
@keeps
def test_gradients_with_padded_clusters_are_finite(neural: bool, keep: list[list[int]] | None) -> None:
    module = module_of(neural)
    dynamics, emission = module(kept(keep))
    words = torch.arange(7)[None]
    block = torch.tensor(ASSIGNMENT)[None]
    total = emission.log_obs(words).sum() + dynamics.log_initial.sum() + dynamics.steps(block, block.flip(1)).sum()
    total.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_derivatives_of_steps() -> None:
    """Of both sides and of the normalisers, twice."""
    g = seeded()
    inputs = tuple(torch.randn(shape, generator=g, dtype=torch.float64) for shape in [(3, 2, 4), (3, 2, 4), (3, 2)])
    source, target = torch.tensor([[0, 2, 2], [1, 1, 0]]), torch.tensor([[1, 2, 0], [1, 0, 0]])

    def steps(left: Tensor, right: Tensor, log_norm: Tensor) -> Tensor:
        return InnerDynamics(torch.zeros(3, 2), left, right, log_norm).steps(source, target)

    left, right, log_norm = inputs
    expected = torch.einsum("bskd,bsjd->bskj", left[source], right[target]) - log_norm[source].unsqueeze(-1)
    torch.testing.assert_close(steps(*inputs), expected, rtol=1e-13, atol=1e-13)
    leaves = tuple(x.requires_grad_() for x in inputs)
    assert gradcheck(steps, leaves)
    assert gradgradcheck(steps, leaves)
