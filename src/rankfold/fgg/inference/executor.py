"""One pass over a schedule, level by level, in one arithmetic: the inside weights of every nonterminal.

    psi_X[x] = sum over the rules of X, over the values of their inner nodes, of the product of factors and children

These are equations 3 and 4. In linear space the largest entry of every nonterminal is scaled to 1, and the pass knows
whether digits may have been lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.fgg.contraction import Contraction, Semiring, contract, num_terms, plan_contraction, sound_level
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.inference.operands import (
    PARENT,
    SENTENCE,
    SPLIT,
    Operand,
    by_rule,
    diagonal,
    gather,
    memoise,
    node_axes,
    slice_observed,
    values_of,
)
from rankfold.fgg.inference.schedule import Block, Group, Schedule

Tapped = Collection[tuple[str, str | None]]


@dataclass
class Scaling:
    """The scales of a pass: of each table their logarithms, block by block, "row b", float64.

    `low` are the smallest entries of each block, `high` its largest, `least` the level below which entries may have
    lost digits; `unscaled` are the blocks with that level, `lost` says whether scaling took digits of a factor,
    `has_nothing` whether sums are 0 because factors are, `has_gaps` whether rules of weight 0 have no scale.
    """

    scales: dict[str, list[Tensor]] = field(default_factory=dict)
    low: list[Tensor] = field(default_factory=list)
    high: list[Tensor] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    unscaled: list[tuple[str, int, Tensor, float]] = field(default_factory=list)
    lost: list[Tensor] = field(default_factory=list)
    has_nothing: bool = False
    has_gaps: bool = False

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

    def scale_factor(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """A factor with its largest entry 1, and the logarithm of its scale."""
        fixed = weights.detach()
        top = fixed.amax()
        top = torch.where(top > 0, top, 1.0)
        scaled = weights / top
        self.lost.append(((scaled.detach() < torch.finfo(weights.dtype).tiny) & (fixed > 0)).any())
        return scaled, top.double().log()

    def parent_scales(self, block: Block, log_scales: list[Tensor], batch: int) -> Tensor:  # "p [s] b" -> "row b"
        """For every parent the largest scale of any of its rules; 0 for one without rules."""
        rows = block.end - block.begin
        if len(log_scales) == 1 and len(block.groups[0].rows) == rows:
            own = log_scales[0].amax(1) if block.groups[0].splits > 1 else log_scales[0]
            return torch.where(own > float("-inf"), own, 0.0) if self.has_gaps else own
        found = torch.full((rows, batch), float("-inf"), dtype=torch.float64, device=_device(log_scales))
        for group, log_scale in zip(block.groups, log_scales, strict=True):
            index = rows_in(group, block, log_scale.device)
            top = log_scale.amax(1) if group.splits > 1 else log_scale
            found = found.index_copy(0, index, torch.maximum(found.index_select(0, index), top))
        return torch.where(found > float("-inf"), found, 0.0)

    def weigh(
        self, group: Group, operands: list[Operand], log_scale: Tensor, scale: Tensor, block: Block
    ) -> list[Operand]:
        """The operands, the smallest that has an entry for every rule weighed by its scale against its parent's.

        Rules of one parent have children of different scales: they are weighed against the largest before they add up.
        """
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

    def rescale(self, block: Block, total: Tensor, scale: Tensor, terms: float) -> Tensor:
        """The block with the largest entry of every nonterminal 1, its scale kept; `terms`: products in a number."""
        fixed = total.detach() if total.requires_grad else total
        inner = tuple(range(2, fixed.ndim))
        top = fixed.amax(inner, keepdim=True) if inner else fixed
        top = top.masked_fill(top == 0, 1.0)
        least = sound_level(total.dtype, terms)
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


@dataclass
class Execution:
    """The tables of one pass: of each its blocks, in order, "row b ...", the rows at which they begin, and scales.

    `tapped` are rules ("*": all) and nodes of rules (None: the rule itself) through whose `taps`, tensors of ones, they
    are multiplied: gradients of log Z there are posteriors. `observed`: values in place of the grammar's own. `sound`
    says of a captured pass whether it lost nothing, once it is known.
    """

    grammar: Grammar
    schedule: Schedule
    arithmetic: Semiring
    weights: Mapping[str, Tensor]
    batch: int
    tapped: Tapped = ()
    blocks: dict[str, list[Tensor]] = field(default_factory=dict)
    begins: dict[str, list[int]] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=Scaling)
    taps: dict[tuple[int, str | None], Tensor] = field(default_factory=dict)
    observed: Mapping[str, Tensor] | None = None
    sound: Tensor | None = None  # ""   bool
    _joined: dict[str, tuple[tuple[int, ...], Tensor, Tensor | None]] = field(default_factory=dict)
    _shapes: dict[str, list[int]] = field(default_factory=dict)
    _lifted: dict[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.like = self.arithmetic.lift(next(iter(self.weights.values())).detach())
        self.values = self.grammar.observed if self.observed is None else self.observed
        self._word_numbers = {
            name: torch.arange(table.numel(), device=table.device).reshape(table.shape)
            for name, table in self.values.items()
        }
        self._no_scale = torch.zeros((), dtype=torch.float64, device=self.like.device)

    def run(self) -> Execution:
        """Carry the pass out; returns it."""
        for level in self.schedule.levels:
            for block in level:
                self._block(block)
        return self

    def start(self) -> tuple[Tensor, Tensor]:  # "b" twice
        """The value of the start symbol and the logarithm of its scale (0 without)."""
        table, row = self.schedule.row_of[self.schedule.start]
        here = row - self.begins[table][-1]
        at = here if self.schedule.whole is None else (slice(None), 0)  # of packed sentences each has a row
        value = self.blocks[table][-1][at]
        return value, self.scaling.scales[table][-1][at] if self.arithmetic.is_scaled else value.new_zeros(())

    def _block(self, block: Block) -> None:
        self.begins.setdefault(block.table, []).append(block.begin)
        if self._is_copy(block):
            self._copy(block)
            return
        shape = self._shape(block.table)
        num = block.end - block.begin
        operands = [self.operands(group) for group in block.groups]
        scale = None
        if self.arithmetic.is_scaled:
            scale = self.scaling.parent_scales(block, [own[1] for own in operands], self.batch)
        total: Tensor | None = None
        for group, (own, log_scale) in zip(block.groups, operands, strict=True):
            if scale is not None:
                own = self.scaling.weigh(group, own, log_scale, scale, block)
            found = self._contract(group, own, shape)
            if len(group.rows) < num:
                empty = self.arithmetic.zero(found, (num, *found.shape[1:]))
                found = empty.index_copy(0, rows_in(group, block, found.device), found)
            total = found if total is None else self.arithmetic.add(total, found)
        if total is None:
            total = self.arithmetic.zero(self.like, (num, self.batch, *shape))
        if scale is not None:
            terms = max((self._terms(group) for group in block.groups), default=1.0)
            total = self.scaling.rescale(block, total, scale, terms)
        self.blocks.setdefault(block.table, []).append(total)

    def _is_copy(self, block: Block) -> bool:
        """Whether every nonterminal of the block is one child and nothing else."""
        if len(block.groups) != 1 or self.tapped:
            return False
        (group,) = block.groups
        return memoise(
            group,
            "copy",
            lambda: (
                group.splits == len(group.children) == 1
                and not group.factors
                and group.children[0][1] == group.externals
                and len(group.nodes) == len(group.externals)
            ),
        )

    def _copy(self, block: Block) -> None:
        (group,) = block.groups
        value, scale = self._child(group, 0)
        self.blocks.setdefault(block.table, []).append(value)
        if scale is not None:
            self.scaling.keep(block.table, scale)

    def _child(self, group: Group, k: int) -> tuple[Tensor, Tensor | None]:  # "p*s b ...", "p*s b"
        """The inside weights of the k-th children of the group's rules, and the logarithms of their scales."""
        table = group.children[k][0]
        blocks = self.blocks[table]
        how = gather(group, k, self.begins[table], blocks, self.like.device)
        if table not in self._joined or self._joined[table][0] != how.blocks:
            scales = self.scaling.scales[table] if self.arithmetic.is_scaled else None
            both = (_join(blocks, how.blocks), None if scales is None else _join(scales, how.blocks))
            self._joined[table] = (how.blocks, *both)  # both children of a rule read them
        _, value, scale = self._joined[table]
        return _take(value, how.index_of), None if scale is None else _take(scale, how.index_of)

    def operands(self, group: Group) -> tuple[list[Operand], Tensor]:
        """The operands of a group, children first, and the logarithm of its scale, "p s b" ("p b": one split)."""
        found: list[Operand] = []
        device, axis_of = self.like.device, node_axes(group)
        log_scales: list[Tensor] = []
        shape = (len(group.rows), *[group.splits] * (group.splits > 1), self.batch)
        for k, (_, nodes, _) in enumerate(group.children):
            child, scale = self._child(group, k)
            own = by_rule(child, group, [SENTENCE, *(axis_of[node] for node in nodes)])
            found.append(diagonal(*own))
            if scale is not None:
                log_scales.append(scale if group.splits == 1 else scale.reshape(shape))
        values = {node: values_of(group, node, self.values, device) for node in group.observed}
        for label, nodes in group.factors:
            weights, log_scale = self._factor(label)
            is_batched = self.grammar.label(label).is_batched
            here = values
            if values and not is_batched and (sliced := self._at_words(label, nodes)):
                here = values | {node: values_of(group, node, self._word_numbers, device) for node in sliced}
            found.append(slice_observed(weights, group, nodes, here, is_batched=is_batched))
            log_scales += [] if log_scale is None else [log_scale]
            if (
                log_scale is not None
                and found[-1].axes
                and max(found[-1].axes) <= SENTENCE
                and self._is_constant(label)
            ):
                log_scales.append(self._gaps(found[-1], shape))
        if self.tapped:
            found += self._tap(group)
        found += self._ones(group, found)
        total = sum(log_scales[1:], log_scales[0]) if log_scales else self._no_scale
        return found, total if total.shape == shape else total.expand(shape)

    def _gaps(self, operand: Operand, shape: tuple[int, ...]) -> Tensor:  # "p s b" ("p b": one split)
        """-inf for rules that a constant makes 0 for a sentence, whatever their nodes: no scale, and no gradient."""
        self.scaling.has_gaps = True
        x = operand.tensor
        for place, axis in enumerate((PARENT, SPLIT, SENTENCE) if len(shape) == 3 else (PARENT, SENTENCE)):
            if axis not in operand.axes:
                x = x.unsqueeze(place)
        return torch.where(x.detach() == 0, float("-inf"), self._no_scale)

    def _is_constant(self, label: str) -> bool:
        """Whether nobody wants a gradient of a factor: `marginals` follows every factor, but not at weights of 0."""
        factor = self.grammar.factors.get(label)
        return isinstance(factor, Tensor) and not factor.requires_grad

    def _factor(self, label: str) -> tuple[Tensor, Tensor | None]:
        """A factor in the arithmetic, its largest entry 1 if that is scaled, and the logarithm of its scale."""
        if label not in self._lifted:
            weights = self.weights[label]
            log_scale = None
            if self.arithmetic.is_scaled:
                weights, log_scale = self.scaling.scale_factor(weights)
            self._lifted[label] = self.arithmetic.lift(weights), log_scale
        return self._lifted[label]

    def _at_words(self, label: str, nodes: Sequence[str]) -> list[str]:
        """The nodes at which a factor was made for the cells of the query alone: there are fewer than values."""
        type_, shape = self.grammar.label(label).type, self.weights[label].shape
        return [node for k, node in enumerate(nodes) if shape[k] != self.grammar.size(type_[k])]

    def _tap(self, group: Group) -> list[Operand]:
        """Ones at the rules and nodes whose posteriors are wanted."""
        found = []
        if group.is_added:
            return []
        names = {name for name, _ in self.tapped if name != "*"}
        own = names.intersection(group.names()) if names else ()
        wanted = {node for name, node in self.tapped if name == "*" or name in own}
        domain_of = {node.name: node.domain for node in group.nodes}
        for node in sorted(wanted, key=str):
            size = [] if node is None else [self.grammar.size(domain_of[node])]
            ones = self.arithmetic.one(self.like, (group.num_rules, self.batch, *size)).requires_grad_()
            self.taps[id(group), node] = ones
            axes = [SENTENCE] if node is None else [SENTENCE, node_axes(group)[node]]
            found.append(by_rule(ones, group, axes))
        return found

    def _ones(self, group: Group, operands: list[Operand]) -> list[Operand]:
        """Ones for nodes that no edge touches, and for equal rules: they are summed like all others."""
        axes = {axis for operand in operands for axis in operand.axes}
        found = []
        for node, axis in zip(group.nodes, node_axes(group).values(), strict=True):
            if axis not in axes and node.observed is None:
                found.append(Operand(self.arithmetic.one(self.like, (self.grammar.size(node.domain),)), (axis,)))
        if group.splits > 1 and SPLIT not in axes:
            found.append(Operand(self.arithmetic.one(self.like, (group.splits,)), (SPLIT,)))
        return found or ([] if operands else [Operand(self.arithmetic.one(self.like, ()), ())])

    def _contract(self, group: Group, operands: list[Operand], shape: list[int]) -> Tensor:  # "p b ..."
        inputs = tuple(operand.axes for operand in operands)

        def make() -> tuple[Contraction, tuple[int, ...]]:
            sizes = {axis: size for own in operands for axis, size in zip(own.axes, own.tensor.shape, strict=True)}
            if group.sentences is not None and PARENT in sizes:  # the order serves all batches with about as many rows
                sizes[PARENT] = 1 << sizes[PARENT].bit_length()
            axis_of = node_axes(group)
            wanted = (PARENT, SENTENCE, *(axis_of[node] for node in group.externals))
            output = tuple(axis for axis in wanted if axis in sizes)
            return plan_contraction(inputs, output, sizes), output

        plan, output = memoise(group, ("plan", inputs, self.batch), make)
        found = contract(plan, [operand.tensor for operand in operands], self.arithmetic)
        for place, axis in enumerate((PARENT, SENTENCE)):
            if axis not in output:
                found = found.unsqueeze(place)
        whole = (len(group.rows), self.batch, *shape)
        return found if found.shape == whole else found.expand(whole)

    def _shape(self, table: str) -> list[int]:
        if table not in self._shapes:
            self._shapes[table] = [self.grammar.size(domain) for domain in self.schedule.domains[table]]
        return self._shapes[table]

    def _terms(self, group: Group) -> float:
        """No fewer than the products in one number of the group; sizes are part of the structure."""

        def make() -> float:
            sizes = [self.grammar.size(node.domain) for node in group.nodes if node.observed is None]
            return num_terms([*sizes, group.splits], len(group.children) + len(group.factors))

        return memoise(group, "terms", make)


def _join(blocks: list[Tensor], used: tuple[int, ...]) -> Tensor:
    return blocks[used[0]] if len(used) == 1 else torch.cat([blocks[k] for k in used])


def _take(whole: Tensor, index: Tensor | slice | None) -> Tensor:
    if index is None:
        return whole
    return whole[index] if isinstance(index, slice) else whole.index_select(0, index)


def rows_in(group: Group, block: Block, device: torch.device) -> Tensor:  # "p"
    """The rows of a group's parents within their block."""
    return memoise(group, ("rows", device), lambda: torch.from_numpy(group.rows - block.begin).to(device))


def _device(log_scales: list[Tensor]) -> torch.device:
    return log_scales[0].device if log_scales else torch.device("cpu")
