"""Posteriors and entropies of chains of blocks against the enumeration."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from rankfold import DomainError, entropy, expected_counts, mbr, posterior, sample, viterbi
from rankfold.recursions.blocks import BlockPotentials
from tests.oracles import block_chain as oracle
from tests.recursions.block_chains import (
    block_chain,
    by_sequence,
    in_blocks,
    in_full,
    leaves,
    padded,
    rebuilt,
    whole_model,
)
from tests.recursions.build import INF, NAN

seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)
zeros = st.sampled_from([0.0, 0.15, 0.5])

# log Z minus an expectation: a difference of float64 numbers of up to 100.
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize("followed", [False, True])
@given(seed=seeds, k=st.integers(1, 4), lengths=ragged, zeros=zeros)
def test_values(followed: bool, seed: int, k: int, lengths: list[int], zeros: float) -> None:
    p = block_chain(k, lengths, seed=seed, zeros=zeros)
    q = leaves(p)[0] if followed else p
    probability, unsure = posterior(q).state, entropy(q)
    assert probability.requires_grad == unsure.requires_grad == followed
    torch.testing.assert_close(probability.detach(), padded(by_sequence(oracle.posterior, p), p.log_obs), **EXACT)
    torch.testing.assert_close(
        unsure.detach(), torch.tensor(by_sequence(oracle.entropy, p), dtype=torch.float64), **EXACT
    )


def test_without_gradients_nothing_is_followed() -> None:
    p, _ = leaves(block_chain(2, [3, 2], seed=1))
    with torch.no_grad():
        assert not posterior(p).state.requires_grad
        assert not entropy(p).requires_grad


def test_the_ordinary_chain_says_the_same() -> None:
    model = whole_model(2, [4, 3, 1], seed=7)
    p, full = in_blocks(*model), in_full(*model)
    torch.testing.assert_close(entropy(p), entropy(full), **EXACT)
    states = p.block.unsqueeze(-1) * 2 + torch.arange(2)
    torch.testing.assert_close(posterior(p).state, posterior(full).state.gather(-1, states), **EXACT)


def test_float32_potentials() -> None:
    p = block_chain(3, [4, 2], seed=8, dtype=torch.float32)
    probability, unsure = posterior(p).state, entropy(p)
    assert probability.dtype == torch.float32
    assert unsure.dtype == torch.float64
    # The entropy is computed in float64 throughout, of the same weights.
    torch.testing.assert_close(unsure, torch.tensor(by_sequence(oracle.entropy, p), dtype=torch.float64), **EXACT)


def test_a_uniform_chain() -> None:
    p = BlockPotentials(
        torch.zeros(1, 4), torch.zeros(1, 4, 4, 4), torch.zeros(1, 5, 4), torch.zeros(1, 5, dtype=torch.int64)
    )
    assert float(entropy(p)) == pytest.approx(5 * math.log(4), rel=1e-12)


def test_impossible_sequences_have_neither() -> None:
    p = block_chain(3, [3, 2, 3], seed=9, zeros=0.0)
    before = entropy(p)
    p.log_obs[1, 0] = -INF
    q, tensors = leaves(p)
    unsure, probability = entropy(q), posterior(q).state
    assert unsure[1] == 0
    assert (probability[1] == 0).all()
    torch.testing.assert_close(unsure[[0, 2]], before[[0, 2]], **EXACT)
    grads = torch.autograd.grad(unsure.sum() + (probability**2).sum(), tensors)
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[1] == 0).all() for grad in grads)


def test_gradcheck() -> None:
    p = block_chain(2, [3, 1, 2], seed=10, zeros=0.0, spread=1.0)
    start = tuple(torch.where(x.isfinite(), x, 0.0).requires_grad_() for x in p[:3])
    assert gradcheck(lambda *moved: posterior(rebuilt(p, *moved)).state, start)
    assert gradcheck(lambda *moved: entropy(rebuilt(p, *moved)), start)


def test_the_door() -> None:
    p = block_chain(2, [3, 3], seed=11)
    p.log_obs[1, 1, 0] = NAN
    for question in (posterior, entropy, viterbi, mbr, sample, expected_counts):
        with pytest.raises(DomainError, match=r"log_obs\[1,1,0\] is nan"):
            question(p)
