"""The rank-space HMM against every path of states and ranks, and its two orders against each other."""

import pytest
import torch

from rankfold import UnsupportedError
from rankfold.models import ModelConfig, RankHMM, build_model
from rankfold.operators import Dense, LowRank
from tests.models.cases import CASES, Case, as_rows, seeded, some_strings
from tests.oracles import rank_chain as oracle
from tests.params.build import EXACT

RANK = [case for case in CASES if case.config.family == "rank"]
every_case = pytest.mark.parametrize("case", RANK, ids=lambda case: case.name)
dropout_or_not = pytest.mark.parametrize("dropout", [False, True])


def model_of(case: Case) -> RankHMM:
    model = case.build()
    assert isinstance(model, RankHMM)
    return model


def test_the_first_rank_has_no_gradient_of_its_own_in_the_table() -> None:
    """Which would be as large as the table: it goes along with the table's own pass."""
    model = build_model(ModelConfig(family="rank", num_states=7, rank=5, dim=3), 11)
    assert isinstance(model, RankHMM)
    factors = model.factors(0.0, None)
    assert torch.autograd.grad(factors.first.sum(), factors.rank, allow_unused=True, retain_graph=True) == (None,)
    weight = torch.arange(5.0)
    (found,) = torch.autograd.grad(factors.first @ weight, model.factors.source)  # and is not lost
    plain = model.factors(0.0, None)
    (expected,) = torch.autograd.grad((plain.log_start.exp() @ plain.rank) @ weight, model.factors.source)
    torch.testing.assert_close(found, expected)


@every_case
@dropout_or_not
@pytest.mark.parametrize("plan", ["state", "rank", "auto"])
def test_states_are_summed_out(case: Case, dropout: bool, plan: str) -> None:
    model = model_of(case)
    parts = model.parts(seeded(2) if dropout else None)
    factors = parts.factors
    every = torch.arange(case.config.rank)
    written = [x.tolist() for x in (factors.log_start.exp(), factors.rank, factors.state)]
    written.append(factors.emission.log_rows(every).exp().tolist())
    batch = some_strings()
    rows = [row[:3] for row in as_rows(batch)]
    batch = batch._replace(lengths=batch.lengths.clamp(max=3))
    potentials = model.potentials(batch, parts=parts, plan=plan)
    expected = torch.tensor([oracle.probability(*written, row) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(model.log_z(potentials).exp().detach(), expected, **EXACT)
    torch.testing.assert_close(factors.first, factors.log_start.exp() @ factors.rank, **EXACT)
    query = model.query(potentials)
    assert query.of == "ranks"
    assert query.num_values == case.config.rank
    assert "ranks" in repr(query)
    posterior = query.posterior().state
    for i, row in enumerate(rows):
        found = torch.tensor(oracle.rank_posterior(*written, row), dtype=torch.float64)
        torch.testing.assert_close(posterior[i, : len(row)].detach(), found, **EXACT)


@every_case
@dropout_or_not
def test_both_orders_have_the_same_value_and_gradients(case: Case, dropout: bool) -> None:
    model = model_of(case)
    batch = some_strings()
    found = []
    for plan, kind in (("state", LowRank), ("rank", Dense)):
        potentials = model.potentials(batch, generator=seeded(2) if dropout else None, plan=plan)
        assert isinstance(potentials.transition, kind)
        total = model.log_z(potentials)
        found.append((total, *torch.autograd.grad(total.sum(), tuple(model.parameters()))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_the_configuration_chooses_the_order() -> None:
    for plan, kind in (("state", LowRank), ("rank", Dense)):
        case = RANK[0]._replace(config=type(RANK[0].config)(**{**RANK[0].config.__dict__, "plan": plan}))
        assert isinstance(model_of(case).potentials(some_strings()).transition, kind)


def test_auto_takes_the_cheaper_order_of_each_batch() -> None:
    model = build_model(ModelConfig(family="rank", num_states=128, rank=64, dim=2), 3)
    kinds = []
    for num, length in ((1, 1), (16, 1), (1, 16), (2, 32)):
        batch = model.batch(torch.zeros(num, length, dtype=torch.int64))
        kinds.append(model.potentials(batch).transition)
        assert isinstance(kinds[-1], Dense if model.plan(num, length).best.order == "rank" else LowRank)
    assert [isinstance(kind, Dense) for kind in kinds] == [False, False, True, True]


def test_batches_share_the_multiplied_transition() -> None:
    model = model_of(RANK[0])
    with torch.no_grad():
        parts = model.parts()
        one, two = (model.potentials(some_strings(), parts=parts, plan="rank") for _ in range(2))
    assert one.transition is two.transition


def test_parts_that_answered_without_gradients_still_have_them() -> None:
    """Otherwise parts that were first asked to predict train without the transition's gradient, in silence."""
    model = model_of(RANK[0])
    batch = some_strings()
    expected = torch.autograd.grad(model.log_z(model.potentials(batch, plan="rank")).sum(), tuple(model.parameters()))
    parts = model.parts()
    with torch.no_grad():
        model.potentials(batch, parts=parts, plan="rank")
    total = model.log_z(model.potentials(batch, parts=parts, plan="rank")).sum()
    found = torch.autograd.grad(total, tuple(model.parameters()), materialize_grads=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_joint_paths_need_the_factors() -> None:
    model = model_of(RANK[0])
    batch = some_strings()
    with pytest.raises(UnsupportedError, match="asks for the ranks"):
        model.query(model.potentials(batch, plan="rank")).viterbi(of="joint")
    path = model.query(model.potentials(batch, plan="state")).viterbi(of="joint").path
    assert path.shape == batch.values.shape
    assert 0 <= int(path[0].min()) <= int(path.max()) < RANK[0].config.rank
