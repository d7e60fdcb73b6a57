"""One sentence in rank space: what it costs does not depend on the vocabulary, and a pass takes few operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankfold.fgg import (
    Grammar,
    conjoin,
    cost,
    decompose,
    library,
    parse,
    rank_space,
    string_query,
    sum_product,
)
from rankfold.fgg.inference import executor
from rankfold.fgg.inference.schedule import schedule


class Counted(TorchDispatchMode):
    """Counts operations on tensors."""

    done = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.done += 1
        return func(*args, **(kwargs or {}))


def sentence(num_words: int) -> tuple[Grammar, Grammar]:
    """A PCFG of 30 / 60 symbols, rank 16, and a sentence of 20 words: dense and in rank space."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        x = torch.rand(shape, generator=generator)
        return x / x.sum(-1, keepdim=True)

    u, v, w = rand(30, 16), rand(16, 90).mT, rand(16, 90).mT
    g = library("pcfg", N=30, P=60, V=num_words).with_factors({"root": rand(30), "emit": rand(60, num_words)})
    query = string_query(torch.randint(num_words, (20,), generator=generator))
    dense = conjoin(g.with_factors({"rule": torch.einsum("ar,br,cr->abc", u, v, w)}), query)
    return dense, conjoin(rank_space(decompose(g, {"rule": (u, v, w)})), query)


@pytest.mark.parametrize("num_words", [100, 10_000])
def test_rank_space_is_a_hundred_times_cheaper_whatever_the_vocabulary(num_words: int) -> None:
    dense, ranked = sentence(num_words)
    assert cost(dense).multiply_adds > 100 * cost(ranked).multiply_adds
    torch.testing.assert_close(sum_product(ranked), sum_product(dense), rtol=1e-6, atol=0)


def test_a_pass_takes_few_operations() -> None:
    """For one sentence the time is that of starting operations: about 24 a level, where dense takes 44."""
    _, ranked = sentence(100)
    sum_product(ranked)  # makes what is kept for the structure
    with Counted() as counted:
        sum_product(ranked)
    assert counted.done < 30 * len(schedule(ranked.hrg).levels)


@pytest.mark.parametrize("looks", [True, False])
def test_an_entry_is_sound_by_its_own_block_whether_the_host_looks_or_not(
    looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "may_look", lambda _: looks)
    for low, high, is_sound in (
        ((1e-20, 0.5), (1.0, 4.0), True),
        ((1e-31, 0.5), (1.0, 4.0), False),  # below the level
        ((1e-28, 0.5), (1e3, 4.0), False),  # below it once its block is scaled
        ((1e-20, 1e-6), (1.0, 1.0), False),  # the second block's level is higher
    ):
        found = executor.Scaling(low=[*map(torch.tensor, low)], high=[*map(torch.tensor, high)], least=[1e-30, 1e-5])
        assert bool(found.is_sound()) is is_sound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_right_at_a_zero_below_levels_without_weight(dtype: torch.dtype) -> None:
    """d log Z / d e = a c d / b at e = 0: scales of what has no weight must not take part."""
    g = parse("S() -> a() A() | b()\nA() -> c() B()\nB() -> d() C()\nC() -> e()")
    values = {"a": 0.5, "b": 2.0, "c": 3.0, "d": 0.25, "e": 0.0}
    factors = {name: torch.tensor(x, dtype=dtype, requires_grad=True) for name, x in values.items()}
    sum_product(g.with_factors(factors)).backward()
    torch.testing.assert_close(factors["e"].grad, torch.tensor(0.5 * 3.0 * 0.25 / 2.0, dtype=dtype))
