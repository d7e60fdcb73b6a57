"""Sentences drawn from a grammar: their frequencies are their probabilities, by the recursion over all strings."""

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch

from rankfold import BinaryDense, Branch, DomainError, ShapeError, TreePotentials, generate_trees, rank_space
from rankfold.decoding.generate import Generated, WordChoice
from rankfold.recursions.tree import log_z
from tests.decoding.grammars import N, P, V, emission, normalised, root
from tests.recursions.trees import potentials, shapes

KINDS = ["dense", "shared", "shared log", "matricised", "cpd identity", "ranked"]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_as_frequent_as_they_are_probable(name: str, single: bool) -> None:
    """Given that a sentence has at most four words."""
    num, longest = 3000, 4
    rules, words = normalised(name), emission()
    log_root = root()[:N] if single else root()[:N].log_softmax(-1)
    if name == "ranked":  # sides that are distributions themselves: then so are the rules over ranks
        rules, log_root = rank_space(rules, log_root)
    ends: dict[str, Any] = {"log_root_leaf": root()[N:] if single else None}
    found = generate_trees(
        rules, log_root, lambda k: words[k], num, max_length=longest, generator=torch.Generator().manual_seed(3), **ends
    )
    probable = {}
    for length in range(1 if single else 2, longest + 1):
        strings = list(itertools.product(range(V), repeat=length))
        log_leaf = words.T[torch.tensor(strings)]
        probable |= dict(
            zip(strings, log_z(TreePotentials(log_leaf, rules, log_root, **ends)).exp().tolist(), strict=True)
        )
    within = sum(probable.values())
    assert 0.3 < within < 0.999
    seen = Counter(tuple(x) for x in found.words)
    assert set(seen) <= set(probable)
    for string, share in probable.items():
        wanted = num * share / within
        assert abs(seen[string] - wanted) <= 5 * math.sqrt(wanted) + 5
    thrown = num * (1 - within) / within  # before each kept one, 1 / within - 1 in the mean
    assert abs(found.rejected - thrown) <= 5 * math.sqrt(num * (1 - within)) / within


def test_trees_of_what_was_drawn() -> None:
    rules, words = normalised("shared"), emission()
    found = generate_trees(
        rules, root()[:N], lambda k: words[k], 50, max_length=12, generator=torch.Generator().manual_seed(4)
    )
    assert max(len(x) for x in found.words) > 4
    for sentence, tree in zip(found.words, found.trees, strict=True):
        assert tree.labels is not None
        assert tree.tags is not None
        assert len(tree.tags) == len(sentence) == len(tree.spans) + 1 == len(tree.labels) + 1
        assert tree.spans[0] == (0, len(sentence))
        assert tree.spans == sorted(tree.spans, key=lambda ends: (ends[0], -ends[1]))
        assert all(0 <= tag < P for tag in tree.tags)
        assert all(0 <= label < N for label in tree.labels)
        for (i, j), (k, m) in itertools.combinations(tree.spans, 2):
            assert j <= k or m <= i or (i <= k and m <= j) or (k <= i and j <= m)


def test_symbols_follow_their_rules() -> None:
    """Each parent's left children, words among them, are as frequent as the rules say."""
    rules, words = normalised("dense", leaf=2.0), emission()
    found = generate_trees(
        rules, root()[:N], lambda k: words[k], 800, max_length=60, generator=torch.Generator().manual_seed(5)
    )
    assert found.rejected < 40  # else the limit would be felt
    seen: Counter[tuple[int, int]] = Counter()
    for tree in found.trees:
        labels = dict(zip(tree.spans, tree.labels or (), strict=True))
        for i, j in tree.spans:
            inner = [end for start, end in tree.spans if start == i and end < j]
            child = labels[i, max(inner)] if inner else N + (tree.tags or [])[i]
            seen[labels[i, j], child] += 1
    dense = [rule.to_dense() for rule in rules]
    left = torch.cat([dense[0].sum(2) + dense[1].sum(2), dense[2].sum(2) + dense[3].sum(2)], 1)
    for parent in range(N):
        num = sum(count for (a, _), count in seen.items() if a == parent)
        for child in range(N + P):
            share = float(left[parent, child])
            assert abs(seen[parent, child] - num * share) <= 5 * math.sqrt(num * share) + 5


def test_refusals() -> None:
    p, words = potentials("shared"), emission()
    draw: Any = lambda *args, **more: generate_trees(  # noqa: E731
        *args, lambda k: words[k], **{"num_sentences": 2, "max_length": 5, **more}
    )
    with pytest.raises(DomainError, match=r"(?s)rules of symbol 0 sum to .*must sum to 1"):
        draw(p.rules, p.log_root)
    good = normalised("shared")
    with pytest.raises(ShapeError, match=r"log_root has shape \(3,\), but one log-weight for each of 2"):
        draw(good, torch.zeros(3))
    with pytest.raises(ShapeError, match=r"log_root_leaf has shape \(2,\)"):
        draw(good, p.log_root, log_root_leaf=torch.zeros(2))
    with pytest.raises(ShapeError, match="shared by all"):
        draw(potentials("dense batched").rules, p.log_root)
    with pytest.raises(DomainError, match="num_sentences is 0"):
        draw(good, p.log_root, num_sentences=0)
    with pytest.raises(DomainError, match="max_length is 1, but the shortest sentence of this grammar has 2"):
        draw(good, p.log_root, max_length=1)
    endless = Branch(*(BinaryDense(torch.full(s, 0.25 if s == (2, 2, 2) else 0.0)) for s in shapes(N, P)))
    with pytest.raises(DomainError, match=r"(?s)\d+ sentences grew beyond max_length=5 words while 0 of 2 did not"):
        draw(endless, torch.zeros(2), max_rejected=10)


@pytest.mark.parametrize("choice", [WordChoice(0.5), WordChoice(top_k=1), WordChoice(excluded=(0,))], ids=str)
def test_a_choice_changes_words_given_their_symbols_and_no_tree(choice: WordChoice) -> None:
    rules, words = normalised("shared"), emission()

    def draw(**how: Any) -> Generated:
        seed = torch.Generator().manual_seed(5)
        return generate_trees(rules, root()[:N], lambda k: words[k], 800, max_length=6, generator=seed, **how)

    found = draw(choice=choice)
    assert found.trees == draw().trees  # the same draws: words come last
    for tag in range(P):
        emitted = Counter(
            word
            for sentence, tree in zip(found.words, found.trees, strict=True)
            for word, own in zip(sentence, tree.tags or (), strict=True)
            if own == tag
        )
        shares = choice(words[tag].double()).exp().tolist()
        for word, share in enumerate(shares):
            wanted = emitted.total() * share
            assert abs(emitted[word] - wanted) <= 5 * math.sqrt(wanted * (1 - share)) + 1e-9
    assert draw(choice=WordChoice()) == draw()
