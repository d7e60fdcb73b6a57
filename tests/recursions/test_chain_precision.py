"""Matrix products in lower precision: applied where asked for, nowhere else, and gone afterwards."""

import pytest
import torch

from rankfold import ChainPotentials, Dense, LowRank, Operator
from rankfold.recursions.chain import log_z, scaled
from tests.recursions.build import doubled, leaves, pad_with_nan, seeded

Z, T = 33, 20
LENGTHS = [20, 7, 1]


def ordinary(kind: str) -> ChainPotentials:
    g = seeded(110)
    transition: Operator = Dense(torch.randn(Z, Z, generator=g).softmax(-1))
    if kind == "low rank":
        transition = LowRank(torch.randn(Z, 5, generator=g).softmax(-1), torch.randn(Z, 5, generator=g).softmax(0))
    log_obs = pad_with_nan(2 * torch.randn(3, T, Z, generator=g), LENGTHS)
    return ChainPotentials(torch.zeros(Z), transition, log_obs, lengths=torch.tensor(LENGTHS))


# Operands rounded to 8 bits: each product errs by at most 2**-7 of itself (low rank has two a step), and the
# errors of a step average over its 33 terms; 20 steps of 2**-7 are a bound nobody reaches.
LOOSE = {"rtol": 0.0, "atol": 2 * T * 2.0**-7}


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_bf16_is_applied_and_stays_close(kind: str) -> None:
    p = ordinary(kind)
    exact, single, coarse = log_z(doubled(p)), log_z(p), log_z(p, precision="bf16")
    assert coarse.dtype == torch.float64
    torch.testing.assert_close(single, exact, rtol=0.0, atol=1e-4)  # 20 steps of float32 round-off
    torch.testing.assert_close(coarse, exact, **LOOSE)
    assert (coarse - exact)[:2].abs().min() > 1e-4  # ten times what float32 loses: products were in bf16
    assert float((single - exact)[:2].abs().max()) < 1e-5


@pytest.mark.parametrize("kind", ["dense", "low rank"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_gradients_in_lower_precision(kind: str, precision: str) -> None:
    p = ordinary(kind)
    at, exact = leaves(p), leaves(doubled(p))
    for create_graph in (False, True):
        found = torch.autograd.grad(
            log_z(at.potentials, precision=precision).sum(), at.tensors[:2], create_graph=create_graph
        )
        assert all(x.dtype == torch.float32 for x in found)
        expected = torch.autograd.grad(log_z(exact.potentials).sum(), exact.tensors[:2])
        # Posteriors are ratios of messages that err by 20 steps of 2**-7 at the very most, by far less in fact.
        torch.testing.assert_close(found[1].double(), expected[1], rtol=0.0, atol=0.05)
        torch.testing.assert_close(found[1].detach().sum(-1)[0], torch.ones(T), rtol=0.0, atol=1e-2)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_ordinary_chains_are_not_repeated_in_lower_precision(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse products must not look like underflow, or everything would silently run in float64."""
    p = ordinary("dense")
    runs = []
    forward = scaled.forward
    monkeypatch.setattr(scaled, "forward", lambda c, *a, **k: runs.append(c.log_obs.dtype) or forward(c, *a, **k))
    at = leaves(p)
    log_z(at.potentials, precision=precision).sum().backward()
    assert runs == [torch.float32]


def test_float64_ignores_the_mode() -> None:
    p = doubled(ordinary("low rank"))
    assert torch.equal(log_z(p, precision="bf16"), log_z(p))
    assert torch.equal(log_z(p, precision="tf32"), log_z(p))


def test_log_arithmetic_ignores_the_mode() -> None:
    p = ordinary("dense")
    assert torch.equal(log_z(p, "log", "bf16"), log_z(p, "log"))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("before", ["ieee", "tf32"])
def test_the_settings_of_torch_come_back(precision: str, before: str) -> None:
    flags = torch.backends.cuda.matmul
    original = flags.fp32_precision
    flags.fp32_precision = before
    try:
        at = leaves(ordinary("dense"))
        log_z(at.potentials, precision=precision).sum().backward()
        assert flags.fp32_precision == before
        assert not torch.is_autocast_enabled("cpu")
        with pytest.raises(RuntimeError, match="stop"):
            log_z(at.potentials._replace(transition=Broken(*at.potentials.transition.factors())), precision=precision)
        assert flags.fp32_precision == before
        assert not torch.is_autocast_enabled("cpu")
    finally:
        flags.fp32_precision = original


class Broken(Dense):
    def push(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("stop")

    def maps(self) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("stop")


def test_autocast_around_the_call_does_not_reach_in() -> None:
    """The precision is an argument: the caller's autocast neither lowers it nor is lost."""
    p = ordinary("low rank")
    at = leaves(p)
    outside = torch.autograd.grad(log_z(at.potentials).sum(), at.tensors)
    with torch.autocast("cpu", torch.bfloat16):
        value = log_z(at.potentials)
        inside = torch.autograd.grad(value.sum(), at.tensors)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(value, log_z(p))
    for a, b in zip(inside, outside, strict=True):
        assert torch.equal(a, b)
