"""One pass over a schedule, level by level, in one arithmetic: the inside weights of every nonterminal (equations 3
and 4).

    psi_X[x] = sum over the rules of X, over the values of their inner nodes, of the product of factors and children

Read next: `fgg/sum_product.py`, which decides on the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankfold.fgg.contraction import Contraction, plan_contraction
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.operands import (
    FIRST_NODE,
    PARENT,
    SENTENCE,
    SPLIT,
    Operand,
    by_rule,
    distinct,
    gather,
    kept,
    node_axes,
    sliced,
    values_of,
)
from rankfold.fgg.schedule import Block, Group, Schedule
from rankfold.fgg.semirings import Arithmetic

Tapped = Collection[tuple[str, str | None]]


@dataclass
class Run:
    """The tables of one pass: of each table its blocks, in order, "row b ...", and, scaled, the logarithms of their
    scales.

    `low` are, scaled, the smallest entries of each block against the level below which they may have lost digits:
    above 1 is sound. `lost` says of each factor whether scaling took digits. `taps` are tensors of ones through
    which a rule, or a node of a rule, was multiplied: gradients of log Z there are posteriors.
    """

    grammar: Grammar
    schedule: Schedule
    arithmetic: Arithmetic
    weights: Mapping[str, Tensor]
    batch: int
    tapped: Tapped = ()
    blocks: dict[str, list[Tensor]] = field(default_factory=dict)
    scales: dict[str, list[Tensor]] = field(default_factory=dict)
    begins: dict[str, list[int]] = field(default_factory=dict)
    low: list[Tensor] = field(default_factory=list)
    lost: list[Tensor] = field(default_factory=list)
    risky: list[tuple[str, int, Tensor]] = field(default_factory=list)
    taps: dict[tuple[int, str | None], Tensor] = field(default_factory=dict)
    _lifted: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def like(self) -> Tensor:
        """A tensor of the kind the pass computes with."""
        return next(iter(self.weights.values()))

    def all(self) -> Run:
        """The run, carried out."""
        for level in self.schedule.levels:
            for block in level:
                self._block(block)
        return self

    def is_sound(self) -> Tensor:  # ""   bool
        """Whether no entry may have lost digits; zeros count as lost here, whatever their reason."""
        sound = torch.stack(self.low).amin() >= 1
        return sound & ~torch.stack(self.lost).any() if self.lost else sound

    def start(self) -> tuple[Tensor, Tensor]:  # "b" twice
        """The value of the start symbol and the logarithm of its scale (0 without)."""
        table, row = self.schedule.row_of[self.schedule.start]
        value = self.blocks[table][-1][row - self.begins[table][-1]]
        if not self.arithmetic.is_scaled:
            return value, value.new_zeros(())
        return value, self.scales[table][-1][row - self.begins[table][-1]]

    def _block(self, block: Block) -> None:
        shape = [self.grammar.size(domain) for domain in self.schedule.domains[block.table]]
        num = block.end - block.begin
        operands = [self._operands(group) for group in block.groups]
        scale = self._block_scale(block, [own[1] for own in operands]) if self.arithmetic.is_scaled else None
        total: Tensor | None = None
        for group, (own, log_scale) in zip(block.groups, operands, strict=True):
            if scale is not None:
                own = self._weighted(group, own, log_scale, scale, block)
            found = self._contract(group, own, shape)
            if len(group.rows) < num or group.rows != tuple(range(block.begin, block.end)):
                index: Tensor = kept(
                    group,
                    ("rows", found.device),
                    lambda group=group: torch.tensor([row - block.begin for row in group.rows], device=found.device),
                )
                empty = self.arithmetic.zero(found, (num, *found.shape[1:]))
                found = empty.index_copy(0, index, found)
            total = found if total is None else self.arithmetic.add(total, found)
        if total is None:
            total = self.arithmetic.zero(self.arithmetic.lift(self.like), (num, self.batch, *shape))
        if scale is not None:
            total = self._rescaled(block, total, scale)
        self.blocks.setdefault(block.table, []).append(total)
        self.begins.setdefault(block.table, []).append(block.begin)

    def _operands(self, group: Group) -> tuple[list[Operand], Tensor | None]:
        """What the group multiplies, and the logarithm of its scale, "p s b" or less, children first."""
        found: list[Operand] = []
        log_scales: list[Tensor] = []
        device, axis_of = self.like.device, node_axes(group)
        for k, (table, nodes, _) in enumerate(group.children):
            blocks = self.blocks[table]
            how = gather(group, k, self.begins[table], [len(x) for x in blocks], device)
            child = _taken(blocks, how.blocks, how.index)
            own = by_rule(child, group, [SENTENCE, *(axis_of[node] for node in nodes)])
            found.append(distinct(*own))
            if self.arithmetic.is_scaled:
                scale = _taken(self.scales[table], how.blocks, how.index)
                log_scales.append(scale.unflatten(0, (len(group.rows), group.splits)))
        values = {node: values_of(group, node, self.grammar.observed, device) for node in group.observed}
        for label, nodes in group.factors:
            weights, log_scale = self._factor(label)
            is_batched = self.grammar.label(label).is_batched
            found.append(sliced(weights, group, nodes, values, is_batched=is_batched))
            log_scales.append(log_scale)
        found += self._tap(group)
        found += self._ones(group, found)
        if not self.arithmetic.is_scaled:
            return found, None
        total = torch.zeros((), dtype=torch.float64, device=device)
        for scale in log_scales:
            total = total + scale
        return found, total.expand(len(group.rows), group.splits, self.batch)

    def _factor(self, label: str) -> tuple[Tensor, Tensor]:
        """A factor in the arithmetic, its largest entry 1 if that is scaled, and the logarithm of its scale."""
        if label not in self._lifted:
            weights = self.weights[label]
            log_scale = torch.zeros((), dtype=torch.float64, device=weights.device)
            if self.arithmetic.is_scaled:
                top = weights.detach().amax()
                top = torch.where(top > 0, top, 1.0)
                weights, log_scale = weights / top, top.double().log()
                tiny = torch.finfo(weights.dtype).tiny
                self.lost.append(((weights.detach() < tiny) & (self.weights[label].detach() > 0)).any())
            self._lifted[label] = self.arithmetic.lift(weights), log_scale
        return self._lifted[label]

    def _tap(self, group: Group) -> list[Operand]:
        """Ones for what a gradient is wanted of."""
        found = []
        wanted = {node for rule in group.rules for name, node in self.tapped if name in (rule, "*")}
        for node in sorted(wanted, key=str):
            if node is not None and node not in {own.name for own in group.nodes}:
                continue
            size = [] if node is None else [self.grammar.size(next(n.domain for n in group.nodes if n.name == node))]
            ones = self.like.new_ones((len(group.rules), self.batch, *size), requires_grad=True)
            self.taps[id(group), node] = ones
            axes = [SENTENCE] if node is None else [SENTENCE, node_axes(group)[node]]
            found.append(by_rule(ones, group, axes))
        return found

    def _ones(self, group: Group, operands: list[Operand]) -> list[Operand]:
        """Ones for nodes that no edge touches, and for equal rules: they are summed like all others."""
        axes = {axis for operand in operands for axis in operand.axes}
        like = self.arithmetic.lift(self.like)
        found = []
        for node, axis in zip(group.nodes, node_axes(group).values(), strict=True):
            if axis not in axes and node.observed is None:
                found.append(Operand(self.arithmetic.one(like, (self.grammar.size(node.domain),)), (axis,)))
        if group.splits > 1 and SPLIT not in axes:
            found.append(Operand(self.arithmetic.one(like, (group.splits,)), (SPLIT,)))
        return found or ([] if operands else [Operand(self.arithmetic.one(like, ()), ())])

    def _plan(self, group: Group, operands: list[Operand]) -> tuple[Contraction, tuple[int, ...]]:
        """The order for these operands, and the axes of what comes out."""
        inputs = tuple(operand.axes for operand in operands)

        def make() -> tuple[Contraction, tuple[int, ...]]:
            sizes = {axis: size for own in operands for axis, size in zip(own.axes, own.tensor.shape, strict=True)}
            axis_of = node_axes(group)
            wanted = (PARENT, SENTENCE, *(axis_of[node] for node in group.externals))
            output = tuple(axis for axis in wanted if axis in sizes)
            return plan_contraction(inputs, output, sizes), output

        return kept(group, ("plan", inputs, self.batch), make)

    def _contract(self, group: Group, operands: list[Operand], shape: list[int]) -> Tensor:  # "p b ..."
        plan, output = self._plan(group, operands)
        left = [operand.tensor for operand in operands]
        for step in plan.steps:
            a = left[step.left]
            b = None if step.right is None else left[step.right]
            left = [x for k, x in enumerate(left) if k not in (step.left, step.right)]
            left.append(self.arithmetic.product(step, a, b))
        found = left[0]
        for place, axis in enumerate((PARENT, SENTENCE)):
            if axis not in output:
                found = found.unsqueeze(place)
        return found.expand(len(group.rows), self.batch, *shape)

    def _block_scale(self, block: Block, log_scales: list[Tensor | None]) -> Tensor:  # "row b"
        """For every parent the largest scale of any of its rules."""
        rows = block.end - block.begin
        found = self.like.new_full((rows, self.batch), float("-inf"), dtype=torch.float64)
        for group, log_scale in zip(block.groups, log_scales, strict=True):
            assert log_scale is not None
            own = log_scale.amax(1)
            index: Tensor = kept(
                group,
                ("rows", own.device),
                lambda group=group: torch.tensor([row - block.begin for row in group.rows], device=own.device),
            )
            found = found.index_copy(0, index, torch.maximum(found.index_select(0, index), own))
        return torch.where(found > float("-inf"), found, 0.0)

    def _weighted(
        self, group: Group, operands: list[Operand], log_scale: Tensor | None, scale: Tensor, block: Block
    ) -> list[Operand]:
        """The operands, the smallest that has an entry for every rule weighed by the rule's scale against its
        parent's."""
        assert log_scale is not None
        if group.splits == 1 and len(block.groups) == 1:
            return operands
        index: Tensor = group.made["rows", scale.device]  # type: ignore[assignment]
        weight = torch.exp(log_scale - scale.index_select(0, index)[:, None]).to(self.like.dtype)
        weight = weight[:, 0] if group.splits == 1 else weight
        axes = (PARENT, SENTENCE) if group.splits == 1 else (PARENT, SPLIT, SENTENCE)
        ranked = [k for k, own in enumerate(operands) if own.axes[: len(axes)] == axes]
        if not ranked:
            return [*operands, Operand(weight, axes)]
        best = min(ranked, key=lambda k: operands[k].tensor.numel())
        tensor, own_axes = operands[best]
        scaled = tensor * weight.reshape(*weight.shape, *[1] * (tensor.ndim - weight.ndim))
        return [Operand(scaled, own_axes) if k == best else own for k, own in enumerate(operands)]

    def _rescaled(self, block: Block, total: Tensor, scale: Tensor) -> Tensor:
        """The block with the largest entry of every nonterminal 1; what may have lost digits is noted."""
        fixed = total.detach()
        inner = tuple(range(2, fixed.ndim))
        top = fixed.amax(inner, keepdim=True) if inner else fixed
        top = torch.where(top > 0, top, 1.0)
        terms = max((self._terms(group) for group in block.groups), default=1)
        info = torch.finfo(total.dtype)
        least = info.tiny * terms / info.eps
        found = total / top
        self.low.append((torch.minimum(found.detach(), fixed).amin() / least).double())
        self.risky.append((block.table, block.begin, torch.minimum(found.detach(), fixed) < least))
        own = scale + top.reshape(scale.shape).double().log()
        self.scales.setdefault(block.table, []).append(own)
        return found

    def _terms(self, group: Group) -> float:
        """No fewer than the products that are added up for one number."""
        sizes = [self.grammar.size(node.domain) for node in group.nodes if node.observed is None]
        edges = len(group.children) + len(group.factors) + 1
        return float(math.prod(sizes)) * group.splits * edges * edges


def _taken(blocks: list[Tensor], used: tuple[int, ...], index: Tensor | None) -> Tensor:
    whole = blocks[used[0]] if len(used) == 1 else torch.cat([blocks[k] for k in used])
    return whole if index is None else whole.index_select(0, index)


assert FIRST_NODE > SENTENCE
