"""The rate of every update, against the definitions written out in plain Python."""

import math
from pathlib import Path
from typing import Any

import pytest

from rankfold.training.config import TrainConfig
from rankfold.training.loop import train
from rankfold.training.schedule import Plateau, learning_rate, warmup_warnings
from tests.training.runs import StopAfter, tiny, write_corpus


def restated(update: int, name: str, lr: float, min_lr: float, warmup: int, updates: int) -> float:
    """A ramp to the full rate, then the curve over what is left of the run."""
    if update < warmup:
        return lr * (update + 1) / (warmup + 1)
    if name in ("constant", "plateau"):
        return lr
    done = (update - warmup) / (updates - warmup)
    height = {"linear": 1 - done, "cosine": 0.5 + 0.5 * math.cos(done * math.pi)}[name]
    return min_lr + height * (lr - min_lr)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "plateau"])
@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("min_lr", [0.0, 0.02])
def test_every_update(name: str, warmup: int, min_lr: float) -> None:
    config = TrainConfig(updates=10, lr=0.1, min_lr=min_lr, warmup=warmup, schedule=name)  # type: ignore[arg-type]
    found = [learning_rate(update, config, Plateau()) for update in range(10)]
    # A handful of roundings in float64.
    assert found == pytest.approx([restated(i, name, 0.1, min_lr, warmup, 10) for i in range(10)], rel=1e-14, abs=0)
    assert all(rate > 0 for rate in found)


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("constant", {0: 0.1, 5: 0.1, 9: 0.1, 10: 0.1}),
        ("linear", {0: 0.1, 5: 0.06, 9: 0.028, 10: 0.02}),
        ("cosine", {0: 0.1, 5: 0.06, 10: 0.02}),
        ("plateau", {0: 0.1, 5: 0.1, 9: 0.1, 10: 0.1}),
    ],
)
def test_first_middle_and_last(name: str, rates: dict[int, float]) -> None:
    config = TrainConfig(updates=10, lr=0.1, min_lr=0.02, schedule=name)  # type: ignore[arg-type]
    found = {update: learning_rate(update, config, Plateau()) for update in rates}
    assert found == pytest.approx(rates, rel=1e-14, abs=0)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "plateau"])
def test_the_ramp(name: str) -> None:
    config = TrainConfig(updates=10, lr=0.1, warmup=4, schedule=name)  # type: ignore[arg-type]
    found = [learning_rate(update, config, Plateau()) for update in range(5)]
    assert found == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1], rel=1e-14, abs=0)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_runs_of_one_update_and_ramps_beyond_the_run(name: str) -> None:
    one = TrainConfig(updates=1, lr=0.1, schedule=name)  # type: ignore[arg-type]
    assert learning_rate(0, one, Plateau()) == 0.1
    ramp = TrainConfig(updates=3, lr=0.1, warmup=9, schedule=name)  # type: ignore[arg-type]
    assert [learning_rate(i, ramp, Plateau()) for i in range(3)] == pytest.approx([0.01, 0.02, 0.03], rel=1e-14, abs=0)


@pytest.mark.parametrize(("warmup", "optimizer", "told"), [(9, "adamw", 0), (10, "adamw", 1), (10, "em", 0)])
def test_a_rise_beyond_the_run_is_told(warmup: int, optimizer: Any, told: int) -> None:
    config = TrainConfig(updates=10, lr=0.1, warmup=warmup, schedule="constant", optimizer=optimizer)
    lines = warmup_warnings(config)
    assert len(lines) == told
    assert (learning_rate(9, config, Plateau()) < 0.1) == (warmup == 10)
    assert all("train.warmup=1 would" in line for line in lines)


def test_the_log_of_a_run_tells_it(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data")
    said = StopAfter(99)
    train(tiny(warmup=500), tmp_path / "data", tmp_path / "run", report=said)
    assert any("rises for 500 updates, more than the run has" in line for line in said.said)


def seen(perplexities: list[float], config: TrainConfig) -> tuple[list[bool], list[float], Plateau]:
    plateau = Plateau()
    best, rates = [], []
    for perplexity in perplexities:
        best.append(plateau.see(perplexity, config))
        rates.append(learning_rate(100, config, plateau))
    return best, rates, plateau


def test_a_plateau_lowers_the_rate_after_its_patience() -> None:
    config = TrainConfig(lr=1.0, schedule="plateau", plateau_factor=0.5, plateau_patience=2)
    best, rates, plateau = seen([9, 8, 8, 8.5, 9, 9, 9, 9, 7, 7, 7, 7], config)
    assert best == [True, True, *[False] * 6, True, *[False] * 3]
    # Two evaluations without a better one are borne, the third is not; then the count starts again.
    assert rates == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125]
    assert (plateau.best, plateau.since_best) == (7, 3)


def test_patience_zero_lowers_at_once() -> None:
    config = TrainConfig(lr=1.0, schedule="plateau", plateau_factor=0.5, plateau_patience=0)
    assert seen([9, 9, 8, 9], config)[1] == [1, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("threshold", "rates"),
    [
        (0.0, [1, 1, 0.5, 0.25]),
        # 8.001 is worse than 8 by 0.006% of the log-likelihood: it passes, and so does 8.002 after it, and 8.003.
        (-1e-4, [1, 1, 1, 1]),
        (-5e-5, [1, 1, 0.5, 0.25]),
        (0.5, [1, 0.5, 0.25, 0.125]),  # half the log-likelihood of 9 would be 3
    ],
)
def test_a_threshold_of_the_log_likelihood(threshold: float, rates: list[float]) -> None:
    config = TrainConfig(
        lr=1.0, schedule="plateau", plateau_factor=0.5, plateau_patience=0, plateau_threshold=threshold
    )
    best, found, plateau = seen([9, 8, 8.001, 8.002], config)
    assert found == rates
    # The best model and early stopping do not mind.
    assert best == [True, True, False, False]
    assert (plateau.best, plateau.since_best) == (8, 2)


def test_a_plateau_does_not_go_below_its_floor() -> None:
    config = TrainConfig(lr=1.0, min_lr=0.2, schedule="plateau", plateau_factor=0.5, plateau_patience=0)
    assert seen([9, 9, 9, 9, 9], config)[1] == [1, 0.5, 0.25, 0.2, 0.2]


def test_other_schedules_count_and_keep_their_rate() -> None:
    config = TrainConfig(lr=1.0, schedule="constant", plateau_factor=0.5, plateau_patience=0)
    best, rates, plateau = seen([9, 9, 9], config)
    assert (best, rates) == ([True, False, False], [1, 1, 1])
    assert (plateau.since_best, plateau.scale) == (2, 1.0)


@pytest.mark.parametrize("odd", [math.inf, math.nan])
def test_an_evaluation_without_a_number_is_never_the_best(odd: float) -> None:
    config = TrainConfig(lr=1.0, schedule="plateau", plateau_factor=0.5, plateau_patience=1)
    best, rates, plateau = seen([odd, 9, odd, odd], config)
    assert best == [False, True, False, False]
    assert rates == [1, 1, 1, 0.5]
    assert plateau.best == 9


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nats_may_be_below_zero(sign: float) -> None:
    """A threshold of a tenth: 10.5 below 11 is too little, 9 is enough; of densities -10.5 after -10, then -12."""
    config = TrainConfig(schedule="plateau", plateau_patience=0, plateau_factor=0.5, plateau_threshold=0.1)
    plateau = Plateau()
    values = [11.0, 10.5, 9.0] if sign > 0 else [-10.0, -10.5, -12.0]
    best = [plateau.see(value, config, of_words=False) for value in values]
    assert best == [True, True, True]
    assert plateau.reference == values[2]
    assert plateau.scale == 0.5  # once, after the second
