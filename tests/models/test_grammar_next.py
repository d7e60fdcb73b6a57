"""The next word under every grammar, against a chart from right to left on its tables written out."""

from typing import Any

import pytest
import torch

from rankfold.models.pcfg import PCFG
from tests.models.grammar_cases import CASES, NUM_WORDS, GrammarCase
from tests.oracles import prefix as oracle


def written_out(model: PCFG) -> dict[str, Any]:
    tables = model.to_tables()
    n, rules = model.config.num_nonterminals, tables.rules
    by_kind = {"ss": rules[:, :n, :n], "sl": rules[:, :n, n:], "ls": rules[:, n:, :n], "ll": rules[:, n:, n:]}
    root = tables.root.tolist()
    return {
        "emission": tables.emission.tolist(),
        "rules": {kind: table.tolist() for kind, table in by_kind.items()},
        "root": root[:n],
        "root_leaf": root[n:] or [0.0] * model.config.num_preterminals,
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_next_word(case: GrammarCase) -> None:
    model = case.build()
    given = written_out(model)
    strings = [[2, 0, 1], [1, 1, 0], [0, 0, 2]]
    lengths = [3, 1, 2]
    found = model.predict_ids(model.batch(torch.tensor(strings), torch.tensor(lengths)))
    first = model.predict_ids()
    whole = model.log_likelihood(model.batch(torch.tensor(strings), torch.tensor(lengths))).detach()
    for b, string in enumerate([*(x[:n] for x, n in zip(strings, lengths, strict=True)), []]):
        total = oracle.prefix(string, **given)
        words = [oracle.prefix([*string, word], **given) / total for word in range(NUM_WORDS)]
        log_words, log_end = (
            (found.log_words[b], found.log_end[b]) if string else (first.log_words[0], first.log_end[0])
        )
        torch.testing.assert_close(log_words.exp(), torch.tensor(words, dtype=torch.float64), rtol=1e-9, atol=0)
        end = float(whole[b].exp()) / total if string else 0.0
        assert float(log_end.exp()) == pytest.approx(end, rel=1e-9, abs=0)
        assert float(log_words.exp().sum() + log_end.exp()) == pytest.approx(1.0, abs=1e-12)


def test_after_words_that_no_sentence_begins_with() -> None:
    """Nothing follows: no word, no end, and no NaN."""
    rules = torch.zeros(1, 3, 3, dtype=torch.float64)
    rules[0, 1, 2] = 1.0  # the first symbol of a word, then the second
    root = torch.ones(1, dtype=torch.float64)
    model = PCFG.from_tables(root, rules, torch.eye(2, dtype=torch.float64))
    found = model.predict_ids(model.batch(torch.tensor([[1, 0], [0, 1], [0, 0]]), torch.tensor([1, 2, 1])))
    assert found.log_words.exp().tolist() == [[0, 0], [0, 0], [0, 1]]
    assert found.log_end.exp().tolist() == [0, 1, 0]
