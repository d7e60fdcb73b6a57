"""Rules with a child given, against their dense tensors."""

import pytest
import torch

from rankfold import BinaryCPD, Branch
from tests.operators.binary_cases import B
from tests.recursions.trees import EVERY, grammar

N, P, S = 3, 4, 5


@pytest.mark.parametrize("name", EVERY)
def test_one_child_or_a_parent_and_a_child(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    for rule in grammar(name, N, P, g):
        dense = rule.to_dense()
        dense = dense if dense.ndim == 4 else dense.expand(B, -1, -1, -1)
        _, a, n, m = dense.shape
        left, right, parents, many = (
            torch.rand(shape, generator=g, dtype=torch.float64) for shape in ((B, n), (B, m), (B, S, a), (B, S, n))
        )
        found = rule.given_right(right), rule.given_left(left), rule.to_right(parents, many)
        wanted = (
            torch.einsum("banm,bm->ban", dense, right),
            torch.einsum("banm,bn->bam", dense, left),
            torch.einsum("bsa,banm,bsn->bm", parents, dense, many),
        )
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("own", [False, True])
def test_divided_by_their_sums(name: str, own: bool) -> None:
    g = torch.Generator().manual_seed(1)
    rules = grammar(name, N, P, g)
    log_total = torch.randn(B if own else 1, N, generator=g, dtype=torch.float64)
    divided = rules.divide_parents(log_total)
    for before, after in zip(rules, divided, strict=True):
        wanted = before.to_dense() / log_total.exp()[:, :, None, None]
        torch.testing.assert_close(after.to_dense().expand_as(wanted), wanted, rtol=1e-12, atol=0)
    heads = [len({rule.head_of for rule in kind}) for kind in (rules, divided)]
    assert heads[0] == heads[1]


@pytest.mark.parametrize("name", EVERY)
def test_some_parents(name: str) -> None:
    rules = grammar(name, N, P, torch.Generator().manual_seed(2))
    index = torch.tensor([2, 0])
    for before, after in zip(rules, rules.of_parents(index), strict=True):
        torch.testing.assert_close(after.to_dense(), before.to_dense()[..., index, :, :], rtol=1e-14, atol=0)


def test_a_factor_of_two_uses_is_divided_for_each() -> None:
    """A square head that is also a side of rules whose parents are ranks."""
    both = torch.rand(N, N, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    side = torch.ones(N, N, dtype=torch.float64)
    headed, plain = BinaryCPD(both, side, side), BinaryCPD(None, both, side)
    log_total = torch.tensor([[0.1, 0.2, -0.3]], dtype=torch.float64)
    for before, after in zip(
        (headed, plain), Branch(headed, plain, headed, plain).divide_parents(log_total), strict=False
    ):
        wanted = before.to_dense() / log_total.exp()[0, :, None, None]
        torch.testing.assert_close(after.to_dense(), wanted, rtol=1e-14, atol=0)
