"""Everything asked of a batch of segments, each answer held to the oracle's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rankfold
from rankfold.recursions import segments
from tests.hunt import matrices, segment_oracle
from tests.hunt.arithmetic import EPS, Array, magnitude, rare, rounding, total, wide
from tests.hunt.compare import array, close, expect
from tests.hunt.factors import LIMIT, expect_counts, expect_gradients, gradients, places
from tests.hunt.kind import Case
from tests.hunt.second import expect_second

RENEW = 8  # frames for which log-weights of open segments are added up in the dtype of the potentials
TABLES = ("log_initial", "log_duration", "log_obs", "log_final")


class Oracle:
    """The truth of a case, and how far rounding may lead from it."""

    def __init__(self, case: Case) -> None:
        dtype = case["dtype"]
        obs, duration, initial = (wide(case[k], dtype) for k in ("log_obs", "log_duration", "log_initial"))
        num, steps, states = obs.shape
        final = wide(0.0 if case["log_final"] is None else case["log_final"], dtype)
        self.lengths = np.array(case["lengths"] or [steps] * num)
        self.inside = np.arange(steps) < self.lengths[:, None]
        self.carried = initial.ndim == 3
        initial = np.broadcast_to(initial, (num, *initial.shape[-1:])) if initial.ndim < 3 else initial
        final = np.broadcast_to(final, (num, states))
        self.a = matrices.written(case["transition"], dtype)
        self.solved, self.posterior = [], []
        for b, length in enumerate(self.lengths):
            t = segment_oracle.tables(initial[b], duration, obs[b, :length], final[b], case["censored"])
            self.solved.append(segment_oracle.solve(t, self.a))
            self.posterior.append(segment_oracle.posterior(self.solved[-1], duration, case["censored"], self.carried))
        self.log_z = np.array([one.log_z for one in self.solved])
        self.possible = np.isfinite(self.log_z)
        whole, terms = matrices.size(case["transition"], dtype)
        once = magnitude(duration) + magnitude(initial) + magnitude(final) + whole
        self.size = steps * (magnitude(obs) + magnitude(duration) + whole) + once
        longest = duration.shape[1]
        # Logarithms of open segments are sums of up to RENEW frames in the dtype: each addition rounds all of it.
        drift = min(steps, RENEW) * magnitude(obs) + 2 * once + matrices.apart(case["transition"], dtype)
        self.rounded = rounding(dtype, steps, terms + longest, 0.0, self.size) + 3 * steps * drift * EPS[dtype]
        # Best segments are compared in float64; weights of durations of at least d are summed in the dtype.
        tails = EPS[dtype] * 2 * (1 + magnitude(duration)) * case["censored"]
        self.of_logs = EPS["float64"] * (16 * steps * (1 + self.size) + terms) + tails

    def tables(self, case: Case) -> dict[str, Array]:
        """The gradients of the tables that there are."""
        weights = np.array(case["upstream"])
        each = list(zip(weights, self.posterior, strict=True))
        found = {
            "log_initial": np.stack([w * one.initial for w, one in each]),
            "log_duration": np.asarray(sum(w * one.durations for w, one in each)),
            "log_obs": self.padded("states") * weights[:, None, None],
            "log_final": np.stack([w * one.final for w, one in each]),
        }
        return {k: x.sum(0) if np.ndim(case[k]) == 1 else x for k, x in found.items() if case[k] is not None}

    def moves(self, weights: Any) -> Array:  # "z y"
        """The log of the gradient in the matrix."""
        with np.errstate(divide="ignore"):
            parts = [one.moves(self.a) + np.log(w) for one, w in zip(self.solved, weights, strict=True)]
        return total(np.stack(parts), 0)

    def padded(self, name: str) -> Array:  # "b t z"
        """A table by frames, 0 beyond the lengths."""
        rows = [getattr(one, name) for one in self.posterior]
        return np.stack([np.pad(x, ((0, self.inside.shape[1] - len(x)), (0, 0))) for x in rows])


class Asked:
    """The questions, one method each."""

    def __init__(self, case: Case, device: str) -> None:
        self.case, self.truth = case, Oracle(case)
        self.dtype = getattr(torch, case["dtype"])
        self.device = device
        tensors = {k: None if case[k] is None else self.tensor(case[k]) for k in TABLES}
        obs = np.array(case["log_obs"])
        obs[~self.truth.inside] = np.nan
        self.p = rankfold.SegmentPotentials(
            tensors["log_initial"],
            matrices.build(case["transition"], self.tensor),
            tensors["log_duration"],
            self.tensor(obs),
            tensors["log_final"],
            None if case["lengths"] is None else torch.tensor(case["lengths"], device=device),
            case["censored"],
        )

    def tensor(self, x: Any) -> Any:
        """A leaf that autograd follows."""
        return torch.tensor(x, dtype=self.dtype, device=self.device).requires_grad_()

    def all(self) -> None:
        """Every question."""
        self.log_z()
        self.second()
        self.strict()
        self.posterior()
        self.counts()
        self.best()
        self.samples()
        self.stream()

    def log_z(self) -> None:
        """log Z and the gradient of every input."""
        case, p, truth = self.case, self.p, self.truth
        out = rankfold.recursions.segments.log_z(p, case["arithmetic"], stretch=case["stretch"])
        expect("dtype of log_z", out.dtype == torch.float64, out.dtype)
        close("log_z", out, truth.log_z, truth.rounded)
        grads = list(
            torch.autograd.grad(out, self.inputs(), torch.tensor(case["upstream"], device=self.device).to(out))
        )
        tol = truth.rounded * max(1.0, sum(case["upstream"]))
        steps = truth.inside.shape[1]
        for name, want in truth.tables(case).items():
            close(f"gradient of {name}", grads.pop(0), want, tol * (steps if name == "log_duration" else 1))
        expect_gradients(case, grads, truth.moves(case["upstream"]), self.unheld(), tol * steps)

    def inputs(self) -> list[Any]:
        """The tensors that there are."""
        p = self.p
        found = (p.log_initial, p.log_duration, p.log_obs, p.log_final, *p.transition.factors())
        return [x for x in found if x is not None]

    def second(self) -> None:
        """Second derivatives, in some cases."""
        case, truth = self.case, self.truth
        if case["seed"] % 4 != 2:
            return

        def of_oracle(case: Case) -> list[Array]:
            found = Oracle(case)
            return [*found.tables(case).values(), *gradients(case, found.moves(case["upstream"]))]

        tables = [wide(case[name], "float64") for name in TABLES if case[name] is not None]
        messages = [x for one in truth.solved for x in (one.opened, one.begun, one.after)]
        whole, _ = matrices.size(case["transition"], case["dtype"])
        expect_second(
            case,
            rankfold.recursions.segments.log_z(self.p, case["arithmetic"], stretch=case["stretch"]),
            self.inputs(),
            lambda case: places(case, TABLES),
            of_oracle,
            rounded=truth.rounded,
            size=truth.size,
            uses=8 * truth.inside.shape[1],
            apart=max(whole, *(segment_spread(x) for x in [*messages, *tables])),
        )

    def unheld(self) -> Array:  # "z y"
        """Moves that some sequence's range puts beyond the stated limit of gradients of zero weights."""
        limit = LIMIT[self.case["dtype"]]
        far = np.zeros(self.truth.a.shape, dtype=bool)
        for one in self.truth.solved:
            moves = one.moves(self.truth.a)
            if np.isfinite(one.log_z) and np.isfinite(moves).any():
                wide_apart = max(segment_spread(x) for x in (one.opened, one.begun, one.after))
                far |= wide_apart > limit
        return far

    def strict(self) -> None:
        """`strict` raises exactly if some sequence is impossible."""
        possible = self.truth.possible
        if self.case["seed"] % 4 and possible.all():
            return
        try:
            segments.log_z(self.p, self.case["arithmetic"], strict=True, stretch=self.case["stretch"])
            raised = ""
        except rankfold.DomainError as error:
            raised = str(error)
        expect("strict", bool(raised) == (not possible.all()), raised or "nothing raised")
        if raised:
            expect("strict names", f"sequence {int(np.argmin(possible))} is impossible" in raised, raised)

    def posterior(self) -> None:
        """States, beginnings and ends, of detached tensors and of leaves; of leaves refused beyond float64 at zeros."""
        with torch.no_grad():
            answers = [rankfold.posterior(self.p)]
        if self.case["seed"] % 4 == 0:
            try:
                answers.append(rankfold.posterior(self.p))
            except rankfold.UnsupportedError as error:
                factors = zip(self.p.transition.factors(), self.p.transition.log_factors, strict=True)
                expect("posterior, followed", any(not log and bool((x == 0).any()) for x, log in factors), error)
        for found in answers:
            for name, probability in zip(("states", "starts", "ends"), found, strict=True):
                close(f"posterior of {name}", probability, self.truth.padded(name), self.truth.rounded)

    def counts(self) -> None:
        """Expected counts."""
        truth = self.truth
        with torch.no_grad():
            found = rankfold.expected_counts(self.p)
        num, steps = truth.inside.shape
        tol = truth.rounded * num * steps
        initial = sum(0.0 * one.final if truth.carried else one.initial for one in truth.posterior)
        close("counts of initial", found.initial, np.asarray(initial), tol)
        close("counts of durations", found.duration, np.asarray(sum(one.durations for one in truth.posterior)), tol)
        close("counts of states", found.state, truth.padded("states"), truth.rounded)
        expect_counts(self.case, list(found.transition), truth.moves(np.ones(num)), tol)

    def best(self) -> None:
        """The best segmentation: its value, that it attains it, and the table of its segments."""
        truth = self.truth
        found = rankfold.viterbi(self.p)
        want = np.array([segment_oracle.best(one.t, truth.a) for one in truth.solved])
        close("viterbi", found.log_prob, want, truth.of_logs)
        self.expect_weights("viterbi path", found.path[None], found.begins[None], want - 2 * truth.of_logs)
        if truth.carried or self.case["seed"] % 4 != 2:
            return
        for b, rows in enumerate(rankfold.segment_table(self.p, found)):
            expect("table of segments", bool(rows) == bool(truth.possible[b]), rows)
            if not rows:
                continue
            inner, last, _, _ = truth.solved[b].uses()
            for row in rows:
                whole = (
                    last[row.start, row.state]
                    if row.end == truth.lengths[b]
                    else inner[row.start, row.end - 1, row.state]
                )
                close("posterior of a segment", np.asarray(row.posterior), np.asarray(whole), truth.rounded)

    def expect_weights(self, what: str, states: Any, begins: Any, least: Array) -> None:  # "n b t" twice, "b"
        """Segmentations have at least a given log-weight; -1 where there is none."""
        states, begins, truth = states.cpu().numpy(), begins.cpu().numpy(), self.truth
        inside = truth.inside & truth.possible[:, None]
        expect(what, bool(((states >= 0) == inside).all()), "-1 in the wrong places:", states)
        for b in np.nonzero(truth.possible)[0]:
            length = truth.lengths[b]
            seen = {
                tuple(zip(s[:length].tolist(), g[:length].tolist(), strict=True))
                for s, g in zip(states[:, b], begins[:, b], strict=True)
            }
            for one in seen:
                path, marks = (np.array(x) for x in zip(*one, strict=True))
                moved = (path[1:] != path[:-1]) & ~marks[1:]
                expect(what, not moved.any(), "the state changes within a segment:", path, marks)
                weight = segment_oracle.weight(truth.solved[b].t, truth.a, path, marks)
                expect(
                    what,
                    bool(weight >= least[b]),
                    path,
                    marks,
                    "weighs",
                    weight,
                    "best",
                    least[b],
                )

    def samples(self) -> None:
        """Samples are possible segmentations, with the posterior's frequencies."""
        truth, num = self.truth, self.case["samples"]
        generator = torch.Generator(self.device).manual_seed(self.case["seed"])
        states, begins = rankfold.sample(self.p, num_samples=num, generator=generator)
        steps, size = truth.inside.shape[1], len(truth.a)
        ages = np.shape(self.case["log_duration"])[1]
        floor = np.where(truth.possible, truth.log_z, 0.0) - steps * np.log(2 * size) - np.log(ages * 1e15)
        # A move may go through ranks or terms; a path's weight is taken with the best age: both within the count.
        self.expect_weights("sample", states, begins, floor)
        here = truth.inside[..., None] & truth.possible[:, None, None]
        labels = states.cpu().numpy()[..., None] == np.arange(size)
        starts = labels & begins.cpu().numpy()[..., None]
        for name, seen in (("states", labels.sum(0)), ("starts", starts.sum(0))):
            odd = rare(num, seen, truth.padded(name)) & here
            expect(
                f"sample frequencies of {name}",
                not odd.any(),
                seen[odd],
                "of",
                num,
                "expected",
                truth.padded(name)[odd] * num,
            )

    def stream(self) -> None:
        """Two stretches, the open segments carried, make one."""
        at, truth, dtype = self.case["border"], self.truth, self.case["dtype"]
        if at < 1 or self.case["lengths"] is not None:
            return
        first = self.p._replace(log_obs=self.p.log_obs[:, :at], log_final=None, censored=True)
        carried = rankfold.recursions.segments.carry(first)
        rest = self.p._replace(log_initial=carried, log_obs=self.p.log_obs[:, at:])
        found = rankfold.log_z(first) + rankfold.log_z(rest)
        tol = truth.rounded + EPS[dtype] * magnitude(array(carried)) + 16 * EPS["float64"] * truth.size
        close("log_z of two stretches", found, truth.log_z, tol)


def segment_spread(x: Array) -> float:
    """The distance between the largest and the smallest finite entry."""
    finite = x[np.isfinite(x)]
    return float(finite.max() - finite.min()) if len(finite) else 0.0
