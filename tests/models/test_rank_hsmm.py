"""The semi-Markov model in rank space: equal to the sum over states and ranks, trained by gradients and by EM."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankfold
from rankfold.decoding.counts import expected_counts
from rankfold.models import FrameConfig, FrameModel, build_model
from rankfold.params.prior import Prior
from tests.oracles import semi_markov

LONGEST = 3


def model(summed: int = 5, *, neural: bool = False, **choices: Any) -> FrameModel:
    config = FrameConfig(
        family="rank_hsmm",
        observations="categorical",
        num_features=4,
        num_states=2,
        summed_states=summed,
        max_duration=LONGEST,
        durations="categorical",
        neural=neural,
        dim=3,
        **choices,
    )
    built = build_model(config, seed=3)
    assert isinstance(built, FrameModel)
    return built.double()


def enumerated(own: FrameModel, symbols: list[int]) -> float:
    """log p, by all segmentations, all ranks of segments and all states before each: the model as it is told."""
    start, rank, state = (table.value.tolist() for table in own.dynamics.tables().values())
    p = own.potentials(own.batch([torch.tensor(symbols)]))
    assert isinstance(p, rankfold.SegmentPotentials)
    log_duration, log_obs = p.log_duration.tolist(), p.log_obs[0].tolist()
    total = []
    for cuts in itertools.product([False, True], repeat=len(symbols) - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(symbols)]
        begins = [0, *ends[:-1]]
        if max(e - b for b, e in zip(begins, ends, strict=True)) > LONGEST:
            continue
        num = len(ends)
        for ranks in itertools.product(range(2), repeat=num):
            for states in itertools.product(range(len(start)), repeat=num):
                weight = math.log(start[states[0]])
                for k, (b, e) in enumerate(zip(begins, ends, strict=True)):
                    weight += math.log(rank[states[k]][ranks[k]]) + log_duration[ranks[k]][e - b - 1]
                    weight += sum(log_obs[t][ranks[k]] for t in range(b, e))
                    if k + 1 < num:
                        weight += math.log(state[states[k + 1]][ranks[k]])
                total.append(weight)
    return semi_markov.log_sum_exp(total)


@pytest.mark.parametrize("neural", [False, True])
@pytest.mark.parametrize("summed", [1, 3])
def test_the_sum_is_that_over_states_and_ranks(summed: int, neural: bool) -> None:
    own = model(summed, neural=neural)
    for symbols in ([2], [0, 3, 1, 1]):
        found = own.log_likelihood(own.batch([torch.tensor(symbols)]))
        assert found.item() == pytest.approx(enumerated(own, symbols), abs=1e-10)


def test_it_is_the_low_rank_model_of_ranks_and_states_interchanged() -> None:
    own = model(5)
    start, rank, state = (table.value for table in own.dynamics.tables().values())
    p = own.potentials(own.batch([torch.tensor([0, 3, 1, 1, 2, 0])]))
    other = p._replace(
        log_initial=torch.log(start @ rank), transition=rankfold.LowRank(state.mT.contiguous(), rank.mT.contiguous())
    )
    assert rankfold.log_z(p).item() == pytest.approx(rankfold.log_z(other).item(), abs=1e-10)


def test_gradients() -> None:
    own = model(3)
    batch = own.batch([torch.tensor([0, 3, 1, 1, 2]), torch.tensor([1, 2])])
    parameters = dict(own.named_parameters())

    def value(*tensors: torch.Tensor) -> torch.Tensor:
        replaced = dict(zip(parameters, tensors, strict=True))
        return torch.func.functional_call(own, replaced, (batch,))  # type: ignore[no-any-return]

    own.forward = own.log_likelihood  # type: ignore[method-assign]
    inputs = tuple(p.detach().requires_grad_() for p in parameters.values())
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("optimizer", ["adam", "em"])
def test_it_is_trained_saved_and_loaded(optimizer: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [np.repeat(rng.permutation(3), rng.integers(2, 5, 3)) for _ in range(24)]
    noise = [run[:, None] * 3.0 + rng.normal(size=(len(run), 2)) for run in runs]
    settings = ["model.family=rank_hsmm", "model.num_states=3", "model.summed_states=7", "model.max_duration=6"]
    settings += [f"train.optimizer={optimizer}", "train.updates=12", "train.evaluate_every=4", "model.init=kmeans"]
    result = rankfold.train(
        "segment-hsmm", {"train": noise, "valid": noise}, tmp_path / "run", settings=settings, quiet=True
    )
    curve = [record["valid_nats"] for record in result.metrics if record.get("valid_nats") is not None]
    assert curve[-1] < curve[0]
    loaded = rankfold.load(tmp_path / "run")
    assert loaded.config.family == "rank_hsmm"
    assert len(loaded.dynamics.tables()["start"].value) == 7


def test_em_never_decreases_the_likelihood() -> None:
    own = model(4)
    batch = own.batch([torch.tensor([0, 3, 1, 1, 2]), torch.tensor([1, 2, 0, 0])])
    before = -math.inf
    for _ in range(8):
        with torch.no_grad():
            counts = expected_counts(own.potentials(batch))
        assert float(counts.log_z.sum()) >= before - 1e-12
        before = float(counts.log_z.sum())
        own.dynamics.maximise(own.dynamics.count(counts.initial, counts.transition), Prior())


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(rankfold.DomainError, match="no states left"):
        model(self_transitions=False)
    with pytest.raises(rankfold.DomainError, match="no states left"):
        model(state_dropout=0.1)
