"""Factorial and hierarchical HMMs against enumerations in plain Python: all paths, all calls and ends."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import rankfold
from rankfold.errors import DomainError
from rankfold.estimators import HMM, FactorialHMM, HierarchicalHMM
from rankfold.params.dynamics import factorial

RNG = np.random.default_rng(5)
SIZES = (2, 3)


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed + sum(shape)).dirichlet(np.full(shape[-1], 2.0), shape[:-1])


def additive(covariance_type: Any = "full") -> FactorialHMM:
    """Two chains with known tables."""
    covariance = np.array([[1.2, 0.4], [0.4, 0.9]]) if covariance_type == "full" else np.diag([1.2, 0.9])
    return FactorialHMM.from_tables(
        SIZES, covariance_type=covariance_type, part=np.random.default_rng(1).normal(0, 2, (5, 2)),
        covariance=covariance, initial_0=drawn(2), transition_0=drawn(2, 2), initial_1=drawn(3),
        transition_1=drawn(3, 3), max_iter=1, tol=None, min_variance=0.0,
    )  # fmt: skip


def frames(seed: int = 0, lengths: tuple[int, ...] = (3, 2)) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 2, (n, 2)) for n in lengths]


def log_normal(x: Any, mean: Any, covariance: Any) -> float:
    """Over the features that are not NaN."""
    here = ~np.isnan(x)
    if not here.any():
        return 0.0
    part, away = covariance[np.ix_(here, here)], (x - mean)[here]
    return float(
        -0.5 * (away @ np.linalg.inv(part) @ away + np.log(np.linalg.det(part)) + here.sum() * math.log(2 * math.pi))
    )


def chain_paths(tables: Any, x: Any) -> Any:
    """The joint paths of both chains, and the log-probability of each with the frames."""
    first, second = np.split(tables["part"], [2])
    for a in itertools.product(range(2), repeat=len(x)):
        for b in itertools.product(range(3), repeat=len(x)):
            p = math.log(tables["initial_0"][a[0]]) + math.log(tables["initial_1"][b[0]])
            for t in range(1, len(x)):
                p += math.log(tables["transition_0"][a[t - 1], a[t]]) + math.log(tables["transition_1"][b[t - 1], b[t]])
            p += sum(log_normal(y, first[i] + second[j], tables["covariance"]) for y, i, j in zip(x, a, b, strict=True))
            yield a, b, p


@pytest.mark.parametrize(("covariance_type", "written"), [("full", 128), ("diag", 128), ("full", 0)])
def test_a_factorial_hmm_is_its_enumeration(
    covariance_type: Any, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likelihood, posteriors, best path; then one step of EM, from counts of every pair of paths.

    The transition is written out, or a Kronecker product.
    """
    monkeypatch.setattr(factorial, "WRITTEN", written)
    model, data = additive(covariance_type), frames()
    tables = model.tables_
    uses: dict[str, Any] = {name: np.zeros_like(tables[name]) for name in tables if name[-1].isdigit()}
    joint = []
    for x in data:
        found = list(chain_paths(tables, x))
        log_z = float(np.logaddexp.reduce([p for *_, p in found]))
        assert model.score_samples([x])[0] == pytest.approx(log_z, rel=1e-11)
        posterior = np.zeros((len(x), 6))
        for a, b, p in found:
            share = math.exp(p - log_z)
            for t, (i, j) in enumerate(zip(a, b, strict=True)):
                posterior[t, 3 * i + j] += share
            for name, path in (("0", a), ("1", b)):
                uses[f"initial_{name}"][path[0]] += share
                for pair in itertools.pairwise(path):
                    uses[f"transition_{name}"][pair] += share
        np.testing.assert_allclose(model.predict_proba(x), posterior, rtol=1e-9, atol=1e-13)
        a, b, best = max(found, key=lambda one: one[2])
        total, path = model.decode(x)
        assert total == pytest.approx(best, rel=1e-11)
        np.testing.assert_array_equal(model.chain_states(path), np.stack([a, b], 1))
        joint.append(posterior)
    step = additive(covariance_type).fit(data).tables_
    for name, used in uses.items():
        np.testing.assert_allclose(step[name], used / used.sum(-1, keepdims=True), rtol=1e-9)
    # Least squares of all frames on the states of both chains, each pair of states weighted by its posterior.
    weight, y = np.concatenate(joint), np.concatenate(data)
    design = np.array([[*np.eye(2)[i], *np.eye(3)[j]] for i in range(2) for j in range(3)])
    normal = np.einsum("tz,zk,zl->kl", weight, design, design)
    part = np.linalg.lstsq(normal, np.einsum("tz,zk,tf->kf", weight, design, y), rcond=None)[0]
    np.testing.assert_allclose(design @ step["part"], design @ part, rtol=1e-8)
    away = y[:, None] - design @ part
    covariance = np.einsum("tz,tzf,tzg->fg", weight, away, away) / len(y)
    covariance = covariance if covariance_type == "full" else np.diag(np.diag(covariance))
    np.testing.assert_allclose(step["covariance"], covariance, rtol=1e-8, atol=1e-12)


def test_three_chains_are_counted_alike_written_out_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step from the joint matrix, whose counts are summed over the other chains, and from the Kronecker product."""
    found = []
    for written in (128, 0):
        monkeypatch.setattr(factorial, "WRITTEN", written)
        model = FactorialHMM((2, 3, 2), max_iter=3, tol=None, n_init=1, smoothing=0.1, random_state=0)
        found.append(model.fit(frames(6, (30, 20))).tables_)
    for name, table in found[0].items():
        np.testing.assert_allclose(found[1][name], table, rtol=1e-8, atol=1e-12, err_msg=name)


def test_missing_features_are_summed_out_of_a_factorial_hmm() -> None:
    model, (x, _) = additive(), frames()
    x = x.copy()
    x[1, 0], x[2] = np.nan, np.nan
    log_z = float(np.logaddexp.reduce([p for *_, p in chain_paths(model.tables_, x)]))
    assert model.score(x) == pytest.approx(log_z, rel=1e-11)


def test_factorial_steps_never_lose() -> None:
    """Random chains, observations, priors and missing values; the objective of every step."""
    rng = np.random.default_rng(2)
    for seed in range(12):
        chains = tuple(int(n) for n in rng.integers(1, 4, rng.integers(1, 4)))
        kind = ("additive_gaussian", "gaussian", "poisson", "categorical")[seed % 4]
        data = frames(seed, (30, 17))
        data[0][4, 1] = np.nan
        data[1][7] = np.nan
        x: Any = data
        if kind == "poisson":
            x = [np.round(np.abs(one)) for one in data]
        elif kind == "categorical":
            x = [rng.integers(0, 4, len(one)) for one in data]
        settings: dict[str, Any] = {"smoothing": float(rng.choice([0.0, 0.3])), "random_state": seed}
        if kind == "additive_gaussian":
            settings["covariance_type"] = str(rng.choice(["full", "diag"]))
            settings["variance_prior"] = float(rng.choice([0.0, 2.0]))
        model = FactorialHMM(chains, observations=kind, max_iter=8, tol=None, n_init=1, **settings)
        history = np.array(model.fit(x).history_)
        assert (np.diff(history) >= -1e-9 * np.abs(history[1:])).all(), (chains, kind, np.diff(history))


def test_one_chain_is_an_hmm() -> None:
    data, rng = frames(3, (40, 25)), np.random.default_rng(0)
    start = {"initial": np.full(3, 1 / 3), "transition": drawn(3, 3), "mean": rng.normal(0, 1, (3, 2))}
    plain = HMM(3, covariance_type="tied", start={**start, "covariance": np.eye(2)}, max_iter=6, tol=None).fit(data)
    one = {"initial_0": start["initial"], "transition_0": start["transition"], "part": start["mean"]}
    model = FactorialHMM((3,), covariance_type="full", start={**one, "covariance": np.eye(2)}, max_iter=6, tol=None)
    np.testing.assert_allclose(model.fit(data).history_, plain.history_, rtol=1e-11)


def test_parts_are_found_again() -> None:
    """Two chains of two states, 2,000 frames: what each adds is within a few standard errors, all offsets aside."""
    truth = FactorialHMM.from_tables(
        (2, 2), part=[[0.0, 0.0], [4.0, 0.0], [0.0, 0.0], [0.0, 4.0]], covariance=np.eye(2), initial_0=[0.5, 0.5],
        initial_1=[0.5, 0.5], transition_0=[[0.9, 0.1], [0.1, 0.9]], transition_1=[[0.8, 0.2], [0.3, 0.7]],
    )  # fmt: skip
    x, states = truth.sample(100, n_sequences=20, random_state=0)
    model = FactorialHMM((2, 2), n_init=2, random_state=0).fit(x)
    steps = sorted(np.abs(part[1] - part[0]).tolist() for part in model.parts_)
    np.testing.assert_allclose(steps, [[0.0, 4.0], [4.0, 0.0]], atol=0.2)
    assert model.score(x) >= truth.score(x)
    found, right = (np.concatenate([one.chain_states(y) for y in paths]) for one, paths in (
        (model, model.predict(x)), (truth, states)
    ))  # fmt: skip
    agree = np.array([[(found[:, i] == right[:, j]).mean() for j in range(2)] for i in range(2)])
    assert (np.maximum(agree, 1 - agree).max(1) > 0.95).all()


TREE: Any = (2, (2, 0), 0)  # six leaves' worth of stacks: two, two below one more chain, one beside it, one at the root
NODES: Any = [["a", "b"], [["c", "d"], "e"], "f"]  # the same tree, for the oracle


def tree_tables(seed: int = 0) -> dict[str, Any]:
    """Entries and moves of the root (3 states), of its first chain (2), its second (2), and that one's first (2)."""
    found: dict[str, Any] = {}
    for i, size in enumerate((3, 2, 2, 2)):
        found[f"entry_{i}"] = drawn(size, seed=seed + i)
        found[f"move_{i}"] = drawn(size, size + (i > 0), seed=seed + 10 + i)
    return found


CHAIN: Any = {(): 0, (0,): 1, (1,): 2, (1, 0): 3}  # the number of the chain at each place of the tree


def node_at(place: tuple[int, ...]) -> Any:
    node: Any = NODES
    for i in place:
        node = node[i]
    return node


def enter(tables: Any, place: tuple[int, ...]) -> Any:
    """All ways down from a place to a leaf: the leaf's place, its probability, the entries of tables used."""
    if isinstance(node_at(place), str):
        yield place, 1.0, []
        return
    number = CHAIN[place]
    for child, p in enumerate(tables[f"entry_{number}"]):
        for leaf, q, used in enter(tables, (*place, child)):
            yield leaf, p * q, [(f"entry_{number}", child), *used]


def leave(tables: Any, place: tuple[int, ...]) -> Any:
    """All ways from a finished node to the next leaf: its chain moves to a sibling, or ends and is finished itself."""
    *above, child = place
    parent = tuple(above)
    number = CHAIN[parent]
    row = tables[f"move_{number}"][child]
    for sibling in range(len(node_at(parent))):
        for leaf, q, used in enter(tables, (*parent, sibling)):
            yield leaf, row[sibling] * q, [(f"move_{number}", child, sibling), *used]
    if parent:
        for leaf, q, used in leave(tables, parent):
            yield leaf, row[-1] * q, [(f"move_{number}", child, len(row) - 1), *used]


LEAVES = [(0, 0), (0, 1), (1, 0, 0), (1, 0, 1), (1, 1), (2,)]


def hierarchical(**settings: Any) -> HierarchicalHMM:
    emission = drawn(6, 4, seed=3)
    return HierarchicalHMM.from_tables(TREE, observations="categorical", emission=emission, **tree_tables(), **settings)


def derivations(tables: Any, emission: Any, symbols: Any) -> Any:
    """Every sequence of calls, moves and ends that says the symbols: its leaves, probability and uses."""

    def on(t: int, leaf: Any, p: float, used: list[Any], path: list[int]) -> Any:
        z = LEAVES.index(leaf)
        p, used, path = p * emission[z, symbols[t]], [*used, ("probability", z, symbols[t])], [*path, z]
        if t + 1 == len(symbols):
            yield path, p, used
            return
        for after, q, more in leave(tables, leaf):
            yield from on(t + 1, after, p * q, [*used, *more], path)

    for leaf, p, used in enter(tables, ()):
        yield from on(0, leaf, p, used, [])


def test_a_hierarchical_hmm_is_its_enumeration() -> None:
    """Likelihood, posteriors, and one step of EM, from every sequence of calls, moves and ends."""
    model = hierarchical(max_iter=1, tol=None)
    tables = model.tables_
    np.testing.assert_allclose(model.transition_.sum(1), 1.0, rtol=1e-12)
    uses = {name: np.zeros_like(x) for name, x in tables.items()}
    data = [np.array([0, 3, 1]), np.array([2, 2])]
    for symbols in data:
        found = list(derivations(tables, tables["probability"], symbols))
        total = sum(p for _, p, _ in found)
        assert model.score([symbols]) == pytest.approx(math.log(total), rel=1e-11)
        posterior = np.zeros((len(symbols), 6))
        for path, p, used in found:
            posterior[np.arange(len(path)), path] += p / total
            for name, *entry in used:
                uses[name][tuple(entry)] += p / total
        np.testing.assert_allclose(model.predict_proba([symbols])[0], posterior, rtol=1e-9, atol=1e-13)
    step = hierarchical(max_iter=1, tol=None).fit(data).tables_
    for name, used in uses.items():
        expected = np.where(used.sum(-1, keepdims=True) > 0, used / used.sum(-1, keepdims=True), tables[name])
        np.testing.assert_allclose(step[name], expected, rtol=1e-8, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(
        model.levels_, [[0, 0, -1], [0, 1, -1], [1, 0, 0], [1, 0, 1], [1, 1, -1], [2, -1, -1]]
    )


def test_hierarchical_steps_never_lose() -> None:
    rng = np.random.default_rng(3)
    trees: Any = [(2, 2), (0, 3), (1, (2, (2, 0))), ((0, 1), 2, 0)]
    for seed, tree in enumerate([*trees, *trees]):
        kind = ("gaussian", "categorical")[seed // 4]
        x: Any = frames(seed, (40, 21))
        x = x if kind == "gaussian" else [rng.integers(0, 5, len(one)) for one in x]
        smoothing = float(rng.choice([0.0, 0.3]))
        model = HierarchicalHMM(
            tree, observations=kind, smoothing=smoothing, max_iter=8, tol=None, n_init=1, random_state=seed
        )
        history = np.array(model.fit(x).history_)
        assert (np.diff(history) >= -1e-9 * np.abs(history[1:])).all(), (tree, kind)
        assert history[-1] > history[0]


def test_a_tree_of_single_states_is_an_hmm() -> None:
    """A root whose states all say frames has moves, and nothing else."""
    data, moves, start = frames(4, (30, 12)), drawn(3, 3), np.full(3, 1 / 3)
    mean, variance = np.random.default_rng(0).normal(0, 1, (3, 2)), np.ones((3, 2))
    settings: dict[str, Any] = {"max_iter": 5, "tol": None}
    tables = {"mean": mean, "variance": variance}
    plain = HMM(3, start={"initial": start, "transition": moves, **tables}, **settings).fit(data)
    model = HierarchicalHMM((0, 0, 0), start={"entry_0": start, "move_0": moves, **tables}, **settings).fit(data)
    np.testing.assert_allclose(model.history_, plain.history_, rtol=1e-11)
    np.testing.assert_allclose(model.transition_, plain.transition_, rtol=1e-9)


def test_fixed_tables_stay_and_saved_models_answer_alike(tmp_path: Any) -> None:
    for model in (additive(), hierarchical()):
        name = "transition_0" if isinstance(model, FactorialHMM) else "move_1"
        x: Any = frames(1, (20,)) if isinstance(model, FactorialHMM) else [RNG.integers(0, 4, 20)]
        before = model.tables_[name]
        model.set_params(fixed=(name,), max_iter=3, tol=None)
        model.fit(x)
        np.testing.assert_allclose(model.tables_[name], before, rtol=1e-12)
        model.partial_fit(x)
        model.fit(x, algorithm="sgd")
        folder = tmp_path / type(model).__name__
        model.model_.save_pretrained(folder)
        loaded = rankfold.load(folder, device="cpu").double()
        batch = loaded.batch(x)
        np.testing.assert_allclose(float(loaded.log_likelihood(batch).sum().detach()), model.score(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: FactorialHMM(()).fit(x), "number of states of each chain"),
        (lambda x: FactorialHMM((2, 0)).fit(x), "number of states of each chain"),
        (lambda x: FactorialHMM(4).fit(x), "number of states of each chain"),  # type: ignore[arg-type]
        (lambda x: HierarchicalHMM(3).fit(x), "states of the root"),  # type: ignore[arg-type]
        (lambda x: HierarchicalHMM((2, -1)).fit(x), "tree has -1"),
        (lambda x: HierarchicalHMM((2, "ab")).fit(x), "tree has 'ab'"),
        (lambda x: FactorialHMM((2, 2), fixed=("transition",)).fit(x), "initial_0, transition_0"),
        (lambda x: FactorialHMM.from_tables((2, 2), part=np.zeros((4, 2)), covariance=np.eye(2)), "is not given"),
        (lambda x: FactorialHMM.from_tables((2, 2), part=np.zeros((3, 2)), covariance=np.eye(2),
                                            initial_0=[1, 0], initial_1=[1, 0], transition_0=np.eye(2),
                                            transition_1=np.eye(2)), r"\(3, 2\).*\(4, 2\)"),
    ],
)  # fmt: skip
def test_bad_structures_are_refused(make: Any, words: str) -> None:
    with pytest.raises((DomainError, ValueError), match=words):
        make(frames(0, (9,)))


def test_numbers_off_a_diagonal_covariance_are_refused() -> None:
    chain = {"initial_0": [0.5, 0.5], "transition_0": np.full((2, 2), 0.5)}
    given = {**chain, "part": [[0.0, 0.0], [1.0, 1.0]], "covariance": [[1.0, 0.2], [0.2, 1.0]]}
    with pytest.raises(ValueError, match="off its diagonal"):
        FactorialHMM.from_tables((2,), **given)
    assert FactorialHMM.from_tables((2,), covariance_type="full", **given).score(np.zeros((3, 2))) < 0
