"""Chains for the scan of both passes, and two plain loops in float64 that say what it should find."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tests.kernels.device import DEVICE, close

if TYPE_CHECKING:
    from rankfold.kernels.forward_backward.triton import Sums, TwoWay

# Both operands of a product are rounded, each by half of the last bit.
ROUND = {"tf32": 2.0**-10, "bf16": 2.0**-7}
KINDS = {"dense": 1, "dense transposed": 1, "low rank": 2, "left transposed": 2, "right transposed": 2}


class Given(NamedTuple):
    maps: list[Tensor]
    first: Tensor  # "b z"
    emission: Tensor  # "t b z"
    final: Tensor  # "b z"
    ends: Tensor | None  # "t b"


def given(kind: str, b: int, z: int, r: int, t: int, *, ragged: bool = False) -> Given:
    g = torch.Generator().manual_seed(b + z + r + t)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g).to(DEVICE)

    maps = {
        "dense": lambda: [rand(z, z)],
        "dense transposed": lambda: [rand(z, z).T],
        "low rank": lambda: [rand(z, r), rand(r, z)],
        "left transposed": lambda: [rand(r, z).T, rand(r, z)],
        "right transposed": lambda: [rand(z, r), rand(z, r).T],
    }[kind]()
    final = rand(b, z)
    lengths = torch.randint(1, t + 1, (b,), generator=g).to(DEVICE)
    ends = (torch.arange(t, device=DEVICE) == lengths[:, None] - 1).T if ragged else None  # a transposed view
    return Given(maps, rand(b, z), rand(t, b, z), final / final.amax(-1, keepdim=True), ends)


class Truth(NamedTuple):
    filtered: Tensor
    norm: Tensor
    future: Tensor
    target: Tensor
    future_norm: Tensor


def by_loops(x: Given) -> Truth:
    """Messages divided by their largest entries, in float64."""
    transition = torch.linalg.multi_dot([m.double() for m in x.maps]) if len(x.maps) > 1 else x.maps[0].double()
    emission, final = x.emission.double(), x.final.double()
    message, filtered, norms = x.first.double() * emission[0], [], []
    for t in range(len(emission)):
        if t:
            message = (filtered[-1] @ transition) * emission[t]
        norms.append(message.amax(-1))
        filtered.append(message / norms[-1][:, None])
    message, future, tops = final, [final], [torch.ones_like(norms[0])]
    for t in reversed(range(len(emission) - 1)):
        message = (emission[t + 1] * future[0]) @ transition.T
        if x.ends is not None:
            message = torch.where(x.ends[t][:, None], final, message)
        tops.insert(0, message.amax(-1))
        future.insert(0, message / tops[0][:, None])
    ahead = torch.stack(future)
    return Truth(torch.stack(filtered), torch.stack(norms), ahead, emission * ahead, torch.stack(tops))


def check(kind: str, x: Given, precision: str) -> None:
    """Messages, what lies between two maps, and sums of maps, entry by entry within their rounding."""
    from rankfold.kernels.forward_backward.triton import two_way

    got, sums = two_way(*x, precision)
    assert torch.equal(got.norm, got.filtered.amax(-1))
    assert torch.equal(got.future_norm[:-1], got.future.amax(-1)[:-1])
    assert (got.future_norm[-1] == 1).all()
    bound = ROUND[precision] * KINDS[kind] * len(x.emission)  # every step rounds all operands of its products
    truth = by_loops(x)
    close(got.norm, truth.norm, bound * truth.norm)
    close(got.future_norm, truth.future_norm, bound * truth.future_norm)
    close(got.filtered / got.norm[..., None], truth.filtered, bound * truth.filtered)
    close(got.future / got.future_norm[..., None], truth.future, bound * truth.future)
    close(got.target / got.future_norm[..., None], truth.target, bound * truth.target)
    check_inner(x, got, truth, bound)
    check_sums(x.maps, sums, ROUND[precision])


def check_inner(x: Given, got: "TwoWay", truth: Truth, bound: float) -> None:
    """What lies between two maps: filtered after the first of them, target before it."""
    if len(x.maps) == 1:
        assert got.inner is None
        return
    assert got.inner is not None
    ahead, behind = got.inner
    want = truth.filtered[:-1] @ x.maps[0].double()
    close(ahead, want, bound * want)
    want = truth.target[1:] @ x.maps[1].double().T
    close(behind, want, bound * want)


def check_sums(maps: list[Tensor], sums: "Sums", bound: float) -> None:
    doubles = [m.double() for m in maps]
    if len(maps) == 1:
        assert sums[1:] == (None, None, None)
        want = doubles[0].sum(0, keepdim=True)
        close(sums.column, want, bound * want)
        return
    left, right = doubles
    expected = (left.sum(0, keepdim=True) @ right, right.sum(0), left.sum(0), right.sum(1))
    for found, want in zip(sums, expected, strict=True):
        assert found is not None
        close(found, want, 2 * bound * want)
