"""The hunt's oracles against plain enumeration, and the pieces that could hide a deviation."""

import itertools
import math

import numpy as np
import pytest

from tests.hunt import chain_oracle, grammar_oracle, matrices, rules, segment_oracle, tree_oracle, values
from tests.hunt.arithmetic import exp, log, rare, total, wide
from tests.hunt.compare import DeviatesError, close
from tests.hunt.estimator_oracle import Model, durations
from tests.hunt.estimators import Estimators
from tests.hunt.grammars import Grammars
from tests.hunt.segment_asked import Oracle as SegmentTruth
from tests.hunt.segments import Segments
from tests.hunt.tree_asked import Oracle as TreeTruth
from tests.hunt.trees import Trees
from tests.oracles import fgg as derived
from tests.oracles import tree as enumerated

PLAIN = {"nats": 1.0, "powers": 0.3, "zeros": 0.3, "shift": 0.0}


def some(seed: int, *shape: int) -> np.ndarray:
    return wide(values.logs(np.random.default_rng(seed), PLAIN, "float64", *shape), "float64").reshape(shape)


@pytest.mark.parametrize("seed", range(12))
def test_chains(seed: int) -> None:
    states, steps = 1 + seed % 3, 1 + seed % 4
    initial, obs, final = some(seed, 1, states), some(seed + 1, 1, steps, states), some(seed + 2, 1, states)
    a = some(seed + 3, states, states) if seed % 2 else some(seed + 3, 1, steps - 1, states, states)
    lengths = np.array([steps])
    paths = np.array(list(itertools.product(range(states), repeat=steps)))[:, None]
    weights = []
    for (path,) in paths:
        w = initial[0, path[0]] + sum(obs[0, t, z] for t, z in enumerate(path)) + final[0, path[-1]]
        for t, (z, y) in enumerate(itertools.pairwise(path)):
            w += a[z, y] if a.ndim == 2 else a[0, t, z, y]
        weights.append(w)
    np.testing.assert_allclose(chain_oracle.weight(paths, initial, a, obs, final, lengths)[:, 0], weights)
    p = np.array([math.exp(w) for w in weights])
    found = chain_oracle.solve(initial, a, obs, final, lengths)
    np.testing.assert_allclose(exp(found.log_z), [p.sum()], rtol=1e-13)
    assert chain_oracle.best(initial, a, obs, final, lengths)[0] == max(weights)
    if not p.sum():
        assert not found.posterior.any()
        return
    p /= p.sum()
    for t in range(steps):
        by_state = [p[paths[:, 0, t] == z].sum() for z in range(states)]
        np.testing.assert_allclose(found.posterior[0, t].astype(float), by_state, rtol=1e-13, atol=1e-15)
    entropy = chain_oracle.entropy(found, a, a, initial, obs, final, lengths)[0]
    np.testing.assert_allclose(float(entropy), -sum(x * math.log(x) for x in p if x), rtol=1e-12, atol=1e-12)


def segmentations(frames: int, states: int, ages: int, carried: bool):
    """Every (age of a segment carried in or None, segments as (start, end, state))."""
    for cuts in itertools.product([False, True], repeat=frames):
        if not (carried or cuts[0]):
            continue
        starts = [t for t in range(frames) if cuts[t]]
        for labels in itertools.product(range(states), repeat=len(starts)):
            rows = list(zip(starts, [*starts, frames][1:], labels, strict=True))
            for age in range(ages) if carried else [None]:
                for state in range(states) if carried else [None]:
                    yield age, state, rows


@pytest.mark.parametrize("seed", range(25))
def test_segments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Segments().draw(rng)
    while np.shape(case["log_obs"])[1] > 4 or np.shape(case["log_obs"])[2] > 3:
        case = Segments().draw(rng)
    dtype = case["dtype"]
    truth = SegmentTruth(case)
    duration, obs = wide(case["log_duration"], dtype), wide(case["log_obs"], dtype)
    a = matrices.written(case["transition"], dtype)
    states, ages = duration.shape
    for b, length in enumerate(truth.lengths):
        initial = wide(case["log_initial"], dtype)
        initial = initial if initial.ndim == 1 else initial[b]
        final = wide(0.0 if case["log_final"] is None else case["log_final"], dtype)
        final = np.broadcast_to(final if final.ndim < 2 else final[b], states)
        weights, uses = [], np.zeros((length, states))
        logs = []
        for age, state, rows in segmentations(length, states, ages, truth.carried):
            pieces = [(0, rows[0][0] if rows else length, state, age + 1)] if truth.carried else []
            pieces += [(s, e, z, 0) for s, e, z in rows]
            w = initial[age, state] if truth.carried else initial[rows[0][2]]
            for i, (s, e, z, before) in enumerate(pieces):
                last = i == len(pieces) - 1
                d = e - s + before
                options = duration[z, d - 1 :] if last and case["censored"] else duration[z, d - 1 : d]
                w = w + (total(options) if len(options) else -np.inf) + obs[b, s:e, z].sum()
                w = w + (final[z] if last else a[z, pieces[i + 1][2]])
            weights.append(w)
            logs.append([z for s, e, z, _ in pieces for _ in range(s, e)])
        log_z = total(np.array(weights, dtype=np.longdouble))
        np.testing.assert_allclose(truth.log_z[b], log_z, rtol=1e-14, atol=1e-14)
        assert segment_oracle.best(truth.solved[b].t, a) == pytest.approx(max(weights), rel=1e-14)
        if np.isfinite(log_z):
            for w, path in zip(weights, logs, strict=True):
                uses[np.arange(length), path] += exp(w - log_z)
            np.testing.assert_allclose(truth.posterior[b].states.astype(float), uses, rtol=1e-10, atol=1e-12)


def every_use(case: dict, model: Model, piece: slice):
    """Every way to have made a sequence: its states, its log-weight, and the names and places of all that it used."""
    o, t = case["options"], model.tables
    initial, obs = log(t["initial"]), model.densities()[piece]
    again = not case["segments"] or o["self_transitions"]
    ranks = range(o["rank"] or 1)
    for states in itertools.product(range(case["states"]), repeat=len(obs)):
        for cuts in itertools.product([False, True], repeat=len(obs) - 1) if case["segments"] else [()]:
            borders = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(obs)] if case["segments"] else []
            pieces = list(itertools.pairwise(borders)) or [(i, i + 1) for i in range(len(obs))]
            if any(len(set(states[s:e])) > 1 for s, e in pieces):
                continue
            w = initial[states[0]] + sum(obs[i, z] for i, z in enumerate(states))
            used = [("initial", (states[0],))]
            moves = [(states[s - 1], states[s]) for s, _ in pieces[1:]]
            for path in itertools.product(ranks, repeat=len(moves)):
                for lasts in every_duration(case, pieces):
                    one, uses = w, list(used)
                    for (z, y), r in zip(moves, path, strict=True):
                        if o["rank"] is None:
                            one = one + log(t["transition"])[z, y]
                            uses.append(("weight", (z, y)))
                            continue
                        stay = 0.0 if again else (t["left"][z] * t["right"][z]).sum()
                        here = 0.0 if z == y and not again else t["left"][z, r] * t["right"][y, r] / (1 - stay)
                        one = one + log(np.longdouble(here))
                        uses += [("left", (z, r)), ("right", (y, r))]
                    for (s, _), d in zip(pieces, lasts, strict=True):
                        if case["segments"]:
                            one = one + durations(t, o["max_duration"])[states[s], d - 1]
                            uses.append(("durations", (states[s], d - 1)))
                    yield states, one, uses


def every_duration(case: dict, pieces: list):
    """The durations of segments: the last one's own where the end may cut it."""
    if not case["segments"]:
        return [[1] * len(pieces)]
    longest = case["options"]["max_duration"]
    seen = [e - s for s, e in pieces]
    if max(seen) > longest:
        return []
    return [[*seen[:-1], d] for d in (range(seen[-1], longest + 1) if case["options"]["censored"] else [seen[-1]])]


def too_many_ways(case: dict) -> bool:
    x, rank = np.array(case["x"]), case["options"]["rank"] or 1
    constant = case["options"]["observations"] == "gaussian" and not (np.nanvar(x, 0) > 0).all()
    return max(case["lengths"]) > 4 or case["states"] > 3 or rank > 2 or case["start"] is None or constant


@pytest.mark.parametrize("seed", range(40))
def test_estimators(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Estimators().draw(rng)
    while too_many_ways(case):
        case = Estimators().draw(rng)
    model = Model(case)
    log_z, uses = model.expected()
    counts = {name: np.zeros_like(x) for name, x in uses.counts.items()}
    for piece, found, best in zip(model.pieces, log_z, model.best(), strict=True):
        ways = list(every_use(case, model, piece))
        whole = total(np.array([-np.inf, *(w for _, w, _ in ways)], dtype=np.longdouble))
        np.testing.assert_allclose(float(found), float(whole), rtol=1e-12)
        tops: dict = {}  # ranks, and durations that were cut, are summed
        states = np.zeros_like(uses.frames[piece])
        for path, w, used in ways:
            key = (path, *(at for name, at in used[:-1] if name == "durations"), len(used))
            tops[key] = np.logaddexp(tops.get(key, -np.inf), w)
            share = exp(w - whole) if np.isfinite(whole) else 0.0
            states[np.arange(len(path)), list(path)] += share
            for name, at in used:
                counts[name][at] += share
        np.testing.assert_allclose(float(best), float(max([-np.inf, *tops.values()])), rtol=1e-12)
        np.testing.assert_allclose(uses.frames[piece].astype(float), states.astype(float), rtol=1e-10, atol=1e-14)
    if case["options"]["rank"] is not None and case["segments"] and not case["options"]["self_transitions"]:
        # Draws that did not leave: p / (1 - p) are expected before one that does, p the chance to stay.
        left, right = model.tables["left"], model.tables["right"]
        stayed = counts["left"].sum(1, keepdims=True) * left * right / (1 - (left * right).sum(1, keepdims=True))
        counts["left"], counts["right"] = counts["left"] + stayed, counts["right"] + stayed
    for name in counts if np.isfinite(log_z).all() else ():
        if name != "durations" or case["segments"]:
            np.testing.assert_allclose(uses.counts[name].astype(float), counts[name].astype(float), 1e-10, 1e-14)
    if np.isfinite(log_z).all():
        before = model.objective()
        for _ in range(3):
            model.tables = model.maximised(model.expected()[1])
            value = model.objective()
            assert value >= before - 1e-12 * (1 + abs(before))
            before = value


def too_many(case: dict) -> bool:
    _, words, p = np.shape(case["log_leaf"])
    return words > 4 or max(np.shape(case["log_root"])[-1], p) > 2


@pytest.mark.parametrize("seed", range(15))
def test_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Trees().draw(rng)
    while too_many(case):
        case = Trees().draw(rng)
    n = np.shape(case["log_root"])[-1]
    truth = TreeTruth(case)
    for s, found in zip(truth.sentences, truth.solved, strict=True):
        length = len(s.leaf)
        trees = list(enumerated.trees(0, length, s.leaf, s.rules, n))
        weights = np.array(
            [
                tree_oracle.weight(
                    s,
                    [x[:2] for x in sorted(enumerated.labelled(tree))],
                    [x[2] for x in sorted(enumerated.labelled(tree))],
                    enumerated.labels(tree),
                )
                for tree in trees
            ]
        )
        np.testing.assert_allclose(found.log_z, total(weights), rtol=1e-14, atol=1e-14)
        top = tree_oracle.top(s, tree_oracle.inside(s, best=True)).max()
        assert top == pytest.approx(weights.max(), rel=1e-14)
        if np.isfinite(found.log_z):
            labelled = tree_oracle.labelled(s, found)
            for i, j in s.spans():
                share = sum(
                    exp(w - found.log_z)
                    for w, t in zip(weights, trees, strict=True)
                    if (i, j) in enumerated.brackets(t)
                )
                assert float(labelled[i, j].sum()) == pytest.approx(float(share), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("seed", range(25))
def test_grammars(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Grammars().draw(rng)
    while case["recursive"] or max(case["domains"].values()) > 3 or len(case["rules"]) > 6 or len(case["symbols"]) > 3:
        case = Grammars().draw(rng)
    plain: dict = {}
    for rule in case["rules"]:
        nodes = {name: case["domains"][domain] for name, domain in rule["nodes"].items()}
        outer = list(nodes)[: rule["externals"]]
        plain.setdefault(rule["left"], []).append({"nodes": nodes, "externals": outer, "edges": rule["edges"]})
    weights = {
        name: np.array(values.weights(rng, PLAIN, "float64", *np.shape(x))) for name, x in case["weights"].items()
    }
    logs = {name: log(wide(x, "float64")) for name, x in weights.items()}
    found = grammar_oracle.solve(case, logs)
    every = list(derived.scores(plain, weights, "S"))
    np.testing.assert_allclose(float(exp(found.log_z)), float(sum(every)), rtol=1e-12)
    best = exp(grammar_oracle.tables(case, logs, best=True)["S"])
    np.testing.assert_allclose(float(best), float(max(every, default=0.0)), rtol=1e-12)
    support = {name: (x > 0).astype(int) for name, x in weights.items()}
    assert grammar_oracle.count(case, support) == derived.count(plain, support, "S")
    for name, x in weights.items() if sum(every) else ():  # Z is a polynomial in every weight
        at = tuple(int(rng.integers(n)) for n in x.shape)
        moved = x.copy()
        moved[at] += 1e-7
        changed = grammar_oracle.solve(case, {**logs, name: log(wide(moved, "float64"))})
        difference = (changed.log_z - found.log_z) / 1e-7
        np.testing.assert_allclose(float(exp(found.factors[name])[at]), float(difference), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_gradients_of_operators_are_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    how = {**PLAIN, "zeros": 0.0}
    m = matrices.draw(rng, how, "float64", 3)
    g = some(seed, 3, 3)

    def value(m: matrices.Matrix) -> np.longdouble:
        return exp(g + matrices.written(m, "float64")).sum()

    tensors = list(matrices.tensors(m))
    for (owner, name), (log_grad, log_value, logged) in zip(tensors, matrices.pulled(m, g, "float64"), strict=True):
        x = np.array(owner[name])
        at = tuple(int(rng.integers(n)) for n in x.shape)
        ends = []
        for step in (1e-6, -1e-6 if logged else 0.0):  # linear weights may be 0, and the value is linear in them
            moved = x.copy()
            moved[at] += step
            owner[name] = moved.tolist()
            ends.append(value(m))
        owner[name] = x.tolist()
        want = exp(log_grad + log_value)[at] if logged else exp(log_grad)[at]
        difference = float((ends[0] - ends[1]) / (2e-6 if logged else 1e-6))
        np.testing.assert_allclose(difference, float(want), rtol=1e-6, atol=1e-8)


def test_gradients_of_rules_are_differences() -> None:
    rng = np.random.default_rng(0)
    for seed in range(10):
        made, tensors = rules.draw(rng, {**PLAIN, "zeros": 0.0}, "float64", 3, 2, 1)
        axes = {name: 3 if name.startswith(("weight", "pair")) else 2 for name in tensors}
        case = {"dtype": "float64", "rules": made, "tensors": tensors, "axes": axes}
        for kind in tree_oracle.KINDS:
            g = some(seed, *rules.written(case, kind, 0).shape)
            for name, log_grad in rules.pulled(case, kind, g, 0).items():
                x = np.array(tensors[name])
                at = tuple(int(rng.integers(n)) for n in x.shape)
                ends = []
                logged = made[kind]["log"]
                for step in (1e-6, -1e-6 if logged else 0.0):
                    moved = x.copy()
                    moved[at] += step
                    changed = {**case, "tensors": {**tensors, name: moved.tolist()}}
                    ends.append(exp(g + rules.written(changed, kind, 0)).sum())
                inner = at[1:] if x.ndim > axes[name] else at
                want = exp(log_grad)[inner]
                if logged:
                    want = want * exp(rules.numbers(case, name, 0)[inner])
                difference = float((ends[0] - ends[1]) / (2e-6 if logged else 1e-6))
                np.testing.assert_allclose(difference, float(want), rtol=1e-6, atol=1e-8)


def test_a_wrong_number_is_seen() -> None:
    with pytest.raises(DeviatesError, match="posterior"):
        close("posterior", np.array([0.5, np.nan]), np.array([0.5, 0.5]), 1e-3)
    with pytest.raises(DeviatesError, match="score"):
        close("score", np.array(2.0), np.array(3.0), 1e-3)
    with pytest.raises(DeviatesError):
        close("log_z", np.array([-np.inf]), np.array([3.0]), 1e-3)
    with pytest.raises(DeviatesError):
        close("gradient", np.array([np.inf]), np.array([1e30]), 1.0, largest=3e38)
    close("gradient", np.array([np.inf]), np.array([1e39]), 1.0, largest=3e38)


def test_a_biased_coin_is_seen_and_a_fair_one_is_not() -> None:
    assert rare(4096, np.array([1500]), np.array([0.5])).all()
    assert rare(48, np.array([1]), np.array([0.0])).all()
    rng = np.random.default_rng(0)
    assert not rare(48, rng.binomial(48, 0.3, 10000), np.full(10000, 0.3)).any()
