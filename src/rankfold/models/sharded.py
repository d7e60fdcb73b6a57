"""Models whose states several processes hold: each keeps the rows of its own states, of all tables that have them.

Parameters that all states share (networks, embeddings of words, projections) are on every process; their gradients
are sums over all, and small. No table of states, and no gradient of one, is ever sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from rankfold.errors import UnsupportedError
from rankfold.models.base import Model
from rankfold.models.config import SHARDED
from rankfold.numerics.shard import Shard
from rankfold.params.dropout import num_kept
from rankfold.planning.messages import Message, block_messages, chain_messages

M = TypeVar("M", bound=Model[Any, Any])


def shard_of(config: Any, number: int | None = None, num: int | None = None) -> Shard:
    """The share of this process, or of one by its number, in the states of a model (a block model: in its clusters)."""
    if config.family not in SHARDED:
        raise UnsupportedError(
            f'the states of "{config.family}" cannot be shared by processes.\n'
            f"  Families that can: {', '.join(SHARDED)}."
        )
    clusters = config.has_clusters
    size, what = (config.num_clusters, "clusters") if clusters else (config.num_states, "states")
    if number is None or num is None:
        return Shard.of_processes(size, what=what)
    return Shard(size, number, num, what=what)


def cut_model(model: M, shard: Shard) -> M:
    """The same model with the rows of one process alone, in place."""
    for module, name in _tables(model):
        table: nn.Parameter = getattr(module, name)
        setattr(module, name, nn.Parameter(table.detach()[shard.own].clone()))
    for module in model.modules():
        if hasattr(type(module), "shard"):
            setattr(module, "shard", shard)  # noqa: B010 - which modules have one is not said by their type
    return model


def whole_config(config: Any) -> Any:
    """The configuration of the whole model, however many processes hold it."""
    return config if config.shards == 1 else replace(config, shards=1)


def num_parameters_of(model: Model[Any, Any], devices: int) -> int:
    """Numbers in the parameters of one of so many devices: its rows of the tables, and all that they share."""
    if model.shard is not None or devices == 1:
        return model.num_parameters
    shard, tables = shard_of(model.config, 0, devices), tables_of(model)
    rows = ((x, shard.height if name in tables else len(x)) for name, x in model.named_parameters())
    return sum(x.numel() // len(x) * height for x, height in rows)


def messages(model: Model[Any, Any], batch: int, length: int, devices: int) -> tuple[Message, ...]:
    """What one of so many devices sends in a gradient step."""
    config = model.config
    shard_of(config, 0, devices)
    tables = tables_of(model)
    shared = sum(x.numel() for name, x in model.named_parameters() if name not in tables)
    dim = config.dim if config.neural else 0
    if config.has_clusters:
        size = num_kept(config.num_states // config.num_clusters, config.state_dropout)
        return block_messages(config.num_clusters, size, dim, batch, length, devices, shared)
    rank = None if config.own_rank is None else num_kept(config.rank, config.feature_dropout)
    return chain_messages(config.num_states, rank, dim, batch, length, devices, shared)


def tables_of(model: Model[Any, Any]) -> set[str]:
    """The names of the tensors in a model's state that are cut by rows."""
    names = {id(getattr(module, name)) for module, name in _tables(model)}
    return {name for name, x in model.named_parameters() if id(x) in names}


def cut_state(model: Model[Any, Any], whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This process's rows of the state of a whole model."""
    assert model.shard is not None
    tables, shard = tables_of(model), model.shard
    fits = {name for name, x in whole.items() if name in tables and len(x) == shard.size}
    return {name: x[shard.own].clone() if name in fits else x for name, x in whole.items()}


def _tables(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules and the names of their tables with a row for each state, or cluster."""
    for module in model.modules():
        for name in getattr(type(module), "state_tables", ()):
            yield module, name
