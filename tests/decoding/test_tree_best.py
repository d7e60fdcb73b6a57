"""Best trees and trees by chance, against every tree there is."""

import math
from collections import Counter

import pytest
import torch

from rankfold import BinaryCPD, DomainError, UnsupportedError, rank_space, sample, viterbi
from rankfold.decoding.parsed_tree import ParsedTree
from rankfold.kernels import log_products
from rankfold.recursions.tree import best as charts
from rankfold.recursions.tree import descend
from tests.oracles import tree as oracle
from tests.recursions.test_tree_ranges import apart
from tests.recursions.trees import EVERY, INF, KINDS, doubled_range, potentials, sentences

CPDS = [name for name in EVERY if "cpd" in name or "shared" in name]


def parts(tree: ParsedTree) -> tuple[object, ...]:
    """A tree in a form that can be compared and counted."""
    return tuple(tree.spans), tuple(tree.labels or ()), tuple(tree.tags or ())


def parts_of(tree) -> tuple[object, ...]:  # type: ignore[no-untyped-def]
    nodes = sorted(oracle.labelled(tree), key=lambda ends: (ends[0], -ends[1]))
    return tuple((i, j) for i, j, _ in nodes), tuple(x for *_, x in nodes), tuple(oracle.labels(tree))


def best(weights: dict) -> tuple[tuple[object, ...], float]:  # type: ignore[type-arg]
    tree = max(weights, key=lambda tree: weights[tree])
    return parts_of(tree), math.log(weights[tree])


@pytest.mark.parametrize("name", EVERY)
def test_the_most_probable_tree(name: str) -> None:
    p = potentials(name, (4, 1, 3), p=2)
    for tree, sentence in zip(viterbi(p).trees, sentences(p), strict=True):
        wanted, score = best(oracle.weights(*sentence))
        assert parts(tree) == wanted
        assert tree.score == pytest.approx(score, abs=1e-10)


@pytest.mark.parametrize("name", ["dense", "cpd", "cpd identity", "matricised", "shared batched", "cpd log"])
def test_by_blocks_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = potentials(name, (5, 2, 4), n=3, p=4, seed=1)
    wanted = viterbi(p).trees
    for module in (log_products, charts, descend):
        monkeypatch.setattr(module, "BLOCK", 24)  # two left children at once, two spans, single nodes
    assert viterbi(p).trees == wanted


@pytest.mark.parametrize("name", CPDS)
def test_the_most_probable_tree_with_ranks(name: str) -> None:
    p = potentials(name, (4, 1, 3), p=2, seed=2)
    given = sentences(p)
    for b, (tree, (leaf, _, *rest)) in enumerate(zip(viterbi(p, of="joint").trees, given, strict=True)):
        rules = {kind: _largest_rank(rule, b) for kind, rule in zip(KINDS, p.rules, strict=True)}
        wanted, score = best(oracle.weights(leaf, rules, *rest))
        assert parts(tree) == wanted
        assert tree.score == pytest.approx(score, abs=1e-10)


def _largest_rank(rule: BinaryCPD, b: int) -> list:  # type: ignore[type-arg]
    """max_r head[a, r] left[n, r] right[m, r] in place of the sum."""
    of = [None if x is None else x.weights() for x in rule.parts]
    head, left, right = (x if x is None or x.ndim == 2 else x[b] for x in of)
    assert left is not None
    assert right is not None
    if head is None:
        head = torch.eye(left.shape[-1], dtype=torch.float64)
    return (head[:, None, None] * left[None, :, None] * right[None, None]).amax(-1).tolist()


def close_to(found: Counter, wanted: dict, num: int) -> None:  # type: ignore[type-arg]
    """Every tree within five standard deviations of its share, and five more for those too rare for a normal law."""
    assert set(found) <= set(wanted)
    for tree, share in wanted.items():
        assert abs(found[tree] - num * share) <= 5 * math.sqrt(num * share * (1 - share)) + 5


@pytest.mark.parametrize("name", EVERY)
def test_samples_have_their_posterior(name: str) -> None:
    num = 2000
    p = potentials(name, (3, 1, 4), p=2, seed=3)
    drawn = sample(p, num_samples=num, generator=torch.Generator().manual_seed(4)).trees
    assert len(drawn) == num
    for b, sentence in enumerate(sentences(p)):
        wanted = oracle.expected(oracle.weights(*sentence), lambda tree: [parts_of(tree)])
        close_to(Counter(parts(row[b]) for row in drawn), wanted, num)


@pytest.mark.parametrize("gap", [100.0, 3000.0])
@pytest.mark.parametrize("name", ["dense", "shared"])
def test_what_no_single_float_holds(name: str, gap: float) -> None:
    """Words whose usable symbols weigh e^-gap of what they seem to."""
    p, near = apart(gap, torch.float64, name), apart(0.0, torch.float64, name)
    found, wanted = viterbi(p).trees, viterbi(near).trees
    assert [parts(tree) for tree in found] == [parts(tree) for tree in wanted]
    assert found[1].score == pytest.approx(wanted[1].score - 4 * gap, rel=1e-12)  # type: ignore[operator]
    num = 1000
    drawn = sample(p, num_samples=num, generator=torch.Generator().manual_seed(5)).trees
    share = oracle.expected(oracle.weights(*sentences(near)[1]), lambda tree: [parts_of(tree)])
    close_to(Counter(parts(row[1]) for row in drawn), share, num)


@pytest.mark.parametrize("far", [0.0, 2000.0])
def test_samples_in_logarithms_of_rules_of_one_batch(far: float) -> None:
    """Words beside a symbol that no tree can use: the same trees from the same random numbers."""
    p = potentials("shared batched", (4, 3, 2), seed=6)
    wide = doubled_range(p, far)
    num = 500
    drawn = sample(wide, num_samples=num, generator=torch.Generator().manual_seed(7)).trees
    share = oracle.expected(oracle.weights(*sentences(p)[0]), lambda tree: [parts_of(tree)])
    close_to(Counter(parts(row[0]) for row in drawn), share, num)


def test_the_same_numbers_the_same_trees() -> None:
    p = potentials("mixed", (4, 3), seed=8)
    one, same, other = (
        sample(p, num_samples=20, generator=torch.Generator().manual_seed(seed)).trees for seed in (9, 9, 10)
    )
    assert one == same != other


def test_brackets_of_rank_space_are_drawn_alike() -> None:
    p = potentials("shared", (3,), n=4, p=2, seed=11)
    rules, log_root = rank_space(p.rules, p.log_root)
    q = p._replace(rules=rules, log_root=log_root)
    num = 2000
    drawn = sample(q, num_samples=num, generator=torch.Generator().manual_seed(12)).trees
    brackets = oracle.expected(oracle.weights(*sentences(p)[0]), lambda tree: [tuple(sorted(oracle.brackets(tree)))])
    close_to(Counter(tuple(sorted(row[0].spans)) for row in drawn), brackets, num)


@pytest.mark.parametrize("decode", [viterbi, lambda p: viterbi(p, of="joint"), sample])
def test_what_cannot_be_has_no_tree(decode) -> None:  # type: ignore[no-untyped-def]
    p = potentials("shared", (4, 3, 1, 2), seed=13)._replace(log_root_leaf=None)
    p.log_leaf[1, 0] = -INF
    found = decode(p).trees
    assert [len(tree.spans) for tree in found] == [3, 0, 0, 1]
    assert found[1] == found[2] == ParsedTree([])


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)asks for the ranks of span_span, a BinaryMatri.*vite"):
        viterbi(potentials("mixed"), of="joint")
    with pytest.raises(DomainError, match="num_samples is 0"):
        sample(potentials("dense"), num_samples=0)
