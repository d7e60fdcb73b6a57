"""The factors of a rank-space chain against their formulas, and with logits left out."""

import pytest
import torch

from rankfold.params.dynamics.rank_factors import Factors, FreeRankFactors, RankFactors
from tests.oracles import tables
from tests.params.build import EXACT, close, seeded, stirred, through

sizes = pytest.mark.parametrize(("num_states", "rank"), [(1, 1), (3, 1), (1, 3), (3, 2), (2, 5)])


def columns(table: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*table, strict=True)]


def are_distributions(factors: Factors) -> None:
    one = torch.tensor(1.0, dtype=torch.float64)
    torch.testing.assert_close(factors.log_start.exp().sum(), one, **EXACT)
    torch.testing.assert_close(factors.rank.sum(1), one.expand(len(factors.rank)), **EXACT)
    torch.testing.assert_close(factors.state.sum(0), one.expand(factors.state.shape[1]), **EXACT)
    every = torch.arange(factors.rank.shape[1])
    torch.testing.assert_close(factors.emission.log_rows(every).exp().sum(1), one.expand(len(every)), **EXACT)


@sizes
def test_neural(num_states: int, rank: int) -> None:
    module = stirred(RankFactors(num_states, rank, 5, 3, 2, generator=seeded()))
    factors = module(0.5, None)
    are_distributions(factors)
    source, target, projection = (x.tolist() for x in (module.source, module.target, module.projection))
    close(factors.rank, [tables.softmax([tables.dot(u, p) for p in projection]) for u in source])
    close(factors.state, columns([tables.softmax([tables.dot(v, p) for v in target]) for p in projection]))
    start = through(module.start_mlp, module.start.tolist())
    out = (module.start_out.weight.tolist(), module.start_out.bias.tolist())
    close(factors.log_start.exp(), tables.softmax(tables.linear(start, out)))
    words = [through(module.word_mlp, w) for w in module.word.tolist()]
    expected = [tables.softmax([tables.dot(r, w) for w in words]) for r in module.word_out.tolist()]
    close(factors.emission.log_rows(torch.arange(rank)).exp(), expected)


@sizes
def test_free(num_states: int, rank: int) -> None:
    module = stirred(FreeRankFactors(num_states, rank, 5, generator=seeded()))
    factors = module(0.5, None)
    are_distributions(factors)
    close(factors.log_start.exp(), tables.softmax(module.log_start.tolist()))
    close(factors.rank, [tables.softmax(row) for row in module.log_rank.tolist()])
    close(factors.state, columns([tables.softmax(column) for column in columns(module.log_state.tolist())]))
    close(factors.emission.log_rows(torch.arange(rank)).exp(), [tables.softmax(x) for x in module.log_word.tolist()])


@pytest.mark.parametrize("neural", [True, False])
@pytest.mark.parametrize("dropout", [0.4, 0.999])
@sizes
def test_left_out_logits(num_states: int, rank: int, dropout: float, neural: bool) -> None:
    module = (
        stirred(RankFactors(num_states, rank, 5, 3, 1, generator=seeded()))
        if neural
        else stirred(FreeRankFactors(num_states, rank, 5, generator=seeded()))
    )
    whole, dropped, again = module(dropout, None), module(dropout, seeded(5)), module(dropout, seeded(5))
    are_distributions(dropped)
    # What is kept is the whole distribution, restricted and divided by its sum.
    for name, dim in (("rank", 1), ("state", 0)):
        all_of, some, same = (getattr(factors, name) for factors in (whole, dropped, again))
        rest = torch.where(some > 0, all_of, 0.0)
        torch.testing.assert_close(some, rest / rest.sum(dim, keepdim=True), **EXACT)
        assert torch.equal(some, same)
    every = torch.arange(rank)
    torch.testing.assert_close(dropped.emission.log_rows(every), whole.emission.log_rows(every), **EXACT)


def test_some_logits_are_left_out() -> None:
    factors = FreeRankFactors(17, 17, 3, generator=seeded())(0.5, seeded(1))
    for table in (factors.rank, factors.state):
        assert 0.3 < float((table == 0).double().mean()) < 0.7
