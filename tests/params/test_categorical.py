"""Emissions against the softmax of the whole table."""

import pytest
import torch

from rankfold.params.networks import Network
from rankfold.params.observations.categorical import CategoricalEmission, FreeEmission, InnerEmission, TableEmission
from tests.oracles import tables
from tests.params.build import EXACT, close, seeded, stirred, through

WORDS = torch.tensor([[0, 2, 1], [2, 2, 0]])


@pytest.mark.parametrize(("num_states", "num_words", "dim"), [(1, 3, 1), (2, 17, 3), (5, 3, 2)])
def test_inner_emission_is_the_softmax_of_the_table(num_states: int, num_words: int, dim: int) -> None:
    state, word = (torch.randn(n, dim, generator=seeded(n), dtype=torch.float64) for n in (num_states, num_words))
    emission = InnerEmission.softmax(state, word)
    table = torch.log_softmax(state @ word.mT, 1)
    torch.testing.assert_close(emission.log_rows(torch.arange(num_states)), table, **EXACT)
    torch.testing.assert_close(emission.log_obs(WORDS), table.mT[WORDS], **EXACT)
    last = torch.tensor([num_states - 1, 0])
    torch.testing.assert_close(emission.log_rows(last), table[last], **EXACT)


@pytest.mark.parametrize("num_layers", [0, 2])
@pytest.mark.parametrize("keep", [None, [1], [0, 2]])
def test_categorical(num_layers: int, keep: list[int] | None) -> None:
    module = stirred(CategoricalEmission(3, 5, Network(2, num_layers, seeded())))
    emission = module(None if keep is None else torch.tensor(keep))
    states = [through(module.mlp, module.state.tolist()[z]) for z in (keep or range(3))]
    expected = [tables.softmax([tables.dot(e, w) for w in module.word.tolist()]) for e in states]
    close(emission.log_rows(torch.arange(len(expected))).exp(), expected)
    close(emission.log_obs(WORDS).exp(), [[[row[v] for row in expected] for v in words] for words in WORDS.tolist()])


@pytest.mark.parametrize("keep", [None, [1], [0, 2]])
def test_free(keep: list[int] | None) -> None:
    module = stirred(FreeEmission.draw(3, 5, generator=seeded()))
    emission = module(None if keep is None else torch.tensor(keep))
    assert isinstance(emission, TableEmission)
    expected = [tables.softmax(module.log_emission.tolist()[z]) for z in (keep or range(3))]
    close(emission.log_rows(torch.arange(len(expected))).exp(), expected)
    close(emission.log_obs(WORDS).exp(), [[[row[v] for row in expected] for v in words] for words in WORDS.tolist()])


def test_a_kept_state_says_what_it_always_says() -> None:
    module = stirred(CategoricalEmission(5, 3, Network(2, 1, seeded())))
    keep = torch.tensor([1, 4])
    whole = module().log_rows(keep)
    torch.testing.assert_close(module(keep).log_rows(torch.arange(2)), whole, **EXACT)
