"""Supervision as exact constraints: labels of some frames, the order of segments, forbidden transitions.

Nothing here is a penalty: paths that break a constraint have weight 0, and log Z is that of the others. The posterior
is then the one given the constraint.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, UnsupportedError, may_look
from rankfold.operators import Banded, Dense, Operator
from rankfold.params.dynamics.free_tables import FreeDense
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.potentials import SegmentPotentials

if TYPE_CHECKING:
    from rankfold.models.frame_model import FrameModel

NEVER = float("-inf")
FramePotentials = ChainPotentials | SegmentPotentials


def allowed_states(
    labels: Tensor, num_states: int, *, states_of: Tensor | None = None
) -> Tensor:  # "b t" int64, "l z" bool -> "b t z" bool
    """Which states a frame may have: that of its label, all where the label is -1.

    Label l is state l, or the states where `states_of[l]` is true: a label may have several, and states without a
    label are left for frames whose label is not known.
    """
    if not isinstance(labels, Tensor) or labels.ndim != 2 or labels.dtype.is_floating_point:
        raise ShapeError('labels must be whole numbers "b t", one per frame, -1 where a label is not known.')
    if states_of is None:
        states_of = torch.eye(num_states, dtype=torch.bool, device=labels.device)
    if states_of.ndim != 2 or states_of.shape[1] != num_states or states_of.dtype != torch.bool:
        raise ShapeError(
            f'states_of has shape {tuple(states_of.shape)}, {states_of.dtype}, but truth values "l z" with z = '
            f"{num_states} were expected."
        )
    num_labels = len(states_of)
    if may_look(labels) and labels.numel() and (int(labels.min()) < -1 or int(labels.max()) >= num_labels):
        wrong = int(labels.min()) if int(labels.min()) < -1 else int(labels.max())
        raise DomainError(
            f"a label is {wrong}, but there are {num_labels} labels: 0 to {num_labels - 1}, -1 where it is not known.\n"
            "  Give the model more states, or say with states_of which states a label has."
        )
    any_state = torch.ones(1, num_states, dtype=torch.bool, device=labels.device)
    return torch.cat([states_of.to(labels.device), any_state])[labels]  # -1 is the last row


def in_order(potentials: FramePotentials, orders: Sequence[Sequence[int]]) -> FramePotentials:
    """The paths that pass through these states in this order, one segment each: `orders[i]` of sequence i.

    The result is over places in the orders, those of all sequences one after the other: `order_of` says which place is
    which state. A frame goes on to the next place or stays; a segment always goes on, and equal neighbours are two
    segments. Of a chain equal neighbours are refused: it cannot tell where one ends. Cost: that of a banded chain of as
    many states as all orders have places, so give sequences in small batches.
    """
    p: Any = potentials
    of_frames = isinstance(p, ChainPotentials)  # a state may stay; a segment always goes on
    num_states, (num_sequences, num_frames, _) = p.transition.shape[0], p.log_obs.shape
    _expect_orders(orders, num_sequences, num_frames, num_states, of_frames=of_frames)
    if p.log_initial.ndim == 3:
        raise UnsupportedError("an order begins with its sequence, but a state was carried in from an earlier stretch.")
    device = p.log_obs.device
    place = torch.tensor([state for order in orders for state in order], device=device)  # "k"
    sizes = torch.tensor([len(order) for order in orders], device=device)
    ends = sizes.cumsum(0) - 1
    starts = ends - sizes + 1
    rows = p.transition.log_rows(place)  # "k z"
    stay = rows.gather(1, place[:, None]) if of_frames else rows.new_full((len(place), 1), NEVER)
    move = rows.gather(1, place.roll(-1)[:, None]).index_fill(0, ends, NEVER)
    transition = Banded.from_log(torch.cat([stay, move], 1), 0)
    log_initial = p.log_initial.expand(num_sequences, num_states).index_select(1, place)
    log_final = p.log_obs.new_zeros(num_sequences, num_states) if p.log_final is None else p.log_final
    log_final = log_final.expand(num_sequences, num_states).index_select(1, place)
    every = torch.arange(len(place), device=device)
    log_initial = log_initial.masked_fill(every != starts[:, None], NEVER)
    log_final = log_final.masked_fill(every != ends[:, None], NEVER)
    log_obs = p.log_obs.index_select(2, place)
    durations = {} if of_frames else {"log_duration": p.log_duration.index_select(0, place)}
    found: FramePotentials = p._replace(
        log_initial=log_initial, transition=transition, log_obs=log_obs, log_final=log_final, **durations
    )
    return found


def order_of(orders: Sequence[Sequence[int]], places: Tensor) -> Tensor:  # "..." -> "..."
    """The states that stand at these places of `in_order`; -1 stays -1."""
    table = torch.tensor([*(state for order in orders for state in order), -1], device=places.device)
    return table[places]


def without_transitions(transition: Operator, forbidden: Tensor) -> Operator:  # "z y" bool
    """The same operator with weight 0 where `forbidden`; dense and banded ones. Rows are not normalised again.

    In potentials it is a constraint: `p._replace(transition=without_transitions(p.transition, forbidden))`.
    """
    num_states = transition.shape[0]
    _expect_forbidden(forbidden, num_states)
    if not isinstance(transition, Dense | Banded):
        raise UnsupportedError(
            f"transitions of a {type(transition).__name__} cannot be forbidden one by one, but those of a Dense or "
            "Banded can.\n  A low-rank matrix has no cells of its own: take a dense family."
        )
    (weight,) = transition.factors()
    (is_log,) = transition.log_factors
    if isinstance(transition, Banded):
        column = torch.arange(num_states, device=weight.device)[:, None] + transition.offset
        column = column + torch.arange(transition.width, device=weight.device)
        inside = (column >= 0) & (column < num_states)
        forbidden = forbidden.gather(1, column.clamp(0, num_states - 1)) & inside
    return transition.with_factors(weight.masked_fill(forbidden, NEVER if is_log else 0.0))


def forbid(model: FrameModel, forbidden: Tensor) -> None:  # "z y" bool
    """Take transitions from a dense model for good: their probability is 0 and stays so in training; rows sum to 1.

    Their logits become -inf. Weight decay that is part of the gradient (torch.optim.Adam's) has no value there: AdamW's
    has.
    """
    dynamics = model.dynamics
    if not isinstance(dynamics, FreeDense):
        raise UnsupportedError(
            f"transitions of this {model.config.family} cannot be forbidden one by one, but those of a free table can: "
            'family "frame_hmm" or "hsmm" with neural = false.'
        )
    num_states = model.config.num_states
    _expect_forbidden(forbidden, num_states)
    forbidden = forbidden.to(model.device)
    closed = forbidden | (dynamics.log_transition.detach() == NEVER)
    if not dynamics.self_transitions:
        closed = closed | torch.eye(num_states, dtype=torch.bool, device=model.device)
    stuck = closed.all(1)
    if bool(stuck.any()):
        raise DomainError(
            f"state {int(stuck.nonzero()[0, 0])} could go nowhere, but every state is followed by one.\n"
            "  Allow it to stay, or, of segments, let it lead to any other."
        )
    with torch.no_grad():
        dynamics.log_transition.masked_fill_(forbidden, NEVER)


def _expect_forbidden(forbidden: Tensor, num_states: int) -> None:
    if forbidden.shape != (num_states, num_states) or forbidden.dtype != torch.bool:
        raise ShapeError(
            f"forbidden has shape {tuple(forbidden.shape)}, {forbidden.dtype}, but truth values of shape "
            f"{(num_states, num_states)} were expected, from row to column."
        )


def _expect_orders(
    orders: Sequence[Sequence[int]], num_sequences: int, num_frames: int, num_states: int, *, of_frames: bool
) -> None:
    if len(orders) != num_sequences:
        raise ShapeError(f"{len(orders)} orders for {num_sequences} sequences; one each was expected.")
    for i, order in enumerate(orders):
        if not 1 <= len(order) <= num_frames:
            raise DomainError(f"orders[{i}] has {len(order)} segments, but 1 to {num_frames} were expected.")
        strange = [state for state in order if not 0 <= state < num_states]
        if strange:
            raise DomainError(f"orders[{i}] names state {strange[0]}, but states are 0 to {num_states - 1}.")
        if of_frames and any(a == b for a, b in itertools.pairwise(order)):
            raise DomainError(
                f"orders[{i}] has the same state twice in a row, but a chain of frames cannot tell two such segments "
                "apart.\n  Join them, or take a semi-Markov family."
            )
