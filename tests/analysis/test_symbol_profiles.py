"""Symbols of a grammar: rules and words against its written tables, use by hand."""

import math

import numpy as np
import pytest
import torch

from rankfold.analysis import symbol_profiles
from rankfold.analysis.symbol_profiles import (
    best_rules,
    expect_shared_rules,
    generated_trees,
    preterminal_words,
    symbol_number,
    symbol_profile,
    symbol_use,
)
from rankfold.data.brackets import parse_tree
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models import GrammarConfig, ModelConfig, build_model
from tests.models.grammar_cases import CASES, GrammarCase

CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # float64 sums of a few terms


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("entries", [1, 2**24])
def test_rules_and_words_are_those_of_the_tables(
    case: GrammarCase, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symbol_profiles, "ENTRIES", entries)
    grammar = case.build()
    tables = grammar.to_tables()
    with torch.no_grad():
        parts = grammar.parts()
    n = grammar.config.num_nonterminals
    names = [*(f"NT-{i}" for i in range(n)), *(f"T-{i}" for i in range(grammar.config.num_preterminals))]
    for parent in range(n):
        dense = tables.rules[parent].tolist()
        wanted = sorted(
            ((p, names[i], names[j]) for i, row in enumerate(dense) for j, p in enumerate(row)), reverse=True
        )
        found = best_rules(parts, parent, 5)
        np.testing.assert_allclose([p for *_, p in found], [p for p, *_ in wanted[: len(found)]], **CLOSE)
        assert len(found) == min(5, len(wanted))
        by_name = {(left, right): p for p, left, right in wanted}
        for left, right, p in found:
            assert by_name[left, right] == pytest.approx(p, rel=1e-10)
    for preterminal, row in enumerate(tables.emission.tolist()):
        words, entropy = preterminal_words(parts, preterminal, ["a", "b", "c"], 2)
        wanted_words = sorted(zip(row, "abc", strict=True), reverse=True)[:2]
        assert [word for word, _ in words] == [word for _, word in wanted_words]
        np.testing.assert_allclose([p for _, p in words], [p for p, _ in wanted_words], **CLOSE)
        assert entropy == pytest.approx(-sum(p * math.log(p) for p in row), rel=1e-10)


def test_use_is_counted_in_trees() -> None:
    trees = [parse_tree("(NT-1 (T-0 a) (NT-0 (T-1 b) (T-0 a)))"), parse_tree("(NT-0 (T-1 b) (T-0 a))")]
    use = symbol_use(trees)
    assert use.counts == {"NT-1": 1, "NT-0": 2, "T-0": 3, "T-1": 2}
    assert use.share("NT-0") == 2 / 3
    assert use.share("T-1") == 2 / 5
    assert use.share("NT-7") == 0.0
    assert use.most_used("NT", 5) == ["NT-0", "NT-1"]
    assert use.yields["NT-0"] == {"b a": 2}
    assert use.yields["NT-1"] == {"a b a": 1}
    assert symbol_use([]).share("NT-0") == 0.0
    grammar = CASES[0].build()
    grammar.vocabulary = Vocabulary.build([["a", "b"]], ends=False)
    with torch.no_grad():
        parts = grammar.parts()
    found = symbol_profile(grammar, parts, "NT-0", use, top=3)
    assert (found["use"], found["count"], found["yields"]) == (2 / 3, 2, [["b a", 2]])
    assert len(found["rules"]) == 3
    assert symbol_profile(grammar, parts, "T-1", use)["yields"] == [["b", 2]]


def test_generated_trees_have_the_grammar_s_symbols() -> None:
    grammar = build_model(GrammarConfig(family="tnpcfg", num_nonterminals=2, num_preterminals=3, rank=2, dim=3), 4)
    grammar.vocabulary = Vocabulary.build([["(", "b", "c"]], ends=False)
    trees = generated_trees(expect_shared_rules(grammar), 20, max_length=6)
    assert len(trees) == 20
    assert all(2 <= len(tree.words) <= 6 for tree in trees)
    words = {word for tree in trees for word in tree.words}
    assert words <= {"<unk>", "-LRB-", "b", "c"}
    again = generated_trees(expect_shared_rules(grammar), 20, max_length=6)
    assert again == trees


def test_other_models_and_symbols_are_refused() -> None:
    with pytest.raises(UnsupportedError, match='family "hmm"'):
        expect_shared_rules(build_model(ModelConfig(family="hmm", num_states=2, dim=2), 3))
    with pytest.raises(UnsupportedError, match="other rules for every sentence"):
        expect_shared_rules(build_model(GrammarConfig(family="cpcfg", dim=4, latent_dim=2, encoder_dim=2), 3))
    grammar = CASES[0].plain()
    for odd in ("NP", "NT", "NT-", "NT-x", "T--1", "NT-\u0663"):
        with pytest.raises(DataError, match="not known"):
            symbol_number(odd, grammar)
    with pytest.raises(DomainError, match="no symbol T-2: this grammar has T-0 to T-1"):
        symbol_number("T-2", grammar)
