"""How words are written before they are looked up: lower case, numbers as N. Read next: `data/vocab.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
