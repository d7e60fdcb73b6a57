"""A bound on the loss to underflow in the charts of trees, sentence by sentence.

Units: `tiny`, the smallest normal number; everything below it counts as lost. A second recursion, over zeros and ones
so that nothing underflows, tells a weight of 0 from one that underflow took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from rankfold.recursions.tree import ranks, scaled
from rankfold.recursions.tree.charts import Tops
from rankfold.recursions.tree.potentials import Forest


def vectors_kept(f: Forest, chart: scaled.Chart) -> Tensor:  # "b"
    """Whether the loss to underflow in a sentence's spans is below the round-off of their entries.

    A term that underflows is below `tiny`, and grows on its way to the parents by at most the rules' `gain`.
    """
    lows = chart.lows
    if not lows:
        return torch.ones_like(f.lengths, dtype=torch.bool)
    num_words, info = chart.leaf.shape[1], torch.finfo(chart.leaf.dtype)
    inside = torch.cat([f.inside()[:, width - 1 :] for width in range(2, num_words + 1)], 1)
    norm, reached = torch.cat(chart.norms[2:], 1)[..., 0], torch.cat(chart.tops[2:], 1) > float("-inf")
    inner, *sides, words = (rule.gain.expand(len(norm)) for rule in f.rules)
    mixed = torch.maximum(*sides)
    by_width = [words, mixed] + [torch.maximum(inner, mixed)] * (num_words - 3)
    gain = torch.cat([x[:, None].expand_as(low) for x, low in zip(by_width, lows, strict=False)], 1)
    low = torch.cat(lows, 1).double() >= (info.tiny / info.eps) * gain
    fine = (clear(norm)) & (low | ~zeros_are_losses(f)[:, None])
    return (~(reached & inside) | fine).all(1)


def ranks_kept(f: Forest, chart: ranks.Chart, tops: Tops) -> Tensor:  # "b"
    """Whether the loss to underflow in a sentence is below the round-off of the rest.

    What underflows is a term below `tiny`, or a share below it next to both sides: with h the largest left entry times
    the largest right one, or 1, a vector over ranks loses at most k h tiny / norm, for k terms; what is made of it that
    times the sums of the weights (`gain`). So every entry of a side, those of rank vectors need not be seen, and the
    sum at the root must be `gain` h / norm times the bound of `clear`. Zeros are losses where no rule explains them.
    """
    low, high = chart.grid.amin(-1), chart.grid.amax(-1)
    grown = at_least_one(high.triu().amax((1, 2)).double() * high.tril().amax((1, 2)).double())
    low, high = torch.minimum(low, low.mT), torch.maximum(high, high.mT)
    strict = zeros_are_losses(f)[:, None]
    info = torch.finfo(chart.leaf.dtype)
    bound = info.tiny / info.eps
    words = _packed(low, [1]).double() >= bound * chart.sides.gain(leaf=True)[..., None]
    sound = ((chart.leaf_scale == float("-inf")) | ~strict | words) & (_packed(high, [1]) < float("inf"))
    if chart.num_words < 2:
        return sound.all(-1)
    norm = torch.cat(chart.norms, 1)[..., 0]
    reached = torch.cat(chart.tops, 1) > float("-inf")
    fine = clear(norm)
    least = bound * grown[:, None] / norm.double().clamp(max=1.0)
    below = list(range(2, chart.num_words))  # the whole sentence, last, has no sides
    if below:
        needed = chart.sides.gain(leaf=False)[..., None] * least[:, :-1]
        fine[:, :-1] &= (~strict | (_packed(low, below).double() >= needed)) & (_packed(high, below) < float("inf"))
    width = torch.where(f.lengths > 1, f.lengths, 2)
    whole = (width - 2) * (chart.num_words + 1) - (width * (width - 1) // 2 - 1)  # of its spans, packed from width 2
    gain = tops.root.double().sum(-1)
    if chart.sides.head is not None:
        gain = gain * chart.sides.head.most(-1)
    rooted = tops.total >= gain * least.gather(1, whole[:, None])[:, 0]
    return sound.all(-1) & (~reached | fine).all(-1) & rooted


def _packed(cells: Tensor, widths: list[int]) -> Tensor:  # "b e e" -> "b s"
    """The cells above the diagonal, width by width."""
    return torch.cat([torch.diagonal(cells, width, 1, 2) for width in widths], 1)


def at_least_one(x: Tensor) -> Tensor:
    """The same, but for numbers below 1."""
    return torch.where(x < 1, 1.0, x)


def clear(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Whether numbers are finite and so large that what underflows next to them is below their round-off."""
    info = torch.finfo(dtype or x.dtype)
    return (x >= info.tiny / info.eps) & (x < float("inf"))


def zeros_are_losses(f: Forest) -> Tensor:  # "b"
    """Whether an entry of 0 is to be taken for one that underflow took.

    In float32 always: float64 can tell. There only where no weight is 0; else `lost_among_zeros` tells.
    """
    if f.log_leaf.dtype != torch.float64:
        return torch.ones_like(f.lengths, dtype=torch.bool)
    possible = (f.log_leaf > float("-inf")).all(-1) | ~f.inside()
    return possible.all(-1) & f.rules.positive()


def lost_among_zeros(f: Forest, raw: Iterable[Tensor]) -> Tensor:  # "b s n" by width from 2 -> "b"
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
    kind = f.log_leaf.dtype
    is_log = {id(x): log for rule in f.rules for x, log in zip(rule.factors(), rule.log_factors, strict=True)}
    some, none = f.log_leaf.new_zeros(()), f.log_leaf.new_full((), float("-inf"))
    factors = (torch.where(x > none, some, none) if is_log[id(x)] else (x > 0).to(kind) for x in f.tensors()[4:])
    rules = f.with_tensors(f.log_leaf, f.log_root, f.log_root_leaf, f.log_span, *factors).rules
    leaf = (f.inside().unsqueeze(-1) & (f.log_leaf > none)).to(kind)

    def reached(width: int, weight: Tensor) -> Tensor:
        allowed = torch.diagonal(f.log_span, width, 1, 2) > none
        return ((weight > 0) & allowed.unsqueeze(-1)).to(kind)

    spans = scaled.spans_by_width(rules, leaf, lambda width: [some + 1.0] * min(width - 1, 3), reached)
    return (span > 0 for span in spans)
