"""Models of frames: hidden Markov and semi-Markov chains of Gaussian, yes-or-no and categorical observations.

    p(x, z) = start[z_1]  prod_t  p(x_t | z_t) A[z_t-1, z_t]                       a state for each frame
    p(x, z, d) = start[z_1]  prod_k  A[z_k-1, z_k] p(d_k | z_k) prod_t p(x_t | z_k)   a state for each segment

Read next: `models/frame_catalog.py` for the parts, `recursions/segments` for the sum over segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.decoding.posterior import posterior
from rankfold.decoding.segment_table import ScoredSegment, segment_table
from rankfold.decoding.viterbi import BestPath, BestSegments, viterbi
from rankfold.errors import ShapeError, UnsupportedError
from rankfold.models.base import Model, Shares, linear
from rankfold.models.frame_config import FrameConfig
from rankfold.models.frame_input import any_batch, expect_frames, padded_missing
from rankfold.models.frame_parts import FrameParts, draw_frames
from rankfold.models.supervision import FramePotentials
from rankfold.numerics.precision import Precision
from rankfold.params.dropout import kept, num_kept, staying
from rankfold.params.durations import Duration
from rankfold.params.dynamics.transitions import FrameDynamics, NeuralDynamics
from rankfold.params.observations import ObservationModule
from rankfold.params.prior import Prior
from rankfold.planning import ChainSizes, Plans, chain_plan
from rankfold.recursions import chain, log_z
from rankfold.recursions import segments as by_segments
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.ladder import Arithmetic
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.segments.stretches import usual_stretch


class FrameModel(Model[FrameParts, FramePotentials]):
    """Families "frame_hmm", "frame_lhmm" (low rank), "hsmm" and "lhsmm" (segments with durations)."""

    config: FrameConfig
    denominator = "frames that are not missing"

    def __init__(
        self, config: FrameConfig, dynamics: FrameDynamics, observation: ObservationModule, duration: Duration | None
    ) -> None:
        super().__init__()
        self.config, self.dynamics, self.observation, self.duration = config, dynamics, observation, duration
        self.num_words = config.num_features
        self.filler = -1.0 if observation.symbols else float("nan")  # a missing frame

    @classmethod
    def from_tables(cls, log_initial: Tensor, transition: Tensor | tuple[Tensor, Tensor], **tables: Any) -> FrameModel:
        """The model with these distributions, as trainable free tables: see `models.frame_tables.model_of_tables`."""
        from rankfold.models.frame_tables import model_of_tables  # it makes models, so it imports us

        return model_of_tables(log_initial, transition, **tables)

    def own_parts(self, generator: torch.Generator | None = None) -> FrameParts:
        """The same as the dtype of the parameters makes them: probabilities below its smallest number are 0."""
        return self._parts(generator, masked=False)

    def shares(self, parts: FrameParts) -> Shares:
        neural = isinstance(self.dynamics, NeuralDynamics)  # free tables begin in logarithms
        return Shares(linear([parts.transition]), [parts.log_initial] if neural else [])

    def capturable_parts(self, generator: torch.Generator | None = None) -> FrameParts:
        """The same as a captured graph needs them: states that are dropped each by itself leave by a mask."""
        return self._parts(generator, masked=self.config.state_dropout_kind == "bernoulli")

    def _parts(self, generator: torch.Generator | None, *, masked: bool) -> FrameParts:
        config = self.config
        size, dropout, kind = config.num_states, config.state_dropout, config.state_dropout_kind
        keep = None if masked else kept(size, dropout, generator=generator, kind=kind)
        stays = staying(size, dropout, generator=generator, kind=kind) if masked else None
        features = kept(config.rank, config.feature_dropout, generator=generator) if config.own_rank else None
        observation = self.observation(keep)
        log_initial, transition = self.dynamics(keep, features, stays)
        log_duration = None if self.duration is None else self.duration(keep)
        log_mask = None
        if stays is not None:
            log_mask = torch.zeros_like(log_initial).masked_fill(~stays, float("-inf"))
        return FrameParts(log_initial, transition, observation, log_duration, keep, log_mask)

    def potentials(
        self,
        batch: Batch,
        *,
        parts: FrameParts | None = None,
        carried: Tensor | None = None,
        allowed: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> FramePotentials:  # carried "b z" or "b d z", allowed "b t z" bool
        """The weights of all hidden paths of a batch. `parts` saves computing them again for every batch.

        `carried` is what a stream left behind (see `carry`). `allowed` are the states a frame may have, an exact
        constraint: log Z is then that of paths that keep to it (`models/supervision.py` makes it from labels).
        The border of a batch that is not the `last` of its stream cuts segments; it does not end them.
        """
        parts = self.parts(generator) if parts is None else parts
        frames, dtype = padded_missing(batch), parts.log_initial.dtype
        widened = frames.is_floating_point() and dtype != self.dtype
        log_obs = parts.observation.log_obs(frames.to(dtype) if widened else frames)
        if parts.log_mask is not None:  # never reached anyway; here they do not set a frame's scale either
            log_obs = log_obs + parts.log_mask
        if allowed is not None:
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
            log_obs = log_obs.masked_fill(~allowed, float("-inf"))
        log_initial = parts.log_initial if carried is None else self._continued(parts, carried[: len(log_obs)])
        if parts.log_duration is None:
            return ChainPotentials(log_initial, parts.transition, log_obs, lengths=batch.lengths)
        return SegmentPotentials(
            log_initial,
            parts.transition,
            parts.log_duration,
            log_obs,
            lengths=batch.lengths,
            censored=self.config.censored or not batch.last,
        )

    def _continued(self, parts: FrameParts, carried: Tensor) -> Tensor:  # "b z" or "b d z", of all states
        """What was carried, given that no dropped state was there."""
        if parts.kept is not None:
            carried = carried.index_select(-1, parts.kept)
        elif parts.log_mask is not None:
            carried = carried + parts.log_mask
        else:
            return carried
        return carried.flatten(1).log_softmax(1).reshape(carried.shape)

    def carry(self, potentials: FramePotentials, parts: FrameParts | None = None) -> Tensor:  # "b z" or "b d z"
        """What the next stretch of a stream needs to know, detached. `parts`: those that dropped states, if any did."""
        found = chain.carry(potentials) if isinstance(potentials, ChainPotentials) else by_segments.carry(potentials)
        if parts is None or parts.kept is None:
            return found
        everyone = found.new_full((*found.shape[:-1], self.config.num_states), float("-inf"))
        return everyone.index_copy(-1, parts.kept, found)

    def log_z(
        self, potentials: FramePotentials, arithmetic: Arithmetic = "scaled", precision: Precision = "float32"
    ) -> Tensor:  # "b"   float64
        """The log-probability of each sequence."""
        return log_z(potentials, arithmetic, precision)

    def expect_values(self, batch: Batch) -> None:
        """Raise unless the frames are such as the model has seen."""
        expect_frames(batch, self.config)

    def num_counted(self, batch: Batch) -> int:
        """The frames that are not missing."""
        inside = torch.arange(batch.shape[1]) < batch.lengths.cpu()[:, None]
        there = batch.values >= 0 if batch.values.ndim == 2 else ~batch.values.isnan().all(-1)
        return int((inside & there.cpu()).sum())

    def forward(self, batch: Batch) -> Tensor:  # "b"   float64
        return self.log_likelihood(batch)

    def log_prior(self) -> Tensor:  # ""   float64
        """What the settings say of the parameters beforehand, up to a constant; 0 without `variance_prior`."""
        return self.observation.log_prior(Prior(variance_frames=self.config.variance_prior))

    def batch(self, frames: Any, *, labels: Any = None) -> Batch:
        """One array or a list of them, `Frames`, or lists of symbols: a batch on the model's device, in its dtype."""
        return any_batch(frames, labels, self.config, self.dtype).to(self.device)

    def posterior(self, batch: Batch, *, allowed: Tensor | None = None) -> Tensor:  # "b t z"
        """The probability of every state at every frame, given its whole sequence; detached."""
        return posterior(self._asked(batch, allowed)).state

    def viterbi(self, batch: Batch, *, allowed: Tensor | None = None) -> BestPath | BestSegments:
        """The most probable path, or segmentation, of each sequence and its log-probability."""
        return viterbi(self._asked(batch, allowed))

    def states(self, batch: Batch, *, allowed: Tensor | None = None) -> Tensor:  # "b t"
        """The states of the most probable path or segmentation; -1 beyond a length and for impossible sequences."""
        return self.viterbi(batch, allowed=allowed).path

    def segments(self, batch: Batch, *, allowed: Tensor | None = None) -> list[list[ScoredSegment]]:
        """The table of each sequence's segments: start, end (exclusive), state, posterior; see `segment_table`."""
        return segment_table(self._asked(batch, allowed))

    def _asked(self, batch: Batch, allowed: Tensor | None) -> FramePotentials:
        expect_frames(batch, self.config)
        with torch.no_grad():
            return self.potentials(batch, allowed=allowed)

    def sample(
        self, lengths: int | Sequence[int], num: int | None = None, *, generator: torch.Generator | None = None
    ) -> list[tuple[Tensor, Tensor]]:  # frames "t f" or "t", states "t"
        """Sequences drawn from the model, each with its states: `num` of one length, or one of each length.

        Exact given the length: segments are drawn such that they fill it (or, if `censored`, are cut by it).
        """
        sizes = [lengths] * (1 if num is None else num) if isinstance(lengths, int) else list(lengths)
        with torch.no_grad():
            return draw_frames(self.parts(), sizes, censored=self.config.censored, generator=generator)

    def plan(
        self,
        batch: int = 8,
        length: int = 32,
        device: str = "cpu",
        precision: Precision = "float32",
        *,
        whole: bool = False,
    ) -> Plans:
        """What a gradient step of so many sequences and frames costs, in operations and bytes.

        `whole`: long sequences are not cut into stretches, as in a captured graph.
        """
        config = self.config
        masked = config.state_dropout_kind == "bernoulli" and device.startswith("cuda")
        num_states = config.num_states if masked else num_kept(config.num_states, config.state_dropout)
        sizes = ChainSizes(
            num_states,
            None if config.own_rank is None else num_kept(config.rank, config.feature_dropout),
            self.num_parameters,
            config.dim if config.neural else 0,
            num_features=config.num_features,
            gaussian=config.observation.measured,
            max_duration=config.max_duration if config.has_segments else 0,
            may_repeat=config.may_repeat,
        )
        longest = min(config.max_duration, length)
        stretch = None if whole else usual_stretch(batch, length, num_states, longest)
        return chain_plan(sizes, batch, length, device, precision, stretch)
