"""What is refused at the door, in which words, and that nothing was done before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import (
    ChainPotentials,
    Dense,
    DomainError,
    LowRank,
    ShapeError,
    UnsupportedError,
    entropy,
    expected_counts,
    mbr,
    posterior,
    sample,
    viterbi,
)
from rankfold.decoding.online import filter as filter_
from rankfold.recursions.chain import advance, carry, log_z, messages
from tests.recursions.build import INF, NAN

B, T, Z = 2, 3, 4


class Untouched(LowRank):
    """A transition that must not be multiplied by anything."""

    def push(self, x: Tensor) -> Tensor:
        raise AssertionError("work was done before the check")

    pull = push_log = pull_log = rows = log_rows = push


def potentials(**changes: Any) -> ChainPotentials:
    fields = {
        "log_initial": torch.zeros(Z),
        "transition": Untouched(torch.ones(Z, 2), torch.ones(Z, 2)),
        "log_obs": torch.zeros(B, T, Z),
        "log_final": torch.zeros(B, Z),
        "lengths": torch.tensor([3, 2]),
    }
    return ChainPotentials(**{**fields, **changes})


def log_obs_with(value: float, *at: int) -> Tensor:
    log_obs = torch.zeros(B, T, Z)
    log_obs[at] = value
    return log_obs


def with_entry(x: Tensor, value: float, *at: int) -> Tensor:
    x = x.clone()
    x[at] = value
    return x


SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "too few axes": ({"log_obs": torch.zeros(T, Z)}, r'log_obs has shape \(3, 4\).*"b t z"'),
    "too many axes": ({"log_obs": torch.zeros(1, B, T, Z)}, r'log_obs has shape \(1, 2, 3, 4\).*"b t z"'),
    "other states": ({"log_obs": torch.zeros(B, T, Z + 1)}, r"log_obs has shape \(2, 3, 5\)(.|\n)*maps 4 -> 4"),
    "no sequences": ({"log_obs": torch.zeros(0, T, Z)}, "log_obs has shape .*every axis at least 1"),
    "no positions": ({"log_obs": torch.zeros(B, 0, Z)}, "log_obs has shape .*every axis at least 1"),
    "a list": ({"log_obs": [[[0.0] * Z] * T] * B}, "log_obs must be a torch.Tensor.*is a list"),
    "no observations": ({"log_obs": None}, "log_obs must be a torch.Tensor.*is a NoneType"),
    "initial too short": ({"log_initial": torch.zeros(Z - 1)}, r"log_initial has shape \(3,\).*z = 4"),
    "initial of other batch": ({"log_initial": torch.zeros(B + 1, Z)}, r"log_initial has shape \(3, 4\).*b = 2"),
    "initial of one": ({"log_initial": torch.zeros(1, Z)}, r"log_initial has shape \(1, 4\).*b = 2"),
    "initial by position": ({"log_initial": torch.zeros(B, T, Z)}, r"log_initial has shape \(2, 3, 4\)"),
    "initial a number": ({"log_initial": 0.0}, "log_initial must be a torch.Tensor.*is a float"),
    "final too long": ({"log_final": torch.zeros(Z + 1)}, r"log_final has shape \(5,\).*z = 4"),
    "final of other batch": ({"log_final": torch.zeros(B + 1, Z)}, r"log_final has shape \(3, 4\).*b = 2"),
    "too many lengths": ({"lengths": torch.tensor([1, 2, 3])}, r'lengths has shape \(3,\).*"b".*b = 2'),
    "lengths of two axes": ({"lengths": torch.tensor([[1, 2]])}, r"lengths has shape \(1, 2\)"),
    "one length": ({"lengths": torch.tensor(2)}, r"lengths has shape \(\)"),
    "not square": (
        {"transition": Untouched(torch.ones(Z, 2), torch.ones(Z + 1, 2))},
        "square transition.*maps 4 -> 5",
    ),
}

DOMAINS: dict[str, tuple[dict[str, Any], str]] = {
    "length zero": ({"lengths": torch.tensor([3, 0])}, r"lengths\[1\] is 0.*from 1 to 3"),
    "length below zero": ({"lengths": torch.tensor([-1, 2])}, r"lengths\[0\] is -1"),
    "length beyond": ({"lengths": torch.tensor([3, 4])}, r"lengths\[1\] is 4.*3 positions"),
    "lengths float": ({"lengths": torch.tensor([3.0, 2.0])}, "lengths has dtype torch.float32.*integers"),
    "lengths bool": ({"lengths": torch.tensor([True, True])}, "lengths has dtype torch.bool.*integers"),
    "lengths complex": ({"lengths": torch.tensor([1j, 1j])}, "lengths has dtype torch.complex64.*integers"),
    "NaN inside": ({"log_obs": log_obs_with(NAN, 1, 1, 3)}, r"log_obs\[1,1,3\] is nan"),
    "NaN in the last position": ({"log_obs": log_obs_with(NAN, 0, 2, 0)}, r"log_obs\[0,2,0\] is nan"),
    "infinite inside": ({"log_obs": log_obs_with(INF, 0, 0, 2)}, r"log_obs\[0,0,2\] is inf"),
    "NaN where nothing is ragged": (
        {"log_obs": log_obs_with(NAN, 1, 2, 1), "lengths": None},
        r"log_obs\[1,2,1\] is nan",
    ),
    "initial NaN": ({"log_initial": with_entry(torch.zeros(Z), NAN, 2)}, r"log_initial\[2\] is nan"),
    "initial infinite": ({"log_initial": with_entry(torch.zeros(B, Z), INF, 1, 3)}, r"log_initial\[1,3\] is inf"),
    "final NaN": ({"log_final": with_entry(torch.zeros(B, Z), NAN, 0, 1)}, r"log_final\[0,1\] is nan"),
    "final infinite": ({"log_final": with_entry(torch.zeros(Z), INF, 3)}, r"log_final\[3\] is inf"),
}

UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "plain tensor": ({"transition": torch.ones(Z, Z)}, r"transition must be an operator.*Tensor(.|\n)*rankfold.Dense"),
    "no transition": ({"transition": None}, "transition must be an operator, but is a NoneType"),
    "half": ({"log_obs": torch.zeros(B, T, Z, dtype=torch.float16)}, "log_obs has dtype torch.float16"),
    "bfloat16": ({"log_obs": torch.zeros(B, T, Z, dtype=torch.bfloat16)}, 'log_obs has dtype.*(.|\n)*precision="bf16"'),
    "integers": ({"log_obs": torch.zeros(B, T, Z, dtype=torch.int64)}, "log_obs has dtype torch.int64"),
    "complex": ({"log_obs": torch.zeros(B, T, Z, dtype=torch.complex64)}, "log_obs has dtype torch.complex64"),
    "initial half": ({"log_initial": torch.zeros(Z, dtype=torch.float16)}, "log_initial has dtype torch.float16"),
    "initial double": ({"log_initial": torch.zeros(Z).double()}, "log_initial is torch.float64, but log_obs is"),
    "final double": ({"log_final": torch.zeros(Z).double()}, "log_final is torch.float64, but log_obs is"),
    "transition double": (
        {"transition": Untouched(torch.ones(Z, 2).double(), torch.ones(Z, 2).double())},
        "transition factor 0 is torch.float64, but log_obs is torch.float32",
    ),
    "observations double": ({"log_obs": torch.zeros(B, T, Z).double()}, "log_initial is torch.float32, but log_obs is"),
    "initial elsewhere": (
        {"log_initial": torch.zeros(Z, device="meta")},
        "log_initial is on meta, but log_obs is on cpu",
    ),
    "final elsewhere": ({"log_final": torch.zeros(Z, device="meta")}, "log_final is on meta, but log_obs is on cpu"),
}

BAD = [
    pytest.param(error, changes, words, id=f"{error.__name__}-{name}")
    for error, table in ((ShapeError, SHAPES), (DomainError, DOMAINS), (UnsupportedError, UNSUPPORTED))
    for name, (changes, words) in table.items()
]


@pytest.mark.parametrize(("error", "changes", "words"), BAD)
def test_bad_potentials_are_refused_before_any_work(
    error: type[ValueError], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(error, match=words):
        log_z(potentials(**changes))


def test_good_potentials_do_get_to_work() -> None:
    with pytest.raises(AssertionError, match="work was done"):
        log_z(potentials())


def test_a_transition_elsewhere() -> None:
    transition = Untouched(torch.ones(Z, 2), torch.ones(Z, 2))
    elsewhere = transition.with_factors(*(x.to("meta") for x in transition.factors()))
    with pytest.raises(UnsupportedError, match="transition factor 0 is on meta, but log_obs is on cpu"):
        log_z(potentials(transition=elsewhere))


DOORS: dict[str, Callable[[ChainPotentials], object]] = {
    "log_z": log_z,
    "log arithmetic": lambda p: log_z(p, "log"),
    "messages": messages,
    "advance": lambda p: advance(p._replace(log_final=None)),
    "carry": lambda p: carry(p._replace(log_final=None)),
    "posterior": posterior,
    "expected_counts": expected_counts,
    "entropy": entropy,
    "joint entropy": lambda p: entropy(p, of="joint"),
    "viterbi": viterbi,
    "joint viterbi": lambda p: viterbi(p, of="joint"),
    "sample": sample,
    "filter": filter_,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_checks(door: str) -> None:
    with pytest.raises(DomainError, match=r"log_obs\[1,1,3\] is nan"):
        DOORS[door](potentials(log_obs=log_obs_with(NAN, 1, 1, 3)))
    with pytest.raises(DomainError, match=r"lengths\[1\] is 4"):
        DOORS[door](potentials(lengths=torch.tensor([3, 4])))
    with pytest.raises(ShapeError, match="log_initial has shape"):
        DOORS[door](potentials(log_initial=torch.zeros(Z + 1)))
    with pytest.raises(UnsupportedError, match="transition must be an operator"):
        DOORS[door](potentials(transition=torch.ones(Z, Z)))


@pytest.mark.parametrize(
    "door",
    [log_z, messages, advance, carry, posterior, expected_counts, entropy, viterbi, mbr, sample, filter_],
)
def test_a_plain_tuple_is_not_potentials(door: Callable[[Any], object]) -> None:
    with pytest.raises(ShapeError, match=r"expected .*, but got a tuple"):
        door(tuple(potentials()))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nothing_beyond_a_length_is_checked_or_read(door: str, value: float) -> None:
    transition = LowRank(torch.ones(Z, 2), torch.ones(Z, 2))
    log_obs = torch.zeros(B, T, Z)
    log_obs[1, 2] = value
    clean, dirty = potentials(transition=transition), potentials(transition=transition, log_obs=log_obs)
    if door == "sample":
        a, b = (sample(p, generator=torch.Generator().manual_seed(1)) for p in (clean, dirty))
    else:
        a, b = DOORS[door](clean), DOORS[door](dirty)
    assert same(a, b)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if a is None or isinstance(a, str):
        return bool(a == b)
    return all(same(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integers_are_lengths(dtype: torch.dtype) -> None:
    transition = Dense(torch.ones(Z, Z))
    p = potentials(transition=transition, log_final=None)
    expected = log_z(p)
    assert torch.equal(log_z(p._replace(lengths=torch.tensor([3, 2], dtype=dtype))), expected)
    assert float(expected[0] - expected[1]) == pytest.approx(1.3862943611198906, rel=1e-7)  # log 4: one more free step


def test_unknown_words_are_refused_before_any_work() -> None:
    with pytest.raises(UnsupportedError, match=r"arithmetic='linear' is unknown.*scaled.*log"):
        log_z(potentials(), "linear")
    with pytest.raises(UnsupportedError, match="arithmetic='linear' is unknown"):
        messages(potentials(), "linear")
    with pytest.raises(UnsupportedError, match=r"precision='float16' is unknown.*bf16"):
        log_z(potentials(), precision="float16")
    with pytest.raises(UnsupportedError, match=r"of='ranks' is unknown.*states.*joint"):
        entropy(potentials(), of="ranks")


@pytest.mark.parametrize("move_on", [advance, carry])
def test_a_stretch_that_goes_on_has_no_end(move_on: Callable[[ChainPotentials], object]) -> None:
    with pytest.raises(UnsupportedError, match="log_final ends it"):
        move_on(potentials())


def test_nothing_is_written_into_the_arguments() -> None:
    g = torch.Generator().manual_seed(2)
    transition = LowRank(torch.rand(Z, 2, generator=g), torch.rand(Z, 2, generator=g))
    log_obs = torch.randn(B, T, Z, generator=g)
    log_obs[0, 1] = -INF  # impossible: repeated, zeroed, and so on
    log_obs[1, :, 0] = 500.0
    p = potentials(transition=transition, log_obs=log_obs, lengths=torch.tensor([3, 3]))
    parts = [p.log_initial, p.log_obs, p.log_final, p.lengths, *transition.factors()]
    before = [x.clone() for x in parts]
    for door in DOORS.values():
        door(p)
    assert all(torch.equal(a, b) for a, b in zip(parts, before, strict=True))
