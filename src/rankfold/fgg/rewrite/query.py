"""Queries: constraints on a grammar's strings, as finite automata whose arcs read one symbol each.

A sentence is an automaton with one path; missing words are arcs that read anything; a regular constraint is any
automaton. A query becomes a grammar only together with the grammar it is asked of (`query_grammar.py`): its rules take
the shape of that grammar's rules, as conjunction wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, may_look
from rankfold.fgg.hypergraph import Domain, Label

Word = str | int
Bracket = tuple[int, int] | tuple[int, int, str]


@dataclass(frozen=True)
class Arc:
    """A step of the automaton from one state to another, reading one symbol.

    `seen`: the position of the sentence it reads, or None; `allowed`: whether an evidence factor says which symbols
    it takes. With neither it reads anything.
    """

    source: int
    target: int
    seen: int | None = None
    allowed: bool = False
    is_batched: bool = False


@dataclass(frozen=True)
class QueryShape:
    """The structure of a query without its words: equal for all sentences of a length, so caches go by it.

    `is_ragged`: each sentence of a batch ends in one of the final states, which a factor of its own says.
    """

    num_states: int
    initial: int
    finals: tuple[int, ...]
    arcs: tuple[Arc, ...]
    brackets: frozenset[Bracket] = frozenset()
    domain: str | None = None
    is_ragged: bool = False


def end_domain(domain: str, shape: QueryShape) -> tuple[Domain, ...]:
    """The domain of the states in which sentences of unequal lengths end; none where they are of one length."""
    return (Domain(f"end[{domain}]", shape.num_states),) if shape.is_ragged else ()


def end_label(domain: str) -> Label:
    """The factor that is 1 at the state in which a sentence ends, and else 0."""
    return Label(f"end[{domain}]", (f"end[{domain}]",), is_terminal=True, is_batched=True)


@dataclass(frozen=True, eq=False)
class Query:
    """A query: its shape, the words a sentence has at its positions, and the words an arc allows.

    `words` is "n" or "b n" nested tuples of words or ids, None where a word is missing; `allowed` holds for each
    arc with evidence the words it takes, for each sentence of a batch where the arc is batched (None: any). `lengths`
    are those of sentences of unequal lengths.
    """

    shape: QueryShape
    words: Tensor | tuple[tuple[Word | None, ...], ...] | None = None
    is_batch: bool = False
    allowed: tuple[tuple[Word, ...], ...] = ()
    lengths: Tensor | None = None  # "b"


def string_query(
    words: Sequence[Word | None] | Sequence[Sequence[Word | None]] | Tensor,  # "n" or "b n"
    *,
    lengths: Sequence[int] | Tensor | None = None,  # "b"
    domain: str | None = None,
    brackets: Iterable[Bracket] = (),
) -> Query:
    """The query whose only strings are these sentences: one, or a batch, of any lengths.

    `words` are ids or, where the domain names its values, words; None (in tensors -1) is a missing word, which sums
    over all. `lengths`: those of the rows of a tensor, whose ids beyond are never looked at; lists tell theirs by
    themselves. A batch of unequal lengths has the structure of its longest sentence, and costs as much for each, but
    for sums on a CPU, which leave out what lies beyond a sentence's end.
    `domain`: the observed domain, needed where a grammar has several. `brackets`: spans `(i, j)`, words i to j - 1,
    that every derivation must have as the words of one nonterminal, or `(i, j, "X")` as those of an X; the same for a
    whole batch.
    """
    table, is_batch = _table(words)
    if isinstance(table, Tensor):
        own, length = _lengths(lengths, table), int(table.shape[-1])
    elif lengths is not None:
        raise ShapeError("lengths go with a tensor of words; lists have the lengths they have.\n  Leave lengths out.")
    else:
        every = [len(row) for row in table]
        own, length = torch.tensor(every) if len(set(every)) > 1 else None, max(every)
    arcs = []
    for position, missing in enumerate(_missing(table, length, own)):
        if not any(missing):
            arcs.append(Arc(position, position + 1, seen=position))
        elif all(missing):
            arcs.append(Arc(position, position + 1))
        else:
            arcs.append(Arc(position, position + 1, seen=position, allowed=True, is_batched=True))
    required = frozenset(brackets)
    _expect_brackets(required, length, own)
    finals = (length,) if own is None else tuple(range(length + 1))
    shape = QueryShape(length + 1, 0, finals, tuple(arcs), required, domain, own is not None)
    return Query(shape, table, is_batch, lengths=own)


def _lengths(given: Sequence[int] | Tensor | None, table: Tensor) -> Tensor | None:  # "b"
    """The lengths of a tensor's rows; None where all are whole."""
    if given is None:
        return None
    found = torch.as_tensor(given)
    if table.ndim != 2 or found.shape != table.shape[:1] or found.dtype.is_floating_point:
        raise ShapeError(
            f"lengths have shape {tuple(found.shape)} and dtype {found.dtype}, the words shape {tuple(table.shape)}: "
            "one whole number for each row of a batch was expected."
        )
    if may_look(found):
        for k, length in enumerate(found.tolist()):
            if not 0 <= length <= table.shape[1]:
                raise ShapeError(f"Sentence {k} has length {length}, but its row has {table.shape[1]} words.")
    return found


def _expect_brackets(brackets: Iterable[Bracket], length: int, lengths: Tensor | None) -> None:
    """Raise unless every bracket is a span of every sentence."""
    shortest, where = length, f"{length} words"
    if lengths is not None and may_look(lengths):
        shortest, k = min((own, k) for k, own in enumerate(lengths.tolist()))
        where = f"sentence {k}, which has {shortest} words"
    for bracket in brackets:
        if not 0 <= bracket[0] < bracket[1] <= shortest:
            raise DomainError(
                f"Bracket {bracket} is not a span of {where}: (i, j) with 0 <= i < j <= {shortest} was expected."
            )


def automaton_query(
    arcs: Iterable[tuple[int, int, Word | Iterable[Word] | None]],
    *,
    initial: int = 0,
    finals: Iterable[int],
    domain: str | None = None,
) -> Query:
    """The query whose strings are those a finite automaton accepts: arcs `(source, target, words)`, None for any word.

    A string is weighed as often as the automaton has accepting paths for it: once if it is deterministic. Two arcs
    between the same states that read the same word are refused. States are numbered from 0. Without a bound on the
    length the sum is a least fixed point. A sentence is asked after all automata.
    """
    taken: dict[tuple[int, int], set[Word] | None] = {}
    for source, target, words in arcs:
        if source < 0 or target < 0:
            raise DomainError(f"Arc ({source}, {target}) names a negative state; states are numbered from 0.")
        new = None if words is None else {words} if isinstance(words, str | int) else set(words)
        old = taken.get((source, target), set())
        if (new is None and old != set()) or (old is None and new != set()):
            raise DomainError(f"Two arcs from {source} to {target} read the same word, one of them any: keep that one.")
        if new is not None and old is not None and new & old:
            raise DomainError(
                f"Two arcs from {source} to {target} read {sorted(map(str, new & old))[0]!r}: name it once."
            )
        taken[source, target] = None if new is None or old is None else old | new
    ends = tuple(sorted(set(finals)))
    if not ends:
        raise DomainError("The automaton has no final state, so it accepts nothing.\n  Name one: finals=[2].")
    states = {state for pair in taken for state in pair}
    if initial not in states and taken:
        raise DomainError(f"The initial state {initial} is at no arc; the arcs name {sorted(states)}.")
    for end in ends:
        if end not in states | {initial}:
            raise DomainError(f"The final state {end} does not exist: arcs name {sorted(states | {initial})}.")
    listed, allowed = [], []
    for (source, target), words in sorted(taken.items()):
        if words is not None and not words:
            continue  # an arc that reads no word is never taken
        listed.append(Arc(source, target, allowed=words is not None))
        if words is not None:
            allowed.append(tuple(sorted(words, key=str)))
    num_states = 1 + max([initial, *ends, *(max(pair) for pair in taken)])
    return Query(QueryShape(num_states, initial, ends, tuple(listed), domain=domain), allowed=tuple(allowed))


def _table(words: object) -> tuple[Tensor | tuple[tuple[Word | None, ...], ...], bool]:
    """The sentences as an int64 tensor "n" or "b n", or as a tuple of sentences; and whether they are a batch."""
    if isinstance(words, Tensor):
        if words.dtype != torch.int64 or words.ndim not in (1, 2) or 0 in words.shape[:-1]:
            raise ShapeError(
                f"The words are {words.dtype} of shape {tuple(words.shape)}, but ids are int64 of shape (n,) or (b, n)."
            )
        return words, words.ndim == 2
    if isinstance(words, str):
        raise ShapeError(f"The words are one string, {words!r}; a sentence is a list of words: {words.split()!r}.")
    sentences = list(words)  # type: ignore[call-overload]
    is_batch = bool(sentences) and isinstance(sentences[0], list | tuple | Tensor)
    rows = (
        [tuple(row.tolist() if isinstance(row, Tensor) else row) for row in sentences]
        if is_batch
        else [tuple(sentences)]
    )
    return tuple(rows), is_batch


def _missing(
    table: Tensor | tuple[tuple[Word | None, ...], ...], length: int, lengths: Tensor | None
) -> list[list[bool]]:
    """For each position, of the sentences that have one there, which miss it; none while values may not be seen."""
    if isinstance(table, Tensor):
        if not may_look(table):
            return [[False]] * length
        rows = ((table if table.ndim == 2 else table[None]) == -1).tolist()
        ends = [length] * len(rows) if lengths is None else lengths.tolist()
        return [[row[k] for row, end in zip(rows, ends, strict=True) if k < end] for k in range(length)]
    return [[row[k] is None for row in table if k < len(row)] for k in range(length)]
