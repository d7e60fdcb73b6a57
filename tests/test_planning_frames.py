"""Plans of models of frames: what they say of one another, not what a machine does."""

from typing import Any

import pytest

from rankfold.models.frame_config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.planning import FrameSizes, Plan, frame_plan


def plan(batch: int = 2, length: int = 50, device: str = "cuda", **changes: Any) -> Plan:
    sizes = FrameSizes(64, None, 20, 12, gaussian=True, may_repeat=True, dim=0, params=1000)._replace(**changes)
    return frame_plan(sizes, batch, length, device, "float32").best


def kernels(of: Plan) -> dict[str, str]:
    return {part.name: part.kernel for part in of.parts}


def test_more_of_anything_costs_more() -> None:
    for device in ("cpu", "cuda"):
        least = plan(device=device)
        for changes in ({"num_states": 65}, {"max_duration": 21}, {"num_features": 13}):
            more = plan(device=device, **changes)
            assert more.multiply_adds > least.multiply_adds
            assert more.seconds > least.seconds
        assert plan(batch=3, device=device).peak_bytes - least.peak_bytes == 50 * least.token_bytes > 0
        assert plan(length=51, device=device).seconds > least.seconds


def test_who_takes_the_frames() -> None:
    """One launch on a GPU, unless the window or the maps are too large or the diagonal is left out."""
    assert kernels(plan())["segments"] == "triton"
    assert kernels(plan(rank=16))["segments"] == "triton"
    assert kernels(plan(may_repeat=False))["segments"] == "triton"
    for other in (plan(device="cpu"), plan(rank=16, may_repeat=False), plan(max_duration=2000), plan(num_states=2048)):
        assert kernels(other)["segments"] == "torch"
    assert "segments" not in kernels(plan(max_duration=0))
    assert plan(rank=16, may_repeat=False).seconds > 2 * plan(rank=16).seconds


@pytest.mark.parametrize("family", ["hsmm", "lhsmm", "frame_hmm", "frame_lhmm"])
def test_a_model_knows_its_plan(family: Any) -> None:
    config = FrameConfig(family=family, num_states=32, rank=4, num_features=5)
    model = FrameModel.build(config)
    found = model.plan(3, 40, "cpu").best
    assert found.tokens == 120
    assert found.parameters == model.num_parameters
    assert ("segments" in kernels(found)) == config.has_segments
