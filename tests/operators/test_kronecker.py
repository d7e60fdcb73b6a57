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
