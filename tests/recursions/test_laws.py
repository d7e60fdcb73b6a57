"""What holds for every recursion, whatever its numbers are; `law_cases.py` has the table of recursions."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold import DomainError
from tests.folded import folded
from tests.recursions.build import INF
from tests.recursions.law_cases import CASES, DOUBTFUL, LENGTHS, Doubtful, LawCase, far, impossible
from tests.regression.recursion_seeds import with_leaves
from tests.training.replays import capturing

every_case = pytest.mark.parametrize("case", CASES, ids=repr)
every_way = pytest.mark.parametrize(
    ("case", "way"), [(case, way) for case in CASES for way in case.recursion.ways], ids=str
)
both_dtypes = folded("dtype", [torch.float32, torch.float64])

# Sums of at most a few hundred terms, in products of another height or width.
EXACT = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}
BITS = {"rtol": 0.0, "atol": 0.0}
GOOD = [0, 2]


def solved(case: Any, p: Any, *, create_graph: bool = False, **way: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """log Z, and the gradients of its sum by the names of the tensors."""
    q, leaves = with_leaves(p)
    total = case.recursion.log_z(q, **way)
    grads = torch.autograd.grad(total.sum(), list(leaves.values()), create_graph=create_graph, materialize_grads=True)
    return total.detach(), {name: x.detach() for name, x in zip(leaves, grads, strict=True)}


def by_sequence(case: LawCase, name: str) -> bool:
    return case.recursion.axes.get(name, "").startswith("b")


@both_dtypes
@every_way
def test_padding_changes_nothing(case: LawCase, way: dict[str, Any], dtype: torch.dtype) -> None:
    p = case.make(dtype, 8)
    total, grads = solved(case, p, **way)
    total_longer, grads_longer = solved(case, case.longer(p, 3), **way)
    # Of the same positions the same sums, to the bit; of a chart's widths in products of another height.
    charts = {torch.float32: 1e-7, torch.float64: 1e-14}[dtype] if case.recursion.name == "tree" else 0.0
    torch.testing.assert_close(total_longer, total, rtol=charts, atol=charts)
    for name, x in grads.items():
        longer = grads_longer[name]
        torch.testing.assert_close(longer[tuple(slice(size) for size in x.shape)], x, **EXACT[dtype])
    beyond = grads_longer[case.recursion.observed]
    for i, length in enumerate(LENGTHS):
        assert (beyond[i, length:] == 0).all()


@every_case
def test_what_stands_beyond_a_length_is_never_read(case: LawCase) -> None:
    p = case.make(torch.float64, 9)
    assert case.observed(p).isnan().any()
    filled = case.with_observed(p, torch.where(case.observed(p).isnan(), 123.0, case.observed(p)))
    (total, grads), (total_filled, grads_filled) = solved(case, p), solved(case, filled)
    assert torch.equal(total, total_filled)
    assert all(torch.equal(x, grads_filled[name]) for name, x in grads.items())


@every_way
def test_the_order_of_sequences_does_not_matter(case: LawCase, way: dict[str, Any]) -> None:
    p, order = case.make(torch.float64, 10), torch.tensor([2, 0, 1])
    total, grads = solved(case, p, **way)
    total_mixed, grads_mixed = solved(case, case.take(p, order), **way)
    torch.testing.assert_close(total_mixed, total[order], **EXACT[torch.float64])
    for name, x in grads.items():
        if by_sequence(case, name):
            torch.testing.assert_close(grads_mixed[name], x[order], **EXACT[torch.float64])


@every_way
def test_a_batch_is_its_sequences(case: LawCase, way: dict[str, Any]) -> None:
    p, observed = case.make(torch.float64, 11), case.recursion.observed
    total, grads = solved(case, p, **way)
    for i, length in enumerate(LENGTHS):
        alone, of_alone = solved(case, case.alone(p, i), **way)
        torch.testing.assert_close(alone[0], total[i], **EXACT[torch.float64])
        torch.testing.assert_close(of_alone[observed][0], grads[observed][i, :length], **EXACT[torch.float64])


@every_way
def test_the_names_of_states_do_not_matter(case: LawCase, way: dict[str, Any]) -> None:
    p, observed = case.make(torch.float64, 12), case.recursion.observed
    total, grads = solved(case, p, **way)
    total_renamed, grads_renamed = solved(case, case.renamed(p, 3), **way)
    torch.testing.assert_close(total_renamed, total, **EXACT[torch.float64])
    torch.testing.assert_close(grads_renamed[observed], grads[observed][..., case.order(p, 3)], **EXACT[torch.float64])


@both_dtypes
@every_case
def test_the_gradient_is_the_posterior(case: LawCase, dtype: torch.dtype) -> None:
    """It sums to 1 at every position of a sequence that is possible, and is 0 everywhere else."""
    p = case.make(dtype, 13)
    p = case.with_observed(p, impossible(case.observed(p), 1))
    total, grads = solved(case, p)
    grad = grads[case.recursion.observed]
    torch.testing.assert_close(case.recursion.posterior(p).detach(), grad, **EXACT[dtype])
    for i, length in enumerate(LENGTHS):
        inside = (torch.arange(max(LENGTHS)) < length) & (total[i] > -INF)
        torch.testing.assert_close(grad[i].sum(-1), inside.to(dtype), **EXACT[dtype])
        assert (grad[i][~inside] == 0).all()
    assert total[1] == -INF


@folded("spoil", [impossible, far])
@both_dtypes
@every_way
def test_a_sequence_does_not_disturb_its_neighbours(
    case: LawCase, way: dict[str, Any], dtype: torch.dtype, spoil: Any
) -> None:
    """Impossible, or so far out of range that it is repeated in wider arithmetic: the others keep their bits."""
    p = case.make(dtype, 14)
    total, grads = solved(case, p, **way)
    found, by_found = solved(case, case.with_observed(p, spoil(case.observed(p), 1)), **way)
    assert torch.equal(found[GOOD], total[GOOD])
    for name, x in by_found.items():
        assert not x.isnan().any()
        assert not by_sequence(case, name) or torch.equal(x[GOOD], grads[name][GOOD])


@folded("create_graph", [False, True])
@every_way
def test_an_impossible_sequence_counts_nothing(case: LawCase, way: dict[str, Any], create_graph: bool) -> None:
    """-inf, with gradients of zero; those of what sequences share are the others' own."""
    p = case.make(torch.float64, 14)
    p = case.with_observed(p, impossible(case.observed(p), 1))
    total, grads = solved(case, p, create_graph=create_graph, **way)
    rest, by_rest = solved(case, case.take(p, torch.tensor(GOOD)), **way)
    assert total[1] == -INF
    torch.testing.assert_close(total[GOOD], rest, **EXACT[torch.float64])
    for name, x in grads.items():
        own = len(x) != len(by_rest[name])  # rules, too, may be those of a sentence
        assert not own or (x[1] == 0).all()
        torch.testing.assert_close(x[GOOD] if own else x, by_rest[name], **EXACT[torch.float64])
    _, nobody = solved(case, case.take(p, torch.tensor([1])), create_graph=create_graph, **way)
    assert all((x == 0).all() for x in nobody.values())


@pytest.mark.parametrize("case", [case for case in CASES if case.recursion.strict], ids=repr)
def test_strict_names_the_impossible_sequence(case: LawCase) -> None:
    p = case.make(torch.float64, 15)
    possible = bool((case.recursion.log_z(p) > -INF).all())
    if possible:
        assert torch.equal(case.recursion.log_z(p, strict=True), case.recursion.log_z(p))
    worse = case.with_observed(p, impossible(impossible(case.observed(p), 1), 2))
    if case.recursion.log_z(p)[0] > -INF:
        with pytest.raises(DomainError, match=r"(sequence|sentence) 1 is impossible(.|\n)*1 more"):
            case.recursion.log_z(worse, strict=True)


@pytest.mark.parametrize(  # stretches are cut where values may be looked at
    ("case", "way"), [(case, way) for case in CASES for way in case.recursion.ways if "stretch" not in way], ids=str
)
def test_a_captured_graph_says_the_same_or_nan(case: LawCase, way: dict[str, Any]) -> None:
    """As a graph would see it: no value is looked at. What is not NaN is right; ordinary sequences are not NaN."""
    p, observed = case.make(torch.float32, 16), case.recursion.observed
    weights = [x for name, x in with_leaves(p)[1].items() if name != observed]
    zeros = any(bool((x == 0).any() | (x == -INF).any()) for x in weights)
    for spoil in (None, impossible, far):
        q = p if spoil is None else case.with_observed(p, spoil(case.observed(p), 1))
        total, grads = solved(case, q, **way)
        with capturing():
            blind, by_blind = solved(case, q, **way)
        known = ~blind.isnan()
        assert zeros or known[GOOD].all() or (total[GOOD] == -INF).any()
        torch.testing.assert_close(blind[known], total[known], rtol=1e-6, atol=1e-6)
        for i, length in enumerate(LENGTHS):
            if not by_blind[observed][i].isnan().any():
                torch.testing.assert_close(
                    by_blind[observed][i, :length], grads[observed][i, :length], **EXACT[torch.float32]
                )


@pytest.mark.parametrize("case", DOUBTFUL, ids=repr)
def test_what_a_captured_graph_cannot_repeat_is_nan(case: Doubtful) -> None:
    """Value and gradient, never a wrong number; the other sequences are as they were."""
    total, grads = solved(case, case.make())
    assert total.isfinite().all()
    with capturing():
        blind, by_blind = solved(case, case.make())
    assert blind.isnan().tolist() == list(case.repeated)
    rest = torch.tensor([not repeated for repeated in case.repeated])
    torch.testing.assert_close(blind[rest], total[rest], **BITS)
    grad = by_blind[case.recursion.observed]
    assert grad.isnan().flatten(1).any(1).tolist() == list(case.repeated)
    torch.testing.assert_close(grad[rest], grads[case.recursion.observed][rest], rtol=1e-6, atol=1e-6)
