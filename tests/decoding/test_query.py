"""What `model(words, lengths)` answers, for every model, against the enumeration of its paths."""

import pytest
import torch
from torch import Tensor

from rankfold import DomainError, ShapeError, UnsupportedError
from rankfold.decoding.query import PathQuery
from rankfold.operators import LowRank
from rankfold.recursions.blocks import BlockPotentials
from tests.models.cases import BY_NAME, CASES, Case, as_rows, seeded, some_strings, tables
from tests.oracles import chain as oracle
from tests.params.build import EXACT

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
families = pytest.mark.parametrize(
    "name", ["hmm-neural-3", "lhmm-neural-3-2", "banded-free-4-2-1", "block-neural-6-2", "rank-free-3-2"]
)


def everywhere(query: PathQuery) -> Tensor:
    """The posterior over all states, for block models too."""
    posterior = query.posterior().state.detach()
    if not isinstance(query.potentials, BlockPotentials):
        return posterior
    out = torch.zeros(*posterior.shape[:2], query.num_values, dtype=posterior.dtype)
    return out.scatter(-1, query.potentials.states(), posterior)


@every_case
def test_the_enumeration(case: Case) -> None:
    model = case.build()
    batch = some_strings()
    query = model(batch.values, lengths=batch.lengths)
    written = tables(model.parts())
    posterior = everywhere(query)
    assert query.num_values == posterior.shape[-1] == len(written.start)
    assert query.of == ("ranks" if case.config.family == "rank" else "states")
    best, likely = query.viterbi(), query.mbr()
    log_z, unsure = query.log_partition.tolist(), query.entropy().tolist()
    for i, row in enumerate(as_rows(batch)):
        fields = written.as_lists(row)
        length = len(row)
        assert log_z[i] == pytest.approx(oracle.log_z(**fields), rel=1e-10, abs=1e-10)
        assert unsure[i] == pytest.approx(oracle.entropy(**fields), rel=1e-10, abs=1e-10)
        expected = torch.tensor(oracle.posterior(**fields), dtype=torch.float64)
        torch.testing.assert_close(posterior[i, :length], expected, **EXACT)
        assert (posterior[i, length:] == 0).all()
        assert best.path[i].tolist() == [*oracle.best_path(**fields)[0], *[-1] * (4 - length)]
        assert float(likely.expected[i]) == pytest.approx(float(expected.amax(1).sum()), rel=1e-10)
        assert likely.path[i].tolist() == [*expected.argmax(1).tolist(), *[-1] * (4 - length)]
    assert torch.equal(query.log_prob(), query.log_partition)
    torch.testing.assert_close(posterior.sum(-1), (torch.arange(4) < batch.lengths[:, None]).double(), **EXACT)


@every_case
def test_joint(case: Case) -> None:
    model = case.build()
    batch = some_strings()
    query = model(batch.values, batch.lengths)
    transition = getattr(query.potentials, "transition", None)
    if not isinstance(transition, LowRank):
        with pytest.raises(UnsupportedError, match="viterbi"):
            query.viterbi(of="joint")
        return
    left, right = (x.tolist() for x in transition.factors())
    written = tables(model.parts())
    path = query.viterbi(of="joint").path
    for i, row in enumerate(as_rows(batch)):
        fields = written.as_lists(row)
        del fields["transition"]
        states = oracle.joint_best(**fields, left=left, right=right)[0]
        assert path[i].tolist() == [*states, *[-1] * (4 - len(row))]


@every_case
def test_samples(case: Case) -> None:
    model = case.build()
    batch = some_strings()
    query = model(batch.values, batch.lengths)
    inside = torch.arange(4) < batch.lengths[:, None]
    one, many = query.sample(generator=seeded()).path, query.sample(400, generator=seeded(1)).path
    assert one.shape == (4, 4)
    assert many.shape == (400, 4, 4)
    assert torch.equal(many, query.sample(400, generator=seeded(1)).path)
    for paths in (one[None], many):
        assert ((paths >= 0) == inside).all()
        assert int(paths.max()) < query.num_values
    shares = query.one_hot(many).double().mean(0)
    posterior = everywhere(query)
    # Each share is that of 400 independent draws: five standard deviations of the widest.
    assert (shares - posterior).abs().max() < 5 * 0.5 / 20
    for number in (0, -1):
        with pytest.raises(DomainError, match="num_samples"):
            query.sample(number)


@every_case
def test_one_hot(case: Case) -> None:
    query = case.build()(some_strings().values, some_strings().lengths)
    path = query.viterbi().path
    indicators = query.one_hot(path)
    assert indicators.shape == (4, 4, query.num_values)
    assert torch.equal(indicators.sum(-1), (path >= 0).long())
    assert torch.equal(indicators.argmax(-1)[path >= 0], path[path >= 0])
    drawn = query.one_hot(query.sample(3, generator=seeded()).path)
    assert drawn.shape == (3, 4, 4, query.num_values)


@families
def test_without_lengths_all_positions_count(name: str) -> None:
    model = BY_NAME[name].build()
    words = some_strings().values
    whole = model(words, torch.full((4,), 4))
    assert torch.equal(model(words).log_partition, whole.log_partition)
    assert torch.equal(model(words, [4, 4, 4, 4]).log_partition, whole.log_partition)
    assert torch.equal(model(words.int()).log_partition, whole.log_partition)


@families
def test_questions_are_differentiable(name: str) -> None:
    model = BY_NAME[name].build()
    batch = some_strings()
    parameters = tuple(model.parameters())

    def answers(*_: Tensor) -> tuple[Tensor, ...]:
        query = model(batch.values[:2, :3], [3, 1])
        posterior = query.posterior().state
        weight = torch.arange(posterior.numel(), dtype=torch.float64).reshape(posterior.shape)
        return query.entropy().sum(), (posterior * weight.cos()).sum()

    assert torch.autograd.gradcheck(answers, parameters, fast_mode=True, check_undefined_grad=False)
    with torch.no_grad():
        assert not model(batch.values).posterior().state.requires_grad


@families
def test_a_query_says_what_it_is(name: str) -> None:
    text = repr(BY_NAME[name].build()(some_strings().values))
    assert "4 sequences of up to 4" in text
    assert ("ranks" if name.startswith("rank") else "states") in text


@families
@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (torch.tensor([[0, 3]]), DomainError, "id 3, but this model knows 0 to 2"),
        (torch.tensor([[0, -1]]), DomainError, "id -1, but this model knows 0 to 2"),
        (torch.tensor([[0.0, 1.0]]), ShapeError, "torch.float32, but integer ids"),
        (torch.tensor([0, 1]), ShapeError, r"shape \(2,\).*integer ids"),
        (torch.tensor([[[0]]]), ShapeError, "integer ids"),
        (torch.zeros(0, 3, dtype=torch.int64), ShapeError, "at least one"),
        (torch.zeros(2, 0, dtype=torch.int64), ShapeError, "at least one"),
        ([[0, 1]], ShapeError, "words is list"),
        (torch.tensor([[True, False]]), ShapeError, "bool.*integer ids"),
        (torch.tensor([[1 + 0j]]), ShapeError, "complex.*integer ids"),
    ],
    ids=["high", "negative", "float", "one axis", "three axes", "no rows", "no positions", "list", "bool", "complex"],
)
def test_wrong_words(name: str, words: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        BY_NAME[name].build()(words)


@families
@pytest.mark.parametrize(
    ("lengths", "error", "text"),
    [
        (torch.tensor([1]), ShapeError, r"lengths has shape \(1,\)"),
        (torch.tensor([[1, 2]]), ShapeError, r"lengths has shape \(1, 2\)"),
        (torch.tensor([0, 2]), DomainError, r"lengths\[0\] is 0"),
        (torch.tensor([2, 4]), DomainError, r"lengths\[1\] is 4"),
        (torch.tensor([2, -1]), DomainError, r"lengths\[1\] is -1"),
        (torch.tensor([1.7, 2.0]), DomainError, "lengths.*integers"),
        (torch.tensor([True, True]), DomainError, "lengths.*integers"),
    ],
    ids=["too few", "two axes", "zero", "too long", "negative", "float", "bool"],
)
def test_wrong_lengths(name: str, lengths: Tensor, error: type[Exception], text: str) -> None:
    model = BY_NAME[name].build()
    words = torch.tensor([[0, 1, 2], [0, 1, 2]])
    with pytest.raises(error, match=text):
        model(words, lengths).log_prob()
    with pytest.raises(error, match=text):
        model.predict_ids(model.batch(words, lengths))


@families
def test_an_unknown_word_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r'of=.best. is unknown.*"states"'):
        BY_NAME[name].build()(some_strings().values).viterbi(of="best")
