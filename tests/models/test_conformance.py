"""What every model of words must do, for every case of `cases.py`: laws, and the enumeration of all paths."""

import pytest
import torch
from torch import Tensor

from rankfold.data.batch import Batch
from tests.models.cases import CASES, Case, all_strings, as_rows, seeded, some_strings, tables
from tests.oracles import chain as oracle
from tests.params.build import EXACT

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
dropout_or_not = pytest.mark.parametrize("dropout", [False, True], ids=["whole", "dropout"])


def dropped(dropout: bool, seed: int = 3) -> torch.Generator | None:
    return seeded(seed) if dropout else None


@every_case
@dropout_or_not
def test_all_strings_of_a_length_sum_to_one(case: Case, dropout: bool) -> None:
    model = case.build()
    for length in (1, 2, 3):
        total = torch.logsumexp(model.log_likelihood(all_strings(length), generator=dropped(dropout)), 0)
        assert abs(total.exp().item() - 1) < 1e-10


@every_case
@dropout_or_not
def test_log_likelihood_is_the_sum_over_all_paths(case: Case, dropout: bool) -> None:
    model = case.build()
    parts = model.parts(dropped(dropout))
    batch = some_strings()
    written = tables(parts)
    expected = [oracle.log_z(**written.as_lists(row)) for row in as_rows(batch)]
    found = model.log_likelihood(batch, parts=parts)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), **EXACT)
    again = model.log_likelihood(batch, generator=dropped(dropout))
    assert torch.equal(again, found)


@every_case
@dropout_or_not
def test_log_arithmetic_says_the_same(case: Case, dropout: bool) -> None:
    model = case.build()
    potentials = model.potentials(some_strings(), generator=dropped(dropout))
    torch.testing.assert_close(model.log_z(potentials, "log"), model.log_z(potentials), **EXACT)


@every_case
def test_without_a_generator_there_is_no_dropout(case: Case) -> None:
    model = case.build()
    first, second = tables(model.parts()), tables(model.parts())
    num_hidden = case.config.rank if case.config.family == "rank" else case.config.num_states
    assert first.start.shape == (num_hidden,)
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)
        assert (one > 0).all() or case.config.family == "block"
    one, two, other = (tables(model.parts(seeded(seed))) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    if num_hidden == 4:
        assert one.start.shape != other.start.shape or not torch.equal(one.start, other.start)


@every_case
def test_gradients_in_every_parameter(case: Case) -> None:
    model = case.build()
    batch = some_strings()
    parameters = tuple(model.parameters())
    for seed in (None, 3):

        def loss(*_: Tensor, seed: int | None = seed) -> Tensor:
            return model.log_likelihood(batch, generator=None if seed is None else seeded(seed))

        assert torch.autograd.gradcheck(loss, parameters, fast_mode=True, check_undefined_grad=False)
    model.zero_grad()
    model.log_likelihood(batch).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@every_case
def test_a_batch_is_its_sentences(case: Case) -> None:
    model = case.build()
    batch = some_strings()
    whole = model.log_likelihood(batch)
    alone = torch.cat(
        [model.log_likelihood(Batch(torch.tensor([row]), torch.tensor([len(row)]))) for row in as_rows(batch)]
    )
    torch.testing.assert_close(whole, alone, **EXACT)
    one, other = (torch.autograd.grad(total.sum(), tuple(model.parameters())) for total in (whole, alone))
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


@every_case
def test_padding_is_never_read(case: Case) -> None:
    model = case.build()
    batch = some_strings()
    inside = torch.arange(batch.values.shape[1]) < batch.lengths[:, None]
    expected = model.log_likelihood(batch)
    for other in range(3):
        padded = batch._replace(values=torch.where(inside, batch.values, other))
        assert torch.equal(model.log_likelihood(padded), expected)
    for nonsense in (-100, 10**6):
        padded = model.batch(torch.where(inside, batch.values, nonsense), batch.lengths)
        assert torch.equal(model.log_likelihood(padded), expected)
    longer = model.batch(torch.cat([batch.values, torch.full((4, 3), -1)], 1), batch.lengths)
    torch.testing.assert_close(model.log_likelihood(longer), expected, **EXACT)


@every_case
def test_carried_stretches_add_up(case: Case) -> None:
    """Three streams; the last stretch has two of them, one shorter than the other."""
    model = case.build()
    words = torch.tensor([[0, 1, 2, 2, 0, 1], [2, 0, 1, 1, 1, 0], [1, 1, 0, 2, 0, 0]])
    lengths = [6, 5, 4]
    whole = model.log_likelihood(Batch(words, torch.tensor(lengths)))
    parts = model.parts()
    total = torch.zeros(3, dtype=torch.float64)
    carried = None
    for start, rows, widths in ((0, 3, [1, 1, 1]), (1, 3, [3, 3, 3]), (4, 2, [2, 1])):
        window = Batch(words[:rows, start : start + max(widths)], torch.tensor(widths), first=start == 0)
        potentials = model.potentials(window, parts=parts, carried=carried)
        total[:rows] += model.log_z(potentials).detach()
        carried = model.carry(potentials)
        leaves = carried if isinstance(carried, tuple) else (carried,)
        assert not any(x.requires_grad for x in leaves)
    torch.testing.assert_close(total, whole.detach(), **EXACT)


@every_case
@dropout_or_not
def test_predict(case: Case, dropout: bool) -> None:
    model = case.build()
    parts = model.parts(dropped(dropout))

    def probability(rows: list[list[int]]) -> Tensor:
        return model.log_likelihood(Batch(torch.tensor(rows), torch.tensor([len(row) for row in rows])), parts=parts)

    first = model.predict_ids(parts=parts)
    assert first.dtype == torch.float64
    assert not first.requires_grad
    torch.testing.assert_close(first, probability([[0], [1], [2]])[None].detach(), **EXACT)
    batch = some_strings()
    found = model.predict_ids(batch, parts=parts)
    for i, row in enumerate(as_rows(batch)):
        expected = probability([[*row, v] for v in range(3)]) - probability([row])
        torch.testing.assert_close(found[i], expected.detach(), **EXACT)
    for log_prob in (first, found):
        torch.testing.assert_close(log_prob.exp().sum(1), torch.ones(len(log_prob), dtype=torch.float64), **EXACT)
    if not dropout:
        assert torch.equal(model.predict_ids(batch), found)


@every_case
def test_float32_is_close(case: Case) -> None:
    model = case.build()
    batch = some_strings()
    exact = model.log_likelihood(batch)
    # float32 parameters move a log-probability of a few words by a few rounding errors of numbers below 10.
    torch.testing.assert_close(model.float().log_likelihood(batch), exact, rtol=0.0, atol=2e-5)
    assert model.parts().emission.log_rows(torch.arange(1)).dtype == torch.float32


@every_case
def test_the_global_generator_is_left_alone(case: Case) -> None:
    before = torch.get_rng_state()
    model = case.plain()
    model.parts()
    model.parts(seeded())
    model.log_likelihood(some_strings(), generator=seeded()).sum().backward()
    model.predict_ids(some_strings())
    model.generate_ids(3, max_length=3, generator=seeded())
    query = model(torch.tensor([[0, 1]]))
    query.sample(2, generator=seeded())
    query.mbr()
    assert torch.equal(torch.get_rng_state(), before)


@every_case
def test_a_seed_decides_every_parameter(case: Case) -> None:
    one, two, other = (case.plain(seed) for seed in (0, 0, 1))
    changed = 0
    for (name, a), b, c in zip(one.named_parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.isfinite().all(), name
        assert a.dtype == torch.float32
        changed += not torch.equal(a, c)
    assert changed


@every_case
def test_a_small_step_raises_the_likelihood(case: Case) -> None:
    model = case.plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = some_strings()
    before = model.log_likelihood(batch).sum()
    (-before).backward()
    optimizer.step()
    assert model.log_likelihood(batch).sum().item() > before.item()


@every_case
def test_plan(case: Case) -> None:
    model = case.plain()
    for device in ("cpu", "cuda"):
        plans = model.plan(4, 5, device)
        orders = [way.order for way in plans.ways]
        assert sorted(orders) == (["rank", "state"] if case.config.family == "rank" else ["state"])
        assert plans.best.tokens == 20
        assert all(way.seconds > 0 and way.peak_bytes > 0 and way.multiply_adds > 0 for way in plans.ways)
