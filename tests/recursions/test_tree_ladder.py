"""Which sentences are repeated in a wider arithmetic, and what becomes of them where nothing may be repeated."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, Branch, TreePotentials
from rankfold.recursions import tree_ranks_back, tree_scaled, tree_scaled_back, tree_solve
from rankfold.recursions.tree import log_z
from rankfold.recursions.tree_potentials import Forest
from tests.recursions.test_tree_ranges import apart, doubled, same, solved
from tests.recursions.trees import leaves, potentials


@pytest.mark.parametrize(("name", "followed"), [("shared batched", False), ("mixed", False), ("mixed", True)])
@pytest.mark.parametrize("spoil", [float("nan"), float("inf"), 0.5])
def test_posteriors_that_do_not_add_up_are_made_anew(
    spoil: float, name: str, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backward pass that loses something of one sentence, in float32 and then in float64."""
    p = potentials(name, (4, 3, 4), seed=10, dtype=torch.float32)
    wanted = solved(doubled(p))
    module: Any = tree_scaled_back if name == "mixed" else tree_ranks_back
    gradients, seen = module.gradients, []

    def lossy(
        f: Forest, chart: Any, tops: tree_scaled.Tops, weight: Tensor, see: Any = None, **more: Any
    ) -> list[Tensor]:
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


@pytest.mark.parametrize("name", ["dense", "shared"])
def test_where_nothing_may_be_repeated_a_doubtful_sentence_is_nan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside a captured graph: its neighbours are as they were."""
    p = apart(3000.0, torch.float64, name)
    wanted = log_z(p)
    monkeypatch.setattr(tree_solve, "may_look", lambda _: False)
    found = log_z(p)
    assert found.isnan().tolist() == [False, True, False]
    assert torch.equal(found[[0, 2]], wanted[[0, 2]])


@pytest.mark.parametrize("name", ["mixed", "shared"])
def test_where_nothing_may_be_repeated_a_doubtful_gradient_is_nan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = potentials(name, (4, 3, 4), seed=10, own_roots=True)
    module: Any = tree_scaled_back if name == "mixed" else tree_ranks_back
    gradients = module.gradients

    def lossy(*args: Any, **more: Any) -> list[Tensor]:
        found: list[Tensor] = gradients(*args, **more)
        found[2][1] *= 0.5
        return found

    monkeypatch.setattr(module, "gradients", lossy)
    monkeypatch.setattr(tree_solve, "may_look", lambda _: False)
    at = leaves(p)
    (root,) = torch.autograd.grad(log_z(at.potentials).sum(), at.fields["log_root"])
    assert root.isnan().any(1).tolist() == [False, True, False]
