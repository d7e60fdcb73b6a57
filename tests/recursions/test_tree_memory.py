"""Nothing of the size of the splits, nor of the rules for each sentence, is ever in memory."""

import pytest
import torch
from torch import Tensor

from rankfold import BinaryCPD, Branch, TreePotentials, posterior
from rankfold.recursions.tree import log_z
from tests.recursions.build import pad_with_nan, seeded
from tests.recursions.memory import LargestTensor
from tests.recursions.trees import Leaves, leaves

B, T, N, P, R = 2, 24, 48, 96, 16
# Both sides of all spans are b (t + 1)^2 r = 20,000 entries; words b t p = 4,608; factors p r = 1,536.
CHART = B * (T + 1) ** 2 * R


def grammar(*, log: bool = False) -> Leaves:
    g = seeded(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g) if log else torch.rand(shape, generator=g) + 0.05

    head, span_left, leaf_left, span_right, leaf_right = draw(N, R), draw(N, R), draw(P, R), draw(N, R), draw(P, R)
    make = BinaryCPD.from_log if log else BinaryCPD
    rules = Branch(
        make(head, span_left, span_right),
        make(head, span_left, leaf_right),
        make(head, leaf_left, span_right),
        make(head, leaf_left, leaf_right),
    )
    lengths = [T, T - 5]
    log_leaf = pad_with_nan(torch.randn(B, T, P, generator=g), lengths)
    return leaves(TreePotentials(log_leaf, rules, torch.zeros(N), lengths=torch.tensor(lengths)))


@pytest.mark.parametrize("log", [False, True])
def test_no_tensor_holds_all_splits_or_all_rules(log: bool) -> None:
    """The splits of the widths in the middle, t/2 spans of t/2 splits, are the most at once; all are t^3 / 6."""
    at = grammar(log=log)
    with LargestTensor() as seen:
        log_z(at.potentials).sum().backward()
    assert all(x.grad is not None for x in at.factors)
    assert seen.operations.get("mm", 0) > 5 * T
    splits = B * R * sum((T - width + 1) * (width - 1) for width in range(2, T + 1))
    assert seen.entries <= CHART < splits // 3
    assert CHART < N * N * N  # nor a table of rules


def test_the_measure_sees_what_log_arithmetic_keeps() -> None:
    at = grammar()
    with LargestTensor() as seen:
        log_z(at.potentials, "log")
    assert seen.entries > CHART


def test_what_waits_for_the_gradient_is_the_chart() -> None:
    """Of inputs no copy is saved, and of the inside pass no more than both sides of all spans and their vectors."""
    at = grammar()
    saved: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = log_z(at.potentials)
    given = {x.data_ptr() for x in (*at.fields.values(), *at.factors)}
    fresh = [x for x in saved if x.data_ptr() not in given]
    assert (
        sum(x.untyped_storage().nbytes() for x in fresh) <= 8
    )  # two numbers, expanded: no brackets weighed, no root for a word
    chart = out.grad_fn.solution.rung.chart  # type: ignore[union-attr]
    fields = vars(chart).values() if hasattr(chart, "__dict__") else chart
    kept = {x.data_ptr(): x for field in fields for x in (field if isinstance(field, list) else [field]) if _is(x)}
    spans, splits = B * T * (T + 1) // 2, B * T * (T + 1) * (T - 1) // 6
    # One grid of sides, the vectors of spans, words; and single numbers: the scales of all cells, four for each span,
    # one for each split.
    assert sum(x.numel() for x in kept.values()) <= CHART + spans * (R + 4) + B * T * (P + 1) + CHART // R + splits + B


def _is(x: object) -> bool:
    return isinstance(x, Tensor)


def test_twice_the_words_are_four_times_the_memory() -> None:
    """Not eight times."""
    at = grammar()
    p = at.potentials._replace(log_leaf=at.potentials.log_leaf[:, : T // 2], lengths=None)
    entries = []
    for q in (p, at.potentials):
        with LargestTensor() as seen:
            log_z(q).sum().backward()
        entries.append(seen.entries)
    assert entries[1] <= 4 * entries[0]


def test_posteriors_of_brackets_cost_no_more() -> None:
    at = grammar()
    with LargestTensor() as seen, torch.no_grad():
        posterior(at.potentials)
    assert seen.entries <= CHART
