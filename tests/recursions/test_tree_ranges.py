"""Trees whose weights no single float can hold, and trees that cannot be."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfold import BinaryCPD, BinaryDense, Branch, DomainError, TreePotentials
from rankfold.recursions.tree import log_z
from tests.recursions.trees import EVERY, INF, distinct, leaves, potentials, shapes

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
# Round-off of a few dozen products, 6e-8 or 1e-16 of a number each; log Z of thousands needs the relative one.
NEAR = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}


def solved(
    p: TreePotentials, arithmetic: str = "scaled", *, counts: bool = False, followed: bool = False
) -> list[Tensor]:
    """log Z and all gradients, in float64.

    `counts`: those of factors times the factors. `followed`: as if to be differentiated once more.
    """
    at = leaves(p)
    found = log_z(at.potentials, arithmetic)
    asked = [*at.fields.values(), *at.factors]
    grads = torch.autograd.grad(found.sum(), asked, materialize_grads=True, create_graph=followed)
    if counts:
        fields = len(at.fields)
        grads = (*grads[:fields], *(used(x, grad) for x, grad in zip(at.factors, grads[fields:], strict=True)))
    return [found.detach(), *(grad.detach().double() for grad in grads)]


def used(factor: Tensor, grad: Tensor) -> Tensor:
    """The expected uses of a factor's entries; the gradient of one of weight 0 may be too large for its dtype."""
    return torch.where(factor == 0, 0.0, factor * grad).detach()


def same(found: list[Tensor], wanted: list[Tensor], dtype: torch.dtype) -> None:
    for x, y in zip(found, wanted, strict=True):  # 1e40 is infinite in float32, and so it must be
        torch.testing.assert_close(x, y.to(dtype).double(), **NEAR[dtype])


def doubled(p: TreePotentials) -> TreePotentials:
    """The same values in float64, what is shared stays so."""
    new = {id(x): x.double() for x in distinct(p.rules)}
    fields = {
        k: x.double() for k in ("log_leaf", "log_root", "log_root_leaf", "log_span") if (x := getattr(p, k)) is not None
    }
    return p._replace(rules=p.rules.with_factors(*(new[id(x)] for x in p.rules.factors())), **fields)


@both_dtypes
@pytest.mark.parametrize("name", [name for name in EVERY if "log" in name])
def test_rules_of_e_to_minus_2000(name: str, dtype: torch.dtype) -> None:
    """A shift of all logarithms is a factor of every tree, and no gradient's business."""
    p = potentials(name, (4, 2, 3), dtype=dtype)
    far = p._replace(rules=p.rules.with_factors(*_moved(p, 2048.0)))
    shift = 2048.0 * torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64) * len(p.rules.span_span.factors())
    near, found = solved(p), solved(far)
    # Factors near -2048 are themselves rounded: to 1.2e-4 in float32.
    tolerance = {"rtol": 0.0, "atol": 2e-3 if dtype == torch.float32 else 1e-8}
    torch.testing.assert_close(found[0] + shift, near[0], **tolerance)
    for x, y in zip(found[1:], near[1:], strict=True):
        torch.testing.assert_close(x, y, **tolerance)


def _moved(p: TreePotentials, by: float) -> list[Tensor]:
    new = {id(x): x - by for x in distinct(p.rules)}
    return [new[id(x)] for x in p.rules.factors()]


@both_dtypes
def test_words_of_e_to_minus_2000(dtype: torch.dtype) -> None:
    p = potentials("shared", (4, 1, 3), seed=1, dtype=dtype)
    shift = torch.tensor([-2048.0, 0.0, 1024.0], dtype=dtype)
    far = p._replace(log_leaf=p.log_leaf + shift[:, None, None])
    wanted = solved(p)
    wanted[0] = wanted[0] + shift.double() * torch.tensor([4.0, 1.0, 3.0])
    found = solved(far)
    # Words near -2048 are themselves rounded: to 1.2e-4 in float32.
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=0.0, atol=2e-3 if dtype == torch.float32 else 1e-8)


def apart(gap: float, dtype: torch.dtype, name: str = "dense") -> TreePotentials:
    """Sentence 1's words weigh most with a symbol that no rule takes; what they have besides is e^-gap of it.

    Sentences 0 and 2 are ordinary.
    """
    p = potentials(name, (4, 4, 3), p=3, seed=2, dtype=dtype)
    p.rules.leaf_leaf.factors()[-1 if name != "dense" else 0].data[..., 2] = 0.0
    dead = {"dense": lambda f: f[0][:, :, 2], "shared": lambda f: f[2][2]}[name]
    for rule in (p.rules.span_leaf, p.rules.leaf_leaf):
        dead(rule.factors()).zero_()
    other = {"dense": lambda f: f[0][:, 2], "shared": lambda f: f[1][2]}[name]
    for rule in (p.rules.leaf_span, p.rules.leaf_leaf):
        other(rule.factors()).zero_()
    p.log_leaf[1, :, :2] -= gap
    return p


def of_ranks(*logs: Tensor, log_root: Tensor, log_span: Tensor, dtype: torch.dtype) -> TreePotentials:
    """One sentence, rules without a head that share their factors (left, right; then of words), one preterminal."""
    left, right, leaf_left, leaf_right = (x.double().exp().to(dtype) for x in logs)
    pairs = ((left, right), (left, leaf_right), (leaf_left, right), (leaf_left, leaf_right))
    words = torch.zeros(1, log_span.shape[1] - 1, 1, dtype=dtype)
    rules = Branch(*(BinaryCPD(None, *pair) for pair in pairs))
    return TreePotentials(words, rules, log_root.to(dtype), words[:, 0], log_span.to(dtype))


def unlikely_roots(dtype: torch.dtype) -> TreePotentials:
    """Two words. What the dtype keeps of their labels is one that hardly any root takes; the others' weighs more."""
    reach = math.log(torch.finfo(dtype).tiny)
    words = torch.tensor([[0.42, 0.63]]) * reach, torch.tensor([[0.39, 0.63]]) * reach
    root, span = torch.tensor([[0.8 * reach, 0.0]]), torch.zeros(1, 3, 3)
    return of_ranks(torch.zeros(2, 2), torch.zeros(2, 2), *words, log_root=root, log_span=span, dtype=dtype)


def unlikely_splits(dtype: torch.dtype) -> TreePotentials:
    """Three words. The split of the larger scale has small sides; the other one's are large, but its share is lost."""
    reach = math.log(torch.finfo(dtype).tiny)
    large, small, span = torch.tensor([[-0.49 * reach]]), torch.tensor([[0.32 * reach]]), torch.zeros(1, 4, 4)
    span[0, 1, 3] = -1.2 * reach
    return of_ranks(large, small, small, large, log_root=torch.zeros(1, 1), log_span=span, dtype=dtype)


LOST = pytest.mark.parametrize("lost", [unlikely_roots, unlikely_splits])


@both_dtypes
@LOST
def test_what_weighs_is_lost_next_to_what_does_not(
    lost: Callable[[torch.dtype], TreePotentials], dtype: torch.dtype
) -> None:
    p = lost(dtype)
    for x, y in zip(solved(p, counts=True), solved(doubled(p), "log", counts=True), strict=True):
        torch.testing.assert_close(x, y, **NEAR[dtype])


@pytest.mark.parametrize("seed", [2, 3])
def test_random_labels_of_unlikely_roots(seed: int) -> None:
    """Factors of words between 1e-26 and 1e-8, roots between e^-90 and 1: 200 sentences that may lose what weighs."""
    g = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=g, dtype=torch.float64)

    left, right = (10 ** draw(-3, 0, 3, 3).float() for _ in range(2))
    leaf_left, leaf_right = (10 ** draw(-26, -8, 3, 3).float() for _ in range(2))
    pairs = ((left, right), (left, leaf_right), (leaf_left, right), (leaf_left, leaf_right))
    rules = Branch(*(BinaryCPD(None, *pair) for pair in pairs))
    words, root, root_leaf = draw(-20, 0, 200, 3, 3), draw(-90, 0, 200, 3), draw(-5, 0, 200, 3)
    lengths = torch.randint(2, 4, (200,), generator=g)
    p = TreePotentials(words.float(), rules, root.float(), root_leaf.float(), torch.zeros(200, 4, 4), lengths)
    torch.testing.assert_close(log_z(p), log_z(doubled(p), "log"), **NEAR[torch.float32])


@both_dtypes
@pytest.mark.parametrize("name", ["dense", "shared"])
@pytest.mark.parametrize("gap", [40.0, 60.0, 100.0, 400.0, 500.0, 1000.0, 3000.0])
def test_what_underflows_is_found_on_a_wider_rung(gap: float, name: str, dtype: torch.dtype) -> None:
    p = apart(gap, dtype, name)
    near = doubled(apart(0.0, dtype, name))
    near.log_leaf[1, :, :2] = p.log_leaf[1, :, :2].double() + gap
    # The gradient of a rule of weight 0 is e^gap: not for any float to hold. What a rule is used is.
    wanted, found = solved(near, counts=True), solved(p, counts=True)
    wanted[0][1] -= 4 * gap
    same(found, wanted, dtype)
    same(solved(p, counts=True, followed=True), wanted, dtype)


@both_dtypes
@pytest.mark.parametrize("name", ["dense", "shared"])
def test_neighbours_are_not_disturbed(name: str, dtype: torch.dtype) -> None:
    found = solved(apart(3000.0, dtype, name))
    alone = solved(apart(0.0, dtype, name))
    assert torch.equal(found[0][[0, 2]], alone[0][[0, 2]])
    for x, y in zip(found[1:5], alone[1:5], strict=True):
        if len(x) == 3 and x.ndim > 1:
            torch.testing.assert_close(x[[0, 2]], y[[0, 2]], rtol=1e-6, atol=1e-12)


@both_dtypes
@pytest.mark.parametrize("low", [-85.0, -90.0, -95.0, -100.0, -700.0, -715.0, -740.0, -2000.0])
def test_the_only_root_that_is_left_is_far_below_the_others(low: float, dtype: torch.dtype) -> None:
    """Label 0 has the root's weight and no rule; label 1 has rules and e^low of it."""
    weight = torch.tensor([0.0, 1.0], dtype=dtype)[:, None, None].expand(2, 2, 2).contiguous()
    rules = Branch(*(BinaryDense(weight.clone()) for _ in range(4)))
    p = TreePotentials(torch.zeros(1, 3, 2, dtype=dtype), rules, torch.tensor([0.0, low], dtype=dtype))
    at = leaves(p)
    found = log_z(at.potentials)
    # Two shapes of trees; labels of words are free, those of spans are not.
    assert float(found.detach()) == pytest.approx(low + math.log(2 * 2**3), rel=1e-6)
    grads = torch.autograd.grad(found.sum(), [at.fields["log_root"], at.fields["log_leaf"], *at.factors])
    torch.testing.assert_close(grads[0].double(), torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(grads[1], torch.full_like(grads[1], 0.5), rtol=1e-5, atol=0.0)
    assert all(torch.isfinite(grad[1]).all() for grad in grads[2:])
    counts = [float(used(weight, grad).sum()) for grad in grads[2:]]
    assert counts == pytest.approx([0.0, 0.5, 0.5, 1.0], rel=1e-5)


@pytest.mark.parametrize("exponent", [-44, -41, -36, -30, -15, 15, 25, 30, 36])
@pytest.mark.parametrize("name", ["dense", "cpd", "matricised", "shared batched"])
def test_weights_at_the_edge_of_float32(name: str, exponent: int) -> None:
    """Weights so small or large that their products leave float32, denormals among them."""
    p = potentials(name, (4, 3, 2), seed=3, dtype=torch.float32)
    for factor in distinct(p.rules):
        factor *= 10.0**exponent
    same(solved(p), solved(doubled(p)), torch.float32)


def test_linear_weights_beyond_float64() -> None:
    p = potentials("shared", (4, 3, 2), seed=4)
    far = p._replace(rules=p.rules.with_factors(*(x * 1e200 for x in p.rules.factors())))
    shift = 600 * math.log(10) * torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(log_z(far), log_z(p) + shift, rtol=1e-10, atol=0.0)
    for x, y in zip(solved(far)[1:5], solved(p)[1:5], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@both_dtypes
@pytest.mark.parametrize("gap", [50.0, 2000.0])
def test_rules_of_their_own_and_a_shared_head_on_wider_rungs(gap: float, dtype: torch.dtype) -> None:
    """What rules share stays shared when some sentences are repeated, and finds its way back."""
    g = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    head, left, right = draw(3, 2, 3), draw(2, 3), draw(3, 2, 3)
    head[1] -= gap
    right[1] -= gap
    one = BinaryCPD.from_log(head.to(dtype), left.to(dtype), right.to(dtype))
    p = potentials("dense", (4, 3, 4), n=2, p=2, seed=6, dtype=dtype)._replace(rules=Branch(one, one, one, one))
    wanted = solved(doubled(p), "log")
    same(solved(p), wanted, dtype)
    same(solved(p, followed=True), wanted, dtype)


@pytest.mark.parametrize("arithmetic", ["scaled", "log"])
@both_dtypes
def test_impossible_sentences_have_no_gradient(arithmetic: str, dtype: torch.dtype) -> None:
    p = potentials("shared", (4, 3, 1, 2), seed=7, dtype=dtype)._replace(log_root_leaf=None)
    p.log_leaf[1, 1] = -INF
    found = solved(p, arithmetic)
    assert (found[0] == -INF).tolist() == [False, True, True, False]
    assert all(torch.isfinite(grad).all() for grad in found[1:])
    leaf, _, span = found[1:4]
    assert not leaf[[1, 2]].any()
    assert not span[[1, 2]].any()
    rest = p._replace(log_leaf=p.log_leaf[[0, 3]], lengths=torch.tensor([4, 2]), log_span=p.log_span[[0, 3]])  # type: ignore[index]
    alone = solved(rest, arithmetic)
    torch.testing.assert_close(found[0][[0, 3]], alone[0], **NEAR[dtype])
    for x, y in zip(found[4:], alone[4:], strict=True):
        torch.testing.assert_close(x, y, **NEAR[dtype])


def test_strict_names_the_first_impossible_sentence() -> None:
    p = potentials("dense", (3, 1, 1), seed=8)._replace(log_root_leaf=None)
    with pytest.raises(DomainError, match=r"(?s)sentence 1 is impossible.*and so are 1 more.*log_root_leaf"):
        log_z(p, strict=True)
    with pytest.raises(DomainError, match=r"sentence 0 is impossible: no tree has any weight\."):
        log_z(
            potentials("dense", (2,), seed=8)._replace(log_root=torch.full((2,), -INF, dtype=torch.float64)),
            "log",
            strict=True,
        )
    assert log_z(potentials("dense", (3, 1, 1), seed=8), strict=True).isfinite().all()


def test_rules_of_no_weight_at_all() -> None:
    for rules in (
        Branch(*(BinaryDense(torch.zeros(2, a, b)) for a, b in ((2, 2), (2, 3), (3, 2), (3, 3)))),
        Branch(*(BinaryDense.from_log(torch.full((2, a, b), -INF)) for a, b in ((2, 2), (2, 3), (3, 2), (3, 3)))),
    ):
        p = potentials("dense", (4, 1, 2), seed=9, dtype=torch.float32)._replace(rules=rules)
        found = solved(p)
        assert (found[0] == -INF).tolist() == [True, False, True]
        assert all(torch.isfinite(grad).all() for grad in found[1:])


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), spread=st.floats(0, 3000), log=st.booleans(), low_rank=st.booleans())
@example(seed=1174, spread=160.0, log=True, low_rank=True)
@example(seed=490, spread=160.0, log=True, low_rank=True)
@example(seed=10, spread=1500.0, log=True, low_rank=True)
@example(seed=29, spread=1500.0, log=True, low_rank=True)
@example(seed=98, spread=1500.0, log=True, low_rank=True)
def test_value_and_posteriors_are_right_in_any_range(seed: int, spread: float, log: bool, low_rank: bool) -> None:
    """Scores of any spread in every place at once, float32 against logarithms."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return spread * (torch.rand(shape, generator=g) - 0.5)

    def rule(a: int, n: int, m: int) -> BinaryCPD | BinaryDense:
        factors = [draw(size, 3) for size in (a, n, m)] if low_rank else [draw(a, n, m)]
        kind = BinaryCPD if low_rank else BinaryDense
        return kind.from_log(*factors) if log else kind(*((x.clamp(max=0.0) / 50).exp() for x in factors))

    rules = Branch(*(rule(*shape) for shape in shapes(2, 2)))
    at = leaves(TreePotentials(draw(2, 4, 2), rules, draw(2)))
    found, wanted = log_z(at.potentials), log_z(at.potentials, "log")
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-5)
    posterior, exact = (torch.autograd.grad(x.sum(), at.fields["log_leaf"])[0] for x in (found, wanted))
    torch.testing.assert_close(posterior, exact, rtol=0.0, atol=1e-4)


def test_float64_at_its_edge_beside_rules_of_weight_zero() -> None:
    """Where zeros may be rules, a span whose largest entry is a denormal is still repeated in logarithms."""
    p = potentials("dense", (4, 3), seed=11)
    for factor in distinct(p.rules):
        factor *= 1e-312
        factor[1] = 0.0
    torch.testing.assert_close(log_z(p), log_z(p, "log"), rtol=1e-12, atol=0.0)


def test_one_word_far_below() -> None:
    """A root and a word add up in float64: float32 has steps of 0.004 at 60,000."""
    p = potentials("dense", (1, 1), seed=12, dtype=torch.float32)
    p.log_leaf.sub_(60_000.0)
    torch.testing.assert_close(log_z(p), log_z(doubled(p)), rtol=0.0, atol=1e-9)
