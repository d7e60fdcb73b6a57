"""Batches of frames and of symbols: what is padded, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from rankfold import DataError, DomainError
from rankfold.data.batch import frame_batch, symbol_batch
from rankfold.data.frames import frames_of

FRAMES = frames_of(
    [np.arange(6.0).reshape(3, 2), np.array([[7.0, np.nan], [8.0, 9.0]])[1:], np.ones((2, 2))],
    labels=[np.array([0, 1, -1]), np.array([2]), np.array([0, 0])],
)


def test_all_sequences() -> None:
    batch = frame_batch(FRAMES)
    assert batch.values.tolist() == [[[0, 1], [2, 3], [4, 5]], [[8, 9], [0, 0], [0, 0]], [[1, 1], [1, 1], [0, 0]]]
    assert batch.values.dtype == torch.float64
    assert batch.lengths.tolist() == [3, 1, 2]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[0, 1, -1], [2, -1, -1], [0, 0, -1]]
    assert batch.num_tokens == 6
    assert (batch.first, batch.last) == (True, True)


def test_some_sequences() -> None:
    batch = frame_batch(FRAMES, [2, 1], dtype=torch.float32, rounding=4)
    assert batch.values.shape == (2, 4, 2)
    assert batch.values.dtype == torch.float32
    assert batch.lengths.tolist() == [2, 1]
    assert batch.labels is not None
    assert batch.labels.shape == (2, 4)


def test_the_original_is_not_written_to() -> None:
    one = frames_of([np.ones((2, 2))])
    frame_batch(one).values.zero_()
    assert one.features[0].tolist() == [[1, 1], [1, 1]]


def test_moved() -> None:
    batch = frame_batch(FRAMES)._replace(last=False).to("meta")
    assert {x.device.type for x in (batch.values, batch.lengths, batch.labels) if x is not None} == {"meta"}
    assert not batch.last
    assert frame_batch(frames_of([np.ones((2, 2))])).to("meta").labels is None


def test_symbols() -> None:
    batch = symbol_batch([[0, 2, 1], np.array([1])], [[0, -1, 1], [0]])
    assert batch.values.tolist() == [[0, 2, 1], [1, -1, -1]]
    assert batch.values.dtype == torch.int64
    assert batch.lengths.tolist() == [3, 1]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[0, -1, 1], [0, -1, -1]]


@pytest.mark.parametrize("bad", [[[0.5, 1.0]], [[]], [[[1]]], [[True]]])
def test_symbols_that_are_refused(bad: Any) -> None:
    with pytest.raises(DataError, match=r"sequences\[0\]"):
        symbol_batch(bad)


def test_what_is_refused() -> None:
    with pytest.raises(DomainError, match="no sequences"):
        frame_batch(FRAMES, [])
    with pytest.raises(DomainError, match="no sequences"):
        symbol_batch([])
    with pytest.raises(DomainError, match="rounding is 0"):
        frame_batch(FRAMES, rounding=0)
    with pytest.raises(DataError, match="as long as"):
        symbol_batch([[0, 1]], [[0]])


def test_some_rows_of_any_batch() -> None:
    batch = frame_batch(FRAMES)._replace(last=False).rows(slice(1, 3))
    assert (batch.shape, batch.lengths.tolist(), batch.last) == ((2, 3), [1, 2], False)
    assert batch.labels is not None
    assert batch.labels.tolist() == [[2, -1, -1], [0, 0, -1]]
    assert symbol_batch([[0, 2], [1]]).rows(slice(1, 2)).values.tolist() == [[1, -1]]


def test_any_batch_is_filled_up() -> None:
    words = symbol_batch([[4, 2], [1]]).padded_to((3, 3), 0, shortest=2)
    assert words.values.tolist() == [[4, 2, 0], [1, -1, 0], [0, 0, 0]]
    assert (words.lengths.tolist(), words.labels) == ([2, 1, 2], None)
    frames = frame_batch(FRAMES).padded_to((4, 4), float("nan"))
    assert frames.values.shape == (4, 4, 2)
    assert bool(frames.values[3].isnan().all() and frames.values[:3, 3].isnan().all())
    assert frames.values[0, :3].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert frames.labels is not None
    assert frames.labels.tolist() == [[0, 1, -1, -1], [2, -1, -1, -1], [0, 0, -1, -1], [-1] * 4]
    assert frames.lengths.tolist() == [3, 1, 2, 1]
