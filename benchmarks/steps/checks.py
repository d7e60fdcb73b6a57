"""No time without a right result: a step against the plain reference, against float64, and its graph against itself.

A failing check leaves a row without times.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.steps.cases import Case, shrink
from benchmarks.steps.step import draw_dropout, log_z, reference_gradients
from rankfold.cli.bench import (
    EXACT,
    GRADIENT,
    LOG_Z,
    SEED,
    WIDE_GRADIENT,
    Check,
    Gradients,
    gradient_distance,
    gradient_lengths,
    gradients,
    relative_error,
)
from rankfold.data.batch import Batch
from rankfold.models.config import ModelConfig
from rankfold.numerics.precision import Precision
from rankfold.planning.measure import out_of_memory, release, too_large

DRAWS = 5  # small models that are checked
# log Z of few states and words, whose rounding errors do not average out. On a CPU, 2026-11-15, all families: 5e-8,
# 3e-4 (operands of products rounded to tf32 by hand) and 2e-4 (bf16, which leaves the distributions in float32 there).
SMALL: dict[Precision, float] = {"float32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}
# log Z at the full size against the reference in float32. That operands of products rounded to tf32 leave errors below
# half of these limits is held by `tests/benchmarks/steps/test_dropout.py`.
REFERENCE: dict[Precision, float] = {"float32": 1e-5, "tf32": 1e-4, "bf16": 2e-3}
# Each parameter by itself: most of a gradient's length is that of the emissions. A network of one input, as that of the
# first state, has few ReLUs, and one that rounds to the other side of 0 is a good part of its gradient.
PARAMETER: dict[Precision, float] = {"float32": 1e-2, "tf32": 5e-1, "bf16": 5e-1}
# At the full size, what is shorter than this share of the whole gradient is measured against it: low-rank factors whose
# rows begin nearly alike have gradients that are small differences, of which the messages of bf16 leave little.
LEAST: dict[Precision, float] = {"float32": 1e-4, "tf32": 1e-4, "bf16": 1e-3}


def small_checks(case: Case, precision: Precision, device: torch.device) -> list[Check]:
    """log Z and every parameter's gradient at a small size of the same family, against the reference in float64."""
    tiny = shrink(case)
    batch = tiny.draw(device)
    lengths = torch.tensor([tiny.length, 2 if tiny.trees else 1, 3, 5][: tiny.batch], device=device)
    batch = batch._replace(lengths=lengths)
    against = f"against {'the reference' if case.has_reference else 'our code'} in float64"
    draws = [_errors(tiny, tiny.build(device, seed), batch, precision) for seed in range(DRAWS)]
    found = over_draws(draws, precision, f"at a small size, {against}")
    if not case.has_reference:
        why = f"the reference is not written for {case.config.family}"
        found[:2] = [Check("log Z and gradients in float64 at a small size", None, EXACT, why)]
    return found


def dropout_checks(case: Case, precision: Precision, device: torch.device) -> list[Check]:
    """The same of a step with dropout, against the reference that leaves out the same; none where nothing is."""
    if not case.dropout or not isinstance(case.config, ModelConfig):
        return []
    tiny = shrink(case, dropout=True)
    batch = tiny.draw(device)
    draws = [_errors(tiny, tiny.build(device, seed), batch, precision, SEED + seed) for seed in range(DRAWS)]
    return over_draws(draws, precision, "with dropout at a small size, against the reference in float64")


def _errors(case: Case, model: Any, batch: Batch, precision: Precision, seed: int | None = None) -> tuple[float, ...]:
    """Of log Z and of gradients, in float64 and in the precision asked for; with the dropout of a seed, or without."""
    exact = copy.deepcopy(model).double()
    ours = gradients(exact, batch, "float32", _seeded(batch, seed))
    lower = gradients(model, batch, precision, _seeded(batch, seed))
    truth = same = ours
    if case.has_reference:
        truth = same = reference_gradients(
            exact, batch, gone=None if seed is None else draw_dropout(exact, seed, "float32")
        )
    if seed is not None:  # which logits are left out is a matter of their precision, too
        same = reference_gradients(exact, batch, gone=draw_dropout(model, seed, precision))
    return (
        relative_error(ours.log_z, truth.log_z),
        gradient_error(ours, truth),
        relative_error(lower.log_z, same.log_z),
        gradient_distance(lower, same),
        parameter_distance(lower, same),
    )


def over_draws(draws: list[tuple[float, ...]], precision: Precision, where: str) -> list[Check]:
    """The checks of several small models: their largest errors; below float32, and of single parameters, the middle
    ones.

    There one ReLU whose input is rounded to the other side of 0 changes the gradient of a tiny model by more than
    all other rounding: in few draws, where a wrong step is wrong in most.
    """
    exact_log_z, exact, log_z, gradient, parameter = zip(*draws, strict=True)
    usual = _largest if precision == "float32" else _middle
    return [
        Check(f"log Z in float64 {where}", _largest(exact_log_z), EXACT),
        Check(f"gradients in float64 {where}", _largest(exact), EXACT),
        Check(f"log Z in {precision} {where}", usual(log_z), SMALL[precision]),
        Check(f"gradients in {precision} {where}", usual(gradient), GRADIENT[precision]),
        Check(f"the worst parameter's gradient in {precision} {where}", _middle(parameter), PARAMETER[precision]),
    ]


def _largest(errors: Sequence[float]) -> float:
    return max(errors, key=_nan_last)


def _middle(errors: Sequence[float]) -> float:
    """The median; NaN where one is."""
    return math.nan if any(map(math.isnan, errors)) else statistics.median(errors)


def _seeded(batch: Batch, seed: int | None) -> torch.Generator | None:
    """What a step draws its dropout from, if it has any."""
    return None if seed is None else torch.Generator(device=batch.lengths.device).manual_seed(seed)


def full_check(model: Any, batch: Batch, precision: Precision, peak_bytes: int) -> Check:
    """log Z at the full size, without dropout, against the same code in float64; left out where that does not fit.

    The worse of two: that of a step, whose passes run together, and that of an evaluation, which has no gradient.
    """
    device = batch.lengths.device
    what = f"log Z in {precision} at this size, against float64"
    why = too_large(2 * peak_bytes, device)
    if why:
        return Check(what, None, LOG_Z[precision], why)
    followed = log_z(model, batch, precision).detach()
    with torch.no_grad():
        found = log_z(model, batch, precision)
        try:
            truth = log_z(copy.deepcopy(model).double(), batch, "float32")
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            truth = None
    release(device)
    if truth is None:
        return Check(what, None, LOG_Z[precision], "float64 does not fit into memory")
    return Check(what, max(relative_error(found, truth), relative_error(followed, truth)), LOG_Z[precision])


def reference_checks(model: Any, batch: Batch, precision: Precision, reference: Gradients) -> list[Check]:
    """log Z and gradients at the full size, without dropout, against the plain code, which shares no sum with ours."""
    return _compare(gradients(model, batch, precision), reference, precision, "")


def reference_dropout_checks(model: Any, batch: Batch, precision: Precision, asked: float) -> list[Check]:
    """The same of a step with dropout, against the plain code that leaves out the same: the share that is asked for."""
    gone = draw_dropout(model, SEED, precision)
    found = gradients(model, batch, precision, _seeded(batch, SEED))
    try:
        truth = reference_gradients(model, batch, gone=gone)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        truth = None
    release(batch.lengths.device)
    if truth is None:
        what = f"log Z and gradients with dropout in {precision} at this size"
        why = "the reference does not fit into memory with its masks"
        return [share_check(gone, asked), Check(what, None, REFERENCE[precision], why)]
    return [share_check(gone, asked), *_compare(found, truth, precision, "with dropout ")]


def without_reference(precision: Precision, why: str) -> Check:
    """What stands in place of these where the plain code has not run."""
    return Check("log Z and gradients at this size, against the reference", None, REFERENCE[precision], f"it {why}")


def share_check(gone: Mapping[str, Tensor], asked: float) -> Check:
    """How much a step leaves out against what it is asked to, to five standard deviations of drawing each by itself."""
    masks = [mask for name, mask in gone.items() if name.startswith("gone.")]
    num = sum(mask.numel() for mask in masks)
    found = sum(int(mask.sum()) for mask in masks) / num
    return Check("share left out by dropout", abs(found - asked), 5 * math.sqrt(asked * (1 - asked) / num))


def _compare(found: Gradients, reference: Gradients, precision: Precision, how: str) -> list[Check]:
    where = f"{how}in {precision} at this size, against the reference"
    return [
        Check(f"log Z {where}", relative_error(found.log_z, reference.log_z), REFERENCE[precision]),
        Check(f"gradients {where}", gradient_distance(found, reference), WIDE_GRADIENT[precision]),
        Check(
            f"the worst parameter's gradient {where}",
            parameter_distance(found, reference, LEAST[precision]),
            PARAMETER[precision],
        ),
    ]


def order_check(found: Tensor, other: Tensor, orders: str, precision: Precision) -> Check:  # "b", "b"
    """log Z at the full size, of the same model with other variables summed out first."""
    return Check(f"log Z in {precision} at this size, {orders}", relative_error(found, other), LOG_Z[precision])


def gradient_error(found: Gradients, truth: Gradients) -> float:
    """The largest difference in any parameter's gradient, relative to that gradient's largest entry.

    A gradient that nearly vanishes, a hundredth of the largest one, is measured against that hundredth.
    """
    scale = max(float(x.abs().max()) for x in truth.parameters)
    errors = []
    for one, other in zip(found.parameters, truth.parameters, strict=True):
        size = max(float(other.abs().max()), 1e-2 * scale)
        errors.append(float((one.double() - other.double()).abs().max()) / size)
    return _largest(errors)


def parameter_distance(found: Gradients, truth: Gradients, least: float = 0.0) -> float:
    """The same of each parameter by itself: the largest; what is shorter than `least` of all is measured by that.

    A gradient of 0 that is found to be 0 is right, and found to be anything else infinitely wrong.
    """
    apart, lengths = gradient_lengths(found, truth)
    shortest = least * math.hypot(*lengths)
    sizes = [max(length, shortest) for length in lengths]
    return _largest([one / size if size else one and one * math.inf for one, size in zip(apart, sizes, strict=True)])


def _nan_last(error: float) -> float:
    return math.inf if math.isnan(error) else error
