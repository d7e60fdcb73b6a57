"""Which labels spans can have at all: what tells a weight of 0 from one that underflow took.

The same recursion over zeros and ones, so that nothing underflows. Read next: `recursions/tree/rungs.py`, which asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.scaled import prepared, step


def lost(f: Forest, raw: Iterable[Tensor]) -> Tensor:  # "b s n" by width from 2 -> "b"
    """Whether a sentence has a span whose entry for a label that it can have is so small that underflow may weigh.

    A term that underflows is below `tiny`, and grows on its way to the parents by at most the rules' `gain`.
    Cost: an inside pass.
    """
    info = torch.finfo(f.log_leaf.dtype)
    gain = torch.stack([rule.gain.expand(len(f.lengths)) for rule in f.rules]).amax(0)
    needed = (info.tiny / info.eps * gain)[:, None, None]
    found = torch.zeros_like(f.lengths, dtype=torch.bool)
    for possible, entries in zip(possible_labels(f), raw, strict=True):
        found |= (possible & ~(entries >= needed)).flatten(1).any(1)
    return found


def possible_labels(f: Forest) -> Iterator[Tensor]:  # "b s n" bool, by width from 2
    """Whether a tree of any weight over a span has a label at its top; no tree reaches beyond a length."""
    kind, num_words = f.log_leaf.dtype, f.log_leaf.shape[1]
    is_log = {id(x): log for rule in f.rules for x, log in zip(rule.factors(), rule.log_factors, strict=True)}
    some, none = f.log_leaf.new_zeros(()), f.log_leaf.new_full((), float("-inf"))
    factors = (torch.where(x > none, some, none) if is_log[id(x)] else (x > 0).to(kind) for x in f.tensors()[4:])
    rules = f.with_tensors(f.log_leaf, f.log_root, f.log_root_leaf, f.log_span, *factors).rules
    span = (f.inside().unsqueeze(-1) & (f.log_leaf > none)).to(kind)
    leaves = prepared(rules, span)
    lefts, rights = {1: span}, {1: span}
    for width in range(2, num_words + 1):
        count = num_words - width + 1
        splits = range(2, width - 1) if width > 3 else range(1, 2)  # of narrow spans, a step looks at no such split
        left = torch.stack([lefts[k][:, :count] for k in splits], 2)
        right = torch.stack([rights[width - k if width > 3 else 1][:, k : k + count] for k in splits], 2)
        shares = [some + 1.0] * min(width - 1, 3)
        allowed = torch.diagonal(f.log_span, width, 1, 2) > none
        possible = (step(rules, shares, width, leaves, span, left, right) > 0) & allowed.unsqueeze(-1)
        yield possible
        span = possible.to(kind)
        lefts[width], rights[width] = rules.span_span.left(span), rules.span_span.right(span)
