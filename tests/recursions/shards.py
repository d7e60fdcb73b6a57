"""Chains whose states several processes hold, case by case.

Each process makes the whole problem from one seed, solves it alone, then its own share together with the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rankfold
from rankfold import ChainPotentials, Dense, LowRank
from rankfold.numerics.shard import Shard
from rankfold.operators.sharded import ShardedDense, ShardedLowRank
from rankfold.planning.messages import chain_messages
from rankfold.recursions.blocks import in_shards
from rankfold.recursions.blocks.in_shards import Places, ShardedBlockPotentials
from rankfold.recursions.chain import carry
from rankfold.training.distributed import joined
from tests.training.processes import Group, expect_done

Z, B, T, R = 11, 5, 7, 3  # states that no number of processes shares evenly
RTOL = ATOL = 1e-10
CHAINS = [
    "low rank",
    "low rank zeros range",
    "low rank zeros",
    "low rank log",
    "low rank wide log",
    "low rank wide",
    "low rank even zeros wide",
    "low rank float32",
    "low rank float32 range",
    "dense",
    "dense log",
    "dense zeros",
    "dense wide log",
    "dense range",
    "dense even",
    "dense float32 range zeros",
]


def tensors(name: str) -> dict[str, Tensor]:
    """The whole problem of a case: log_initial, log_obs, log_final, then factors."""
    generator = torch.Generator().manual_seed(len(name))
    size = 8 if "even" in name else Z

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    wide = 400.0 if "wide" in name else 60.0 if "range" in name else 1.0
    found = {"log_initial": draw(size), "log_obs": wide * draw(B, T, size), "log_final": draw(B, size)}
    shapes = [(size, size)] if "dense" in name else [(size, R), (size, R)]
    for i, shape in enumerate(shapes):
        log = draw(*shape) * (wide if "wide" in name else 1.0)
        found[f"factor{i}"] = log if "log" in name else log.clamp(max=200.0).exp()
    if "zeros" in name:
        found["factor0"][2] = 0.0
        found["factor0"][:, 1] = 0.0
        found["log_obs"][3, 2] = float("-inf")  # an impossible sequence
        found["log_obs"][:, :, 4] = float("-inf")
    if "float32" in name:
        found = {key: x.float() for key, x in found.items()}
    return {key: x.cuda() for key, x in found.items()} if "cuda" in name else found


def whole(name: str, x: dict[str, Tensor]) -> ChainPotentials:
    """The problem of one process."""
    kind: Any = Dense if "dense" in name else LowRank
    make: Callable[..., Any] = kind.from_log if "log" in name else kind
    operator = make(*(value for key, value in x.items() if key.startswith("factor")))
    return ChainPotentials(x["log_initial"], operator, x["log_obs"], x["log_final"], lengths())


def own(name: str, x: dict[str, Tensor], shard: Shard) -> ChainPotentials:
    """The share of this process."""
    kind: Any = ShardedDense if "dense" in name else ShardedLowRank
    make: Callable[..., Any] = kind.from_log if "log" in name else kind
    operator = make(*(value for key, value in x.items() if key.startswith("factor")), shard)
    return ChainPotentials(x["log_initial"], operator, x["log_obs"], x["log_final"], lengths())


def lengths() -> Tensor:
    return torch.tensor([T, 1, 3, T, 5])


def cut(key: str, x: Tensor, shard: Shard) -> Tensor:
    """The rows, or the last axis, that are a process's own."""
    return x[shard.own] if key.startswith("factor") else x[..., shard.own]


def check(name: str) -> None:
    """Raise unless a process's share of every answer is that of one process alone."""
    rtol, atol = (2e-5, 1e-5) if "float32" in name else (RTOL, ATOL)
    given = tensors(name)
    shard = Shard.of_processes(given["log_initial"].shape[0])
    alone = {key: x.clone().requires_grad_() for key, x in given.items()}
    mine = {key: cut(key, x, shard).clone().requires_grad_() for key, x in given.items()}

    def close(found: Tensor, expected: Tensor, what: str) -> None:
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda m: f"{name}, {what}: {m}")

    p, q = whole(name, alone), own(name, mine, shard)
    expected, found = rankfold.log_z(p), rankfold.log_z(q)
    close(found, expected, "log Z")
    possible = expected > float("-inf")
    weight = torch.linspace(-1.0, 2.0, B, dtype=torch.float64, device=expected.device)
    for z in (expected, found):
        torch.where(possible, z * weight, 0.0).sum().backward()
    for key, x in alone.items():
        assert x.grad is not None
        assert mine[key].grad is not None, key
        close(mine[key].grad, cut(key, x.grad, shard), f"gradient of {key}")
    with torch.no_grad():
        p, q = whole(name, given), own(name, {key: cut(key, x, shard) for key, x in given.items()}, shard)
        close(rankfold.posterior(q).state, rankfold.posterior(p).state[..., shard.own], "posterior")
        device = p.log_obs.device
        seeds = (torch.Generator(device).manual_seed(1) for _ in range(2))
        paths = [rankfold.sample(x, num_samples=20, generator=s).path for x, s in zip((p, q), seeds, strict=True)]
        assert torch.equal(*paths), f"{name}: samples differ"
        p, q = p._replace(log_final=None), q._replace(log_final=None)
        close(carry(q), carry(p)[..., shard.own], "carried state")
        close(rankfold.log_z(q, arithmetic="log"), rankfold.log_z(p, arithmetic="log"), "log Z in logarithms")


def blocks() -> None:
    """Raise unless a chain of blocks has one process's numbers, an impossible sequence and lengths of 1 included."""
    size, num_blocks = 3, 7
    generator = torch.Generator().manual_seed(0)
    x = {
        key: torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for key, shape in {
            "log_initial": (B, size),
            "log_transition": (B, T - 1, size, size),
            "log_obs": (B, T, size),
        }.items()
    }
    with torch.no_grad():
        x["log_obs"][2, 1] = float("-inf")
        x["log_obs"][:, :, 0].masked_fill_(torch.rand(B, T, generator=generator) < 0.3, float("-inf"))
        x["log_transition"][0, 0, 1] = float("-inf")
    block = torch.randint(num_blocks, (B, T), generator=generator)
    shard = Shard.of_processes(num_blocks, what="blocks")
    places = Places.of(block, lengths(), shard)
    at, of = places.leads.nonzero().unbind(1)
    mine = {
        "log_initial": x["log_initial"][places.here[0]],
        "log_transition": x["log_transition"][of, at],
        "log_obs": x["log_obs"].transpose(0, 1)[places.here],
    }
    alone = rankfold.log_z(rankfold.BlockPotentials(*x.values(), block, lengths()))
    shard.sent.clear()
    found = in_shards.log_z(ShardedBlockPotentials(*mine.values(), places, shard, lengths()))
    torch.testing.assert_close(found, alone, rtol=RTOL, atol=ATOL)
    assert alone[2] == float("-inf")
    weight = torch.where(alone > float("-inf"), torch.linspace(-1.0, 2.0, B, dtype=torch.float64), 0.0)
    expected = torch.autograd.grad(torch.where(alone > float("-inf"), alone * weight, 0.0).sum(), list(x.values()))
    grads = torch.autograd.grad(torch.where(alone > float("-inf"), found * weight, 0.0).sum(), list(x.values()))
    for own, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(shard.total(own), other, rtol=RTOL, atol=ATOL)
    sent = shard.sent["all_reduce"] - sum(8 * y.numel() for y in grads)
    # Forward and backward b k numbers a step; log Z once, and whether all have valid numbers.
    assert sent == 8 * 2 * (T - 1) * B * size + 8 * B + 4, sent


def traffic() -> None:
    """Raise unless training sends b r numbers for each position and direction, and a process holds its share alone."""
    size, rank, batch, length = 60, 6, 3, 9
    shard = Shard.of_processes(size)
    shape = {"left": (shard.height, rank), "right": (shard.height, rank), "obs": (batch, length, shard.height)}
    x = {key: torch.rand(*s, dtype=torch.float64).requires_grad_() for key, s in shape.items()}
    log_initial = torch.zeros(shard.height, dtype=torch.float64)

    def sent(num: int) -> int:
        shard.sent.clear()
        p = ChainPotentials(log_initial, ShardedLowRank(x["left"], x["right"], shard), x["obs"][:, :num].log())
        rankfold.log_z(p).sum().backward()
        assert set(shard.sent) == {"all_reduce"}
        return shard.sent["all_reduce"]

    planned = chain_messages(size, rank, 0, batch, length, shard.num, 0)[0]
    assert planned.numbers * planned.times == 2 * batch * rank * (length - 1)
    each = (sent(length) - sent(length - 4)) / 4
    # A sum of b r numbers forward and one backward; and of each position, once for all of them, the largest emission,
    # the mass of the posterior (8 bytes each), and whether the entry is sound (4).
    assert each == batch * (2 * rank * 8 + 8 + 8 + 4), each
    assert sum(y.numel() for y in x.values()) * shard.num == 2 * size * rank + batch * length * size
    assert all(y.grad is not None and y.grad.shape == y.shape for y in x.values())


class Held(TorchDispatchMode):
    """The most bytes of tensors that were alive at once, of those made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor) and (at := x.untyped_storage().data_ptr()) and at not in self.seen:
                size = x.untyped_storage().nbytes()
                self.seen.add(at)
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(x.untyped_storage(), self._freed, at, size)
        return out

    def _freed(self, at: int, size: int) -> None:
        self.seen.discard(at)
        self.now -= size


def memory() -> None:
    """Raise unless a process holds its share of what one process alone does, with every message and gradient."""
    size, rank, batch, length = 3600, 4, 4, 10
    shard = Shard.of_processes(size)

    def most(height: int, make: Callable[[Tensor, Tensor], Any]) -> int:
        with Held() as held:
            left, right, obs = (
                torch.rand(*s, dtype=torch.float64).requires_grad_()
                for s in ((height, rank), (height, rank), (batch, length, height))
            )
            start = torch.zeros(height, dtype=torch.float64)
            rankfold.log_z(ChainPotentials(start, make(left, right), obs)).sum().backward()
            assert obs.grad is not None
        return held.most

    alone = most(size, LowRank)
    own = most(shard.height, lambda left, right: ShardedLowRank(left, right, shard))
    assert alone > 4 * 8 * batch * length * size, alone
    assert own * shard.num < 1.1 * alone, (own, alone)


def refused() -> None:
    """Raise unless every process says what is wrong."""
    shard = Shard.of_processes(12)
    left, good = torch.ones(shard.height, 2), torch.ones(shard.height, 2)
    if shard.number == 1:
        left[0, 0] = float("nan")
    for make in (
        lambda: ShardedLowRank(left, left, shard),
        lambda: rankfold.log_z(ChainPotentials(left[:, 0], ShardedLowRank(good, good, shard), left[None, :, :1].mT)),
    ):
        with pytest.raises(ValueError, match="is nan" if shard.number == 1 else "rank 1: (.|\n)*is nan"):
            make()


OTHERS = {"traffic": traffic, "refused": refused, "memory": memory, "blocks": blocks}


def run(cases: tuple[str, ...]) -> None:
    """Some cases, in one of the processes."""
    with joined():
        for case in cases:
            OTHERS[case]() if case in OTHERS else check(case)


def solved(num: int, cases: list[str]) -> None:
    """Check some cases in so many processes; raises with what they said if one fails."""
    expect_done(Group(num, run, tuple(cases)))
