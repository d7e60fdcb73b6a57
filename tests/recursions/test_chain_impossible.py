"""Sequences without any path: -inf for themselves, nothing for their neighbours, an error if asked for."""

import pytest
import torch

from rankfold import ChainPotentials, Dense, DomainError, LowRank, RowScaled, WithoutDiagonal
from rankfold.recursions.chain import log_z
from tests.recursions.build import INF, leaves, pad_with_nan, seeded


def batch_with_an_impossible_sequence(dtype: torch.dtype) -> ChainPotentials:
    """Five ragged sequences: 1 dies by its observations, 3 by log_final alone."""
    g = seeded(24)
    left, right = torch.rand(6, 2, generator=g), torch.rand(6, 2, generator=g)
    log_obs = torch.randn(5, 5, 6, generator=g)
    log_obs[1, 2] = -INF
    log_final = torch.randn(5, 6, generator=g)
    log_final[3] = -INF
    lengths = [5, 4, 3, 2, 1]
    return ChainPotentials(
        torch.randn(5, 6, generator=g).to(dtype),
        LowRank(left.to(dtype), right.to(dtype)),
        pad_with_nan(log_obs, lengths).to(dtype),
        log_final.to(dtype),
        torch.tensor(lengths),
    )


def test_strict_names_the_sequence_and_the_position() -> None:
    p = batch_with_an_impossible_sequence(torch.float32)
    with pytest.raises(DomainError, match=r"sequence 1 is impossible.*position 2.*1 more"):
        log_z(p, strict=True)
    assert p.log_final is not None
    assert p.lengths is not None
    rest = [0, 2, 3, 4]
    q = p._replace(
        log_initial=p.log_initial[rest], log_obs=p.log_obs[rest], log_final=p.log_final[rest], lengths=p.lengths[rest]
    )
    with pytest.raises(DomainError, match=r"sequence 2 is impossible.*at its end \(log_final\)"):
        log_z(q, strict=True)
    possible = q._replace(log_final=None)
    assert torch.equal(log_z(possible, strict=True), log_z(possible))


@pytest.mark.parametrize("position", [0, 1, 3])
def test_strict_finds_where_the_transitions_end(position: int) -> None:
    """A chain of states that only move right, one step at a time, meets an observation it cannot have reached."""
    weight = torch.eye(5, dtype=torch.float64).roll(1, 1)
    weight[4] = 0.0
    log_obs = torch.zeros(1, 4, 5, dtype=torch.float64)
    log_obs[0, position, position] = -INF
    log_initial = torch.tensor([0.0] + [-INF] * 4, dtype=torch.float64)
    p = ChainPotentials(log_initial, Dense(weight), log_obs)
    assert log_z(p).item() == -INF
    with pytest.raises(DomainError, match=f"sequence 0 is impossible: .* at position {position}"):
        log_z(p, strict=True)


def test_weights_of_zero_beside_products_that_overflow() -> None:
    """An impossible sequence has zeros; of a possible one the factor taken out of all weights takes no part."""
    side = torch.rand(3, 2, generator=seeded(1), dtype=torch.float64) + 0.1
    scale = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    log_obs = torch.randn(2, 4, 3, generator=seeded(2), dtype=torch.float64)
    log_obs[1, 2] = -INF
    found = []
    for size in (1.0, 1e200):
        op = RowScaled(WithoutDiagonal(LowRank(side * size, side * size)), scale)
        at = leaves(ChainPotentials(torch.zeros(3, dtype=torch.float64), op, log_obs))
        total = log_z(at.potentials)
        assert (total == -INF).tolist() == [False, True]
        for grad in torch.autograd.grad(total[1], at.tensors, retain_graph=True):
            assert (grad == 0).all()
        found.append(torch.autograd.grad(total[0], at.tensors)[2])
    assert found[0][0] > 0
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=0.0)
