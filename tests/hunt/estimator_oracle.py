"""The estimators' models in numpy, in extended precision: densities, sums, best values, filters and steps of EM.

Shares nothing with the library. Held to plain enumeration in `test_oracles.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.hunt import chain_oracle, segment_oracle
from tests.hunt.arithmetic import NONE, Array, exp, log, matmul, total
from tests.hunt.kind import Case

Tables = dict[str, Array]


class Uses(NamedTuple):
    """Expected counts; `frames` are posteriors "t z" and `x` the frames they are of."""

    counts: Tables  # initial, durations, and weight or left and right
    frames: Array
    x: Array

    def mixed(self, other: Uses, share: float, by: int) -> Uses:
        """Counts a frame of both, the other's with this share, times a number of frames."""
        ours, theirs = by * (1 - share) / len(self.x), by * share / len(other.x)
        counts = {name: ours * x + theirs * other.counts[name] for name, x in self.counts.items()}
        frames = np.concatenate([ours * self.frames, theirs * other.frames])
        return Uses(counts, frames, np.concatenate([self.x, other.x]))


def ruled_out(options: Case, states: int, segments: bool) -> Array:
    """The moves of a dense transition that have no weight."""
    out = np.zeros((states, states), dtype=bool)
    if options["forbidden"] is not None:
        out |= np.array(options["forbidden"])
    if segments and not options["self_transitions"]:
        out |= np.eye(states, dtype=bool)
    return out


def seen(x: Array) -> tuple[Array, Array]:
    """Mean and variance of each feature over the frames that have it."""
    return np.nanmean(x, 0), np.nanvar(x, 0)


def durations(t: Tables, longest: int) -> Array:  # "z d"
    """The log-probability of every duration: a table, a Poisson's or a negative binomial's, cut and normalised."""
    if "duration" in t:
        return log(t["duration"])
    d = np.arange(1, longest + 1, dtype=np.longdouble)
    if "log_shape" in t:
        ways = log((exp(t["log_shape"])[:, None] + d[:-1] - 1) / d[:-1])
        base = np.concatenate([np.zeros((len(ways), 1), np.longdouble), np.cumsum(ways, 1)], 1)
    else:
        base = -np.cumsum(log(d))[None]
    out = base + t["log_rate"][:, None] * d
    return out - total(out)[:, None]


class Model:
    """A model of frames with its data; labels apply where they are given."""

    def __init__(self, case: Case, tables: Tables | None = None) -> None:
        self.case, self.options, self.segments = case, case["options"], case["segments"]
        kind = np.int64 if self.options["observations"] == "categorical" else np.longdouble
        self.x = np.array(case["x"], dtype=kind)
        given = case["start"] if tables is None else tables
        self.tables: Tables = {k: np.array(v, dtype=np.longdouble) for k, v in (given or {}).items()}
        ends = np.cumsum(case["lengths"])
        self.pieces = [slice(e - n, e) for n, e in zip(case["lengths"], ends, strict=True)]
        self.ruled_out = ruled_out(self.options, case["states"], self.segments)
        self.labels = np.full(len(self.x), -1) if case["labels"] is None else np.array(case["labels"])
        self.spread = seen(self.x)[1] if self.options["observations"] == "gaussian" else None
        self.censored = bool(self.options.get("censored", False))

    def densities(self, labels: Array | None = None) -> Array:  # "t z"
        """The log-weight of every frame in every state; other states than a label's have none."""
        t = self.tables
        if self.options["observations"] == "gaussian":
            variance = np.broadcast_to(t["variance"], t["mean"].shape)
            off = (self.x[:, None] - t["mean"]) ** 2 / variance + log(2 * np.pi * variance)
            out = -0.5 * np.nansum(off, -1)
        elif self.options["observations"] == "bernoulli":
            p = t["probability"]
            ones = np.where(self.x[:, None] == 1, log(p), 0.0) + np.where(self.x[:, None] == 0, log(1 - p), 0.0)
            out = ones.sum(-1)
        else:
            out = np.where((self.x < 0)[:, None], 0.0, log(t["probability"]).T[np.maximum(self.x, 0)])
        for known in (self.labels,) if labels is None else (self.labels, labels):
            out = np.where((known[:, None] >= 0) & (known[:, None] != np.arange(out.shape[1])), NONE, out)
        return out

    def moves(self) -> Array:  # "z y"
        """The logarithm of the transition."""
        if self.options["rank"] is None:
            return log(self.tables["transition"])
        a = matmul(log(self.tables["left"]), log(self.tables["right"]).T)
        if self.segments and not self.options["self_transitions"]:  # drawn again until it leaves
            a = np.where(np.eye(len(a), dtype=bool), NONE, a)
            a = a - total(a)[:, None]
        return a

    def duration(self) -> Array:  # "z d"
        """The log-probability of every duration."""
        return durations(self.tables, self.options["max_duration"])

    def solved(self, labels: Array | None = None) -> Iterator[Any]:
        """The messages of each sequence."""
        obs, initial, a = self.densities(labels), log(self.tables["initial"]), self.moves()
        for piece in self.pieces:
            if self.segments:
                yield segment_oracle.solve(self.segment_tables(obs[piece], self.censored), a)
            else:
                one = obs[piece][None]
                yield chain_oracle.solve(initial[None], a, one, np.zeros((1, len(a))), np.array([one.shape[1]]))

    def segment_tables(self, obs: Array, censored: bool) -> segment_oracle.Tables:
        """The weights of all segments of a sequence."""
        end = np.zeros(len(self.tables["initial"]))
        return segment_oracle.tables(log(self.tables["initial"]), self.duration(), obs, end, censored)

    def log_z(self, labels: Array | None = None) -> Array:
        """The log-likelihood of each sequence."""
        return np.array([np.ravel(s.log_z)[0] for s in self.solved(labels)])

    def best(self, labels: Array | None = None) -> Array:
        """The log-weight of the best path or segmentation of each sequence."""
        obs, initial, a = self.densities(labels), log(self.tables["initial"]), self.moves()
        out = []
        for piece in self.pieces:
            one = obs[piece]
            if self.segments:
                out.append(segment_oracle.best(self.segment_tables(one, self.censored), a))
            else:
                end = np.zeros((1, len(a)))
                out.append(chain_oracle.best(initial[None], a, one[None], end, np.array([len(one)]))[0])
        return np.array(out)

    def filtered(self, piece: slice) -> tuple[Array, Array]:  # "t z", "t"
        """The states of a sequence given the frames up to each, and the log-likelihood of those; without labels."""
        held, self.labels = self.labels, np.full_like(self.labels, -1)
        obs, a = self.densities()[piece], self.moves()
        self.labels = held
        states, values = [], []
        for t in range(1, len(obs) + 1):
            if self.segments:  # the present frame may be any of its segment
                s = segment_oracle.solve(self.segment_tables(obs[:t], censored=True), a)
                states.append(segment_oracle.posterior(s, self.duration(), censored=True, carried=False).states[-1])
                values.append(s.log_z)
            else:
                one = chain_oracle.solve(
                    log(self.tables["initial"])[None], a, obs[None, :t], np.zeros((1, len(a))), np.array([t])
                )
                states.append(one.posterior[0, -1])
                values.append(one.log_z[0])
        return np.array(states), np.array(values)

    def expected(self) -> tuple[Array, Uses]:
        """log Z of each sequence, and how often everything is used."""
        a, z = self.moves(), self.case["states"]
        log_z, first, posterior, moves, lasted = [], 0.0, np.zeros((len(self.x), z), np.longdouble), [], np.zeros(1)
        for piece, s in zip(self.pieces, self.solved(), strict=True):
            if self.segments:
                found = segment_oracle.posterior(s, self.duration(), self.censored, carried=False)
                log_z.append(s.log_z)
                first, lasted = first + found.initial, lasted + found.durations
                posterior[piece] = found.states
                moves.append(s.moves(a))
            else:
                log_z.append(s.log_z[0])
                first = first + s.posterior[0, 0]
                posterior[piece] = s.posterior[0]
                moves.append(total(s.moves[0], 0) if s.moves.shape[1] else np.full(a.shape, NONE))
        used = exp(total(np.stack(moves), 0) + a)  # "z y"
        counts = {"initial": first, "durations": lasted, **self._by_factor(used)}
        return np.array(log_z), Uses(counts, posterior, self.x)

    def _by_factor(self, used: Array) -> Tables:
        """The uses of each table, of those of moves: a rank is hidden in each, and draws that did not leave."""
        if self.options["rank"] is None:
            return {"weight": used}
        left, right = self.tables["left"], self.tables["right"]
        by_rank = left[:, None] * right[None]  # "z y r"
        whole = by_rank.sum(-1, keepdims=True)
        shares = used[..., None] * by_rank / np.where(whole > 0, whole, 1.0)
        if self.segments and not self.options["self_transitions"]:
            stay = left * right  # "z r"
            at = np.arange(len(left))
            shares[at, at] = used.sum(1)[:, None] * stay / (1 - stay.sum(1, keepdims=True))
        return {"left": shares.sum(1), "right": shares.sum(0)}

    def prior(self) -> Array:
        """The log-prior, as docs/estimators.md has it."""
        s, o, t = self.options["smoothing"], self.options, self.tables
        out = np.longdouble(0.0)
        if s:
            out += s * log(t["initial"]).sum()
            if o["rank"] is None:
                out += s * log(t["transition"][~self.ruled_out]).sum()
            else:
                out += s * (log(t["left"]).sum() + log(t["right"]).sum())
            if o["observations"] == "bernoulli":
                out += s * (log(t["probability"]) + log(1 - t["probability"])).sum()
            elif o["observations"] == "categorical":
                out += s * log(t["probability"]).sum()
            if "duration" in t:
                out += s * log(t["duration"]).sum()
        if o.get("variance_prior"):
            variance = np.broadcast_to(t["variance"], t["mean"].shape)
            out -= o["variance_prior"] / 2 * (log(variance) + self.spread / variance).sum()
        return out

    def objective(self) -> Array:
        """What both algorithms maximise."""
        value: Array = self.log_z().sum() + self.prior()
        return value

    def maximised(self, uses: Uses) -> Tables:
        """The M step; rates and shapes of durations stay: `estimator_fits.py` holds them to their maximum."""
        counts = uses.counts
        s, o, t = self.options["smoothing"], self.options, self.tables
        new = {name: t[name] for name in ("log_rate", "log_shape") if name in t}
        new["initial"] = _shares(counts["initial"] + s, t["initial"])
        if o["rank"] is None:
            new["transition"] = _shares(np.where(self.ruled_out, 0.0, counts["weight"] + s), t["transition"])
        else:
            new["left"] = _shares(counts["left"] + s, t["left"])
            new["right"] = _shares((counts["right"] + s).T, t["right"].T).T
        if "duration" in t:
            new["duration"] = _shares(counts["durations"] + s, t["duration"])
        return new | self._observed(uses.frames, uses.x)

    def _observed(self, posterior: Array, frames: Array) -> Tables:
        """The M step of the observations."""
        o, t = self.options, self.tables
        s = o["smoothing"]
        if o["observations"] == "categorical":
            counts = np.stack([posterior[frames == v].sum(0) for v in range(o["n_symbols"])], 1)
            return {"probability": _shares(counts + s, t["probability"])}
        here = ~np.isnan(frames)
        x = np.where(here, frames, 0.0)
        number = posterior.T @ here
        if o["observations"] == "bernoulli":
            whole = number + 2 * s
            found = (posterior.T @ x + s) / np.where(whole > 0, whole, 1.0)
            return {"probability": np.where(whole > 0, found, t["probability"])}
        some = number > 0
        mean = np.where(some, posterior.T @ x / np.where(some, number, 1.0), t["mean"])
        off = np.where(here[:, None], x[:, None] - mean, 0.0)
        scatter = (posterior[..., None] * off**2).sum(0)
        prior = o["variance_prior"]
        if o["tied_variance"]:
            scatter, number, some, prior = scatter.sum(0), number.sum(0), some.any(0), prior * len(mean)
        whole = number + prior
        variance = (scatter + prior * self.spread) / np.where(whole > 0, whole, 1.0)
        variance = np.where(some, np.maximum(variance, o["min_variance"] * self.spread), t["variance"])
        return {"mean": mean, "variance": variance}

    def size(self) -> float:
        """How large a frame's log-weight and its terms are."""
        obs = self.densities()
        return float(np.abs(obs[np.isfinite(obs)]).max()) if np.isfinite(obs).any() else 0.0


def _shares(x: Array, old: Array) -> Array:
    whole = x.sum(-1, keepdims=True)
    return np.where(whole > 0, x / np.where(whole > 0, whole, 1.0), old)
