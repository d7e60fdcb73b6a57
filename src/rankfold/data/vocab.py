"""Words and their ids: a closed vocabulary built from a training text, saved next to the model that uses it.

Two ids are fixed: 0 is the unknown word `<unk>`, 1 is the end of a sentence `<eos>`, which vocabularies of grammars do
not have: trees end by themselves. There is no start and no padding symbol: both would take probability from real words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rankfold.data.tokenize import UNK as UNKNOWN
from rankfold.data.tokenize import Tokenizer
from rankfold.errors import DataError, DomainError, expect_absent
from rankfold.files import read_json, write_text

# The same words as [0-9]{1,}([,.]?[0-9]*)* of the papers' code, without its nested repetition.
_NUMBER = re.compile(r"[0-9][0-9,.]*")


@dataclass(frozen=True)
class Spelling:
    """Rules that a vocabulary applies to each word; by default none.

    As papers on unsupervised parsing prepare text both are set, case first. Text that was prepared before stays as
    it is only without `lower`, which would turn its N into n.
    """

    lower: bool = False
    numbers: bool = False

    def __call__(self, word: str) -> str:
        """The word as it is looked up."""
        small = word.lower() if self.lower else word
        return number_to_n(small) if self.numbers else small

    def __bool__(self) -> bool:
        return self.lower or self.numbers


def number_to_n(word: str) -> str:
    """The word with each digit, and the digits, commas and points that follow it, replaced by one N."""
    return _NUMBER.sub("N", word)


UNK, EOS = UNKNOWN, "<eos>"
FORMAT, VERSION = "rankfold-vocabulary", 1


@dataclass(frozen=True)
class Encoded:
    """Sentences as ids, each ending in `<eos>` if `ends`, and the words that were replaced by `<unk>`, with counts.

    Iterates over the sentences, so that batches take it as it is.
    """

    sentences: list[list[int]]
    unknown: Mapping[str, int]
    ends: bool = True

    @property
    def num_unknown(self) -> int:
        """How many tokens were not in the vocabulary; `<unk>` in the text itself is not one of them."""
        return sum(self.unknown.values())

    @property
    def num_tokens(self) -> int:
        """The denominator of a perplexity: all words and one end per sentence, whether or not the ids hold an `<eos>`.

        Grammars generate no end, but their published perplexities count one: exp(-log p / (words + sentences)).
        """
        return sum(map(len, self.sentences)) + (0 if self.ends else len(self.sentences))

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.sentences)

    def __len__(self) -> int:
        return len(self.sentences)


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """Words in the order of their ids, and how often the training text held each.

    `counts[0]` is that of `<unk>` after rare words were cut; with `ends`, `counts[1]` is the number of sentences. Words
    are looked up as `spelling` writes them; `tokenizer` cuts a line of new text into words, as the training text was.
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]
    ends: bool = True  # false: sentences of a grammar, which have no <eos>
    spelling: Spelling = field(default_factory=Spelling)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    index: Mapping[str, int] = field(init=False, compare=False)
    unk_id: ClassVar[int] = 0
    eos_id: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.ends and self.words[:2] != (UNK, EOS):
            raise DataError(f"a vocabulary starts with {UNK} and {EOS}, but this one with {list(self.words[:2])}.")
        if not self.ends and (self.words[:1] != (UNK,) or EOS in self.words):
            raise DataError(f"a vocabulary without ends starts with {UNK}, and does not hold {EOS}.")
        if len(self.counts) != len(self.words):
            raise DataError(f"{len(self.words)} words, but {len(self.counts)} counts: one count for each word.")
        object.__setattr__(self, "index", {word: i for i, word in enumerate(self.words)})
        if len(self.index) < len(self.words):
            word = next(word for i, word in enumerate(self.words) if self.index[word] != i)
            first = self.words.index(word)
            raise DataError(f"the word {word!r} has two ids, {first} and {self.words.index(word, first + 1)}.")

    @classmethod
    def build(
        cls,
        sentences: Iterable[Sequence[str]],
        *,
        max_size: int | None = None,
        min_count: int = 1,
        ends: bool = True,
        spelling: Spelling | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> Vocabulary:
        """The words of a text: `<unk>`, `<eos>`, then the most frequent first, equal counts in order of code points.

        `max_size` limits `len(vocabulary)`, `<unk>` and `<eos>` included. Words beyond it, and words seen less than
        `min_count` times, count as `<unk>`; so does the token `<unk>` of a text that was cut before. With `ends` false
        there is no `<eos>`, as grammars need it.
        """
        spelling = spelling or Spelling()
        fixed = (UNK, EOS) if ends else (UNK,)
        if max_size is not None and max_size < len(fixed):
            raise DomainError(f"max_size is {max_size}, but {' and '.join(fixed)} alone make {len(fixed)}.")
        if min_count < 1:
            raise DomainError(f"min_count is {min_count}, but every word of the text occurs at least once.")
        counts: Counter[str] = Counter()
        num_sentences = 0
        for tokens in sentences:
            num_sentences += 1
            _check(tokens, f"sentence {num_sentences}")
            counts.update(map(spelling, tokens) if spelling else tokens)
        if not num_sentences:
            raise DataError("no sentences: a vocabulary is built from at least one.")
        num_tokens = counts.total()
        del counts[UNK]
        ordered = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        kept = ordered if max_size is None else ordered[: max_size - len(fixed)]
        num_unk = num_tokens + sum(count for count, _ in kept)
        num_fixed = (num_unk, num_sentences) if ends else (num_unk,)
        words = (*fixed, *(word for _, word in kept))
        counted = (*num_fixed, *(-count for count, _ in kept))
        return cls(words, counted, ends, spelling, tokenizer or Tokenizer())

    @property
    def has_unk_mass(self) -> bool:
        """Whether the training text holds `<unk>`. Where it does not, an unknown word has no trained probability."""
        return self.counts[self.unk_id] > 0

    def id_of(self, word: str) -> int:
        """The id of a word, as `spelling` writes it; that of `<unk>` if it is unknown."""
        return self.index.get(self.spelling(word), self.unk_id)

    def knows(self, word: str) -> bool:
        """Whether a word has an id of its own; `<unk>` has."""
        return self.spelling(word) in self.index

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """The ids of one sentence and, with `ends`, of `<eos>`; unknown words become `<unk>`: `encode_all` counts."""
        return self._encode(tokens, "the sentence")

    def encode_all(self, sentences: Iterable[Sequence[str]]) -> Encoded:
        """The ids of every sentence, and every word that is not in the vocabulary."""
        encoded, unknown = [], Counter[str]()
        for number, tokens in enumerate(sentences, 1):
            ids = self._encode(tokens, f"sentence {number}")
            encoded.append(ids)
            if self.unk_id in ids:
                unknown.update(word for word in tokens if not self.knows(word))
        return Encoded(encoded, unknown, self.ends)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words with these ids, `<eos>` among them; not the inverse of `encode`, which may add `<eos>`."""
        words = []
        for i in map(int, ids):
            if not 0 <= i < len(self.words):
                raise DomainError(f"the id {i} is outside this vocabulary, whose ids are 0 to {len(self.words) - 1}.")
            words.append(self.words[i])
        return words

    def fingerprint(self) -> str:
        """The sha256 of the words in order, and their spelling if it has rules: equal exactly if ids mean the same."""
        content = [self.words, self._rules()] if self.spelling else self.words
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _rules(self) -> dict[str, bool]:
        return {"lower": self.spelling.lower, "numbers": self.spelling.numbers}

    def save(self, path: str | Path) -> None:
        """Write `vocab.json`, whole or not at all; another vocabulary is replaced, any other file refused."""
        expect_format(path, FORMAT)
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "words": self.words, "counts": self.counts}
        content |= {} if self.ends else {"ends": False}
        content |= {"spelling": self._rules()} if self.spelling else {}
        content |= {} if self.tokenizer.kind == "spaces" else {"tokenizer": self.tokenizer.to_mapping()}
        write_text(path, json.dumps(content) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """The vocabulary that `save` wrote; `DataError` for any other file."""
        path = Path(path)
        content = read_json(path, "a vocabulary, the vocab.json beside a model,")
        try:
            return cls(*_parse(content))
        except DataError as error:
            raise DataError(f"{path}: {error}\n  Save it again with Vocabulary.save.") from None

    def _encode(self, tokens: Sequence[str], where: str) -> list[int]:
        _check(tokens, where)
        if self.spelling:
            ids = list(map(self.id_of, tokens))
        else:
            known, unknown = self.index.get, self.unk_id
            ids = [known(word, unknown) for word in tokens]
        return [*ids, self.eos_id] if self.ends else ids

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} words, sha256 {self.fingerprint()[:12]})"


def expect_format(path: str | Path, format: str) -> None:
    """Raise unless there is no such file, or one of ours that says it is of this format: JSON with that `format`."""
    try:
        content = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != format:
        expect_absent(path, f'JSON with "format": "{format}"')


def _check(tokens: Sequence[str], where: str) -> None:
    """Raise on a sentence that is one string, and on the end symbol inside a sentence."""
    if isinstance(tokens, str):
        raise DataError(f"{where} is the string {tokens[:40]!r}, but a list of words was expected: use .split().")
    if EOS in tokens:
        raise DataError(
            f"{where}: token {list(tokens).index(EOS) + 1} is {EOS}, which marks the end of a sentence.\n"
            f"  {EOS} is added to each sentence here: remove it from the text, one sentence a line."
        )


def _parse(content: Any) -> tuple[tuple[str, ...], tuple[int, ...], bool, Spelling, Tokenizer]:
    """Words, counts, ends, spelling and tokenizer of a parsed `vocab.json`."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f'not a vocabulary: an object with "format": "{FORMAT}" was expected.')
    if content.get("version") != VERSION:
        raise DataError(f"format version {content.get('version')!r}, but this release reads version {VERSION}.")
    words, counts = content.get("words"), content.get("counts")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DataError('"words" must be a list of strings.')
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise DataError('"counts" must be a list of whole numbers, at least 0.')
    ends, rules = content.get("ends", True), content.get("spelling", {})
    known = isinstance(rules, dict) and rules.keys() <= {"lower", "numbers"}
    if type(ends) is not bool or not known or not all(type(rule) is bool for rule in rules.values()):
        raise DataError('"ends" must be true or false, "spelling" an object of "lower" and "numbers".')
    tokenizer = Tokenizer.from_mapping(content["tokenizer"]) if "tokenizer" in content else Tokenizer()
    return tuple(words), tuple(counts), ends, Spelling(**rules), tokenizer
