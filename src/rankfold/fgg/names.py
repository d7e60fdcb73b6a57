"""Names: checks that one is known and that none is given twice, and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from rankfold.errors import DomainError

_SHOWN = 8  # names in a message; a conjoined grammar has thousands


def expect_unique(names: Iterable[str], kind: str) -> None:
    """Raise if a name appears twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise DomainError(f"There are {times} of one name: {kind} {name!r}. Rename all but one.")


def expect_known(name: str, known: Mapping[str, object], where: str, kind: str) -> None:
    """Raise unless a name, used at `where`, is one of the known names."""
    if name not in known:
        raise DomainError(f"There is no {kind} {name!r}, named by {where}.\n  {suggestion(name, known)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or the known names, as a sentence."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    shown = ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    return f"Did you mean {near[0]!r}?" if near else f"Known: {shown or 'none'}."


def fresh_name(stem: str, taken: Collection[str]) -> str:
    """The stem with the first number that makes it new."""
    number = 1
    while f"{stem}{number}" in taken:
        number += 1
    return f"{stem}{number}"
