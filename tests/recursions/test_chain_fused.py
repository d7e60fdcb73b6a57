"""The chain through the scan of both passes: values and gradients, of any order, within the rounding of TF32."""

import pytest
import torch

from rankfold import ChainPotentials
from rankfold.recursions.chain import log_z
from rankfold.recursions.chain.potentials import Chain
from tests.recursions.build import INF, Leaves, doubled, leaves, rebuilt
from tests.recursions.fused import KINDS, LENGTHS, ROUND, Z, check, ordinary

pytestmark = [
    pytest.mark.usefixtures("scans"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda takes this path without an interpreter"),
]


def laid_out(p: ChainPotentials) -> Leaves:
    """`leaves`, with every tensor's layout in memory as it was."""
    parts = [p.log_initial, p.log_obs, *([] if p.log_final is None else [p.log_final]), *p.transition.factors()]
    tensors = tuple(x.detach().requires_grad_() for x in parts)
    return Leaves(rebuilt(p, tensors), tensors)


def refuse(chain: Chain) -> Chain:
    raise AssertionError("a sequence was repeated in float64")


@pytest.mark.parametrize(
    ("kind", "lengths"), [*((kind, LENGTHS) for kind in KINDS), ("dense", [2]), ("low rank", [3, 3])]
)
def test_value_and_gradients(kind: str, lengths: list[int], scans: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the rounding of TF32, in one scan, and nothing is repeated in wider arithmetic."""
    p = ordinary(kind, lengths)
    exact = leaves(doubled(p))
    expected = log_z(exact.potentials)
    at = laid_out(p)
    weight = torch.tensor([1.0, 0.5, 2.0][: len(lengths)], dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(Chain, "double", refuse)
        value = log_z(at.potentials, precision="tf32")
        found = torch.autograd.grad(value, at.tensors, weight)
    assert scans == [max(lengths)]
    # Two products a step, each off by its operands; a posterior is a ratio of such numbers.
    steps = 2 * ROUND * max(lengths)
    torch.testing.assert_close(value, expected, rtol=0.0, atol=steps)
    assert (value != expected).any()
    log_initial, log_obs, log_final, *factors = torch.autograd.grad(expected, exact.tensors, weight)
    # The truth has a start of each sequence's own, and so has the end.
    for one, other in zip(found, (log_initial.sum(0), log_obs, log_final, *factors), strict=True):
        assert one.dtype == torch.float32
        check(one, other, 2 * steps)
    for one, factor in zip(found[3:], p.transition.factors(), strict=True):
        if not any(p.transition.log_factors) and kind != "sum":
            assert one.stride() == factor.stride()


def test_without_gradients_there_is_no_scan(scans: list[int]) -> None:
    p = ordinary("dense")
    torch.testing.assert_close(log_z(p, precision="tf32"), log_z(doubled(p)), rtol=0.0, atol=1e-5)
    log_z(leaves(p).potentials).sum().backward()  # float32
    assert scans == []


@pytest.mark.parametrize("kind", ["dense", "low rank", "sum"])
def test_gradients_are_the_same_again(kind: str) -> None:
    at = leaves(ordinary(kind))
    value = log_z(at.potentials, precision="tf32")
    first = torch.autograd.grad(value.sum(), at.tensors, retain_graph=True)
    again = torch.autograd.grad(value.sum(), at.tensors, retain_graph=True)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
    double = torch.autograd.grad(2 * value.sum(), at.tensors)
    for one, other in zip(first, double, strict=True):
        torch.testing.assert_close(2 * one, other, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("kind", ["dense", "low rank", "multiplied"])
def test_second_derivatives(kind: str) -> None:
    p = ordinary(kind, [3, 2])
    p = p._replace(log_initial=p.log_initial.expand(2, Z))
    seconds = []
    for at, precision in ((leaves(p), "tf32"), (leaves(doubled(p)), "float32")):
        value = log_z(at.potentials, precision=precision)
        firsts = torch.autograd.grad(value.sum(), at.tensors, create_graph=True)
        seconds.append(torch.autograd.grad(sum((x**2).sum() for x in firsts), at.tensors[3:]))
    for one, other in zip(*seconds, strict=True):
        # Retraced in float32 on a CPU; differences of terms of the size of the largest.
        torch.testing.assert_close(one.double(), other, rtol=0.0, atol=float(1e-5 * other.abs().max()))


@pytest.mark.parametrize("kind", ["dense", "low rank"])
@pytest.mark.parametrize("how", ["observation", "start", "end", "transition"])
def test_impossible_sequences(kind: str, how: str) -> None:
    """-inf and zero gradients, and the neighbours as if they were alone."""
    p = ordinary(kind, [3, 3])
    assert p.log_final is not None
    log_initial = p.log_initial.expand(2, Z).clone()
    if how == "observation":
        p.log_obs[0, 1] = -INF
    elif how == "start":
        log_initial[0] = -INF
    elif how == "end":
        p.log_final[0] = -INF
    else:
        p.transition.factors()[0][3] = 0.0  # nowhere from state 3, where sequence 0 is
        p.log_obs[0, 1, torch.arange(Z) != 3] = -INF
    at = leaves(p._replace(log_initial=log_initial))
    value = log_z(at.potentials, precision="tf32")
    assert value[0] == -INF
    found = torch.autograd.grad(value[1:].sum() + value[0], at.tensors)
    assert all((x[0] == 0).all() for x in found[:3])
    one = p._replace(log_initial=log_initial[1:], log_obs=p.log_obs[1:], log_final=p.log_final[1:], lengths=None)
    exact = leaves(doubled(one))
    truth = torch.autograd.grad(log_z(exact.potentials).sum(), exact.tensors)
    for grad, want in zip((*(x[1:] for x in found[:3]), *found[3:]), truth, strict=True):
        check(grad, want, 12 * ROUND)
