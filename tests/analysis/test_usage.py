"""State usage and top words by hand."""

import math

import pytest
import torch

from rankfold.analysis.usage import StateUse, state_usage, top_words
from rankfold.errors import DomainError, ShapeError


def test_shares_fall_and_the_effective_number_is_exp_entropy() -> None:
    usage = state_usage(torch.tensor([2.0, 0.0, 5.0, 1.0]))
    assert usage.by_share == [StateUse(2, 0.625), StateUse(0, 0.25), StateUse(3, 0.125), StateUse(1, 0.0)]
    assert usage.shares == [0.625, 0.25, 0.125, 0.0]
    entropy = -sum(p * math.log(p) for p in (0.625, 0.25, 0.125))
    assert usage.effective == pytest.approx(math.exp(entropy), rel=1e-14)


@pytest.mark.parametrize("num_states", [1, 2, 17, 129])
def test_equal_states_all_count_and_one_alone_counts_one(num_states: int) -> None:
    equal = state_usage(torch.full((num_states,), 3.0))
    assert equal.effective == pytest.approx(num_states, rel=1e-12)
    assert equal.num_used == num_states
    assert [use.state for use in equal.by_share] == list(range(num_states))
    alone = state_usage(torch.eye(num_states)[-1])
    assert (alone.effective, alone.num_used, alone.by_share[0]) == (1, 1, (num_states - 1, 1))


def test_used_is_more_than_a_tenth_of_an_equal_share() -> None:
    assert state_usage(torch.tensor([75.0, 21.0, 3.0, 1.0], dtype=torch.float64)).num_used == 3  # 1 / (10 z) is 2.5 %


def test_usage_refuses_what_is_no_mass() -> None:
    with pytest.raises(DomainError, match="0 for every state"):
        state_usage(torch.zeros(3))
    with pytest.raises(DomainError, match="at least 0"):
        state_usage(torch.tensor([1.0, -1.0]))
    with pytest.raises(ShapeError, match="posterior_mass"):
        state_usage(torch.ones(2, 2))


def test_top_words_are_the_most_probable_first() -> None:
    rows = torch.tensor([[0.1, 0.6, 0.3, 0.0], [0.25, 0.25, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64).log()
    words = ["<unk>", "<eos>", "cat", "dog"]
    shown = top_words(rows, words, num=2)
    assert [[word for word, _ in row] for row in shown] == [["<eos>", "cat"], ["dog", "<unk>"], ["cat"]]
    assert [p for row in shown for _, p in row] == pytest.approx([0.6, 0.3, 0.5, 0.25, 1.0], rel=1e-14)
    assert [len(row) for row in top_words(rows, words)] == [3, 3, 1]


def test_top_words_refuses_what_does_not_fit() -> None:
    rows = torch.zeros(2, 3)
    with pytest.raises(ShapeError, match="3 words in its last axis, but 2 words"):
        top_words(rows, ["a", "b"])
    with pytest.raises(DomainError, match="num is 0"):
        top_words(rows, ["a", "b", "c"], num=0)
    with pytest.raises(DomainError, match="nan"):
        top_words(rows * math.nan, ["a", "b", "c"])
