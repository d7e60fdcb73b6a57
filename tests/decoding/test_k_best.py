"""The k best structures against the enumeration of all of them: order, values, ties, and fewer than k."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold import ChainPotentials, Dense, DomainError, LowRank, SegmentPotentials, TreePotentials, k_best, viterbi
from rankfold.decoding import k_best as module
from rankfold.kernels import log_products
from rankfold.operators import row_operator
from rankfold.recursions import segments as semi_markov
from tests.decoding.test_questions import LENGTHS, STRUCTURES, Structure, of_segments, of_tree
from tests.operators.cases import CASES, Case
from tests.oracles import chain as chain_oracle
from tests.oracles import tree as tree_oracle
from tests.recursions import block_chains, build, segment_batches, trees
from tests.recursions.build import INF, as_lists, pad_with_nan, potentials, seeded

seeds = st.integers(0, 10**6)
ragged = st.lists(st.integers(1, 4), min_size=3, max_size=3)
NEAR = 1e-10  # sums of at most a dozen float64 logarithms


def structures(found: Any, rank: int, b: int, length: int) -> Any:
    """A structure that was found, as something to compare: states and beginnings, or brackets, labels and tags."""
    if hasattr(found, "trees"):
        tree = found.trees[rank][b]
        return tuple(tree.spans), tuple(tree.labels), tuple(tree.tags)
    path = tuple(found.path[rank, b, :length].tolist())
    return (path, tuple(found.begins[rank, b, :length].tolist())) if hasattr(found, "begins") else path


def visible(key: Any, p: Any, b: int) -> Any:
    """The same of a structure of the enumeration."""
    if isinstance(p, TreePotentials):
        inner = sorted(tree_oracle.labelled(key), key=lambda node: (node[0], -node[1]))
        return tuple(node[:2] for node in inner), tuple(node[2] for node in inner), tuple(tree_oracle.labels(key))
    if isinstance(p, SegmentPotentials):
        path = tuple(state for start, end, state, _ in key for _ in range(start, end))
        starts = {start for start, *_ in key}
        return path, tuple(t in starts for t in range(len(path)))
    if isinstance(p, ChainPotentials):
        return key
    return tuple(int(p.block[b, t]) * p.log_obs.shape[-1] + index for t, index in enumerate(key))


def truth(weights: dict[Any, float], p: Any, b: int) -> dict[Any, float]:
    """The log-weight of every possible structure; durations that the end cuts are one."""
    found: dict[Any, list[float]] = {}
    for key, weight in weights.items():
        if weight > -math.inf:
            found.setdefault(visible(key, p, b), []).append(weight)
    return {key: chain_oracle.log_sum_exp(parts) for key, parts in found.items()}


def check(p: Any, b: int, length: int, weights: dict[Any, float], k: int, found: Any) -> None:
    """Values in order, each that of its structure, all distinct, and nothing where there are fewer."""
    exact = truth(weights, p, b)
    expected = sorted(exact.values(), reverse=True)[:k]
    values = found.log_prob[:, b].tolist()
    assert values[: len(expected)] == pytest.approx(expected, rel=1e-12, abs=NEAR)
    assert values[len(expected) :] == [-math.inf] * (k - len(expected))
    keys = [structures(found, rank, b, length) for rank in range(len(expected))]
    assert len(set(keys)) == len(keys)
    for key, value in zip(keys, values, strict=False):
        assert exact[key] == pytest.approx(value, rel=1e-12, abs=NEAR)
    for rank in range(k):
        if hasattr(found, "trees"):
            assert rank < len(expected) or found.trees[rank][b] == ([], None, None, None)
        else:
            assert (found.path[rank, b, length if rank < len(expected) else 0 :] == -1).all()


@pytest.mark.parametrize("k", [1, 4, 150])
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
def test_every_structure(structure: Structure, k: int) -> None:
    p = structure.build()
    found = k_best(p, k)
    assert found.log_prob.dtype == torch.float64
    assert found.log_prob.shape == (k, len(LENGTHS))
    for b, length in enumerate(LENGTHS):
        check(p, b, length, structure.weights(p, b), k, found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=3)
@given(seed=seeds, z=st.integers(1, 4), lengths=ragged, k=st.sampled_from([1, 3, 7]))
def test_chains_of_every_operator(case: Case, seed: int, z: int, lengths: list[int], k: int) -> None:
    p = potentials(case, z, lengths, seed=seed, initial="b z", final="z")
    found = k_best(p, k)
    for b, length in enumerate(lengths):
        check(p, b, length, chain_oracle.paths(**as_lists(p, b)), k, found)
    torch.testing.assert_close(found.log_prob[0], viterbi(p).log_prob, rtol=1e-12, atol=NEAR)


@settings(max_examples=12)
@given(seed=seeds, lengths=st.lists(st.integers(1, 5), min_size=2, max_size=2), censored=st.booleans())
def test_segments(seed: int, lengths: list[int], censored: bool) -> None:
    p = segment_batches.batch(2, 3, lengths, seed=seed, zeros=True, censored=censored, final=True)
    found = k_best(p, 9)
    for b, length in enumerate(lengths):
        check(p, b, length, of_segments(p, b), 9, found)


@settings(max_examples=6)
@given(seed=seeds, name=st.sampled_from(["dense", "shared", "matricised", "shared batched", "mixed"]))
def test_trees(seed: int, name: str) -> None:
    p = trees.potentials(name, (4, 2, 3), n=2, p=2, seed=seed)
    log_leaf = p.log_leaf.clone()
    log_leaf[:, :2, 0] = -INF
    p = p._replace(log_leaf=log_leaf)
    found = k_best(p, 12)
    for b, length in enumerate((4, 2, 3)):
        check(p, b, length, of_tree(p, b), 12, found)
    assert found.trees[0][0].score == float(found.log_prob[0, 0])


def test_ties_of_paths_have_the_order_of_the_enumeration() -> None:
    """Whole numbers: every sum is exact, so ties are ties. The smallest last state first, then the one before it."""
    log_obs = torch.randint(-1, 1, (5, 4, 3), generator=seeded(3)).double()
    log_obs[0] = 0.0
    log_obs[4, 2, 1] = -INF
    lengths = [4, 4, 3, 1, 4]
    weights = [torch.ones(3, 3, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)]
    for transition in (Dense(weights[0]), LowRank(weights[1], weights[1])):
        p = ChainPotentials(
            torch.zeros(3).double(), transition, pad_with_nan(log_obs, lengths), None, torch.tensor(lengths)
        )
        found = k_best(p, 30)
        for b, length in enumerate(lengths):
            every = {key: w for key, w in chain_oracle.paths(**as_lists(p, b)).items() if w > -INF}
            order = sorted(every, key=lambda path: (-every[path], path[::-1]))[:30]
            assert [structures(found, rank, b, length) for rank in range(len(order))] == order
            assert found.log_prob[: len(order), b].tolist() == [every[path] for path in order]
        assert torch.equal(found.path[0], viterbi(p).path)


def test_ties_of_segments_and_trees() -> None:
    """Segments: state and duration of the last one first, then back. Trees: all distinct, the first is Viterbi's."""
    zeros = torch.zeros(1, 4, 2, dtype=torch.float64)
    p = SegmentPotentials(zeros[0, 0], Dense(torch.ones(2, 2).double()), zeros[0, :2], zeros, None, torch.tensor([4]))
    found = k_best(p, 100)
    every = sorted(
        of_segments(p, 0), key=lambda key: [x for _, _, state, duration in key[::-1] for x in (state, duration)]
    )
    assert [structures(found, rank, 0, 4) for rank in range(len(every))] == [visible(key, p, 0) for key in every]
    assert found.segments[0] == [[(t, t + 1, 0) for t in range(4)]]
    assert (found.log_prob[: len(every)] == 0).all()
    forest = trees.potentials("dense", (4,), n=2, p=2)
    flat = forest._replace(
        log_leaf=torch.zeros_like(forest.log_leaf),
        rules=forest.rules.with_factors(*(torch.ones_like(x) for x in forest.rules.factors())),
        **{name: torch.zeros_like(getattr(forest, name)) for name in ("log_root", "log_root_leaf", "log_span")},
    )
    best = k_best(flat, 1000)
    keys = [structures(best, rank, 0, 4) for rank in range(1000) if best.trees[rank][0].spans]
    assert len(keys) == len(set(keys)) == len(of_tree(flat, 0))
    assert best.trees[0] == viterbi(flat).trees


def test_segments_carried_in_count_with_their_best_age() -> None:
    """The second half of a sequence after its first: the best completions of every open segment."""
    p = segment_batches.batch(2, 3, [4], seed=5)
    head = p._replace(log_obs=p.log_obs[:, :2], lengths=None, censored=True)
    rest = p._replace(log_initial=semi_markov.carry(head), log_obs=p.log_obs[:, 2:], lengths=None)
    found = k_best(rest, 20)
    best: dict[Any, float] = {}
    for carried_state, age, durations in itertools.product(range(2), range(1, 4), _splits(2, 3)):
        first, *others = durations  # frames of the carried segment, which may end at the border
        if age + first > 3:
            continue
        for states in itertools.product(range(2), repeat=len(others)):
            total = float(rest.log_initial[0, age - 1, carried_state])
            total += float(rest.log_duration[carried_state, age + first - 1])
            total += sum(float(rest.log_obs[0, t, carried_state]) for t in range(first))
            path, begins = [carried_state] * first, [False] * first
            before = carried_state
            for state, length in zip(states, others, strict=True):
                total += math.log(float(rest.transition.to_dense()[before, state]))
                total += float(rest.log_duration[state, length - 1])
                total += sum(float(rest.log_obs[0, len(path) + t, state]) for t in range(length))
                path, begins = path + [state] * length, begins + [True] + [False] * (length - 1)
                before = state
            key = tuple(path), tuple(begins)
            best[key] = max(best.get(key, -math.inf), total)
    order = sorted(best.values(), reverse=True)
    assert found.log_prob[: len(order), 0].tolist() == pytest.approx(order, abs=NEAR)
    assert (found.log_prob[len(order) :] == -INF).all()
    for rank in range(len(order)):
        assert best[structures(found, rank, 0, 2)] == pytest.approx(order[rank], abs=NEAR)


def _splits(length: int, longest: int) -> list[tuple[int, ...]]:
    """Frames of the first segment (0: it ended before), then those of the others."""
    return [
        (first, *others)
        for first in range(length + 1)
        for count in range(length - first + 1)
        for others in itertools.product(range(1, longest + 1), repeat=count)
        if first + sum(others) == length
    ]


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p = potentials(build.BY_NAME["low_rank_2"], 4, [4, 1, 3], seed=70, final="z")
    forest = trees.potentials("mixed", (4, 2), seed=71)
    whole, parsed = k_best(p, 6), k_best(forest, 6)
    for size in (1, 5, 8):
        for home in (row_operator, log_products):
            monkeypatch.setattr(home, "BLOCK", size)
        found = k_best(p, 6)
        assert torch.equal(found.path, whole.path)
        torch.testing.assert_close(found.log_prob, whole.log_prob, rtol=1e-14, atol=1e-14)
        assert [[tree.spans for tree in row] for row in k_best(forest, 6).trees] == [
            [tree.spans for tree in row] for row in parsed.trees
        ]


def test_long_sequences_of_many_states_begin_with_the_best_path() -> None:
    """Where nothing can be enumerated: the best is Viterbi's, the others follow in order, and each has its weight."""
    p = potentials(build.BY_NAME["dense"], 17, [63, 40], seed=6, zeros=False)
    found, best = k_best(p, 12), viterbi(p)
    assert torch.equal(found.path[0], best.path)
    assert (found.log_prob[1:] <= found.log_prob[:-1]).all()
    log_weight = p.transition.to_dense().log()
    for rank, (b, length) in itertools.product(range(12), enumerate([63, 40])):
        path = found.path[rank, b, :length]
        total = p.log_initial[path[0]] + p.log_obs[b, torch.arange(length), path].sum()
        total = total + log_weight[path[:-1], path[1:]].sum()
        assert float(found.log_prob[rank, b]) == pytest.approx(float(total), abs=1e-9)


@pytest.mark.parametrize("k", [0, -1, 2.0, True])
def test_k_is_a_whole_number(k: Any) -> None:
    with pytest.raises(DomainError, match=r"k is .* whole number of at least 1"):
        k_best(block_chains.block_chain(2, LENGTHS), k)


def test_the_k_largest() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, -INF, -INF, 5.0, -INF]])
    found, index = module._largest(values, 2)
    assert index.tolist() == [[1, 2], [0, 3]]
    assert found.tolist() == [[3.0, 3.0], [0.0, 5.0]]
    found, index = module._largest(values[:, :1], 3)
    assert found.tolist() == [[1.0, -INF, -INF], [0.0, -INF, -INF]]
