"""What processes that share a model's states send to one another in a gradient step, counted before it is taken."""

from __future__ import annotations

from typing import NamedTuple

from rankfold.planning.cost import FLOAT


class Message(NamedTuple):
    """One kind of message of a step: numbers that a process gives to a collective, and how often."""

    what: str
    collective: str  # "all_reduce", "all_gather", "reduce_scatter"
    numbers: int  # each time
    times: int

    @property
    def bytes(self) -> int:
        """Of all of them, in float32."""
        return FLOAT * self.numbers * self.times


def chain_messages(
    num_states: int, rank: int | None, dim: int, batch: int, length: int, devices: int, shared: int
) -> tuple[Message, ...]:
    """Of a chain: a message a position and direction; the rest once. `shared`: numbers that all processes hold."""
    own, steps = -(-num_states // devices), max(0, length - 1)
    if rank is not None:
        found = [Message("messages, forward and backward", "all_reduce", batch * rank, 2 * steps)]
        found.append(Message("normalisers of ranks", "all_reduce", rank, 7))
    else:
        found = [
            Message("messages, forward", "reduce_scatter", batch * devices * (own + 1), steps),
            Message("messages, backward and for the gradient", "all_gather", batch * own, 2 * steps),
        ]
        if dim:
            found.append(Message("embeddings of targets", "all_gather", own * dim, 1))
            found.append(Message("their gradients", "reduce_scatter", own * devices * dim, 1))
    found.append(Message("scales and checks", "all_reduce", 3 * batch * length, 1))
    return (*found, Message("gradients that all share", "all_reduce", shared, 1))


def block_messages(
    num_clusters: int, per_cluster: int, dim: int, batch: int, length: int, devices: int, shared: int
) -> tuple[Message, ...]:
    """Of a block-sparse chain: the states of a position's block, once for each direction; the rest once."""
    own = -(-num_clusters // devices) * per_cluster
    found = [Message("messages, forward and backward", "all_reduce", batch * per_cluster, 2 * max(0, length - 1))]
    if dim:
        found.append(Message("embeddings of targets", "all_gather", own * dim, 1))
        found.append(Message("their gradients", "reduce_scatter", own * devices * dim, 1))
    return (*found, Message("gradients that all share", "all_reduce", shared, 1))
