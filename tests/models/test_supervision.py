"""Labels, orders and forbidden transitions as exact constraints: the paths of an enumeration that keep to them."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import (
    Banded,
    ChainPotentials,
    Dense,
    DomainError,
    LowRank,
    ShapeError,
    UnsupportedError,
    posterior,
    viterbi,
)
from rankfold.models import FrameConfig, build_model
from rankfold.models.supervision import allowed_states, forbid, in_order, order_of, without_transitions
from rankfold.recursions import segments as semi_markov
from tests.models.frame_cases import Case, build
from tests.oracles import chain

FAMILIES: dict[str, dict[str, Any]] = {
    "chain": {},
    "chain-low-rank": {"rank": 2},
    "segments": {"durations": "poisson", "self_transitions": False},
    "segments-repeat": {"durations": "categorical"},
    "segments-low-rank": {"durations": "negative_binomial", "self_transitions": False, "rank": 2},
    "segments-cut": {"durations": "poisson", "self_transitions": False, "censored": True},
}
every_family = pytest.mark.parametrize("choices", FAMILIES.values(), ids=FAMILIES.keys())


def states_of(case: Case, path: Any) -> list[int]:
    """The state of each frame."""
    if case.log_duration is None:
        return list(path)
    return [state for start, end, state, _ in path for _ in range(start, end)]


def passes(case: Case, path: Any) -> list[int]:
    """The states of the segments, in order; of a chain, of its stretches."""
    if case.log_duration is None:
        return [state for state, _ in itertools.groupby(path)]
    return [segment[2] for segment in path]


@every_family
@pytest.mark.parametrize("labels", [[[-1, -1, -1, -1], [-1] * 4], [[0, -1, -1, 1], [2, -1, 2, 7]], [[1] * 4, [0] * 4]])
def test_labels(choices: dict[str, Any], labels: list[list[int]]) -> None:
    case = build("gaussian", **choices)
    known = torch.tensor(labels)
    known[1, 3] = 0  # beyond its length: never read
    allowed = allowed_states(known, 3)
    found = case.model.log_likelihood(case.batch, allowed=allowed)
    for i, rows in enumerate(case.log_obs):
        keeps = [
            weight
            for path, weight in case.enumerated(i).items()
            if all(y in (-1, z) for y, z in zip(labels[i][: len(rows)], states_of(case, path), strict=True))
        ]
        assert found[i].item() == pytest.approx(chain.log_sum_exp(keeps), rel=1e-11)


def test_labels_with_several_states() -> None:
    case = build("gaussian")
    table = torch.tensor([[True, False, True], [False, True, False]])
    labels = torch.tensor([[0, -1, 1, 0], [1, 0, 0, -1]])
    found = case.model.log_likelihood(case.batch, allowed=allowed_states(labels, 3, states_of=table))
    for i, rows in enumerate(case.log_obs):
        keeps = [
            weight
            for path, weight in case.enumerated(i).items()
            if all(int(y) < 0 or bool(table[y, z]) for y, z in zip(labels[i, : len(rows)], path, strict=True))
        ]
        assert found[i].item() == pytest.approx(chain.log_sum_exp(keeps), rel=1e-11)


@every_family
@pytest.mark.parametrize("orders", [[[0, 1], [2]], [[2, 1, 0], [0, 2, 0]], [[1], [0, 1]]])
def test_orders(choices: dict[str, Any], orders: list[list[int]]) -> None:
    case = build("gaussian", **choices)
    p = in_order(case.model.potentials(case.batch), orders)
    found = case.model.log_z(p)
    border = len(orders[0])
    assert p.transition.to_dense()[border - 1, border].item() == 0  # no mass goes from one order to the next
    for i in range(2):
        keeps = [w for path, w in case.enumerated(i).items() if passes(case, path) == orders[i]]
        assert found[i].item() == pytest.approx(chain.log_sum_exp(keeps), rel=1e-11)
    if isinstance(p, semi_markov.SegmentPotentials):  # an order ends in its last place, however it is cut
        for stretch in (1, 2, 3):
            torch.testing.assert_close(semi_markov.log_z(p, stretch=stretch), found, rtol=1e-11, atol=0.0)


def test_orders_of_equal_neighbours() -> None:
    case = build("gaussian", "categorical")
    p = in_order(case.model.potentials(case.batch), [[1, 1, 0], [2, 2]])
    found = case.model.log_z(p)
    for i, order in enumerate([[1, 1, 0], [2, 2]]):
        keeps = [w for path, w in case.enumerated(i).items() if passes(case, path) == order]
        assert found[i].item() == pytest.approx(chain.log_sum_exp(keeps), rel=1e-11)


def test_orders_and_labels_together() -> None:
    case = build("gaussian", "poisson", self_transitions=False)
    labels = torch.tensor([[-1, -1, -1, 1], [-1] * 4])
    orders = [[0, 1], [0, 2]]
    p = in_order(case.model.potentials(case.batch, allowed=allowed_states(labels, 3)), orders)
    assert isinstance(p, semi_markov.SegmentPotentials)
    weights = [w for path, w in case.enumerated(0).items() if passes(case, path) == [0, 1]]
    assert case.model.log_z(p)[0].item() == pytest.approx(chain.log_sum_exp(weights), rel=1e-11)
    best = order_of(orders, viterbi(p).path)
    assert [z for z, _ in itertools.groupby(best[0].tolist())] == [0, 1]
    assert best[1].tolist()[-1] == -1
    assert posterior(p).state[0, 0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_gradients_of_an_order() -> None:
    """They reach the moves that the order makes, and no others."""
    case = build("gaussian", "poisson", self_transitions=False)
    p = in_order(case.model.potentials(case.batch), [[0, 1], [1, 2]])
    case.model.log_z(p).sum().backward()
    grad = case.model.dynamics.log_transition.grad
    assert grad is not None
    used = (grad != 0).nonzero().tolist()
    assert used == [[0, 1], [0, 2], [1, 0], [1, 2]]


@pytest.mark.parametrize("made", [Dense, Dense.from_log, "banded", "banded-log"])
def test_forbidden_transitions_of_an_operator(made: Any) -> None:
    g = torch.Generator().manual_seed(0)
    weight = torch.rand(4, 4, generator=g, dtype=torch.float64) + 0.1
    forbidden = torch.rand(4, 4, generator=g) < 0.4
    if made in (Dense, Dense.from_log):
        operator = made(weight if made is Dense else weight.log())
        dense = weight
    else:
        band = weight[:, :3]
        operator = Banded(band, -1) if made == "banded" else Banded.from_log(band.log(), -1)
        dense = Banded(band, -1).to_dense()
    found = without_transitions(operator, forbidden)
    torch.testing.assert_close(found.to_dense(), dense.masked_fill(forbidden, 0.0), rtol=1e-14, atol=0)


def test_forbidden_transitions_in_potentials() -> None:
    case = build("gaussian")
    p = case.model.potentials(case.batch)
    assert isinstance(p, ChainPotentials)
    forbidden = torch.tensor([[False, True, False], [False, False, True], [True, False, False]])
    found = case.model.log_z(p._replace(transition=without_transitions(p.transition, forbidden)))
    for i in range(2):
        keeps = [
            w for path, w in case.enumerated(i).items() if not any(forbidden[a, b] for a, b in itertools.pairwise(path))
        ]
        assert found[i].item() == pytest.approx(chain.log_sum_exp(keeps), rel=1e-11)


@pytest.mark.parametrize("family", ["frame_hmm", "hsmm"])
def test_forbidden_for_good(family: Any) -> None:
    model = build_model(FrameConfig(family=family, num_states=3, num_features=2, max_duration=4)).double()
    forbidden = torch.tensor([[False, True, False], [False, False, False], [True, False, False]])
    forbid(model, forbidden)
    g = torch.Generator().manual_seed(0)
    batch = model.batch([torch.randn(9, 2, generator=g).numpy()])
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (-model.log_likelihood(batch).sum()).backward()
        optimizer.step()
    moves = model.parts().transition.to_dense()
    assert moves[forbidden].tolist() == [0.0, 0.0]
    torch.testing.assert_close(moves.sum(1), torch.ones(3).double())
    assert all(bool((x.isfinite() | (x == -math.inf)).all()) for x in model.parameters())


def mask(*rows: str) -> Tensor:
    return torch.tensor([[cell == "x" for cell in row] for row in rows])


def test_what_is_refused() -> None:
    chain_case, segments = build("gaussian"), build("gaussian", "poisson", self_transitions=False)
    p = chain_case.model.potentials(chain_case.batch)
    with pytest.raises(DomainError, match="a label is 3, but there are 3 labels"):
        allowed_states(torch.tensor([[3]]), 3)
    with pytest.raises(DomainError, match="a label is -2"):
        allowed_states(torch.tensor([[-2]]), 3)
    with pytest.raises(ShapeError, match="states_of"):
        allowed_states(torch.tensor([[0]]), 3, states_of=torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ShapeError, match="allowed has shape"):
        chain_case.model.potentials(chain_case.batch, allowed=torch.ones(2, 4, 2, dtype=torch.bool))
    with pytest.raises(ShapeError, match="1 orders for 2"):
        in_order(p, [[0]])
    with pytest.raises(DomainError, match="names state 3"):
        in_order(p, [[0], [3]])
    with pytest.raises(DomainError, match=r"orders\[1\] has 5 segments"):
        in_order(p, [[0], [0, 1, 0, 1, 0]])
    with pytest.raises(DomainError, match="twice in a row"):
        in_order(p, [[0, 0], [1]])
    carried = segments.model.potentials(segments.batch, carried=torch.zeros(2, 3, 3, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="carried in"):
        in_order(carried, [[0], [1]])
    with pytest.raises(UnsupportedError, match="LowRank"):
        without_transitions(LowRank(torch.ones(3, 1), torch.ones(3, 1)), torch.zeros(3, 3, dtype=torch.bool))
    with pytest.raises(ShapeError, match="forbidden has shape"):
        forbid(chain_case.model, torch.zeros(2, 2, dtype=torch.bool))
    with pytest.raises(DomainError, match="state 1 could go nowhere"):
        forbid(segments.model, mask("...", "x.x", "..."))
    with pytest.raises(UnsupportedError, match="free table"):
        forbid(build("gaussian", rank=2).model, mask("...", "...", "..."))


def test_labels_and_dropout_do_not_mix() -> None:
    model = build_model(FrameConfig(num_states=4, num_features=5, state_dropout=0.3)).double()
    batch = build("gaussian").batch
    with pytest.raises(UnsupportedError, match="state_dropout = 0"):
        model.potentials(
            batch, allowed=torch.ones(2, 4, 4, dtype=torch.bool), generator=torch.Generator().manual_seed(0)
        )
