"""Nothing of size z y, let alone t z y, is ever in memory, unless the operator is dense."""

from collections.abc import Callable

import pytest
import torch

from rankfold import (
    Banded,
    ChainPotentials,
    Dense,
    LowRank,
    Operator,
    RowScaled,
    Sum,
    entropy,
    expected_counts,
    posterior,
    sample,
    viterbi,
)
from rankfold.decoding.online import filter as filter_
from rankfold.kernels import log_products
from rankfold.operators import row_operator
from rankfold.recursions.chain import carry, log_z, messages
from tests.recursions.build import leaves, pad_with_nan, seeded
from tests.recursions.memory import LargestTensor

B, T, Z, R = 2, 32, 512, 16
CELLS = Z * Z
# Messages and observations are b t z = 32,768 entries; factors z r = 8,192. Twice that leaves room for a pair.
SMALL = 2 * B * T * Z


def low_rank() -> Operator:
    g = seeded(30)
    return LowRank(torch.rand(Z, R, generator=g), torch.rand(Z, R, generator=g))


def low_rank_log() -> Operator:
    g = seeded(31)
    return LowRank.from_log(torch.randn(Z, R, generator=g), torch.randn(Z, R, generator=g))


def banded() -> Operator:
    return Banded(torch.rand(Z, 5, generator=seeded(32)) + 0.1, -2)


OPERATORS: dict[str, Callable[[], Operator]] = {
    "low rank": low_rank,
    "low rank log": low_rank_log,
    "banded": banded,
    "row scaled": lambda: RowScaled(low_rank(), torch.rand(Z, generator=seeded(33)) + 0.1),
    "sum": lambda: Sum([low_rank(), banded()]),
}
every_operator = pytest.mark.parametrize("name", OPERATORS)


def chain_of(transition: Operator) -> ChainPotentials:
    lengths = [T, T - 3]
    log_obs = pad_with_nan(torch.randn(B, T, Z, generator=seeded(34)), lengths)
    return ChainPotentials(torch.zeros(Z), transition, log_obs, lengths=torch.tensor(lengths))


def largest(work: Callable[[], object]) -> int:
    with LargestTensor() as seen:
        work()
    assert seen.operations
    assert seen.entries >= B * Z  # it did see the work
    return seen.entries


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a fiftieth of the matrix, so that a whole matrix would be noticed."""
    monkeypatch.setattr(row_operator, "BLOCK", CELLS // 50)
    monkeypatch.setattr(log_products, "BLOCK", CELLS // 50)


@every_operator
def test_log_z_and_its_gradient(name: str) -> None:
    at = leaves(chain_of(OPERATORS[name]()))
    with LargestTensor() as seen:
        log_z(at.potentials).sum().backward()
    assert all(x.grad is not None for x in at.tensors)
    assert seen.operations.get("mm", 0) + seen.operations.get("bmm", 0) > 2 * T - 2  # forward and backward passes
    assert seen.entries <= SMALL < CELLS


@every_operator
def test_log_z_and_its_gradient_in_log_arithmetic(name: str, small_blocks: None) -> None:
    at = leaves(chain_of(OPERATORS[name]()))
    assert largest(lambda: log_z(at.potentials, "log").sum().backward()) <= SMALL


QUESTIONS: dict[str, Callable[[ChainPotentials], object]] = {
    "posterior": posterior,
    "counts": expected_counts,
    "messages": messages,
    "carry": carry,
    "filter": filter_,
    "sample": lambda p: sample(p, generator=seeded(35)),
}


@every_operator
@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_states(question: str, name: str) -> None:
    p = chain_of(OPERATORS[name]())
    assert largest(lambda: QUESTIONS[question](p)) <= SMALL


@every_operator
def test_best_paths_by_blocks(name: str, small_blocks: None) -> None:
    p = chain_of(OPERATORS[name]())
    short = p._replace(log_obs=p.log_obs[:, :5], lengths=None)
    assert largest(lambda: viterbi(short)) <= SMALL


@every_operator
def test_entropy_by_blocks(name: str, small_blocks: None) -> None:
    p = chain_of(OPERATORS[name]())
    assert largest(lambda: entropy(p)) <= SMALL


def test_states_and_ranks_together_cost_no_more_than_low_rank() -> None:
    p = chain_of(low_rank())
    assert largest(lambda: entropy(p, of="joint")) <= SMALL
    # A step of the joint maximum compares all (state, rank) of the batch: b z r = 16,384 entries.
    assert largest(lambda: viterbi(p, of="joint")) <= SMALL


def test_memory_grows_with_the_length_only_by_its_messages() -> None:
    """Without a gradient to come, twice the length is twice b t z and nothing more."""
    p = chain_of(low_rank())
    short = p._replace(log_obs=p.log_obs[:, : T // 2], lengths=None)
    assert largest(lambda: log_z(short)) <= SMALL // 2


def test_the_measure_sees_a_dense_matrix() -> None:
    dense = Dense(torch.rand(Z, Z, generator=seeded(36)))
    at = leaves(chain_of(dense))
    assert largest(lambda: log_z(at.potentials).sum().backward()) == CELLS
