"""Derivatives written out, against autograd's of `push`; and operators that write themselves out at first use."""

import pytest
import torch
from torch import Tensor

from rankfold.operators import Banded, Dense, LowRank, Operator, Product, Sum
from rankfold.operators.protocol import Composed, KnowsGradients
from tests.folded import folded
from tests.operators.cases import CASES, Case, weights

KNOWING = [case for case in CASES if case.name.startswith(("dense", "low_rank", "banded", "multiplied", "sum"))]
every_case = pytest.mark.parametrize("case", KNOWING, ids=lambda case: case.name)
EXACT = {"rtol": 1e-12, "atol": 1e-14}  # float64 sums of a few dozen positive terms


def sides(num: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    source, target = (torch.rand(num, size, generator=generator, dtype=torch.float64) for _ in range(2))
    source[0] = 0.0
    return source, target


def by_autograd(op: Operator, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    factors = [factor.detach().clone().requires_grad_() for factor in op.factors()]
    return torch.autograd.grad(op.with_factors(*factors).push(source), factors, target)


@every_case
@folded("size", [1, 2, 5, 17, 63])
@folded("num", [1, 7])
def test_gradients_are_those_of_autograd(case: Case, size: int, num: int, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    source, target = sides(num, size, generator)
    assert isinstance(op, KnowsGradients)
    found = op.gradients(source, target)
    if found is None:  # left to autograd: logarithms that are multiplied by others
        assert any(op.log_factors)
        assert not isinstance(op, Dense)
        return
    for one, other in zip(found, by_autograd(op, source, target), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@folded("turned", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("kind", ["dense", "low rank", "multiplied"])
def test_gradients_lie_in_memory_as_their_factors(
    kind: str, turned: tuple[int, ...], generator: torch.Generator
) -> None:
    left, right = (weights(5, 3, g=generator, dtype=torch.float64) for _ in range(2))
    square = weights(5, 5, g=generator, dtype=torch.float64)
    factors = [square] if kind == "dense" else [left, right]
    factors = [x.T.contiguous().T if i in turned else x for i, x in enumerate(factors)]
    op = {"dense": Dense, "low rank": LowRank, "multiplied": Product}[kind](*factors)
    source, target = sides(7, 5, generator)
    found = op.gradients(source, target)
    assert found is not None
    for one, other, factor in zip(found, by_autograd(op, source, target), factors, strict=True):
        assert one.stride() == factor.stride()
        torch.testing.assert_close(one, other, **EXACT)


def test_what_lies_between_two_maps_is_used(generator: torch.Generator) -> None:
    left, right = (weights(5, 3, g=generator, dtype=torch.float64) for _ in range(2))
    op = LowRank(left, right)
    source, target = sides(7, 5, generator)
    inner = source @ left, target @ right
    for one, other in zip(op.gradients(source, target, inner), by_autograd(op, source, target), strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    doubled = op.gradients(source, target, (2 * inner[0], 3 * inner[1]))
    for one, other, factor in zip(doubled, by_autograd(op, source, target), (3, 2), strict=True):
        torch.testing.assert_close(one, factor * other, **EXACT)


def test_a_sum_with_a_term_that_autograd_has_to_follow(generator: torch.Generator) -> None:
    dense = Dense(weights(3, 3, g=generator, dtype=torch.float64))
    outer = next(case for case in CASES if case.name == "from_rows_alone").build(3, generator, torch.float64)
    assert not isinstance(outer, KnowsGradients)
    assert Sum([dense, outer]).gradients(*sides(2, 3, generator)) is None
    assert Sum([dense, Dense.from_log(torch.zeros(3, 3).double())]).gradients(*sides(2, 3, generator)) is None


@every_case
@pytest.mark.parametrize("size", [1, 5])
def test_maps_multiply_to_the_operator(case: Case, size: int, generator: torch.Generator) -> None:
    op = case.build(size, generator, torch.float64)
    if not isinstance(op, Composed):
        assert isinstance(op, Banded)
        return
    if not op.is_written:
        assert isinstance(op, Sum)
        assert any(op.log_factors)  # terms of different scales stay apart
        return
    maps = op.maps()
    x = torch.rand(4, size, generator=generator, dtype=torch.float64)
    through = x
    for each in maps:
        through = through @ each
    torch.testing.assert_close(through, op.push(x), **EXACT)


def test_a_large_sum_is_not_written_out(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    op = Sum([Dense(weights(3, 3, g=generator, dtype=torch.float64))])
    assert op.is_written
    monkeypatch.setattr("rankfold.operators.sum.WRITTEN", 8)
    assert not op.is_written


def lazy(kind: str, generator: torch.Generator, *, watched: bool) -> tuple[Operator, list[Tensor]]:
    shapes = {"banded": [(5, 3)], "multiplied": [(5, 3), (5, 3)], "dense": [(5, 5)]}[kind]
    factors = [weights(*shape, g=generator, dtype=torch.float64).requires_grad_(watched) for shape in shapes]
    build = {"banded": lambda x: Banded(x, -1), "multiplied": Product, "dense": Dense}[kind]
    return build(*factors), factors


@pytest.mark.parametrize("kind", ["banded", "multiplied"])
@pytest.mark.parametrize("method", ["push", "pull"])
def test_what_was_made_without_gradients_is_not_what_gradients_need(
    kind: str, method: str, generator: torch.Generator
) -> None:
    op, factors = lazy(kind, generator, watched=True)
    x = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        before = getattr(op, method)(x)
    assert not before.requires_grad
    found = torch.autograd.grad(getattr(op, method)(x).square().sum(), factors)
    matrix = op.with_factors(*factors).to_dense()
    through = x @ (matrix if method == "push" else matrix.mT)
    expected = torch.autograd.grad(through.square().sum(), factors)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    with torch.no_grad():  # and the other way round
        assert not getattr(op, method)(x).requires_grad


@pytest.mark.parametrize("kind", ["banded", "multiplied", "dense"])
@pytest.mark.parametrize("method", ["push", "pull", "push_log", "pull_log"])
def test_what_was_made_in_inference_mode_can_be_followed(kind: str, method: str, generator: torch.Generator) -> None:
    """The message asks for a gradient, the weights do not."""
    op, _ = lazy(kind, generator, watched=False)
    x = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    with torch.inference_mode():
        expected = getattr(op, method)(x).sum().clone()
    leaf = x.clone().requires_grad_()
    out = getattr(op, method)(leaf).sum()
    assert torch.equal(out.detach(), expected)
    assert torch.autograd.grad(out, leaf)[0].isfinite().all()


@pytest.mark.parametrize("kind", ["banded", "multiplied"])
def test_written_out_once_and_not_before_it_is_used(
    kind: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankfold.operators import banded
    from rankfold.operators import product as written

    made = []
    owner, name = (banded, "_blocks") if kind == "banded" else (written, "multiply_out")
    work = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: made.append(1) or work(*args))
    op, _ = lazy(kind, generator, watched=False)
    assert made == []
    x = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    for _ in range(3):
        op.push(x)
    assert made == [1]


@pytest.fixture
def _flushed() -> object:
    """Numbers below the smallest normal one become 0, as they may on any device."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU keeps subnormal numbers")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("_flushed")
@pytest.mark.parametrize("method", ["push", "pull"])
def test_what_underflow_takes_from_a_multiplied_matrix_is_bounded(method: str) -> None:
    """Every term of every entry is half the smallest normal number, and all of them are lost."""
    z, y, r = (3, 5, 17) if method == "push" else (5, 3, 17)
    op = Product(torch.full((z, r), 2.0**-63), torch.full((y, r), 2.0**-64))
    x = torch.ones(1, z if method == "push" else y)
    found = getattr(op, method)(x)
    exact = 3 * r * 2.0**-127
    assert (found == 0).all()
    lost = exact / torch.finfo(torch.float32).tiny
    assert lost <= getattr(op, f"{method}_loss")()
    assert lost > getattr(Dense(torch.ones(z, y)), f"{method}_loss")()  # what a matrix given as it is may lose
