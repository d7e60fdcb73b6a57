"""Models of frames against enumeration in plain Python, and laws."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from rankfold import DomainError, ShapeError, UnsupportedError
from rankfold.data.batch import Batch
from rankfold.data.frames import frames_of
from rankfold.decoding.viterbi import BestSegments
from rankfold.models import FrameModel
from rankfold.recursions import segments as semi_markov
from tests.models.frame_cases import CASES, build
from tests.oracles import chain

every_case = pytest.mark.parametrize("choices", CASES.values(), ids=CASES.keys())


@every_case
def test_log_likelihood(choices: dict[str, Any]) -> None:
    case = build(**choices)
    found = case.model.log_likelihood(case.batch)
    assert found.tolist() == pytest.approx(case.log_likelihoods(), rel=1e-11, abs=1e-11)


@every_case
def test_log_likelihood_in_float32(choices: dict[str, Any]) -> None:
    case = build(**choices, dtype=torch.float32)
    # Parameters are rounded to 24 bits: 6e-8 of each of about 30 terms of a sequence.
    assert case.model.log_likelihood(case.batch).tolist() == pytest.approx(case.log_likelihoods(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("kind", ["gaussian", "tied"])
@pytest.mark.parametrize("far", [1e3, 1e5])
def test_far_from_zero(kind: str, far: float) -> None:
    """The frames' own rounding is theirs: means and frames that float32 holds exactly are compared."""
    case = build(kind, far=0.0)
    model, batch = case.model, case.batch
    table = dict(zip(("mean", "variance"), model.observation(), strict=True))
    exact = {"mean": (table["mean"] * 8).round() / 8, "variance": table["variance"].float().double()}
    frames = (batch.values * 8).round() / 8
    parts = model.parts()
    transition = parts.transition.to_dense().float()
    moved = FrameModel.from_tables(
        parts.log_initial.float(), transition, mean=(exact["mean"] + far).float(), variance=exact["variance"].float()
    )
    truth = FrameModel.from_tables(parts.log_initial, parts.transition.to_dense(), **exact)
    found = moved.log_likelihood(batch._replace(values=(frames + far).float()))
    expected = truth.log_likelihood(batch._replace(values=frames))
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


@every_case
def test_state_posterior(choices: dict[str, Any]) -> None:
    case = build(**choices)
    found = case.model.posterior(case.batch)
    for i, rows in enumerate(case.log_obs):
        expected = torch.zeros(len(rows), case.model.config.num_states, dtype=torch.float64)
        weights = case.enumerated(i)
        total = chain.log_sum_exp(list(weights.values()))
        for path, weight in weights.items():
            steps = enumerate(path) if case.log_duration is None else _frames(path)
            for t, state in steps:
                expected[t, state] += math.exp(weight - total)
        torch.testing.assert_close(found[i, : len(rows)], expected, rtol=1e-9, atol=1e-12)


def _frames(segments: Any) -> list[tuple[int, int]]:
    return [(t, state) for start, end, state, _ in segments for t in range(start, end)]


@every_case
def test_segments(choices: dict[str, Any]) -> None:
    """The best path's, with the probability of each: of a chain, that its frames have that state."""
    case = build(**choices)
    table = case.model.segments(case.batch)
    best = case.model.viterbi(case.batch)
    for i, rows in enumerate(table):
        weights = _shown(case.enumerated(i)) if isinstance(best, BestSegments) else case.enumerated(i)
        total = chain.log_sum_exp(list(weights.values()))
        assert best.log_prob[i].item() == pytest.approx(max(weights.values()), rel=1e-11)
        assert [row.start for row in rows] == [0, *(row.end for row in rows[:-1])]
        assert rows[-1].end == len(case.log_obs[i])
        for row in rows:
            if isinstance(best, BestSegments):
                terms = [w for path, w in weights.items() if (row.start, row.end, row.state) in path]
            else:
                terms = [w for path, w in weights.items() if set(path[row.start : row.end]) == {row.state}]
            assert row.posterior == pytest.approx(math.exp(chain.log_sum_exp(terms) - total), rel=1e-9)


def _shown(weights: dict[Any, float]) -> dict[Any, float]:
    """Segmentations that differ only in how long a segment would have lasted beyond the end, together."""
    found: dict[Any, list[float]] = {}
    for path, weight in weights.items():
        found.setdefault(tuple(segment[:3] for segment in path), []).append(weight)
    return {path: chain.log_sum_exp(terms) for path, terms in found.items()}


GRADIENTS = {
    name: choices
    for name, choices in CASES.items()
    if choices.get("rank") != 1
    and (name.startswith(("gaussian", "cut", "rank-space")) or name.endswith("chain-dense-any"))
}


@pytest.mark.parametrize("choices", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_gradients(choices: dict[str, Any]) -> None:
    model, batch = build(**choices)[:2]
    names = [name for name, x in model.named_parameters() if bool(x.isfinite().all())]
    assert names
    values = [dict(model.named_parameters())[name].detach().requires_grad_() for name in names]

    def log_likelihood(*given: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(names, given, strict=True)), (batch,))

    assert gradcheck(log_likelihood, values, fast_mode=True)


def test_gradient_at_certain_keys() -> None:
    """Log-odds that are infinite have gradient 0; the others have that of a model without the key."""
    model, batch = build("bernoulli")[:2]
    logit = model.observation.logit
    certain = logit.detach().isinf()
    assert certain.sum() == 1
    model.log_likelihood(batch).sum().backward()
    assert logit.grad is not None
    assert logit.grad[certain].tolist() == [0.0]
    assert bool(logit.grad.isfinite().all())
    assert bool((logit.grad[~certain] != 0).all())


def test_keys_permuted() -> None:
    """Keys, and a model's and its pieces' alike, may come in any order."""
    g = torch.Generator().manual_seed(3)
    rolls = (torch.rand(5, 40, 88, generator=g) < 0.05).float()
    shape = (16, 88)
    probability = torch.rand(shape, generator=g) * 0.2
    start, transition = torch.rand(16, generator=g).softmax(0), torch.rand(16, 16, generator=g).softmax(1)
    order = torch.randperm(88, generator=g)
    lengths = torch.tensor([40, 3, 17, 40, 1])
    one = FrameModel.from_tables(start.log(), transition, probability=probability)
    other = FrameModel.from_tables(start.log(), transition, probability=probability[:, order])
    expected = one.log_likelihood(Batch(rolls, lengths))
    found = other.log_likelihood(Batch(rolls[:, :, order], lengths))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    pieces = torch.randperm(5, generator=g)
    again = one.log_likelihood(Batch(rolls[pieces], lengths[pieces]))
    torch.testing.assert_close(again, expected[pieces], rtol=1e-6, atol=0)
    assert not torch.allclose(one.log_likelihood(Batch(rolls[:, :, order], lengths)), expected, rtol=1e-3)


@pytest.mark.parametrize("durations", [None, "poisson"])
def test_stretches_add_up(durations: str | None) -> None:
    model, batch = build("gaussian", durations, self_transitions=False)[:2]
    row = batch.values[:1]
    whole = model.log_likelihood(Batch(row, torch.tensor([4])))
    first = model.potentials(Batch(row[:, :2], torch.tensor([2]), last=False))
    rest = Batch(row[:, 2:], torch.tensor([2]), first=False)
    after = model.log_z(model.potentials(rest, carried=model.carry(first)))
    torch.testing.assert_close(model.log_z(first) + after, whole, rtol=1e-12, atol=0)


def test_samples_have_the_model_s_frequencies() -> None:
    model = build("bernoulli", "poisson", self_transitions=False)[0]
    g = torch.Generator().manual_seed(0)
    drawn = model.sample(4, num=4000, generator=g)
    states = torch.stack([states for _, states in drawn])
    frames = torch.stack([frames for frames, _ in drawn])
    nothing = Batch(torch.full((1, 4, 5), math.nan, dtype=torch.float64), torch.tensor([4]))
    expected = model.posterior(nothing)[0]
    found = torch.nn.functional.one_hot(states, 3).double().mean(0)
    # Four standard errors of a share of 4000: 0.032.
    torch.testing.assert_close(found, expected, rtol=0, atol=0.032)
    rates = expected @ torch.sigmoid(model.observation.logit.detach())
    torch.testing.assert_close(frames.mean(0), rates, rtol=0, atol=0.032)


def test_gaussian_samples() -> None:
    model = build("gaussian", num_states=1)[0]
    drawn = model.sample(4000, generator=torch.Generator().manual_seed(0))[0][0]
    mean, variance = model.observation()
    # Four standard errors: 4 sqrt(1.2 / 4000) of a mean, and sqrt(2) times that of a variance.
    torch.testing.assert_close(drawn.mean(0), mean[0], rtol=0, atol=0.07)
    torch.testing.assert_close(drawn.var(0), variance[0], rtol=0, atol=0.12)


def test_impossible_lengths_are_not_drawn() -> None:
    table = torch.tensor([[0.0, 1.0], [0.0, 1.0]]).log()
    moves = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    start, mean = torch.tensor([0.5, 0.5]).log(), torch.zeros(2, 1)
    model = FrameModel.from_tables(start, moves, mean=mean, variance=torch.ones(1), log_duration=table)
    assert len(model.sample(4)[0][1]) == 4
    with pytest.raises(DomainError, match="fills 3 frames"):
        model.sample(3)


def test_unnormalised_durations_lose_mass() -> None:
    """The sum over all lengths of what is left is the product of what each segment keeps."""
    case = build("gaussian", "lost")
    kept = torch.tensor(case.log_duration).exp().sum(1)
    assert bool((kept < 1).all())
    p = case.model.potentials(case.batch)
    assert isinstance(p, semi_markov.SegmentPotentials)
    torch.testing.assert_close(p.log_duration.exp().sum(1), kept.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("frames", "kind", "words"),
    [
        (torch.zeros(1, 2, 4), ShapeError, "f = 5"),
        (torch.zeros(1, 2, dtype=torch.int64), ShapeError, "floats"),
        (torch.full((1, 2, 5), math.inf), DomainError, "sequence 0, frame 0, feature 0 is inf"),
    ],
)
def test_frames_that_are_refused(frames: torch.Tensor, kind: type[Exception], words: str) -> None:
    model = build("gaussian")[0]
    with pytest.raises(kind, match=words):
        model.log_likelihood(Batch(frames, torch.tensor([2])))


def test_values_that_are_refused() -> None:
    keys, symbols = build("bernoulli")[0], build("categorical")[0]
    frames = torch.zeros(1, 2, 5)
    frames[0, 1, 2] = 0.5
    with pytest.raises(DomainError, match=r"frame 1, feature 2 is 0\.5"):
        keys.log_likelihood(Batch(frames, torch.tensor([2])))
    with pytest.raises(DomainError, match="a symbol is 4, but this model knows 0 to 3"):
        symbols.log_likelihood(Batch(torch.tensor([[0, 4]]), torch.tensor([2])))


def test_tables_that_are_refused() -> None:
    start, moves = torch.tensor([0.5, 0.5]).log(), torch.full((2, 2), 0.5)
    mean, variance = torch.zeros(2, 1), torch.ones(2, 1)
    given = {"mean": mean, "variance": variance}
    with pytest.raises(UnsupportedError, match="one kind of observations"):
        FrameModel.from_tables(start, moves)
    with pytest.raises(UnsupportedError, match="one kind of durations"):
        FrameModel.from_tables(start, moves, **given, log_rate=start, log_duration=moves.log())
    with pytest.raises(DomainError, match="longest duration"):
        FrameModel.from_tables(start, moves, **given, log_rate=start)
    with pytest.raises(DomainError, match="goes to itself"):
        FrameModel.from_tables(start, moves, **given, self_transitions=False)
    with pytest.raises(DomainError, match="min_variance = 2"):
        FrameModel.from_tables(start, moves, **given, min_variance=2.0)
    with pytest.raises(DomainError, match="above 0"):
        FrameModel.from_tables(start, moves, mean=mean, variance=torch.zeros(2, 1))
    with pytest.raises(UnsupportedError, match="float64"):
        FrameModel.from_tables(start, moves, mean=mean.double(), variance=variance.double())


def test_an_impossible_sequence_has_no_segments() -> None:
    start, moves = torch.tensor([1.0, 0.0]).log(), torch.eye(2)
    probability = torch.tensor([[0.0, 0.5], [1.0, 0.5]])
    model = FrameModel.from_tables(start, moves, probability=probability)
    batch = model.batch([np.array([[0, 1], [0, 0]]), np.array([[0, 1], [1, 0]])])
    assert model.log_likelihood(batch).tolist() == pytest.approx([2 * math.log(0.5), -math.inf])
    rows, none = model.segments(batch)
    assert [(row.start, row.end, row.state) for row in rows] == [(0, 2, 0)]
    assert rows[0].posterior == pytest.approx(1.0)
    assert none == []
    assert model.states(batch).tolist() == [[0, 0], [-1, -1]]


def test_batches_of_a_model() -> None:
    """Arrays, one array, frames with labels, symbols; in the model's dtype."""
    model, symbols = build("gaussian", dtype=torch.float32)[0], build("categorical")[0]
    arrays = [np.zeros((3, 5)), np.ones((2, 5))]
    batch = model.batch(arrays, labels=[np.array([0, 1, -1]), np.array([2, 2])])
    assert batch.values.dtype == torch.float32
    assert batch.labels is not None
    assert batch.labels.tolist() == [[0, 1, -1], [2, 2, -1]]
    assert model.batch(arrays[0]).lengths.tolist() == [3]
    frames = frames_of(arrays, labels=[np.zeros(3, int), np.ones(2, int)])
    assert model.batch(frames).labels is not None
    with pytest.raises(UnsupportedError, match="own labels"):
        model.batch(frames, labels=frames.labels)
    with pytest.raises(ShapeError, match="f = 5"):
        model.batch([np.zeros((3, 4))])
    assert symbols.batch([[0, 1], [3]]).values.tolist() == [[0, 1], [3, -1]]
    assert symbols.batch(np.array([0, 1]), labels=np.array([2, -1])).labels.tolist() == [[2, -1]]
    with pytest.raises(DomainError, match="a symbol is 4"):
        symbols.batch([[0, 4]])
