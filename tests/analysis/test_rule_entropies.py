"""Entropies and kinds of rules against the written table, for every family with rules of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankfold.analysis import symbol_profiles
from rankfold.analysis.rule_entropies import rule_entropies, some_parents
from rankfold.errors import DomainError
from rankfold.models import GrammarConfig, build_model


@pytest.mark.parametrize("family", ["npcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg"])
def test_they_are_those_of_the_table(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbol_profiles, "ENTRIES", 6)  # several blocks of each parent
    config = GrammarConfig(family=family, num_nonterminals=4, num_preterminals=5, rank=3, dim=6)  # type: ignore[arg-type]
    model = build_model(config, 9, seed=2).double()
    with torch.no_grad():
        for x in model.parameters():
            x *= 2.0
    table = model.to_tables().rules.numpy()  # "n n+p n+p"
    found = rule_entropies(model.parts(), [3, 0])
    for place, parent in enumerate([3, 0]):
        p = table[parent]
        assert found.entropy[place] == pytest.approx(-np.sum(p * np.log(p)), rel=1e-9)
        wanted = [p[:4, :4].sum(), p[:4, 4:].sum(), p[4:, :4].sum(), p[4:, 4:].sum()]
        np.testing.assert_allclose(found.kinds[place], wanted, rtol=1e-9)
        assert found.kinds[place].sum() == pytest.approx(1, rel=1e-9)


def test_some_parents() -> None:
    assert some_parents(4, 9) == [0, 1, 2, 3]
    drawn = some_parents(100, 10)
    assert len(set(drawn)) == 10
    assert drawn == sorted(drawn) == some_parents(100, 10)
    with pytest.raises(DomainError, match="0 parents"):
        some_parents(4, 0)


def test_a_parent_that_is_not_there() -> None:
    model = build_model(GrammarConfig(family="npcfg", num_nonterminals=2, num_preterminals=2, dim=4), 5, seed=0)
    with pytest.raises(DomainError, match="no nonterminal 2"):
        rule_entropies(model.parts(), [2])
