"""What a chain of blocks refuses at the door, and in which words."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import DomainError, ShapeError, UnsupportedError
from rankfold.recursions.blocks import BlockPotentials, advance, best_path, draw, log_z, validate
from tests.recursions.build import INF, NAN


def good(**changes: Any) -> BlockPotentials:
    fields = {
        "log_initial": torch.zeros(2, 4),
        "log_transition": torch.zeros(2, 2, 4, 4),
        "log_obs": torch.zeros(2, 3, 4),
        "block": torch.zeros(2, 3, dtype=torch.int64),
        "lengths": torch.tensor([3, 2]),
    }
    return BlockPotentials(**{**fields, **changes})


def entry(value: float, shape: tuple[int, ...], *at: int) -> Tensor:
    x = torch.zeros(shape)
    x[at] = value
    return x


BAD: list[tuple[type[ValueError], dict[str, Any], str]] = [
    (ShapeError, {"log_obs": torch.zeros(3, 4)}, r"log_obs has shape \(3, 4\).*(.|\n)*log_obs\[None\]"),
    (ShapeError, {"log_initial": torch.zeros(4)}, r"log_initial has shape \(4,\)"),
    (ShapeError, {"log_transition": torch.zeros(2, 3, 4, 4)}, r"log_transition has shape(.|\n)*3 positions have 2"),
    (ShapeError, {"log_transition": torch.zeros(2, 2, 4, 5)}, r"log_transition has shape"),
    (ShapeError, {"log_transition": None}, "log_transition must be a torch.Tensor"),
    (ShapeError, {"block": torch.zeros(2, 4).long()}, r"block has shape \(2, 4\)"),
    (ShapeError, {"block": [[0, 0, 0], [0, 0, 0]]}, "block has type list"),
    (ShapeError, {"lengths": torch.tensor([3])}, "lengths has shape"),
    (DomainError, {"lengths": torch.tensor([3, 4])}, r"lengths\[1\] is 4"),
    (DomainError, {"block": torch.zeros(2, 3)}, "block has dtype torch.float32.*integers"),
    (DomainError, {"block": torch.tensor([[0, 0, 0], [0, -1, 0]])}, r"block\[1,1\] is -1"),
    (DomainError, {"log_initial": entry(INF, (2, 4), 1, 1)}, r"log_initial\[1,1\] is inf"),
    (DomainError, {"log_obs": entry(NAN, (2, 3, 4), 1, 1, 3)}, r"log_obs\[1,1,3\] is nan"),
    (DomainError, {"log_transition": entry(NAN, (2, 2, 4, 4), 1, 0, 2, 3)}, r"log_transition\[1,0,2,3\] is nan"),
    (UnsupportedError, {"log_initial": torch.zeros(2, 4).double()}, "log_initial is torch.float64"),
    (UnsupportedError, {"log_obs": torch.zeros(2, 3, 4).bfloat16()}, "log_obs has dtype"),
    (UnsupportedError, {"block": torch.zeros(2, 3, device="meta").long()}, "block is on meta"),
]


@pytest.mark.parametrize(("error", "changes", "words"), BAD)
def test_bad_potentials_are_refused(error: type[ValueError], changes: dict[str, Any], words: str) -> None:
    for door in (log_z, advance, best_path, lambda p: draw(p, 1)):
        with pytest.raises(error, match=words):
            door(good(**changes))


def test_what_else_is_refused() -> None:
    with pytest.raises(ShapeError, match="expected BlockPotentials, but got a tuple"):
        validate(tuple(good()))
    one = {"log_obs": torch.zeros(2, 1, 4), "block": torch.zeros(2, 1).long(), "lengths": None}
    with pytest.raises(ShapeError, match="one position has no transition"):
        log_z(good(**one))
    torch.testing.assert_close(
        log_z(good(**one, log_transition=torch.zeros(2, 0, 4, 4))), torch.full((2,), math.log(4)).double()
    )
    with pytest.raises(DomainError, match="num_samples is 0"):
        draw(good(), 0)
    for value in (NAN, INF):  # beyond the length of the second sequence
        log_z(good(log_obs=entry(value, (2, 3, 4), 1, 2, 0), log_transition=entry(value, (2, 2, 4, 4), 1, 1, 0, 0)))
