"""Everything asked of a batch of chains, each answer held to the oracle's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rankfold
from tests.hunt import chain_oracle, matrices
from tests.hunt.arithmetic import EPS, NONE, Array, magnitude, rare, rounding, spread, total, wide
from tests.hunt.compare import array, close, expect
from tests.hunt.factors import LIMIT, expect_counts, expect_gradients, gradients, places
from tests.hunt.kind import Case
from tests.hunt.second import HELD, expect_second

TABLES = ("log_initial", "log_obs", "log_final")


def _summed(moves: Array) -> Array:  # "b t z y" -> "z y"
    return total(moves, (0, 1)) if moves.shape[1] else np.full(moves.shape[2:], NONE)


class Oracle:
    """The truth of a case, and how far rounding may lead from it."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        dtype = case["dtype"]
        self.obs = wide(case["log_obs"], dtype)
        num, steps, states = self.obs.shape
        self.lengths = np.array(case["lengths"] or [steps] * num)
        self.initial = np.broadcast_to(wide(case["log_initial"], dtype), (num, states))
        final = 0.0 if case["log_final"] is None else case["log_final"]
        self.final = np.broadcast_to(wide(final, dtype), (num, states))
        self.a = matrices.written(case["transition"], dtype)
        self.fields = (self.initial, self.a, self.obs, self.final, self.lengths)
        self.solved = chain_oracle.solve(*self.fields)
        whole, terms = matrices.size(case["transition"], dtype)
        self.weights = whole
        self.size = steps * (magnitude(self.obs) + whole) + magnitude(self.initial) + magnitude(self.final)
        apart = max(
            spread(self.obs), spread(self.initial), spread(self.final), matrices.apart(case["transition"], dtype)
        )
        # float64 is computed in float64 throughout; on a CPU tf32 is float32.
        lower = dtype == "float32" and (device == "cuda" or case["precision"] == "bf16")
        products = case["precision"] if lower else None
        self.rounded = rounding(dtype, steps, terms, apart, self.size, products)
        self.exact = rounding(dtype, steps, terms, apart, self.size)
        self.double = rounding("float64", steps, terms, apart, self.size)
        self.of_logs = EPS["float64"] * (16 * steps * (1 + self.size) + terms)  # best paths are compared in float64

    def tables(self, case: Case) -> dict[str, Array]:
        """The gradients of the tables that there are."""
        weights = np.array(case["upstream"])
        posterior = self.solved.posterior * weights[:, None, None]
        ends = posterior[np.arange(len(weights)), self.lengths - 1]
        found = {"log_initial": posterior[:, 0], "log_obs": posterior, "log_final": ends}
        return {k: x.sum(0) if np.ndim(case[k]) == 1 else x for k, x in found.items() if case[k] is not None}

    def moves(self, case: Case) -> Array:  # "b t z y"
        """The log of the gradient in the matrix of each step."""
        with np.errstate(divide="ignore"):
            return self.solved.moves + np.log(np.array(case["upstream"]))[:, None, None, None]

    def range(self) -> float:
        """The widest spread of any message or table, and the largest logarithm of a weight, in nats."""
        s = self.solved
        apart = max(spread(x) for x in (s.alpha, s.beta, self.obs, self.initial, self.final, self.a.reshape(1, -1)))
        return max(apart, self.weights)

    def unheld(self, limit: float) -> Array:  # "z y"
        """Moves at one end of which a message lies further than `limit` from those that matter."""
        s = self.solved
        matter = s.posterior > EPS["float64"]
        far = np.zeros(s.moves.shape, dtype=bool)
        ahead = np.where(s.inside[..., None], self.obs, 0.0) + s.beta
        for x, at in ((s.alpha, slice(None, -1)), (ahead, slice(1, None))):
            top = np.where(matter, x, NONE).max(-1, keepdims=True)
            off = np.isfinite(x) & np.isfinite(top) & (np.abs(x - np.where(np.isfinite(top), top, 0.0)) > limit)
            far |= off[:, at, :, None] if at.start is None else off[:, at, None, :]
        return (far & np.isfinite(s.moves)).any((0, 1))


class Asked:
    """The questions, one method each."""

    def __init__(self, case: Case, device: str) -> None:
        self.case, self.truth = case, Oracle(case, device)
        self.dtype = getattr(torch, case["dtype"])
        self.device = device
        self.largest = torch.finfo(self.dtype).max
        self.possible = np.isfinite(self.truth.solved.log_z)
        self.p = self.potentials()

    def tensor(self, x: Any) -> Any:
        """A leaf that autograd follows."""
        return torch.tensor(x, dtype=self.dtype, device=self.device).requires_grad_()

    def potentials(self) -> Any:
        """The library's potentials; NaN beyond the lengths."""
        case = self.case
        obs = np.array(case["log_obs"])
        obs[~self.truth.solved.inside] = np.nan
        log_obs = torch.tensor(obs, dtype=self.dtype, device=self.device)
        if case["strided"]:
            log_obs = log_obs.transpose(0, 2).contiguous().transpose(0, 2)
        return rankfold.ChainPotentials(
            self.tensor(case["log_initial"]),
            matrices.build(case["transition"], self.tensor),
            log_obs.requires_grad_(),
            None if case["log_final"] is None else self.tensor(case["log_final"]),
            None if case["lengths"] is None else torch.tensor(case["lengths"], device=self.device),
        )

    def all(self) -> None:
        """Every question."""
        self.log_z()
        self.second()
        self.strict()
        self.posterior()
        self.counts()
        self.best()
        self.entropy()
        self.samples()
        self.filtered()
        self.stream()

    def log_z(self) -> None:
        """log Z and the gradient of every input."""
        case, p, truth = self.case, self.p, self.truth
        out = rankfold.log_z(p, case["arithmetic"], case["precision"])
        expect("dtype of log_z", out.dtype == torch.float64, out.dtype)
        close(
            "log_z",
            out,
            truth.solved.log_z,
            truth.rounded + truth.double * np.abs(np.where(self.possible, truth.solved.log_z, 0)),
        )
        inputs = [x for x in (p.log_initial, p.log_obs, p.log_final, *p.transition.factors()) if x is not None]
        upstream = torch.tensor(case["upstream"], dtype=torch.float64, device=self.device)
        grads = list(torch.autograd.grad(out, inputs, upstream))
        tol = truth.rounded * max(1.0, sum(case["upstream"]))
        for name, want in truth.tables(case).items():
            close(f"gradient of {name}", grads.pop(0), want, tol)
        moves = truth.moves(case)
        expect_gradients(case, grads, _summed(moves), truth.unheld(LIMIT[case["dtype"]]), tol * max(1, moves.shape[1]))

    def second(self) -> None:
        """Second derivatives, in some cases."""
        case, p, truth = self.case, self.p, self.truth
        steps, states = truth.obs.shape[1:]
        if case["seed"] % 4 != 2 or states > 16:
            return

        def of_oracle(case: Case) -> list[Array]:
            found = Oracle(case)
            return [*found.tables(case).values(), *gradients(case, _summed(found.moves(case)))]

        expect_second(
            case,
            rankfold.log_z(p, case["arithmetic"], case["precision"]),
            [x for x in (p.log_initial, p.log_obs, p.log_final, *p.transition.factors()) if x is not None],
            lambda case: places(case, TABLES),
            of_oracle,
            rounded=truth.rounded,
            size=truth.size,
            uses=6 * steps,
            apart=truth.range(),
        )

    def strict(self) -> None:
        """`strict` raises exactly if some sequence is impossible."""
        case = self.case
        if case["seed"] % 4 != 1 and self.possible.all():
            return
        try:
            rankfold.log_z(self.p, case["arithmetic"], case["precision"], strict=True)
            raised = ""
        except rankfold.DomainError as error:
            raised = str(error)
        expect("strict", bool(raised) == (not self.possible.all()), raised or "nothing raised")
        if raised:
            expect("strict names", f"sequence {int(np.argmin(self.possible))} is impossible" in raised, raised)

    def posterior(self) -> None:
        """The state posterior, of leaves and of detached tensors."""
        tol = self.truth.exact
        if self.case["seed"] % 4 == 0:
            self.followed(tol)
        with torch.no_grad():
            close("posterior, detached", rankfold.posterior(self.p).state, self.truth.solved.posterior, tol)

    def followed(self, tol: float) -> None:
        """The posterior that autograd can follow; refused where zero weights meet a range beyond float64."""
        zeros = any(
            not logged and bool((x == 0).any())
            for x, logged in zip(self.p.transition.factors(), self.p.transition.log_factors, strict=True)
        )
        try:
            found = rankfold.posterior(self.p).state
        except rankfold.UnsupportedError as error:
            expect("posterior, followed", zeros and self.truth.range() > HELD, error)
            return
        close("posterior, followed", found, self.truth.solved.posterior, tol)

    def counts(self) -> None:
        """Expected counts."""
        truth = self.truth
        with torch.no_grad():
            found = rankfold.expected_counts(self.p)
        tol = truth.exact * len(truth.lengths)
        close("counts of initial", found.initial, truth.solved.posterior[:, 0].sum(0), tol)
        close("counts of states", found.state, truth.solved.posterior, truth.exact)
        moves = truth.solved.moves
        expect_counts(self.case, list(found.transition), _summed(moves), tol * max(1, moves.shape[1]))

    def best(self) -> None:
        """The best path: its value, and that it attains it; states and ranks jointly where there are ranks."""
        truth = self.truth
        found = rankfold.viterbi(self.p)
        want = chain_oracle.best(*truth.fields)
        close("viterbi", found.log_prob, want, truth.of_logs)
        self.path("viterbi path", found.path[None], want, 2 * truth.of_logs)
        if self.case["transition"]["op"] == "low_rank":
            a = matrices.best_rank(self.case["transition"], self.case["dtype"])
            close(
                "joint_map",
                rankfold.viterbi(self.p, of="joint").log_prob,
                chain_oracle.best(truth.initial, a, *truth.fields[2:]),
                truth.of_logs,
            )

    def path(self, what: str, paths: Any, least: Array, tol: Array | float) -> None:  # "n b t", "b"
        """Paths have at least a given log-weight; -1 where there is none."""
        states, truth = paths.cpu().numpy(), self.truth
        inside = truth.solved.inside & self.possible[:, None]
        expect(what, bool(((states >= 0) == inside).all()), "-1 in the wrong places:", states)
        weight = chain_oracle.weight(np.where(states >= 0, states, 0), *truth.fields)[:, self.possible]
        expect(
            what,
            bool((weight >= (least - tol)[self.possible]).all()),
            states,
            "weighs",
            weight,
            "best",
            least,
        )

    def entropy(self) -> None:
        """The entropy of states, and of states and ranks."""
        truth, m = self.truth, self.case["transition"]
        for of in ("states", "joint") if m["op"] == "low_rank" else ("states",):
            log_a = truth.a if of == "states" else matrices.rank_logs(m, self.case["dtype"])
            with torch.set_grad_enabled(self.case["seed"] % 8 == 0):
                found = rankfold.entropy(self.p, of=of)
            want = chain_oracle.entropy(truth.solved, truth.a, log_a, *(truth.fields[i] for i in (0, 2, 3, 4)))
            close(f"entropy of {of}", found, want, truth.double * (1 + truth.size))

    def samples(self) -> None:
        """Samples are possible paths, with the posterior's frequencies."""
        truth, num = self.truth, self.case["samples"]
        generator = torch.Generator(self.device).manual_seed(self.case["seed"])
        paths = rankfold.sample(self.p, num_samples=num, generator=generator).path
        _, steps, states = truth.obs.shape
        # All paths below this weight together have a chance of 1e-15 a sample.
        floor = np.where(self.possible, truth.solved.log_z, 0.0) - steps * np.log(states) - np.log(1e15)
        self.path("sample", paths, floor, 0.0)
        seen = (paths.cpu().numpy()[..., None] == np.arange(states)).sum(0)
        odd = rare(num, seen, truth.solved.posterior) & truth.solved.inside[..., None] & self.possible[:, None, None]
        expect("sample frequencies", not odd.any(), seen[odd], "of", num, "expected", truth.solved.posterior[odd] * num)

    def filtered(self) -> None:
        """The filter against the forward messages."""
        s = self.truth.solved
        so_far = total(s.alpha)
        found = rankfold.online.filter(self.p)
        known = np.where(np.isfinite(so_far), so_far, 0.0)
        want = np.where(s.inside[..., None], s.alpha - known[..., None], NONE)
        tol = self.truth.double + EPS[self.case["dtype"]] * np.abs(np.where(np.isfinite(want), want, 0.0))
        close("filter", found.log_filtered, want, tol)
        last = so_far[np.arange(len(so_far)), self.truth.lengths - 1][:, None]
        close(
            "log_z of filter",
            found.log_z,
            np.where(s.inside, so_far, last),
            self.truth.double + self.truth.double * np.abs(known),
        )

    def stream(self) -> None:
        """Two stretches, the state carried, make one."""
        at, truth, dtype = self.case["border"], self.truth, self.case["dtype"]
        if at < 1 or self.case["lengths"] is not None:
            return
        first = self.p._replace(log_obs=self.p.log_obs[:, :at], log_final=None)
        ahead = rankfold.recursions.chain.advance(first)
        rest = self.p._replace(log_initial=ahead.log_next, log_obs=self.p.log_obs[:, at:])
        found = ahead.log_z + rankfold.log_z(rest)
        # The carried state has the dtype of the potentials: its logarithms are rounded there.
        carried = EPS[dtype] * magnitude(array(ahead.log_next))
        close("log_z of two stretches", found, truth.solved.log_z, truth.exact + truth.double * truth.size + carried)
