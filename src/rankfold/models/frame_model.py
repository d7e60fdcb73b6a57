"""Models of frames: hidden Markov and semi-Markov chains of Gaussian, yes-or-no and categorical observations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankfold.data.batch import Batch, frame_batch, symbol_batch
from rankfold.data.frames import UNKNOWN, Frames, frames_of
from rankfold.decoding.posterior import posterior
from rankfold.decoding.sample import sample
from rankfold.decoding.segment_table import ScoredSegment, segment_table
from rankfold.decoding.viterbi import BestPath, BestSegments, viterbi
from rankfold.errors import DomainError, ShapeError, UnsupportedError, may_look
from rankfold.models.base import Context
from rankfold.models.config import FrameConfig
from rankfold.models.sequence import StateModel, StateParts
from rankfold.models.supervision import FramePotentials
from rankfold.models.tables import frame_tables
from rankfold.params.durations import Duration
from rankfold.params.dynamics.ending import Ending, draw_lengths
from rankfold.params.dynamics.input_driven import InputDriven
from rankfold.params.observations import ObservationModule
from rankfold.params.prior import Prior
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.potentials import SegmentPotentials


class FrameModel(StateModel):
    """Families "frame_hmm", "frame_lhmm" (low rank); with segments "hsmm", "lhsmm" and "rank_hsmm" (rank space)."""

    config: FrameConfig
    denominator = "frames that are not missing"
    observation: ObservationModule
    duration: Duration | None

    def __init__(
        self,
        config: FrameConfig,
        dynamics: torch.nn.Module,
        observation: ObservationModule,
        duration: Duration | None,
        ending: Ending | None = None,
    ) -> None:
        super().__init__()
        self.config, self.dynamics, self.observation, self.duration = config, dynamics, observation, duration
        self.ending = ending
        self.num_words = config.num_features
        self.filler = float(UNKNOWN) if observation.symbols else float("nan")  # a missing frame

    @property
    def driven(self) -> InputDriven | None:
        """The dynamics, where inputs drive them."""
        return self.dynamics if isinstance(self.dynamics, InputDriven) else None

    @classmethod
    def from_tables(cls, log_initial: Tensor, transition: Tensor | tuple[Tensor, Tensor], **tables: Any) -> FrameModel:
        """The model with these distributions, as trainable free tables: see `models.tables.frame_tables`."""
        return cls(*frame_tables(log_initial, transition, **tables))

    def move_to(self, frames: Frames) -> None:
        """Shift and scale initial parameters to the mean and spread of the frames.

        Gaussian: drawn means are taken as deviations from the mean of all frames, in units of their standard deviation;
        variances are initialised to those of all frames. With init "papers" there are no deviations: all states start
        alike, as in the semi-Markov models of Chiu, Deng, Rush 2021. Bernoullis: drawn log-odds are added to those of
        all frames, with one more frame of each value, so that no value starts with probability 0. Others stay as drawn.
        """
        if self.observation.symbols:
            return
        if frames.num_features != self.num_words:
            raise DomainError(f"the frames have {frames.num_features} features, but the model {self.num_words}.")
        seen = np.concatenate([x[~np.isnan(x).all(1)] for x in frames.features]).astype(np.float64)
        self.observation.move_to(np.where(np.isnan(seen), np.nanmean(seen, 0), seen))

    def expect_context(self, batch: Batch, context: Context) -> None:
        """Observations with lags take whole sequences alone."""
        if self.observation.lags and (context.carried is not None or not batch.first):
            raise UnsupportedError(
                f"a stretch that goes on from another came, but a frame depends on the {self.observation.lags} before "
                "it, which are not carried along.\n  Give whole sequences: no windows, no steps."
            )

    def input_values(self, batch: Batch, dtype: torch.dtype) -> Tensor:  # "b t" or "b t f"
        frames = _missing_beyond(batch)
        return frames.to(dtype) if frames.is_floating_point() and dtype != self.dtype else frames

    def expect_values(self, batch: Batch) -> None:
        """Raise unless the model can take the frames: their width, their values, their lengths."""
        frames, width, symbols = batch.values, self.num_words, self.observation.symbols
        wanted = '"b t" whole numbers' if symbols else f'"b t f" floats with f = {width}'
        fits = (
            frames.ndim == 2 and not frames.dtype.is_floating_point
            if symbols
            else frames.ndim == 3 and frames.shape[2] == width and frames.dtype.is_floating_point
        )
        if not fits or 0 in frames.shape:
            raise ShapeError(
                f"frames have shape {tuple(frames.shape)}, {frames.dtype}, but {wanted} were expected, at least one."
            )
        if not may_look(frames):
            return
        shown = _missing_beyond(batch)
        if symbols:
            low, high = int(shown.min()), int(shown.max())
            if low < -1 or high >= width:
                raise DomainError(
                    f"a symbol is {low if low < -1 else high}, but this model knows 0 to {width - 1}; -1 is a missing "
                    "one."
                )
            return
        inside = torch.arange(frames.shape[1], device=frames.device) < batch.lengths[:, None]
        bad = self.config.invalid(shown, inside)
        if bad is not None:
            i, t, f = bad.at
            value = float(shown[i, t, f])
            raise DomainError(
                f"sequence {i}, frame {t}, feature {f} is missing, but features are {bad.expected}.\n  {bad.remedy}"
                if value != value
                else f"sequence {i}, frame {t}, feature {f} is {value:g}, but "
                f"features are {bad.expected}, or NaN where missing."
            )

    def num_counted(self, batch: Batch) -> int:
        """The frames that are not missing."""
        inside = torch.arange(batch.shape[1]) < batch.lengths.cpu()[:, None]
        there = batch.values >= 0 if batch.values.ndim == 2 else ~batch.values.isnan().all(-1)
        return int((inside & there.cpu()).sum())

    def forward(self, batch: Batch) -> Tensor:  # "b"   float64
        return self.log_likelihood(batch)

    def log_prior(self) -> Tensor:  # ""   float64
        """The log-prior of the parameters, up to a constant; 0 without `variance_prior`."""
        return self.observation.log_prior(Prior(variance_frames=self.config.variance_prior))

    def batch(self, frames: Any, *, labels: Any = None) -> Batch:
        """One array or a list of them, `Frames`, or lists of symbols: a batch on the model's device, in its dtype."""
        return _batch(self, frames, labels).to(self.device)

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
        self.expect_values(batch)
        with torch.no_grad():
            p: FramePotentials = self.potentials(batch, allowed=allowed)
            return p

    def sample(
        self,
        lengths: int | Sequence[int] | None,
        num: int | None = None,
        *,
        inputs: Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> list[tuple[Tensor, Tensor]]:  # inputs "t k"; frames "t f" or "t", states "t"
        """Sequences drawn from the model, each with its states: `num` of one length, or one of each length.

        `lengths` None: `num` sequences that end by themselves, of a model with end probabilities.
        Exact given the length: segments are drawn such that they fill it (or, if `censored`, are cut by it). A
        regression needs the `inputs` of each sequence, and so do transitions that inputs drive.
        """
        many = 1 if num is None else num
        if lengths is None:
            return self._sample_to_the_end(many, generator)
        sizes = [lengths] * many if isinstance(lengths, int) else list(lengths)
        if inputs is not None and len(inputs) != len(sizes):
            raise DomainError(f"inputs of {len(inputs)} sequences for {len(sizes)}.")
        with torch.no_grad():
            return draw_frames(self.parts(), sizes, inputs, censored=self.config.censored, generator=generator)

    @torch.no_grad()
    def _sample_to_the_end(self, num: int, generator: torch.Generator | None) -> list[tuple[Tensor, Tensor]]:
        parts = self.parts()
        if parts.ends is None or parts.driven is not None or self.config.num_covariates:
            raise DomainError(
                "no length is given, but only models with end probabilities and without inputs end by themselves.\n"
                "  Give one: sample(n); or fit with ends=True."
            )
        rows = draw_lengths(parts.log_initial, parts.transition, parts.ends, parts.log_duration, num, generator)
        return _emit(parts, rows, None, generator)

    def save_pretrained(self, folder: str | Path, *, max_shard_bytes: int | None = None) -> None:
        """As of every model; one with a network of the user's own cannot be built again from its configuration."""
        own = getattr(self.observation, "groups", self.observation)
        if (self.driven is not None and self.driven.has_network) or getattr(own, "network", None) is not None:
            raise UnsupportedError(
                "a model that a network of your own drives cannot be saved: its configuration does not describe it.\n"
                "  Save model.state_dict() with your code, or use pickle."
            )
        super().save_pretrained(folder, max_shard_bytes=max_shard_bytes)

    def sizes(self, num_states: int) -> dict[str, Any]:
        config = self.config
        return {
            "num_features": config.num_features,
            "gaussian": config.observation.measured,
            "residuals": config.observation.residuals(dataclasses.replace(config, num_states=num_states)),
            "max_duration": config.max_duration if config.has_segments else 0,
            "may_repeat": config.may_repeat,
            "summed_states": config.summed_states if config.family == "rank_hsmm" else 0,
        }


def _batch(model: FrameModel, frames: Any, labels: Any) -> Batch:
    """One array or a list of them, `Frames`, or lists of symbols, as a validated batch in the model's dtype."""
    if model.observation.symbols:
        one = isinstance(frames, np.ndarray | Tensor) and frames.ndim == 1
        batch = symbol_batch([frames] if one else frames, [labels] if one and labels is not None else labels)
    elif isinstance(frames, Frames):
        if labels is not None:
            raise UnsupportedError("Frames hold their own labels: frames_of(features, labels=...).")
        batch = frame_batch(frames, dtype=model.dtype)
    else:
        batch = frame_batch(frames_of(frames, labels=labels), dtype=model.dtype)
    model.expect_values(batch)
    return batch


def _missing_beyond(batch: Batch) -> Tensor:  # "b t f" or "b t"
    """The frames, with padding set to missing: no value there reaches a product."""
    if not batch.values.is_cuda and may_look(batch.values) and bool((batch.lengths == batch.values.shape[1]).all()):
        return batch.values
    inside = torch.arange(batch.values.shape[1], device=batch.lengths.device) < batch.lengths[:, None]
    if batch.values.ndim == 2:
        return batch.values.masked_fill(~inside, UNKNOWN)
    return batch.values.masked_fill(~inside.unsqueeze(-1), float("nan"))


def _padded(inputs: Sequence[Tensor] | None, lengths: Sequence[int]) -> Tensor:  # "t k" each -> "b t k"
    """The inputs of each sequence, zeros beyond its end."""
    if inputs is None:
        raise DomainError("a sample of a model that inputs drive needs them.\n  Give them: sample(n, inputs=...).")
    for own, length in zip(inputs, lengths, strict=True):
        if own.ndim != 2 or len(own) != length or not bool(own.isfinite().all()):
            raise DomainError(
                f"inputs have shape {tuple(own.shape)}, but finite ones of each of {length} frames were expected."
            )
    return pad_sequence(list(inputs), batch_first=True)


def draw_frames(
    parts: StateParts,
    lengths: Sequence[int],
    inputs: Sequence[Tensor] | None = None,
    *,
    censored: bool,
    generator: torch.Generator | None,
) -> list[tuple[Tensor, Tensor]]:  # frames "t f" or "t", states "t"
    """A sequence of each length, with its states: a sample of the posterior of as many missing frames, then frames.

    Cost: that of such samples, and one draw per frame.
    """
    if not len(lengths) or min(lengths) < 1:
        raise DomainError(f"lengths are {list(lengths)}, but at least one of at least 1 was expected.")
    start, transition = parts.log_initial, parts.leading()
    nothing = start.new_zeros(len(lengths), max(lengths), len(start))
    sizes = torch.tensor(lengths, device=start.device)
    batch = Batch(nothing, sizes)
    p: Any = ChainPotentials(start, transition, nothing, parts.log_final(batch), sizes)
    if parts.driven is not None:
        p = parts.driven.potentials(nothing, batch._replace(inputs=_padded(inputs, lengths)), None, parts.ends)
    elif parts.log_duration is not None:
        p = SegmentPotentials(
            start, transition, parts.log_duration, nothing, parts.log_final(batch), sizes, censored=censored
        )
    states = sample(p, generator=generator).path
    if bool((states[:, 0] < 0).any()):
        raise DomainError(
            f"no segmentation fills {int(sizes[states[:, 0] < 0][0])} frames under this model.\n"
            "  Other lengths may be possible; censored = true lets the end cut the last segment."
        )
    return _emit(parts, [row[row >= 0] for row in states], inputs, generator)


def _emit(
    parts: StateParts, rows: list[Tensor], inputs: Sequence[Tensor] | None, generator: torch.Generator | None
) -> list[tuple[Tensor, Tensor]]:  # "t" each -> frames "t f" or "t", states "t"
    """Frames of given states."""
    one_by_one = getattr(
        parts.observation, "sample_sequence", None
    )  # frames that depend on inputs, or on frames before
    if one_by_one is not None:
        beside = [None] * len(rows) if inputs is None else inputs
        return [(one_by_one(row, own, generator), row) for row, own in zip(rows, beside, strict=True)]
    drawn = torch.split(parts.observation.sample(torch.cat(rows), generator), [len(row) for row in rows])
    return list(zip(drawn, rows, strict=True))
