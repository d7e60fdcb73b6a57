"""The page of a grammar holds its trees, the posteriors of their brackets, and gold trees."""

from typing import Any

import numpy as np
import pytest
import torch

import rankfold
from rankfold.data.brackets import parse_tree
from rankfold.errors import DataError
from rankfold.explore.grammar_page import GrammarPage
from tests.explore.runs import SAVED

TEXT = [["w03", "w15", "w10", "w17"], ["w01", "w02"], ["w05"], ["w02", "never", "w06", "w07", "w01"]]


@pytest.mark.parametrize("family", ["npcfg", "rankpcfg", "cpcfg"])
def test_trees_and_brackets_are_those_of_the_model(family: str) -> None:
    model: Any = rankfold.load(SAVED / family)
    bundle = GrammarPage(model).bundle(TEXT, about_text={"title": "a run"})
    kept = [words for words in TEXT if len(words) > 1]
    starts = bundle.arrays["span_start"].tolist()
    for n, words in enumerate(kept):
        own = slice(starts[n], starts[n + 1])
        spans = [tuple(span) for span in bundle.arrays["span"][own].tolist()]
        tree = model.parse([words])[0]
        assert sorted(spans) == sorted((span.start, span.end) for span in tree.spans() if span.end - span.start > 1)
        ids = torch.tensor([model.vocabulary.encode(words)])
        with torch.no_grad():
            p = model(ids).posterior().span[0]
        expected = [float(p[i, j]) for i, j in spans]
        assert np.abs(bundle.arrays["p"][own] / 255 - expected).max() <= 0.5 / 255 + 1e-5
        assert bool((bundle.arrays["label_p"][own] <= bundle.arrays["p"][own]).all())
    assert bundle.meta["sentences"] == 3
    names = bundle.arrays["words"].tobytes().decode().split("\n")
    assert [names[i] for i in bundle.arrays["token"]] == [word for words in kept for word in words]


def test_gold_trees_stand_next_to_them() -> None:
    model: Any = rankfold.load(SAVED / "npcfg")
    gold = [parse_tree("(S (NP (D w03) (N w15)) (VP (V w10) (N w17)))")]
    bundle = GrammarPage(model).bundle([gold[0].words], gold=gold, about_text={"title": "a run"})
    labels = bundle.meta["labels"]
    found = {(i, j, labels[k]) for i, j, k in bundle.arrays["gold"].tolist()}
    assert found == {(0, 4, "S"), (0, 2, "NP"), (2, 4, "VP")}


def test_typed_sentences_have_the_tree_of_the_text() -> None:
    model: Any = rankfold.load(SAVED / "npcfg")
    own = GrammarPage(model)
    bundle = own.bundle(TEXT[:1], about_text={"title": "a run"})
    found = own.answer(" ".join(TEXT[0]))
    assert [list(span) for span in found["spans"]] == bundle.arrays["span"].tolist()
    assert found["tags"] == bundle.arrays["tag"].tolist()
    with pytest.raises(DataError, match="two words"):
        own.answer("w01")
    with pytest.raises(DataError, match="at most 60"):
        own.answer("w01 " * 61)
    with pytest.raises(DataError, match="no tree to show"):
        own.bundle([["w01"]], about_text={})
