"""Models and sequences drawn from a seed."""

import pytest
import torch

import rankfold
from rankfold.data.synthetic import draw_sequences, draw_tables


def test_tables_are_distributions() -> None:
    tables = draw_tables(5, 3, 7, seed=0)
    assert [tuple(table.shape) for table in tables] == [(5,), (5, 3), (5, 3), (5, 7)]
    for table, axis in zip(tables, (0, 1, 0, 1), strict=True):
        torch.testing.assert_close(table.sum(axis), torch.ones(table.sum(axis).shape), rtol=1e-6, atol=1e-6)


def test_the_same_seed_draws_the_same() -> None:
    tables = draw_tables(5, 3, 7, seed=0)
    assert torch.equal(draw_tables(5, 3, 7, seed=0).emission, tables.emission)
    assert not torch.equal(draw_tables(5, 3, 7, seed=1).emission, tables.emission)
    assert torch.equal(draw_sequences(tables, 2, 9, seed=4).words, draw_sequences(tables, 2, 9, seed=4).words)


def test_sequences_follow_the_model() -> None:
    """Moves of many sequences occur as often as the tables say: 40,000 draws, standard error below 0.0025."""
    tables = draw_tables(3, 2, 4, seed=2, sharpness=1.0)
    words, states = draw_sequences(tables, 40_000, 2, seed=0)
    start = torch.bincount(states[:, 0], minlength=3) / len(states)
    torch.testing.assert_close(start, tables.start, rtol=0, atol=0.0125)  # five standard errors
    joint = torch.zeros(3, 3).index_put_((states[:, 0], states[:, 1]), torch.ones(len(states)), accumulate=True)
    moves = tables.start[:, None] * (tables.left @ tables.right.T)
    torch.testing.assert_close(joint / len(states), moves, rtol=0, atol=0.0125)
    uses = torch.zeros(3, 4).index_put_((states[:, 0], words[:, 0]), torch.ones(len(states)), accumulate=True)
    torch.testing.assert_close(uses / len(states), tables.start[:, None] * tables.emission, rtol=0, atol=0.0125)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_of_zero_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(rankfold.DomainError, match="must be at least 1"):
        draw_tables(*sizes, seed=0)
