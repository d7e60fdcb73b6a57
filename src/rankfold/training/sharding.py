"""Training of a model whose states several processes hold: all take every batch, each computes its own states.

The updates are those of one process. Gradients of tables stay where their rows are; those of parameters that all states
share are added up in one message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Model
from rankfold.models.sharded import cut_model, shard_of, tables_of
from rankfold.training.config import Config
from rankfold.training.distributed import add_gradients, num_processes
from rankfold.training.gradients import Gradients


def expect_processes(config: Config) -> None:
    """Raise unless a recipe's shards are as many as there are processes, and its updates can be made in shards."""
    num, shards = num_processes(), config.model.shards
    if shards == 1:
        return
    if shards != num:
        raise DomainError(
            f"model.shards is {shards}, but {'1 process was' if num == 1 else f'{num} processes were'} started.\n"
            f"  Start as many: torchrun --nproc-per-node {shards} -m rankfold train ..., or set model.shards={num}."
        )
    if config.train.optimizer == "em":
        raise UnsupportedError(
            f"model.shards is {shards}, but expected counts of EM are not shared by processes.\n"
            '  Train by gradients: train.optimizer="adamw", or in one process.'
        )
    shard_of(config.model)  # raises where there are too few states


def shard_model(model: Model[Any, Any], config: Config) -> Model[Any, Any]:
    """The model with this process's states alone, where the recipe shares them out; else the model itself."""
    return model if config.model.shards == 1 else cut_model(model, shard_of(config.model))


class ShardedGradients(Gradients):
    """Fills the gradients of its own rows, and of what all states share."""

    def __init__(self, model: Model[Any, Any], *arguments: Any) -> None:
        super().__init__(model, *arguments)
        tables, named = tables_of(model), dict(model.named_parameters())
        self.rows = [x for name, x in named.items() if name in tables]
        self.shared = [x for name, x in named.items() if name not in tables]
        self.sent_early = []  # their backward pass has messages of its own

    def _own(self, batch: Batch, seed: int) -> Batch:
        return batch

    def _summed(self, compute: Callable[[], float]) -> float:
        value = compute()  # all have the same
        add_gradients(self.shared, lambda: 0.0)
        return value

    def whole_carried(self) -> Any:
        return self.model.gather_carried(self.carried)

    def own_carried(self, carried: Any) -> Any:
        return self.model.cut_carried(carried)

    def _clipped(self) -> Tensor:  # ""
        """Clip the gradient of the whole model to the recipe's norm; its norm before."""
        shard = self.model.shard
        assert shard is not None
        squares = [sum((_square(x) for x in group), torch.zeros(())) for group in (self.rows, self.shared)]
        norm = (shard.total(squares[0]) + squares[1]).sqrt()
        torch.nn.utils.clip_grads_with_norm_([*self.rows, *self.shared], self.config.train.clip or math.inf, norm)
        return norm


def _square(x: Tensor) -> Tensor:  # ""
    return torch.zeros(()) if x.grad is None else x.grad.detach().square().sum().cpu()
