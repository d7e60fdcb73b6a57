"""Chains of blocks against the enumeration of all paths, and against the ordinary chain of all states."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold import viterbi
from rankfold.recursions import chain
from rankfold.recursions.blocks import BlockPotentials, advance, best_path, draw, log_z, validate
from rankfold.recursions.blocks.steps import plain
from tests.oracles import block_chain as oracle
from tests.recursions.block_chains import (
    as_lists,
    block_chain,
    by_sequence,
    in_blocks,
    in_full,
    leaves,
    padded,
    rebuilt,
    whole_model,
)
from tests.recursions.build import INF, seeded

seeds = st.integers(0, 10**6)
sizes = st.integers(1, 4)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)
spreads = st.sampled_from([2.0, 1000.0])
shares = st.sampled_from([0.0, 0.15, 0.5])

# float64 sums of at most 256 terms; at a spread of 1000 nats log-weights themselves are rounded at 1e-12.
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@given(seed=seeds, k=sizes, lengths=ragged, spread=spreads, zeros=shares)
def test_log_z_is_the_sum_over_all_paths(seed: int, k: int, lengths: list[int], spread: float, zeros: float) -> None:
    p = block_chain(k, lengths, seed=seed, spread=spread, zeros=zeros)
    expected = torch.tensor(by_sequence(oracle.log_z, p), dtype=torch.float64)
    torch.testing.assert_close(log_z(p), expected, **EXACT)
    torch.testing.assert_close(plain(validate(p)), expected, **EXACT)
    filtered, total = advance(p)
    torch.testing.assert_close(total, expected, **EXACT)
    torch.testing.assert_close(filtered, torch.tensor(by_sequence(oracle.filtered, p), dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("create_graph", [False, True])
@given(seed=seeds, k=sizes, lengths=ragged, spread=spreads, zeros=shares)
def test_gradients_are_posteriors(
    create_graph: bool, seed: int, k: int, lengths: list[int], spread: float, zeros: float
) -> None:
    p, tensors = leaves(block_chain(k, lengths, seed=seed, spread=spread, zeros=zeros))
    weight = torch.randn(len(lengths), generator=seeded(seed), dtype=torch.float64)
    first, moves, states = torch.autograd.grad(log_z(p), tensors, weight, create_graph=create_graph)
    expected = padded(by_sequence(oracle.posterior, p), p.log_obs) * weight[:, None, None]
    torch.testing.assert_close(states.detach(), expected, **EXACT)
    torch.testing.assert_close(first.detach(), expected[:, 0], **EXACT)
    pairs = padded(by_sequence(oracle.pairs, p), p.log_transition) * weight[:, None, None, None]
    torch.testing.assert_close(moves.detach(), pairs, **EXACT)
    for i, length in enumerate(lengths):
        assert (states[i, length:] == 0).all()  # exactly: nothing beyond a length was read
        assert (moves[i, length - 1 :] == 0).all()


@given(seed=seeds, k=sizes, lengths=ragged)
def test_float32(seed: int, k: int, lengths: list[int]) -> None:
    p, tensors = leaves(block_chain(k, lengths, seed=seed, dtype=torch.float32))
    total = log_z(p)
    assert total.dtype == torch.float64
    # At most 8 rounded sums of numbers below 20.
    torch.testing.assert_close(
        total, torch.tensor(by_sequence(oracle.log_z, p), dtype=torch.float64), rtol=0.0, atol=1e-4
    )
    grads = torch.autograd.grad(total.sum(), tensors)
    assert all(grad.dtype == torch.float32 for grad in grads)
    expected = padded(by_sequence(oracle.posterior, p), p.log_obs)
    torch.testing.assert_close(grads[2].double(), expected, rtol=1e-4, atol=1e-5)


def test_a_long_sequence_keeps_the_digits_of_float32() -> None:
    """2000 positions, log Z near -60,000, where float32 is coarse to 0.004."""
    p = block_chain(5, [2000, 1999], seed=3, zeros=0.0, dtype=torch.float32)
    log_obs = p.log_obs - 30.0
    p = p._replace(log_obs=log_obs)
    truth = log_z(rebuilt(p, *(x.double() for x in p[:3])))
    assert float(truth[0]) < -50_000
    torch.testing.assert_close(log_z(p), truth, rtol=1e-7, atol=0.0)


@given(seed=seeds, k=st.integers(1, 3), lengths=ragged)
def test_the_ordinary_chain_of_all_states_says_the_same(seed: int, k: int, lengths: list[int]) -> None:
    log_initial, log_transition, log_obs, block, sizes = whole_model(k, lengths, seed)
    inputs = [x.requires_grad_() for x in (log_initial, log_transition, log_obs)]
    p = in_blocks(*inputs, block, sizes)
    full = in_full(*inputs, block, sizes)
    found, expected = log_z(p), chain.log_z(full)
    torch.testing.assert_close(found, expected, **EXACT)
    grads = torch.autograd.grad(found.sum(), inputs)
    for got, want in zip(grads, torch.autograd.grad(expected.sum(), inputs), strict=True):
        torch.testing.assert_close(got, want, **EXACT)
    path, log_prob = best_path(p)
    want = viterbi(full)
    assert torch.equal(path, want.path)
    torch.testing.assert_close(log_prob, want.log_prob, **EXACT)
    states = block.gather(1, sizes[:, None] - 1) * k + torch.arange(k)
    ahead = chain.advance(full)
    torch.testing.assert_close(advance(p)[0], ahead.log_filtered.gather(1, states), **EXACT)


@given(seed=seeds, k=sizes, lengths=ragged, zeros=shares, ties=st.booleans())
def test_best_path(seed: int, k: int, lengths: list[int], zeros: float, ties: bool) -> None:
    p = block_chain(k, lengths, seed=seed, zeros=zeros)
    if ties:
        p = rebuilt(p, *(torch.where(x.isfinite(), x.round().clamp(-1, 1), x) for x in p[:3]))
    path, log_prob = best_path(p)
    assert log_prob.dtype == torch.float64
    for i, (want, weight) in enumerate(by_sequence(oracle.best_path, p)):
        length = lengths[i]
        assert float(log_prob[i]) == pytest.approx(weight, abs=1e-12)
        assert (path[i, length:] == -1).all()
        if weight == -INF:
            assert (path[i] == -1).all()
        else:
            assert path[i, :length].tolist() == [int(p.block[i, t]) * k + x for t, x in enumerate(want)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_have_the_frequencies_of_the_posterior(dtype: torch.dtype) -> None:
    num, k, lengths = 20_000, 2, [3, 2, 1]
    p = block_chain(k, lengths, seed=5, zeros=0.0, spread=1.0, dtype=dtype)
    p.log_transition[0, 1, 0, 1] = -INF
    paths = draw(p, num, seeded(6))
    assert paths.shape == (num, 3, 3)
    for i, length in enumerate(lengths):
        assert (paths[:, i, length:] == -1).all()
        index = paths[:, i, :length] - p.block[i, :length] * k
        unique, counts = index.unique(dim=0, return_counts=True)
        seen = {tuple(path.tolist()): int(count) for path, count in zip(unique, counts, strict=True)}
        expected = oracle.probabilities(**as_lists(p, i))
        assert set(seen) == {path for path, share in expected.items() if share > 0}
        for path, count in seen.items():
            # Five standard deviations of a binomial, from a fixed seed.
            assert abs(count - num * expected[path]) <= 5 * math.sqrt(num * expected[path])


def test_samples_of_a_seed_are_the_same_again() -> None:
    p = block_chain(3, [4, 2, 1], seed=1, zeros=0.0)
    assert torch.equal(draw(p, 5, seeded(0)), draw(p, 5, seeded(0)))
    assert not torch.equal(draw(p, 5, seeded(0)), draw(p, 5, seeded(1)))


def with_impossible(dtype: torch.dtype) -> BlockPotentials:
    """Five sequences: 1 dies by an observation, 3 by its transitions, at its first step."""
    p = block_chain(3, [4, 4, 2, 3, 1], seed=9, zeros=0.0, dtype=dtype)
    p.log_obs[1, 2] = -INF
    p.log_transition[3, 0] = -INF
    return p


def test_impossible_sequences_have_no_path() -> None:
    bad = [1, 3]
    whole = with_impossible(torch.float64)
    assert (log_z(whole)[bad] == -INF).all()
    filtered, log_total = advance(whole)
    assert (filtered[bad] == -INF).all()
    assert (log_total[bad] == -INF).all()
    path, log_prob = best_path(whole)
    assert (path[bad] == -1).all()
    assert (log_prob[bad] == -INF).all()
    assert (draw(whole, 4, seeded(0))[:, bad] == -1).all()
    assert (draw(whole, 4, seeded(0))[:, 0] >= 0).all()


@pytest.mark.parametrize("zeros", [False, True])
def test_second_derivatives(zeros: bool) -> None:
    p = block_chain(2, [3, 1, 2], seed=12, zeros=0.0, spread=1.0)
    if zeros:  # constants of the check: numerical derivatives cannot start at -inf
        p.log_transition[0, 0, 1] = -INF
    finite = [x.isfinite() for x in p[:3]]

    def of(*moved: Tensor) -> Tensor:
        return log_z(rebuilt(p, *(torch.where(on, x, y) for on, x, y in zip(finite, moved, p[:3], strict=True))))

    start = tuple(torch.where(on, x, 0.0).requires_grad_() for on, x in zip(finite, p[:3], strict=True))
    assert gradcheck(of, start)
    assert gradgradcheck(of, start)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_gradient_alone(which: int) -> None:
    p = block_chain(3, [4, 2], seed=2)
    q, tensors = leaves(p)
    want = torch.autograd.grad(log_z(q).sum(), tensors)[which]
    alone = list(p[:3])
    alone[which] = alone[which].clone().requires_grad_()
    for create_graph in (False, True):
        total = log_z(rebuilt(p, *alone)).sum()
        (found,) = torch.autograd.grad(total, alone[which], create_graph=create_graph)
        torch.testing.assert_close(found, want, **EXACT)


def test_lengths_may_be_left_out() -> None:
    p = block_chain(3, [3, 3], seed=4)
    assert torch.equal(log_z(p), log_z(p._replace(lengths=None)))
    assert torch.equal(best_path(p)[0], best_path(p._replace(lengths=None))[0])


def test_nothing_is_written_into_the_arguments() -> None:
    p, tensors = leaves(with_impossible(torch.float64))
    before = [x.clone() for x in p if x is not None]
    torch.autograd.grad(log_z(p).sum(), tensors)
    advance(p)
    best_path(p)
    draw(p, 2, seeded(0))
    for x, y in zip(p, before, strict=True):
        assert x is not None
        assert torch.equal(x.nan_to_num(1.0), y.nan_to_num(1.0))


def test_a_graph_that_is_retained_gives_its_gradients_again() -> None:
    """After a backward pass the block chain's tensors are let go; a second pass solves it once more."""
    p, fields = leaves(block_chain(seed=0, k=3, lengths=[4, 2]))
    total = log_z(p).sum()
    first, again = (torch.autograd.grad(total, fields, retain_graph=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert all(bool((x != 0).any()) for x in first)
