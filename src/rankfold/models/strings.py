"""Questions in words, of a model that has a vocabulary: the commands and the methods of a model share these functions.

A sentence is a string, cut into words as the training text was, or a list of words. Unknown words count as `<unk>`.
A string without words is no sentence and has no answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from rankfold.data.batch import Batch, length_batches
from rankfold.data.text import expect_no_brackets
from rankfold.data.vocab import EOS, Vocabulary
from rankfold.decoding.generate import WordChoice
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models.base import Model
from rankfold.models.parsing import Decode, expect_grammar, parse, tree_batches
from rankfold.models.sequence import SequenceModel
from rankfold.planning.measure import GIB, available

Method = Literal["posterior", "viterbi"]
Answer = TypeVar("Answer")
SCORED_TOKENS = 4096  # of a batch
TAGGED_TOKENS = 1024  # of a batch: each holds a posterior of all states


class Scored(NamedTuple):
    """The log-probability of one sentence."""

    log_prob: float | None  # nats; None of an empty line, which is no sentence
    tokens: int  # <eos> counted, where there is one; of grammars the words
    unknown: int  # words that count as <unk>


class Tagged(NamedTuple):
    """The states of the words of each sentence, and their kind: "states", or "ranks" where states are summed out."""

    states: list[list[int]]
    of: str


class Predicted(NamedTuple):
    """One word that may come next; `<eos>` is the end of the sentence."""

    word: str
    log_prob: float


class Drawn(NamedTuple):
    """A sentence drawn from a model, its prefix included."""

    words: list[str]
    ended: bool  # false: cut at the largest number of words


def expect_vocabulary(model: Model[Any, Any], asked: str) -> Vocabulary:
    """The words of a model's ids; an error that names the question if the model has none."""
    if model.config.data == "recordings":
        raise UnsupportedError(
            f'{asked} is asked of words, but "{model.config.family}" is a family of models of frames.\n'
            "  Of frames ask model.viterbi, model.segments, model.posterior, model.sample."
        )
    if model.vocabulary is None:
        raise UnsupportedError(
            f"{asked} is asked of words, but this model has no vocabulary: its ids have no words.\n"
            "  Set model.vocabulary, or ask by ids: model(ids), model.predict_ids."
        )
    expect_ends(model.vocabulary, model.config)
    return model.vocabulary


def expect_ends(vocabulary: Vocabulary, model: Any) -> None:
    """Raise if a grammar gets sentences that end in <eos>, or another model sentences that do not.

    `model`: the configuration of a model; None is one of sequences.
    """
    grammar = model is not None and model.data == "sentences"
    if vocabulary.ends == grammar:
        has, wants = ("has <eos>", "no <eos>") if grammar else ("has no <eos>", "<eos> at the end of each")
        what = "a grammar" if grammar else "a model of sequences"
        raise DataError(
            f"the vocabulary {has}, but {what} is of sentences with {wants}.\n"
            f"  It was built for another model: build it with Vocabulary.build(..., ends={not grammar})."
        )


def expect_sequences(model: Model[Any, Any], what: str) -> SequenceModel[Any, Any, Any]:
    """The model, if it reads words from left to right; `UnsupportedError` for a grammar."""
    if model.config.data != "text":
        raise UnsupportedError(
            f'rankfold {what} is for models of sequences, but "{model.config.family}" is a family of grammars.\n'
            "  Of a grammar ask rankfold parse, score, sample, predict, evaluate, explain."
        )
    return cast(SequenceModel[Any, Any, Any], model)


def expect_memory(model: Model[Any, Any], lengths: Sequence[int], where: str | Sequence[str], *, outside: bool) -> None:
    """Raise on a sentence that a grammar has no memory for, before anything is computed; other models have no limit.

    `lengths`: the words of each sentence. `where`: text to put before a sentence's number in the error, or the place of
    each sentence. `outside`: whether an outside pass follows the inside one. Memory grows with the square of a length.
    """
    memory = available(model.device.type)

    needed = partial(model.sequence_bytes, gradients=outside)
    longest = max(lengths, default=0)
    if model.config.data != "sentences" or memory is None or longest < 2 or needed(longest) <= memory:
        return
    fitting = 1 + bisect_right(range(2, longest), memory, key=needed)
    at = lengths.index(longest)
    place = f"{where} {at + 1}" if isinstance(where, str) else where[at]
    raise DataError(
        f"{place}: a sentence of {longest:,} words needs {needed(longest) / GIB:.3g} GiB, "
        f"but {model.device.type} has {memory / GIB:.3g} GiB.\n"
        f"  At most {fitting:,} words fit: part it, or leave it out."
    )


def answer_each(
    model: Model[Any, Any],
    groups: Iterable[list[int]],
    batches: Iterable[Batch],
    question: Callable[[Batch], Iterable[Any]],
) -> list[Any]:
    """The answer to each sequence, by its place; the question is asked of batches, `groups` are the places of each."""
    answers: dict[int, Any] = {}
    with torch.no_grad():
        for places, batch in zip(groups, batches, strict=True):
            answers.update(zip(places, question(batch.to(model.device)), strict=True))
    return [answers[place] for place in range(len(answers))]


def tell_every(num: float, tell: Callable[[int], None]) -> Callable[[int], None]:
    """Progress that is told once per `num` sentences done, not at every batch."""
    told = 0

    def progress(done: int) -> None:
        nonlocal told
        if done // num > told // num:
            tell(done)
        told = done

    return progress


def answer_text(
    text: Any,
    vocabulary: Vocabulary,
    question: Callable[[list[list[str]]], Iterable[Answer]],
    empty: Any = None,
    *,
    ends: bool = False,
) -> Any:
    """The answer to a string, or the list of answers to a list of sentences, each a string or a list of words.

    The question is asked of the sentences that have words; the others' answer is `empty`.
    """
    alone = isinstance(text, str)
    if not alone and not isinstance(text, list | tuple):
        raise UnsupportedError(
            f"the text is a {type(text).__name__}, but a string was expected, or a list of strings or of lists of "
            "words.\n  Ids go to model(ids)."
        )
    given = enumerate([text] if alone else text, 1)
    sentences = [words_of(one, vocabulary, f"sentence {number}", ends=ends) for number, one in given]
    asked = [words for words in sentences if words]
    following = iter(question(asked) if asked else ())
    found = [next(following) if words else empty for words in sentences]
    return found[0] if alone else found


def split_line(line: str, vocabulary: Vocabulary, *, ends: bool = False) -> list[str]:
    """The words of a line, cut as the text of the vocabulary was. With `ends`, `<eos>` is a word by itself."""
    if not ends or vocabulary.tokenizer.kind == "spaces":
        return vocabulary.tokenizer.tokenize(line)
    first, *others = line.split(EOS)
    words = vocabulary.tokenizer.tokenize(first)
    return words + [word for part in others for word in (EOS, *vocabulary.tokenizer.tokenize(part))]


def words_of(sentence: Any, vocabulary: Vocabulary, where: str = "the sentence", *, ends: bool = False) -> list[str]:
    """The words of a sentence: a string is cut into words as a line of a file is, a list is taken as it is."""
    if isinstance(sentence, str):
        if "\n" in sentence.strip():
            raise DataError(f"{where} has line breaks in it, but is one sentence.\n  Give a list: text.splitlines().")
        return split_line(sentence, vocabulary, ends=ends)
    if isinstance(sentence, list | tuple) and all(isinstance(word, str) for word in sentence):
        return list(sentence)
    raise DataError(f"{where} is {sentence!r:.60}, but a string or a list of words was expected.")


def score(
    model: Model[Any, Any], sentences: Sequence[Sequence[str]], *, end: bool = True, parts: Any = None
) -> list[Scored]:
    """The log-probability of each sentence, in order; with `end` false, of each as the beginning of one.

    Then `<eos>` is a word like others, and the probabilities of all strings of one length sum to 1.
    """
    vocabulary = expect_vocabulary(model, "score")
    if not end and not vocabulary.ends:
        raise UnsupportedError("end=False is for models of sequences: sentences of a grammar have no <eos>.")
    if end:
        rows = vocabulary.encode_all(sentences).sentences
    else:
        rows = [list(map(vocabulary.id_of, words)) for words in sentences]
    grammar = model.config.data == "sentences"
    batches = tree_batches(model, rows, SCORED_TOKENS) if grammar else length_batches(rows, SCORED_TOKENS)
    with torch.no_grad():
        parts = model.parts() if parts is None else parts
    values = answer_each(
        model, batches.groups, batches, lambda batch: model.log_likelihood(batch, parts=parts).tolist()
    )
    strange = [sum(not vocabulary.knows(word) for word in words) for words in sentences]
    return [Scored(value, len(row), count) for value, row, count in zip(values, rows, strange, strict=True)]


def tag(
    model: Model[Any, Any], sentences: Sequence[Sequence[int]], method: Method = "posterior", *, parts: Any = None
) -> Tagged:
    """The state of every word of sentences in ids, that of `<eos>` left out; -1 where a sentence is impossible."""
    sequences = expect_sequences(model, "tag")
    with torch.no_grad():
        parts = model.parts() if parts is None else parts
    of = "states"

    def best_paths(batch: Batch) -> list[list[int]]:
        nonlocal of
        query = sequences.query(model.potentials(batch, parts=parts))
        of = query.of
        paths: list[list[int]] = (query.viterbi() if method == "viterbi" else query.mbr()).path.tolist()
        return paths

    batches = length_batches(sentences, TAGGED_TOKENS)
    paths = answer_each(model, batches.groups, batches, best_paths)
    return Tagged([path[: len(words) - 1] for path, words in zip(paths, sentences, strict=True)], of)


def predict(model: Any, prefix: Sequence[str] = (), *, top: int = 10) -> list[Predicted]:
    """The likeliest next words after the beginning of a sentence, the likeliest first; `<eos>` is one of them."""
    vocabulary = expect_vocabulary(model, "predict")
    if top < 1:
        raise DomainError(f"top is {top}, but must be at least 1.")
    ids = prefix_ids(prefix, vocabulary)
    expect_memory(model, [len(ids)], "sentence", outside=True)  # float64: as much as two passes hold
    found: Any = model.predict_ids(model.batch(torch.tensor([ids])) if ids else None)
    log_probs: Tensor  # "v"   a grammar's end has no id, it comes last
    if vocabulary.ends:
        log_probs, names = found[0], list(vocabulary.words)
    else:
        log_probs, names = torch.cat([found.log_words[0], found.log_end]), [*vocabulary.words, EOS]
    if not bool((log_probs > float("-inf")).any()):
        raise DomainError("the text has probability 0 under this model: nothing can follow it.")
    best = log_probs.topk(min(top, len(names)))
    return [Predicted(names[i], value) for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]


def prefix_ids(words: Sequence[str], vocabulary: Vocabulary) -> list[int]:
    """The ids of the beginning of a sentence, without an end."""
    ids = vocabulary.encode(words)
    return ids[:-1] if vocabulary.ends else ids


def seeded(model: Model[Any, Any], seed: int | None) -> torch.Generator:
    """A generator on the model's device; without a seed it draws other numbers each time."""
    generator = torch.Generator(device=model.device)
    if seed is None:
        generator.seed()
        return generator
    if not 0 <= seed < 2**63:
        raise DomainError(f"seed is {seed}, but must be at least 0 and below 2**63.")
    return generator.manual_seed(seed)


def word_choice(temperature: float = 1.0, top_k: int | None = None, *, no_unk: bool = False) -> WordChoice:
    """The change of a distribution of words, `<unk>` left out or not."""
    return WordChoice(temperature, top_k, (Vocabulary.unk_id,) if no_unk else ())


def generate(
    model: Model[Any, Any],
    num: int = 1,
    *,
    prefix: Sequence[str] = (),
    max_length: int = 100,
    choice: WordChoice | None = None,
    generator: torch.Generator | None = None,
) -> list[Drawn]:
    """Independent sentences; those of a grammar are drawn given that they have at most `max_length` words.

    `choice` changes the distribution that each word is drawn from: of sequences p(word | all words before it), of
    grammars p(word | its symbol), under trees as they are.
    """
    vocabulary = expect_vocabulary(model, "generate")
    if model.config.data == "sentences":
        if prefix:
            raise UnsupportedError("a prefix is for models of sequences: a grammar makes a sentence from its root.")
        trees = expect_grammar(model).generate_trees(num, max_length=max_length, choice=choice, generator=generator)
        return [Drawn(vocabulary.decode(row), True) for row in trees.words]
    ids = prefix_ids(prefix, vocabulary)
    rows = expect_sequences(model, "sample").generate_ids(
        num, prefix=ids, max_length=max_length, choice=choice, generator=generator
    )
    return [Drawn([*prefix, *vocabulary.decode(row)], len(row) < max_length) for row in rows]


def score_text(model: Model[Any, Any], text: Any, *, end: bool = True, parts: Any = None) -> Any:
    """See `Model.score`."""
    vocabulary = expect_vocabulary(model, "score")

    def question(sentences: list[list[str]]) -> list[float | None]:
        expect_memory(model, list(map(len, sentences)), "sentence", outside=False)
        return [found.log_prob for found in score(model, sentences, end=end, parts=parts)]

    return answer_text(text, vocabulary, question, ends=not end)


def tag_text(model: Model[Any, Any], text: Any, *, method: Method = "posterior", parts: Any = None) -> Any:
    """See `Model.tag`."""
    vocabulary = expect_vocabulary(model, "tag")
    if method not in ("posterior", "viterbi"):
        raise DomainError(f'method is {method!r}, but must be "posterior" or "viterbi".')

    def question(sentences: list[list[str]]) -> list[list[tuple[str, int]]]:
        states = tag(model, vocabulary.encode_all(sentences).sentences, method, parts=parts).states
        return [list(zip(words, path, strict=True)) for words, path in zip(sentences, states, strict=True)]

    return answer_text(text, vocabulary, question, [])


def parse_text(
    model: Model[Any, Any],
    text: Any,
    *,
    decode: Decode = "mbr",
    labels: bool = False,
    brackets: Any = None,
    parts: Any = None,
) -> Any:
    """See `Model.parse`."""
    vocabulary = expect_vocabulary(model, "parse")
    expect_grammar(model)
    if decode not in ("mbr", "viterbi"):
        raise DomainError(f'decode is {decode!r}, but must be "mbr" or "viterbi".')

    def question(sentences: list[list[str]]) -> list[Any]:
        for number, words in enumerate(sentences, 1):
            expect_no_brackets(words, f"sentence {number}")
        expect_memory(model, list(map(len, sentences)), "sentence", outside=True)
        own = None
        if brackets is not None:
            every = [brackets] if isinstance(text, str) else list(brackets)
            lines = [text] if isinstance(text, str) else text
            if len(every) != len(lines):
                raise DomainError(f"brackets are of {len(every)} sentences, but there are {len(lines)}: one list each.")
            own = [spans for spans, line in zip(every, lines, strict=True) if words_of(line, vocabulary)]
        return [
            found.tree for found in parse(model, sentences, decode=decode, labels=labels, brackets=own, parts=parts)
        ]

    return answer_text(text, vocabulary, question)
