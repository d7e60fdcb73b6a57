"""The Kronecker product against the definition, and a factorial HMM against the enumeration of both its chains."""

import itertools
import math

import pytest
import torch

from rankfold import ChainPotentials, Dense, LowRank, UnsupportedError, log_z, posterior
from rankfold.operators import Kronecker
from tests.oracles.chain import log_sum_exp


def test_the_matrix_is_that_of_the_definition() -> None:
    g = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 3, generator=g), torch.rand(3, 2, generator=g)
    op = Kronecker(Dense(first), Dense(second))
    assert op.shape == (6, 6)
    torch.testing.assert_close(op.to_dense(), torch.kron(first, second), rtol=1e-6, atol=0.0)
    three = Kronecker(Dense(first), Kronecker(Dense(second), Dense(first)))
    torch.testing.assert_close(three.to_dense(), torch.kron(first, torch.kron(second, first)), rtol=1e-6, atol=0.0)
    with pytest.raises(UnsupportedError, match="second must be an operator"):
        Kronecker(Dense(first), second)  # type: ignore[arg-type]


def test_a_factorial_hmm_equals_the_enumeration_of_both_chains() -> None:
    """Each chain moves by itself; what is seen depends on both states at once."""
    g = torch.Generator().manual_seed(1)
    a, b, t = 2, 3, 3
    starts = [torch.rand(n, generator=g, dtype=torch.float64) for n in (a, b)]
    moves = [torch.rand(n, n, generator=g, dtype=torch.float64) for n in (a, b)]
    log_obs = torch.randn(t, a, b, generator=g, dtype=torch.float64)
    low_rank = LowRank(moves[1], torch.eye(b, dtype=torch.float64))
    p = ChainPotentials(
        (starts[0][:, None] * starts[1]).log().flatten(),
        Kronecker(Dense(moves[0]), low_rank),
        log_obs.reshape(1, t, -1),
    )
    weights = {}
    for one, other in itertools.product(itertools.product(range(a), repeat=t), itertools.product(range(b), repeat=t)):
        total = math.log(starts[0][one[0]] * starts[1][other[0]])
        total += sum(float(log_obs[i, one[i], other[i]]) for i in range(t))
        for path, table in ((one, moves[0]), (other, moves[1])):
            total += sum(math.log(table[source, target]) for source, target in itertools.pairwise(path))
        weights[one, other] = total
    exact = log_sum_exp(list(weights.values()))
    assert float(log_z(p)) == pytest.approx(exact, rel=1e-12)
    found = posterior(p).state.reshape(t, a, b)
    for i in range(t):
        share = sum(math.exp(w - exact) for (one, other), w in weights.items() if (one[i], other[i]) == (1, 2))
        assert float(found[i, 1, 2]) == pytest.approx(share, rel=1e-10)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3, 4, 2), (3, 3, 2, 2), (1, 2, 3, 1)])
def test_every_method_is_that_of_the_matrix(sizes: tuple[int, int, int, int], log: bool) -> None:
    """The conformance suite has prime sizes, of which one chain has a single state: here both have several."""
    g = torch.Generator().manual_seed(2)
    a, c, b, d = sizes
    tables = [torch.rand(shape, generator=g, dtype=torch.float64).round(decimals=1) for shape in ((a, c), (b, d))]
    parts = [Dense.from_log(x.log()) if log else Dense(x) for x in tables]
    op, truth = Kronecker(*parts), Dense(torch.kron(*tables))
    x, y = (torch.rand(4, n, generator=g, dtype=torch.float64) for n in op.shape)
    scale = math.exp(float(op.log_scale))
    near = {"rtol": 1e-12, "atol": 1e-14}  # sums of at most a dozen terms
    torch.testing.assert_close(op.push(x) * scale, truth.push(x), **near)
    torch.testing.assert_close(op.pull(y) * scale, truth.pull(y), **near)
    torch.testing.assert_close(op.push_log(x.log()), truth.push_log(x.log()), **near)
    torch.testing.assert_close(op.pull_log(y.log()), truth.pull_log(y.log()), **near)
    every = torch.arange(a * b)
    torch.testing.assert_close(op.log_rows(every), truth.log_rows(every), **near)
    torch.testing.assert_close(op.rows(every) * scale, truth.rows(every), **near)
    if not log:
        torch.testing.assert_close(op.push_log_weighted(x), truth.push_log_weighted(x), **near)
    best, where = op.push_max(x.log())
    expected, _ = truth.push_max(x.log())
    torch.testing.assert_close(best, expected, **near)
    chosen = x.log().gather(1, where) + truth.log_rows(every)[where, torch.arange(c * d)]
    torch.testing.assert_close(chosen, expected, **near)


def test_ties_of_best_predecessors_go_to_the_smallest_number() -> None:
    """Weights of 1: every predecessor of equal score is equally good."""
    op = Kronecker(Dense(torch.ones(3, 3)), Dense(torch.ones(2, 2)))
    score = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [0.0] * 6])
    assert op.push_max(score)[1].tolist() == [[1] * 6, [0] * 6]
