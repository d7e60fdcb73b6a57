"""Runs of `rankfold train` with the observations of everyday HMMs, by EM and by gradients; saved, asked, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DataError, DomainError
from rankfold.models.catalog import build_model
from rankfold.models.config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.training.loop import train
from tests.estimators.observation_cases import counts, measured, mixed, often_last, often_zero, positive
from tests.training.recordings import tiny
from tests.training.runs import metrics

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "poisson": (counts, {"observations": "poisson"}),
    "full": (measured, {"covariance": "full"}),
    "student_t": (measured, {"observations": "student_t", "covariance": "full"}),
    "log_normal": (positive, {"observations": "log_normal", "covariance": "full"}),
    "negative_binomial": (counts, {"observations": "negative_binomial"}),
    "zero_inflated_gamma": (often_zero(positive), {"observations": "zero_inflated_gamma"}),
    "product_positive": (often_last, {"observations": "product", "columns": ("log_normal",) * 2 + ("exponential",)}),
    "regression": (measured, {"observations": "regression", "num_covariates": 1}),
    "autoregressive": (measured, {"observations": "autoregressive", "order": 2}),
    "autoregressive_student_t": (measured, {"observations": "autoregressive_student_t", "covariance": "full"}),
    "product": (mixed, {"observations": "product", "columns": ("gaussian", "gaussian", "poisson", "categorical:4")}),
    "factorial": (measured, {"observations": "additive_gaussian", "chains": (2, 2), "num_states": 4}),
    "hierarchical": (measured, {"parents": (-1, 0, 0, -1), "num_states": 3}),
}


@pytest.mark.parametrize("optimizer", ["adam", "em"])
@pytest.mark.parametrize("name", KINDS)
def test_a_run_trains_it(name: str, optimizer: str, tmp_path: Path) -> None:
    make, settings = KINDS[name]
    np.savez(tmp_path / "frames.npz", *make())
    of_segments = optimizer == "em" and "num_states" not in settings
    settings = {"num_states": 2, "family": "hsmm" if of_segments else "frame_hmm", **settings}
    config = tiny(optimizer=optimizer, max_duration=6, log_every=1, **settings)
    result = train(config, tmp_path / "frames.npz", tmp_path / "run")
    values = [record["train_nats"] for record in metrics(result.run) if "train_nats" in record]
    assert values[-1] < values[0]
    model = FrameModel.from_pretrained(tmp_path / "run" / "best")
    assert model.config.observations == settings.get("observations", "gaussian")
    batch = model.batch([x.astype(np.float32) for x in make()])
    assert bool(torch.isfinite(model.log_likelihood(batch)).all())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chains": (2, 3), "num_states": 4}, r"chains = \[2, 3\] make 6"),
        ({"parents": (-1, 0, 0, -1), "num_states": 4}, r"make 3"),
        ({"parents": (1, -1), "num_states": 1}, "every node comes after its parent"),
        ({"chains": (2, 2), "parents": (-1,), "num_states": 4}, "not both"),
        ({"chains": (2, 2), "num_states": 4, "family": "hsmm"}, 'family = "frame_hmm"'),
        ({"chains": (4, 0), "num_states": 4}, "at least one state"),
    ],
)
def test_structures_that_do_not_fit(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DomainError, match=words):
        build_model(FrameConfig(num_features=2, **{"family": "frame_hmm", **settings}))


def test_recordings_it_cannot_observe(tmp_path: Path) -> None:
    x = counts()
    x[1][2, 1] = -1.0
    np.savez(tmp_path / "frames.npz", *x)
    with pytest.raises(
        DataError, match=r"recording 'arr_1', row 2: feature 1 is -1, but poisson observations are whole"
    ):
        train(tiny(observations="poisson", num_states=2, max_duration=6), tmp_path / "frames.npz", tmp_path / "run")
    y = measured()
    y[2][3] = np.nan
    np.savez(tmp_path / "gaps.npz", *y)
    with pytest.raises(DataError, match="a missing lag cannot be summed out"):
        train(
            tiny(observations="autoregressive", num_states=2, max_duration=6), tmp_path / "gaps.npz", tmp_path / "run"
        )
