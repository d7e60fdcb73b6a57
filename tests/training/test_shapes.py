"""Shapes of graphs: few, none much larger than the budget, and one for every batch that the data's own code makes."""

from __future__ import annotations

import pytest
import torch

from rankfold.data.batch import Batch, epoch_generator, length_batches, streams, unsorted_batches
from rankfold.training.config import DataConfig
from rankfold.training.gradients import row_parts
from rankfold.training.shapes import WIDEST, WIDTH, Shapes


def sentences(longest: int, num: int = 3000) -> list[list[int]]:
    """Most of them short, some as long as they get."""
    share = torch.rand(num, generator=torch.Generator().manual_seed(longest))
    lengths = (1 + share**3 * longest).long().clamp(max=longest).tolist()
    assert (min(lengths), max(lengths)) == (1, longest)
    return [[0] * length for length in lengths]


@pytest.mark.parametrize("tokens", [1, 17, 64, 256, 1000])
@pytest.mark.parametrize("longest", [3, 9, 80])
def test_every_unsorted_batch_has_a_shape(tokens: int, longest: int) -> None:
    shapes = Shapes(DataConfig(batching="unsorted", tokens=tokens))
    rows = sentences(longest)
    found = set()
    for epoch in range(2):
        for batch in unsorted_batches(rows, tokens, generator=epoch_generator(1, epoch)):
            shape = shapes.of(batch)
            assert shape is not None
            assert all(size <= filled for size, filled in zip(batch.values.shape, shape, strict=True))
            found.add(shape)
    assert len(found) <= 4 + longest / WIDTH  # one for each width
    assert all(num == 1 or num * width <= tokens * 16 / 9 for num, width in found)


@pytest.mark.parametrize("tokens", [17, 256])
def test_the_fullest_batch_of_every_width(tokens: int) -> None:
    shapes = Shapes(DataConfig(batching="unsorted", tokens=tokens))
    for width in range(1, WIDEST + 1):
        num = max(1, tokens // width)
        assert shapes.of(zeros(num, width)) is not None
        assert shapes.of(zeros(2 * num + 1, width)) is None
    assert shapes.of(zeros(1, WIDEST + 1)) is None


def test_batches_of_like_lengths_fill_the_budget_of_their_width() -> None:
    shapes = Shapes(DataConfig(batching="length", tokens=256, rounding=8))
    for batch in length_batches(sentences(80), 256, generator=epoch_generator(1, 0), rounding=8):
        width = batch.values.shape[1]
        assert shapes.of(batch) == (256 // width, width)
    assert shapes.of(zeros(15, 17)) is None  # not rounded: 24 positions, of which 10 rows fit
    assert shapes.of(zeros(10, 17)) == (10, 24)
    assert shapes.of(zeros(1, 300)) == (1, 304)


@pytest.mark.parametrize("batching", ["length", "unsorted"])
@pytest.mark.parametrize("part_tokens", [1, 17, 64, 100])
def test_every_part_has_a_shape_within_what_fits(batching: str, part_tokens: int) -> None:
    shapes = Shapes(DataConfig(batching=batching, tokens=256), part_tokens)  # type: ignore[arg-type]
    for batch in unsorted_batches(sentences(60), 256, generator=epoch_generator(1, 0)):
        for rows in row_parts(batch, part_tokens, WIDTH):
            shape = shapes.of(batch.rows(rows))
            assert shape is not None
            assert shape[0] == 1 or shape[0] * shape[1] <= part_tokens


@pytest.mark.parametrize("window", [5, 32])
def test_all_windows_of_streams_have_one_shape(window: int) -> None:
    shapes = Shapes(DataConfig(batching="streams", num_streams=7, window=window))
    batches = streams(sentences(9, 300), 7, window)
    assert batches[-1].values.shape != batches[0].values.shape
    assert {shapes.of(batch) for batch in batches} == {(7, window)}
    parts = Shapes(DataConfig(batching="streams", num_streams=7, window=window), 3 * 40)
    found = {parts.of(batches[0].rows(rows)) for rows in row_parts(batches[0], 3 * 40, WIDTH)}
    assert found == {(min(7, 120 // (-(-window // 8) * 8)), window)}


def zeros(num: int, width: int) -> Batch:
    return Batch(torch.zeros(num, width, dtype=torch.int64), torch.full((num,), width))
