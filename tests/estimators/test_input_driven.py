"""Inputs that drive transitions and start, against a GLM-HMM in plain numpy, and against all paths by enumeration."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.estimators import HMM
from rankfold.models import FrameModel


class Plain:
    """A GLM-HMM of Gaussian frames of one feature: its own forward-backward and its own derivatives, in numpy."""

    def __init__(self, seed: int, z: int = 3, k: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.initial, self.transition = rng.dirichlet(np.ones(z)), rng.dirichlet(np.ones(z), z)
        self.start_weight, self.weight = rng.standard_normal((z, k)), rng.standard_normal((z, z, k))
        self.mean, self.variance = 2 * rng.standard_normal(z), rng.uniform(0.5, 2.0, z)

    def moves(self, u: Any) -> Any:  # "t k" -> "t z y"
        logits = np.log(self.transition) + np.einsum("zyk,tk->tzy", self.weight, u)
        weights = np.exp(logits - logits.max(2, keepdims=True))
        return weights / weights.sum(2, keepdims=True)

    def starts(self, u: Any) -> Any:  # "k" -> "z"
        weights = self.initial * np.exp(self.start_weight @ u)
        return weights / weights.sum()

    def density(self, x: Any) -> Any:  # "t 1" -> "t z"
        return np.exp(-((x - self.mean) ** 2) / (2 * self.variance)) / np.sqrt(2 * np.pi * self.variance)

    def forward_backward(self, x: Any, u: Any) -> tuple[float, Any, Any, Any]:
        """log p(x), posteriors "t z", of pairs "t-1 z y", and given the past alone "t z"."""
        moves, density = self.moves(u), self.density(x)
        alpha, beta, scale = np.zeros_like(density), np.ones_like(density), np.zeros(len(x))
        for t in range(len(x)):
            before = self.starts(u[0]) if t == 0 else alpha[t - 1] @ moves[t]
            alpha[t] = before * density[t]
            scale[t] = alpha[t].sum()
            alpha[t] /= scale[t]
        for t in range(len(x) - 2, -1, -1):
            beta[t] = moves[t + 1] @ (density[t + 1] * beta[t + 1]) / scale[t + 1]
        pairs = alpha[:-1, :, None] * moves[1:] * (density[1:] * beta[1:])[:, None] / scale[1:, None, None]
        return float(np.log(scale).sum()), alpha * beta, pairs, alpha

    def path_weight(self, path: Any, x: Any, u: Any) -> float:
        """The probability of a path and of the frames."""
        moves, density = self.moves(u), self.density(x)
        found = self.starts(u[0])[path[0]] * density[0, path[0]]
        for t in range(1, len(x)):
            found *= moves[t, path[t - 1], path[t]] * density[t, path[t]]
        return float(found)

    def estimator(self, **params: Any) -> HMM:
        return HMM.from_tables(
            initial=self.initial, transition=self.transition, transition_weights=self.weight,
            initial_weights=self.start_weight, means=self.mean[:, None], covariances=self.variance[:, None],
            min_variance=0.0, **params,
        )  # fmt: skip

    def draw(self, lengths: tuple[int, ...], seed: int) -> tuple[list[Any], list[Any], list[Any]]:
        """Frames, inputs and states of sequences of these lengths."""
        rng, found = np.random.default_rng(seed), []
        for length in lengths:
            u = rng.standard_normal((length, self.weight.shape[2]))
            moves, states = self.moves(u), [rng.choice(len(self.initial), p=self.starts(u[0]))]
            for t in range(1, length):
                states.append(rng.choice(len(self.initial), p=moves[t, states[-1]]))
            y = np.array(states)
            x = self.mean[y] + np.sqrt(self.variance[y]) * rng.standard_normal(length)
            found.append((x[:, None], u, y))
        xs, us, ys = zip(*found, strict=True)
        return list(xs), list(us), list(ys)


def regression(x: Any, counts: Any, ridge: float, pseudo: Any) -> Any:
    """The probabilities "n y" at the maximum of a softmax regression of counts "n y" on x "n p" with a leading 1.

    The first class is the reference; plain Newton from 0, in numpy; the penalty is of centred weights.
    """
    n, (p, y) = len(x), (x.shape[1], counts.shape[1])
    rows = np.concatenate([x, np.eye(1, p)])
    wanted = np.concatenate([counts, pseudo[None]])
    total = wanted.sum(1)
    centre = np.eye(y)[:, 1:] - 1 / y  # the reference's coefficients as centred weights of all classes
    cost = np.kron(ridge * centre.T @ centre, np.diag(np.r_[0.0, np.ones(p - 1)]))
    theta = np.zeros((y - 1) * p)

    def shares(theta: Any) -> Any:
        logits = np.c_[np.zeros(n + 1), rows @ theta.reshape(y - 1, p).T]
        weights = np.exp(logits - logits.max(1, keepdims=True))
        return weights / weights.sum(1, keepdims=True)

    def value(theta: Any) -> float:
        return float((wanted * np.log(shares(theta))).sum() - theta @ cost @ theta / 2)

    for _ in range(60):
        q = shares(theta)[:, 1:]
        slope = ((wanted[:, 1:] - total[:, None] * q).T @ rows).reshape(-1) - cost @ theta
        inner = np.einsum("n,ny,yv->nyv", total, q, np.eye(y - 1)) - np.einsum("n,ny,nv->nyv", total, q, q)
        curve = np.einsum("nyv,np,nq->ypvq", inner, rows, rows).reshape(len(theta), -1) + cost
        step, size = np.linalg.solve(curve, slope), 1.0
        while value(theta + size * step) < value(theta) and size > 1e-6:
            size /= 2
        theta = theta + size * step
    assert np.abs(slope).max() < 1e-9
    return shares(theta)[:-1]


def test_likelihoods_and_posteriors_are_those_of_plain_numpy() -> None:
    for seed in range(6):
        plain = Plain(seed, z=1 + seed % 4, k=1 + seed % 3)
        x, u, _ = plain.draw((30, 1, 17), seed)
        model = plain.estimator()
        found = [plain.forward_backward(a, b) for a, b in zip(x, u, strict=True)]
        np.testing.assert_allclose(model.score_samples(x, inputs=u), [one[0] for one in found], rtol=1e-12)
        for posterior, filtered, one in zip(
            model.predict_proba(x, inputs=u), model.filter(x, inputs=u), found, strict=True
        ):
            np.testing.assert_allclose(posterior, one[1], rtol=0, atol=1e-11)
            np.testing.assert_allclose(filtered, one[3], rtol=0, atol=1e-11)
        whole = np.concatenate(x), np.concatenate(u)
        assert model.score(whole[0], [30, 1, 17], inputs=whole[1]) == pytest.approx(sum(one[0] for one in found))
        state = None
        for t in range(5):
            p, state = model.step(x[0][t], state, inputs=u[0][t])
            np.testing.assert_allclose(p, found[0][3][t], rtol=0, atol=1e-11)


def test_best_paths_segments_and_samples_are_those_of_all_paths() -> None:
    for seed in range(3):
        plain = Plain(seed)
        (x,), (u,), _ = plain.draw((5,), seed)
        weights = {path: plain.path_weight(path, x, u) for path in itertools.product(range(3), repeat=5)}
        order, total = sorted(weights, key=lambda path: -weights[path]), sum(weights.values())
        model = plain.estimator(random_state=seed)
        assert model.score(x, inputs=u) == pytest.approx(np.log(total), rel=1e-12)
        log_probs, paths = model.k_best(x, 4, inputs=u)
        assert [tuple(path) for path in paths] == order[:4]
        np.testing.assert_allclose(log_probs, np.log([weights[path] for path in order[:4]]), rtol=1e-12)
        assert tuple(model.predict(x, inputs=u)) == order[0]
        assert model.decode(x, inputs=u)[0] == pytest.approx(np.log(weights[order[0]]), rel=1e-12)
        for row in model.segment(x, inputs=u):
            same = [w for path, w in weights.items() if set(path[row["start"] : row["end"]]) == {row["state"]}]
            assert row["posterior"] == pytest.approx(sum(same) / total, rel=1e-10)
        labels = np.array([order[0][0], -1, -1, order[1][3], -1])
        kept = [w for path, w in weights.items() if path[0] == labels[0] and path[3] == labels[3]]
        assert model.score(x, inputs=u, labels=labels) == pytest.approx(np.log(sum(kept)), rel=1e-12)
        frames, states = model.sample(5, n_sequences=4000, inputs=u)
        shares = np.array([np.bincount(at, minlength=3) / 4000 for at in np.array(states).T])
        chances = [plain.starts(u[0])]
        for move in plain.moves(u)[1:]:
            chances.append(chances[-1] @ move)
        assert np.abs(shares - chances).max() < 5 * 0.5 / 4000**0.5
        assert frames[0].shape == (5, 1)


def test_a_step_of_em_ends_at_the_maximum_that_plain_numpy_finds() -> None:
    for seed, (ridge, smoothing) in enumerate([(0.0, 0.0), (0.7, 0.0), (0.3, 0.4)]):
        plain = Plain(seed)
        x, u, _ = plain.draw((40,) * 12, seed)
        params = {"input_prior": ridge, "smoothing": smoothing, "max_iter": 1, "tol": None}
        model = plain.estimator(**params).fit(x, inputs=u)
        found = [plain.forward_backward(a, b) for a, b in zip(x, u, strict=True)]
        assert model.history_[0] == pytest.approx(
            sum(one[0] for one in found)
            + smoothing * (np.log(plain.transition).sum() + np.log(plain.initial).sum())
            - ridge / 2 * ((plain.weight**2).sum() + (plain.start_weight**2).sum()),
            rel=1e-12,
        )
        driven = model.model_.driven
        assert driven is not None
        with_one = np.concatenate([np.c_[np.ones(len(v) - 1), v[1:]] for v in u])
        pairs = np.concatenate([one[2] for one in found])
        with torch.no_grad():
            ours = driven.log_transition(torch.from_numpy(with_one[:, 1:])).exp().numpy()
        for z in range(3):
            theirs = regression(with_one, pairs[:, z], ridge, np.full(3, smoothing))
            np.testing.assert_allclose(ours[:, z], theirs, rtol=0, atol=1e-8)
        if ridge:  # twelve starts are told apart by four numbers of each state, unless a prior keeps these small
            first = np.array([np.r_[1.0, v[0]] for v in u])
            with torch.no_grad():
                ours = driven.log_start(torch.from_numpy(first[:, 1:])).exp().numpy()
            theirs = regression(first, np.array([one[1][0] for one in found]), ridge, np.full(3, smoothing))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


def network(k: int, size: int, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(k, 4), torch.nn.Tanh(), torch.nn.Linear(4, size))


def random_fit(seed: int) -> tuple[HMM, list[Any], list[Any], dict[str, Any]]:
    """A driven HMM of random observations, priors, constraints and kinds of regression; its data and arguments."""
    rng = np.random.default_rng(seed)
    z, k = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    lengths = (*map(int, rng.integers(1, 25, 4)), 12)
    x, u, y = Plain(seed, max(z, 2), k).draw(lengths, seed)
    driven: Any = [("transition",), ("start",), ("transition", "start")][int(rng.integers(3))]
    chosen: dict[str, Any] = {
        "input_prior": float(rng.choice([0.0, 0.5])),
        "smoothing": float(rng.choice([0.0, 0.3])),
        "sticky": float(rng.choice([0.0, 1.0])),
        "forbidden": "left_to_right" if rng.random() < 0.2 else None,
        "input_rank": int(rng.integers(1, 3)) if rng.random() < 0.3 else None,
        "min_variance": 0.05,
    }
    if rng.random() < 0.3:
        chosen["transition_prior"] = rng.uniform(1.0, 3.0, (z, z))
    if rng.random() < 0.3:
        driven = {name: network(k, z if name == "start" else z * z, seed) for name in driven}
    if rng.random() < 0.3:
        chosen["observations"], chosen["n_symbols"] = "categorical", 2
        x = [(a[:, 0] > 0).astype(int) for a in x]
    fit: dict[str, Any] = {"inputs": u}
    if rng.random() < 0.3:
        fit["labels"] = [np.where(rng.random(len(a)) < 0.2, np.minimum(a, z - 1), -1) for a in y]
        if chosen["forbidden"]:
            del fit["labels"]
    if rng.random() < 0.3:
        fit["sample_weight"] = [1.0, 2.5, 0.5, 1.0, 1.0]
    return HMM(z, input_driven=driven, max_iter=5, tol=None, random_state=seed, **chosen), x, u, fit


@pytest.mark.filterwarnings("ignore:too little data")
def test_em_never_loses_in_fifty_random_configurations() -> None:
    gains = []
    for seed in range(50):
        model, x, _, fit = random_fit(seed)
        history = np.array(model.fit(x, **fit).history_)
        assert (np.diff(history) >= -1e-9 * (1 + np.abs(history[1:]))).all(), (seed, np.diff(history).min())
        gains.append(history[-1] - history[0])
    assert min(gains) >= -1e-12
    assert np.median(gains) > 1


def test_a_long_sequence_gives_its_parameters_back() -> None:
    plain = Plain(5)
    plain.mean, plain.variance = np.array([-4.0, 0.0, 4.0]), np.ones(3)
    plain.transition = 0.4 * np.eye(3) + 0.2
    plain.weight -= plain.weight.mean(1, keepdims=True)
    x, u, y = plain.draw((3000,), 1)
    model = HMM(3, input_driven="transition", random_state=0, tol=None, max_iter=5).fit(x, inputs=u)
    order = np.argsort(model.means_[:, 0])
    assert np.abs(model.transition_weights_[order][:, order] - plain.weight).max() < 0.4  # four standard errors
    assert np.abs(model.transition_[order][:, order] - plain.transition).max() < 0.08
    assert np.abs(model.means_[order, 0] - plain.mean).max() < 0.15
    blind = HMM(3, random_state=0, tol=None, max_iter=5).fit(x)
    assert model.score(x, inputs=u) > blind.score(x) + 200
    assert np.mean(order.argsort()[model.predict(x[0], inputs=u[0])] == y[0]) > 0.95


@pytest.mark.filterwarnings("ignore:too little data")
def test_gradient_steps_and_networks_climb() -> None:
    plain = Plain(2)
    x, u, _ = plain.draw((30,) * 6, 0)
    for driven in (("transition", "start"), {"transition": network(2, 9, 0), "start": None}):
        model = HMM(3, input_driven=driven, max_iter=15, tol=None, random_state=0, input_prior=0.1, learning_rate=0.03)
        history = model.fit(x, inputs=u, algorithm="sgd").history_
        assert max(history) > history[0] + 10
        assert max(history) == pytest.approx(
            model.score(x, inputs=u) + float(model.model_.driven.log_prior(model._prior).detach()),
            rel=1e-9,  # type: ignore[union-attr]
        )
    given = network(2, 9, 0)
    before = [p.clone() for p in given.parameters()]
    model = HMM(3, input_driven={"transition": given}, max_iter=3, tol=None, random_state=0).fit(x, inputs=u)
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))  # a parameter is not fitted
    again = pickle.loads(pickle.dumps(model))
    assert again.score(x, inputs=u) == model.score(x, inputs=u)
    with pytest.raises(UnsupportedError, match="network of your own"):
        model.model_.save_pretrained("nowhere")


def test_fixed_tables_stay_and_models_are_saved(tmp_path: Any) -> None:
    plain = Plain(3)
    x, u, _ = plain.draw((30,) * 6, 0)
    for fixed in (("transition",), ("transition_weight",), ("initial", "initial_weight", "transition", "mean")):
        for algorithm in ("em", "sgd"):
            model = plain.estimator(fixed=fixed, max_iter=3, tol=None).fit(x, inputs=u, algorithm=algorithm)  # type: ignore[arg-type]
            tables = model.tables_
            before = {
                "initial": plain.initial, "transition": plain.transition, "mean": plain.mean[:, None],
                "initial_weight": plain.start_weight, "transition_weight": plain.weight,
            }  # fmt: skip
            for name, table in before.items():
                assert np.allclose(tables[name], table, rtol=0, atol=1e-12) == (name in fixed), name
    model.model_.save_pretrained(tmp_path)
    again = FrameModel.from_pretrained(tmp_path)
    model.model_ = again
    assert model.score(x, inputs=u) == pytest.approx(plain_score(model, x, u), rel=1e-12)
    model.transition_weights_ = 0 * plain.weight
    assert not np.any(model.transition_weights_)


def plain_score(model: HMM, x: list[Any], u: list[Any]) -> float:
    """The likelihood of an estimator's tables in numpy."""
    plain = Plain(0)
    plain.initial, plain.transition = model.initial_, model.transition_
    plain.start_weight, plain.weight = model.initial_weights_, model.transition_weights_
    plain.mean, plain.variance = model.means_[:, 0], model.covariances_[:, 0]
    return sum(plain.forward_backward(a, b)[0] for a, b in zip(x, u, strict=True))


def test_inputs_of_a_regression_come_apart_or_as_columns() -> None:
    rng = np.random.default_rng(0)
    u = [rng.standard_normal((40, 2)) for _ in range(4)]
    states = [np.arange(40) // 10 % 2 for _ in u]
    means = [np.where(s[:, None], v[:, :1] + 2, -v[:, 1:]) for s, v in zip(states, u, strict=True)]
    x = [mean + 0.1 * rng.standard_normal((40, 1)) for mean in means]
    columns = [np.hstack([a, b]) for a, b in zip(x, u, strict=True)]
    together = HMM(2, observations="regression", n_inputs=2, random_state=0).fit(columns)
    apart = HMM(2, observations="regression", random_state=0).fit(x, inputs=u)
    assert apart.history_ == together.history_
    assert apart.score(x, inputs=u) == together.score(columns)
    assert apart.n_features_in_ == 1
    assert apart.sample(40, inputs=u[0], random_state=1)[0].shape == (40, 1)
    assert together.sample(40, inputs=u[0], random_state=1)[0].shape == (40, 3)
    assert apart.step(x[0][0], inputs=u[0][0])[1].log_likelihood == together.step(columns[0][0])[1].log_likelihood
    both = HMM(2, observations="regression", input_driven="transition", random_state=0, input_prior=0.1)
    assert np.diff(both.fit(x, inputs=u).history_).min() > -1e-9
    with pytest.raises(DomainError, match="inputs are missing"):
        apart.predict(x)
    with pytest.raises(DomainError, match="at least one input"):
        HMM(2, observations="regression").fit(x)


def test_bad_inputs_are_refused() -> None:
    plain = Plain(0)
    x, u, _ = plain.draw((8, 5), 0)
    model = plain.estimator()
    holes = [u[0], u[1].copy()]
    holes[1][3, 1] = np.nan
    cases: list[tuple[Any, type[Exception], str]] = [
        (None, DomainError, "inputs are missing"),
        ([u[0]], ShapeError, "one array for each of 2 sequences"),
        ([u[0], u[0]], ShapeError, "inputs of sequence 1 have shape"),
        ([u[0][:, :1], u[1][:, :1]], ShapeError, "fitted with 2"),
        ([u[0], u[1][:, 0]], ShapeError, "inputs of sequence 1"),
        (holes, DataError, "sequence 1, row 3: input 1 is missing"),
        ([u[0], np.full((5, 2), np.inf)], DataError, "sequence 1, row 0: input 0 is infinite"),
        (np.concatenate(u), ShapeError, "a list"),
    ]
    for inputs, kind, text in cases:
        for ask in (model.predict, model.score, model.decode, model.predict_proba, model.filter, model.segment):
            with pytest.raises(kind, match=text):
                ask(x, inputs=inputs)
    for inputs, kind, text in cases[:3] + cases[5:]:
        with pytest.raises(kind, match=text):
            HMM(3, input_driven="transition").fit(x, inputs=inputs)
    with pytest.raises(ShapeError, match="13 rows"):
        model.score(np.concatenate(x), [8, 5], inputs=np.concatenate(u)[1:])
    with pytest.raises(DomainError, match="nothing here depends"):
        HMM(2).fit(x, inputs=u)
    with pytest.raises(DomainError, match="inputs are missing"):
        model.step(x[0][0])
    with pytest.raises(DomainError, match="needs them"):
        model.sample(4)
    with pytest.raises(DomainError, match="each of 4 frames"):
        model.sample(4, inputs=u[0])
    for driven in ("emission", ("start", "end"), 3, {"transition": "net"}):
        with pytest.raises(DomainError, match="input_driven"):
            HMM(2, input_driven=driven).fit(x, inputs=u)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="written out for each frame"):
        HMM(3, input_driven="transition", rank=2).fit(x, inputs=u)
    with pytest.raises(UnsupportedError, match="no counts that add up"):
        HMM(3, input_driven="transition").partial_fit(x, inputs=u)
    with pytest.raises(UnsupportedError, match="no counts that add up"):
        HMM(3, input_driven="transition").fit(x, inputs=u, algorithm="minibatch")
    with pytest.raises(ShapeError, match=r"network of the transition gave .*, 4\)"):
        HMM(3, input_driven={"transition": torch.nn.Linear(2, 4)}).fit(x, inputs=u)


def test_weights_of_low_rank_are_read_written_out() -> None:
    """They move the logits at any inputs as the model does."""
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((40, 1)), rng.standard_normal((40, 2))
    model = HMM(3, input_driven="transition", input_rank=1, max_iter=4, tol=None, random_state=0).fit(x, inputs=u)
    weight = model.transition_weights_
    assert weight.shape == (3, 3, 2)
    assert np.linalg.matrix_rank(weight.reshape(3, 6)) == 1
    logits = np.log(model.transition_) + weight @ u[7]
    moved = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    given = torch.from_numpy(u[7:8])
    np.testing.assert_allclose(model.model_.dynamics.log_transition(given)[0].detach().exp(), moved, rtol=1e-10)
