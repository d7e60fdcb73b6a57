"""Trees without a model: their shapes, the laws they are drawn from, and their published scores on real treebanks."""

import itertools
import json
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given

from rankfold.analysis.bracketing import (
    RandomLaw,
    _row_of_trees,
    binarise,
    evaluate_brackets,
    left_branching,
    random_binary,
    right_branching,
)
from rankfold.data.brackets import parse_tree, read_trees
from rankfold.data.trees import Tree
from rankfold.errors import DataError, UnsupportedError
from tests.data.treebanks import TREEBANKS, needs_treebanks, trees

WORDS = ["a", "b", "c", "d", "e"]


def all_binary(words: list[str]) -> list[str]:
    """Every binary tree, in brackets."""
    if len(words) == 1:
        return [f"(T {words[0]})"]
    return [
        f"(X {left} {right})"
        for k in range(1, len(words))
        for left in all_binary(words[:k])
        for right in all_binary(words[k:])
    ]


def splits_law(words: list[str]) -> dict[str, Fraction]:
    if len(words) == 1:
        return {f"(T {words[0]})": Fraction(1)}
    law: dict[str, Fraction] = {}
    for k in range(1, len(words)):
        for (left, p), (right, q) in itertools.product(splits_law(words[:k]).items(), splits_law(words[k:]).items()):
            law[f"(X {left} {right})"] = p * q / (len(words) - 1)
    return law


def actions_law(stack: tuple[str, ...], rest: list[str]) -> dict[str, Fraction]:
    shift = actions_law((*stack, f"(T {rest[0]})"), rest[1:]) if rest else {}
    if len(stack) == 1 and not rest:
        return {stack[0]: Fraction(1)}
    reduce = actions_law((*stack[:-2], f"(X {stack[-2]} {stack[-1]})"), rest) if len(stack) > 1 else {}
    if not shift or not reduce:
        return shift or reduce
    return {tree: (shift.get(tree, 0) + reduce.get(tree, 0)) * Fraction(1, 2) for tree in {*shift, *reduce}}


def test_branching() -> None:
    assert str(right_branching(WORDS[:4])) == "(X (T a) (X (T b) (X (T c) (T d))))"
    assert str(left_branching(WORDS[:4], label="N", tag="P")) == "(N (N (N (P a) (P b)) (P c)) (P d))"
    assert str(right_branching(["a"])) == str(left_branching(["a"])) == "(T a)"
    for branch in (left_branching, right_branching):
        for none in ([], "", "word"):
            with pytest.raises(DataError, match="at least one word"):
                branch(none)
        assert branch(["w"] * 5000).is_binary


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_uniform_trees_by_counting_every_shuffle(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ways to shuffle n words and n - 1 joints, exactly 2n - 1 give each tree."""
    counts: Counter[tuple[bool, ...]] = Counter()
    for places in itertools.combinations(range(2 * n - 1), n):
        order = torch.full((2 * n - 1,), 2 * n)
        order[list(places)] = 0
        monkeypatch.setattr(torch, "randperm", lambda *_, order=order, **__: order)
        counts[tuple(_row_of_trees(n, torch.Generator()))] += 1
    assert len(counts) == len(all_binary(WORDS[:n]))
    assert set(counts.values()) == {2 * n - 1}


@pytest.mark.parametrize("law", ["trees", "splits", "actions"])
def test_random_trees_come_as_often_as_their_law_says(law: RandomLaw, generator: torch.Generator) -> None:
    words = WORDS[:4]
    expected = {
        "trees": {tree: Fraction(1, 5) for tree in all_binary(words)},
        "splits": splits_law(words),
        "actions": actions_law((), words),
    }[law]
    assert sum(expected.values()) == 1
    draws = 2000
    counts = Counter(str(random_binary(words, generator=generator, law=law)) for _ in range(draws))
    assert set(counts) == set(expected)
    for tree, p in expected.items():
        spread = (draws * p * (1 - p)) ** 0.5
        assert abs(counts[tree] - draws * p) < 4 * spread, tree  # 4 standard deviations, and a fixed seed


def test_random_trees_repeat_with_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    laws: tuple[RandomLaw, ...] = ("trees", "splits", "actions")
    for law in laws:
        one, again = (random_binary(WORDS * 9, generator=torch.Generator().manual_seed(3), law=law) for _ in range(2))
        assert one == again
        assert one.words == WORDS * 9
        assert one.is_binary
        assert str(random_binary(["a"], generator=torch.Generator(), law=law)) == "(T a)"
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(UnsupportedError, match="'coin'"):
        random_binary(WORDS, generator=torch.Generator(), law="coin")  # type: ignore[arg-type]


def test_binarise() -> None:
    tree = parse_tree("(S (VP (NP (PRP a)) (VB b) (NP (NN c)) (RB d)))")
    assert str(binarise(tree)) == "(S (PRP a) (VP' (VB b) (VP' (NN c) (RB d))))"
    assert str(binarise(tree, branching="left")) == "(S (VP' (VP' (PRP a) (VB b)) (NN c)) (RB d))"
    assert str(binarise(parse_tree("(NP (NP (NN a)))"))) == "(NN a)"
    assert str(binarise(parse_tree("(NP a b c)"))) == "(NP a (NP' b c))"
    with pytest.raises(UnsupportedError, match="'both'"):
        binarise(tree, branching="both")  # type: ignore[arg-type]


@given(trees)
def test_binarised_trees_are_binary_and_keep_every_bracket(tree: Tree) -> None:
    for branching in ("left", "right"):
        binary = binarise(tree, branching=branching)
        assert binary.is_binary
        assert binary.words == tree.words
        kept = {(i, j) for i, j, _ in tree.spans() if j - i > 1}
        assert kept <= {(i, j) for i, j, _ in binary.spans()}


@given(trees.filter(lambda tree: 2 <= len(tree.words) <= 5))
def test_no_binary_tree_is_better_than_the_binarised_gold_tree(gold: Tree) -> None:
    best = evaluate_brackets([binarise(gold)], [gold])
    others = [evaluate_brackets([parse_tree(text)], [gold]) for text in all_binary(gold.words)]
    assert best.uf1.sentence == max(scores.uf1.sentence for scores in others)
    assert best.kim.sentence == max(scores.kim.sentence for scores in others)


@needs_treebanks
@pytest.mark.parametrize("name", ["ptb-sample", "gum", "cess-esp"])
def test_baselines_have_the_recorded_scores(name: str) -> None:
    """Recorded by a different program, to two decimals: sentence F1, and corpus F1 over sets."""
    gold = read_trees(TREEBANKS / f"{name}.test.trees.txt.gz").trees
    recorded = json.loads((TREEBANKS / f"{name}.stats.json").read_text())["test"]["f1"]
    baselines = {
        "left": [left_branching(tree.words) for tree in gold],
        "right": [right_branching(tree.words) for tree in gold],
        "oracle": [binarise(tree) for tree in gold],
    }
    for baseline, predicted in baselines.items():
        scores = evaluate_brackets(predicted, gold)
        assert round(100 * scores.uf1.sentence, 2) == recorded[baseline]["sentence_f1"]
        assert round(100 * scores.uf1_distinct.corpus, 2) == recorded[baseline]["corpus_f1"]


@needs_treebanks
def test_right_branching_on_all_of_the_penn_sample() -> None:
    """Published for section 23: 39.5 (kim) and 39.7 (uf1)."""
    splits = ("train", "valid", "test")
    gold = [tree for split in splits for tree in read_trees(TREEBANKS / f"ptb-sample.{split}.trees.txt.gz")]
    scores = evaluate_brackets([right_branching(tree.words) for tree in gold], gold)
    assert len(gold) == 3901
    assert (round(100 * scores.kim.sentence, 2), round(100 * scores.uf1.sentence, 2)) == (39.61, 39.71)
