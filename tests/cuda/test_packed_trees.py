"""Packed charts on a GPU: values and gradients in every precision, captured steps, what is repeated, the command."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks import packed_trees
from rankfold import BinaryCPD, Branch, TreePotentials
from rankfold.numerics.capture import capture_graph
from rankfold.numerics.precision import Precision
from rankfold.recursions.tree import log_z, packed
from rankfold.recursions.tree.potentials import Forest
from tests.recursions.test_tree_ranges import doubled, solved
from tests.recursions.trees import leaves

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
LENGTHS = [20, 1, 2, 13, 20]
NEAR: dict[Precision, float] = {"float32": 2e-5, "tf32": 4e-3, "bf16": 3e-2}


@pytest.fixture(autouse=True)
def _chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "CHOSEN", packed.EVERY)


def trees(*, head: bool, rank: int = 70, n: int = 50, p: int = 90, lengths: list[int] = LENGTHS) -> TreePotentials:
    """A ragged batch of random distributions; ranks are no multiple of what they are filled up to."""
    g = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g)

    n = n if head else rank
    top = draw(n, rank).softmax(1).to(CUDA) if head else None
    (left, leaf_left), (right, leaf_right) = (
        (2 * draw(n + p, rank)).softmax(0).to(CUDA).split([n, p]) for _ in range(2)
    )
    pairs = ((left, right), (left, leaf_right), (leaf_left, right), (leaf_left, leaf_right))
    num, t = len(lengths), max(lengths)
    return TreePotentials(
        (3 * draw(num, t, p)).to(CUDA),
        Branch(*(BinaryCPD(top, *pair) for pair in pairs)),
        draw(n).log_softmax(0).to(CUDA),
        draw(p).log_softmax(0).to(CUDA),
        draw(num, t + 1, t + 1).to(CUDA),
        torch.tensor(lengths, device=CUDA),
    )


def gradients(p: TreePotentials, precision: Precision = "float32") -> list[Tensor]:
    at = leaves(p)
    found = log_z(at.potentials, precision=precision)
    return [found.detach(), *torch.autograd.grad(found.sum(), [*at.fields.values(), *at.factors])]


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_value_and_gradients(precision: Precision, head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = trees(head=head)
    wanted = gradients(doubled(p))

    def refuse(f: Forest) -> Forest:
        raise AssertionError("a sentence was repeated in float64")

    monkeypatch.setattr(Forest, "double", refuse)
    for x, y in zip(gradients(p, precision), wanted, strict=True):
        assert (x.double() - y.double()).norm() <= NEAR[precision] * y.double().norm()


def test_a_captured_step_is_the_eager_one() -> None:
    at = leaves(trees(head=False))
    asked = [*at.fields.values(), *at.factors]

    def step() -> list[Tensor]:
        found = log_z(at.potentials, precision="tf32")
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
    p = trees(head=False, lengths=[6, 4])
    log_leaf = p.log_leaf.clone()
    log_leaf[0, 1, 1:] -= 150.0
    one, four = p.rules.span_span.factors(), p.rules.leaf_leaf.factors()
    without = [x.clone() for x in four]
    for x in without:
        x[0] = 0.0
    pairs = ((one[0], one[1]), (one[0], without[1]), (without[0], one[1]), tuple(without))
    p = p._replace(log_leaf=log_leaf, rules=Branch(*(BinaryCPD(None, *pair) for pair in pairs)))
    for x, y in zip(solved(p)[:3], solved(doubled(p), "log")[:3], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_the_command_finds_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert packed_trees.main(["--small", "--repeats", "2"]) == 0
    assert "recursion" in capsys.readouterr().out
