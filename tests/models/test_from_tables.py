"""An HMM from tables of probabilities: the enumeration, zeros that stay, and tables that are refused."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import Dense, DomainError, ShapeError, UnsupportedError
from rankfold.data.batch import Batch
from rankfold.models import HMM
from tests.oracles import chain as oracle
from tests.params.build import EXACT, seeded

INF = float("inf")
START = [0.7, 0.3, 0.0]
TRANSITION = [[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [1.0, 0.0, 0.0]]
EMISSION = [[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]


def tensors() -> list[Tensor]:
    return [torch.tensor(x, dtype=torch.float64) for x in (START, TRANSITION, EMISSION)]


def everything() -> Batch:
    """All strings of length 3, shorter ones first in each."""
    words = torch.tensor(list(itertools.product(range(3), repeat=3)))
    return Batch(words, torch.tensor([1, 2, 3] * 9))


def test_values() -> None:
    model = HMM.from_tables(*tensors())
    batch = everything()
    log_emission = [[oracle.log(x) for x in row] for row in EMISSION]
    expected = [
        oracle.log_z(
            [oracle.log(x) for x in START], TRANSITION, [[row[v] for row in log_emission] for v in words[:length]]
        )
        for words, length in zip(batch.values.tolist(), batch.lengths.tolist(), strict=True)
    ]
    assert -INF in expected  # a string that cannot be
    torch.testing.assert_close(
        model.log_likelihood(batch).detach(), torch.tensor(expected, dtype=torch.float64), **EXACT
    )
    assert model.num_words == 3
    assert model.config.family == "hmm"
    assert model.config.num_states == 3


def test_probabilities_come_back() -> None:
    parts = HMM.from_tables(*tensors()).parts()
    every = torch.arange(3)
    for found, table in zip(
        (parts.log_initial.exp(), parts.transition.to_dense(), parts.emission.log_rows(every).exp()),
        tensors(),
        strict=True,
    ):
        torch.testing.assert_close(found.detach(), table, **EXACT)
        assert torch.equal(found == 0, table == 0)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_zeros_stay_zero_in_training(optimizer: str) -> None:
    model = HMM.from_tables(*tensors())
    step = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    batch = everything()
    possible = model.log_likelihood(batch) > -INF
    before = float(model.log_likelihood(batch)[possible].sum().detach())
    for _ in range(3):
        step.zero_grad()
        (-model.log_likelihood(batch)[possible].sum()).backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
        step.step()
    after = model.log_likelihood(batch)[possible].sum().item()
    assert math.isfinite(after)
    assert after > before
    parts = model.parts()
    found = (parts.log_initial.exp(), parts.transition.to_dense(), parts.emission.log_rows(torch.arange(3)).exp())
    for table, new in zip(tensors(), found, strict=True):
        assert torch.equal(new == 0, table == 0)
        assert not torch.allclose(new, table)


def test_an_impossible_sequence_has_no_gradient() -> None:
    model = HMM.from_tables(*tensors())
    batch = Batch(torch.tensor([[0, 0, 1], [2, 0, 2]]), torch.tensor([3, 3]))
    alone = Batch(batch.values[:1], batch.lengths[:1])
    total = model.log_likelihood(batch)
    assert total[1] == -INF
    grads = torch.autograd.grad(total, tuple(model.parameters()), torch.ones_like(total))
    expected = torch.autograd.grad(model.log_likelihood(alone).sum(), tuple(model.parameters()))
    for found, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(found, wanted, **EXACT)


def test_the_tables_are_copied() -> None:
    given = tensors()
    model = HMM.from_tables(*given)
    batch = everything()
    before = model.log_likelihood(batch)
    for table in given:
        table.fill_(float("nan"))
    assert torch.equal(model.log_likelihood(batch), before)


def test_gradients_of_the_tables_stop() -> None:
    given = [table.requires_grad_() for table in tensors()]
    assert all(parameter.is_leaf for parameter in HMM.from_tables(*given).parameters())


def test_one_state_and_float32() -> None:
    model = HMM.from_tables(torch.ones(1), torch.ones(1, 1), torch.tensor([[0.25, 0.75]]))
    assert model.log_likelihood(model.batch(torch.tensor([[0, 1]]))).item() == pytest.approx(math.log(3 / 16), rel=1e-6)


def test_a_prefix_that_cannot_be() -> None:
    model = HMM.from_tables(*tensors())
    with pytest.raises(DomainError, match="prefix has probability 0"):
        model.generate_ids(prefix=[2, 0, 2], generator=seeded())
    assert (model.predict_ids(model.batch(torch.tensor([[2, 0, 2]]))) == -INF).all()


def changed(which: int, index: Any, value: float) -> list[Tensor]:
    out = tensors()
    out[which][index] = value
    return out


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (changed(0, 0, 0.6), DomainError, r"start sums to 0\.9,.*sum to 1"),
        (changed(1, (1, 2), 0.9), DomainError, r"row 1 of transition sums to 1\.1,.*sum to 1"),
        (changed(2, (2, 0), 0.5), DomainError, r"row 2 of emission sums to 1\.25"),
        (changed(1, (0, 2), -0.5), DomainError, r"transition\[0,2\] is -0\.5.*at least 0"),
        (changed(0, 1, float("nan")), DomainError, r"start\[1\] is nan"),
        (changed(2, (0, 0), INF), DomainError, r"emission\[0,0\] is inf"),
        ([*tensors()[:2], torch.ones(2, 1)], ShapeError, r"emission has shape \(2, 1\)"),
        ([tensors()[0], torch.ones(3, 1), tensors()[2]], ShapeError, r"transition has shape \(3, 1\)"),
        ([torch.ones(1, 3) / 3, *tensors()[1:]], ShapeError, r"start has shape \(1, 3\)"),
        ([torch.ones(2) / 2, *tensors()[1:]], ShapeError, r"transition has shape \(3, 3\)"),
        ([tensors()[0].half(), *tensors()[1:]], UnsupportedError, "start has dtype torch.float16"),
        ([tensors()[0], Dense(tensors()[1]), tensors()[2]], UnsupportedError, "(?s)transition is a Dense.*Chain"),
        ([START, *tensors()[1:]], ShapeError, "start must be a torch.Tensor"),
    ],
    ids=lambda value: None,
)
def test_refused(given: list[Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        HMM.from_tables(*given)


def test_mixed_dtypes_are_refused_at_the_door() -> None:
    start, transition, emission = tensors()
    with pytest.raises(UnsupportedError, match="float32"):
        HMM.from_tables(start, transition.float(), emission)
