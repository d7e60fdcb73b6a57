"""Best paths against the enumeration, ties included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfold import (
    Banded,
    ChainPotentials,
    Dense,
    LowRank,
    Operator,
    RowScaled,
    SegmentPotentials,
    Sum,
    UnsupportedError,
    WithoutDiagonal,
    viterbi,
)
from rankfold.decoding.viterbi import BestPath
from rankfold.kernels import log_products
from rankfold.operators import Product, row_operator
from tests.decoding.build import LOW_RANK, ranks_as_lists
from tests.operators.cases import CASES, Case
from tests.oracles import chain as oracle
from tests.recursions.build import BY_NAME, ENDS, INF, as_lists, by_sequence, pad_with_nan, potentials, seeded

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=4)

# Sums of at most a dozen float64 logs; float32 weights are exact inputs, their logs are rounded to 1e-6.
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4}


def check(p: ChainPotentials, dtype: torch.dtype) -> None:
    """The path found has the weight of the best one, which is the weight it claims."""
    assert p.lengths is not None
    path, log_prob, *_ = viterbi(p)
    assert path.dtype == torch.int64
    assert log_prob.dtype == torch.float64
    for i, length in enumerate(p.lengths.tolist()):
        _, best = oracle.best_path(**as_lists(p, i))
        assert float(log_prob[i]) == pytest.approx(best, rel=0.0, abs=CLOSE[dtype])
        assert (path[i, length:] == -1).all()
        if best == -INF:
            assert (path[i] == -1).all()
        else:
            weight = oracle.paths(**as_lists(p, i))[tuple(path[i, :length].tolist())]
            assert weight == pytest.approx(best, rel=0.0, abs=CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE)
@every_case
@settings(max_examples=4)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged, final=st.sampled_from(ENDS))
def test_the_best_path_is_that_of_the_enumeration(
    case: Case, dtype: torch.dtype, seed: int, z: int, lengths: list[int], final: str
) -> None:
    check(potentials(case, z, lengths, seed=seed, dtype=dtype, initial="b z", final=final), dtype)


@every_case
def test_blocks_of_rows_change_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    p = potentials(case, 4, [4, 1, 3], seed=70, final="z")
    whole = viterbi(p)
    for size in (1, 5, 8):
        monkeypatch.setattr(row_operator, "BLOCK", size)
        monkeypatch.setattr(log_products, "BLOCK", size)
        path, log_prob, *_ = viterbi(p)
        assert torch.equal(path, whole.path)
        # Products of another shape may sum in another order.
        torch.testing.assert_close(log_prob, whole.log_prob, rtol=1e-14, atol=1e-14)


TIED: dict[str, Operator] = {
    "dense": Dense(torch.ones(4, 4)),
    "dense log": Dense.from_log(torch.zeros(4, 4)),
    "low rank": LowRank(torch.full((4, 2), 0.5), torch.ones(4, 2)),
    "low rank log": LowRank.from_log(torch.zeros(4, 1), torch.zeros(4, 1)),
    "banded": Banded(torch.ones(4, 3), -1),
    "banded full": Banded(torch.ones(4, 7), -3),
    "sum": Sum([Dense(torch.full((4, 4), 0.5)), LowRank(torch.full((4, 1), 0.5), torch.ones(4, 1))]),
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("block", [None, 4, 9])
def test_ties_go_to_the_smallest_state(name: str, block: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of 1 and integer logs: every sum is exact, so ties are ties."""
    if block is not None:
        monkeypatch.setattr(row_operator, "BLOCK", block)
        monkeypatch.setattr(log_products, "BLOCK", block)
    log_obs = torch.randint(-1, 1, (6, 4, 4), generator=seeded(71)).float()
    log_obs[0] = 0.0
    lengths = [4, 4, 3, 2, 1, 4]
    log_final = torch.tensor([-1.0, 0.0, 0.0, 0.0])
    p = ChainPotentials(torch.zeros(4), TIED[name], pad_with_nan(log_obs, lengths), log_final, torch.tensor(lengths))
    path = viterbi(p).path
    for i, length in enumerate(lengths):
        expected, _ = oracle.best_path(**as_lists(p, i))
        assert tuple(path[i, :length].tolist()) == expected


def test_the_best_path_is_not_the_best_states() -> None:
    """The likeliest first state starts the likeliest path's rival."""
    weight = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    log_initial = torch.tensor([0.6, 0.4], dtype=torch.float64).log()
    p = ChainPotentials(log_initial, Dense(weight), torch.zeros(1, 2, 2, dtype=torch.float64))
    path, log_prob, *_ = viterbi(p)
    assert path.tolist() == [[1, 1]]
    assert float(log_prob.exp()) == pytest.approx(0.4, rel=1e-12)


def test_an_impossible_sequence_has_no_path() -> None:
    p = potentials(BY_NAME["low_rank_2"], 3, [3, 3, 2], seed=72, zeros=False)
    log_obs = p.log_obs.clone()
    log_obs[1, 2] = -INF
    found = viterbi(p._replace(log_obs=log_obs))
    assert found.path[1].tolist() == [-1, -1, -1]
    assert found.log_prob[1] == -INF
    whole = viterbi(p)
    assert torch.equal(found.path[[0, 2]], whole.path[[0, 2]])
    assert torch.equal(found.log_prob[[0, 2]], whole.log_prob[[0, 2]])
    forbidden = viterbi(p._replace(log_final=torch.full((3,), -INF, dtype=torch.float64)))
    assert (forbidden.path == -1).all()
    assert (forbidden.log_prob == -INF).all()


def test_a_thousand_nats_in_float32() -> None:
    log_obs = torch.tensor([[[0.0, x] for x in (-1000.0, 2000.0, -990.0)]])
    p = ChainPotentials(torch.zeros(2), Dense(torch.eye(2)), log_obs)
    path, log_prob, *_ = viterbi(p)
    assert path.tolist() == [[1, 1, 1]]
    assert float(log_prob) == 10.0


def test_float32_logs_are_added_up_in_float64() -> None:
    """State 1 is better by 1e-4, which a float32 sum near 5000 cannot hold."""
    for position in range(2):
        log_initial = torch.tensor([0.0, 1e-4]) if position == 0 else torch.zeros(2)
        log_final = torch.tensor([0.0, 1e-4]) if position == 1 else None
        p = ChainPotentials(log_initial, Dense(torch.eye(2)), torch.full((1, 2, 2), 5000.0), log_final)
        path, log_prob, *_ = viterbi(p)
        assert path.tolist() == [[1, 1]]
        assert float(log_prob) == pytest.approx(10000.0001, rel=0.0, abs=1e-8)


def test_gradients_are_not_followed() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    found = viterbi(ChainPotentials(torch.zeros(2), Dense(weight), torch.zeros(1, 3, 2)))
    assert not found.log_prob.requires_grad


PLANS = {
    "dense": "exact, dense: 96 additions",
    "banded_near": "exact, banded",
    "low_rank_2": "exact, low rank by blocks of rows, never stored: 96 multiply-adds shared by the batch",
    "sum": "exact, Sum by blocks of rows, never stored",
    "row_scaled": "exact, low rank by blocks of rows, never stored, rows scaled",
    "row_scaled_empty_rows": "exact, banded, rows scaled",
}


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_names_the_algorithm_and_its_cost(name: str) -> None:
    found = viterbi(potentials(BY_NAME[name], 4, [4, 3], seed=73))
    assert isinstance(found, BestPath)
    assert found.plan.startswith(PLANS[name])


class NoMaximum:
    """All of an operator but its best predecessors."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def __getattr__(self, name: str):
        if name in ("push_max", "_operator"):
            raise AttributeError(name)
        return getattr(self._operator, name)

    def with_factors(self, *factors):
        return NoMaximum(self._operator.with_factors(*factors))


def test_an_operator_without_a_maximum_is_refused() -> None:
    p = ChainPotentials(torch.zeros(2), NoMaximum(Dense(torch.ones(2, 2))), torch.zeros(1, 3, 2))
    with pytest.raises(UnsupportedError, match=r"NoMaximum.*no push_max"):
        viterbi(p)


@pytest.mark.parametrize("name", LOW_RANK)
@settings(max_examples=5)
@given(seed=seeds, z=st.integers(1, 3), lengths=st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_the_best_states_and_ranks_are_those_of_the_enumeration(
    name: str, seed: int, z: int, lengths: list[int]
) -> None:
    p = potentials(BY_NAME[name], z, lengths, seed=seed, final="b z")
    found = viterbi(p, of="joint")
    num_moves = max(lengths) - 1
    assert found.ranks.shape == (3, num_moves)
    assert found.log_prob.dtype == torch.float64
    for i, length in enumerate(lengths):
        _, _, best = oracle.joint_best(**ranks_as_lists(p, i))
        assert float(found.log_prob[i]) == pytest.approx(best, rel=0.0, abs=1e-10)
        assert (found.path[i, length:] == -1).all()
        assert (found.ranks[i, length - 1 :] == -1).all()
        if best == -INF:
            assert (found.path[i] == -1).all()
            assert (found.ranks[i] == -1).all()
        else:
            both = tuple(found.path[i, :length].tolist()), tuple(found.ranks[i, : length - 1].tolist())
            assert oracle.joint_paths(**ranks_as_lists(p, i))[both] == pytest.approx(best, rel=0.0, abs=1e-10)


def test_ties_of_states_and_ranks() -> None:
    p = ChainPotentials(torch.zeros(3), LowRank(torch.ones(3, 2), torch.ones(3, 2)), torch.zeros(2, 3, 3))
    found = viterbi(p, of="joint")
    states, ranks, _ = oracle.joint_best(**ranks_as_lists(p, 0))
    assert tuple(found.path[0].tolist()) == states == (0, 0, 0)
    assert tuple(found.ranks[0].tolist()) == ranks == (0, 0)


def test_the_best_states_with_ranks_need_not_be_the_best_states() -> None:
    """0 -> 0 has one rank of 0.4; 0 -> 1 has two of 0.3."""
    left = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    right = torch.tensor([[0.4, 0.0, 0.0], [0.0, 0.3, 0.3]], dtype=torch.float64)
    log_initial = torch.tensor([0.0, -INF], dtype=torch.float64)
    p = ChainPotentials(log_initial, LowRank(left, right), torch.zeros(1, 2, 2, dtype=torch.float64))
    assert viterbi(p).path.tolist() == [[0, 1]]
    found = viterbi(p, of="joint")
    assert found.path.tolist() == [[0, 0]]
    assert found.ranks.tolist() == [[0]]
    assert float(found.log_prob.exp()) == pytest.approx(0.4, rel=1e-12)


@pytest.mark.parametrize("name", ["dense", "banded_near", "sum", "row_scaled"])
def test_ranks_are_asked_of_low_rank_alone(name: str) -> None:
    p = potentials(BY_NAME[name], 3, [2, 2], seed=74)
    with pytest.raises(UnsupportedError, match=f"asks for the ranks of a {type(p.transition).__name__}"):
        viterbi(p, of="joint")


def test_the_enumeration_is_asked_about_every_sequence() -> None:
    """Best paths of different sequences differ, so a mix-up in the batch would be seen."""
    p = potentials(BY_NAME["dense"], 3, [4, 4, 4], seed=75, zeros=False)
    expected = [best for best, _ in by_sequence(oracle.best_path, p)]
    assert len(set(expected)) == 3
    assert viterbi(p).path.tolist() == [list(best) for best in expected]


def test_values_of_ten_thousand_nats_have_float64s_digits() -> None:
    """A value is that of float64 for the numbers given, whatever their dtype, for every operator."""
    g = seeded(70)
    log_left, log_right = (-1e4 * torch.rand(3, 2, generator=g) for _ in range(2))
    log_dense = (log_left.double()[:, None] + log_right.double()).logsumexp(-1)
    weight = torch.rand(3, 3, generator=g) * 1e-30
    apart = log_dense.clone().fill_diagonal_(-INF)
    operators: list[tuple[Operator, Tensor]] = [
        (LowRank.from_log(log_left, log_right), log_dense),
        (Product(weight, weight), (weight.double() @ weight.double().mT).log()),
        (WithoutDiagonal(LowRank.from_log(log_left, log_right)), apart),
        (Sum([LowRank.from_log(log_left, log_right), Dense(weight)]), log_dense.logaddexp(weight.double().log())),
        (RowScaled(Dense(weight), weight[0]), (weight.double() * weight[0, :, None].double()).log()),
        (Banded(weight, -1), _band(weight.double()).log()),
    ]
    for operator, log_matrix in operators:
        p = ChainPotentials(torch.zeros(3), operator, torch.zeros(1, 2, 3))
        assert viterbi(p).log_prob.item() == pytest.approx(log_matrix.max().item(), rel=1e-14)
        s = SegmentPotentials(torch.zeros(3), operator, torch.zeros(3, 1), torch.zeros(1, 2, 3))
        assert viterbi(s).log_prob.item() == pytest.approx(log_matrix.max().item(), rel=1e-14)
    p = ChainPotentials(torch.zeros(3), LowRank.from_log(log_left, log_right), torch.zeros(1, 2, 3))
    joint = (log_left.double()[:, None] + log_right.double()).max().item()
    assert viterbi(p, of="joint").log_prob.item() == pytest.approx(joint, rel=1e-14)


def _band(weight: Tensor) -> Tensor:  # "z 3" -> "z z"
    """The matrix of three diagonals from -1 on."""
    size = len(weight)
    return torch.stack(
        [
            torch.stack([weight[i, j - i + 1] if -1 <= j - i <= 1 else weight.new_zeros(()) for j in range(size)])
            for i in range(size)
        ]
    )
