"""Chains whose states several processes hold have one process's answers, and send messages, never a table."""

import pytest

from rankfold.errors import DomainError, UnsupportedError
from rankfold.numerics.shard import Shard
from tests.recursions.shards import run
from tests.training.processes import Group

FAST = ["low rank", "low rank zeros range", "dense log", "blocks", "traffic", "memory", "refused"]
CASES = [
    *FAST,
    "low rank zeros",
    "low rank log",
    "low rank wide log",
    "low rank wide",
    "low rank even zeros wide",
    "low rank float32",
    "low rank float32 range",
    "dense",
    "dense zeros",
    "dense wide log",
    "dense range",
    "dense even",
    "dense float32 range zeros",
]


def _run(num: int, cases: list[str]) -> None:
    done = Group(num, run, tuple(cases)).finish()
    assert all(status == 0 for status, _ in done), "\n".join(text for _, text in done)


def test_two_processes_have_the_answers_of_one() -> None:
    _run(2, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("num", [3, 4])
def test_more_processes_have_the_answers_of_one(num: int) -> None:
    _run(num, CASES)


@pytest.mark.gpu
def test_two_processes_on_one_gpu() -> None:
    _run(2, [f"{case} cuda" for case in CASES if case not in FAST[-4:]])


def test_rows_are_dealt_in_order_and_the_last_process_may_have_fewer() -> None:
    shards = [Shard(10, number, 4) for number in range(4)]
    assert [(x.start, x.stop) for x in shards] == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_too_many_processes_are_refused_with_a_number_that_fits() -> None:
    with pytest.raises(DomainError, match=r"9 states cannot be shared by 4 processes(.|\n)*Take 3 processes"):
        Shard(9, 0, 4)


def test_one_process_started_alone_is_told_how_to_start_several() -> None:
    with pytest.raises(UnsupportedError, match=r"started alone(.|\n)*torchrun"):
        Shard.of_processes(8)
