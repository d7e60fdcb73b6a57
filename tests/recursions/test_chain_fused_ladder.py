"""The chain through the scan of both passes: what it may lose is found out, repeated in wider arithmetic, and right."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankfold import Banded, ChainPotentials, Dense, LowRank, Operator, Sum
from rankfold.operators.product import Product
from rankfold.recursions import ladder
from rankfold.recursions.chain import log_z, rungs, scaled, soundness
from rankfold.recursions.chain.potentials import Chain, validate
from rankfold.recursions.chain.scaled import Forward
from tests.recursions.build import INF, doubled, leaves, seeded
from tests.recursions.fused import LENGTHS, ROUND, Z, check, ordinary, uses

pytestmark = [
    pytest.mark.usefixtures("scans"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda takes this path without an interpreter"),
]


def far_apart(kind: str) -> ChainPotentials:
    """Three states that hardly meet; what sequence 0 ends with was far below the rest halfway."""
    log_obs = torch.tensor(
        [
            [[0.0, -100.0, -100.0], [-200.0, 0.0, -5.0], [0.0, -90.0, -100.0]],
            [[0.0, -1.0, -2.0], [-2.0, -1.0, 0.0], [0.0, 0.0, 0.0]],
        ]
    )
    weight = torch.eye(3) + 0.1 * torch.ones(3, 3).tril(-1)
    transition = {
        "dense": lambda: Dense(weight),
        "low rank": lambda: LowRank(weight, torch.eye(3)),
        "multiplied": lambda: Product(weight, torch.eye(3)),
        "sum": lambda: Sum([Dense(weight), Banded(torch.zeros(3, 1), 0)]),
    }[kind]()
    return ChainPotentials(torch.zeros(2, 3), transition, log_obs)


@pytest.mark.parametrize("kind", ["dense", "low rank", "multiplied", "sum"])
def test_what_underflows_is_repeated_and_exact(kind: str, scans: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    p = far_apart(kind)
    repeated = []
    double = Chain.double
    monkeypatch.setattr(Chain, "double", lambda c: repeated.append(len(c.log_obs)) or double(c))
    at, exact = leaves(p), leaves(doubled(p))
    value = log_z(at.potentials, precision="tf32")
    assert repeated == [1]
    expected = log_z(exact.potentials, "log")
    torch.testing.assert_close(value[0], expected[0], rtol=1e-12, atol=0.0)  # float64
    torch.testing.assert_close(value[1], expected[1], rtol=0.0, atol=6 * ROUND)
    truth = torch.autograd.grad(log_z(exact.potentials).sum(), exact.tensors)
    for _ in range(2):
        found = torch.autograd.grad(value.sum(), at.tensors, retain_graph=True)
        torch.testing.assert_close(found[1][0].double(), truth[1][0], rtol=1e-6, atol=1e-30)
        check(found[0], truth[0], 12 * ROUND)
        for one, other, factor in zip(found[2:], truth[3:], at.tensors[2:], strict=True):
            check(uses(one, factor), uses(other, factor), 12 * ROUND)
    assert scans == [3]


@pytest.mark.parametrize("kind", ["dense", "low rank", "low rank of logs", "sum"])
def test_a_sequence_in_doubt_counts_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated in float64 because of a bound, although its messages are good."""
    monkeypatch.setattr(rungs, "lossless", lambda c, run: c.lengths != LENGTHS[0])
    p = ordinary(kind)
    at, exact = leaves(p), leaves(doubled(p))
    value = log_z(at.potentials, precision="tf32")
    found = torch.autograd.grad(value.sum(), at.tensors)
    monkeypatch.undo()
    expected = log_z(exact.potentials)
    torch.testing.assert_close(value[0], expected[0], rtol=1e-12, atol=0.0)
    truth = torch.autograd.grad(expected.sum(), exact.tensors)
    for one, other in zip(found, (truth[0].sum(0), *truth[1:]), strict=True):
        check(one, other, 24 * ROUND)


@pytest.mark.parametrize("kind", ["dense", "low rank", "low rank transposed", "multiplied", "sum"])
def test_what_may_be_lost_is_what_the_operator_says(kind: str) -> None:
    """The scan's own sums give the bounds of the loops, within the rounding of TF32."""
    c = validate(ordinary(kind))
    losses = scaled.forward(c, "tf32", both=True).losses
    assert losses is not None
    ones = torch.ones(1, Z)
    torch.testing.assert_close(losses.column, c.transition.push(ones), rtol=2 * ROUND, atol=0.0)
    push, pull = (torch.as_tensor(x, dtype=torch.float32) for x in (c.transition.push_loss(), c.transition.pull_loss()))
    if kind == "sum":  # written out: every entry may have lost what its terms lose, and its own product after that
        push, pull = Z * (push + 2), Z * (pull + 2)
    torch.testing.assert_close(torch.as_tensor(losses.push, dtype=torch.float32), push, rtol=2 * ROUND, atol=0.0)
    total = (2 * c.transition.pull(ones) + pull).sum()
    torch.testing.assert_close(losses.pull, total, rtol=2 * ROUND, atol=0.0)


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_what_a_position_lost_counts_at_the_next(kind: str) -> None:
    """State 0 dies at position 1, which leaves entries of e-60: what comes after may miss more than e-20."""
    weight = torch.tensor([[1.0, 0.0], [math.exp(-20), 1.0]])
    log_obs = torch.tensor([[[0.0, -60.0], [-INF, 0.0], [0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0]] * 4])
    transition = Dense(weight) if kind == "dense" else LowRank(weight, torch.eye(2))
    c = validate(ChainPotentials(torch.zeros(2), transition, log_obs))
    for both in (False, True):
        run = scaled.forward(c, "tf32", both=both)
        assert (run.ahead is not None) == both
        assert soundness.far_from_underflow(c, run).tolist() == [False, True]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    z=st.integers(1, 8),
    t=st.integers(2, 4),
    zeros=st.sampled_from([0.0, 0.3, 0.6]),
    spread=st.floats(0, 400),
    low_rank=st.booleans(),
)
def test_any_range(seed: int, z: int, t: int, zeros: float, spread: float, low_rank: bool) -> None:
    """Sparse chains against log arithmetic: what TF32 rounds, and nothing else."""
    g = seeded(seed)
    left, right = (torch.rand(z, z, generator=g) + 0.05 for _ in range(2))
    left[torch.rand(left.shape, generator=g) < zeros] = 0.0
    transition: Operator = LowRank(left, right) if low_rank else Dense(left)
    log_obs = spread * (torch.rand(3, t, z, generator=g) - 0.5)
    p = ChainPotentials(torch.randn(z, generator=g), transition, log_obs)
    at, exact = leaves(p), leaves(doubled(p))
    value, expected = log_z(at.potentials, precision="tf32"), log_z(exact.potentials, "log")
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=2 * t * ROUND)
    found = torch.autograd.grad(value.sum(), at.tensors)
    truth = torch.autograd.grad(log_z(exact.potentials).sum(), exact.tensors)
    torch.testing.assert_close(found[1].double(), truth[1], rtol=0.0, atol=4 * t * ROUND)
    for one, other, factor in zip(found[2:], truth[3:], at.tensors[2:], strict=True):
        torch.testing.assert_close(uses(one, factor), uses(other, factor), rtol=4 * t * ROUND, atol=4 * t * ROUND)


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_inside_a_captured_graph_what_cannot_be_repeated_is_nan(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a graph would see it: values may not be looked at. The other sequence is untouched."""
    for module in (ladder, rungs):
        monkeypatch.setattr(module, "may_look", lambda _: False)
    monkeypatch.setattr(scaled, "may_look", lambda _: False)
    at, exact = leaves(far_apart(kind)), leaves(doubled(far_apart(kind)))
    value = log_z(at.potentials, precision="tf32")
    assert value[0].isnan()
    found = torch.autograd.grad(value.sum(), at.tensors)
    monkeypatch.undo()
    expected = log_z(exact.potentials)
    torch.testing.assert_close(value[1], expected[1], rtol=0.0, atol=6 * ROUND)
    truth = torch.autograd.grad(expected.sum(), exact.tensors)
    assert found[1][0].isnan().all()
    check(found[1][1], truth[1][1], 12 * ROUND)
    assert all(x.isnan().any() for x in found[2:])


def unseen(c: Chain, f: Forward) -> Tensor:  # "b"
    """Whether all that may be missing, weighed by messages from behind that miss nothing, is below round-off."""
    assert f.ahead is not None
    assert f.losses is not None
    info, inside = torch.finfo(torch.float32), c.inside().mT
    least = info.tiny / info.eps
    future, norm = f.ahead.future.double(), f.norm.double()
    raw = future * f.ahead.norm.double().unsqueeze(-1)
    clear = ((float(f.losses.pull) * least <= raw) & (least <= future)).all(-1)
    each = scaled.per_entry(f.norm, f.losses.column).double()
    column = f.losses.column.double()
    push = torch.as_tensor(f.losses.push, dtype=torch.float64)
    missing = (each[:-1].unsqueeze(-1) * column + push) * f.emission[1:]
    missing = torch.cat([(c.log_initial > -INF).double()[None] * f.emission[:1], missing])
    mass = (f.filtered.double() * future).sum(-1)
    noise = (missing * future).sum(-1) / (norm * mass)
    noise = torch.where(inside, noise, 0.0).sum(0) + (c.last(each) + 1) * column.shape[1] / c.last(mass)
    return torch.where(inside, clear, True).all(0) & (noise * least <= 1)


@pytest.mark.parametrize("kind", ["dense", "low rank", "sum"])
def test_states_that_matter_nowhere_do_not_spoil_a_captured_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences begin in half of the states e-90 times as often as in the others: what is lost there is not missed."""
    p = ordinary(kind)
    p.log_initial[..., ::2] -= 90.0
    at, exact = leaves(p), leaves(doubled(p))
    c = validate(p)
    run = scaled.forward(c, "tf32", both=True)
    assert not soundness.far_from_underflow(c, run._replace(verdict=None)).any()
    assert unseen(c, run).all()
    for module in (ladder, rungs):
        monkeypatch.setattr(module, "may_look", lambda _: False)
    monkeypatch.setattr(scaled, "may_look", lambda _: False)
    value = log_z(at.potentials, precision="tf32")
    found = torch.autograd.grad(value.sum(), at.tensors)
    monkeypatch.undo()
    expected = log_z(exact.potentials)
    torch.testing.assert_close(value, expected, rtol=0.0, atol=6 * ROUND)
    truth = torch.autograd.grad(expected.sum(), exact.tensors)
    check(found[1], truth[1], 12 * ROUND)


@pytest.mark.parametrize("potentials", ["ordinary", "far apart", "impossible", "lost behind"])
@pytest.mark.parametrize("kind", ["dense", "low rank", "sum"])
def test_the_verdict_is_that_of_the_loops_own_formulas(kind: str, potentials: str) -> None:
    """log Z, whether it is sound, whether the passes agree, and the weights of the posteriors."""
    p = far_apart(kind) if potentials == "far apart" else ordinary(kind)
    if potentials == "impossible":
        p.log_obs[0, 1] = -INF
    if potentials == "lost behind":  # nothing below 1e-38 comes back from here
        p.log_obs[0, 2], p.log_obs[0, 2, 3] = -200.0, 0.0
        p.log_obs[0, 1], p.log_obs[0, 1, 5] = 0.0, -200.0
    c = validate(p)
    f = scaled.forward(c, "tf32", both=True)
    assert f.verdict is not None
    assert f.ahead is not None
    plain = f._replace(verdict=None)
    far = soundness.far_from_underflow(c, plain)
    assert torch.equal(f.verdict.sound, far | unseen(c, plain))
    assert f.verdict.sound.tolist() == far.tolist()  # these chains are either, or neither
    inside = c.inside().mT
    last = scaled._last(inside)
    mass = (f.ahead.future * f.filtered).sum(-1)
    limit = scaled.tolerance(c, "tf32")
    trusted = scaled._accounted(c, plain, mass, f.ahead.norm, last, limit)
    assert torch.equal(f.verdict.trusted, trusted)
    assert trusted.all() == (potentials in ("ordinary", "lost behind"))
    total = (c.last(f.filtered).double() * f.final).sum(-1).log() + c.last(f.log_scale)
    finite = total > -INF
    torch.testing.assert_close(f.log_z[finite], (total + c.log_final.amax(-1))[finite], rtol=0.0, atol=1e-6)
    assert (f.log_z[~finite] == -INF).all()
    sound = inside & trusted
    by_state = torch.where(sound, 1 / mass, 0.0)
    torch.testing.assert_close(f.verdict.by_state, by_state, rtol=1e-5, atol=0.0)
    by_step = torch.where(sound & ~last, by_state / f.ahead.norm, 0.0)
    torch.testing.assert_close(f.verdict.by_step, by_step.roll(1, 0), rtol=1e-5, atol=0.0)
