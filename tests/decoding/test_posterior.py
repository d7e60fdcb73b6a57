"""State posteriors and expected counts against the enumeration, and as the E step of EM."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from rankfold import Banded, ChainPotentials, Dense, LowRank, RowScaled, expected_counts, posterior
from rankfold.recursions.chain import log_z
from tests.decoding.build import LOW_RANK, words_to_potentials
from tests.operators.cases import CASES, Case
from tests.oracles import chain as oracle
from tests.recursions.build import BY_NAME, INF, by_sequence, leaves, padded, potentials, rebuilt, seeded

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)

# float64 against sums of at most 256 terms.
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def moves(p: ChainPotentials) -> Tensor:  # "z y"
    """The expected number of moves, summed over the batch."""
    return torch.tensor(by_sequence(oracle.expected_transitions, p), dtype=torch.float64).sum(0)


@every_case
@settings(max_examples=4)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged, initial=st.sampled_from(["z", "b z"]))
def test_posteriors_are_those_of_the_enumeration(
    case: Case, seed: int, z: int, lengths: list[int], initial: str
) -> None:
    p = potentials(case, z, lengths, seed=seed, initial=initial, final="b z")
    found = posterior(p).state
    torch.testing.assert_close(found, padded(by_sequence(oracle.posterior, p), max(lengths)), **EXACT)
    assert not found.requires_grad
    for i, length in enumerate(lengths):
        assert (found[i, length:] == 0).all()


@every_case
def test_posteriors_in_float32(case: Case) -> None:
    p = potentials(case, 3, [4, 1, 3], seed=40, dtype=torch.float32, final="z")
    found = posterior(p).state
    assert found.dtype == torch.float32
    # Four steps of float32 round-off; log-weights around 30 nats are held to 2e-6.
    torch.testing.assert_close(found.double(), padded(by_sequence(oracle.posterior, p), 4), rtol=0.0, atol=1e-5)


def test_posteriors_of_impossible_sequences_are_zero() -> None:
    p = potentials(BY_NAME["dense"], 3, [3, 3], seed=41, zeros=False)
    log_obs = p.log_obs.clone()
    log_obs[1, 1] = -INF
    found = posterior(p._replace(log_obs=log_obs)).state
    assert (found[1] == 0).all()
    torch.testing.assert_close(found[0].sum(-1), torch.ones(3, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("name", ["dense", "low_rank_2", "banded_log", "row_scaled"])
def test_a_loss_on_posteriors_can_be_differentiated(name: str) -> None:
    p = potentials(BY_NAME[name], 2, [3, 2], seed=42, final="z", zeros=False)
    at = leaves(p)

    def loss(*tensors: Tensor) -> Tensor:
        return (posterior(rebuilt(p, tensors)).state[:, 1:, 0] ** 2).sum()

    assert gradcheck(loss, at.tensors)
    assert gradgradcheck(loss, at.tensors)


@every_case
def test_counts_of_constants_are_constants(case: Case) -> None:
    p = potentials(case, 3, [3, 2], seed=51, zeros=False)
    with torch.no_grad():
        quiet = expected_counts(leaves(p).potentials)
    for counts in (expected_counts(p), quiet):
        assert not any(x.requires_grad for x in (counts.initial, counts.state, *counts.transition))


@pytest.mark.parametrize("question", [lambda p: posterior(p).state, lambda p: expected_counts(p).state])
def test_posteriors_under_no_grad_and_without_traces(question) -> None:
    p = potentials(BY_NAME["low_rank_2"], 3, [3, 2], seed=43, final="z", zeros=False)
    expected = question(p)
    at = leaves(p)
    with torch.no_grad():
        quiet = question(at.potentials)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, expected, **EXACT)
    followed = question(at.potentials)
    assert followed.requires_grad
    torch.testing.assert_close(followed.detach(), expected, **EXACT)
    assert all(x.grad is None for x in at.tensors)
    assert not p.log_obs.requires_grad


def test_only_what_is_followed_is_followed() -> None:
    """A tracked transition alone makes the posterior differentiable, though log_obs is a constant."""
    p = potentials(BY_NAME["dense"], 2, [3], seed=44, zeros=False)
    weight = p.transition.factors()[0].clone().requires_grad_()
    found = posterior(p._replace(transition=Dense(weight))).state
    (grad,) = torch.autograd.grad(found[0, 1, 0], weight)
    assert grad.abs().sum() > 1e-3


@every_case
@settings(max_examples=3)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged, initial=st.sampled_from(["z", "b z"]))
def test_counts_of_states(case: Case, seed: int, z: int, lengths: list[int], initial: str) -> None:
    p = potentials(case, z, lengths, seed=seed, initial=initial, final="z")
    counts = expected_counts(p)
    states = padded(by_sequence(oracle.posterior, p), max(lengths))
    torch.testing.assert_close(counts.state, states, **EXACT)
    torch.testing.assert_close(counts.initial, states[:, 0].sum(0), **EXACT)


def possible_moves(p: ChainPotentials) -> float:
    """The number of moves in the sequences that have any path."""
    assert p.lengths is not None
    alive = torch.tensor(by_sequence(oracle.log_z, p)) > -INF
    return float(((p.lengths - 1) * alive).sum())


@pytest.mark.parametrize("name", ["dense", "dense_zero_row_column", "dense_log", "dense_log_zeros"])
def test_counts_of_a_dense_transition_are_its_moves(name: str) -> None:
    p = potentials(BY_NAME[name], 3, [4, 1, 3], seed=45, final="z")
    (counts,) = expected_counts(p).transition
    torch.testing.assert_close(counts, moves(p), **EXACT)
    assert float(counts.detach().sum()) == pytest.approx(possible_moves(p), rel=1e-10)


@pytest.mark.parametrize(
    "name", ["banded_near", "banded_lower", "banded_upper_zeros", "banded_log", "banded_log_zeros"]
)
def test_counts_of_a_band_are_its_moves(name: str) -> None:
    p = potentials(BY_NAME[name], 4, [4, 2, 3], seed=46, zeros=False)
    assert isinstance(p.transition, Banded)
    (counts,) = expected_counts(p).transition
    spread = torch.zeros(4, 4, dtype=torch.float64)
    for source in range(4):
        for cell in range(p.transition.width):
            target = source + p.transition.offset + cell
            if 0 <= target < 4:
                spread[source, target] = counts[source, cell]
            else:
                assert counts[source, cell] == 0
    torch.testing.assert_close(spread, moves(p), **EXACT)
    assert float(counts.detach().sum()) == pytest.approx(possible_moves(p), rel=1e-10)


@pytest.mark.parametrize("name", LOW_RANK)
def test_counts_of_low_rank_factors(name: str) -> None:
    """Uses of (source, rank) and of (target, rank): the moves, with the other end and the rank summed out."""
    p = potentials(BY_NAME[name], 3, [4, 3, 2], seed=47, zeros=False)
    left, right = expected_counts(p).transition
    torch.testing.assert_close(left.sum(0), right.sum(0), **EXACT)
    torch.testing.assert_close(left.sum(1), moves(p).sum(1), **EXACT)
    torch.testing.assert_close(right.sum(1), moves(p).sum(0), **EXACT)
    assert float(left.detach().sum()) == pytest.approx(possible_moves(p), rel=1e-10)


def test_counts_of_scaled_rows() -> None:
    p = potentials(BY_NAME["row_scaled"], 3, [4, 3, 2], seed=48, zeros=False)
    assert isinstance(p.transition, RowScaled)
    scale, left, right = expected_counts(p).transition
    torch.testing.assert_close(scale, moves(p).sum(1), **EXACT)
    torch.testing.assert_close(left.sum(1), moves(p).sum(1), **EXACT)
    torch.testing.assert_close(right.sum(1), moves(p).sum(0), **EXACT)


def test_counts_can_be_differentiated() -> None:
    p = potentials(BY_NAME["low_rank_2"], 2, [3, 2], seed=49, zeros=False)
    at = leaves(p)

    def loss(*tensors: Tensor) -> Tensor:
        counts = expected_counts(rebuilt(p, tensors))
        return (counts.transition[0] ** 2).sum() + (counts.initial**3).sum()

    assert gradcheck(loss, at.tensors)


WORDS = [[0, 1, 2, 2], [1, 0], [2, 2, 1, 0, 1, 0], [0], [1, 1, 2]]


def word_counts(states: Tensor, z: int, v: int) -> Tensor:  # "b t z" -> "z v"
    out = torch.zeros(z, v, dtype=torch.float64)
    for i, row in enumerate(WORDS):
        for t, word in enumerate(row):
            out[:, word] += states[i, t]
    return out


@pytest.mark.parametrize("kind", ["dense", "low rank", "dense log"])
def test_em_never_lowers_the_likelihood(kind: str) -> None:
    g = seeded(50)
    z, r, v = 3, 2, 3
    log_initial = torch.randn(z, generator=g, dtype=torch.float64).log_softmax(-1)
    log_emission = torch.randn(z, v, generator=g, dtype=torch.float64).log_softmax(-1)
    if kind == "low rank":
        left = torch.randn(z, r, generator=g, dtype=torch.float64).softmax(-1)
        transition = LowRank(left, torch.randn(z, r, generator=g, dtype=torch.float64).softmax(0))
    else:
        weight = torch.randn(z, z, generator=g, dtype=torch.float64).softmax(-1)
        transition = Dense(weight) if kind == "dense" else Dense.from_log(weight.log())
    history = []
    for _ in range(12):
        p = words_to_potentials(log_initial, transition, log_emission, WORDS)
        history.append(float(log_z(p).sum()))
        counts = expected_counts(p)
        log_initial = (counts.initial / counts.initial.sum()).log()
        emitted = word_counts(counts.state, z, v)
        log_emission = (emitted / emitted.sum(-1, keepdim=True)).log()
        if kind == "low rank":
            left, right = counts.transition
            transition = LowRank(left / left.sum(-1, keepdim=True), right / right.sum(0, keepdim=True))
        else:
            weight = counts.transition[0] / counts.transition[0].sum(-1, keepdim=True)
            transition = Dense(weight) if kind == "dense" else Dense.from_log(weight.log())
    gains = torch.tensor(history).diff()
    assert (gains > -1e-9).all()  # EM's theorem, to the round-off of sums of about 20 nats
    assert history[-1] > history[0] + 0.5


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize(("small", "dtype"), [(2e-39, torch.float32), (1e-45, torch.float32), (5e-324, torch.float64)])
def test_uses_of_weights_whose_gradients_overflow(small: float, dtype: torch.dtype, followed: bool) -> None:
    """Two moves through the only weight there is; in a band, and as a factor, too."""
    weight = torch.full((1, 1), small, dtype=dtype, requires_grad=followed)
    one = torch.ones(1, 1, dtype=dtype)
    for operator in (Dense(weight), Banded(weight, 0), LowRank(weight, one), RowScaled(Dense(one), weight[0])):
        p = ChainPotentials(torch.zeros(1, dtype=dtype), operator, torch.zeros(2, 2, 1, dtype=dtype))
        for found in expected_counts(p).transition:
            assert found.dtype == dtype
            assert found.item() == pytest.approx(2.0, rel=1e-6)
