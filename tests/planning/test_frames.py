"""Plans of models of frames: what they say of one another, not what a machine does."""

from dataclasses import replace
from typing import Any

import pytest

from rankfold.models import build_model
from rankfold.models.config import FrameConfig
from rankfold.planning.chains import ChainSizes, chain_plan
from rankfold.planning.cost import Plan


def plan(batch: int = 2, length: int = 50, device: str = "cuda", **changes: Any) -> Plan:
    sizes = ChainSizes(64, None, 1000, num_features=12, gaussian=True, max_duration=20)._replace(**changes)
    return chain_plan(sizes, batch, length, device, "float32").best


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
    """One launch on a GPU, unless the window, the maps or a block are too large."""
    for one in (plan(), plan(rank=16), plan(may_repeat=False), plan(rank=16, may_repeat=False)):
        assert kernels(one)["segments"] == "triton"
    blocks = {"num_states": 1024, "rank": 16, "may_repeat": False}
    assert kernels(plan(**blocks))["segments"] == "triton"
    for changes in ({"max_duration": 2000}, {"num_states": 2048}, {**blocks, "num_states": 8192}):
        assert kernels(plan(**changes))["segments"] == "torch"
    assert kernels(plan(device="cpu", **blocks))["segments"] == "torch"
    assert kernels(plan(**{**blocks, "rank": 150}))["segments"] == "torch"  # of more states than a program holds
    assert "segments" not in kernels(plan(max_duration=0))


def test_a_product_by_blocks_costs_more() -> None:
    for device in ("cpu", "cuda"):
        whole, apart = (plan(device=device, num_states=8192, rank=16, may_repeat=x) for x in (True, False))
        assert apart.multiply_adds > whole.multiply_adds
        assert apart.seconds > whole.seconds


def test_long_sequences_hold_a_stretch_at_a_time() -> None:
    config = FrameConfig(family="hsmm", num_states=64, num_features=4, max_duration=20)
    model = build_model(config)
    cut = model.plan(1, 200_000).best
    whole = model.plan(1, 200_000, whole=True).best
    assert cut.peak_bytes < whole.peak_bytes / 3
    assert cut.peak_bytes > 200_000 * 64 * 4 * 2  # log-densities and their gradient
    assert model.plan(1, 1000) == model.plan(1, 1000, whole=True)
    chain = build_model(FrameConfig(family="frame_hmm", num_states=64, num_features=4))
    assert chain.plan(1, 200_000).best.peak_bytes > 1.9 * chain.plan(1, 100_000).best.peak_bytes


@pytest.mark.parametrize("family", ["hsmm", "lhsmm", "rank_hsmm", "frame_hmm", "frame_lhmm"])
def test_a_model_knows_its_plan(family: Any) -> None:
    config = FrameConfig(family=family, num_states=32, rank=4, num_features=5)
    model = build_model(config)
    found = model.plan(3, 40, "cpu").best
    assert found.tokens == 120
    assert found.parameters == model.num_parameters
    assert ("segments" in kernels(found)) == config.has_segments


@pytest.mark.parametrize(
    ("summed_states", "num_states", "neural", "mebibytes"),
    [(8192, 1024, False, 294), (8192, 1024, True, 173), (512, 4096, False, 74), (512, 4096, True, 49)],
)
def test_rank_space_counts_the_states_that_are_summed_out(
    summed_states: int, num_states: int, neural: bool, mebibytes: int
) -> None:
    """Peaks of a CPU in MiB (2026-11-18), one sequence of 8 symbols: a bound, within 1.3 times."""
    config = FrameConfig(
        family="rank_hsmm", observations="categorical", num_features=2, num_states=num_states, max_duration=3, dim=32
    )
    model = build_model(replace(config, summed_states=summed_states, neural=neural))
    assert mebibytes < model.plan(1, 8).best.peak_bytes / 2**20 < 1.3 * mebibytes


def test_rank_space_multiplies_out_where_states_are_more_than_ranks() -> None:
    through = [plan(summed_states=num) for num in (16, 63, 64, 4096)]
    assert ["V^T U" in kernels(one) for one in through] == [False, False, True, True]
    assert [one.seconds for one in through] == sorted(one.seconds for one in through)
    assert plan(summed_states=64).multiply_adds > plan().multiply_adds


@pytest.mark.parametrize(
    ("settings", "step", "evaluation"),
    [
        ({"covariance": "full"}, 90.6, 37.2),
        ({"covariance": "tied"}, 89.6, 36.8),
        ({"observations": "gaussian_mixture", "covariance": "full"}, 180.0, 73.8),
        ({"observations": "student_t"}, 74.5, 3.4),
        ({"observations": "student_t", "covariance": "full"}, 101.7, 38.2),
        ({"observations": "autoregressive"}, 91.7, 72.6),
        ({"observations": "autoregressive_student_t"}, 100.7, 74.0),
    ],
    ids=str,
)
def test_densities_that_are_no_products_take_more(settings: Any, step: float, evaluation: float) -> None:
    """Peaks of a CPU in MiB (2026-11-17, 2026-11-19), 48 states, 24 features, 2,000 frames: never less is planned."""
    config = FrameConfig(family="frame_hmm", num_states=48, num_features=24, **settings)
    plan = build_model(config).plan(4, 500).best
    assert 0.97 * step < 2000 * plan.token_bytes / 2**20 < 1.5 * step
    assert evaluation < 2000 * plan.eval_token_bytes / 2**20
