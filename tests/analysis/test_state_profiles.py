"""What states do: words, use, entropies and neighbours of every family, against plain loops and enumeration."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.analysis import hidden_chain, sentence_states
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.sentence_states import SentenceStates, UseCounter, text_use
from rankfold.analysis.sentence_states import sentence_states as states_of
from rankfold.analysis.state_profiles import Ranked, Use, state_profiles, stationary_use
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models import HMM, GrammarConfig, build_model
from tests.models.cases import CASES, Case, tables
from tests.oracles import chain as oracle

CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # float64 sums of a few terms
TEXT = [[0, 2, 1], [2, 1], [1], [0, 0, 2, 1], [2, 2, 1]]  # word 1 ends a sentence


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are cut after every second row, and a text after every second sentence."""
    monkeypatch.setattr(hidden_chain, "ENTRIES", 6)
    monkeypatch.setattr(sentence_states, "AT_ONCE", 2)


def of_case(case: Case) -> tuple[HiddenChain, Any]:
    model = case.build()
    with torch.no_grad():
        return HiddenChain(model), tables(model.parts())


def by_hand(row: list[float], top: int, values: list[float] | None = None) -> tuple[list[int], list[float]]:
    """The ids with the largest entries above 0, and what `values` (the entries by default) holds there."""
    ids = sorted((i for i in range(len(row)) if row[i] > 0), key=lambda i: -row[i])[:top]
    return ids, [(row if values is None else values)[i] for i in ids]


def expect_ranked(found: Ranked, wanted: list[tuple[list[int], list[float]]]) -> None:
    for ids, values, (want_ids, want) in zip(found.ids.tolist(), found.values.tolist(), wanted, strict=True):
        assert ids == want_ids + [-1] * (len(ids) - len(want_ids))
        np.testing.assert_allclose(values, want + [0.0] * (len(values) - len(want)), **CLOSE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("few", [0, 64])
def test_profiles_are_those_of_plain_loops(case: Case, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfold.analysis.state_profiles.FEW", few)
    chain, hmm = of_case(case)
    size, top = chain.num_values, 2
    share = [(i + 1.0) / (size * (size + 1) / 2) for i in range(size)]
    leaving = [x * (i % 3) / 2 for i, x in enumerate(share)]  # 0 for some
    use = Use(np.array(share), np.array(leaving))
    emission, transition = hmm.emission.tolist(), hmm.transition.tolist()
    unigram = [sum(share[z] * emission[z][v] for z in range(size)) for v in range(3)]
    some = [*range(size)[::-1], 0]  # any order, and one twice
    for states in (None, some):
        found = state_profiles(chain, use, states, top=top)
        shown = list(range(size)) if states is None else states
        assert found.of == ("ranks" if case.config.family == "rank" else "states")
        assert found.states.tolist() == shown
        np.testing.assert_allclose(found.share, [share[z] for z in shown], **CLOSE)
        expect_ranked(found.words, [by_hand(emission[z], top) for z in shown])
        telling = [[p * math.log(p / q) if p else 0.0 for p, q in zip(row, unigram, strict=True)] for row in emission]
        lift = [[p / q if q else 0.0 for p, q in zip(row, unigram, strict=True)] for row in emission]
        if size > 1:  # one state says the text's words: nothing is typical but rounding
            expect_ranked(found.typical, [by_hand(telling[z], top, lift[z]) for z in shown])
        expect_ranked(found.next, [by_hand(transition[z], top) for z in shown])
        before = []
        for y in shown:
            joint = [leaving[z] * transition[z][y] for z in range(size)]
            before.append(by_hand([x / sum(joint) if sum(joint) else 0.0 for x in joint], top))
        expect_ranked(found.previous, before)
        for got, table in ((found.word_entropy, emission), (found.next_entropy, transition)):
            wanted = [-sum(p * math.log(p) for p in table[z] if p > 0) for z in shown]
            np.testing.assert_allclose(got, wanted, **CLOSE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_stationary_use_stays_under_the_chain_with_restarts(case: Case) -> None:
    chain, hmm = of_case(case)
    use = stationary_use(chain, tolerance=1e-14)
    for word in range(3):
        torch.testing.assert_close(chain.word_share(word), hmm.emission[:, word], **CLOSE)
    ends = hmm.emission[:, 1].numpy()
    step = (1 - ends)[:, None] * hmm.transition.numpy() + ends[:, None] * hmm.start.numpy()
    np.testing.assert_allclose(use.share.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(use.share @ step, use.share, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(use.leaving, use.share * (1 - ends), **CLOSE)
    assert use.moved < 1e-14


def test_a_cycle_settles_and_a_slow_chain_says_how_far_it_came() -> None:
    cycle, emission = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    chain = HiddenChain(HMM.from_tables(torch.tensor([1.0, 0.0]), cycle, emission))
    np.testing.assert_allclose(stationary_use(chain).share, [0.5, 0.5], atol=1e-6)
    sticky = torch.tensor([[0.999, 0.001], [0.001, 0.999]])
    slow = HiddenChain(HMM.from_tables(torch.tensor([1.0, 0.0]), sticky, emission))
    assert 1e-4 < stationary_use(slow, max_steps=10).moved < 1e-2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_states_of_a_text_are_those_of_all_paths(case: Case) -> None:
    chain, hmm = of_case(case)
    told: list[int] = []
    counter = UseCounter(chain)
    found = list(states_of(chain, iter(TEXT), top=2, paths=True, counter=counter, progress=told.append))
    mass, leaving = np.zeros(chain.num_values), np.zeros(chain.num_values)
    for words, got in zip(TEXT, found, strict=True):
        fields = hmm.as_lists(words)
        wanted = oracle.posterior(**fields)
        for t, row in enumerate(wanted):
            ids, values = by_hand(row, 2)
            assert got.states[t].tolist() == ids + [-1] * (got.states.shape[1] - len(ids))
            np.testing.assert_allclose(got.probability[t, : len(ids)], values, rtol=1e-6)  # kept as float32
            mass += row
            leaving += row if t + 1 < len(words) else 0 * np.array(row)
        assert got.path is not None
        assert tuple(got.path.tolist()) == oracle.best_path(**fields)[0]
    use = counter.use()
    total = sum(map(len, TEXT))
    np.testing.assert_allclose(use.share, mass / total, **CLOSE)
    np.testing.assert_allclose(use.leaving, leaving / total, **CLOSE)
    assert counter.num_positions == total
    assert told[-1] == len(TEXT)
    assert told == sorted(told)
    again = text_use(chain, TEXT)
    np.testing.assert_allclose(again.share, use.share, **CLOSE)


def test_what_a_model_cannot_say_has_no_states() -> None:
    emission = torch.tensor([[0.5, 0.5, 0.0]])
    chain = HiddenChain(HMM.from_tables(torch.ones(1), torch.ones(1, 1), emission))
    (one, other) = states_of(chain, [[2, 1], [0, 1]], paths=True)
    assert isinstance(one, SentenceStates)
    assert one.states.tolist() == [[-1], [-1]]
    assert one.probability.tolist() == [[0.0], [0.0]]
    assert other.states.tolist() == [[0], [0]]
    assert text_use(chain, [[2, 1], [0, 1]]).share.tolist() == [1.0]
    for text in ([[2, 1]], []):
        with pytest.raises(DomainError, match="no position has a state"):
            text_use(chain, text)


def test_a_word_of_probability_0_and_a_state_nobody_reaches() -> None:
    transition = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    emission = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])
    chain = HiddenChain(HMM.from_tables(torch.tensor([1.0, 0.0]), transition, emission))
    use = stationary_use(chain)
    found = state_profiles(chain, use, top=5)
    assert found.words.ids.tolist() == [[1, 0, -1], [2, -1, -1]]
    assert found.typical.ids.tolist()[1] == [-1, -1, -1]  # its words are in no text: nothing to compare them with
    assert found.previous.ids.tolist() == [[0, -1], [-1, -1]]
    assert found.previous.values.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert found.next_entropy[0] == 0.0


def test_other_models_and_bad_numbers_are_refused() -> None:
    grammar = build_model(GrammarConfig(family="npcfg", num_nonterminals=2, num_preterminals=2, dim=2), 3)
    with pytest.raises(UnsupportedError, match=r'grammar, family "npcfg"(.|\n)*rankfold symbols'):
        HiddenChain(grammar)
    chain, _ = of_case(CASES[0])
    use = stationary_use(chain)
    with pytest.raises(DomainError, match="no state 3: this model has 0 to 2"):
        state_profiles(chain, use, [0, 3])
    with pytest.raises(DomainError, match="top is 0"):
        state_profiles(chain, use, top=0)
    with pytest.raises(DomainError, match="top is 0"):
        list(states_of(chain, TEXT, top=0))
    with pytest.raises(DomainError, match="id 3, but this model knows 0 to 2"):
        chain.word_share(3)
