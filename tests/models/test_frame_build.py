"""Fresh models of frames: every choice builds, learns, saves and loads; what the papers begin with; what is refused."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rankfold
from rankfold import DataError, DomainError, UnsupportedError
from rankfold.data.batch import Batch
from rankfold.data.frame_space import FrameSpace
from rankfold.data.frames import frames_of
from rankfold.models import FrameConfig, FrameModel, build_model
from rankfold.models.config import readers
from rankfold.params.observations import BernoulliObservation, GaussianObservation
from tests.oracles import frames as oracle

SMALL = FrameConfig(num_states=5, num_features=4, rank=3, max_duration=6, dim=8, num_layers=1)
CHOICES = [
    {"family": family, "observations": kind, "neural": neural, "init": init}
    for family in ("frame_hmm", "frame_lhmm", "hsmm", "lhsmm")
    for kind in ("gaussian", "bernoulli", "categorical")
    for neural in (False, True)
    for init in ("spread", "papers")
]
every_choice = pytest.mark.parametrize("choices", CHOICES, ids=lambda x: "-".join(map(str, x.values())))


def some_frames(model: FrameModel) -> Batch:
    g = torch.Generator().manual_seed(1)
    return model.batch([x.numpy() for x, _ in model.sample([7, 5, 1], generator=g)])


@every_choice
def test_builds_and_learns(choices: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, **choices)
    model = build_model(config, seed=3)
    same = build_model(config, seed=3)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), same.parameters(), strict=True))
    batch = some_frames(model)
    before = model.log_likelihood(batch)
    assert bool(before.isfinite().all())
    before.sum().backward()
    for name, x in model.named_parameters():
        assert x.grad is not None, name
        assert bool(x.grad.isfinite().all()), name
    moves = model.parts().transition.to_dense()
    torch.testing.assert_close(moves.sum(1), torch.ones(5), rtol=1e-5, atol=0)
    assert bool((moves.diagonal() == 0).all()) == config.has_segments


@every_choice
def test_round_trip(choices: dict[str, Any], tmp_path: Path) -> None:
    model = build_model(dataclasses.replace(SMALL, **choices)).double()
    model.save_pretrained(tmp_path)
    loaded = FrameModel.from_pretrained(tmp_path)
    assert loaded.config == model.config
    batch = some_frames(model)
    assert torch.equal(loaded.log_likelihood(batch), model.log_likelihood(batch))
    assert loaded.space is None


def test_space_is_kept(tmp_path: Path) -> None:
    frames = frames_of([np.arange(12.0).reshape(3, 4)], feature_names=["a", "b", "c", "d"])
    model = build_model(SMALL)
    model.space = FrameSpace.of(frames)
    model.save_pretrained(tmp_path)
    assert FrameModel.from_pretrained(tmp_path).space == model.space
    content = json.loads((tmp_path / "frames.json").read_text())
    (tmp_path / "frames.json").write_text(
        json.dumps(content | {"num_features": 3, "mean": None, "scale": None, "feature_names": None})
    )
    with pytest.raises(DataError, match="3 features, but the model of 4"):
        FrameModel.from_pretrained(tmp_path)


def test_words_and_frames_are_told_apart(tmp_path: Path) -> None:
    build_model(SMALL).save_pretrained(tmp_path / "frames")
    with pytest.raises(UnsupportedError, match="a model of frames"):
        rankfold.models.load_model(tmp_path / "frames")
    rankfold.models.build_model(rankfold.models.ModelConfig(family="hmm", num_states=2), 3).save_pretrained(
        tmp_path / "words"
    )
    with pytest.raises(UnsupportedError, match="holds a HMM"):
        FrameModel.from_pretrained(tmp_path / "words")


def test_tables_survive_the_disk(tmp_path: Path) -> None:
    """Zeros and certain features too."""
    start = torch.tensor([1.0, 0.0]).log()
    moves = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    probability = torch.tensor([[0.0, 0.3], [1.0, 0.5]])
    model = FrameModel.from_tables(start, moves, probability=probability, log_rate=torch.zeros(2), max_duration=3)
    model.save_pretrained(tmp_path)
    loaded = FrameModel.from_pretrained(tmp_path)
    batch = model.batch([np.array([[0, 1], [1, 0], [1, 1]])])
    found = loaded.log_likelihood(batch)
    assert torch.equal(found, model.log_likelihood(batch))
    assert bool(found.isfinite())


def test_the_papers_hsmm_begins_alike() -> None:
    """Uniform moves, rate 1, one mean; only the first segment's state was drawn, from U(0, 1)."""
    config = dataclasses.replace(
        SMALL, init="papers", tied_variance=True, self_transitions=True, normalised_durations=False
    )
    model = build_model(config)
    rng = np.random.default_rng(0)
    frames = frames_of([rng.normal(3.0, 2.0, (30, 4)) for _ in range(3)])
    model.move_to(frames)
    parts = model.parts()
    torch.testing.assert_close(parts.transition.to_dense(), torch.full((5, 5), 0.2))
    assert parts.log_duration is not None
    expected = oracle.poisson(0.0, 6, normalised=False)
    torch.testing.assert_close(parts.log_duration, torch.tensor(expected).float().expand(5, 6))
    assert isinstance(model.observation, GaussianObservation)
    everything = np.concatenate(list(frames))
    mean, variance = (torch.from_numpy(x(everything, axis=0)).float() for x in (np.mean, np.var))
    torch.testing.assert_close(model.observation.mean.detach(), mean.expand(5, 4))
    torch.testing.assert_close(model.observation.variance.detach(), variance)
    logits = model.dynamics.log_initial.detach()
    assert bool(((logits >= 0) & (logits < 1)).all())
    assert len(set(logits.tolist())) == 5


def test_spread_means_follow_the_frames() -> None:
    model = build_model(SMALL)
    assert isinstance(model.observation, GaussianObservation)
    drawn = model.observation.mean.detach().clone()
    frames = frames_of([np.array([[0.0, 1, 2, 3], [2, 3, 2, 9], [np.nan] * 4])])
    model.move_to(frames)
    spread = torch.tensor([1.0, 1.0, 0.0, 3.0])
    torch.testing.assert_close(model.observation.mean.detach(), torch.tensor([1.0, 2.0, 2.0, 6.0]) + drawn * spread)
    floor = 2 * SMALL.min_variance
    torch.testing.assert_close(model.observation.variance.detach()[0], torch.tensor([1.0, 1.0, floor, 9.0]))
    assert bool(model.observation.log_spread.detach().isfinite().all())


def test_log_odds_follow_the_frames() -> None:
    model = build_model(dataclasses.replace(SMALL, observations="bernoulli", init="papers"))
    model.move_to(frames_of([np.array([[0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0]])]))
    assert isinstance(model.observation, BernoulliObservation)
    shares = torch.tensor([1 / 5, 4 / 5, 3 / 5, 3 / 5])
    torch.testing.assert_close(torch.sigmoid(model.observation.logit.detach()), shares.expand(5, 4))


def test_variances_have_a_floor_and_a_prior() -> None:
    config = dataclasses.replace(SMALL, min_variance=0.25, variance_prior=3.0)
    model = build_model(config).double()
    assert isinstance(model.observation, GaussianObservation)
    with torch.no_grad():
        model.observation.log_spread.fill_(-50.0)
        model.observation.log_spread[0, 0] = float("-inf")
    assert model.observation.variance.min().item() == 0.25
    v = model.observation.variance.detach()
    torch.testing.assert_close(model.log_prior().detach(), -1.5 * (v.log() + 1 / v).sum())
    assert build_model(SMALL).log_prior().item() == 0.0


@pytest.mark.parametrize("kind", ["exact", "bernoulli"])
@pytest.mark.parametrize("family", ["frame_hmm", "frame_lhmm"])
@pytest.mark.parametrize("neural", [False, True])
def test_dropout_by_index_and_by_mask_agree(kind: Any, family: Any, neural: bool) -> None:
    """The same seed drops the same states whether they leave the tables or lose their mass."""
    config = dataclasses.replace(SMALL, family=family, state_dropout=0.4, state_dropout_kind=kind, neural=neural)
    model = build_model(config).double()
    batch = some_frames(model)
    taken, masked = (
        parts(torch.Generator().manual_seed(5)) for parts in (model.parts, lambda g: model._parts(g, masked=True))
    )
    assert taken.kept is not None
    assert masked.log_mask is not None
    assert 1 <= len(taken.kept) < 5
    found = [model.log_z(model.potentials(batch, parts=parts)) for parts in (taken, masked)]
    # Nor do dropped states set the scale of a frame: one that fits far better would push the others into underflow.
    gone = model.potentials(batch, parts=masked).log_obs == float("-inf")
    assert gone.all(0).all(0).nonzero()[:, 0].tolist() == [z for z in range(5) if z not in taken.kept.tolist()]
    torch.testing.assert_close(*found, rtol=1e-10, atol=0)
    assert not torch.allclose(found[0], model.log_likelihood(batch))


def test_streams_carry_all_states() -> None:
    """What a step with dropout leaves is numbered by all states; the next step renormalises over its own."""
    model = build_model(dataclasses.replace(SMALL, state_dropout=0.4)).double()
    batch = some_frames(model)._replace(last=False)
    one, two = (model.parts(torch.Generator().manual_seed(seed)) for seed in (5, 6))
    carried = model.carry(model.potentials(batch, parts=one), one)
    assert carried.shape == (3, 6, 5)
    assert one.kept is not None
    assert two.kept is not None
    assert one.kept.tolist() != two.kept.tolist()
    dropped = [z for z in range(5) if z not in one.kept.tolist()]
    assert bool((carried[..., dropped] == float("-inf")).all())
    p = model.potentials(batch, parts=two, carried=carried)
    torch.testing.assert_close(p.log_initial.exp().sum((1, 2)), torch.ones(3).double())


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"num_states": 0}, "num_states is 0"),
        ({"num_states": 1}, "no state follows itself"),
        ({"num_states": 3, "state_dropout": 0.6}, "no state follows itself"),
        ({"state_dropout": 0.1, "state_dropout_kind": "bernoulli"}, "bernoulli"),
        ({"min_variance": -1.0}, "min_variance is -1"),
        ({"variance_prior": float("inf")}, "variance_prior is inf"),
        ({"feature_dropout": 1.0}, "feature_dropout is 1"),
        ({"normalised_durations": False, "durations": "categorical"}, 'only "poisson" may lose mass'),
        ({"max_duration": 0}, "max_duration is 0"),
        ({"observations": "cauchy"}, "observations is .cauchy."),
    ],
)
def test_settings_that_are_refused(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(DomainError, match=words):
        dataclasses.replace(SMALL, **choices)


def test_widths_come_from_the_data() -> None:
    config = dataclasses.replace(SMALL, num_features=0)
    with pytest.raises(DomainError, match="num_features is 0"):
        build_model(config)
    assert rankfold.models.build_model(config, 7).config.num_features == 7
    with pytest.raises(DomainError, match="is 4, but the frames have 7"):
        rankfold.models.build_model(SMALL, 7)


def test_settings_that_a_family_does_not_read() -> None:
    assert readers(SMALL, "rank") == ("frame_lhmm", "lhsmm")
    assert readers(SMALL, "max_duration") is None


class NoLook(TorchDispatchMode):
    """Refuses whatever a captured graph cannot do: read a value, or make a shape of values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket not in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero), func
        return func(*args, **(kwargs or {}))


@every_choice
@pytest.mark.parametrize("kind", ["exact", "bernoulli"])
def test_potentials_without_a_look(choices: dict[str, Any], kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made as a captured graph makes them, they are the same."""
    repeat = True if kind == "bernoulli" else None
    config = dataclasses.replace(
        SMALL, **choices, state_dropout=0.3, state_dropout_kind=kind, self_transitions=repeat, feature_dropout=0.3
    )
    model = build_model(config)
    batch = some_frames(model)
    expected = model.log_likelihood(batch, generator=torch.Generator().manual_seed(2))
    for name, module in list(sys.modules.items()):
        if name.startswith("rankfold") and hasattr(module, "may_look"):
            monkeypatch.setattr(module, "may_look", lambda _: False)
    with NoLook():
        parts = model.capturable_parts(torch.Generator().manual_seed(2))
        p = model.potentials(batch, parts=parts)
    monkeypatch.undo()
    torch.testing.assert_close(model.log_z(p), expected, rtol=1e-5, atol=0)
