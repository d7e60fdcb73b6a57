"""Model selection finds the truth it was drawn from, by each criterion; its table and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.errors import DomainError
from rankfold.estimators import HMM, select
from rankfold.plots.selection import plot_selection


def drawn() -> list[Any]:
    """Two states with correlated features."""
    rng = np.random.default_rng(0)
    states = [np.repeat([0, 1, 0, 1], [15, 12, 10, 14]) for _ in range(6)]
    mix = np.array([[1.0, 0.9], [0.0, 0.5]])
    return [np.array([[0.0, 0.0], [3.0, -2.0]])[y] + rng.standard_normal((len(y), 2)) @ mix for y in states]


@pytest.mark.parametrize("criterion", ["bic", "held_out"])
def test_the_truth_is_selected(criterion: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = drawn()
    settings = {"n_states": [1, 2, 3], "covariance_type": ["diag", "full"]}
    found = select(HMM(random_state=0, max_iter=30), x, settings, criterion=criterion, n_init=2, verbose=True)
    assert found.candidates[found.best_index].settings == {"n_states": 2, "covariance_type": "full"}
    assert found.best.n_states == 2
    assert found.best.predict(x[0]).shape == (51,)
    assert len(found.candidates) == 6
    assert capsys.readouterr().err.count(criterion) == 6
    table = str(found).splitlines()
    assert len(table) == 7
    assert [line.startswith("*") for line in table].index(True) == found.best_index + 1
    best = found.candidates[found.best_index]
    if criterion == "bic":
        assert best.bic == pytest.approx(found.best.bic(x))
        assert best.held_out is None
    else:
        assert best.held_out == max(one.held_out for one in found.candidates if one.held_out is not None)
    picture = plot_selection(found, tmp_path / "choice.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_arrays_and_lengths_and_symbols() -> None:
    x = drawn()
    together = select(HMM(random_state=0), np.concatenate(x), {"n_states": [1, 2]}, lengths=[len(s) for s in x])
    apart = select(HMM(random_state=0), x, {"n_states": [1, 2]})
    assert [a.bic for a in together.candidates] == pytest.approx([b.bic for b in apart.candidates])
    symbols = HMM(observations="categorical", random_state=0, smoothing=0.1)
    assert len(select(symbols, ["abab", "aabb", "ba"], {"n_states": [1, 2]}, criterion="aic", n_init=1).candidates) == 2


@pytest.mark.parametrize("criterion", ["aic", "held_out"])
def test_inputs_go_with_their_sequences(criterion: Any) -> None:
    """Choices that follow an input in one state and oppose it in the other: two states, given inputs in either form."""
    rng = np.random.default_rng(0)
    u = [rng.standard_normal((60, 1)) for _ in range(6)]
    side = np.repeat([4.0, -4.0, 4.0], 20)[:, None]
    y = [(rng.random((60, 1)) < 1 / (1 + np.exp(-side * one))).astype(int) for one in u]
    model = HMM(observations="logistic", input_prior=0.1, sticky=5.0, max_iter=30, random_state=0)
    apart = select(model, y, {"n_states": [1, 2]}, criterion=criterion, inputs=u)
    assert apart.best.n_states == 2
    assert apart.best.predict(y[0], inputs=u[0]).shape == (60,)
    if criterion == "aic":
        stacked = {"lengths": [60] * 6, "inputs": np.concatenate(u)}
        together = select(model, np.concatenate(y), {"n_states": [1, 2]}, criterion=criterion, **stacked)
        assert [a.aic for a in together.candidates] == pytest.approx([b.aic for b in apart.candidates])


@pytest.mark.parametrize("criterion", ["bic", "aic", "held_out"])
def test_labels_go_with_their_sequences(criterion: Any) -> None:
    """Every criterion is that of frames and labels; one array for all is cut by lengths."""
    x, rng = drawn(), np.random.default_rng(1)
    labels = [np.where(rng.random(len(one)) < 0.3, np.repeat([1, 0, 1, 0], [15, 12, 10, 14]), -1) for one in x]
    model, settings = HMM(max_iter=30, random_state=0), {"n_states": [2, 3]}
    given: dict[str, Any] = {"criterion": criterion, "share": 0.3, "n_init": 1}
    apart = select(model, x, settings, labels=labels, **given)
    lengths = [len(one) for one in x]
    together = select(model, np.concatenate(x), settings, labels=np.concatenate(labels), lengths=lengths, **given)
    assert [str(one) for one in together.candidates] == [str(one) for one in apart.candidates]
    seen = 4 if criterion == "held_out" else 6
    for one in apart.candidates:
        own = HMM(one.settings["n_states"], max_iter=30, random_state=0).fit(x[:seen], labels=labels[:seen])
        assert one.log_likelihood == pytest.approx(own.score(x[:seen], labels=labels[:seen]))
        assert one.bic == own.bic(x[:seen], labels=labels[:seen]) > own.bic(x[:seen])
        assert one.aic == own.aic(x[:seen], labels=labels[:seen]) > own.aic(x[:seen])
        if criterion == "held_out":
            assert one.held_out == own.score(x[4:], labels=labels[4:]) / sum(lengths[4:])
    with pytest.raises(ValueError, match="labels of 7 sequences for 6"):
        select(model, x, settings, labels=[*labels, labels[0]])


@pytest.mark.parametrize(
    ("settings", "choices", "says"),
    [
        ({}, {}, "at least one with at least one value"),
        ({"n_states": []}, {}, "at least one with at least one value"),
        ({"n_statez": [2]}, {}, "settings have 'n_statez', but HMM has n_states, "),
        ({"n_states": [2]}, {"inputs": [np.zeros((2, 1))]}, "inputs"),
        ({"n_states": [2]}, {"criterion": "loo"}, "criterion is 'loo'"),
        ({"n_states": [2]}, {"criterion": "held_out", "share": 1.5}, "share is 1.5"),
    ],
)
def test_refused(settings: Any, choices: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        select(HMM(input_driven="transition" if "inputs" in choices else ()), drawn(), settings, **choices)
    with pytest.raises(ValueError, match="a single sequence came"):
        select(HMM(), drawn()[0], {"n_states": [1]}, criterion="held_out")


@pytest.mark.parametrize("values", [3, "full"])
def test_settings_are_lists(values: Any) -> None:
    with pytest.raises(DomainError, match=r"a list of values was expected: \["):
        select(HMM(), np.zeros((4, 1)), {"n_states": values})
    x = np.random.default_rng(0).standard_normal((30, 1))
    assert len(select(HMM(max_iter=2, random_state=0), x, {"n_states": iter([1, 2])}, n_init=1).candidates) == 2
