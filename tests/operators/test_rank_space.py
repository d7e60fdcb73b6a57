"""A grammar over ranks: the same log Z, brackets and derivatives as over its symbols; what has none says so."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankfold import (
    BinaryCPD,
    BinaryDense,
    Branch,
    ShapeError,
    TreePotentials,
    UnsupportedError,
    posterior,
    rank_space,
)
from rankfold.recursions.tree import log_z
from tests.recursions.trees import leaves, potentials

KINDS = ["shared", "shared log", "shared batched"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def over_ranks(p: TreePotentials) -> TreePotentials:
    rules, log_root = rank_space(p.rules, p.log_root)
    return p._replace(rules=rules, log_root=log_root)


def asked(p: TreePotentials, of: Callable[[TreePotentials], Tensor]) -> tuple[Tensor, list[Tensor]]:
    at = leaves(p)
    out = of(at.potentials)
    tensors = [*at.fields.values(), *at.factors]
    return out.detach(), list(torch.autograd.grad(out.sum(), tensors, materialize_grads=True))


@every_kind
@pytest.mark.parametrize("own_roots", [False, True])
@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
def test_the_same_log_z_and_gradients(kind: str, own_roots: bool, arithmetic: str) -> None:
    p = potentials(kind, (6, 1, 3), n=4, own_roots=own_roots)
    wanted = asked(p, log_z)
    found = asked(p, lambda p: log_z(over_ranks(p), arithmetic))  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@every_kind
def test_the_same_brackets_and_their_slopes(kind: str) -> None:
    p = potentials(kind, (5, 3, 4), n=4, seed=1)
    weight = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = asked(p, lambda p: posterior(p).span * weight)
    found = asked(p, lambda p: posterior(over_ranks(p)).span * weight)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_what_rules_share_stays_shared() -> None:
    p = potentials("shared")
    rules, _ = rank_space(p.rules, p.log_root)
    assert rules.span_span.left_of == rules.span_leaf.left_of
    assert rules.span_span.right_of == rules.leaf_span.right_of
    assert rules.leaf_span.left_of == rules.leaf_leaf.left_of
    assert len({rule.head_of for rule in rules}) == 1
    assert rules.span_span.shape == (3, 3, 3)
    assert rules.leaf_leaf.factors()[0] is p.rules.leaf_leaf.factors()[1]  # leaves' factors are not copied


def test_any_range() -> None:
    """Heads of e^-3000 and a root that float32 cannot hold."""
    p = potentials("shared log", (4, 3), n=4, seed=3)
    head = p.rules.span_span.factors()[0]
    moved = [x - 3000.0 if x is head else x for x in p.rules.factors()]
    shared = {id(x): y for x, y in zip(p.rules.factors(), moved, strict=True)}
    far = p._replace(rules=p.rules.with_factors(*(shared[id(x)] for x in p.rules.factors())))
    torch.testing.assert_close(log_z(over_ranks(far)), log_z(far), rtol=1e-10, atol=0.0)
    low = potentials("shared", (4, 3), n=4, seed=3, dtype=torch.float32)
    low = low._replace(log_root=torch.tensor([0.0, -200.0, -300.0, -400.0]))
    low.rules.span_span.factors()[0][0, 1] = 0.0  # rank 1 is reached only by what e^-200 leaves
    assert over_ranks(low).log_root[1] == pytest.approx(
        -200.0 + float(low.rules.span_span.factors()[0][1, 1].log()), abs=1e-4
    )


def test_a_head_of_weight_0_has_its_gradient() -> None:
    p = potentials("shared", (4, 3), n=4, seed=4)
    p.rules.span_span.factors()[0][::2, 1] = 0.0
    torch.testing.assert_close(asked(p, lambda p: log_z(over_ranks(p))), asked(p, log_z), rtol=1e-10, atol=1e-12)


def test_what_has_no_rank_space() -> None:
    p = potentials("shared")
    dense = p.rules._replace(span_leaf=BinaryDense(torch.ones(2, 2, 3, dtype=torch.float64)))
    with pytest.raises(UnsupportedError, match=r"span_leaf is a BinaryDense, but only rules with ranks"):
        rank_space(dense, p.log_root)
    with pytest.raises(UnsupportedError, match=r"share one head.*these have 4"):
        rank_space(potentials("cpd").rules, p.log_root)
    with pytest.raises(UnsupportedError, match="in rank space already"):
        rank_space(*rank_space(p.rules, p.log_root))
    with pytest.raises(ShapeError, match=r'log_root has shape \(5,\), but "n" was expected with n = 2'):
        rank_space(p.rules, torch.zeros(5))
    own = potentials("shared batched")
    with pytest.raises(ShapeError, match="log_root is for 2 sentences, but the rules are for 3"):
        rank_space(own.rules, own.log_root.expand(2, -1))


def test_the_simple_grammar_is_an_identity_head() -> None:
    """Children independent of each other, given the parent: p(l, r | a) = left[l, a] right[r, a]."""
    g = torch.Generator().manual_seed(5)
    left, right = (torch.rand(5, 2, generator=g, dtype=torch.float64).log_softmax(0).exp() for _ in range(2))
    rules = Branch(
        BinaryCPD(None, left[:2], right[:2]),
        BinaryCPD(None, left[:2], right[2:]),
        BinaryCPD(None, left[2:], right[:2]),
        BinaryCPD(None, left[2:], right[2:]),
    )
    total = torch.stack([rule.to_dense().sum((1, 2)) for rule in rules]).sum(0)
    torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64), rtol=1e-14, atol=0.0)
