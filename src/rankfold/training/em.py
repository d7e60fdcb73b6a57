"""Expectation maximisation: exact expected counts, and the parameters that maximise them.

The E step computes expected counts from a model's potentials; the M step of each part is a method of its module
(`maximise` in `params`). No step lowers the likelihood, or with a prior the posterior.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rankfold.data.batch import Batch
from rankfold.data.frames import Frames
from rankfold.decoding.counts import ChainCounts, SegmentCounts, expected_counts
from rankfold.errors import DomainError, UnsupportedError
from rankfold.kernels.dispatch import loops_serve
from rankfold.models.config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.models.sequence import StateParts
from rankfold.models.supervision import allowed_states
from rankfold.operators.dense import Dense
from rankfold.params.prior import Prior
from rankfold.recursions.chain.potentials import Chain
from rankfold.recursions.chain.rungs import uses_in_place
from rankfold.training.batch_em import mix, new_share
from rankfold.training.config import Config
from rankfold.training.distributed import add_up, num_processes, own_rows, rank, shared_total
from rankfold.training.initialisation import initialise

# Entries "t b z" of one table of a group: 64 MiB in float64; an E step holds about seven such tables.
MOST = 2**23
# A step that lowers the likelihood by at most so many roundings is no failure; equal likelihoods differed by at most 7.
ROUNDINGS = 64
# Multiply-adds of a step below which a second thread costs more than it brings: 100 sequences and 16 states take 5
# microseconds on one thread and 21 on two, 100 and 256 about as long on both. Of compiled loops, whose calls are of a
# whole pass: 20,000 frames and 2 states took 4 ms on one thread; on two, next to threads of NumPy that spin, 80. On two
# cores with another process, 25,000 frames and 64 states (2**27) took 50 to 77 ms a step on one thread, 120 to 160 on
# two.
SMALL_STEP, SMALL_PASS = 2**21, 2**28


class Room:
    """Memory that every E step writes over: new pages cost a step of few states a quarter of its time."""

    def __init__(self) -> None:
        self.serves = True  # until some sequence needed more than `uses_in_place`
        self._held = np.empty(0)

    def arrays(self, shape: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two arrays of this shape."""
        size = math.prod(shape)
        if len(self._held) < 2 * size:
            self._held = np.empty(2 * size)
        return self._held[:size].reshape(shape), self._held[size : 2 * size].reshape(shape)


class Group(NamedTuple):
    """Some of the sequences, padded to the longest of them."""

    which: list[int]  # their indices among all sequences
    batch: Batch
    allowed: Tensor | None  # "b t z"   the states that labels allow
    statistics: Tensor | None = None  # "(t b) s"   sufficient statistics of each frame
    prior: Prior = Prior()  # the one that they were made with
    weight: float = 1.0  # of each of the sequences
    room: Room | None = None


class Counts(NamedTuple):
    """How often each part is used, in expectation, summed over sequences."""

    dynamics: tuple[Any, ...]  # in the shapes of the start's and the transition's tables, or by frame: `Uses`
    observation: Tensor  # "z s"
    duration: Tensor | None  # "z d"
    log_likelihood: float
    ending: Tensor | None = None  # "z 2"   ends of sequences, and going on

    def times(self, by: float) -> Counts:
        """All counts times a number."""
        return self.of_flat([x * by for x in self.flat()])._replace(log_likelihood=self.log_likelihood * by)

    def flat(self) -> tuple[Any, ...]:
        """All counts, one after the other."""
        return (*self.dynamics, self.observation, *(x for x in (self.duration, self.ending) if x is not None))

    def of_flat(self, counts: Sequence[Any]) -> Counts:
        """Other counts of the same model, as `flat` gives them."""
        num, rest = len(self.dynamics), list(counts[len(self.dynamics) + 1 :])
        ending = None if self.ending is None else rest.pop()
        duration = None if self.duration is None else rest.pop()
        return Counts(tuple(counts[:num]), counts[num], duration, self.log_likelihood, ending)

    def plus(self, other: Counts) -> Counts:
        """The counts of both."""
        found = self.of_flat([x + y for x, y in zip(self.flat(), other.flat(), strict=True)])
        return found._replace(log_likelihood=self.log_likelihood + other.log_likelihood)


class Fitted(NamedTuple):
    """How EM went."""

    history: list[float]  # the log-likelihood (plus the log-prior) before each step; if converged, also after the last
    converged: bool
    counts: Counts  # those the parameters maximise; if EM converged or stepped back, those under the parameters


class Running(NamedTuple):
    """The state of stepwise EM between calls."""

    calls: int
    counts: Counts  # per frame, averaged over calls
    frames: int  # of all calls


def group_lengths(lengths: Sequence[int], num_states: int, most: int = MOST) -> list[list[int]]:
    """Groups of sequences of about one length, none with more than `most` entries "t b z" (one sequence excepted).

    A group ends where a sequence would be padded to more than twice its length.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and longest <= 2 * lengths[i] and longest * (len(groups[-1]) + 1) * num_states <= most:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def group(
    sequences: Sequence[Tensor],
    labels: Sequence[Tensor] | None,
    num_states: int,
    weights: Sequence[float] | None = None,
    inputs: Sequence[Tensor] | None = None,
) -> list[Group]:
    """Sequences of any lengths, "t f" or "t" each, as a few padded batches; a label allows its state alone.

    With `weights`, sequences of equal weight are together, and those of weight 0 are left out. `inputs` "t k" of each
    go with them; where there are some, a batch is as small as transitions "b t z z" ask for.
    """
    if weights is not None:
        found = []
        for weight in sorted(set(weights) - {0.0}):
            which = [i for i, own in enumerate(weights) if own == weight]
            some = None if labels is None else [labels[i] for i in which]
            own = None if inputs is None else [inputs[i] for i in which]
            for one in group([sequences[i] for i in which], some, num_states, inputs=own):
                found.append(one._replace(which=[which[i] for i in one.which], weight=weight))
        return found
    found = []
    entries = num_states if inputs is None else num_states**2
    each = [x.shape[0] for x in sequences]  # the length of a tensor is a call of Python
    for index in group_lengths(each, entries, MOST):
        # Padding is missing: it has no statistics, of which a log of 0 times a posterior of 0 would be NaN.
        filler = float("nan") if sequences[0].is_floating_point() else 0.0
        frames = _padded([sequences[i] for i in index], filler)
        lengths = torch.tensor([each[i] for i in index], device=frames.device)
        allowed = None
        if labels is not None and any(bool((labels[i] >= 0).any()) for i in index):
            allowed = allowed_states(_padded([labels[i] for i in index], -1), num_states)
        beside = None if inputs is None else _padded([inputs[i] for i in index], 0.0)
        found.append(Group(index, Batch(frames, lengths, inputs=beside), allowed))
    return found


def _padded(sequences: Sequence[Tensor], filler: float) -> Tensor:  # "t ..." each -> "b t ..."
    """One batch; a single sequence is not copied."""
    if len(sequences) == 1:
        return sequences[0].unsqueeze(0)
    return pad_sequence(list(sequences), batch_first=True, padding_value=filler)


def with_statistics(groups: Sequence[Group], model: FrameModel, prior: Prior) -> list[Group]:
    """The groups with the sufficient statistics of their frames, computed once for all steps."""
    kind, room = model.observation, Room()
    return [
        one._replace(statistics=kind.sequence_statistics(one.batch.values, prior), prior=prior, room=room)
        for one in groups
    ]


@torch.no_grad()
def expect(model: FrameModel, groups: Iterable[Group]) -> Counts:
    """The E step: the expected counts of all sequences; raises if one of them is impossible.

    Cost: a forward and a backward pass and two products with the frames' statistics; memory O(t b z) of one group.
    """
    alone = torch.get_num_threads() == 1  # few states: the fit has said so already
    with nullcontext() if alone or sum(x.numel() for x in model.parameters()) >= SMALL_STEP else one_thread():
        parts = model.parts()
    found = []
    for one in groups:
        with few_threads(model.config, one.batch.shape[0], math.prod(one.batch.shape)):
            assert one.statistics is not None
            counts = _in_place(model, one, parts)
            if counts is None:
                log_obs = _log_obs(model, one)
                p = model.potentials(one.batch, parts=parts, allowed=one.allowed, log_obs=log_obs)
                counts = expected_counts(p)
                expect_possible(model, one, counts.log_z)
            duration = counts.duration.double() if isinstance(counts, SegmentCounts) else None
            posterior = counts.state.transpose(0, 1).flatten(0, 1)
            observation = model.observation.count(one.statistics, posterior)
            ending, driven = None, model.driven is not None and model.driven.transition is not None
            if model.ending is not None:
                ending = model.ending.count(counts, one.batch, driven=driven)
            if model.driven is None:
                uses = counts.transition if ending is None else counts.transition[1:]
                dynamics = _tables(model).count(counts.initial, uses)
            else:
                dynamics = model.driven.count_sequences(counts, one.batch)
            own = Counts(dynamics, observation, duration, float(counts.log_z.sum()), ending)
            found.append(own if one.weight == 1 else own.times(one.weight))
    return reduce(Counts.plus, found)


def _log_obs(model: FrameModel, one: Group) -> Tensor | None:  # "b t z"
    """The log-weights of a group's frames where they are products with its statistics, time first in memory."""
    assert one.statistics is not None
    log_obs = model.observation.log_obs_of(one.statistics, one.prior)
    return None if log_obs is None else log_obs.reshape(*one.batch.shape[::-1], -1).transpose(0, 1)


def _in_place(model: FrameModel, one: Group, parts: StateParts) -> ChainCounts | None:
    """The expected counts of a chain of free tables without new memory or a second validation; None: the usual way."""
    others = (model.driven, model.ending, model.duration, one.allowed, parts.kept, parts.log_mask)
    if one.room is None or not one.room.serves or any(x is not None for x in others):
        return None
    first = parts.log_initial
    if first.dtype != torch.float64 or not loops_serve(len(first), first) or not isinstance(parts.transition, Dense):
        return None
    if (log_obs := _log_obs(model, one)) is None:
        return None
    num, width = one.batch.shape
    lengths, start = one.batch.lengths, first.expand(num, -1)
    c = Chain(lengths, True, start, parts.transition, log_obs, first.new_zeros(num, len(first)))
    found = uses_in_place(c, one.room.arrays((width, num, len(first))))
    if found is None:
        one.room.serves = False
        return None
    posterior, transition, log_z = found
    return ChainCounts(posterior[0].sum(0), (transition,), posterior.transpose(0, 1), log_z)


def few_threads(config: FrameConfig, num: int, num_frames: int) -> AbstractContextManager[None]:
    """One thread where passes over so many sequences and frames are small; the number is restored afterwards."""
    size = config.num_states * (config.num_states if config.own_rank is None else 2 * config.own_rank)
    looped = not config.has_segments and loops_serve(config.num_states)
    small = num_frames * size < SMALL_PASS if looped else num * size < SMALL_STEP
    return one_thread() if small else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for calls so small that waking a second one takes longer; the number is restored afterwards."""
    if (before := torch.get_num_threads()) == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tables(model: FrameModel) -> Any:
    if model.config.neural:
        raise UnsupportedError('transitions from a network have no step of EM.\n  Use train.optimizer="adam".')
    return model.dynamics


def maximise(model: FrameModel, counts: Counts, prior: Prior) -> None:
    """The M step: every module sets its parameters to the maximum of its own expected counts."""
    small = max(x.numel() for x in (*counts.dynamics, counts.observation)) < SMALL_STEP
    with one_thread() if small else nullcontext():
        _tables(model).maximise(counts.dynamics, prior)
        model.observation.maximise(counts.observation, prior)
        if model.duration is not None:
            assert counts.duration is not None
            model.duration.maximise(counts.duration, prior)
        if model.ending is not None:
            assert counts.ending is not None
            model.ending.maximise(counts.ending, prior)


def log_prior(model: FrameModel, prior: Prior) -> Tensor:  # ""
    """The log-density of the priors, up to a constant; 0 without any. Differentiable in the parameters."""
    total: Tensor = model.observation.log_prior(prior) + _tables(model).log_prior(prior)
    return sum((x.log_prior(prior) for x in (model.duration, model.ending) if x is not None), total)


def em(
    model: FrameModel,
    groups: Iterable[Group],
    prior: Prior,
    *,
    num_steps: int,
    tol: float | None,
    tell: Callable[[int, float, float], None] | None = None,
) -> Fitted:
    """At most `num_steps` steps; fewer where one gains less than `tol` nats per frame (None: never fewer).

    `tell` is called before each step with its number, the value and the gain of the last step.

    After `num_steps` steps the value of the last parameters is not in the history: it would cost another E step. A step
    that loses more than rounding can explain is no convergence: the model goes back to the parameters before it, and a
    warning says how much was lost.
    """
    num_frames = sum(one.batch.num_tokens for one in groups)
    history: list[float] = []
    converged = False
    held, counts = model.state_dict(), None  # the parameters themselves, which steps write into
    before = held
    for _ in range(num_steps):
        last = counts
        counts = expect(model, groups)
        value = counts.log_likelihood + float(log_prior(model, prior).detach())
        gain = value - history[-1] if history else math.inf
        if tell is not None:
            tell(len(history), value, gain)
        if gain < 0 and gain < -ROUNDINGS * _rounding(model, prior, value, num_frames):
            warnings.warn(
                f"a step of EM lost {-gain:g} nats ({history[-1]:g} to {value:g}), which no exact step does: the fit "
                f"ends before it, after {len(history)} steps, and has not converged.\n"
                '  Numbers too far apart for their dtype do that: rescale the features, or use dtype="float64".',
                stacklevel=6,
            )
            assert last is not None
            model.load_state_dict(before)
            return Fitted(history, False, last)
        history.append(value)
        if tol is not None and gain < tol * num_frames:
            converged = True
            break
        before = {name: x.clone() for name, x in held.items()}
        maximise(model, counts, prior)
    assert counts is not None
    return Fitted(history, converged, counts)


def _rounding(model: FrameModel, prior: Prior, value: float, num_frames: int) -> float:
    """The rounding error of a log-likelihood: of its sum over frames in the dtype, and of each frame's own terms."""
    return torch.finfo(model.dtype).eps * (abs(value) + num_frames) + num_frames * model.observation.rounding(prior)


def stepwise(
    model: FrameModel, groups: Sequence[Group], prior: Prior, running: Running | None
) -> tuple[Running, float]:
    """A step of stepwise EM on these sequences: the new running counts, and the sequences' value before the step.

    After call k they are k^-0.6 times its own counts plus 1 - k^-0.6 times the old ones (Cappe, Moulines 2009).
    """
    counts = expect(model, groups)
    value = counts.log_likelihood + float(log_prior(model, prior).detach())
    num = sum(one.batch.num_tokens for one in groups)
    counts = counts.times(1 / num)
    calls, frames = 1, num
    if running is not None:
        calls, frames = running.calls + 1, running.frames + num
        share = calls**-0.6
        counts = running.counts.times(1 - share).plus(counts.times(share))
    maximise(model, counts.times(frames), prior)
    return Running(calls, counts, frames), value


def expect_possible(model: FrameModel, one: Group, log_z: Tensor) -> None:
    """Raise if a sequence has no weight at all."""
    impossible = (log_z == float("-inf")).nonzero()[:, 0]
    if len(impossible):
        at = int(impossible[0])
        raise impossible_sequence(model, one.which[at], int(one.batch.lengths[at]), labelled=one.allowed is not None)


def impossible_sequence(model: FrameModel, sequence: int, length: int, *, labelled: bool) -> DomainError:
    """The error for an impossible sequence, with its remedies."""
    why = "  Zeros come from what was never seen in training: fit with smoothing above 0, or forbid less."
    if model.duration is not None:
        why = (
            f"  Segments last at most {model.config.max_duration} frames: raise max_duration, or set "
            "self_transitions=True, where labelled ones are longer;\n  censored=True lets the end of a sequence cut "
            "the last one; what was never seen in training needs smoothing above 0."
        )
    return DomainError(
        f"sequence {sequence} ({length} frames) is impossible under the model"
        f"{' and its labels' if labelled else ''}: nothing has any weight.\n{why}"
    )


class EMSteps:
    """A step of EM for each update of a run: over all its recordings, the batches of the update ignored.

    With momentum a step over the update's batches: its counts are mixed into running ones, which begin with those of
    all recordings. Parameters and running counts are all the state there is: a resumed run takes the same steps.
    """

    def __init__(self, frames: Frames, model: FrameModel, config: Config, optimizer: torch.optim.Optimizer) -> None:
        if not model.config.normalised_durations:
            raise UnsupportedError(
                "model.normalised_durations is false, but EM maximises distributions that sum to 1.\n"
                '  Set it to true, or train.optimizer="adam".'
            )
        self.model, self.config, self.optimizer = model, config, optimizer
        sequences, labels = training_set(frames, model)
        self.prior = recipe_prior(model, sequences, config.train.smoothing)
        self.num_frames = sum(map(len, sequences))
        if len(sequences) < num_processes():
            raise DomainError(
                f"there are {len(sequences)} training recordings, but {num_processes()} processes: some would have "
                "none.\n  Start fewer processes."
            )
        mine = slice(rank(), None, num_processes())  # of recordings of like lengths, every process has some
        sequences, labels = sequences[mine], None if labels is None else labels[mine]
        self.groups = with_statistics(group(sequences, labels, model.config.num_states), model, self.prior)
        self.carried: tuple[Tensor, ...] | None = None  # running counts

    def carried_of(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The running counts of a checkpoint."""
        return tuple(tensors)

    @torch.no_grad()
    def __call__(self, batches: list[Batch], tokens: int, update: int) -> tuple[float, float]:
        """The log-likelihood before the step; there is no gradient, and its norm is 0."""
        wide = copy.deepcopy(self.model).double()
        counts = self._mixed(wide, batches) if self.config.train.momentum else self._expect(wide, self.groups)
        maximise(wide, counts, self.prior)
        self.model.load_state_dict(wide.state_dict())
        return counts.log_likelihood, 0.0

    def whole_carried(self) -> tuple[Tensor, ...] | None:
        """The running counts, the same on every process."""
        return self.carried

    def own_carried(self, carried: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """The same."""
        return carried

    def _expect(self, wide: FrameModel, groups: Sequence[Group]) -> Counts:
        """The expected counts of the groups of all processes; of one without any the counts are 0."""
        found: list[Counts] = []

        def count() -> float:
            new = [one for one in groups if one.statistics is None]
            own = with_statistics(new, wide, self.prior) if new else groups
            some = expect(wide, own or self.groups[:1])  # the latter for the shapes of counts
            found.append(some if groups else some.times(0.0))
            return found[0].log_likelihood

        total = shared_total(count)
        counts = found[0]._replace(log_likelihood=total)
        add_up(counts.flat())
        return counts

    def _mixed(self, wide: FrameModel, batches: list[Batch]) -> Counts:
        """The running counts once those of some batches are in them, with these batches' log-likelihood."""
        here = [own_rows(batch).to(wide.device) for batch in batches]
        groups = [Group(list(range(len(x.lengths))), x, wide.label_constraint(x)) for x in here if len(x.lengths)]
        found = self._expect(wide, groups)
        if self.carried is None:
            self.carried = self._expect(wide, self.groups).flat()
        share = self.num_frames / sum(batch.num_tokens for batch in batches)
        self.carried = mix(self.carried, found.times(share).flat(), new_share(self.config, self.optimizer))
        return found.of_flat(self.carried)


def initialise_from_recipe(model: FrameModel, frames: Frames, seed: int) -> None:
    """Initialise a model from the training recordings, as its recipe says."""
    sequences, labels = training_set(frames, model)
    prior = recipe_prior(model, sequences, 0.0)
    initialise(model, sequences, labels, prior, np.random.default_rng(seed), near=model.config.init == "kmeans")


def training_set(frames: Frames, model: FrameModel) -> tuple[list[Tensor], list[Tensor] | None]:
    """The recordings in float64 (symbols as whole numbers), and their labels."""
    arrays = [torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64)).to(model.device) for x in frames.features]
    if model.observation.symbols:
        arrays = [torch.where(x[:, 0].isnan(), -1.0, x[:, 0]).long() for x in arrays]
    labels = None if frames.labels is None else [torch.from_numpy(y).to(model.device) for y in frames.labels]
    return arrays, labels


def recipe_prior(model: FrameModel, sequences: Sequence[Tensor], smoothing: float) -> Prior:
    """The prior of a recipe; `variance_prior` frames of variance 1, without them `spread` is the features' variance."""
    config = model.config
    if model.observation.symbols:
        return Prior(smoothing)
    frames = config.observation.on_scale(torch.cat(list(sequences)), config.columns)
    centre = frames.nanmean(0)
    spread = 1.0 if config.variance_prior else (frames - centre).square().nanmean(0)
    return Prior(
        smoothing,
        centre=centre,
        spread=spread,
        min_variance=config.min_variance,
        variance_frames=config.variance_prior,
    )
