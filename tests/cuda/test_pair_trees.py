"""Charts over pairs of children on a GPU: values and gradients in every precision, captured steps, what is repeated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfold import BinaryDense, BinaryMatricised, Branch, TreePotentials
from rankfold.numerics.capture import capture_graph
from rankfold.numerics.precision import Precision
from rankfold.recursions.tree import log_z, pairs
from rankfold.recursions.tree.potentials import Forest, validate
from tests.cuda.test_packed_trees import CUDA, LENGTHS, NEAR, gradients
from tests.recursions.test_tree_ranges import doubled, solved
from tests.recursions.trees import leaves, shapes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "CHOSEN", pairs.EVERY)


def trees(*, thin: bool, n: int = 21, p: int = 70, lengths: list[int] = LENGTHS) -> TreePotentials:
    """A ragged batch of random distributions; `thin`: two spans as children by rules of low rank."""
    g = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g)

    sizes = [left * right for _, left, right in shapes(n, p)]
    ranks = 5 if thin else sizes[0]
    first, *rest = (2 * draw(n, ranks + sum(sizes[1:]))).softmax(1).split([ranks, *sizes[1:]], 1)
    rules: list[BinaryDense | BinaryMatricised] = [
        BinaryDense(x.reshape(shape).to(CUDA)) for x, shape in zip(rest, shapes(n, p)[1:], strict=True)
    ]
    if thin:
        pair = draw(n * n, ranks).softmax(0).view(n, n, ranks)
        rules.insert(0, BinaryMatricised(first.to(CUDA).contiguous(), pair.to(CUDA)))
    else:
        rules.insert(0, BinaryDense(first.reshape(n, n, n).to(CUDA)))
    num, t = len(lengths), max(lengths)
    p_ = TreePotentials(
        (3 * draw(num, t, p)).to(CUDA),
        Branch(*rules),
        draw(n).log_softmax(0).to(CUDA),
        draw(p).log_softmax(0).to(CUDA),
        draw(num, t + 1, t + 1).to(CUDA),
        torch.tensor(lengths, device=CUDA),
    )
    assert pairs.serves(validate(p_), "float32")
    return p_


@pytest.mark.parametrize("thin", [True, False])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_value_and_gradients(precision: Precision, thin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = trees(thin=thin)
    wanted = gradients(doubled(p))

    def refuse(f: Forest) -> Forest:
        raise AssertionError("a sentence was repeated in float64")

    monkeypatch.setattr(Forest, "double", refuse)
    for x, y in zip(gradients(p, precision), wanted, strict=True):
        assert (x.double() - y.double()).norm() <= NEAR[precision] * y.double().norm()


@pytest.mark.parametrize(("n", "p", "lengths"), [(1, 1, [40]), (2, 3, [2, 1]), (33, 130, [5, 4]), (130, 33, [4])])
def test_other_sizes(n: int, p: int, lengths: list[int]) -> None:
    """Numbers of symbols on both sides of a tile; one sentence; two words."""
    at = trees(thin=False, n=n, p=p, lengths=lengths)
    for x, y in zip(gradients(at), gradients(doubled(at)), strict=True):
        assert (x.double() - y.double()).norm() <= NEAR["float32"] * y.double().norm()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_captured_step_is_the_eager_one(precision: Precision) -> None:
    at = leaves(trees(thin=True))
    asked = [*at.fields.values(), *at.factors]

    def step() -> list[Tensor]:
        found = log_z(at.potentials, precision=precision)
        return [found.detach(), *torch.autograd.grad(found.sum(), asked)]

    eager = [x.clone() for x in step()]
    graph, found = capture_graph(step)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for x, y in zip(found, eager, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_what_underflows_is_repeated() -> None:
    """One word has only symbols of e^-150 next to one that no rule takes; float32 keeps nothing of it."""
    p = trees(thin=False, lengths=[6, 4])
    log_leaf = p.log_leaf.clone()
    log_leaf[0, 1, 1:] -= 150.0
    one, two, three, four = (x.clone() for x in p.rules.factors())
    two[..., 0], three[:, 0], four[:, 0], four[..., 0] = 0.0, 0.0, 0.0, 0.0
    p = p._replace(log_leaf=log_leaf, rules=p.rules.with_factors(one, two, three, four))
    for x, y in zip(solved(p)[:3], solved(doubled(p), "log")[:3], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
