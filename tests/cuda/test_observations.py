"""Every observation on a GPU: the steps of EM, gradients, samples and answers of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankfold.estimators import HMM, HSMM
from tests.estimators.observation_cases import CASES, heeded

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.filterwarnings("ignore:segments last at most")
@pytest.mark.parametrize("kind", [HMM, HSMM])
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_takes_the_same_steps(name: str, kind: type[HMM] | type[HSMM]) -> None:
    observations, make, params = CASES[name]
    x = make()
    more = {"max_duration": 5} if kind is HSMM else {}
    settings = {**params, **more, "smoothing": 0.1, **heeded(observations, variance_prior=1.0, mean_weight=0.5)}
    cpu, gpu = (
        kind(3, observations=observations, max_iter=4, tol=None, random_state=0, device=device, **settings).fit(x)
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(gpu.history_, cpu.history_, rtol=1e-8)
    assert gpu.decode(x)[0] == pytest.approx(cpu.decode(x)[0], rel=1e-7)
    inputs = np.zeros((5, params["n_inputs"])) if "n_inputs" in params else None
    assert len(gpu.sample(5, inputs=inputs, random_state=0)[1]) == 5
    for table, own in cpu.tables_.items():
        np.testing.assert_allclose(gpu.tables_[table], own, rtol=1e-5, atol=1e-8)
    again = kind(3, observations=observations, max_iter=2, random_state=0, device="cuda", **settings)
    assert np.isfinite(again.fit(x, algorithm="sgd").history_).all()
