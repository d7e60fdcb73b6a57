"""The gradient of an update: its batches one after the other, each in parts of as many rows as fit into memory.

Parts change when things are computed, not what: the loss is -log p / tokens of the whole update, and the parts of one
batch draw the same dropout, so gradients add up to those of the batch. Only the rounding of sums differs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.errors import DomainError
from rankfold.models.base import Model
from rankfold.numerics.precision import matmul_precision, parameter_precision
from rankfold.training.carried import join_rows, leaves, rows_of
from rankfold.training.checkpoint import Progress, update_seed
from rankfold.training.config import Config
from rankfold.training.distributed import (
    EarlySums,
    add_gradients,
    alone,
    any_process,
    joined_rows,
    own_rows,
    own_slice,
    total_of,
)
from rankfold.training.graphs import GraphedGradients
from rankfold.training.memory_budget import Budget
from rankfold.training.shapes import rows_that_fit

RECENT = 16  # updates by graphs; where more than half were repeated, graphs are captured anew


class Gradients:
    """Fills the parameters' gradients; on a GPU by captured graphs where it can. Labels constrain states."""

    def __init__(
        self,
        model: Model[Any, Any],
        optimizer: torch.optim.Optimizer,
        config: Config,
        budget: Budget,
        not_finite: Callable[[list[Batch], str], DomainError],
        num_tokens: int = 1,
    ) -> None:
        """`num_tokens` of the training set: a prior counts once in a pass over them."""
        self.model, self.optimizer, self.config, self.not_finite = model, optimizer, config, not_finite
        self.tokens, self.tree_width = budget.part_tokens, budget.tree_width
        # Where a state is carried in, the start has no gradient: none, which optimisers pass over, not one of zeros.
        self.streams = config.data.batching == "streams"
        # A stream of text stays with its process; recordings are dealt anew with each group of them.
        self.num_streams = config.data.num_streams if self.streams and config.model.data == "text" else 0
        self.parameters = self.sent_early = list(model.parameters())
        self.graphs = GraphedGradients.of(model, config, budget) if budget.graphs else None
        self.carried: Any = None  # the state of streams, after the last batch
        self.num_tokens, self.has_prior = num_tokens, model.log_prior().requires_grad
        # A state that goes from window to window is in float32, whatever log Z is in.
        self.may_widen = budget.wide and not self.streams
        self.progress = Progress()  # of the run, which remembers the updates that graphs could not vouch for
        self.say: Callable[[str], None] = lambda line: None

    def carried_of(self, tensors: Sequence[Tensor]) -> Any:
        """The state of streams in a checkpoint."""
        return self.model.carried_of(tensors)

    def __call__(self, batches: list[Batch], tokens: int, update: int) -> tuple[float, float]:
        """The log-likelihood of an update's batches, and the norm of the gradient before it is clipped.

        With graphs the host waits for the device once.
        """
        self.model.begin_update(update)
        seeds = [update_seed(self.config.train.seed, update, part) for part in range(len(batches))]
        batches = [self._own(batch, seed) for batch, seed in zip(batches, seeds, strict=True)]
        if self.graphs is not None and not any_process(
            not all(self.graphs.takes(x) for batch in batches for x in self._parts(batch))
        ):
            wide = self.may_widen and self.progress.recaptured == 1
            if wide != self.graphs.wide:
                self.graphs.recapture(wide=wide)
            self.optimizer.zero_grad(set_to_none=self.streams)
            self.early = EarlySums(())  # a graph has no moment between two gradients
            graphs, carried = self.graphs, self.carried
            found = torch.zeros((), dtype=torch.float64, device=self.model.device)

            def replay() -> float:  # the log-likelihood stays on the device
                nonlocal carried
                for batch, seed in zip(batches, seeds, strict=True):
                    value, carried = self._replayed(graphs, batch, tokens, seed, None if batch.first else carried)
                    found.add_(value)
                return 0.0

            self._summed(replay)
            self._add_prior()
            lost = [x.isnan().sum().double() for x in leaves(carried)]
            total, norm, *lost = torch.stack([found, self._clipped().double(), *lost]).tolist()
            total, doubt = total_of([total, float(any(lost))])
            sound = math.isfinite(total) and math.isfinite(norm) and not doubt
            self._remember(batches, update, repeated=not sound)
            if sound:
                self.carried = carried
                return total, norm
        self.optimizer.zero_grad(set_to_none=self.graphs is None or self.streams)
        self.parts_left = sum(len(self._rows(batch)) for batch in batches)
        self.early = EarlySums(self.sent_early)
        total = self._summed(
            lambda: sum(self._batch(batch, tokens, seed) for batch, seed in zip(batches, seeds, strict=True))
        )
        self._add_prior()
        return total, float(self._clipped())

    def _remember(self, batches: list[Batch], update: int, *, repeated: bool) -> None:
        """Decide how the next updates' graphs are captured: by counts and sizes alone, so a resumed run decides alike.

        In float64 once most updates are repeated, if that is quick; if most are repeated then, too, as before for good.
        """
        progress, graphs = self.progress, self.graphs
        progress.repeated = (2 * progress.repeated + repeated) % 2**RECENT
        num = progress.repeated.bit_count()
        if graphs is None or not self.may_widen or progress.recaptured == 2 or num <= RECENT // 2:
            return
        if progress.recaptured:
            progress.recaptured, how = 2, "they are captured as before, and such updates repeated without"
        elif any_process(not all(graphs.quick(x) for batch in batches for x in self._parts(batch))):
            progress.recaptured, how = 2, "float64 would take longer than to repeat such updates without"
        else:
            progress.recaptured, how = 1, "they are captured anew in float64"
        progress.repeated = 0
        what = f"captured graphs could not vouch for {num} of the last {RECENT} updates"
        self.say(f"update {update + 1:,}: {what}; {how}")

    def _own(self, batch: Batch, seed: int) -> Batch:
        """The rows of a batch that this process takes, with the noise that is drawn for all of the batch."""
        noise = self.model.draw_noise(len(batch.lengths), torch.Generator(device=self.model.device).manual_seed(seed))
        batch = batch if noise is None else batch._replace(noise=noise)
        return own_rows(batch, self.num_streams)

    def _summed(self, compute: Callable[[], float]) -> float:
        """The sum of all processes' values of `compute`, which fills gradients; these are added up, too."""
        return add_gradients(self.parameters, compute, self.early)

    def whole_carried(self) -> Any:
        """The state of all streams, for a checkpoint."""
        return joined_rows(self.carried)

    def own_carried(self, carried: Any) -> Any:
        """This process's share of the state of all streams."""
        num = 0 if carried is None else len(leaves(carried)[0])
        return rows_of(carried, own_slice(self.num_streams or num)) if num and not alone() else carried

    def _parts(self, batch: Batch) -> list[Batch]:
        return [batch.rows(rows) for rows in self._rows(batch)]

    def _rows(self, batch: Batch) -> list[slice]:
        multiple = 1 if self.graphs is None else self.graphs.filled.multiple(batch.shape[1])
        return row_parts(batch, self.tokens, multiple, tree_width=self.tree_width)

    def _replayed(
        self, graphs: GraphedGradients, batch: Batch, tokens: int, seed: int, carried: Any
    ) -> tuple[Tensor, Any]:
        """Add the gradient of one batch's share of the loss, by graphs; its log-likelihood, and the state after it."""
        found, after = torch.zeros((), dtype=torch.float64, device=self.model.device), []
        for rows in self._rows(batch):
            value, own = graphs.step(batch.rows(rows), tokens, seed, rows_of(carried, rows))
            found += value  # read before another replay writes it again
            after.append(own)
        return found, None if not after or after[0] is None else join_rows(after)

    def _clipped(self) -> Tensor:  # ""
        """Clip the gradient to the recipe's norm; its norm before."""
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.train.clip or math.inf)

    def _batch(self, batch: Batch, tokens: int, seed: int) -> float:
        """Add the gradient of one batch's share of the loss, part by part; its log-likelihood."""
        carried = None if batch.first else self.carried
        found = [self._part(batch, rows, tokens, seed, carried) for rows in self._rows(batch)]
        if self.streams:
            self.carried = None if batch.last or not found else join_rows([after for _, after in found])
        return sum(value for value, _ in found)

    def _part(self, batch: Batch, rows: slice, tokens: int, seed: int, carried: Any) -> tuple[float, Any]:
        """Add the gradient of some rows; their log-likelihood, and the state of streams after them.

        Nothing that has a history outlives the part: it would keep nodes of the parameters that belong to this stream,
        and a graph that is captured on another breaks off when it meets them.
        """
        device, precision = self.model.device, self.config.train.precision
        generator = torch.Generator(device=device).manual_seed(seed)
        part = batch.rows(rows).to(device)
        with matmul_precision(parameter_precision(precision), device):
            try:
                parts = self.model.parts(generator)
                p = self.model.potentials(
                    part,
                    parts=parts,
                    carried=rows_of(carried, rows),
                    generator=generator,
                    allowed=self.model.label_constraint(part),
                )
                log_likelihood = self.model.log_z(p, precision=precision).sum()
            except DomainError as error:  # NaN among the weights
                raise self.not_finite([batch], str(error).splitlines()[0]) from None
            value = float(log_likelihood.detach())
            if not math.isfinite(value):
                raise self.not_finite([batch], f"its log-likelihood is {value}")
            self.parts_left -= 1
            with nullcontext() if self.parts_left else self.early.during_backward():
                (log_likelihood / -tokens).backward()  # type: ignore[no-untyped-call]
        return value, self.model.carry(p, parts) if self.streams and not batch.last else None

    def _add_prior(self) -> None:
        """Add the gradient of -log_prior / num_tokens: over a pass through the training set the prior counts once."""
        if self.has_prior:
            (-self.model.log_prior() / self.num_tokens).backward()  # type: ignore[no-untyped-call]


def row_parts(batch: Batch, tokens: int, multiple: int = 1, *, tree_width: int = 0) -> list[slice]:
    """Rows of a batch in parts of at most so many padded tokens each, or one row; all in one if tokens is 0.

    Widths count as if padded up to a multiple, as graphs do. Parts differ by one row at most. With `tree_width`, tokens
    are those of trees so wide; the memory of a tree grows with the square of its width: narrower ones count for less.
    """
    num, width = batch.shape
    if not num:  # another process has them all
        return []
    padded = -(-width // multiple) * multiple
    largest = rows_that_fit(padded, tokens, tree_width)
    if not tokens or num <= largest:
        return [slice(0, num)]
    num_parts = -(-num // largest)
    ends = [num * i // num_parts for i in range(num_parts + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(ends)]
