"""Inputs made of one another, operators with scales inside, captured graphs, inference mode: found by reading."""

import math
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold import Banded, ChainPotentials, Dense, LowRank, Operator, RowScaled, Sum
from rankfold.recursions.chain import log_z, solve, validate

FAR = 1e25


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


def normalised(factor: Tensor) -> RowScaled:
    """Rows that sum to 1: the scale is made of the factors it scales."""
    low_rank = LowRank(factor, factor * 2)
    return RowScaled(low_rank, 1 / low_rank.pull(torch.ones(len(factor), dtype=factor.dtype)))


TIED = {"tied": lambda factor: LowRank(factor, factor), "normalised": normalised}


@pytest.mark.parametrize("name", TIED)
def test_gradients_of_inputs_made_of_one_another(name: str) -> None:
    """What is to be differentiated again is the gradient itself, not more."""
    factor = drawn(3, 2).requires_grad_()
    p = ChainPotentials(torch.zeros(3, dtype=torch.float64), TIED[name](factor), drawn(2, 4, 3, seed=1))
    plain, followed = (
        torch.autograd.grad(log_z(p).sum(), factor, create_graph=again, retain_graph=True)[0] for again in (False, True)
    )
    torch.testing.assert_close(followed.detach(), plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", TIED)
def test_counts_of_inputs_made_of_one_another(name: str) -> None:
    factor = drawn(3, 2).requires_grad_()
    p = ChainPotentials(torch.zeros(3, dtype=torch.float64), TIED[name](factor), drawn(2, 4, 3, seed=1))
    for counts in rankfold.expected_counts(p).transition:  # 2 sequences of 3 moves
        assert float(counts.detach().sum()) == pytest.approx(6.0, rel=1e-10)


def test_posterior_of_observations_that_are_also_the_start() -> None:
    log_obs = drawn(2, 3, 4).requires_grad_()
    p = ChainPotentials(0.5 * log_obs[:, 0], Dense(drawn(4, 4, seed=1)), log_obs)
    total = rankfold.posterior(p).state.detach().sum(-1)
    torch.testing.assert_close(total, torch.ones(2, 3, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def apart(dtype: torch.dtype, far: float) -> dict[str, Operator]:
    """The identity, in pieces whose weights lie far apart."""
    small, large = (torch.tensor([1.0, x], dtype=dtype).diag() for x in (1 / far, far))
    scale = torch.tensor([1.0, 1 / far], dtype=dtype)
    return {
        "low rank": LowRank(small, large),
        "low rank, turned": LowRank(large, small),
        "rows scaled": RowScaled(Dense(large), scale),
        "rows of a low rank": RowScaled(LowRank(large, torch.eye(2, dtype=dtype)), scale),
    }


@pytest.mark.parametrize("name", apart(torch.float32, FAR))
@pytest.mark.parametrize("far", [1e20, 1e22, 1e25, 1e30])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_weights_that_cancel_inside_an_operator(name: str, far: float, precision: str) -> None:
    """State 1 is 50 nats behind, is multiplied by a small weight, then by a large one, and wins in the end."""
    log_obs = torch.tensor([[[0.0, x] for x in (-50.0, 0.0, 56.0)]], requires_grad=True)
    p = ChainPotentials(torch.zeros(2), apart(torch.float32, far)[name], log_obs)
    total = log_z(p, precision=precision)  # type: ignore[arg-type]
    grad = torch.autograd.grad(total.sum(), log_obs)[0]
    # bf16 rounds the weights, which no longer cancel; the state must not be lost all the same.
    assert float(total.detach()) == pytest.approx(
        6 + math.log1p(math.exp(-6)), abs=1e-4 if precision == "float32" else 0.1
    )
    assert float(grad[0, 0, 1]) == pytest.approx(1 / (1 + math.exp(-6)), abs=1e-4 if precision == "float32" else 0.01)


def test_weights_that_cancel_in_float64() -> None:
    log_obs = torch.tensor([[[0.0, x] for x in (-500.0, 0.0, 510.0)]], dtype=torch.float64)
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), apart(torch.float64, 1e150)["low rank"], log_obs)
    assert float(log_z(p)) == pytest.approx(10 + math.log1p(math.exp(-10)), rel=1e-9)


@pytest.mark.parametrize("weight", [1e17, 1e18, 1e19])
def test_a_term_of_a_sum_far_below_another(weight: float) -> None:
    inf = float("inf")
    top = Dense.from_log(torch.tensor([[106.0, -inf], [-inf, -inf]]))
    low = Dense(torch.tensor([[0.0, 0.0], [0.0, weight]]))
    log_obs = torch.tensor([[[0.0, 0.0], [0.0, 8.0]]])
    p = ChainPotentials(torch.zeros(2), Sum([top, low]), log_obs, torch.tensor([-60.0, 0.0]))
    assert float(log_z(p)) == pytest.approx(float(log_z(p, "log")), abs=1e-4)


def test_large_weights_alone_need_no_wider_arithmetic() -> None:
    p = ChainPotentials(torch.zeros(3), Dense(torch.rand(3, 3) * 1e20), torch.randn(2, 5, 3))
    c = validate(p)
    assert solve(c, "scaled").wider == []


def test_gradients_do_not_share_memory() -> None:
    log_initial = torch.zeros(2, 3, requires_grad=True)
    log_obs = torch.zeros(2, 4, 3, requires_grad=True)
    for arithmetic in ("scaled", "log"):
        total = log_z(ChainPotentials(log_initial, Dense(torch.ones(3, 3)), log_obs), arithmetic).sum()
        first, second = torch.autograd.grad(total, (log_initial, log_obs))
        first.zero_()
        assert (second > 0).all()


@pytest.mark.parametrize(
    "ask", [lambda p: rankfold.posterior(p).state, lambda p: rankfold.expected_counts(p).transition[0]]
)
def test_inference_mode(ask: object) -> None:
    p = ChainPotentials(torch.zeros(3), LowRank(torch.ones(3, 2), torch.ones(3, 2)), torch.zeros(2, 4, 3))
    expected = ask(p)
    with torch.inference_mode():
        made = ChainPotentials(torch.zeros(3), LowRank(torch.ones(3, 2), torch.ones(3, 2)), torch.zeros(2, 4, 3))
        assert torch.equal(ask(made), expected)
        assert torch.equal(ask(p), expected)
    assert torch.equal(ask(made), expected)


def test_an_operator_whose_weights_went_bad() -> None:
    """A diverged optimiser writes NaN into a kept operator: the result says so."""
    weight = torch.ones(2, 2)
    p = ChainPotentials(torch.zeros(2), Dense(weight), torch.zeros(1, 3, 2))
    weight[0, 0] = float("nan")
    assert log_z(p).isnan().all()
    assert log_z(p, "log").isnan().all()


@pytest.mark.parametrize(
    "transition",
    [
        Sum(
            [
                Dense.from_log(torch.tensor(rows, dtype=torch.float64))
                for rows in ([[0.0, -math.inf]] * 2, [[-math.inf, -800.0]] * 2)
            ]
        ),
        RowScaled.from_log(
            LowRank.from_log(
                torch.full((2, 1), -290.0, dtype=torch.float64), torch.full((2, 1), -290.0, dtype=torch.float64)
            ),
            torch.tensor([0.0, -290.0], dtype=torch.float64),
        ),
        LowRank(
            torch.tensor([[1e-200], [1e-200]], dtype=torch.float64),
            torch.tensor([[1.0], [1e-200]], dtype=torch.float64),
        ),
    ],
    ids=["sum", "rows scaled", "low rank"],
)
def test_streams_keep_states_that_products_lose(transition: Operator) -> None:
    p = ChainPotentials(torch.zeros(2, dtype=torch.float64), transition, torch.zeros(1, 3, 2, dtype=torch.float64))
    message = torch.zeros(2, dtype=torch.float64)
    log_a = transition.log_rows(torch.arange(2))
    for t in range(3):
        message = torch.logsumexp(message[:, None] + log_a, 0) if t else message
        found = rankfold.online.filter(p).log_filtered[0, t]
        torch.testing.assert_close(found, message.log_softmax(0), rtol=1e-9, atol=1e-9)


def test_a_wide_band_is_maximised_in_pieces() -> None:
    band = Banded(torch.ones(9, 5), -2)
    scores = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))
    whole = band.push_max(scores)
    with patch("rankfold.operators.banded.BLOCK", 60):
        pieces = band.push_max(scores)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


@pytest.mark.parametrize("shift", [0.0, -30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_ordinary_sequences_stay_on_the_first_rung(dtype: torch.dtype, shift: float) -> None:
    """A log-likelihood of thousands is rounded at 1e-13: no reason to repeat a sequence in logarithms."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(33, 33, generator=g).softmax(-1).to(dtype)
    log_obs = (torch.randn(6, 200, 33, generator=g) + shift).to(dtype)
    p = ChainPotentials(torch.zeros(33, dtype=dtype), Dense(weight), log_obs)
    solution = solve(validate(p), "scaled")
    solution.settle()
    assert solution.wider == []


@pytest.mark.parametrize("operator", [Dense.from_log, lambda w: Banded.from_log(w, -1)], ids=["dense", "banded"])
def test_messages_see_weights_changed_in_place(operator: object) -> None:
    weight = torch.zeros(3, 3, requires_grad=True)
    p = ChainPotentials(torch.zeros(3), operator(weight), torch.zeros(1, 4, 3))
    for _ in range(2):
        with torch.no_grad():
            weight.add_(1.0)
        filtered, future = rankfold.recursions.chain.messages(p)
        total = (filtered.mantissa * future.mantissa).sum(-1).log() + filtered.log_scale + future.log_scale
        torch.testing.assert_close(total.detach(), log_z(p).detach()[:, None].expand(1, 4), rtol=1e-5, atol=1e-5)
        total.sum().backward()  # and once more the next time


def test_a_callers_autocast_stays_outside() -> None:
    log_obs = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    p = ChainPotentials(torch.zeros(9), Dense(torch.rand(9, 9, generator=torch.Generator().manual_seed(1))), log_obs)
    log_emission = torch.randn(9, 5, generator=torch.Generator().manual_seed(2)).log_softmax(-1)
    expected = [rankfold.posterior(p).state.detach(), rankfold.online.predict(p.log_initial[None], log_emission)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [rankfold.posterior(p).state.detach(), rankfold.online.predict(p.log_initial[None], log_emission)]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_short_integers_are_lengths_too(dtype: torch.dtype) -> None:
    p = ChainPotentials(
        torch.zeros(2), Dense(torch.ones(2, 2)), torch.zeros(1, 300, 2), None, torch.tensor([5], dtype=dtype)
    )
    assert float(log_z(p)) == pytest.approx(5 * math.log(2), rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [((4, 3), "batch axis"), ((0, 4, 3), "empty batch"), ((3, 4, 2), "comes last"), ((2, 4, 5), "same states")],
)
def test_hints_for_observations_of_another_shape(shape: tuple[int, ...], hint: str) -> None:
    with pytest.raises(rankfold.ShapeError, match=hint):
        log_z(ChainPotentials(torch.zeros(3), Dense(torch.ones(3, 3)), torch.zeros(shape)))


def test_word_ids_are_not_observations() -> None:
    with pytest.raises(rankfold.UnsupportedError, match=r"log_emission\.T\[words\]"):
        log_z(ChainPotentials(torch.zeros(3), Dense(torch.ones(3, 3)), torch.zeros(2, 4, 3, dtype=torch.int64)))
