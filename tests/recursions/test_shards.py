"""Chains whose states several processes hold have one process's answers, and send messages, never a table."""

import pytest

from rankfold.errors import DomainError, UnsupportedError
from rankfold.numerics.shard import Shard
from tests.recursions.shards import CHAINS, OTHERS, solved

FAST = ["low rank", "low rank zeros range", "dense log", *OTHERS]


def test_two_processes_have_the_answers_of_one() -> None:
    solved(2, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("num", [3, 4])
def test_more_processes_have_the_answers_of_one(num: int) -> None:
    solved(num, [*CHAINS, *OTHERS])


def test_rows_are_dealt_in_order_and_the_last_process_may_have_fewer() -> None:
    shards = [Shard(10, number, 4) for number in range(4)]
    assert [(x.start, x.stop) for x in shards] == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_too_many_processes_are_refused_with_a_number_that_fits() -> None:
    with pytest.raises(DomainError, match=r"9 states cannot be shared by 4 processes(.|\n)*Take 3 processes"):
        Shard(9, 0, 4)


def test_one_process_started_alone_is_told_how_to_start_several() -> None:
    with pytest.raises(UnsupportedError, match=r"started alone(.|\n)*torchrun"):
        Shard.of_processes(8)
