"""Every question on every kind of potentials, against the enumeration of all hidden structures.

A new structure is one line of `STRUCTURES`: how its potentials and the log-weights of all its structures are made.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold import DomainError, LowRank, ShapeError, TreePotentials, UnsupportedError, online
from tests.decoding.grammars import N, emission, normalised, root
from tests.oracles import block_chain, semi_markov
from tests.oracles import chain as chain_oracle
from tests.oracles import tree as tree_oracle
from tests.recursions import block_chains, build, segment_batches, trees

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LENGTHS = (4, 1, 3)
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "log_z(p)": rankfold.log_z,
    "posterior(p)": rankfold.posterior,
    "viterbi(p)": rankfold.viterbi,
    'viterbi(p, of="joint")': lambda p: rankfold.viterbi(p, of="joint"),
    "k_best(p, 3)": lambda p: rankfold.k_best(p, 3),
    "mbr(p)": rankfold.mbr,
    "sample(p)": rankfold.sample,
    "expected_counts(p)": rankfold.expected_counts,
    "entropy(p)": rankfold.entropy,
    'entropy(p, of="joint")': lambda p: rankfold.entropy(p, of="joint"),
    "segment_table(p)": rankfold.segment_table,
    "online.filter(p)": online.filter,
    "prefix(p)": rankfold.prefix,
}


class Structure(NamedTuple):
    """A kind of potentials, and the log-weight of every hidden structure of each sequence."""

    name: str
    build: Callable[[], Any]
    weights: Callable[[Any, int], dict[Any, float]]
    path: Callable[[Any, Any, int], tuple[int, ...]] | None  # the states of a structure of sequence i


def frame_states(segmentation: Any, p: Any, i: int) -> tuple[int, ...]:
    return tuple(state for start, end, state, *_ in segmentation for _ in range(start, end))


def global_states(path: Any, p: Any, i: int) -> tuple[int, ...]:
    return tuple(int(p.block[i, t]) * p.log_obs.shape[-1] + k for t, k in enumerate(path))


def segments(**choices: Any) -> Callable[[], Any]:
    return lambda: segment_batches.batch(3, 3, LENGTHS, seed=3, **choices)


def low_rank() -> LowRank:
    g = build.seeded(5)
    return LowRank(*(torch.rand(3, 2, generator=g, dtype=torch.float64) for _ in range(2)))


def of_chain(p: Any, i: int) -> dict[Any, float]:
    return chain_oracle.paths(**build.as_lists(p, i))


def of_segments(p: Any, i: int) -> dict[Any, float]:
    return semi_markov.weights(**segment_batches.as_lists(p, i))


def of_tree(p: Any, i: int) -> dict[Any, float]:
    found = tree_oracle.weights(*trees.sentences(p)[i])
    return {tree: chain_oracle.log(weight) for tree, weight in found.items()}


def of_blocks(p: Any, i: int) -> dict[Any, float]:
    return block_chain.paths(**block_chains.as_lists(p, i))


def as_is(path: Any, p: Any, i: int) -> tuple[int, ...]:
    return tuple(path)


def chains(name: str) -> Callable[[], Any]:
    return lambda: build.potentials(build.BY_NAME[name], 3, LENGTHS, seed=2, final="z")


STRUCTURES = [
    Structure("chain", chains("dense"), of_chain, as_is),
    Structure("chain, low rank", chains("low_rank_2"), of_chain, as_is),
    Structure("segments", segments(), of_segments, frame_states),
    Structure("segments, zeros", segments(zeros=True, final=True), of_segments, frame_states),
    Structure("segments, censored", segments(censored=True), of_segments, frame_states),
    Structure("segments, low rank", segments(transition=low_rank()), of_segments, frame_states),
    Structure("segments, 1000 nats", segments(spread=500.0), of_segments, frame_states),
    *(
        Structure(f"tree, {name}", lambda name=name: trees.potentials(name, LENGTHS, n=2, p=2, seed=4), of_tree, None)
        for name in ("dense", "shared", "shared log", "shared batched", "mixed")
    ),
    Structure("blocks", lambda: block_chains.block_chain(3, LENGTHS, seed=6), of_blocks, global_states),
]
every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)


def shares(weights: dict[Any, float]) -> dict[Any, float]:
    """The posterior of every structure; empty if none is possible."""
    total = chain_oracle.log_sum_exp(list(weights.values()))
    if total == -math.inf:
        return {}
    return {key: math.exp(weight - total) for key, weight in weights.items() if weight > -math.inf}


@every_structure
def test_log_z(structure: Structure) -> None:
    p = structure.build()
    truth = [chain_oracle.log_sum_exp(list(structure.weights(p, i).values())) for i in range(len(LENGTHS))]
    for arithmetic in ("scaled", "log"):
        found = rankfold.log_z(p, arithmetic=arithmetic, precision="float32", strict=False)
        torch.testing.assert_close(found, torch.tensor(truth, dtype=torch.float64), **EXACT)


@every_structure
def test_entropy(structure: Structure) -> None:
    p = structure.build()
    truth = []
    for i in range(len(LENGTHS)):
        share = shares(structure.weights(p, i))
        truth.append(-sum(x * math.log(x) for x in share.values() if x > 0))
    # Expected logarithms of 1000 nats each are subtracted: what is left of their digits.
    near = {"rtol": 0.0, "atol": 2e-9} if "1000 nats" in structure.name else EXACT
    torch.testing.assert_close(rankfold.entropy(p), torch.tensor(truth, dtype=torch.float64), **near)


@every_structure
def test_the_likeliest_states(structure: Structure) -> None:
    if structure.path is None:
        pytest.skip("trees have brackets: test_tree_mbr")
    p = structure.build()
    found = rankfold.mbr(p)
    for i, length in enumerate(LENGTHS):
        share = shares(structure.weights(p, i))
        if not share:
            assert (found.path[i] == -1).all()
            assert float(found.expected[i]) == 0
            continue
        best = 0.0
        for t in range(length):
            by_state: Counter[int] = Counter()
            for key, x in share.items():
                by_state[structure.path(key, p, i)[t]] += x  # type: ignore[assignment]
            state, most = max(by_state.items(), key=lambda pair: pair[1])
            assert by_state[int(found.path[i, t])] == pytest.approx(most, rel=1e-10)
            assert state == int(found.path[i, t]) or list(by_state.values()).count(most) > 1
            best += most
        assert (found.path[i, length:] == -1).all()
        assert float(found.expected[i]) == pytest.approx(best, rel=1e-10)


@every_structure
def test_the_best_and_samples_are_possible(structure: Structure) -> None:
    """Their values and frequencies: test_viterbi, test_segments, test_tree_best, test_sample."""
    p = structure.build()
    best, drawn = rankfold.viterbi(p), rankfold.sample(p, num_samples=3, generator=build.seeded(0))
    one = rankfold.sample(p, generator=build.seeded(0))
    assert type(one) is type(drawn)
    log_z = rankfold.log_z(p)
    assert (best.log_prob <= log_z + 1e-9).all()
    for i in range(len(LENGTHS)):
        weights = structure.weights(p, i)
        assert float(best.log_prob[i]) >= max(weights.values()) - 1e-9
        if structure.path is not None:
            length = LENGTHS[i]
            possible = {structure.path(key, p, i) for key in shares(weights)} or {(-1,) * length}
            assert one.path.shape == drawn.path[0].shape
            for path in (best.path[i], *drawn.path[:, i], one.path[i]):
                assert tuple(path[:length].tolist()) in possible
                assert (path[length:] == -1).all()
        else:
            assert len(one.trees) == len(drawn.trees[0]) == len(LENGTHS)


@pytest.mark.parametrize("name", ["dense", "dense log", "shared", "shared log", "shared batched", "mixed"])
def test_counts_of_rules(name: str) -> None:
    """Uses of a dense rule by enumeration; of factors, the uses of their rows and columns."""
    p = trees.potentials(name, LENGTHS, n=2, p=2, seed=7)
    counts = rankfold.expected_counts(p)
    uses: Counter[tuple[str, int, int, int]] = Counter()
    root: Counter[int] = Counter()
    for i in range(len(LENGTHS)):
        for tree, share in shares(of_tree(p, i)).items():
            for rule in tree_oracle.rules_used(tree):
                uses[rule] += share  # type: ignore[assignment]
            if LENGTHS[i] > 1:
                root[tree[2]] += share  # type: ignore[assignment]
    torch.testing.assert_close(counts.root, torch.tensor([root[n] for n in range(2)], dtype=torch.float64), **EXACT)
    assert float(counts.root_leaf.sum()) == pytest.approx(sum(length == 1 for length in LENGTHS))
    torch.testing.assert_close(counts.leaf, rankfold.posterior(p).leaf, **EXACT)
    torch.testing.assert_close(counts.log_z, rankfold.log_z(p), **EXACT)
    assert [x.shape for x in counts.rules] == [x.shape for x in p.rules.factors()]
    if name.startswith("dense"):
        for kind, found in zip(trees.KINDS, counts.rules, strict=True):
            truth = [[[uses[kind, a, n, m] for m in range(2)] for n in range(2)] for a in range(2)]
            torch.testing.assert_close(found, torch.tensor(truth, dtype=torch.float64), **EXACT)
    elif name.startswith("shared"):
        head = counts.rules[0]
        truth = [sum(x for (_, parent, *_), x in uses.items() if parent == a) for a in range(2)]
        summed = head.sum(0) if head.ndim == 3 else head
        torch.testing.assert_close(summed.sum(-1), torch.tensor(truth, dtype=torch.float64), **EXACT)


def test_counts_of_blocks() -> None:
    p = block_chains.block_chain(3, LENGTHS, seed=8, zeros=0.0)
    counts = rankfold.expected_counts(p)
    for i, length in enumerate(LENGTHS):
        fields = block_chains.as_lists(p, i)
        state = torch.tensor(block_chain.posterior(**fields), dtype=torch.float64)
        torch.testing.assert_close(counts.state[i, :length], state, **EXACT)
        torch.testing.assert_close(counts.initial[i], state[0], **EXACT)
        pairs = torch.tensor(block_chain.pairs(**fields), dtype=torch.float64).reshape(length - 1, 3, 3)
        torch.testing.assert_close(counts.transition[i, : length - 1], pairs, **EXACT)
        assert (counts.transition[i, length - 1 :] == 0).all()


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda one: one.name)
def test_weighted_counts_are_those_of_each_sequence_by_itself(structure: Structure) -> None:
    p, weight = structure.build(), torch.tensor([2.0, 0.0, 0.5])
    found, c = rankfold.expected_counts(p, "tf32", weight=weight), rankfold.recursions.validate(p)
    alone = [rankfold.expected_counts(c.take(torch.tensor([i]))) for i in range(3)]
    for name, own in found._asdict().items():
        singly = [tensors_of(getattr(one, name)) for one in alone]
        for number, x in enumerate(tensors_of(own)):
            factor = torch.ones(3) if name == "log_z" else weight
            parts = [w * each[number] for w, each in zip(factor, singly, strict=True)]
            torch.testing.assert_close(x, sum(parts) if x.shape == parts[0].shape else torch.cat(parts), **EXACT)
    with pytest.raises(ShapeError, match="weight"):
        rankfold.expected_counts(p, weight=weight[:2])
    with pytest.raises(DomainError, match=r"weight\[1\] is -1.0"):
        rankfold.expected_counts(p, weight=torch.tensor([1.0, -1.0, 0.0]))
    with pytest.raises(UnsupportedError, match="precision='half'"):
        rankfold.expected_counts(p, "half")


def tensors_of(counts: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [counts] if isinstance(counts, Tensor) else list(counts)


def leaves_of(p: Any) -> tuple[Any, list[Tensor]]:
    """The potentials of leaves that gradients are asked of."""
    problem = rankfold.recursions.validate(p)
    named = {name: x for name in problem.fields if (x := getattr(p, name)) is not None}
    named = {name: torch.nan_to_num(x, nan=0.0, neginf=-50.0).requires_grad_() for name, x in named.items()}
    return p._replace(**named), list(named.values())


DIFFERENTIABLE: dict[str, Callable[[Any], Any]] = {
    "posterior": lambda p: list(rankfold.posterior(p)),
    "counts": lambda p: [x for x in rankfold.expected_counts(p) if isinstance(x, Tensor)],
    "entropy": lambda p: [rankfold.entropy(p)],
}


@pytest.mark.parametrize("question", DIFFERENTIABLE)
@every_structure
def test_differentiable(structure: Structure, question: str) -> None:
    if structure.name in ("segments, 1000 nats", "tree, mixed"):
        pytest.skip("slopes too steep for finite differences, or slow")
    p, tensors = leaves_of(structure.build())
    ask = DIFFERENTIABLE[question]
    names = [name for name in p._fields if any(getattr(p, name) is x for x in tensors)]

    def of(*tensors: Tensor) -> Tensor:
        found = ask(p._replace(**dict(zip(names, tensors, strict=True))))
        return torch.stack([(x * torch.arange(x.numel()).reshape(x.shape).cos()).sum() for x in found])

    assert torch.autograd.gradcheck(of, tuple(tensors), fast_mode=True, atol=1e-4, check_undefined_grad=False)
    with torch.no_grad():
        assert not any(x.requires_grad for x in ask(p))


def rows_of_the_page() -> list[list[str]]:
    text = (Path(__file__).parents[2] / "docs" / "questions.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_table_of_pairs_is_true() -> None:
    """Each cell names fields of the answer, or that the pair is refused by name."""
    head, *rows = rows_of_the_page()
    assert [row[0].strip("`") for row in rows] == list(QUESTIONS)
    potentials = {
        "ChainPotentials": chains("low_rank_2")()._replace(log_final=None),
        "SegmentPotentials": segments(transition=low_rank())(),
        "TreePotentials": TreePotentials(
            emission().T[torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]])],
            normalised("shared"),
            root()[:N],
            root()[N:],
            lengths=torch.tensor(LENGTHS),
        ),
        "BlockPotentials": block_chains.block_chain(2, LENGTHS),
    }
    assert [kind.strip("`") for kind in head[1:]] == list(potentials)
    for row in rows:
        for (kind, p), cell in zip(potentials.items(), row[1:], strict=True):
            ask = QUESTIONS[row[0].strip("`")]
            if cell == "refused":
                with pytest.raises(UnsupportedError, match=rf"{re.escape(row[0].strip('`').split('(')[0])}|joint"):
                    ask(p)
                continue
            answer = ask(p)
            for field in re.findall(r"`\.(\w+)`", cell):
                assert hasattr(answer, field), (kind, row[0], field)


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_are_no_potentials(question: str) -> None:
    with pytest.raises(ShapeError, match=r"expected potentials .* but got a list"):
        QUESTIONS[question]([1, 2])
