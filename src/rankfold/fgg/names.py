"""The checks of names: that one is known, that none is given twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
