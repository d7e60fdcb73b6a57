"""Which sentences are repeated in a wider arithmetic, and what becomes of them where nothing may be repeated."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, Branch, TreePotentials
from rankfold.recursions import ladder
from rankfold.recursions.tree import log_z, plain, ranks, rungs, scaled, soundness
from rankfold.recursions.tree.charts import Tops
from rankfold.recursions.tree.potentials import Forest, validate
from tests.recursions.test_tree_ranges import doubled, same, solved
from tests.recursions.trees import EVERY, INF, leaves, potentials


@pytest.mark.parametrize(("name", "followed"), [("shared batched", False), ("mixed", False), ("mixed", True)])
@pytest.mark.parametrize("spoil", [float("nan"), float("inf"), 0.5])
def test_posteriors_that_do_not_add_up_are_made_anew(
    spoil: float, name: str, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backward pass that loses something of one sentence, in float32 and then in float64."""
    p = potentials(name, (4, 3, 4), seed=10, dtype=torch.float32)
    wanted = solved(doubled(p))
    module: Any = scaled if name == "mixed" else ranks
    gradients, seen = module.gradients, []

    def lossy(f: Forest, chart: Any, tops: Tops, weight: Tensor, see: Any = None, **more: Any) -> list[Tensor]:
        found = gradients(f, chart, tops, weight, see, **more)
        seen.append((f.log_leaf.dtype, len(f.lengths)))
        at = 1 if len(f.lengths) == 3 else 0
        if weight[at]:
            found[2][at] *= spoil
            for factor in found[3:]:
                factor *= spoil
        return found

    monkeypatch.setattr(module, "gradients", lossy)
    same(solved(p, followed=followed), wanted, torch.float32)
    assert {(torch.float32, 3), (torch.float64, 1)} <= set(seen)


@pytest.mark.parametrize("kind", ["cpd", "shared", "dense"])
def test_large_weights_bring_back_what_underflowed_on_the_way(kind: str) -> None:
    """Pairs of children of e^-120, too small for float32, under rules of e^80: more than all that float32 keeps."""
    two = torch.tensor([0.0, 60.0])
    head, side = torch.exp(torch.stack([two - 60, 2 * two - 40])), torch.exp(-two.expand(2, 2)).contiguous()
    log_leaf = torch.zeros(1, 4, 2)
    if kind == "cpd":
        rules = Branch(*(BinaryCPD(head.clone(), side.clone(), side.clone()) for _ in range(4)))
    elif kind == "shared":
        rules = Branch(*(BinaryCPD(head, side, side) for _ in range(4)))
    else:
        weight = torch.tensor([[-60.0, -99.0], [-99.0, 80.0]]).exp().expand(2, 2, 2)
        rules = Branch(*(BinaryDense(weight.clone()) for _ in range(4)))
        log_leaf[..., 1] = -60.0
    p = TreePotentials(log_leaf, rules, torch.zeros(2))
    same(solved(p, counts=True), solved(doubled(p), "log", counts=True), torch.float32)


@pytest.mark.parametrize("name", ["mixed", "shared"])
def test_where_nothing_may_be_repeated_a_doubtful_gradient_is_nan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = potentials(name, (4, 3, 4), seed=10, own_roots=True)
    module: Any = scaled if name == "mixed" else ranks
    gradients = module.gradients

    def lossy(*args: Any, **more: Any) -> list[Tensor]:
        found: list[Tensor] = gradients(*args, **more)
        found[2][1] *= 0.5
        return found

    monkeypatch.setattr(module, "gradients", lossy)
    for one in (ladder, rungs):
        monkeypatch.setattr(one, "may_look", lambda _: False)
    at = leaves(p)
    names = ("log_root", "log_leaf", "log_span")
    for grad in torch.autograd.grad(log_z(at.potentials).sum(), [at.fields[name] for name in names]):
        assert grad.isnan().flatten(1).any(1).tolist() == [False, True, False]


def late(kind: str, gap: float, step: float, num_words: int, dtype: torch.dtype) -> TreePotentials:
    """A -> A w | w w (e^-gap),  B -> B w (e^-step) | w w, all else 0: of few words B is more, of many A."""
    head, left, leaf_left = (torch.full(shape, -INF, dtype=dtype) for shape in ((2, 4), (2, 4), (1, 4)))
    head[0, 0], head[1, 1], head[0, 2], head[1, 3] = 0.0, -step, -gap, 0.0
    left[0, 0] = left[1, 1] = leaf_left[0, 2] = leaf_left[0, 3] = 0.0
    right, leaf_right = torch.full((2, 4), -INF, dtype=dtype), torch.zeros(1, 4, dtype=dtype)
    sides = [(left, right), (left, leaf_right), (leaf_left, right), (leaf_left, leaf_right)]
    rules = [BinaryCPD.from_log(head, *both) for both in sides]
    log_weights = [
        torch.logsumexp(head[:, None, None] + one[None, :, None] + other[None, None], -1) for one, other in sides
    ]
    dense = [BinaryDense.from_log(x) for x in log_weights]
    return TreePotentials(
        torch.zeros(1, num_words, 1, dtype=dtype),
        Branch(*(rules if kind == "shared" else dense)),
        torch.zeros(2, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["dense", "shared"])
@pytest.mark.parametrize(("gap", "step"), [(60.0, 20.0), (720.0, 200.0), (760.0, 150.0), (1000.0, 200.0)])
def test_what_underflows_beside_rules_of_weight_zero(gap: float, step: float, kind: str, dtype: torch.dtype) -> None:
    """An entry that vanishes below the others of its own span, and is all that is left of the sentence at the top."""
    at = leaves(late(kind, gap, step, 9, dtype))
    found = log_z(at.potentials)
    assert found.item() == pytest.approx(-gap + math.log1p(math.exp(gap - 7 * step)), rel=1e-12)
    (root,) = torch.autograd.grad(found.sum(), [at.fields["log_root"]])
    assert root.tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def thinned(name: str, seed: int) -> Forest:
    """A grammar without half of its weights, in float64."""
    p = potentials(name, (5, 4, 2), n=3, p=3, seed=seed)
    g = torch.Generator().manual_seed(seed)
    for rule in p.rules:
        for factor, is_log in zip(rule.factors(), rule.log_factors, strict=True):
            factor[torch.rand(factor.shape, generator=g) < 0.4] = -INF if is_log else 0.0
    p.log_leaf[torch.rand(p.log_leaf.shape, generator=g) < 0.3] = -INF
    assert p.log_span is not None
    p.log_span[torch.rand(p.log_span.shape, generator=g) < 0.1] = -INF
    return validate(p)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", EVERY)
def test_labels_that_are_possible_are_those_of_some_weight(name: str, seed: int) -> None:
    f = thinned(name, seed)
    leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, -INF)
    wanted = [x > -INF for x in plain.inside_in_logs(f, leaf)]
    found = list(soundness.possible_labels(f))
    assert [x.tolist() for x in found] == [x.tolist() for x in wanted]


@pytest.mark.parametrize("name", EVERY)
def test_weights_of_zero_are_no_reason_for_logarithms(name: str) -> None:
    f = thinned(name, 3)
    possible = plain.log_z_in_logs(f) > -INF
    repeated = torch.zeros_like(possible)
    for index, _ in rungs.solve(f).wider:
        repeated[index] = True
    assert not (repeated & possible).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["dense", "shared"])
def test_where_nothing_may_be_repeated_losses_next_to_weights_of_zero_are_nan(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (ladder, rungs):
        monkeypatch.setattr(one, "may_look", lambda _: False)
    gap, step = 760.0, 150.0  # of nine words the best tree is of the symbol that underflow took at two
    assert log_z(late(kind, gap, step, 9, dtype)).isnan().all()
    if dtype == torch.float64:  # weights of zero alone are no losses
        assert float(log_z(late(kind, 2.0, 1.0, 4, dtype))) == pytest.approx(math.log(math.exp(-2.0) + math.exp(-2.0)))
