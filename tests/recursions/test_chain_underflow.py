"""What scaled arithmetic may lose is bounded: never too little, and not so much that nothing passes."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankfold import Banded, ChainPotentials, Dense, LowRank, Operator
from rankfold.recursions.chain import log_z, messages, scaled, soundness
from rankfold.recursions.chain.potentials import Chain, validate
from tests.recursions.build import INF, doubled, pad_with_nan, posterior, seeded


def sparse_chain(seed: int, z: int, t: int, zeros: float, spread: float, *, banded: bool) -> ChainPotentials:
    """A float32 chain in which many states cannot reach each other, its observations up to `spread` apart."""
    g = seeded(seed)
    weight = torch.rand(z, 3 if banded and z > 1 else z, generator=g) + 0.05
    weight[torch.rand(weight.shape, generator=g) < zeros] = 0.0
    transition: Operator = Banded(weight, -1) if banded and z > 1 else Dense(weight)
    log_obs = spread * (torch.rand(3, t, z, generator=g) - 0.5)
    return ChainPotentials(torch.randn(z, generator=g), transition, log_obs)


sparse_chains = given(
    seed=st.integers(0, 10**6),
    z=st.integers(1, 8),
    t=st.integers(1, 12),
    zeros=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    spread=st.floats(0, 400),
    banded=st.booleans(),
)


@settings(max_examples=200)
@sparse_chains
@example(seed=1, z=3, t=6, zeros=0.6, spread=300.0, banded=True)
def test_the_bound_never_calls_a_lossy_forward_pass_lossless(
    seed: int, z: int, t: int, zeros: float, spread: float, banded: bool
) -> None:
    p = sparse_chain(seed, z, t, zeros, spread, banded=banded)
    exact = log_z(p, "log")
    c = validate(p)
    run = scaled.forward(c)
    sure = soundness.lossless(c, run)
    # Rounding alone costs 12 steps of 6e-8 and float32 sums of logs below 1e4.
    torch.testing.assert_close(run.log_z[sure], exact[sure], rtol=1e-6, atol=1e-4)


@settings(max_examples=120)
@sparse_chains
def test_value_and_gradient_are_right_in_any_range(
    seed: int, z: int, t: int, zeros: float, spread: float, banded: bool
) -> None:
    p = sparse_chain(seed, z, t, zeros, spread, banded=banded)
    exact = log_z(p, "log")
    torch.testing.assert_close(log_z(p), exact, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(posterior(p), posterior(p, "log"), rtol=0.0, atol=1e-4)


@settings(max_examples=30)
@sparse_chains
def test_the_bound_does_not_depend_on_the_size_of_its_blocks(
    seed: int, z: int, t: int, zeros: float, spread: float, banded: bool
) -> None:
    c = validate(sparse_chain(seed, z, t, zeros, spread / 4, banded=banded))
    run = scaled.forward(c)
    whole = soundness.far_from_underflow(c, run)
    with pytest.MonkeyPatch.context() as patch:
        for height in (1, 2, 5):
            patch.setattr(soundness, "BLOCK", height * 3 * z)
            assert torch.equal(soundness.far_from_underflow(c, run), whole)


@pytest.mark.parametrize("height", [1, 2, 3, 4])
def test_what_the_position_before_lost_counts_across_blocks(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """State 0 dies at position 1, which leaves entries of e-60: what comes after may miss more than e-20."""
    weight = torch.tensor([[1.0, 0.0], [math.exp(-20), 1.0]])
    log_obs = torch.tensor([[[0.0, -60.0], [-INF, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    monkeypatch.setattr(soundness, "BLOCK", height * 2)
    c = validate(ChainPotentials(torch.zeros(2), Dense(weight), log_obs))
    run = scaled.forward(c)
    assert float(run.norm[1]) < 1e-25
    assert not soundness.far_from_underflow(c, run).any()
    alive = c.replace(log_obs=torch.zeros(1, 4, 2))  # the same without a death: nothing is in doubt
    assert soundness.far_from_underflow(alive, scaled.forward(alive)).all()


def refuse(chain: Chain) -> Chain:
    raise AssertionError("a sequence was repeated in float64")


@pytest.mark.parametrize("z", [2, 17, 129])
def test_ordinary_chains_take_the_fast_path(z: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stochastic matrices in float32: no sequence is repeated, forward or backward."""
    g = seeded(25)
    weight = torch.randn(z, z, generator=g).softmax(-1)
    left, right = torch.randn(z, 3, generator=g).softmax(-1), torch.randn(z, 3, generator=g).softmax(0)
    log_obs = pad_with_nan(3 * torch.randn(4, 50, z, generator=g), [50, 20, 1, 33])
    for transition in (Dense(weight), LowRank(left, right)):
        p = ChainPotentials(torch.zeros(z), transition, log_obs, lengths=torch.tensor([50, 20, 1, 33]))
        c = validate(p)
        run = scaled.forward(c)
        assert soundness.lossless(c, run).all()
        assert soundness.far_from_underflow(c, run).all()
        assert scaled.backward(c, run, torch.ones(4), "float32").trusted.all()
        expected = log_z(doubled(p))
        with monkeypatch.context() as patch:
            patch.setattr(Chain, "double", refuse)
            # 50 steps, each rounded at 6e-8 of itself.
            torch.testing.assert_close(log_z(p), expected, rtol=0.0, atol=1e-4)
            assert posterior(p).isfinite().all()


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_three_thousand_positions(shift: float) -> None:
    g = seeded(26)
    weight = torch.randn(3, 3, generator=g).softmax(-1)
    log_obs = 2 * torch.randn(2, 3000, 3, generator=g) + shift
    p = ChainPotentials(torch.zeros(3), Dense(weight), log_obs)
    exact = doubled(p)
    # Each of 3000 steps rounds its mantissa by about 6e-8, mostly in random directions: 1e-3 is five times
    # the sum of all, while a log-scale in float32 would err by 1e-2 at a log Z of 150,000.
    torch.testing.assert_close(log_z(p), log_z(exact), rtol=0.0, atol=1e-3)
    torch.testing.assert_close(posterior(p).double(), posterior(exact), rtol=0.0, atol=1e-3)
    past, future = messages(p)
    both = (past.mantissa * future.mantissa).double().sum(-1).log() + past.log_scale + future.log_scale
    torch.testing.assert_close(both, log_z(exact)[:, None].expand_as(both), rtol=0.0, atol=1e-3)


def test_an_empty_range_of_logs_is_an_ordinary_number() -> None:
    """Equal observations of -5000 nats: nothing is lost, and nothing needs repeating."""
    log_obs = torch.full((1, 20, 4), -5000.0)
    weight = torch.full((4, 4), 0.25)
    p = ChainPotentials(torch.full((4,), math.log(0.25)), Dense(weight), log_obs)
    assert float(log_z(p)) == pytest.approx(-100_000.0, rel=1e-9)
