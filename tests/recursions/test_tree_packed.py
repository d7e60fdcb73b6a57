"""Charts over ranks as a GPU takes them, in Triton's interpreter: values, gradients, and what is repeated."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, Branch, TreePotentials
from rankfold.numerics.precision import Precision
from rankfold.recursions.tree import log_z, packed
from rankfold.recursions.tree.potentials import Forest, validate
from tests.recursions.test_tree_ranges import LOST, doubled, solved
from tests.recursions.trees import enumerated, leaves, potentials

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU takes this path without an interpreter")
# Of a sum or a gradient relative to its length: two operands of each product rounded, words and two widths of spans.
NEAR: dict[Precision, float] = {"float32": 1e-6, "tf32": 2.0**-10, "bf16": 2.0**-7}


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch, poisoned_memory: None) -> list[str]:
    """Kernels take tensors of the CPU; each inside pass leaves its precision here."""
    pytest.importorskip("triton")
    from rankfold.kernels import rank_chart

    found: list[str] = []
    inside = packed.inside

    def counted(f: Forest, precision: Precision) -> packed.Chart:
        found.append(precision)
        return inside(f, precision)

    monkeypatch.setattr(packed, "triton_serves", lambda *tensors: True)
    monkeypatch.setattr(packed, "inside", counted)
    monkeypatch.setattr(packed, "CHOSEN", packed.EVERY)
    monkeypatch.setattr(rank_chart, "SIZES", {"SOME": 2, "BLOCK": 32, "num_warps": 1})
    return found


def without_head(p: TreePotentials) -> TreePotentials:
    """The same with two ranks, which are the parents."""
    one, _, _, four = (rule.cpd for rule in p.rules)
    assert one is not None
    assert four is not None
    left, right, leaf_left, leaf_right = (x.value[:, :2].contiguous() for x in (*one[1:], *four[1:]))  # type: ignore[union-attr]
    pairs = ((left, right), (left, leaf_right), (leaf_left, right), (leaf_left, leaf_right))
    return p._replace(rules=Branch(*(BinaryCPD(None, *pair) for pair in pairs)))


def gradients(p: TreePotentials, precision: Precision, weight: Tensor) -> list[Tensor]:
    """log Z and the gradients of all fields and factors."""
    at = leaves(p)
    found = log_z(at.potentials, precision=precision)
    return [found.detach(), *torch.autograd.grad(found @ weight, [*at.fields.values(), *at.factors])]


def near(found: list[Tensor], wanted: list[Tensor], share: float) -> None:
    for x, y in zip(found, wanted, strict=True):
        assert x.isfinite().all()
        assert (x.double() - y.double()).norm() <= share * y.double().norm()


@pytest.mark.parametrize(
    ("precision", "head"), [("float32", True), ("float32", False), ("tf32", True), ("bf16", False)]
)
def test_value_and_gradients(
    precision: Precision, head: bool, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ragged batch, one word included, against float64; nothing is repeated."""
    p = potentials("shared", (4, 1, 3), seed=3, dtype=torch.float32)
    p = p if head else without_head(p)
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    wanted = gradients(doubled(p), "float32", weight)

    def refuse(f: Forest) -> Forest:
        raise AssertionError("a sentence was repeated in float64")

    monkeypatch.setattr(Forest, "double", refuse)
    near(gradients(p, precision, weight), wanted, NEAR[precision])
    assert taken == [precision]


def test_against_every_tree(taken: list[str]) -> None:
    p = potentials("shared", (3, 2), seed=4, dtype=torch.float32)
    truth = enumerated(p)
    torch.testing.assert_close(log_z(p), truth.log_z, rtol=1e-6, atol=1e-6)
    assert taken == ["float32"]


def test_what_underflows_is_repeated(taken: list[str]) -> None:
    """A word whose symbols are further apart than float32 reaches, under rules that only the lesser one may take."""
    p = potentials("shared", (3, 2), seed=5, dtype=torch.float32)
    far = torch.tensor([0.0, -150.0, -150.0])
    first = p.rules.leaf_leaf.cpd
    assert first is not None
    blocked = {id(x.value): x.value * torch.tensor([0.0, 1.0, 1.0])[:, None] for x in first[1:] if x is not None}
    rules = p.rules.with_factors(*(blocked.get(id(x), x) for x in p.rules.factors()))
    log_leaf = p.log_leaf.clone()
    log_leaf[0, 1] = far
    p = p._replace(log_leaf=log_leaf, rules=rules)
    found, wanted = solved(p), solved(doubled(p), "log")
    assert taken == ["float32"]
    near(found[:3], wanted[:3], 1e-5)


def test_large_weights_bring_back_what_underflowed_on_the_way(taken: list[str]) -> None:
    """A rank of e^-100, which float32 takes for 0, under rules of e^85: more than all that float32 keeps."""
    side = torch.tensor([[-30.0, -30.0], [85.0, 85.0]]).exp()
    leaf = torch.tensor([[0.0, -50.0]] * 3).exp()
    pairs = ((side, side), (side, leaf), (leaf, side), (leaf, leaf))
    p = TreePotentials(torch.zeros(1, 3, 3), Branch(*(BinaryCPD(None, *pair) for pair in pairs)), torch.zeros(2))
    near(solved(p)[:2], solved(doubled(p), "log")[:2], 1e-5)
    assert taken == ["float32"]


@LOST
def test_what_weighs_is_lost_next_to_what_does_not(
    lost: Callable[[torch.dtype], TreePotentials], taken: list[str]
) -> None:
    p = lost(torch.float32)
    near(solved(p, counts=True), solved(doubled(p), "log", counts=True), 1e-5)
    assert taken == ["float32"]


@pytest.mark.parametrize("spoil", [float("nan"), 0.5])
def test_posteriors_that_do_not_add_up_are_made_anew(spoil: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass that loses something of one sentence, and of the factors' gradients with it."""
    p = potentials("shared", (3, 2, 3), seed=10, dtype=torch.float32)
    wanted = solved(doubled(p))
    right = packed.gradients

    def lossy(f: Forest, chart: Any, tops: Any, weight: Tensor, **more: Any) -> list[Tensor]:
        found = right(f, chart, tops, weight, **more)
        if weight[1] and tops.total[1]:
            found[2][1] *= spoil
            for factor in found[3:]:
                factor *= spoil
        return found

    monkeypatch.setattr(packed, "gradients", lossy)
    near(solved(p), wanted, 1e-5)


def test_a_second_derivative_takes_ordinary_operations() -> None:
    p = potentials("shared", (3, 2), seed=6, dtype=torch.float32)

    def curvature(p: TreePotentials) -> Tensor:
        at = leaves(p)
        asked = at.fields["log_leaf"]
        (first,) = torch.autograd.grad(log_z(at.potentials).sum(), asked, create_graph=True)
        return torch.autograd.grad(first[..., 0].sum(), asked)[0]

    near([curvature(p)], [curvature(doubled(p))], 1e-5)


@pytest.mark.parametrize("name", ["shared log", "shared batched", "mixed"])
def test_other_rules_go_another_way(name: str) -> None:
    assert not packed.serves(validate(potentials(name, dtype=torch.float32)), "float32")
    assert packed.serves(validate(potentials("shared", dtype=torch.float32)), "float32")
    assert not packed.serves(validate(potentials("shared")), "float32")


def test_rounded_products_go_this_way_by_default(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(packed, "triton_serves", lambda *tensors: True)
    f = validate(potentials("shared", dtype=torch.float32))
    assert [packed.serves(f, x) for x in ("float32", "tf32", "bf16")] == [False, True, True]  # type: ignore[arg-type]


def test_precisions_and_heads_are_chosen_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_head = potentials("shared", dtype=torch.float32)
    without = without_head(with_head)
    monkeypatch.setattr(packed, "CHOSEN", frozenset({("bf16", False)}))
    served = [packed.serves(validate(p), x) for p in (with_head, without) for x in ("float32", "bf16")]
    assert served == [False, False, False, True]
