"""Steps with dropout against the reference that leaves out the same, at a small size and at the full one."""

import dataclasses
import math
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.steps import checks
from benchmarks.steps.baselines import Ceilings
from benchmarks.steps.cases import Case, shrink
from benchmarks.steps.checks import (
    dropout_checks,
    gradient_error,
    over_draws,
    reference_checks,
    reference_dropout_checks,
    relative_error,
    small_checks,
)
from benchmarks.steps.row import Settings, measure_row
from benchmarks.steps.step import draw_dropout, reference_gradients
from rankfold.cli.bench import SEED, Gradients, gradients
from rankfold.models import GrammarConfig, ModelConfig
from rankfold.models.config import GrammarFamily
from rankfold.models.sequence import HMM
from rankfold.params.dynamics import rank_factors

CPU = torch.device("cpu")
CEILINGS = Ceilings(1e10, {"float32": 1e10, "tf32": 1e10, "bf16": 1e10})
SIZES: dict[str, Any] = {"num_states": 32, "rank": 12, "band": 2, "num_clusters": 4, "dim": 8}
CASES = [
    Case(ModelConfig(family=family, **SIZES, **{dropout: 0.4}), batch=3, length=6, num_words=40)
    for family, dropout in (
        ("hmm", "state_dropout"),
        ("lhmm", "state_dropout"),
        ("banded", "state_dropout"),
        ("block", "state_dropout"),
        ("rank", "logit_dropout"),
    )
]
GRAMMARS = [Case(GrammarConfig(family=family)) for family in get_args(GrammarFamily)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config.family)
def test_the_reference_leaves_out_what_a_step_does(case: Case) -> None:
    model, batch = case.build(CPU).double(), case.draw(CPU)
    ours = gradients(model, batch, generator=torch.Generator().manual_seed(SEED))
    gone = draw_dropout(model, SEED, "float32")
    plain = reference_gradients(model, batch, gone=gone)
    assert relative_error(ours.log_z, plain.log_z) < 1e-12
    assert gradient_error(ours, plain) < 1e-10
    whole, other = reference_gradients(model, batch), draw_dropout(model, SEED + 1, "float32")
    assert relative_error(ours.log_z, whole.log_z) > 1e-6
    assert relative_error(ours.log_z, reference_gradients(model, batch, gone=other).log_z) > 1e-6


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config.family)
def test_honest_dropout_passes(case: Case, precision: Any) -> None:
    found = dropout_checks(case, precision, CPU)
    assert len(found) == 5
    assert [check.text() for check in found if not check.passed] == []
    found = reference_dropout_checks(case.build(CPU), case.draw(CPU), precision, case.dropout)
    assert [check.text() for check in found if not check.passed] == []
    assert len(found) == 4


def test_without_dropout_there_is_nothing_to_check() -> None:
    assert dropout_checks(shrink(CASES[0]), "float32", CPU) == []


def test_parts_that_drop_different_states_get_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = HMM._parts

    def mixed(self: Any, generator: Any, *, masked: bool) -> Any:
        parts = honest(self, generator, masked=masked)
        if generator is None:
            return parts
        return parts._replace(observation=self.emission(torch.arange(len(parts.log_initial))))

    monkeypatch.setattr(HMM, "_parts", mixed)
    record = measure_row(CASES[1], "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["step_ms"] is None
    assert record["ratio"] is None
    failed = [check["what"] for check in record["checks"] if not check["passed"]]
    assert failed
    assert all("with dropout at a small size" in what for what in failed)


@pytest.mark.parametrize("how", ["", "with dropout "])
def test_gradients_that_are_wrong_at_the_full_size_alone_get_no_time(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, tiny = checks.gradients, shrink(CASES[3]).config.num_states  # type: ignore[union-attr]

    def biased(model: Any, batch: Any, precision: Any = "float32", generator: Any = None) -> Gradients:
        found = honest(model, batch, precision, generator)
        if model.config.num_states == tiny or bool(how) != (generator is not None):
            return found
        return found._replace(parameters=tuple(x * 1.005 for x in found.parameters))

    monkeypatch.setattr(checks, "gradients", biased)
    record = measure_row(CASES[3], "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["step_ms"] is None
    assert [check["what"] for check in record["checks"] if not check["passed"]] == [
        f"gradients {how}in float32 at this size, against the reference"
    ]


def test_honest_gradients_at_the_full_size_pass() -> None:
    model, batch = CASES[2].build(CPU), CASES[2].draw(CPU)
    found = reference_checks(model, batch, "float32", reference_gradients(model, batch))
    assert [check.passed for check in found] == [True, True, True]


@pytest.mark.parametrize("family", ["hmm", "lhmm", "banded"])
def test_a_transition_without_gradient_at_the_full_size_alone_gets_no_time(
    family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = checks.gradients
    config = ModelConfig(family=family, num_states=256, rank=32, dim=64)

    def forgetful(model: Any, *rest: Any, **choices: Any) -> Gradients:
        found = honest(model, *rest, **choices)
        if model.config.num_states != 256:
            return found
        names = [name for name, _ in model.named_parameters()]
        kept = (0 * x if "transition" in n else x for n, x in zip(names, found.parameters, strict=True))
        return found._replace(parameters=tuple(kept))

    monkeypatch.setattr(checks, "gradients", forgetful)
    record = measure_row(Case(config, num_words=2000), "bf16", Settings(CPU, CEILINGS, repeats=1))
    failed = [check["what"] for check in record["checks"] if not check["passed"]]
    assert failed[-1] == "the worst parameter's gradient in bf16 at this size, against the reference"


def test_a_step_that_drops_nothing_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rank_factors.linear_softmax
    monkeypatch.setattr(rank_factors, "linear_softmax", lambda *given, **_: honest(*given[:2]))
    config = ModelConfig(family="rank", num_states=128, rank=32, dim=16, logit_dropout=0.4)
    record = measure_row(Case(config, num_words=200), "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["step_ms"] is None
    failed = [check for check in record["checks"] if not check["passed"]]
    assert [check["what"] for check in failed] == ["share left out by dropout"]
    assert failed[0]["error"] == pytest.approx(0.4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config.family)
def test_sequences_of_one_word_are_measured(case: Case) -> None:
    record = measure_row(case._replace(length=1), "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["passed"] is True
    assert record["step_ms"] is not None


def test_what_is_not_checked_for_want_of_the_reference_is_said() -> None:
    record = measure_row(CASES[1], "float32", Settings(CPU, CEILINGS, repeats=1, reference=False))
    left_out = [check["text"] for check in record["checks"] if check["error"] is None]
    assert left_out == ["log Z and gradients at this size, against the reference: left out, it was not asked for"]


PRODUCTS = {f"aten::{name}" for name in ("mm", "bmm", "addmm", "baddbmm", "_addmm_activation")}


class Rounded(TorchDispatchMode):
    """Products of float32 operands rounded to the ten fraction bits of TF32."""

    seen = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.name() in PRODUCTS and args[0].dtype == torch.float32:
            self.seen = True
            args = tuple(((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for x in args)
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.config.family)
def test_limits_leave_room_for_tf32_and_bf16(case: Case) -> None:
    wide = dataclasses.replace(case.config, num_states=512, rank=64, dim=64)
    large = case._replace(config=wide, batch=4, length=12, num_words=500)
    model, batch = large.build(CPU), large.draw(CPU)
    reference = reference_gradients(model, batch)
    with Rounded() as rounded:
        found = reference_checks(model, batch, "tf32", reference)
    assert rounded.seen
    found += reference_checks(model, batch, "bf16", reference)
    assert len(found) == 6
    assert all(check.error is not None and 0 < check.error < check.allowed / 2 for check in found), found


@pytest.mark.parametrize("case", [*CASES, *GRAMMARS], ids=lambda case: case.config.family)
def test_small_limits_leave_room_for_tf32(case: Case) -> None:
    with Rounded() as rounded:
        found = [*small_checks(case, "tf32", CPU), *dropout_checks(case, "tf32", CPU)]
    assert rounded.seen
    low = [check for check in found if "tf32" in check.what]
    assert len(low) == 3 * (2 - case.trees)
    assert all(check.error is not None and 1e-5 < check.error < check.allowed / 1.5 for check in low), low
    assert all(check.passed for check in found)


def test_one_relu_that_rounds_to_the_other_side_is_no_failure_and_a_wrong_step_is() -> None:
    right, flipped = (0.0, 0.0, 1e-4, 2e-3, 0.1), (0.0, 0.0, 1e-4, 0.2, 0.9)
    nothing, missing = (0.0, 0.0, math.nan, math.nan, math.nan), (0.0, 0.0, 1e-4, 2e-3, 1.0)

    def passed(precision: Any, *draws: tuple[float, ...]) -> bool:
        return all(check.passed for check in over_draws(list(draws), precision, "here"))

    assert passed("tf32", right, right, flipped, flipped, right)
    assert not passed("tf32", right, right, flipped, flipped, flipped)
    assert not passed("tf32", right, right, right, right, nothing)
    assert not passed("tf32", right, missing, missing, missing, right)
    exact = (0.0, 0.0, 0.0, 0.0, 0.0)
    assert passed("float32", *[exact] * 4, (0.0, 0.0, 0.0, 0.0, 0.1))
    assert not passed("float32", *[exact] * 4, (0.0, 0.0, 0.0, 0.01, 0.0))
    assert not passed("tf32", right, right, right, right, (1e-9, 0.0, 0.0, 0.0, 0.0))


def test_where_log_z_is_nearly_0_errors_are_of_probabilities() -> None:
    assert relative_error(torch.tensor([1e-9]), torch.tensor([0.0])) == pytest.approx(1e-9)
    assert relative_error(torch.tensor([-101.0]), torch.tensor([-100.0])) == pytest.approx(1e-2)
