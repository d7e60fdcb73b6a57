"""What is asked of a fitted estimator: values, states, segments, filters and streams."""

from __future__ import annotations

from typing import Any

import numpy as np

import rankfold
from tests.hunt import chain_oracle, segment_oracle
from tests.hunt.arithmetic import Array, exp, log
from tests.hunt.compare import close, expect
from tests.hunt.estimator_oracle import Model
from tests.hunt.kind import Case


class Given:
    """The frames and labels in the form of the case: a list, or one array with its lengths, by name or second."""

    def __init__(self, case: Case) -> None:
        self.case, self.whole = case, np.array(case["x"])
        ends = np.cumsum(case["lengths"])[:-1]
        self.pieces, self.labels = np.split(self.whole, ends), None
        self.listed = case["form"] == "list"
        if case["labels"] is not None:
            known = np.array(case["labels"])
            self.labels = np.split(known, ends) if self.listed else known
        self.fitting = {"list": (self.pieces,), "lengths": (self.whole,), "positional": (self.whole, case["lengths"])}[
            case["form"]
        ]
        self.named = {"lengths": case["lengths"]} if case["form"] == "lengths" else {}
        self.asking = (self.pieces,) if self.listed else (self.whole, case["lengths"])

    def fit(self, model: Any, **options: Any) -> Any:
        return model.fit(*self.fitting, labels=self.labels, **self.named, **options)

    def partial_fit(self, model: Any) -> Any:
        return model.partial_fit(*self.fitting, labels=self.labels, **self.named)

    def joined(self, answer: Any) -> Array:
        """An answer for all frames; one array was given, or a list."""
        expect("form of the answer", isinstance(answer, list) == self.listed, type(answer))
        return np.concatenate(answer) if self.listed else answer


def ask(model: Any, truth: Model, given: Given, allowed: float) -> None:
    """Every question; those of states are refused where a sequence is impossible."""
    labelled = {"labels": given.labels}
    log_z = truth.log_z()
    close("score_samples", np.asarray(model.score_samples(*given.asking, **labelled)), log_z, allowed)
    score = model.score(*given.fitting, **labelled, **given.named)
    close("score", np.array(score), np.asarray(log_z.sum()), allowed)
    if not np.isfinite(log_z).all():
        try:
            model.predict(*given.asking, **labelled)
        except rankfold.DomainError:
            return
        expect("predict", False, "no error for an impossible sequence")
    posterior = np.concatenate([_states(truth, s) for s in truth.solved()])
    close("predict_proba", given.joined(model.predict_proba(*given.asking, **labelled)), posterior, min(1.0, allowed))
    best = truth.best()
    path = given.joined(model.predict(*given.asking, **labelled))
    close("predict", truth.best(path), best, allowed)
    likely = given.joined(model.predict(*given.asking, method="posterior", **labelled))
    off = posterior.max(1) - np.take_along_axis(posterior, likely[:, None], 1)[:, 0]
    expect("predict of each frame", bool((off <= 2 * min(1.0, allowed)).all()), likely, off)
    _segments(model, truth, given, posterior, best, allowed)
    _stream(model, truth, given, min(1.0, allowed), allowed)


def _states(truth: Model, s: Any) -> Array:  # "t z"
    if truth.segments:
        return segment_oracle.posterior(s, truth.duration(), truth.censored, carried=False).states
    states: Array = s.posterior[0]
    return states


def _segments(model: Any, truth: Model, given: Given, posterior: Array, best: Array, allowed: float) -> None:
    """Segments follow each other, are the best ones, and have the posteriors they say."""
    tables = model.segment(*given.asking, labels=given.labels)
    initial, a, obs = log(truth.tables["initial"]), truth.moves(), truth.densities()
    log_z = truth.log_z()
    if given.listed:
        expect("segments of each", len(tables) == len(truth.pieces), tables)
        tables = [t.copy() for t in tables]
    else:
        tables = [tables[(tables["start"] >= p.start) & (tables["start"] < p.stop)].copy() for p in truth.pieces]
        for table, p in zip(tables, truth.pieces, strict=True):
            table["start"] -= p.start
            table["end"] -= p.start
    for i, (rows, piece, s) in enumerate(zip(tables, truth.pieces, truth.solved(), strict=True)):
        borders = [*rows["start"].tolist(), piece.stop - piece.start]
        expect("borders", borders[0] == 0 and rows["end"].tolist() == borders[1:], rows)
        states = np.repeat(rows["state"], np.diff(borders))
        if truth.segments:
            begins = np.isin(np.arange(len(states)), rows["start"])
            value = segment_oracle.weight(s.t, a, states, begins)
            inner, last, _, _ = s.uses()
            wanted = [last[b, z] if e == len(states) else inner[b, e - 1, z] for b, e, z in rows[_BORDERS].tolist()]
        else:
            one = obs[piece][None]
            end = np.zeros((1, len(a)))
            value = chain_oracle.weight(states[None, None], initial[None], a, one, end, np.array([len(states)]))[0, 0]
            wanted = []
            for b, e, z in rows[_BORDERS].tolist():
                known = np.full(len(truth.x), -1)
                known[piece.start + b : piece.start + e] = z
                wanted.append(exp(truth.log_z(known)[i] - log_z[i]))
        close("segments", np.asarray(value), np.asarray(best[i]), allowed)
        close("posterior of segments", rows["posterior"], np.array(wanted), min(1.0, allowed))
        means = [posterior[piece][b:e, z].mean() for b, e, z in rows[_BORDERS].tolist()]
        close("frames of segments", rows["frames"], np.array(means), min(1.0, allowed))


_BORDERS = ["start", "end", "state"]


def _stream(model: Any, truth: Model, given: Given, close_to: float, allowed: float) -> None:
    """The filter of all sequences, and the first one again frame by frame."""
    found = given.joined(model.filter(*given.asking))
    for i, piece in enumerate(truth.pieces):
        states, values = truth.filtered(piece)
        close("filter", found[piece], states, close_to)
        state = None
        for t, frame in enumerate(given.pieces[i] if i == 0 else []):
            probability, state = model.step(frame, state)
            close("step", np.asarray(probability), states[t], close_to)
            close("likelihood of a stream", np.array(state.log_likelihood), np.asarray(values[t]), allowed)
