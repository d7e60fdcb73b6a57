"""Binary rules: every operator's three steps against sums written out, in weights and in logarithms."""

import itertools

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, BinaryMatricised, Branch
from rankfold.operators.binary import BinaryOperator
from tests.operators.binary_cases import BY_NAME, CASES, B, BinaryCase
from tests.operators.outside import SharedPairs

A, N, M = 2, 3, 5
EXACT = {"rtol": 1e-12, "atol": 0.0}  # float64, sums of positive terms
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def by_loops(rule: BinaryOperator, sentence: int) -> Tensor:  # "a n m"
    """The tensor of one sentence from an operator's factors, by its formula, entry by entry."""
    wide = {
        BinaryCPD: (2, 2, 2)[-len(rule.factors()) :],
        BinaryDense: (3,),
        BinaryMatricised: (2, 3),
        SharedPairs: (1, 2),
    }[type(rule)]
    factors = [x[sentence] if x.ndim > axes else x for x, axes in zip(rule.factors(), wide, strict=True)]
    if isinstance(rule, BinaryDense):
        return factors[0]
    if isinstance(rule, SharedPairs):
        factors = [x.unsqueeze(-1) for x in factors]
    out = torch.zeros(rule.shape, dtype=torch.float64)
    for a, n, m, r in itertools.product(*map(range, rule.shape), range(factors[0].shape[-1])):
        if isinstance(rule, BinaryCPD):
            *head, left, right = factors
            out[a, n, m] += (head[0][a, r] if head else float(a == r)) * left[n, r] * right[m, r]
        else:
            parent, pair = factors
            out[a, n, m] += parent[a, r] * pair[n, m, r]
    return out


def tensors(case: BinaryCase, rule: BinaryOperator) -> Tensor:  # "b a n m"
    """The same for every sentence, from weights."""
    linear = rule
    if case.is_log:
        factors = [x.exp() for x in rule.factors()]
        without_head = isinstance(rule, BinaryCPD) and len(factors) == 2
        linear = BinaryCPD(None, *factors) if without_head else type(rule)(*factors)
    return torch.stack([by_loops(linear, b) for b in range(B)])


def sides(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two spans of each sentence with four splits each, both sides."""
    return tuple(torch.rand(B, 2, 4, size, generator=g, dtype=torch.float64) for size in (N, M))  # type: ignore[return-value]


@every_case
def test_shape_batch_and_dense_tensor(case: BinaryCase, generator: torch.Generator) -> None:
    rule = case.build(A, N, M, generator)
    assert isinstance(rule, BinaryOperator)
    assert rule.shape == (A, N, M)
    assert rule.batch == case.batch
    dense = rule.to_dense()
    assert dense.shape == ((A, N, M) if case.batch is None else (B, A, N, M))
    torch.testing.assert_close(dense.expand(B, A, N, M), tensors(case, rule), **EXACT)


@every_case
def test_the_three_steps_sum_children_and_splits(case: BinaryCase, generator: torch.Generator) -> None:
    rule = case.build(A, N, M, generator)
    left, right = sides(generator)
    one, other = (side(x.flatten(1, 2)).unflatten(1, (2, 4)) for side, x in ((rule.left, left), (rule.right, right)))
    found = rule.head(rule.combine(one, other)) * torch.as_tensor(rule.log_scale).exp()
    wanted = torch.einsum("banm,bskn,bskm->bsa", tensors(case, rule), left, right)
    torch.testing.assert_close(found, wanted, **EXACT)


@every_case
def test_the_same_in_logarithms(case: BinaryCase, generator: torch.Generator) -> None:
    rule = case.build(A, N, M, generator)
    left, right = sides(generator)
    left[:, :, :, 0] = 0.0  # a child without weight
    one, other = (
        side(x.log().flatten(1, 2)).unflatten(1, (2, 4)) for side, x in ((rule.left_log, left), (rule.right_log, right))
    )
    found = rule.head_log(rule.combine_log(one, other))
    wanted = torch.einsum("banm,bskn,bskm->bsa", tensors(case, rule), left, right).log()
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-12)


@every_case
def test_logarithms_of_any_range_and_of_nothing(case: BinaryCase, generator: torch.Generator) -> None:
    rule = case.build(A, N, M, generator)
    left, right = (x.log()[:, :, :1] - 3000.0 for x in sides(generator))
    near = rule.head_log(rule.combine_log(*(f(x[:, :, 0] + 3000.0).unsqueeze(2) for f, x in _logs(rule, left, right))))
    far = rule.head_log(rule.combine_log(*(f(x[:, :, 0]).unsqueeze(2) for f, x in _logs(rule, left, right))))
    torch.testing.assert_close(far + 6000.0, near, rtol=0.0, atol=1e-10)
    none = torch.full_like(left, float("-inf"))
    gone = rule.head_log(rule.combine_log(*(f(x[:, :, 0]).unsqueeze(2) for f, x in _logs(rule, none, right))))
    assert (gone == float("-inf")).all()


def _logs(rule: BinaryOperator, left: Tensor, right: Tensor):  # type: ignore[no-untyped-def]
    return (rule.left_log, left), (rule.right_log, right)


@every_case
def test_other_factors_in_the_same_structure(case: BinaryCase, generator: torch.Generator) -> None:
    rule, other = case.build(A, N, M, generator), case.build(A, N, M, generator)
    same = rule.with_factors(*other.factors())
    assert type(same) is type(rule)
    assert all(x is y for x, y in zip(same.factors(), other.factors(), strict=True))
    assert not torch.equal(same.to_dense(), rule.to_dense())
    torch.testing.assert_close(same.to_dense(), other.to_dense(), rtol=0.0, atol=0.0)
    torch.testing.assert_close(torch.as_tensor(same.log_scale), torch.as_tensor(other.log_scale), rtol=0.0, atol=0.0)


@every_case
def test_the_rules_of_some_sentences(case: BinaryCase, generator: torch.Generator) -> None:
    rule = case.build(A, N, M, generator)
    taken = rule.take(torch.tensor([2, 0]))
    wanted = rule.to_dense() if case.batch is None else rule.to_dense()[[2, 0]]
    assert taken.batch == (None if case.batch is None else 2)
    torch.testing.assert_close(taken.to_dense(), wanted, rtol=1e-14, atol=0.0)


@every_case
def test_from_log_keeps_its_largest_weight_apart(case: BinaryCase, generator: torch.Generator) -> None:
    rule = case.build(A, N, M, generator, torch.float32)
    if not case.is_log:
        assert rule.log_scale == 0.0
        return
    scale = rule.log_scale
    assert isinstance(scale, Tensor)
    assert scale.dtype == torch.float64
    assert float(scale) == pytest.approx(sum(float(x.max()) for x in rule.factors()), rel=1e-6)
    high = rule.with_factors(*(x + 500.0 for x in rule.factors()))  # e^500 is beyond float32
    one, other = torch.ones(B, 1, N), torch.ones(B, 1, M)
    found = high.head(high.combine(high.left(one).unsqueeze(2), high.right(other).unsqueeze(2)))
    assert torch.isfinite(found).all()
    assert (found > 0).all()
    assert float(high.log_scale) - float(scale) == pytest.approx(500.0 * len(rule.factors()), rel=1e-4)


def test_unchecked_looks_at_no_value() -> None:
    bad = -torch.ones(2, 2)
    assert BinaryCPD.unchecked(bad, bad, bad).shape == (2, 2, 2)
    assert BinaryDense.unchecked(-torch.ones(2, 2, 2)).shape == (2, 2, 2)
    assert BinaryMatricised.unchecked(bad, -torch.ones(2, 2, 2)).shape == (2, 2, 2)


def test_what_rules_share_is_named_alike() -> None:
    one, other = torch.rand(3, 2), torch.rand(3, 2)
    same, both = BinaryCPD(one, one, other), BinaryCPD(one, other, other)
    assert same.head_of == both.head_of
    assert same.right_of == both.right_of
    assert same.left_of != both.left_of
    assert BinaryCPD(other, one, other).head_of != same.head_of
    assert BinaryCPD.from_log(one, one, other).left_of != same.left_of
    bare = BinaryCPD(None, one, other)
    assert bare.head_of == BinaryCPD.from_log(None, other, one).head_of  # the identity, whatever the sides
    assert bare.head_of != BinaryCPD(None, torch.rand(2, 3), torch.rand(2, 3)).head_of
    assert BinaryDense(torch.rand(2, 2, 2)).left_of == BinaryMatricised(one, torch.rand(2, 2, 2)).left_of


def test_a_branch_takes_its_factors_apart_and_together(generator: torch.Generator) -> None:
    names = ("matricised", "dense", "cpd log", "dense log")
    shapes = ((2, 2, 2), (2, 2, 3), (2, 3, 2), (2, 3, 3))
    one, other = (
        Branch(*(BY_NAME[name].build(*shape, generator) for name, shape in zip(names, shapes, strict=True)))
        for _ in range(2)
    )
    assert [len(rule.factors()) for rule in one] == [2, 1, 3, 1]
    assert len(one.factors()) == 7
    both = one.with_factors(*other.factors())
    for found, wanted in zip(both, other, strict=True):
        assert type(found) is type(wanted)
        torch.testing.assert_close(found.to_dense(), wanted.to_dense(), rtol=0.0, atol=0.0)
    shared = BinaryDense(torch.ones(2, 2, 2))
    assert len(Branch(shared, shared, shared, shared).factors()) == 4
