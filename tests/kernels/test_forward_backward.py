"""Both passes of a chain in one scan, against two plain loops in float64."""

import pytest
import torch

from tests.kernels.device import DEVICE, HERE, close
from tests.kernels.scans import ROUND, Given, by_loops, check, given

pytest.importorskip("triton")

from rankfold.kernels.forward_backward import passes, soundness
from rankfold.kernels.forward_backward import triton as kernel
from rankfold.numerics.precision import Rounded
from rankfold.recursions.chain.scaled import per_entry

pytestmark = HERE
PRECISIONS = [
    "tf32",
    pytest.param("bf16", marks=pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter has no bfloat16")),
]


@pytest.fixture(autouse=True)
def _narrow_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "COLS", 32)
    monkeypatch.setattr(kernel, "ROWS", dict.fromkeys((16, 32, 64), 16))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("kind", "b", "z", "r", "t", "ragged", "programs"),
    [
        ("dense", 1, 1, 1, 2, False, 132),
        ("dense", 20, 33, 1, 3, True, 132),
        ("dense transposed", 3, 70, 1, 4, True, 1),  # one program a strip of columns, which loops over rows
        ("low rank", 3, 70, 40, 3, False, 132),
        ("low rank", 20, 17, 1, 2, True, 132),
        ("left transposed", 3, 17, 40, 4, True, 1),
        ("right transposed", 1, 70, 17, 3, False, 132),
        ("right transposed", 2, 5, 3, 1, True, 132),
        ("dense", 2, 5, 1, 1, False, 132),
    ],
)
def test_messages_and_sums(
    kind: str,
    b: int,
    z: int,
    r: int,
    t: int,
    ragged: bool,
    programs: int,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(kernel.PROGRAMS, precision, programs)
    check(kind, given(kind, b, z, r, t, ragged=ragged), precision)


@pytest.mark.parametrize("kind", ["dense", "right transposed"])
def test_more_strips_than_a_program_adds_up_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "STRIPS", 2)
    check(kind, given(kind, 3, 150, 70, 3, ragged=True), "tf32")


def test_a_sequence_that_dies() -> None:
    """Zeros stay zeros, forward and backward, and leave the neighbour alone."""
    x = given("dense", 2, 5, 1, 3)
    x.emission[1, 0] = 0.0
    got, _ = kernel.two_way(*x, "tf32")
    assert (got.filtered[1:, 0] == 0).all()
    assert (got.norm[1:, 0] == 0).all()
    assert (got.future[0, 0] == 0).all()
    alone = by_loops(Given(x.maps, x.first[1:], x.emission[:, 1:], x.final[1:], None))
    close(got.norm[:, 1:], alone.norm, 3 * ROUND["tf32"] * alone.norm)


@pytest.mark.parametrize("size", [4096, 16])  # rows in one piece, or in several
@pytest.mark.parametrize("by_state", [False, True])
def test_divide(size: int, by_state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "SIZE", size)
    t, b, z = 3, 2, 37
    g = torch.Generator().manual_seed(0)
    filtered, future, emission = (torch.rand(t, b, z, generator=g).to(DEVICE) for _ in range(3))
    column, loss = torch.rand(1, z, generator=g).to(DEVICE), torch.rand(z if by_state else 1, generator=g).to(DEVICE)
    log_initial = torch.zeros(b, z).to(DEVICE)
    filtered[1, 0, 36] = 1e-37  # below what may be missing, in the last entry of all
    filtered[1, 1, 36], emission[1, 1, 36] = 0.0, 0.0  # nothing can be missing of an impossible observation
    filtered[2, 1], emission[2, 1] = 0.0, 0.0
    norm, future_norm = filtered.amax(-1), 3 * future.amax(-1)
    target = emission * future
    x, y, e = filtered.double(), future.double(), emission.double()
    least = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps
    filtered[0, 0, 3], log_initial[0, 3] = 0.0, -torch.inf  # a state that no sequence begins in
    filtered[0, 1, 4] = 0.0  # lost: it was possible
    future[1, 1, 7], future[2, 0, 9] = 8e-31, 5e-31  # with a loss of 6 the second is below what it may miss
    y = future.double()
    x = filtered.double()
    each = per_entry(norm, column).double()
    missing = (each[:-1, :, None] * column.double() + loss.double()) * e[1:] * least
    first = (log_initial > -torch.inf).double() * e[0] * least
    short = ~(torch.cat([first[None], missing]) <= x)
    assert short.any(-1).flatten().tolist() == [False, True, True, False, False, False]
    # A row of zeros has a norm of 0 and stays one.
    want = x / torch.where(norm == 0, 1.0, norm).double()[..., None], y / future_norm.double()[..., None]
    targets = target.double() / future_norm.double()[..., None]
    bound = soundness.bounds(column, None, None)
    assert bound[0] == column.amax()
    pull = torch.tensor(6.0).to(DEVICE)
    found = passes.divide(filtered, norm, future, future_norm, target, emission, column, loss, bound, pull, log_initial)
    for one, other in ((filtered, want[0]), (future, want[1]), (target, targets)):
        close(one, other, 2.0**-22 * other)
    close(found.mass, (want[0] * want[1]).sum(-1), 1e-6 * z)
    assert torch.equal(found.short, short.sum(-1).int())
    assert found.behind.flatten().tolist() == [0, 0, 0, 0, 1, 0]
    risk = (torch.cat([first[None], missing]) / least * want[1]).sum(-1)
    close(found.risk, risk, 1e-5 * risk)


@pytest.mark.parametrize("size", [4096, 16])
def test_weigh(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "SIZE", size)
    g = torch.Generator().manual_seed(0)
    filtered, future, target = (torch.rand(3, 2, 37, generator=g).to(DEVICE) for _ in range(3))
    by_state, by_step = (torch.rand(2, 3, generator=g).to(DEVICE).T for _ in range(2))  # transposed views
    posterior, weighted = passes.weigh(filtered, future, target, by_state, by_step)
    assert posterior.transpose(0, 1).is_contiguous()
    close(posterior, filtered.double() * future.double() * by_state.double()[..., None], 2.0**-22)
    close(weighted, target.double() * by_step.double()[..., None], 2.0**-23)


@pytest.mark.parametrize("flipped", [False, True])
def test_operands_are_rounded_to_nearest_and_copied(flipped: bool) -> None:
    x = torch.rand(17, 33, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    before = x.clone()
    found = kernel._operand(x.T if flipped else x, half=False)
    assert found.flipped == flipped
    assert torch.equal(x, before)
    assert (found.weight.view(torch.int32) & 0x1FFF == 0).all()
    close(found.weight, x, 2.0**-11 * x)
    assert (found.weight > x).any()
    assert (found.weight < x).any()


@pytest.mark.parametrize("flipped", [False, True])
def test_a_rounded_copy_is_taken_where_there_is_one(flipped: bool) -> None:
    table = torch.rand(17, 33, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    half = table.bfloat16()
    x = table.T if flipped else table
    found = kernel._operand(x, Rounded(table, half), half=True)
    assert found.flipped == flipped
    assert found.weight.data_ptr() == half.data_ptr()
    assert torch.equal(found.weight, half)
    assert kernel._operand(x, Rounded(table, half), half=False).weight.dtype == torch.float32
