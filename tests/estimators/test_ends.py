"""Sequences that end by themselves, against all paths and segmentations of all lengths by enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rankfold.errors import DomainError
from rankfold.estimators import HMM, HSMM
from rankfold.models import FrameModel

RNG = np.random.default_rng(0)
INITIAL, MOVES, END = RNG.dirichlet(np.ones(3)), RNG.dirichlet(np.ones(3), 3), np.array([0.5, 0.1, 0.3])
EMISSION = RNG.dirichlet(np.ones(2), 3)
LASTS = RNG.dirichlet(np.ones(3), 3)  # durations of 1 to 3 frames
HOPS = MOVES * (1 - np.eye(3))
HOPS /= HOPS.sum(1, keepdims=True)
WEIGHTS = RNG.standard_normal((3, 3, 2))


def chain(**params: Any) -> HMM:
    return HMM.from_tables(
        initial=INITIAL, transition=MOVES, observations="categorical", emission=EMISSION, end=END, **params
    )


def segments(**params: Any) -> HSMM:
    return HSMM.from_tables(
        initial=INITIAL, transition=HOPS, observations="categorical", emission=EMISSION, durations=LASTS, end=END,
        **params,
    )  # fmt: skip


def paths(x: Any, moves: Any = None) -> dict[tuple[int, ...], float]:
    """The probability of every state path with the symbols and with the end after the last of them."""
    moves = np.broadcast_to(MOVES, (len(x), 3, 3)) if moves is None else moves
    found = {}
    for path in itertools.product(range(3), repeat=len(x)):
        p = INITIAL[path[0]] * EMISSION[path[0], x[0]]
        for t in range(1, len(x)):
            p *= (1 - END[path[t - 1]]) * moves[t, path[t - 1], path[t]] * EMISSION[path[t], x[t]]
        found[path] = p * END[path[-1]]
    return found


def cuts(x: Any) -> dict[tuple[tuple[int, int], ...], float]:
    """The same of every segmentation, as pairs of state and duration."""
    found: dict[tuple[tuple[int, int], ...], float] = {}

    def grow(done: tuple[tuple[int, int], ...], at: int, p: float) -> None:
        if at == len(x):
            found[done] = p * END[done[-1][0]]
            return
        for z, d in itertools.product(range(3), (1, 2, 3)):
            if at + d > len(x):
                continue
            enter = INITIAL[z] if not done else (1 - END[done[-1][0]]) * HOPS[done[-1][0], z]
            grow((*done, (z, d)), at + d, p * enter * LASTS[z, d - 1] * float(np.prod(EMISSION[z, x[at : at + d]])))

    grow((), 0, 1.0)
    return found


def test_chains_are_those_of_all_paths() -> None:
    model = chain()
    for x in ([0], [1, 0], [0, 1, 1, 0, 1]):
        weights = paths(np.array(x))
        total = sum(weights.values())
        assert model.score([x]) == pytest.approx(np.log(total), rel=1e-12)
        posterior = sum(w * np.eye(3)[list(path)] for path, w in weights.items()) / total
        np.testing.assert_allclose(model.predict_proba([x])[0], posterior, rtol=0, atol=1e-12)
        best = sorted(weights, key=lambda path: -weights[path])
        log_probs, found = model.k_best([x], 3)
        assert [tuple(path) for path in found[0]] == best[:3]
        np.testing.assert_allclose(log_probs[0], np.log([weights[path] for path in best[:3]]), rtol=1e-12)
        assert model.decode([x])[0] == pytest.approx(np.log(weights[best[0]]), rel=1e-12)
        for row in model.segment([x])[0]:
            same = [w for path, w in weights.items() if set(path[row["start"] : row["end"]]) == {row["state"]}]
            assert row["posterior"] == pytest.approx(sum(same) / total, rel=1e-10)
        # Of a stream nobody knows yet whether a frame is the last one: all ends but the last count.
        shown, state = model.filter([x])[0], None
        for t in range(len(x)):
            so_far = {path: w / END[path[-1]] for path, w in paths(np.array(x[: t + 1])).items()}
            here = sum(w * np.eye(3)[path[-1]] for path, w in so_far.items())
            step, state = model.step(x[t], state)
            for found_ in (shown[t], step):
                np.testing.assert_allclose(found_, here / here.sum(), rtol=0, atol=1e-12)
            assert state.log_likelihood == pytest.approx(np.log(here.sum()), rel=1e-12)


def test_inputs_and_ends_go_together() -> None:
    u = RNG.standard_normal((5, 2))
    x = np.array([0, 1, 1, 0, 1])
    logits = np.log(MOVES) + np.einsum("zyk,tk->tzy", WEIGHTS, u)
    moves = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    model = chain(transition_weights=WEIGHTS)
    weights = paths(x, moves)
    assert model.score([x], inputs=[u]) == pytest.approx(np.log(sum(weights.values())), rel=1e-12)
    assert tuple(model.predict([x], inputs=[u])[0]) == max(weights, key=lambda path: weights[path])
    shown, state = model.filter([x], inputs=[u])[0], None
    for t in range(5):
        so_far = {path: w / END[path[-1]] for path, w in paths(x[: t + 1], moves).items()}
        here = sum(w * np.eye(3)[path[-1]] for path, w in so_far.items())
        step, state = model.step(x[t], state, inputs=u[t])
        np.testing.assert_allclose(shown[t], here / here.sum(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(step, here / here.sum(), rtol=0, atol=1e-12)
        assert state.log_likelihood == pytest.approx(np.log(here.sum()), rel=1e-12)


def test_segments_are_those_of_all_segmentations() -> None:
    model = segments()
    for x in ([0], [1, 0, 0], [0, 1, 1, 0, 1]):
        weights = cuts(np.array(x))
        total = sum(weights.values())
        assert model.score([x]) == pytest.approx(np.log(total), rel=1e-12)
        frames = {cut: [z for z, d in cut for _ in range(d)] for cut in weights}
        posterior = sum(w * np.eye(3)[frames[cut]] for cut, w in weights.items()) / total
        np.testing.assert_allclose(model.predict_proba([x])[0], posterior, rtol=0, atol=1e-12)
        best = max(weights, key=lambda cut: weights[cut])
        assert model.decode([x])[0] == pytest.approx(np.log(weights[best]), rel=1e-12)
        assert list(model.predict([x])[0]) == frames[best]


def test_all_sequences_of_all_lengths_sum_to_one() -> None:
    going_on = (1 - END)[:, None] * MOVES
    model, total, alive = chain(), 0.0, INITIAL
    for length in range(1, 7):
        every = [list(x) for x in itertools.product((0, 1), repeat=length)]
        total += float(np.exp(model.score_samples(every)).sum())
        alive = alive @ going_on
        assert total + alive.sum() == pytest.approx(1.0, abs=1e-12)  # what has not ended yet


def test_a_step_of_em_counts_the_ends() -> None:
    x = [np.array([0, 1, 1]), np.array([1]), np.array([0, 0, 1, 1])]
    ended, went = np.zeros(3), np.zeros(3)
    for one in x:
        weights = paths(one)
        total = sum(weights.values())
        for path, w in weights.items():
            ended += w / total * np.eye(3)[path[-1]]
            went += w / total * np.eye(3)[list(path[:-1])].sum(0)
    for prior, more in ((None, (0.0, 0.0)), ((1.5, 3.0), (0.5, 2.0))):
        model = chain(max_iter=1, tol=None, end_prior=prior).fit(x)
        wanted = (ended + more[0]) / (ended + went + sum(more))
        np.testing.assert_allclose(model.end_, wanted, rtol=1e-12)
    ended, went = np.zeros(3), np.zeros(3)
    for one in x:
        cut_weights = cuts(one)
        total = sum(cut_weights.values())
        for cut, w in cut_weights.items():
            ended += w / total * np.eye(3)[cut[-1][0]]
            went += w / total * np.eye(3)[[z for z, _ in cut[:-1]]].sum(0)
    model_ = segments(max_iter=1, tol=None, smoothing=0.3).fit(x)
    np.testing.assert_allclose(model_.end_, (ended + 0.3) / (ended + went + 0.6), rtol=1e-10)


@pytest.mark.filterwarnings("ignore:too little data", "ignore:segments last at most")
def test_em_rises_and_gradients_climb_the_same_objective() -> None:
    rng = np.random.default_rng(1)
    x = [rng.standard_normal((n, 1)) + 2 * (np.arange(n)[:, None] > n / 2) for n in rng.integers(2, 20, 12)]
    u = [rng.standard_normal((len(one), 2)) for one in x]
    cases: list[tuple[Any, dict[str, Any]]] = [
        (HMM(3, ends=True, max_iter=5, tol=None, random_state=0), {}),
        (HMM(3, ends=True, rank=2, smoothing=0.2, max_iter=5, tol=None, random_state=0), {}),
        (HMM(3, ends=True, end_prior=(2, 5), sticky=1.0, max_iter=5, tol=None, random_state=0), {}),
        (HMM(2, ends=True, input_driven="transition", input_prior=0.1, max_iter=6, tol=None), {"inputs": u}),
        (HMM(2, ends=True, input_driven="start", input_prior=0.1, max_iter=6, tol=None), {"inputs": u}),
        (HSMM(3, ends=True, max_duration=2, self_transitions=True, max_iter=5, tol=None, random_state=0), {}),
        (HSMM(3, ends=True, rank=2, max_duration=8, smoothing=0.1, max_iter=5, tol=None, random_state=0), {}),
    ]  # fmt: skip
    for model, fit in cases:
        history = np.array(model.fit(x, **fit).history_)
        assert np.diff(history).min() >= -1e-9 * np.abs(history).max()
        assert history[-1] > history[0]
        model.set_params(end_prior=(2, 5), learning_rate=0.03)
        climbed = model.fit(x, algorithm="sgd", **fit).history_
        assert max(climbed) > climbed[0]
    first = cases[0][0].set_params(end_prior=None).fit(x)
    assert first.n_parameters() == HMM(3, max_iter=2, tol=None, random_state=0).fit(x).n_parameters() + 3
    first.partial_fit(x[:5])
    many = HMM(3, ends=True, max_iter=4, tol=None, random_state=0, batch_size=4).fit(x, algorithm="minibatch")
    assert np.isfinite(many.score(x))


def test_samples_end_by_themselves() -> None:
    going_on = (1 - END)[:, None] * MOVES
    mean = INITIAL @ np.linalg.inv(np.eye(3) - going_on).sum(1)
    frames, states = chain(random_state=0).sample(n_sequences=3000)
    lengths = np.array([len(y) for y in states])
    assert abs(lengths.mean() - mean) < 5 * lengths.std() / 3000**0.5
    assert all(len(a) == len(b) for a, b in zip(frames, states, strict=True))
    lasts = np.bincount([y[-1] for y in states], minlength=3) / 3000
    visits = INITIAL @ np.linalg.inv(np.eye(3) - going_on)
    assert np.abs(lasts - visits * END).max() < 0.05
    hops = (1 - END)[:, None] * HOPS
    visits = INITIAL @ np.linalg.inv(np.eye(3) - hops)
    lengths = np.array([len(y) for y in segments(random_state=0).sample(n_sequences=3000)[1]])
    assert abs(lengths.mean() - visits @ LASTS @ [1, 2, 3]) < 5 * lengths.std() / 3000**0.5
    drawn = np.array(chain(random_state=1).sample(3, n_sequences=3000)[1])  # given the length
    weights = {path: INITIAL[path[0]] * going_on[path[0], path[1]] * going_on[path[1], path[2]] * END[path[2]]
               for path in itertools.product(range(3), repeat=3)}  # fmt: skip
    for z in range(3):
        share = sum(w for path, w in weights.items() if path[2] == z) / sum(weights.values())
        assert abs((drawn[:, 2] == z).mean() - share) < 0.05


def test_known_and_fixed_ends(tmp_path: Any) -> None:
    x = [np.array([0, 1, 1]), np.array([1]), np.array([0, 0, 1, 1])]
    for algorithm in ("em", "sgd"):
        model = chain(fixed=("end",), max_iter=3, tol=None).fit(x, algorithm=algorithm)  # type: ignore[arg-type]
        np.testing.assert_allclose(model.end_, END, rtol=1e-12)
    before = model.score(x)
    model.model_.save_pretrained(tmp_path)
    model.model_ = FrameModel.from_pretrained(tmp_path)
    assert model.score(x) == before
    model.end_ = [1.0, 0.0, 0.5]
    np.testing.assert_array_equal(model.end_, [1.0, 0.0, 0.5])
    assert np.isfinite(model.score(x))
    model.end_ = [0.0, 0.0, 0.0]
    assert model.score(x) == -np.inf
    with pytest.raises(DomainError, match="never ends"):
        model.sample()
    with pytest.raises(DomainError, match=r"outside 0\.\.1"):
        model.end_ = [0.5, 1.5, 0.0]
    with pytest.raises(DomainError, match="end_prior is given"):
        HMM(2, end_prior=(1, 2), observations="categorical").fit(x)
    with pytest.raises(DomainError, match="ends and censored"):
        HSMM(2, ends=True, censored=True, max_duration=2, observations="categorical").fit(x)
    with pytest.raises(DomainError, match="ends is"):
        HMM(2, ends="free", observations="categorical").fit(x)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="no end_"):
        HMM(2, observations="categorical", random_state=0).fit(x * 5).end_  # noqa: B018
