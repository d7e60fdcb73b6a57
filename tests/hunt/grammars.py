"""Grammars in the text language: random rules, with and without recursion, and everything that is asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import rankfold
from rankfold import fgg
from tests.hunt import grammar_oracle, matrices, values
from tests.hunt.arithmetic import EPS, Array, exp, log, magnitude, rare, rounding, wide
from tests.hunt.compare import DeviatesError, array, close, expect
from tests.hunt.kind import Case, Deviation, Kind

LETTERS = "ABCD"


class Grammars(Kind):
    """A random factor graph grammar, written as text."""

    name = "grammars"
    weight = 1.5

    def draw(self, rng: np.random.Generator) -> Case:
        """Domains, symbols in an order that rules go down, factors of random types, weights."""
        large = rng.random() < 0.55
        recursive = bool(rng.random() < 0.25)
        domains = {LETTERS[i]: int(rng.integers(4 if large and not i else 1, 6)) for i in range(rng.integers(1, 3))}
        names = ["S", *(f"X{i}" for i in range(1, int(rng.integers(3 if large else 1, 5))))]
        symbols = {name: [str(x) for x in rng.choice(list(domains), rng.integers(1, 3))] for name in names}
        symbols["S"] = []
        g: Case = {"domains": domains, "symbols": symbols, "factors": {}, "rules": [], "start": "S"}
        for i, name in enumerate(names):
            for _ in range(rng.integers(2 if large else 1, 4)):
                g["rules"].append(_rule(rng, g, name, names[i + 1 :]))
            if recursive and i and rng.random() < 0.6:
                g["rules"].append(_again(rng, g, name))
        dtype = str(rng.choice(["float32", "float64"]))
        how = values.style(rng)
        if recursive:
            how = {**how, "powers": 0.3}
        weights = {}
        for name, of in g["factors"].items():
            shape = grammar_oracle.sizes(g, of)
            if name.startswith("again"):  # at most half of it comes back, whatever the values: the sum is finite
                x = rng.uniform(0.1, 1.0, shape)
                weights[name] = values.listed(0.25 * x / x.sum(), dtype)
            else:
                weights[name] = values.weights(rng, how, dtype, *shape)
        return {**g, "recursive": recursive, "dtype": dtype, "weights": weights, "seed": int(rng.integers(2**31))}

    def large(self, case: Case) -> bool:
        return max(case["domains"].values()) > 3 and len(case["rules"]) > 4

    def check(self, case: Case) -> Deviation | None:
        try:
            Asked(case, self.device).all()
        except DeviatesError as error:
            return error.deviation
        return None

    def smaller(self, case: Case) -> Iterator[Case]:
        lefts = [rule["left"] for rule in case["rules"]]
        for i, rule in enumerate(case["rules"]):
            if lefts.count(rule["left"]) > 1:
                yield _pruned({**case, "rules": case["rules"][:i] + case["rules"][i + 1 :]})
        for i, rule in enumerate(case["rules"]):
            for k in range(len(rule["edges"])):
                less = _without_edge(rule, k)
                if less is not None:
                    yield _pruned({**case, "rules": [*case["rules"][:i], less, *case["rules"][i + 1 :]]})
        for name, x in case["weights"].items():
            for less in matrices.rounder(x):
                yield {**case, "weights": {**case["weights"], name: less}}

    def program(self, case: Case) -> str:
        given = ", ".join(f"{name!r}: tensor({x})" for name, x in case["weights"].items())
        return "\n".join(
            [
                "import torch",
                "from rankfold import fgg",
                "",
                "",
                "def tensor(x):",
                f"    return torch.tensor(x, dtype=torch.{case['dtype']}, device={self.device!r}, requires_grad=True)",
                "",
                "",
                f'g = fgg.parse("""\n{text(case)}\n""")',
                f"g = g.with_factors({{{given}}})",
                f"print(fgg.sum_product(g))  # expected {float(Truth(case).solved.log_z)}",
                "",
            ]
        )


def _rule(rng: np.random.Generator, g: Case, left: str, below: list[str]) -> Case:
    """A rule whose nonterminals come later in the order; every inner node is at some factor."""
    nodes = {f"n{i}": domain for i, domain in enumerate(g["symbols"][left])}
    externals = len(nodes)
    edges: list[Any] = []

    def node(domain: str) -> str:
        known = [name for name, of in nodes.items() if of == domain]
        if known and (rng.random() < 0.6 or len(nodes) > 3):
            return str(rng.choice(known))
        nodes[f"n{len(nodes)}"] = domain
        return f"n{len(nodes) - 1}"

    for _ in range(rng.integers(0, 3) if below else 0):
        label = str(rng.choice(below))
        at = [node(domain) for domain in g["symbols"][label]]
        if len(set(at)) == len(at):
            edges.append([label, at])
    inner = [name for name in nodes if int(name[1:]) >= externals]
    for _ in range(rng.integers(0 if edges and not inner else 1, 3)):
        pool = list(nodes) or [node(str(rng.choice(list(g["domains"]))))]
        at = [str(x) for x in rng.permutation(pool)[: rng.integers(1, 4)]]
        edges.append([_factor(rng, g, [nodes[x] for x in at]), at])
    used = {x for _, at in edges for x in at}
    for name in [x for x in nodes if int(x[1:]) >= externals and x not in used]:
        edges.append([_factor(rng, g, [nodes[name]]), [name]])
    return {"left": left, "nodes": nodes, "externals": externals, "edges": edges}


def _again(rng: np.random.Generator, g: Case, left: str) -> Case:
    """A rule that comes back to its own symbol, once."""
    types = g["symbols"][left]
    nodes = {f"n{i}": domain for i, domain in enumerate([*types, *types])}
    names = list(nodes)
    label = f"again{left}"
    g["factors"][label] = list(nodes.values())
    return {
        "left": left,
        "nodes": nodes,
        "externals": len(types),
        "edges": [[label, names], [left, names[len(types) :]]],
    }


def _factor(rng: np.random.Generator, g: Case, of: list[str]) -> str:
    """A factor of these domains, an old one at times."""
    known = [name for name, domains in g["factors"].items() if domains == of and name.startswith("f")]
    if known and rng.random() < 0.4:
        return str(rng.choice(known))
    name = f"f{len(g['factors'])}"
    g["factors"][name] = of
    return name


def _without_edge(rule: Case, k: int) -> Case | None:
    edges = rule["edges"][:k] + rule["edges"][k + 1 :]
    used = {x for _, at in edges for x in at}
    names = list(rule["nodes"])
    if not all(x in used for x in names[rule["externals"] :]):
        return None
    return {**rule, "edges": edges} if edges else None


def _pruned(case: Case) -> Case:
    """Without symbols and factors that nobody uses."""
    used = {"S"}
    for _ in case["symbols"]:
        used |= {label for rule in case["rules"] if rule["left"] in used for label, _ in rule["edges"]}
    kept = {key: {k: x for k, x in case[key].items() if k in used} for key in ("symbols", "factors", "weights")}
    return {**case, **kept, "rules": [rule for rule in case["rules"] if rule["left"] in used]}


def text(case: Case) -> str:
    """The grammar in the text language; rules are named r0, r1, ..."""
    lines = [f"domain {name} = {size}" for name, size in case["domains"].items()]
    lines += [f"factor {name}: {', '.join(of)}" for name, of in case["factors"].items()]
    lines += [f"symbol {name}: {', '.join(of)}" for name, of in case["symbols"].items() if of]
    for i, rule in enumerate(case["rules"]):
        nodes = list(rule["nodes"])
        outer = ", ".join(f"{x}: {rule['nodes'][x]}" for x in nodes[: rule["externals"]])
        right = " ".join(f"{label}({', '.join(at)})" for label, at in rule["edges"])
        lines.append(f"r{i}: {rule['left']}({outer}) -> {right}")
    return "\n".join(lines)


def _largest(case: Case) -> tuple[int, int]:
    """The most rules and the most factors a derivation without recursion has."""
    rules, factors = dict.fromkeys(case["symbols"], 0), dict.fromkeys(case["symbols"], 0)
    for _ in case["symbols"]:
        for rule in case["rules"]:
            below = [label for label, _ in rule["edges"] if label in case["symbols"] and label != rule["left"]]
            own = sum(label in case["factors"] for label, _ in rule["edges"])
            rules[rule["left"]] = max(rules[rule["left"]], 1 + sum(rules[x] for x in below))
            factors[rule["left"]] = max(factors[rule["left"]], own + sum(factors[x] for x in below))
    return rules["S"], factors["S"]


class Truth:
    """The oracle's answers, and how far rounding may lead from them."""

    def __init__(self, case: Case) -> None:
        self.factors = {name: log(wide(x, case["dtype"])) for name, x in case["weights"].items()}
        self.solved = grammar_oracle.solve(case, self.factors)
        most = max(magnitude(x) for x in self.factors.values()) if self.factors else 0.0
        # Rounding adds up over the rules of a derivation; a rule that comes back is used four times at most on
        # average, for it keeps a quarter of the weight. A rule sums its inner nodes one after another.
        self.rules_used, self.factors_used = _largest(case)
        terms = max(sum(grammar_oracle.sizes(case, list(rule["nodes"].values()))) for rule in case["rules"])
        self.size = self.factors_used * most
        steps = self.rules_used * (4 if case["recursive"] else 1)
        self.rounded = rounding(case["dtype"], steps, terms + len(case["rules"]), 0.0, self.size)
        self.exact = rounding("float64", steps, terms + len(case["rules"]), 0.0, self.size)


class Asked:
    """The questions, one method each."""

    def __init__(self, case: Case, device: str) -> None:
        self.case, self.device, self.truth = case, device, Truth(case)
        self.dtype = getattr(torch, case["dtype"])
        self.tensors = {
            k: torch.tensor(x, dtype=self.dtype, device=device).requires_grad_() for k, x in case["weights"].items()
        }
        self.g = fgg.parse(text(case)).with_factors(self.tensors)
        self.possible = bool(np.isfinite(self.truth.solved.log_z))

    def all(self) -> None:
        """Every question."""
        self.sum()
        if self.case["recursive"]:
            return
        self.read_again()
        self.marginals()
        self.best()
        self.count()
        self.samples()

    def sum(self) -> None:
        """log Z and the gradient of every factor."""
        truth = self.truth
        found = fgg.sum_product(self.g)
        close("sum_product", found, np.asarray(truth.solved.log_z), truth.rounded)
        if not found.requires_grad:
            return
        grads = torch.autograd.grad(found, list(self.tensors.values()), allow_unused=True, materialize_grads=True)
        for (name, x), grad in zip(truth.factors.items(), grads, strict=True):
            want, got = exp(truth.solved.factors[name]), array(grad)
            finite = np.isfinite(x)
            with np.errstate(divide="ignore", over="ignore"):
                per_use = 1.0 / np.where(finite, exp(x), exp(x.max()) if finite.any() else 1.0)
                tol = truth.rounded * (want + truth.factors_used * per_use)
            expect("gradient", not np.isnan(got).any() and bool((got >= 0).all()), "NaN or negative:", name, got)
            # At weights of zero: as long as the dtype has a number for it; of recursion within the range of the page.
            held = finite | (want <= torch.finfo(self.dtype).max)
            if self.case["recursive"] and self.range() >= 87.0:
                held = finite
            close("gradient", np.where(held, got, want), want, tol, largest=torch.finfo(self.dtype).max)

    def range(self) -> float:
        """The widest spread of any table."""
        every = [*self.truth.solved.inside.values(), *self.truth.solved.outside.values(), *self.truth.factors.values()]
        finite = [x[np.isfinite(x)] for x in every]
        return max((float(x.max() - x.min()) for x in finite if x.size), default=0.0)

    def read_again(self) -> None:
        """The text that is written reads as the same grammar."""
        if self.case["seed"] % 4:
            return
        again = fgg.parse(fgg.format_text(self.g, weights=True))
        close(
            "sum of the text read again",
            fgg.sum_product(again),
            np.asarray(self.truth.solved.log_z),
            self.truth.rounded,
        )

    def marginals(self) -> None:
        """Expected uses of symbols, rules and factors."""
        truth = self.truth
        with torch.no_grad():
            found = fgg.marginals(self.g)
        tol = truth.rounded * truth.rules_used
        close("log_z of marginals", found.log_z, np.asarray(truth.solved.log_z), truth.rounded)
        for name, got in found.nonterminals.items():
            want = exp(truth.solved.inside[name] + truth.solved.outside[name])
            close("uses of nonterminals", got, want, tol)
        for name, got in found.rules.items():
            close("uses of rules", got, np.asarray(truth.solved.rules[int(name[1:])]), tol)
        for name, got in found.factors.items():
            close("uses of factors", got, exp(truth.solved.factors[name] + truth.factors[name]), tol)

    def best(self) -> None:
        """The best derivation: its value, and that it attains it."""
        want = grammar_oracle.tables(self.case, self.truth.factors, best=True)["S"]
        of_logs = EPS[self.case["dtype"]] * (4 + max(map(magnitude, self.truth.factors.values()), default=0.0))
        tol = self.truth.exact + self.truth.factors_used * of_logs
        close("maximum", fgg.sum_product(self.g, "max"), np.asarray(want), tol)
        try:
            found = fgg.best(self.g)
        except rankfold.DomainError as error:
            expect("best", not self.possible, error)
            return
        expect("best", self.possible, "nothing has weight, but a derivation came")
        close("weight of the best", np.asarray(found.log_weight), np.asarray(want), tol)
        reached = grammar_oracle.weight(self.case, self.truth.factors, found, "S", ())
        expect("best derivation", reached is not None and bool(reached >= want - 2 * tol), reached, "expected", want)

    def count(self) -> None:
        """The number of derivations with any weight."""
        if self.case["seed"] % 2:
            return
        support = {name: np.isfinite(x).astype(int) for name, x in self.truth.factors.items()}
        want, got = grammar_oracle.count(self.case, support), fgg.count(self.g)
        expect("count", got == want, f"{got}, expected {want}")

    def samples(self) -> None:
        """Samples are derivations, with the posterior's frequencies of rules."""
        if not self.possible:
            return
        num = 64 if self.case["seed"] % 32 == 0 else 2
        generator = torch.Generator(self.device).manual_seed(self.case["seed"])
        uses = np.zeros((num, len(self.case["rules"])))
        for i in range(num):
            found = fgg.sample(self.g, generator=generator)
            weight = grammar_oracle.weight(self.case, self.truth.factors, found, "S", ())
            expect("sample", weight is not None and bool(np.isfinite(weight)), found, "weighs", weight)
            for node in found:
                uses[i, int(node.rule[1:])] += 1
        # Rules of S are used once in a derivation: theirs are probabilities.
        first = np.array([rule["left"] == "S" for rule in self.case["rules"]])
        want: Array = np.array(self.truth.solved.rules, dtype=np.longdouble)
        odd = rare(num, uses.sum(0), np.where(first, want, 0.0)) & first
        expect("sample frequencies", not odd.any(), uses.sum(0)[odd], "of", num, "expected", want[odd] * num)
