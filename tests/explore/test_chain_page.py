"""The page of a model of words holds the model's own numbers."""

from typing import Any

import numpy as np
import pytest
import torch

import rankfold
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.errors import DataError
from rankfold.explore.bundle import Bundle, page
from rankfold.explore.chain_page import MOST_WORDS, OTHERS, WORDS, ChainPage, fitted
from tests.explore.runs import ODD, SAVED, odd_model

TEXT = [["w03", "w15", "w10", "w17"], ["w01"], ["never", "w02", "w02", "w05", "w06"]]


def built(model: Any, text: list[list[str]]) -> tuple[ChainPage, Bundle]:
    own = ChainPage(HiddenChain(model), model.vocabulary)
    return own, own.bundle(text, about_text={"title": "a run"})


def page_words(bundle: Bundle) -> list[str]:
    return bundle.arrays["words"].tobytes().decode().split("\n")


@pytest.mark.parametrize("family", ["hmm", "lhmm", "banded", "rank", "block"])
def test_positions_have_the_posterior_states_of_the_model(family: str) -> None:
    model: Any = rankfold.load(SAVED / family)
    _, bundle = built(model, TEXT)
    words = page_words(bundle)
    starts = bundle.arrays["start"].tolist()
    for n, sentence in enumerate(TEXT):
        ids = torch.tensor([model.vocabulary.encode(sentence)])
        own = slice(starts[n], starts[n + 1])
        known = [word if model.vocabulary.knows(word) else "<unk>" for word in sentence]
        assert [words[i] for i in bundle.arrays["token"][own]] == [*known, "<eos>"]
        with torch.no_grad():
            query = model(ids)
            best, top = query.mbr().path[0], query.posterior().state[0].max(-1).values
        assert bundle.arrays["state"][own, 0].tolist() == best.tolist()
        # The page keeps a probability as a whole number of 255ths.
        assert np.abs(bundle.arrays["p"][own, 0] / 255 - top.numpy()).max() <= 0.5 / 255 + 1e-6
    assert bundle.meta["unknown"] == {"7": "never"}
    assert bundle.meta["sentences"] == 3


def test_states_have_the_words_and_the_neighbours_of_the_model() -> None:
    model: Any = rankfold.load(SAVED / "lhmm")
    _, bundle = built(model, TEXT)
    words, num = page_words(bundle), model.config.num_states
    with torch.no_grad():
        parts = model.parts()
        emission = parts.emission.log_rows(torch.arange(num)).exp().numpy()
        transition = parts.transition.to_dense().numpy()
    for state in range(num):
        shown = dict(
            zip(
                (words[i] for i in bundle.arrays["word_id"][state]), bundle.arrays["word_p"][state] / 65535, strict=True
            )
        )
        order = np.argsort(-emission[state])[:WORDS]
        for i in order:
            assert shown[model.vocabulary.words[i]] == pytest.approx(emission[state, i], abs=1 / 65535)
        following = np.argsort(-transition[state])[:OTHERS]
        assert bundle.arrays["next_id"][state].tolist() == following.tolist()
        p = bundle.arrays["next_p"][state] / 65535
        assert p == pytest.approx(transition[state, following], abs=1 / 65535)
        entropy = -(emission[state] * np.log(emission[state])).sum()
        assert bundle.arrays["entropy"][state] == pytest.approx(entropy, rel=1e-4)
    assert float(bundle.arrays["share"].sum()) == pytest.approx(1, abs=1e-5)


def test_typed_sentences_are_answered_as_the_text_is() -> None:
    model: Any = rankfold.load(SAVED / "lhmm")
    own, bundle = built(model, TEXT)
    found = own.answer("w03 w15 w10 w17")
    assert [row[0] for row in found["states"]] == bundle.arrays["state"][:5, 0].tolist()
    assert found["nats"] == pytest.approx(model.score("w03 w15 w10 w17"), rel=1e-6)
    assert own.answer("never w02")["known"] == [False, True, True]
    with pytest.raises(DataError, match="no words"):
        own.answer("  ")
    with pytest.raises(DataError, match="at most 200"):
        own.answer("w02 " * (MOST_WORDS + 1))


def test_a_corpus_of_one_sentence_of_odd_words_is_shown() -> None:
    _, bundle = built(odd_model(), [list(ODD)])
    assert bundle.meta["sentences"] == 1
    assert set(ODD) <= set(page_words(bundle))
    assert "window.broken" not in page(bundle)
    with pytest.raises(DataError, match="no sentences"):
        built(odd_model(), [])


def test_of_a_large_vocabulary_the_page_holds_the_words_that_are_shown() -> None:
    model: Any = odd_model(3, tuple(f"word{i}" for i in range(300_000)))
    _, bundle = built(model, [["word7", "word299999"], ["word5"]])
    words = page_words(bundle)
    assert len(words) <= 2 + 3 + 3 * WORDS
    assert {"word7", "word299999", "word5"} <= set(words)
    assert bundle.meta["vocabulary"] == 300_002
    assert len(page(bundle)) < 400_000


def test_sentences_are_left_out_until_the_page_fits() -> None:
    drawn = np.random.default_rng(0).integers(len(ODD), size=(400, 9))
    _, bundle = built(odd_model(), [[ODD[i] for i in row] for row in drawn])
    empty = len(page(fitted(bundle, 1)))
    told: list[str] = []
    cut = fitted(bundle, empty + 2000, say=told.append)
    assert 1 <= cut.meta["sentences"] < 400
    assert len(page(cut)) <= empty + 2000
    assert len(cut.arrays["start"]) == cut.meta["sentences"] + 1
    assert len(cut.arrays["token"]) == len(cut.arrays["p"]) == cut.arrays["start"][-1] == cut.meta["tokens"]
    assert told
    assert fitted(bundle) is bundle


def test_the_same_seed_gives_the_same_page() -> None:
    one, other = (page(built(odd_model(), [list(ODD)])[1]) for _ in range(2))
    assert one == other
