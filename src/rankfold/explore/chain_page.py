"""The page of a model of words: its states, where they lie on a map, and the sentences of a text through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.sentence_states import SentenceStates, UseCounter, sentence_states
from rankfold.analysis.state_profiles import Ranked, StateProfiles, state_profiles
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError
from rankfold.explore.bundle import MOST_BYTES, Bundle, about, fractions, joined, page, smallest
from rankfold.explore.state_map import StateMap, features, sketch_matrix, state_map
from rankfold.models.strings import split_line, tell_every

WORDS, OTHERS, STATES = 12, 8, 3  # words and neighbours of a state, states of a position
MOST_WORDS = 200  # of a typed sentence
EVERY = 2000  # sentences between two lines of progress

Say = Callable[[str], None]


class ChainPage:
    """A model of words, ready to be shown: its profile is computed once, for the page and for typed sentences."""

    def __init__(self, chain: HiddenChain, vocabulary: Vocabulary) -> None:
        self.chain, self.vocabulary = chain, vocabulary

    def bundle(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        about_text: dict[str, Any],
        seed: int = 0,
        say: Say = lambda _: None,
    ) -> Bundle:
        """The states of the model, and the posterior states of every position of these sentences."""
        chain = self.chain
        ids = self.vocabulary.encode_all(sentences).sentences
        if not ids:
            raise DataError("the text has no sentences: a page shows at least one.")
        counter = UseCounter(chain)
        progress = tell_every(EVERY, lambda done: say(f"states of {done:,} of {len(ids):,} sentences"))
        found = list(sentence_states(chain, ids, top=STATES, counter=counter, progress=progress))
        use = counter.use()
        say("words and neighbours of every state")
        profiles = state_profiles(chain, use, top=WORDS)
        say(f"the map of {chain.num_values:,} {chain.of}")
        placed = state_map(self._features(), seed=seed, say=say)
        say(f"trustworthiness of the map, k = {placed.k}: {placed.trust:.3f}")
        shown, words = _shown_words(self.vocabulary, ids, profiles)
        spelled = {} if len(sentences) > 200_000 else _unknown_words(self.vocabulary, sentences)
        meta = about(
            kind="chain",
            of=chain.of,
            states=chain.num_values,
            vocabulary=len(self.vocabulary),
            sentences=len(ids),
            tokens=sum(map(len, ids)),
            trust=placed.trust,
            near=placed.k,
            checked=placed.num_checked,
            eos=int(shown[Vocabulary.eos_id]),
            unk=int(shown[Vocabulary.unk_id]),
            unknown=spelled,
            **about_text,
        )
        arrays = {"words": joined(words), **_profile_arrays(profiles, shown), **_map_arrays(placed)}
        arrays["share"] = use.share.astype(np.float32)
        return Bundle(meta, {**arrays, **_text_arrays(ids, found, shown)})

    def answer(self, text: str) -> dict[str, Any]:
        """The states of a typed sentence: its words, the most probable states of each with their probabilities."""
        words = split_line(text, self.vocabulary)
        if not words:
            raise DataError("no words: type a sentence.")
        if len(words) > MOST_WORDS:
            raise DataError(f"{len(words):,} words, but at most {MOST_WORDS} are answered at once.")
        ids = self.vocabulary.encode(words)
        (found,) = sentence_states(self.chain, [ids], top=STATES)
        if found.states[0, 0] < 0:
            raise DomainError("the sentence has probability 0 under the model: it has no states.")
        log_prob = self._log_prob(ids)
        return {
            "words": [*words, self.vocabulary.words[Vocabulary.eos_id]],
            "known": [*map(self.vocabulary.knows, words), True],
            "states": found.states.tolist(),
            "p": [[round(float(p), 6) for p in row] for row in found.probability],
            "nats": log_prob,
            "perplexity": float(np.exp(-log_prob / len(ids))),
        }

    def _log_prob(self, ids: Sequence[int]) -> float:
        model = self.chain.model
        with torch.no_grad():
            batch = model.batch(torch.tensor([list(ids)]))
            return float(model.log_z(model.potentials(batch, parts=self.chain.parts)))

    def _features(self) -> Tensor:  # "z d"
        """Sketches of the square roots of emissions, and of their mean after one transition."""
        chain = self.chain
        project = sketch_matrix(chain.num_words).to(chain.device)
        emit = torch.cat([chain.word_rows(own).float().sqrt() @ project for own in chain.blocks(chain.num_words)])
        lead = torch.cat([chain.next_rows(own).float() @ emit for own in chain.blocks(chain.num_values)])
        return features(emit, lead).cpu()


def fitted(bundle: Bundle, most: int = MOST_BYTES, *, say: Say = lambda _: None) -> Bundle:
    """The bundle, with as many of its sentences as a page of `most` bytes holds; one sentence always stays."""
    while (size := len(page(bundle))) > most and bundle.meta["sentences"] > 1:
        num = max(1, int(bundle.meta["sentences"] * min(0.95, most / size)))
        starts = bundle.arrays["start"]
        tokens = int(starts[num])
        cut = {"start": starts[: num + 1], **{name: bundle.arrays[name][:tokens] for name in ("token", "state", "p")}}
        unknown = {place: word for place, word in bundle.meta["unknown"].items() if int(place) < tokens}
        meta = {**bundle.meta, "sentences": num, "tokens": tokens, "unknown": unknown}
        bundle = Bundle(meta, {**bundle.arrays, **cut})
        say(f"{size / 1e6:.1f} MB is more than {most / 1e6:.0f}: the first {num:,} sentences are kept")
    return bundle


def _shown_words(
    vocabulary: Vocabulary, ids: Sequence[Sequence[int]], profiles: StateProfiles
) -> tuple[NDArray[np.int64], list[str]]:
    """From each id to its number in the page (-1: none), and the words in the page: those of the text and of states."""
    used = np.zeros(len(vocabulary), dtype=bool)
    used[: 1 + Vocabulary.eos_id] = True
    for row in ids:
        used[row] = True
    used[profiles.words.ids[profiles.words.ids >= 0]] = True
    numbers = np.where(used, used.cumsum() - 1, -1)
    return numbers, [vocabulary.words[i] for i in np.flatnonzero(used)]


def _unknown_words(vocabulary: Vocabulary, sentences: Sequence[Sequence[str]]) -> dict[str, str]:
    """The words of the text that count as <unk>, as they are written, by their place among all positions."""
    found, place = {}, 0
    for words in sentences:
        for word in words:
            if not vocabulary.knows(word):
                found[str(place)] = word
            place += 1
        place += 1  # <eos>
    return found


def _profile_arrays(profiles: StateProfiles, shown: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    words = Ranked(np.where(profiles.words.ids >= 0, shown[profiles.words.ids], 0), profiles.words.values)
    lists = {"word": words, "next": profiles.next, "previous": profiles.previous}
    arrays: dict[str, NDArray[Any]] = {}
    for name, ranked in lists.items():
        num = WORDS if name == "word" else OTHERS
        arrays[f"{name}_id"] = smallest(np.maximum(ranked.ids[:, :num], 0))
        arrays[f"{name}_p"] = fractions(ranked.values[:, :num], np.uint16)  # 0: no entry
    arrays["entropy"] = profiles.word_entropy.astype(np.float32)
    arrays["next_entropy"] = profiles.next_entropy.astype(np.float32)
    return arrays


def _map_arrays(placed: StateMap) -> dict[str, NDArray[Any]]:
    place = fractions(placed.place.numpy(), np.uint16)
    near = placed.nearest[:, :OTHERS].numpy()
    return {"x": place[:, 0], "y": place[:, 1], "kind": smallest(placed.kind.numpy()), "near_id": smallest(near)}


def _text_arrays(
    ids: Sequence[Sequence[int]], found: Sequence[SentenceStates], shown: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    states = np.concatenate([one.states for one in found])
    starts = np.cumsum([0, *map(len, ids)])
    return {
        "start": smallest(starts),
        "token": smallest(shown[np.concatenate(ids)]),
        "state": smallest(np.where(states < 0, 0, states)),
        "p": fractions(np.concatenate([one.probability for one in found]), np.uint8),  # 0: no state
    }
