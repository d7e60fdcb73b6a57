"""Tokenizers: how a line of text becomes words, and words become a line. A vocabulary keeps the one of its text.

"spaces" cuts at white space alone, "simple" also around punctuation; "characters" and "subwords" cut words, and write
the space before one as U+2581.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from rankfold.errors import DataError, UnsupportedError
from rankfold.files import read_json, write_text

Kind = Literal["spaces", "simple", "characters", "subwords"]
FILE, FORMAT, VERSION = "tokenizer.json", "rankfold-tokenizer", 1
SPACE = "\u2581"  # stands for a space in tokens of characters and subwords
REMEMBERED, LONGEST = 2**18, 40  # chunks kept by a memory, and characters of one: about 50 MB
UNK = "<unk>"

# Scripts written without spaces: each character is a token.
SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_L = rf"(?:(?![{SINGLE}])[^\W_])"
TOKEN = re.compile(
    rf"{UNK}|-[LR][RSC]B-"  # the latter: brackets as treebanks write them
    rf"|(?:(?<!{_L}){_L}\.){{2,}}(?!{_L})"  # U.S. and e.g.
    rf"|{_L}+(?:['\u2019-]{_L}+|(?<=\d)[.,:](?=\d){_L}+)*"
    rf"|[{SINGLE}]"
    r"|(\S)\1*"
)
JOINERS = "\u200c\u200d"  # inside words of Persian and of Indian scripts
_CLOSING = r"[.,;:!?%)\]}\u2026\u201d\u00bb\u2019\u061f\u060c\u061b\u0964]"
NO_SPACE_BEFORE = re.compile(rf" (?={_CLOSING}+(?:\s|\"|$))")
NO_SPACE_AFTER = re.compile(r"(?<=[(\[{\u201c\u00ab\u2018\u00bf\u00a1]) ")
QUOTED = re.compile(r'" ([^"]*) "')


@dataclass(frozen=True)
class Tokenizer:
    """How the text of a model was cut into words; new text is cut in the same way.

    `definition`: of "subwords", what the package `tokenizers` saved, as JSON.
    """

    kind: Kind = "spaces"
    definition: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise DataError(f"the tokenizer is {self.kind!r}, but must be one of {', '.join(get_args(Kind))}.")
        if (self.kind == "subwords") != bool(self.definition):
            raise DataError('a tokenizer has a definition if its kind is "subwords", and only then.')

    def tokenize(self, text: str) -> list[str]:
        """The words of a line. Nothing is left out but white space; of "subwords", unseen characters are `<unk>`."""
        if self.kind == "spaces":
            return text.split()
        if self.kind == "simple":
            return [token for chunk in text.split() for token in simple_tokens(chunk)]
        if self.kind == "characters":
            return _characters(text)
        return list(self._subwords.encode(" ".join(text.split())).tokens)

    def detokenize(self, tokens: Iterable[str]) -> str:
        """A line to read. Of "simple" punctuation is set next to words by rules: not always the text as it was."""
        tokens = list(tokens)
        if self.kind in ("characters", "subwords"):
            return "".join(tokens).replace(SPACE, " ").strip()
        line = " ".join(tokens)
        if self.kind == "spaces":
            return line
        line = QUOTED.sub(r'"\1"', line)
        return NO_SPACE_AFTER.sub("", NO_SPACE_BEFORE.sub("", line))

    @cached_property
    def _subwords(self) -> Any:
        package = _package()
        try:
            return package.Tokenizer.from_str(self.definition)
        except Exception as error:  # the package raises plain ones
            raise DataError(
                f"the package tokenizers cannot read the definition of the subwords: {error!s:.100}."
            ) from None

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json into a folder."""
        write_text(Path(folder) / FILE, json.dumps({"format": FORMAT, "version": VERSION, **self.to_mapping()}) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a folder; that at "spaces" where there is no tokenizer.json."""
        path = Path(folder) / FILE
        if not path.exists():
            return cls()
        content = read_json(path, "the tokenizer.json of a prepared text")
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
            raise DataError(f'{path}: not a tokenizer: an object with "format": "{FORMAT}" was expected.')
        try:
            return cls.from_mapping(content)
        except DataError as error:
            raise DataError(f"{path}: {error}\n  Prepare the text again.") from None

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind, **({"definition": json.loads(self.definition)} if self.definition else {})}

    @classmethod
    def from_mapping(cls, content: Any) -> Tokenizer:
        """What `to_mapping` gave; `DataError` for anything else."""
        if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
            raise DataError('"tokenizer" must be an object with "kind".')
        definition = content.get("definition")
        return cls(content["kind"], "" if definition is None else json.dumps(definition))


def simple_tokens(chunk: str) -> list[str]:
    """The tokens of a text without white space: words, numbers, and punctuation.

    A word is letters, digits and the marks on them, with single apostrophes, hyphens, and between digits points, commas
    and colons inside: don't, well-known, 3.14. Single letters with points stay together: U.S. Of any other
    sign, a run of equal ones is a token. Chinese and Japanese characters are tokens by themselves. Tokens are
    tokens of themselves; `<unk>` is one, and so are -LRB- and the like.
    """
    if chunk.isascii() and chunk.isalpha():
        return [chunk]
    shadow = chunk
    if not chunk.isascii():  # \w has no combining marks: letters in their places
        shadow = "".join("a" if c in JOINERS or unicodedata.category(c)[0] == "M" else c for c in chunk)
    return [chunk[found.start() : found.end()] for found in TOKEN.finditer(shadow)]


class Memory(dict[str, str]):
    """A function of chunks of text that remembers its answers: most chunks of a text are among a few thousand."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__()
        self.answer = answer

    def __missing__(self, chunk: str) -> str:
        found = self.answer(chunk)
        if len(chunk) <= LONGEST:
            if len(self) >= REMEMBERED:
                self.clear()
            self[chunk] = found
        return found


def train_subwords(lines: Iterable[str], num_types: int) -> Tokenizer:
    """Byte-pair encoding of at most `num_types` types, trained on these lines; pieces keep to words and punctuation."""
    package = _package()
    if num_types < 2:
        raise UnsupportedError(f"--vocabulary is {num_types}, but subwords need at least 2 types.")
    found = package.Tokenizer(package.models.BPE(unk_token=UNK, fuse_unk=False))
    found.pre_tokenizer = package.pre_tokenizers.Sequence(
        [
            package.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
            package.pre_tokenizers.Punctuation("isolated"),
        ]
    )
    trainer = package.trainers.BpeTrainer(vocab_size=num_types, special_tokens=[UNK], show_progress=False)
    found.train_from_iterator(lines, trainer)
    return Tokenizer("subwords", json.dumps(json.loads(found.to_str())))


def expect_package() -> None:
    """Raise unless the package `tokenizers` is installed."""
    _package()


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UnsupportedError(
            "subwords need the package tokenizers.\n"
            '  pip install "rankfold[tokenizers]", or take the simple tokenizer, or characters.'
        ) from None
    return tokenizers


def _characters(text: str) -> list[str]:
    chunks = text.split()
    if any(SPACE in chunk for chunk in chunks):
        raise DataError(
            f"the text holds the character {SPACE!r}, which stands for a space between characters.\n"
            "  Replace it, or take the simple tokenizer."
        )
    return list(SPACE.join(chunks))
