"""Scales of a pass in linear space: the largest entry of every nonterminal is 1; what may have lost digits is known.

Rules of one parent have children of different scales; they are weighed against the largest before they are added up.
Read next: `fgg/run.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.fgg.operands import PARENT, SENTENCE, SPLIT, Operand, kept
from rankfold.fgg.schedule import Block, Group


@dataclass
class Scaling:
    """What a pass keeps of its scales: of each table the logarithms, block by block, "row b", float64.

    `low` are the smallest entries of each block, `high` its largest, `least` the level below which entries may have
    lost digits; `unscaled` are the blocks with that level, `lost` says whether scaling took digits of a factor,
    `has_nothing` whether sums are 0 because factors are.
    """

    scales: dict[str, list[Tensor]] = field(default_factory=dict)
    low: list[Tensor] = field(default_factory=list)
    high: list[Tensor] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    unscaled: list[tuple[str, int, Tensor, float]] = field(default_factory=list)
    lost: list[Tensor] = field(default_factory=list)
    has_nothing: bool = False

    def is_sound(self) -> Tensor:  # ""   bool
        """Whether no entry may have lost digits; a zero counts as lost here, whatever its reason."""
        return self._is_above() & self.is_below()

    def is_below(self) -> Tensor:  # ""   bool
        """Whether no sum came so near the largest number that it, or a gradient through it, may have lost digits."""
        if may_look(self.high[0]):
            least = torch.tensor(self.least, dtype=torch.float64, device=self.high[0].device)
            return (torch.stack(self.high).double() * least <= 1).all()
        return torch.stack([x.double() * least <= 1 for x, least in zip(self.high, self.least, strict=True)]).all()

    def _is_above(self) -> Tensor:  # ""   bool
        low = torch.stack(self.low)
        if may_look(low):
            low = low.double() / torch.tensor(self.least, dtype=torch.float64, device=low.device)
        else:  # a captured pass copies nothing from the host
            low = torch.stack([x.double() / least for x, least in zip(self.low, self.least, strict=True)])
        high = torch.stack(self.high)
        sound = (low / torch.maximum(high, torch.ones_like(high))).amin() >= 1
        return sound & ~torch.stack(self.lost).any() if self.lost else sound

    def factor(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """A factor with its largest entry 1, and the logarithm of its scale."""
        fixed = weights.detach()
        top = fixed.amax()
        top = torch.where(top > 0, top, 1.0)
        scaled = weights / top
        self.lost.append(((scaled.detach() < torch.finfo(weights.dtype).tiny) & (fixed > 0)).any())
        return scaled, top.double().log()

    def of_parents(self, block: Block, log_scales: list[Tensor], batch: int) -> Tensor:  # "p [s] b" -> "row b"
        """For every parent the largest scale of any of its rules; 0 for one without rules."""
        rows = block.end - block.begin
        if len(log_scales) == 1 and len(block.groups[0].rows) == rows:
            return log_scales[0].amax(1) if block.groups[0].splits > 1 else log_scales[0]
        found = torch.full((rows, batch), float("-inf"), dtype=torch.float64, device=_device(log_scales))
        for group, log_scale in zip(block.groups, log_scales, strict=True):
            index = rows_in(group, block, log_scale.device)
            top = log_scale.amax(1) if group.splits > 1 else log_scale
            found = found.index_copy(0, index, torch.maximum(found.index_select(0, index), top))
        return torch.where(found > float("-inf"), found, 0.0)

    def weighted(
        self, group: Group, operands: list[Operand], log_scale: Tensor, scale: Tensor, block: Block
    ) -> list[Operand]:
        """The operands, the smallest that has an entry for every rule weighed by its scale against its parent's."""
        if group.splits == 1 and len(block.groups) == 1:
            return operands
        is_whole = len(group.rows) == len(scale)
        own = scale if is_whole else scale.index_select(0, rows_in(group, block, scale.device))
        weight = torch.exp(log_scale - (own[:, None] if group.splits > 1 else own)).to(operands[0].tensor.dtype)
        axes: tuple[int, ...] = (PARENT, SPLIT, SENTENCE) if group.splits > 1 else (PARENT, SENTENCE)
        ranked = [k for k, operand in enumerate(operands) if operand.axes[: len(axes)] == axes]
        if not ranked:
            return [*operands, Operand(weight, axes)]
        best = min(ranked, key=lambda k: operands[k].tensor.numel())
        tensor, own_axes = operands[best]
        scaled = tensor * weight.reshape(*weight.shape, *[1] * (tensor.ndim - weight.ndim))
        return [Operand(scaled, own_axes) if k == best else x for k, x in enumerate(operands)]

    def rescaled(self, block: Block, total: Tensor, scale: Tensor, terms: float) -> Tensor:
        """The block with the largest entry of every nonterminal 1, its scale kept; `terms`: products in a number.

        All that is multiplied is at most 1 in size, so what underflow takes of an entry is below `terms` times the
        smallest number; entries above that by the inverse of the rounding error have all their digits.
        """
        fixed = total.detach() if total.requires_grad else total
        inner = tuple(range(2, fixed.ndim))
        top = fixed.amax(inner, keepdim=True) if inner else fixed
        info = torch.finfo(total.dtype)
        top = top.masked_fill(top == 0, 1.0)
        least = info.tiny * terms / info.eps
        low, high = torch.aminmax(fixed)
        self.low.append(low)
        self.least.append(least)
        self.high.append(high)
        self.unscaled.append((block.table, block.begin, fixed, least))
        self.keep(block.table, scale + top.reshape(scale.shape).double().log())
        return total / top

    def keep(self, table: str, scale: Tensor) -> None:
        """Keep the scales of the next block of a table."""
        self.scales.setdefault(table, []).append(scale)


def rows_in(group: Group, block: Block, device: torch.device) -> Tensor:  # "p"
    """The rows of a group's parents within their block."""
    return kept(group, ("rows", device), lambda: torch.tensor([row - block.begin for row in group.rows], device=device))


def num_terms(group: Group, sizes: list[int]) -> float:
    """No fewer than the products that are added up for one number; `sizes` of the nodes that are not observed."""
    edges = len(group.children) + len(group.factors) + 1
    return math.prod(map(float, sizes)) * group.splits * edges * edges


def _device(log_scales: list[Tensor]) -> torch.device:
    return log_scales[0].device if log_scales else torch.device("cpu")
