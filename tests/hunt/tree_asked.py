"""Everything asked of a batch of trees, each answer held to the oracle's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rankfold
from tests.hunt import rules, tree_oracle
from tests.hunt.arithmetic import EPS, NONE, Array, exp, magnitude, rare, rounding, total, wide
from tests.hunt.compare import array, close, expect
from tests.hunt.kind import Case
from tests.hunt.second import Place, expect_second
from tests.hunt.tree_oracle import KINDS

LIMIT = {"float32": 87.0, "float64": 283.0}  # nats: how far gradients of zero weights are exact (docs/numerics.md)
ENDS = ("log_leaf", "log_root", "log_root_leaf", "log_span")


class Oracle:
    """The truth of a case, and how far rounding may lead from it."""

    def __init__(self, case: Case) -> None:
        dtype = case["dtype"]
        leaf = wide(case["log_leaf"], dtype)
        num, words, p = leaf.shape
        root = wide(case["log_root"], dtype)
        n = root.shape[-1]
        root_leaf = wide(case["log_root_leaf"], dtype) if case["log_root_leaf"] is not None else np.full(p, NONE)
        span = wide(case["log_span"], dtype) if case["log_span"] is not None else np.zeros((num, words + 1, words + 1))
        root, root_leaf = np.broadcast_to(root, (num, n)), np.broadcast_to(root_leaf, (num, p))
        self.lengths = np.array(case["lengths"] or [words] * num)
        self.sentences, self.best_ranks, self.solved = [], [], []
        for b, length in enumerate(self.lengths):
            tables = {kind: rules.written(case, kind, b) for kind in KINDS}
            self.sentences.append(tree_oracle.Sentence(leaf[b, :length], tables, root[b], root_leaf[b], span[b]))
            self.solved.append(tree_oracle.solve(self.sentences[-1]))
        self.log_z = np.array([one.log_z for one in self.solved])
        self.possible = np.isfinite(self.log_z)
        self.labelled = [tree_oracle.labelled(s, f) for s, f in zip(self.sentences, self.solved, strict=True)]
        logs = {name: rules.numbers(case, name, 0) for name in case["tensors"]}
        whole = sum(magnitude(x) for x in logs.values())
        once = magnitude(leaf) + magnitude(span) + 3 * max((magnitude(x) for x in logs.values()), default=0.0)
        self.size = 2 * words * once + magnitude(root) + magnitude(root_leaf) + whole
        terms = words + n + p + max(np.shape(x)[-1] for x in case["tensors"].values())
        terms += max(n, p) ** 2 * any(rule["op"] != "cpd" for rule in case["rules"].values())
        self.rounded = rounding(dtype, 2 * words, terms, self.size, self.size)
        self.double = rounding("float64", 2 * words, terms, self.size, self.size)
        messages = [x for one in self.solved for x in (*one.inside.values(), *one.outside.values())]
        tables = [one.rules[kind].reshape(-1) for one in self.sentences for kind in KINDS]
        self.range = max(_spread(x) for x in [*messages, *tables, *logs.values()])

    def ends(self, case: Case) -> dict[str, Array]:
        """The gradients of the tables that there are, rules aside."""
        weights = np.array(case["upstream"])[:, None]
        _, words, p = shape = np.shape(case["log_leaf"])
        n = np.shape(case["log_root"])[-1]
        both = list(zip(self.labelled, self.lengths, strict=True))
        found = {
            "log_leaf": self.leaves(np.zeros(shape)) * weights[..., None],
            "log_root": np.stack([x[0, t] if t > 1 else np.zeros(n) for x, t in both]) * weights,
            "log_root_leaf": np.stack([x[0, 1] if t == 1 else np.zeros(p) for x, t in both]) * weights,
            "log_span": self.spans(words) * weights[..., None],
        }
        return {k: x.sum(0) if np.ndim(case[k]) == 1 else x for k, x in found.items() if case[k] is not None}

    def spans(self, words: int) -> Array:  # "b t+1 t+1"
        """The posterior of every bracket."""
        out = np.zeros((len(self.lengths), words + 1, words + 1), self.log_z.dtype)
        for b, found in enumerate(self.labelled):
            for (i, j), x in found.items():
                if j - i > 1:
                    out[b, i, j] = x.sum()
        return out

    def leaves(self, like: Array) -> Array:  # "b t p"
        """The posterior of every symbol of every word."""
        out = np.zeros(like.shape, self.log_z.dtype)
        for b, found in enumerate(self.labelled):
            for i in range(self.lengths[b]):
                out[b, i] = found[i, i + 1]
        return out


def _spread(x: Array) -> float:
    finite = x[np.isfinite(x)]
    return float(finite.max() - finite.min()) if finite.size else 0.0


class Asked:
    """The questions, one method each."""

    def __init__(self, case: Case, device: str) -> None:
        self.case, self.truth, self.device = case, Oracle(case), device
        self.dtype = getattr(torch, case["dtype"])
        self.tensors = {name: self.tensor(x) for name, x in case["tensors"].items()}
        leaf = np.array(case["log_leaf"])
        self.shape = leaf.shape
        for b, length in enumerate(self.truth.lengths):
            leaf[b, length:] = np.nan
        ends = {name: None if case[name] is None else self.tensor(case[name]) for name in ENDS[1:]}
        self.p = rankfold.TreePotentials(
            self.tensor(leaf),
            rules.build(case["rules"], self.tensors),
            ends["log_root"],
            ends["log_root_leaf"],
            ends["log_span"],
            None if case["lengths"] is None else torch.tensor(case["lengths"], device=device),
        )

    def tensor(self, x: Any) -> Any:
        """A leaf that autograd follows."""
        return torch.tensor(x, dtype=self.dtype, device=self.device).requires_grad_()

    def all(self) -> None:
        """Every question."""
        self.log_z()
        self.second()
        self.strict()
        self.posteriors()
        self.best()
        self.samples()
        self.chart()
        self.ranked()

    def log_z(self) -> None:
        """log Z and the gradient of every input."""
        case, p, truth = self.case, self.p, self.truth
        out = rankfold.log_z(p, case["arithmetic"])
        expect("dtype of log_z", out.dtype == torch.float64, out.dtype)
        close("log_z", out, truth.log_z, truth.rounded)
        weights = np.array(case["upstream"])
        named = {name: getattr(p, name) for name in ENDS if case[name] is not None} | self.tensors
        upstream = torch.tensor(weights, device=self.device)
        grads = torch.autograd.grad(out, list(named.values()), upstream, materialize_grads=True)
        got = dict(zip(named, grads, strict=True))
        tol = truth.rounded * max(1.0, weights.sum())
        words = self.shape[1]
        for name, want in truth.ends(case).items():
            close(f"gradient of {name}", got[name], want, tol)
        self.of_rules(got, weights, tol * words)

    def second(self) -> None:
        """Second derivatives, in some cases: the direction moves rules, too; what is compared are the others."""
        case, truth = self.case, self.truth
        if case["seed"] % 4 != 2:
            return

        def places(case: Case) -> list[Place]:
            tables = [Place(case, name, logged=True) for name in ENDS if case[name] is not None]
            logged = {name: rule["log"] for rule in case["rules"].values() for name in rule["of"]}
            return [*tables, *(Place(case["tensors"], name, logged[name]) for name in case["tensors"])]

        expect_second(
            case,
            rankfold.log_z(self.p, case["arithmetic"]),
            [*(getattr(self.p, name) for name in ENDS if case[name] is not None), *self.tensors.values()],
            places,
            lambda case: list(Oracle(case).ends(case).values()),
            rounded=truth.rounded,
            size=truth.size,
            uses=10 * self.shape[1],
            apart=max(truth.range, truth.size),
        )

    def of_rules(self, got: dict[str, Any], weights: Array, tol: float) -> None:
        """Gradients of the rules' tensors."""
        case, truth = self.case, self.truth
        parts: dict[str, dict[int, list[Array]]] = {name: {} for name in self.tensors}
        for b, found in enumerate(truth.solved):
            for kind in KINDS:
                with np.errstate(divide="ignore"):
                    g = found.rules[kind] + np.log(weights[b])
                for name, x in rules.pulled(case, kind, g, b).items():
                    own = np.ndim(case["tensors"][name]) > case["axes"][name]
                    parts[name].setdefault(b if own else 0, []).append(x)
        for name, by_sentence in parts.items():
            own = np.ndim(case["tensors"][name]) > case["axes"][name]
            summed = [total(np.stack(by_sentence[b]), 0) for b in sorted(by_sentence)]
            want = np.stack(summed) if own else summed[0]
            value = (
                np.stack([rules.numbers(case, name, b) for b in range(len(weights))])
                if own
                else rules.numbers(case, name, 0)
            )
            logged = next(rule["log"] for rule in case["rules"].values() if name in rule["of"])
            what, found = f"gradient of {name.split('_')[0]}", array(got[name])
            if logged:
                close(what, found, exp(want + value), tol)
                continue
            known = exp(want)
            finite = np.isfinite(value)
            scale = exp(value.max()) if finite.any() else 1.0
            with np.errstate(divide="ignore", over="ignore"):
                allowed = tol * known + tol / np.where(finite, exp(value), scale)
            expect(what, not np.isnan(found).any() and bool((found >= 0).all()), "NaN or negative:", found)
            # In log arithmetic a linear weight of 0 has gradient 0; a sentence of a wide range is repeated there.
            cut = ~finite & ((case["arithmetic"] == "log") | (truth.range > LIMIT[case["dtype"]]))
            close(what, np.where(cut, known, found), known, allowed, largest=torch.finfo(self.dtype).max)

    def strict(self) -> None:
        """`strict` raises exactly if some sentence is impossible."""
        possible = self.truth.possible
        if self.case["seed"] % 4 and possible.all():
            return
        try:
            rankfold.log_z(self.p, self.case["arithmetic"], strict=True)
            raised = ""
        except rankfold.DomainError as error:
            raised = str(error)
        expect("strict", bool(raised) == (not possible.all()), raised or "nothing raised")

    def posteriors(self) -> None:
        """Of brackets and of words' symbols, and the tree of the most probable brackets."""
        truth, words = self.truth, self.shape[1]
        spans = truth.spans(words)
        with torch.no_grad():
            if self.case["seed"] % 2:
                close("span posterior", rankfold.posterior(self.p).span, spans, truth.rounded)
            else:
                leaves = truth.leaves(np.zeros(self.shape))
                close("leaf posterior", rankfold.posterior(self.p).leaf, leaves, truth.rounded)
        if self.case["seed"] % 4 > 1:
            return
        by_label = np.zeros_like(spans)
        for b, found in enumerate(truth.labelled):
            for (i, j), x in found.items():
                by_label[b, i, j] = x.max() if j - i > 1 else 0.0
        tol = 2 * words * truth.rounded
        for labels, value in ((False, spans), (True, by_label)) if self.case["seed"] % 2 else ((False, spans),):
            for b, tree in enumerate(rankfold.mbr(self.p, labels=labels).trees):
                length = truth.lengths[b]
                if not truth.possible[b] or length == 1:
                    continue
                want = tree_oracle.most(length, value[b])
                close("mbr score", np.asarray(tree.score), np.asarray(want), tol)
                reached = sum(value[b][i, j] for i, j in tree.spans)
                close("mbr tree", np.asarray(reached), np.asarray(want), tol)

    def best(self) -> None:
        """The best tree: its value, and that it attains it; with ranks, too."""
        truth = self.truth
        tol = 32 * self.shape[1] * EPS["float64"] * (1 + truth.size)
        trees = rankfold.viterbi(self.p).trees
        for b, (tree, s) in enumerate(zip(trees, truth.sentences, strict=True)):
            want = tree_oracle.top(s, tree_oracle.inside(s, best=True)).max()
            self.expect_tree("viterbi tree", tree, b, want - 2 * tol)
            if truth.possible[b]:
                close("viterbi score", np.asarray(tree.score), np.asarray(want), tol)
        if any(rule["op"] != "cpd" for rule in self.case["rules"].values()):
            return
        for b, (tree, s) in enumerate(zip(rankfold.viterbi(self.p, of="joint").trees, truth.sentences, strict=True)):
            if truth.possible[b]:
                ranked = tree_oracle.Sentence(
                    s.leaf, {k: rules.written(self.case, k, b, best=True) for k in KINDS}, s.root, s.root_leaf, s.span
                )
                want = tree_oracle.top(ranked, tree_oracle.inside(ranked, best=True)).max()
                close("joint_map score", np.asarray(tree.score), np.asarray(want), tol)

    def expect_tree(self, what: str, tree: Any, b: int, least: Array) -> None:
        """A tree has at least a given log-weight; an impossible sentence has none."""
        if not self.truth.possible[b]:
            expect(what, tree.tags is None and not tree.spans, f"sentence {b} is impossible, but {tree}")
            return
        weight = tree_oracle.weight(self.truth.sentences[b], tree.spans, tree.labels, tree.tags)
        expect(what, weight is not None and bool(weight >= least), tree, "weighs", weight, "best", least)

    def samples(self) -> None:
        """Samples are possible trees, with the posterior's frequencies."""
        truth, num = self.truth, self.case["samples"]
        generator = torch.Generator(self.device).manual_seed(self.case["seed"])
        drawn = rankfold.sample(self.p, num_samples=num, generator=generator).trees
        words = self.shape[1]
        symbols = max(self.shape[2], self.p.log_root.shape[-1])
        count = 2 * words * np.log(symbols) + words * np.log(4.0) + np.log(1e15)
        brackets, tags = np.zeros((len(truth.lengths), words + 1, words + 1)), np.zeros(self.shape)
        for row in drawn:
            for b, tree in enumerate(row):
                self.expect_tree("sample", tree, b, truth.log_z[b] - count)
                for i, j in tree.spans:
                    brackets[b, i, j] += 1
                for i, tag in enumerate(tree.tags or []):
                    tags[b, i, tag] += 1
        for what, seen, want in (("brackets", brackets, truth.spans(words)), ("tags", tags, truth.leaves(tags))):
            odd = rare(num, seen, want)
            expect(f"sample frequencies of {what}", not odd.any(), seen[odd], "of", num, "expected", want[odd] * num)

    def chart(self) -> None:
        """The inside weights of all spans."""
        if self.case["seed"] % 4 != 3:
            return
        truth, words = self.truth, self.shape[1]
        want = np.full((len(truth.lengths), words + 1, words + 1, self.p.log_root.shape[-1]), NONE)
        got = array(rankfold.recursions.tree.chart(self.p))
        for b, found in enumerate(truth.solved):
            for (i, j), x in found.inside.items():
                if j - i > 1:
                    want[b, i, j] = x
            beyond = np.zeros(want.shape[1:3], dtype=bool)
            beyond[:, truth.lengths[b] + 1 :] = True
            got[b][beyond] = want[b][beyond]  # words beyond a length are never used
        close("chart", got, want, truth.double)

    def ranked(self) -> None:
        """The same grammar over its ranks."""
        heads = {rule["of"][0] for rule in self.case["rules"].values()}
        if any(rule["op"] != "cpd" for rule in self.case["rules"].values()) or len(heads) > 1 or None in heads:
            return
        made = rankfold.rank_space(self.p.rules, self.p.log_root)
        found = rankfold.log_z(self.p._replace(rules=made.rules, log_root=made.log_root), self.case["arithmetic"])
        # Rules and root over ranks are rounded to the dtype once more, each time a word or a bracket uses them.
        made_of = [magnitude(x) for kind in KINDS for x in rules.parts(self.case, kind, 0)]
        uses = 2 * max(self.truth.lengths) * 2 * max(made_of) + 4 * magnitude(array(made.log_root))
        tol = self.truth.rounded + EPS[self.case["dtype"]] * uses
        # Products of weights are made in their own dtype, the root's in float64: beyond its range nothing is promised.
        logs = [x for kind in KINDS for x in rules.parts(self.case, kind, 0)]
        fits = 2 * max(magnitude(x) for x in logs) < 85.0 and _spread(self.truth.sentences[0].root) < 600.0
        if fits or self.case["rules"]["ss"]["log"]:
            close("log_z in rank space", found, self.truth.log_z, tol)
