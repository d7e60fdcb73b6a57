"""Charts over pairs of children as a GPU takes them, in Triton's interpreter: values, gradients, what is repeated."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankfold import BinaryDense, BinaryMatricised, Branch, TreePotentials
from rankfold.numerics.precision import Precision
from rankfold.recursions.tree import log_z, pairs
from rankfold.recursions.tree.potentials import Forest, validate
from tests.recursions.build import seeded
from tests.recursions.test_tree_packed import NEAR, gradients, near
from tests.recursions.test_tree_ranges import LOST, doubled, solved
from tests.recursions.trees import enumerated, factor_gradients, leaves, potentials, shapes

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU takes this path without an interpreter")


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch, poisoned_memory: None) -> list[str]:
    """Kernels take tensors of the CPU; each inside pass leaves its precision here."""
    pytest.importorskip("triton")
    from rankfold.kernels import pair_chart

    found: list[str] = []
    inside = pairs.inside

    def counted(f: Forest, precision: Precision) -> pairs.Chart:
        found.append(precision)
        return inside(f, precision)

    monkeypatch.setattr(pairs, "triton_serves", lambda *tensors: True)
    monkeypatch.setattr(pairs, "inside", counted)
    monkeypatch.setattr(pairs, "CHOSEN", pairs.EVERY)
    monkeypatch.setattr(pair_chart, "SIZES", {"SOME": 2, "ROWS": 4, "COLUMNS": 4, "num_warps": 1})
    monkeypatch.setattr(pair_chart, "BACK", {"SOME": 2, "OWN": 4, "num_warps": 1})
    return found


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences went to float64, each time."""
    found: list[int] = []
    double = Forest.double

    def counted(f: Forest) -> Forest:
        found.append(len(f.lengths))
        return double(f)

    monkeypatch.setattr(Forest, "double", counted)
    return found


def grammar(name: str, lengths: tuple[int, ...], *, n: int = 2, p: int = 3, seed: int = 0) -> TreePotentials:
    """Rules that are tables, "dense"; of low rank all, "low rank", or as the LPCFG has them, "mixed"."""
    p_ = potentials("dense", lengths, n=n, p=p, seed=seed, dtype=torch.float32)
    g = seeded(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64).float() + 0.05

    if name == "dense":
        return p_._replace(rules=Branch(*(BinaryDense(draw(*shape)) for shape in shapes(n, p))))
    head = draw(n, 2)
    thin = [BinaryMatricised(head, draw(left, right, 2)) for _, left, right in shapes(n, p)]
    if name == "low rank":
        return p_._replace(rules=Branch(*thin))
    return p_._replace(rules=Branch(thin[0], *(BinaryDense(draw(*shape)) for shape in shapes(n, p)[1:])))


def alike(p: TreePotentials, precision: Precision, repeated: list[int]) -> None:
    """log Z and all gradients are those of float64, and nothing is repeated there."""
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)[: len(p.log_leaf)]
    found = gradients(p, precision, weight)
    assert repeated == []
    near(found, gradients(doubled(p), "float32", weight), NEAR[precision])


@pytest.mark.parametrize(
    ("precision", "name"),
    [("float32", "dense"), ("float32", "mixed"), ("tf32", "low rank"), ("tf32", "dense"), ("bf16", "mixed")],
)
def test_value_and_gradients(precision: Precision, name: str, taken: list[str], repeated: list[int]) -> None:
    """A ragged batch, one word included."""
    alike(grammar(name, (4, 1, 3), seed=3), precision, repeated)
    assert taken == [precision]


@pytest.mark.parametrize("name", ["dense", "mixed"])
def test_against_every_tree(name: str, taken: list[str], repeated: list[int]) -> None:
    """log Z, posteriors and gradients of the rules of the enumeration; one bracket is forbidden."""
    p = grammar(name, (4, 2), seed=4)
    assert p.log_span is not None
    log_span = p.log_span.clone()
    log_span[0, 1, 3] = float("-inf")
    p = p._replace(log_span=log_span)
    truth = enumerated(p)
    at = leaves(p)
    found = log_z(at.potentials)
    found_grads = torch.autograd.grad(found.sum(), [*at.fields.values(), *at.factors])
    torch.testing.assert_close(found, truth.log_z, rtol=1e-6, atol=1e-6)
    wanted = [truth.leaf, truth.root.sum(0), truth.root_leaf.sum(0), truth.span, *factor_gradients(p, truth.rules)]
    for x, y in zip(found_grads, wanted, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-6)
    assert (taken, repeated) == (["float32"], [])


@pytest.mark.parametrize(("n", "p", "lengths"), [(1, 1, (6,)), (5, 2, (4,)), (2, 6, (4, 2))])
def test_other_sizes(n: int, p: int, lengths: tuple[int, ...], taken: list[str], repeated: list[int]) -> None:
    """Of six words splits come in several pieces, of five symbols and more tiles."""
    alike(grammar("dense", lengths, n=n, p=p, seed=5), "float32", repeated)
    assert taken == ["float32"]


def test_small_weights_do_not_add_up(taken: list[str], repeated: list[int]) -> None:
    """Five rules of e^-20 each, which together are below what float32 holds."""
    p = grammar("dense", (6,), n=1, p=1)
    small = p.rules.with_factors(*(torch.full_like(x, -20.0).exp() for x in p.rules.factors()))
    alike(p._replace(rules=small), "float32", repeated)
    assert taken == ["float32"]


def test_two_words(taken: list[str], repeated: list[int]) -> None:
    alike(grammar("mixed", (2, 1), seed=6), "float32", repeated)
    assert taken == ["float32"]


def test_rules_of_weight_zero_are_repeated(taken: list[str], repeated: list[int]) -> None:
    """A symbol without rules: float32 cannot tell its zeros from losses, and float64 can."""
    p = grammar("dense", (3, 4), seed=7)
    without = [x.clone() for x in p.rules.factors()]
    for x in without:
        x[1] = 0.0
    p = p._replace(rules=p.rules.with_factors(*without))
    found = solved(p)
    assert (taken, repeated) == (["float32"], [2])
    near(found, solved(doubled(p)), 1e-6)


@pytest.mark.parametrize("name", ["dense", "mixed"])
def test_what_underflows_is_repeated(name: str, taken: list[str], repeated: list[int]) -> None:
    """A word whose symbols are further apart than float32 reaches, under rules that only the lesser ones may take."""
    p = grammar(name, (3, 4), seed=5)
    blocked = [x.clone() for x in p.rules.factors()]
    for rule in p.rules:
        for x, own in zip(blocked, p.rules.factors(), strict=True):
            if own is rule.factors()[-1]:
                weights = x.movedim(-1, 0) if isinstance(rule, BinaryMatricised) else x
                if rule.shape[1] == 3:
                    weights[:, 0] = 0.0
                if rule.shape[2] == 3:
                    weights[..., 0] = 0.0
    log_leaf = p.log_leaf.clone()
    log_leaf[0, 1] = torch.tensor([0.0, -150.0, -150.0])
    p = p._replace(log_leaf=log_leaf, rules=p.rules.with_factors(*blocked))
    found = solved(p)
    assert (taken, repeated) == (["float32"], [1])
    near(found[:3], solved(doubled(p), "log")[:3], 1e-5)


def test_large_weights_bring_back_what_underflowed_on_the_way(taken: list[str], repeated: list[int]) -> None:
    """Two pairs of e^-100 each, which float32 takes for 0, under rules of e^80: more than all that it keeps."""
    weight = torch.full((2, 2, 2), -60.0)
    weight[:, 1, 1] = 80.0
    rules = Branch(*(BinaryDense(weight.exp().clone()) for _ in range(4)))
    p = TreePotentials(torch.tensor([[[0.0, -50.0]] * 2]), rules, torch.zeros(2))
    found = solved(p)
    assert (taken, repeated[:1]) == (["float32"], [1])
    near(found[:2], solved(doubled(p), "log")[:2], 1e-5)


@LOST
def test_what_weighs_is_lost_next_to_what_does_not(
    lost: Callable[[torch.dtype], TreePotentials], taken: list[str], repeated: list[int]
) -> None:
    p = lost(torch.float32)
    p = p._replace(rules=Branch(*(BinaryDense(rule.to_dense().contiguous()) for rule in p.rules)))
    found = solved(p, counts=True)
    assert (taken, repeated[:1]) == (["float32"], [1])
    near(found, solved(doubled(p), "log", counts=True), 1e-5)


def test_a_second_derivative_takes_ordinary_operations() -> None:
    p = grammar("mixed", (3, 2), seed=6)

    def curvature(p: TreePotentials) -> Tensor:
        at = leaves(p)
        asked = at.fields["log_leaf"]
        (first,) = torch.autograd.grad(log_z(at.potentials).sum(), asked, create_graph=True)
        return torch.autograd.grad(first[..., 0].sum(), asked)[0]

    near([curvature(p)], [curvature(doubled(p))], 1e-5)


def test_only_what_is_asked_for(taken: list[str], repeated: list[int]) -> None:
    """Posteriors without the gradients of rules."""
    p = grammar("dense", (3, 2))
    log_leaf = p.log_leaf.clone().requires_grad_()
    (found,) = torch.autograd.grad(log_z(p._replace(log_leaf=log_leaf)).sum(), log_leaf)
    assert (taken, repeated) == (["float32"], [])
    near([found], [enumerated(p).leaf], 1e-6)


@pytest.mark.parametrize("name", ["shared", "dense log", "dense batched", "mixed"])
def test_other_rules_go_another_way(name: str) -> None:
    p = potentials(name, dtype=torch.float32)
    assert not pairs.serves(validate(p), "float32")


def test_low_rank_is_written_out_only_where_the_pairs_are_larger() -> None:
    few, many = (validate(grammar("mixed", (4, 4), n=n, p=2)) for n in (6, 7))
    assert pairs.serves(few, "tf32")
    assert not pairs.serves(many, "tf32")
    assert pairs.serves(validate(grammar("dense", (4, 4), n=7, p=2)), "tf32")
    assert not pairs.serves(validate(doubled(grammar("dense", (4, 4)))), "float32")


def test_precisions_and_kinds_are_chosen_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, mixed = (validate(grammar(name, (4, 2))) for name in ("dense", "mixed"))
    monkeypatch.setattr(pairs, "CHOSEN", frozenset({("bf16", "low rank")}))
    served = [pairs.serves(f, x) for f in (dense, mixed) for x in ("float32", "bf16")]
    assert served == [False, False, False, True]
