"""A derivation with an assignment: which rules replaced which edges, and the value of every node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Derivation:
    """A rule by its name, the value of each of its nodes, and a derivation for each nonterminal edge, in their order.

    `log_weight` is the logarithm of the product of all factors, here and below, where it is known.
    """

    rule: str
    values: Mapping[str, int]
    children: tuple[Derivation, ...] = ()
    log_weight: float | None = None

    def __iter__(self) -> Iterator[Derivation]:
        """This derivation and all below it, parents first."""
        ahead = [self]
        while ahead:
            found = ahead.pop()
            yield found
            ahead += reversed(found.children)
