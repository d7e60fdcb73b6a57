"""The methods that both estimators share: fit, score, predict, segment, sample, filter a stream."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.decoding import online
from rankfold.decoding.k_best import k_best
from rankfold.decoding.posterior import posterior
from rankfold.decoding.segment_table import cut_short, gain_of_longer
from rankfold.decoding.viterbi import viterbi
from rankfold.errors import DomainError, UnsupportedError, has_nan
from rankfold.estimators.check_parameters import expect_number, expect_seed, fixed_parameters, has_counts
from rankfold.estimators.face import Tables
from rankfold.estimators.fitting import Fit, Parts, generator_of, prepare_fit, torch_generator
from rankfold.estimators.inputs import (
    Inputs,
    expect_names,
    expect_observed,
    expect_width,
    lengths_of,
    names_of,
    plain,
    read_features,
    with_index,
    with_inputs,
)
from rankfold.estimators.scikit_learn import ScikitLearnMethods
from rankfold.estimators.symbols import read_symbols, symbol_ids
from rankfold.models.frame_model import FrameModel
from rankfold.params.prior import Prior
from rankfold.training.em import Group, Running, few_threads, group, impossible_sequence, one_thread

ROW = np.dtype(
    [("start", np.int64), ("end", np.int64), ("state", np.int64), ("posterior", np.float64), ("frames", np.float64)]
)


class Stream(NamedTuple):
    """The state carried from one frame to the next."""

    log_next: Tensor  # "1 z": of the next state; "1 d z": of the open segments, by age
    log_likelihood: float  # of all frames so far
    before: Tensor | None = None  # "p f"   the last frames, where the next one depends on them


class Estimator(Tables, ScikitLearnMethods):
    """The methods of `HMM` and `HSMM`.

    `X` is one array "t f" (a sequence, or with `lengths` several), or a list of arrays; symbols come as a list of
    strings, lists or arrays. Answers come in the form of `X`: one array for one, a list for a list. `labels` in the
    same form, -1 where not known, are exact constraints: all else is impossible. NumPy in, NumPy out.
    """

    model_: FrameModel
    history_: list[float]
    converged_: bool
    n_iter_: int
    n_features_in_: int
    symbols_: NDArray[Any]
    feature_names_in_: NDArray[Any]
    _running: Running | None
    _prior: Prior

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        labels: Any = None,
        inputs: Any = None,
        sample_weight: Any = None,
        algorithm: Literal["em", "minibatch", "sgd"] = "em",
    ) -> Self:
        """Fit to sequences; "em": exact, never decreasing steps; "sgd": Adam on the same objective.

        "minibatch": EM on running counts, `batch_size` sequences per step: for many sequences, of which a few already
        tell where to go. `partial_fit` is the same for data that come, or fit into memory, some at a time.

        Of `n_init` starts the one with the largest objective stays. `y` may hold the lengths
        instead, as with hmmlearn; a target, with an entry for each row, is accepted for pipelines and ignored.
        `sample_weight`: one for each sequence, times which its log-likelihood counts. `inputs`: covariates "t k" in
        the form of `X`, on which observations, transitions or the start depend; none may be missing.
        """
        with one_thread():
            found = prepare_fit(self, X, lengths_of(X, y, lengths), labels, sample_weight, inputs)
        self._warn_of_tables()
        with few_threads(found.config, len(found.sequences), found.num_frames):
            outcome = found.run(algorithm)
        self._take(found, outcome.model, outcome.history, outcome.converged)
        with one_thread():
            self._warn(found, algorithm)
        # Of regressions on inputs there are no counts to go on with.
        self._running = None if not has_counts(found.params) else outcome.running(found.num_frames)
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, lengths: Any = None, labels: Any = None, inputs: Any = None
    ) -> Self:
        """One step of EM on running expected counts: some new sequences at a time (Cappe, Moulines 2009).

        The k-th call's counts weigh k^-0.6 against those of all before. The first call also makes the start; after a
        fit it goes on from there, the fit's steps counted as calls.
        """
        if not has_counts(self.get_params()):
            raise UnsupportedError(
                "partial_fit with input_driven: such regressions and networks have no counts that add up.\n"
                '  Use fit, with algorithm="sgd" where sequences are many.'
            )
        running = getattr(self, "_running", None)
        found = prepare_fit(self, X, lengths_of(X, y, lengths), labels, None, inputs, again=running is not None)
        if running is None:
            self._warn_of_tables()
        with few_threads(found.config, len(found.sequences), found.num_frames):
            model, running, value = found.advance(None if running is None else self.model_, running)
        self._take(found, model, [*(self.history_ if running.calls > 1 else []), value], False)
        self._running = running
        return self

    def fit_parts(self, parts: Iterable[Any]) -> Self:
        """EM, exact, on data larger than memory: each of `parts` is a list of sequences, read anew at every step.

        `parts` is a list, or an object whose `__iter__` reads one part after the other. A step is that of `fit` on all
        of them. The first part makes the start, and the scale that `min_variance` and priors refer to.
        """
        if type(self).fit is not Estimator.fit:
            raise UnsupportedError(f"{type(self).__name__} has no fit_parts.\n  Use HMM or HSMM, or fit.")
        every = Parts(self, parts)
        found = every.first()
        self._warn_of_tables()
        self._take(found, found._started(), [], False)
        outcome = every.run(found)
        self._take(found, outcome.model, outcome.history, outcome.converged)
        self._running = outcome.running(every.num_frames)
        self._warn_of_cut(found)
        return self

    def _take(self, found: Fit, model: FrameModel, history: list[float], converged: bool) -> None:
        for name in [name for name in vars(self) if name.endswith("_") or name in ("_pending", "_by_hand")]:
            delattr(self, name)  # of another fit
        self.model_, self.history_, self.converged_, self.n_iter_ = model, history, converged, len(history)
        self._prior, self._running = found.prior, None
        self._made_with = fixed_parameters(found.params)
        self.n_features_in_ = 1 if found.symbols is not None else found.num_columns
        if found.symbols is not None:
            self.symbols_ = found.symbols
        if found.names is not None:
            self.feature_names_in_ = np.array(found.names, dtype=object)

    def _warn_of_tables(self) -> None:
        """Warn of tables that were set as attributes, which a fit replaces."""
        if names := sorted(vars(self).get("_by_hand", ())):
            given = ", ".join(f"{name!r}: ..." for name in names)
            warnings.warn(
                f"{', '.join(f'{name}_' for name in names)} set before this fit will be overwritten: it makes a start "
                f"of its own.\n  To begin with them, use from_tables, or start={{{given}}}.",
                stacklevel=3,
            )

    def _warn(self, found: Fit, algorithm: str) -> None:
        """Warn of more parameters than data, and of a fit that was cut off."""
        there = (x.numel() if x.ndim == 1 or not has_nan(x) else int((~x.isnan()).sum()) for x in found.sequences)
        numbers = sum(there)
        if (free := self.n_parameters()) > numbers:
            warnings.warn(
                f"too little data: {free:,} free parameters, but {numbers:,} numbers to fit them to.\n"
                "  Take fewer states or a simpler covariance, or give priors.",
                stacklevel=3,
            )
        if algorithm == "em":
            self._warn_of_cut(found)

    def _warn_of_cut(self, found: Fit) -> None:
        """Warn of a fit that `max_iter` cut off; of a step that lost there was a warning already."""
        if found.params["tol"] is not None and not self.converged_ and self.n_iter_ >= found.params["max_iter"]:
            warnings.warn(
                f"EM has not converged: the last of max_iter = {self.n_iter_} steps still gained more than tol.\n"
                "  Raise max_iter, or tol; tol=None takes all steps and says nothing.",
                stacklevel=3,
            )

    def fit_predict(
        self,
        X: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        labels: Any = None,
        inputs: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Fit, and the states of the best path of the same sequences."""
        lengths = lengths_of(X, y, lengths)
        self.fit(X, lengths=lengths, labels=labels, inputs=inputs, sample_weight=sample_weight)
        return self.predict(X, lengths, labels=labels, inputs=inputs)

    def decode(
        self,
        X: Any,
        lengths: Any = None,
        *,
        labels: Any = None,
        inputs: Any = None,
        method: Literal["viterbi", "posterior"] = "viterbi",
    ) -> tuple[float, Any]:
        """The total log-probability of the best paths, with their frames, and the paths, as `predict` gives them.

        "posterior": of each frame the most probable state, and how many of them are right in expectation.
        """
        if method == "posterior":
            given = self._read(X, lengths, labels, inputs)
            found = self._posterior(given)
            return float(sum(x.max(1).sum() for x in found)), given.back([x.argmax(1) for x in found])
        if method != "viterbi":
            raise UnsupportedError(f'method is {method!r}, but must be "viterbi" or "posterior".')
        given = self._read(X, lengths, labels, inputs)
        pairs = self._ask(given, self._best_paths, strict=True)
        total = math.fsum(float(log_prob) for _, log_prob in pairs)
        return total, given.back(self._cut(given, [path for path, _ in pairs]))

    def _best_paths(self, at: Group) -> list[tuple[Tensor, Tensor]]:
        best = viterbi(self._potentials(at))
        return list(zip(best.path, best.log_prob, strict=True))

    def score_samples(
        self, X: Any, lengths: Any = None, labels: Any = None, *, inputs: Any = None
    ) -> NDArray[np.float64]:
        """The log-likelihood of each sequence, in nats; -inf for an impossible one."""
        given = self._read(X, lengths, labels, inputs)
        values = self._ask(given, lambda at: self.model_.log_z(self._potentials(at)))
        return np.array([float(x) for x in values])

    def score(self, X: Any, y: Any = None, *, lengths: Any = None, labels: Any = None, inputs: Any = None) -> float:
        """The log-likelihood of all sequences together, in nats. `y` as in `fit`: lengths, or not used."""
        self._expect_fitted()
        return float(self.score_samples(X, lengths_of(X, y, lengths), labels=labels, inputs=inputs).sum())

    def predict(
        self,
        X: Any,
        lengths: Any = None,
        *,
        labels: Any = None,
        inputs: Any = None,
        method: Literal["viterbi", "posterior"] = "viterbi",
    ) -> Any:
        """The states of the best path or segmentation; "posterior": of each frame the most probable state."""
        if method not in ("viterbi", "posterior"):
            raise UnsupportedError(f'method is {method!r}, but must be "viterbi" or "posterior".')
        given = self._read(X, lengths, labels, inputs)
        if method == "viterbi":
            best = self._ask(given, lambda at: viterbi(self._potentials(at)).path, strict=True)
            return given.back(self._cut(given, best))
        return given.back([x.argmax(1) for x in self._posterior(given)])

    def k_best(self, X: Any, k: int, lengths: Any = None, *, labels: Any = None, inputs: Any = None) -> tuple[Any, Any]:
        """Log-probabilities "k" and states "k t" of the k best paths or segmentations, the best first; exact.

        Fewer where a sequence has fewer. Lists of such arrays, one for each sequence, for a list or with `lengths`. Of
        segmentations with `self_transitions` several may have the same states.
        """
        expect_number("k", k)
        given = self._read(X, lengths, labels, inputs)

        def question(at: Group) -> list[tuple[Tensor, Tensor]]:
            found = k_best(self._potentials(at), int(k))
            return list(zip(found.log_prob.mT, found.path.transpose(0, 1), strict=True))

        log_probs, paths = [], []
        for i, (log_prob, path) in enumerate(self._ask(given, question)):
            there = log_prob > -math.inf
            if not there.any():
                raise impossible_sequence(self.model_, i, given.lengths[i], labelled=given.labels is not None)
            log_probs.append(log_prob[there].cpu().numpy())
            paths.append(path[there, : given.lengths[i]].cpu().numpy())
        alone = given.together and lengths is None
        return (log_probs[0], paths[0]) if alone else (log_probs, paths)

    def predict_proba(self, X: Any, lengths: Any = None, *, labels: Any = None, inputs: Any = None) -> Any:
        """The probability "t z" of every state at every frame, given the whole sequence."""
        given = self._read(X, lengths, labels, inputs)
        return given.back(self._posterior(given))

    def segment(self, X: Any, lengths: Any = None, *, labels: Any = None, inputs: Any = None) -> Any:
        """The segments of the best path: a structured array of start, end (exclusive), state, posterior, frames.

        `posterior` is the probability of exactly this segment, of an HMM that all its frames have its state; `frames`
        is the mean over its frames of the probability of its state. Of one array cut by `lengths`, starts and ends
        count its rows. A table with an index (pandas) adds `first` and `last`, the index's labels of a segment's first
        and last frame. Warns where longer segments than the model has would explain the frames better.
        """
        given = self._read(X, lengths, labels, inputs)
        rows = self._ask(given, lambda at: self.model_.segments(at.batch, allowed=at.allowed), strict=True)
        config = self.model_.config
        if config.has_segments and config.max_duration < max(given.lengths):
            gains = map(float, self._ask(given, lambda at: gain_of_longer(self._potentials(at))))
            if (cut := cut_short(gains, config.max_duration, "max_duration and fit again")) is not None:
                warnings.warn(cut, stacklevel=2)
        offsets = np.cumsum([0, *given.lengths[:-1]]) if given.together else np.zeros(len(rows), np.int64)
        tables = []
        for i, (one, offset) in enumerate(zip(rows, offsets, strict=True)):
            table = np.array([tuple(row) for row in one], dtype=ROW)
            table["start"] += offset
            table["end"] += offset
            tables.append(with_index(table, X if given.together else X[i]))
        return given.back(tables)

    def filter(self, X: Any, lengths: Any = None, *, inputs: Any = None) -> Any:
        """The probability "t z" of every state at every frame, given the frames up to it alone."""
        given = self._read(X, lengths, None, inputs)

        def question(at: Group) -> Tensor:  # no frame is the last one yet
            going_on = at._replace(batch=at.batch._replace(last=self.model_.ending is None))
            return online.filter(self._potentials(going_on)).log_filtered.exp()

        found = self._ask(given, question, strict=True)
        return given.back(self._cut(given, found))

    def step(self, frame: Any, state: Stream | None = None, *, inputs: Any = None) -> tuple[NDArray[Any], Stream]:
        """The probability "z" of the state at one more frame of a stream, and the `state` for the next step.

        A frame is a vector of features (NaN: missing), or one symbol. `state.log_likelihood` is that of all so far.
        `inputs`: those of this frame, "k".
        """
        self._expect_fitted()
        x = self._one(frame, apart=inputs is not None)
        beside = self._beside(x, None if inputs is None else np.asarray(inputs)[None])
        z, segments = self.model_.config.num_states, self.model_.config.has_segments
        if state is not None and (
            not isinstance(state, Stream) or state.log_next.ndim != 2 + segments or state.log_next.shape[-1] != z
        ):
            raise DomainError("state is not what a step of this model returned: pass its second answer on, or None.")
        with torch.no_grad():
            p, before = self._next_potentials(*beside, state)
        ahead = online.advance(p)
        assert ahead.log_filtered is not None
        so_far = 0.0 if state is None else state.log_likelihood
        return ahead.log_filtered[0].exp().cpu().numpy(), Stream(ahead.log_next, so_far + float(ahead.log_z), before)

    def sample(
        self,
        n_samples: int | None = None,
        *,
        n_sequences: int | None = None,
        n_trials: int | None = None,
        inputs: Any = None,
        random_state: Any = None,
    ) -> tuple[Any, Any]:
        """Frames and states drawn from the model: arrays of `n_samples` frames, or lists of `n_sequences` of them.

        Without `n_samples`: one frame; of a model with end probabilities, until the sequence ends by itself.
        `inputs`, where the model depends on some: an array "n k", the same for all sequences. `n_trials` of multinomial
        counts: what each frame adds up to, 1 unless told.
        """
        self._expect_fitted()
        for name, value in (("n_samples", n_samples), ("n_sequences", n_sequences), ("n_trials", n_trials)):
            if value is not None:
                expect_number(name, value)
        if n_samples is None and self.model_.ending is None:
            n_samples = 1
        if n_trials is not None and self.observations != "multinomial":  # type: ignore[attr-defined]
            raise UnsupportedError("n_trials is given, but multinomial counts alone have trials.")
        expect_seed(random_state)
        source = self.random_state if random_state is None else random_state  # type: ignore[attr-defined]
        generator = torch_generator(generator_of(source), self.model_.device)
        beside = None
        if inputs is not None:
            x = plain(inputs, "inputs").astype(np.float64)
            beside = [torch.from_numpy(x).to(self.model_.device)] * (n_sequences or 1)
        drawn = self.model_.sample(n_samples, n_sequences, inputs=beside, generator=generator)
        if n_trials is not None:
            observation = self.model_.parts().observation
            drawn = [(observation.sample_trials(y, n_trials, generator).detach(), y) for _, y in drawn]
        frames, states = ([x.cpu().numpy() for x in column] for column in zip(*drawn, strict=True))
        if not hasattr(self, "symbols_"):
            frames = [x[:, : self.n_features_in_] for x in frames]
        if hasattr(self, "symbols_"):
            frames = [self.symbols_[x] for x in frames]
        return (frames[0], states[0]) if n_sequences is None else (frames, states)

    def aic(self, X: Any, lengths: Any = None, *, labels: Any = None, inputs: Any = None) -> float:
        """Akaike's information criterion, 2 k - 2 log L: the smaller the better."""
        return 2 * self.n_parameters() - 2 * self.score(X, lengths=lengths, labels=labels, inputs=inputs)

    def bic(self, X: Any, lengths: Any = None, *, labels: Any = None, inputs: Any = None) -> float:
        """The Bayesian information criterion, k log(frames) - 2 log L: the smaller the better."""
        frames = sum(self._read(X, lengths, labels, inputs).lengths)
        found = self.score(X, lengths=lengths, labels=labels, inputs=inputs)
        return self.n_parameters() * math.log(frames) - 2 * found

    def n_parameters(self) -> int:
        """How many numbers of the model are free: what sums to 1 has one less, forbidden transitions have none.

        Of a low rank the dimension of the matrices counts, not the numbers in their factors.
        """
        self._expect_fitted()
        model: Any = self.model_
        more = sum(x.num_free for x in (model.duration, model.ending) if x is not None)
        return int(model.dynamics.num_free(self._prior.forbidden) + model.observation.num_free + more)

    def _read(self, X: Any, lengths: Any, labels: Any, inputs: Any = None) -> Inputs:
        self._expect_fitted()
        expect_names(getattr(self, "feature_names_in_", None), names_of(X), type(self).__name__)
        config = self.model_.config
        if self.model_.observation.symbols:
            given = read_symbols(X, lengths, labels, num_states=config.num_states)
            ids: list[NDArray[Any]] = list(symbol_ids(given, self.symbols_))
            return self._with_inputs(given._replace(sequences=ids), inputs)
        given = read_features(
            X, lengths, labels, num_states=config.num_states, missing=self.missing,  # type: ignore[attr-defined]
            dtype="float32" if self.model_.dtype == torch.float32 else "float64",
        )  # fmt: skip
        width = given.sequences[0].shape[1]
        if inputs is None or not config.num_covariates or width != config.num_features - config.num_covariates:
            expect_width(width, self)
        given = self._with_inputs(given, inputs)
        with one_thread():
            expect_observed(given.sequences, config)
        return given

    def _with_inputs(self, given: Inputs, inputs: Any) -> Inputs:
        config = self.model_.config
        inside = not config.num_covariates or given.sequences[0].shape[1] == config.num_features
        apart = 0 if inside else config.num_covariates
        num = config.num_drivers or apart
        return with_inputs(given, inputs, observed=apart > 0, driven=bool(config.driven), num=num)

    def _beside(self, x: Tensor, inputs: Any) -> tuple[Tensor, Tensor | None]:  # "1 f" or "1" -> and "1 k"
        """One frame of a stream, and its inputs where they drive the transition."""
        given = self._with_inputs(Inputs([x.cpu().numpy()], None, False), None if inputs is None else [inputs])
        frame = torch.from_numpy(given.sequences[0]).to(x)
        wrong = None if self.model_.observation.symbols else self.model_.config.invalid(frame)
        if wrong is not None:
            raise DomainError(
                f"feature {wrong.at[1]} of a frame is {float(frame[wrong.at]):g}, but observations="
                f'"{self.model_.config.observations}" are {wrong.expected}.\n  {wrong.remedy}'
            )
        return frame, None if given.inputs is None else torch.from_numpy(given.inputs[0]).to(self.model_.device)

    def _one(self, frame: Any, *, apart: bool) -> Tensor:  # "1 f" or "1"
        if hasattr(self, "symbols_"):
            ids = symbol_ids(read_symbols([[frame]], None, None, num_states=1, may_miss=True), self.symbols_)
            return torch.from_numpy(ids[0]).to(self.model_.device)
        names = getattr(frame, "index", None)  # a row of a table has one
        if not callable(names) and names is not None and all(isinstance(name, str) for name in names):
            expect_names(getattr(self, "feature_names_in_", None), tuple(names), type(self).__name__)
        x = plain(frame, "frame")
        x = x.astype(np.float64) if x.dtype.kind in "fiub" else np.full((), np.nan)
        config = self.model_.config
        width = config.num_features - config.num_covariates if apart else self.n_features_in_
        if x.shape not in {(width,), (self.n_features_in_,)} or np.isinf(x).any():
            raise DomainError(
                f"a frame is {x.tolist() if x.ndim else frame!r:.60}, but {width} finite features were "
                "expected, or NaN."
            )
        return torch.from_numpy(x)[None].to(self.model_.device, self.model_.dtype)

    def _next_potentials(
        self, x: Tensor, inputs: Tensor | None, state: Stream | None
    ) -> tuple[Any, Tensor | None]:  # "1 f" or "1", "1 k"
        """The potentials of one more frame of a stream, and the frames that the next one depends on."""
        lags, z = self.model_.observation.lags, self.model_.config.num_states
        seen = x if state is None or state.before is None else torch.cat([state.before, x])
        (one,) = group([seen], None, z, inputs=None if inputs is None else [inputs])
        one = one._replace(batch=one.batch._replace(last=self.model_.ending is None))
        if len(seen) == 1:
            p = self.model_.potentials(one.batch, carried=None if state is None else state.log_next)
        else:
            assert state is not None
            p = self.model_.potentials(one.batch)
            p = p._replace(log_initial=state.log_next, log_obs=p.log_obs[:, -1:], lengths=torch.ones_like(p.lengths))
        return p, seen[-lags:] if lags else None

    def _potentials(self, at: Group) -> Any:
        return self.model_.potentials(at.batch, allowed=at.allowed)

    def _posterior(self, given: Inputs) -> list[NDArray[Any]]:
        found = self._ask(given, lambda at: posterior(self._potentials(at)).state, strict=True)
        return self._cut(given, found)

    def _cut(self, given: Inputs, answers: list[Any]) -> list[NDArray[Any]]:
        return [x[:length].cpu().numpy() for x, length in zip(answers, given.lengths, strict=True)]

    def _ask(self, given: Inputs, question: Callable[[Group], Any], *, strict: bool = False) -> list[Any]:
        """The answers to a question of groups of sequences, a row or item each, in the sequences' own order."""
        model = self.model_
        device, dtype = model.device, torch.int64 if model.observation.symbols else model.dtype
        tensors = [torch.from_numpy(x).to(device, dtype) for x in given.sequences]
        labels = None if given.labels is None else [torch.from_numpy(y).to(device) for y in given.labels]
        inputs = None if given.inputs is None else [torch.from_numpy(u).to(device) for u in given.inputs]
        answers: list[Any] = [None] * len(tensors)
        with torch.no_grad(), few_threads(model.config, len(tensors), sum(given.lengths)):
            for one in group(tensors, labels, model.config.num_states, inputs=inputs):
                for i, answer in zip(one.which, question(one), strict=True):
                    if strict and _is_impossible(answer):
                        raise impossible_sequence(model, i, given.lengths[i], labelled=one.allowed is not None)
                    answers[i] = answer
        return answers


def _is_impossible(answer: Any) -> bool:
    """Whether an answer is that of an impossible sequence: no segments, a state of -1, or no posterior at all."""
    if isinstance(answer, list):
        return not answer
    if isinstance(answer, tuple):
        return bool(answer[1] == float("-inf"))
    return bool(answer[0] < 0) if answer.ndim == 1 else not bool(answer[0].any())
