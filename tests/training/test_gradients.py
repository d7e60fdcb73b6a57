"""Updates in parts: the same gradients as in one, of the same dropout, with the same state carried along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.errors import DomainError
from rankfold.models.catalog import AnyModel
from rankfold.planning.measure import GIB
from rankfold.training.config import Config, DataConfig
from rankfold.training.corpus import Corpus
from rankfold.training.gradients import Gradients, row_parts
from rankfold.training.loop import train
from rankfold.training.memory_budget import Budget, DataSizes, least_memory
from rankfold.training.setup import optimizer
from rankfold.training.shapes import Shapes
from tests.training.runs import (
    DROPOUT,
    FAMILIES,
    StopAfter,
    corpus_of,
    expect_same_end,
    fresh_model,
    metrics,
    tiny,
    write_corpus,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tiny(), write_corpus(tmp_path_factory.mktemp("data")))


def never(batches: list[Batch], what: str) -> DomainError:
    raise AssertionError(what)


def gradients_of(config: Config, corpus: Corpus, tokens: int) -> tuple[Gradients, AnyModel]:
    model = fresh_model(config, corpus).double()
    return Gradients(model, optimizer(model, config.train), config, Budget(tokens), never), model


def grads(model: AnyModel) -> dict[str, Tensor]:
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [1, 17, 30])
@pytest.mark.parametrize("batching", ["length", "unsorted"])
def test_parts_add_up_to_the_whole(family: str, tokens: int, batching: str, corpus: Corpus) -> None:
    config = tiny(family=family, batching=batching, accumulate=3, **DROPOUT)
    batches = [corpus.epoch(config.data, 1, 0)[i] for i in range(3)]
    assert any(len(row_parts(batch, tokens)) > 1 for batch in batches)  # otherwise this shows nothing
    num_tokens = sum(batch.num_tokens for batch in batches)
    found = []
    for at_once in (0, tokens):
        gradients, model = gradients_of(config, corpus, at_once)
        found.append((gradients(batches, num_tokens, 7), grads(model)))
    (whole, expected), (parts, added) = found
    assert parts == pytest.approx(whole, rel=1e-10, abs=0)
    assert added.keys() == expected.keys()
    for name, grad in added.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-10, atol=1e-12, msg=name)


def test_a_batch_draws_its_dropout_once(corpus: Corpus) -> None:
    """Parts with dropouts of their own would also add up, to the gradient of another loss."""
    config = tiny(**DROPOUT)
    batch = corpus.epoch(config.data, 1, 0)[0]
    drawn = []
    gradients, model = gradients_of(config, corpus, 1)
    draw = model.parts

    def noted(generator: torch.Generator | None = None) -> Any:
        assert generator is not None
        drawn.append(generator.get_state().clone())
        return draw(generator)

    model.parts = noted  # type: ignore[method-assign]
    gradients([batch, batch], 2 * batch.num_tokens, 3)
    size = len(batch.values)
    assert len(drawn) == 2 * size > 2
    assert all(torch.equal(state, drawn[0]) for state in drawn[:size])
    assert all(torch.equal(state, drawn[size]) for state in drawn[size:])
    assert not torch.equal(drawn[0], drawn[size])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [5, 10, 17])
def test_parts_of_streams_carry_their_own_state(family: str, tokens: int, corpus: Corpus) -> None:
    dropout = {"state_dropout": 0.5} if family == "block" else {}
    config = tiny(family=family, batching="streams", feature_dropout=0.4, logit_dropout=0.2, **dropout)
    batches = corpus.epoch(config.data, 1, 0)
    assert len({len(batch.values) for batch in batches} | {batch.values.shape[1] for batch in batches}) > 2
    (whole, expected), (parts, found) = (gradients_of(config, corpus, at_once) for at_once in (0, tokens))
    for update, batch in enumerate(batches):
        values = [each([batch], batch.num_tokens, update) for each in (whole, parts)]
        assert values[1] == pytest.approx(values[0], rel=1e-10, abs=0)
        for name, grad in grads(found).items():
            torch.testing.assert_close(grad, grads(expected)[name], rtol=1e-10, atol=1e-12, msg=name)
        states = [each.carried if isinstance(each.carried, tuple) else (each.carried,) for each in (whole, parts)]
        assert type(whole.carried) is type(parts.carried)
        for x, y in zip(*states, strict=True):
            torch.testing.assert_close(y, x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("multiple", [1, 8])
def test_every_row_is_in_one_part_that_fits(multiple: int) -> None:
    for num in (1, 2, 3, 5, 17):
        for width in (1, 7, 8, 9):
            batch = Batch(torch.zeros(num, width, dtype=torch.int64), torch.ones(num, dtype=torch.int64))
            padded = -(-width // multiple) * multiple
            assert row_parts(batch, 0, multiple) == row_parts(batch, num * padded, multiple) == [slice(0, num)]
            for tokens in range(1, num * padded):
                parts = row_parts(batch, tokens, multiple)
                assert [i for part in parts for i in range(num)[part]] == list(range(num))
                sizes = [part.stop - part.start for part in parts]
                assert max(sizes) == 1 or max(sizes) * padded <= tokens
                assert max(sizes) - min(sizes) <= 1
                assert len(parts) == -(-num // max(1, tokens // padded))  # no more than needed


class Eager:
    """Stands in for captured graphs: the same interface, run at once, its result in one tensor written again."""

    def __init__(self, model: AnyModel, rows: int) -> None:
        self.model, self.rows, self.result = model, rows, torch.zeros((), dtype=torch.float64)
        self.filled = Shapes(DataConfig())
        self.taken: list[tuple[int, int]] = []
        self.broken = self.wide = False

    def takes(self, batch: Batch) -> bool:
        return len(batch.values) <= self.rows

    def step(self, batch: Batch, tokens: int, seed: int, carried: None) -> tuple[Tensor, None]:
        self.taken.append((len(batch.values), seed))
        generator = torch.Generator().manual_seed(seed)
        value = self.model.log_likelihood(batch, generator=generator).sum()
        (-value / tokens).backward()
        return self.result.copy_(value.detach() * (float("nan") if self.broken else 1.0)), None


@pytest.mark.parametrize("broken", [False, True])
def test_graphs_take_parts(broken: bool, corpus: Corpus) -> None:
    """Where a graph cannot vouch for a part, the whole update is repeated without."""
    config = tiny(batching="unsorted", **DROPOUT)
    batches = [corpus.epoch(config.data, 1, 0)[i] for i in range(2)]
    num_tokens = sum(batch.num_tokens for batch in batches)
    whole, expected = gradients_of(config, corpus, 0)
    values = whole(batches, num_tokens, 4)
    gradients, model = gradients_of(config, corpus, 16)
    graphs = Eager(model, 2)
    graphs.broken = broken
    gradients.graphs = graphs  # type: ignore[assignment]
    assert gradients(batches, num_tokens, 4) == pytest.approx(values, rel=1e-10, abs=0)
    assert len(graphs.taken) > 2
    assert max(rows for rows, _ in graphs.taken) <= 2
    assert len({seed for _, seed in graphs.taken}) == 2  # one of each batch
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, grads(expected)[name], rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("refused", [True, False], ids=["weights", "log-likelihood"])
def test_numbers_that_are_none_name_the_whole_batch(refused: bool, corpus: Corpus) -> None:
    """Both where the recursion refuses its weights and where a log-likelihood is none."""
    config = tiny()
    gradients, model = gradients_of(config, corpus, 1)

    def log_z(*args: Any, **kwargs: Any) -> Tensor:
        if refused:
            raise DomainError("weights are NaN")
        return torch.tensor([float("nan")], requires_grad=True)

    model.log_z = log_z  # type: ignore[method-assign]
    named: list[list[Batch]] = []

    def named_error(batches: list[Batch], what: str) -> DomainError:
        named.append(batches)
        return DomainError(what)

    gradients.not_finite = named_error
    batch = corpus.epoch(config.data, 1, 0)[0]
    assert len(batch.values) > 1
    with pytest.raises(DomainError):
        gradients([batch], batch.num_tokens, 0)
    assert [[id(x) for x in batches] for batches in named] == [[id(batch)]]


@pytest.mark.parametrize("batching", ["length", "streams"])
def test_a_run_in_parts_ends_alike(batching: str, tmp_path: Path) -> None:
    """To rounding. The recipe allows so little memory that batches are cut; what it cuts is resumed to the last bit."""
    dropout = {} if batching == "streams" else DROPOUT
    config = tiny(batching=batching, **dropout)
    data = write_corpus(tmp_path / "data")
    whole = train(config, data, tmp_path / "whole")
    corpus = corpus_of(config, data)
    text = DataSizes(len(corpus.vocabulary), max(map(len, corpus.train)), max(map(len, corpus.valid)))
    little = tiny(batching=batching, memory=1.05 * least_memory(config, text, "cpu").total / GIB, **dropout)
    stop = StopAfter(7)
    parts = train(little, data, tmp_path / "parts", report=stop)
    (line,) = (line for line in stop.said if "in parts" in line)
    assert "GiB" in line
    assert not parts.finished
    parts = train(little, data, tmp_path / "parts", resume=True)
    assert parts.best_valid_perplexity == pytest.approx(whole.best_valid_perplexity, rel=1e-4, abs=0)
    assert metrics(parts.run) != metrics(whole.run)  # otherwise nothing was cut
    expect_same_end(train(little, data, tmp_path / "again"), parts)
