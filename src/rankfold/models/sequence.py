"""Models that read from left to right: HMM and HSMM of any dynamics, any observations, and durations or none.

p(x, z) = start[z_1]  prod_t  p(x_t | z_t) A[z_t-1, z_t]                          a state for each position
p(x, z, d) = start[z_1]  prod_k  A[z_k-1, z_k] p(d_k | z_k) prod_t p(x_t | z_k)   a state for each segment
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from rankfold.data.batch import Batch
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.generate import WordChoice, generate_chosen, generate_words
from rankfold.decoding.online import next_words
from rankfold.decoding.query import PathQuery, Values
from rankfold.errors import DomainError, ShapeError, UnsupportedError, expect, same_kind
from rankfold.models.base import Context, Model, Potentials, Shares, WordModel, linear
from rankfold.models.config import ModelConfig
from rankfold.models.sharded import num_parameters_of
from rankfold.models.tables import expect_distributions
from rankfold.numerics.capture import graph_branch
from rankfold.numerics.precision import Precision
from rankfold.operators import Operator, RowScaled
from rankfold.params.dropout import kept_indices, kept_mask, num_kept
from rankfold.params.dynamics.ending import Ends
from rankfold.params.dynamics.free_tables import FreeDense
from rankfold.params.observations.categorical import CategoricalEmission, FreeEmission, SourceEmission
from rankfold.planning.chains import ChainSizes, chain_plan
from rankfold.planning.cost import Plans
from rankfold.recursions import recursion_of
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.segments.stretches import usual_stretch


class HasEmission(Protocol):
    """The parts of a model of words: among them a distribution of words given each hidden value."""

    @property
    def emission(self) -> Any: ...


Parts = TypeVar("Parts", bound=HasEmission)
Carried = TypeVar("Carried")
CHOSEN_AT_ONCE = 16  # the same of a `WordChoice`: each holds a distribution of all states and one of all words
AT_ONCE = 256  # sentences that `generate_ids` draws together: each holds a row of the transition and of the emissions


class SequenceModel(WordModel[Parts, Potentials], Generic[Parts, Potentials, Carried]):
    """A model of words whose hidden values (states or ranks) form a sequence: next words, generation."""

    config: ModelConfig

    @abstractmethod
    def carry(self, potentials: Potentials, parts: Parts | None = None) -> Carried: ...

    @abstractmethod
    def log_next(self, parts: Parts, batch: Batch | None) -> Tensor:  # "b z"
        """The log-distribution of the hidden value after each sequence; before any word if there is no batch."""

    @abstractmethod
    def transition_rows(self, parts: Parts, index: Tensor) -> Tensor:  # "k" -> "k z"
        """The log-distribution of the next hidden value, given this one."""

    def generate_ids(
        self,
        num: int = 1,
        *,
        prefix: Sequence[int] = (),
        end: int = Vocabulary.eos_id,
        max_length: int = 100,
        choice: WordChoice | None = None,
        generator: torch.Generator | None = None,
    ) -> list[list[int]]:
        """Word ids of `num` independent sentences that go on after `prefix`, which is not repeated; without `end`.

        `choice`: each word is drawn from the choice of p(word | all words before it), the states summed out.
        """
        if num < 1 or max_length < 1:
            raise DomainError(f"num is {num} and max_length {max_length}, but both must be at least 1.")
        with torch.no_grad():
            parts = self.parts()
            batch = self.batch(torch.tensor([list(prefix)])) if len(prefix) else None
            log_next = self.log_next(parts, batch)
            if not bool((log_next > float("-inf")).any()):
                raise DomainError("the prefix has probability 0 under this model: nothing can follow it.")
            drawn: list[list[int]] = []
            if choice is not None and choice.changes:

                def log_words(rows: list[list[int]]) -> Tensor:  # "b v"
                    found = self.predict_ids(self.batch(torch.tensor(rows)) if rows[0] else None, parts=parts)
                    return found.expand(len(rows), -1)

                while len(drawn) < num:
                    rest = min(CHOSEN_AT_ONCE, num - len(drawn))
                    drawn += generate_chosen(
                        log_words, rest, choice, prefix=prefix, end=end, max_length=max_length, generator=generator
                    )
            while len(drawn) < num:
                drawn += generate_words(
                    log_next.expand(min(AT_ONCE, num - len(drawn)), -1),
                    lambda index: self.transition_rows(parts, index),
                    parts.emission.log_rows,
                    end=end,
                    max_length=max_length,
                    generator=generator,
                )
            return drawn

    def predict_ids(self, batch: Batch | None = None, *, parts: Parts | None = None) -> Tensor:  # "b v"   float64
        """The log-probability of every word as the next one, after each sequence of a batch (or at the start)."""
        with torch.no_grad():
            parts = self.parts() if parts is None else parts
            return next_words(self.log_next(parts, batch), parts.emission.log_rows, self.num_words)


class ChainModel(SequenceModel[Parts, ChainPotentials, Tensor]):
    """Models of words whose hidden path is an ordinary chain, of states or of ranks."""

    of: Values = "states"

    def carry(self, potentials: ChainPotentials, parts: Parts | None = None) -> Tensor:  # "b z"
        found: Tensor = recursion_of(potentials).carry(potentials)
        return found

    def log_next(self, parts: Any, batch: Batch | None) -> Tensor:  # "b z"
        first: Tensor = parts.log_initial[None]
        return first if batch is None else self.carry(self.potentials(batch, parts=parts))

    def query(self, potentials: ChainPotentials) -> PathQuery:
        return PathQuery(potentials, potentials.transition.shape[0], of=self.of)


class StateParts(NamedTuple):
    """The distributions of an HMM or HSMM, over the states that are kept."""

    log_initial: Tensor  # "z"
    transition: Operator  # "z z"
    observation: Any  # has `log_obs` and `sample`; of words `log_rows`
    log_duration: Tensor | None = None  # "z d"; None: a chain
    kept: Tensor | None = None  # "z"       the indices of the states, where dropped ones are left out
    log_mask: Tensor | None = None  # "z"   -inf for dropped states, where they are masked instead
    driven: Any = None  # the start and transitions of given inputs, where some drive them
    ends: Ends | None = None  # where sequences end by themselves

    @property
    def emission(self) -> Any:
        """The observations, where they are words."""
        return self.observation

    def leading(self) -> Operator:
        """The transitions of sequences that may end: rows times the probability of going on."""
        return self.transition if self.ends is None else RowScaled.from_log(self.transition, self.ends.log_go)

    def log_final(self, batch: Batch) -> Tensor | None:  # "z"
        """The log-probability of the end after each state, where the sequences of a batch do end."""
        return None if self.ends is None or not batch.last else self.ends.log_end


class StateModel(Model[StateParts, Any]):
    """HMM or HSMM, of words or of frames: a state for each position or segment.

    `dynamics(keep, features, stays)` gives the start and an operator, `observation(keep)` a distribution of values for
    each state, `duration(keep)` one of lengths. `keep`: the states that dropout keeps; `stays`: the same as a mask.
    """

    branch: ClassVar[bool] = False  # whether a captured graph computes observations on a parallel branch
    dynamics: Any
    observation: Any
    duration: Any
    driven: Any = None  # the dynamics, where inputs drive them
    ending: Any  # the probabilities of ends, where sequences end by themselves

    def own_parts(self, generator: torch.Generator | None = None) -> StateParts:
        return self._parts(generator, masked=self.config.keeps_numbers)

    def shares(self, parts: StateParts) -> Shares:
        return Shares(linear([parts.transition]), [parts.log_initial] if self.config.linear_start else [])

    def capturable_parts(self, generator: torch.Generator | None = None) -> StateParts:
        """States dropped independently vary in number, so they are masked: shapes repeat. Cost: that of all states."""
        varies = self.config.state_dropout_kind == "bernoulli"
        return self._parts(generator, masked=varies or self.config.keeps_numbers)

    def _parts(self, generator: torch.Generator | None, *, masked: bool) -> StateParts:
        """The distributions, with dropped states left out (smaller tables) or `masked` (tables of all states).

        Both give the same distribution over sequences: a mask removes a state from the start, the targets of every
        transition and the observations, so it has no mass, and its own row is never used.
        """
        config, shard = self.config, self.shard
        masked = masked or shard is not None  # each process has some of the kept states, any number of them
        size, dropout, kind = config.num_states, config.state_dropout, config.state_dropout_kind
        keep = None if masked else kept_indices(size, dropout, generator=generator, kind=kind)
        stays = kept_mask(size, dropout, generator=generator, kind=kind) if masked else None
        low_rank = config.own_rank is not None
        features = kept_indices(config.rank, config.feature_dropout, generator=generator) if low_rank else None
        # Emissions first: the backward pass goes in reverse, and frees the transition's tables before it needs memory
        # for the emissions'.
        parallel: AbstractContextManager[Any] = graph_branch(keep) if self.branch else nullcontext()
        with parallel as join:
            observation = self.observe(keep)
        log_initial, transition = self.dynamics(keep, features, stays)
        for x in observation if self.branch else ():
            join(x)
        log_duration = None if self.duration is None else self.duration(keep)
        log_mask = None
        if stays is not None:
            own = stays if shard is None else stays[shard.own]
            log_mask = torch.zeros_like(log_initial).masked_fill(~own, float("-inf"))
        ends = None if self.ending is None else self.ending(keep)
        return StateParts(log_initial, transition, observation, log_duration, keep, log_mask, self.driven, ends)

    def observe(self, keep: Tensor | None) -> Any:
        """The distributions of observations in the states that are kept."""
        return self.observation(keep)

    def input_values(self, batch: Batch, dtype: torch.dtype) -> Tensor:  # "b t" or "b t f"
        """The values of a batch as the observations take them."""
        return batch.values

    def expect_context(self, batch: Batch, context: Context) -> None:
        return  # positions have states, which can be carried and constrained

    def own_potentials(
        self, batch: Batch, parts: StateParts, context: Context, log_obs: Tensor | None = None
    ) -> Any:  # "b t z"
        """The potentials of a chain, or of segments if there are durations. `label_constraint` makes `allowed`.

        `log_obs`: the log-weights of the batch's values, where they are known already.

        Where a batch is not the `last` of its stream, its end cuts the open segment instead of ending it.
        """
        carried, allowed, _ = context  # "b z" or "b d z"
        dtype = parts.log_initial.dtype
        known = parts.observation.log_obs(self.input_values(batch, dtype)) if log_obs is None else log_obs
        log_obs = known.to(dtype)
        if parts.log_mask is not None:  # no path reaches these states; masked here, they do not set the scale either
            log_obs = log_obs + parts.log_mask
        if allowed is not None:
            log_obs = _restricted(log_obs, allowed, parts)
        if parts.driven is not None:
            return parts.driven.potentials(log_obs, batch, carried, parts.ends)
        log_initial = parts.log_initial if carried is None else _continued(parts, carried[: len(log_obs)])
        if parts.log_duration is None:
            return ChainPotentials(log_initial, parts.leading(), log_obs, parts.log_final(batch), batch.lengths)
        return SegmentPotentials(
            log_initial,
            parts.leading(),
            parts.log_duration,
            log_obs,
            parts.log_final(batch),
            lengths=batch.lengths,
            censored=self.config.censored or not batch.last,
        )

    def carry(self, potentials: Any, parts: StateParts | None = None) -> Tensor:  # "b z" or "b d z"
        found: Tensor = recursion_of(potentials).carry(potentials)
        if parts is None or parts.kept is None:
            return found
        all_states = found.new_full((*found.shape[:-1], self.config.num_states), float("-inf"))
        return all_states.index_copy(-1, parts.kept, found)

    def gather_carried(self, carried: Any) -> Any:
        return carried if carried is None or self.shard is None else self.shard.gather(carried)

    def cut_carried(self, carried: Any) -> Any:
        return carried if carried is None or self.shard is None else self.shard.cut(carried)

    @abstractmethod
    def sizes(self, num_states: int) -> dict[str, Any]:
        """Further sizes for the planner, besides states, rank and parameters: fields of `ChainSizes`."""

    def plan(
        self,
        batch: int = 8,
        length: int = 32,
        device: str = "cpu",
        precision: Precision = "float32",
        *,
        whole: bool = False,
        devices: int | None = None,
    ) -> Plans:
        """The cost of a gradient step of so many sequences and positions, in operations and bytes.

        `whole`: long sequences of segments are not cut into stretches, as in a captured graph. `devices`: of one of so
        many that share the states; None: as many as the configuration says.
        """
        config = self.config
        devices = devices or config.shards
        params = num_parameters_of(self, devices)
        # In a captured graph states that are dropped independently are masked, not left out.
        masked = config.keeps_numbers or (config.state_dropout_kind == "bernoulli" and device.startswith("cuda"))
        masked = masked or devices > 1
        num_states = config.num_states if masked else num_kept(config.num_states, config.state_dropout)
        rank = None if config.own_rank is None else num_kept(config.rank, config.feature_dropout)
        dim = config.dim if config.neural else 0
        sizes = ChainSizes(num_states, rank, params, dim, **self.sizes(num_states), devices=devices)
        longest = min(sizes.max_duration, length)
        stretch = None if whole or not longest else usual_stretch(batch, length, num_states, longest)
        return chain_plan(sizes, batch, length, device, precision, stretch)


class HMM(StateModel, ChainModel[StateParts]):
    """The HMM of words: families "hmm" (softmax), "lhmm" (low rank) and "banded" (low rank + band)."""

    config: ModelConfig
    branch = True
    duration = None
    ending = None

    def __init__(
        self, config: ModelConfig, transition: nn.Module, emission: CategoricalEmission | SourceEmission | FreeEmission
    ) -> None:
        super().__init__()
        self.config, self.transition, self.emission, self.num_words = config, transition, emission, emission.num_words

    @property
    def dynamics(self) -> nn.Module:
        """The start and the transitions."""
        return self.transition

    @property
    def observation(self) -> nn.Module:
        """The distribution of words in every state."""
        return self.emission

    def observe(self, keep: Tensor | None) -> Any:
        if isinstance(self.emission, SourceEmission):
            return self.emission(cast(Tensor, self.transition.source), keep)
        return self.emission(keep)

    @classmethod
    def from_tables(cls, start: Tensor, transition: Tensor, emission: Tensor) -> HMM:  # "z", "z z", "z v"
        """The HMM with these probabilities, each row summing to 1, as trainable free tables.

        float32 or float64; zeros stay zero, in training too.
        """
        if not isinstance(transition, Tensor):
            raise UnsupportedError(
                f"transition is a {type(transition).__name__}, but a matrix was expected.\n"
                "  With an operator build rankfold.ChainPotentials(log_initial, operator, log_obs) directly."
            )
        expect(start, "z", name="start")
        expect(transition, "z y", name="transition", z=len(start), y=len(start))
        expect(emission, "z v", name="emission", z=len(start))
        same_kind(start, "start", {"transition": transition, "emission": emission})
        for name, table in (("start", start), ("transition", transition), ("emission", emission)):
            expect_distributions(table, name)
        config = ModelConfig(family="hmm", num_states=len(start), neural=False)
        log_start, log_transition, log_emission = (x.detach().log() for x in (start, transition, emission))
        return cls(config, FreeDense(log_start, log_transition), FreeEmission(log_emission))

    def transition_rows(self, parts: StateParts, index: Tensor) -> Tensor:  # "k" -> "k z"
        return parts.transition.log_rows(index)

    def sizes(self, num_states: int) -> dict[str, Any]:
        band = 2 * min(self.config.band, num_states - 1) + 1 if self.config.family == "banded" else 0
        return {"num_words": self.num_words, "band": band}


def _restricted(log_obs: Tensor, allowed: Tensor, parts: StateParts) -> Tensor:  # "b t z"
    """The log-weights, -inf for states that are not allowed."""
    if parts.kept is not None or parts.log_mask is not None:
        raise UnsupportedError(
            "allowed states and dropped states at once: a path may have no state left.\n"
            "  Set state_dropout = 0 where labels are given."
        )
    if allowed.shape != log_obs.shape or allowed.dtype != torch.bool:
        raise ShapeError(
            f'allowed has shape {tuple(allowed.shape)}, {allowed.dtype}, but truth values "b t z" of shape '
            f"{tuple(log_obs.shape)} were expected."
        )
    return log_obs.masked_fill(~allowed, float("-inf"))


def _continued(parts: StateParts, carried: Tensor) -> Tensor:  # "b z" or "b d z", of all states
    """The carried distribution over states, conditioned on the states that dropout keeps."""
    if parts.kept is not None:
        carried = carried.index_select(-1, parts.kept)
    elif parts.log_mask is not None:
        carried = carried + parts.log_mask
    else:
        return carried
    return carried.flatten(1).log_softmax(1).reshape(carried.shape)
