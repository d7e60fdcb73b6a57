"""The numbers a text holds: weights of factors (`factor f: Z = [1, 2]`) and observed values (`given V = [4, 0]`).

Errors name the line that has them. Read next: `text.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rankfold.errors import DataError, ShapeError
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.statements import LabelLine, Statements
from rankfold.fgg.tokens import Token, text_error


def with_numbers(grammar: Grammar, lines: Statements) -> Grammar:
    """The grammar with the written weights, in float64, and the given observed values."""
    for line in lines.labels:
        if line.weights is not None:
            with placed(line.name):
                weights = {**grammar.written, line.name.text: _weights(line)}
                grammar = Grammar(grammar.hrg, grammar.factors, grammar.observed, weights)
    for given in lines.given:
        name = given.name.text
        if name in grammar.observed:
            raise text_error(given.name, f"the observed {name!r} are given twice.")
        with placed(given.name):
            grammar = grammar.with_observed({name: _tensor(given.values, repr(name), torch.int64)})
    return grammar


def _weights(line: LabelLine) -> Tensor:
    name = line.name.text
    found = _tensor(line.weights, f"factor {name!r}", torch.float64)
    if found.ndim != len(line.type) + line.is_batched:
        raise ShapeError(
            f"factor {name!r} is written with shape {tuple(found.shape)}, but attaches to {len(line.type)} nodes."
        )
    return found


def _tensor(rows: object, what: str, dtype: torch.dtype) -> Tensor:
    try:
        return torch.tensor(rows, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as wrong:
        raise DataError(f"the rows of {what} are not equally long.") from wrong


@contextmanager
def placed(at: Token) -> Iterator[None]:
    """Errors within name the place of a token."""
    try:
        yield
    except ValueError as wrong:
        raise type(wrong)(f"line {at.line}, column {at.column}: {wrong}") from wrong
