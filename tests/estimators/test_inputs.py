"""What comes in, in the forms it comes in: positional lengths, tables with names, missing values, other objects."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DataError
from rankfold.estimators import HMM, HSMM
from tests.estimators.cases import walks

FRAMES, STATES = walks()
X = np.concatenate(FRAMES)
LENGTHS = [len(x) for x in FRAMES]


class Table:
    """As much of a DataFrame as is looked at."""

    def __init__(self, values: Any, columns: Any) -> None:
        self.values, self.columns, self.shape = np.asarray(values), columns, np.shape(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self) -> int:
        return len(self.values)


class NA:
    """As pandas' NA: no truth value, no number."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Any:
    if "pandas" not in sys.modules:
        monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(NA=NA()))  # type: ignore[arg-type]
    return sys.modules["pandas"].NA


@pytest.mark.parametrize("lengths", [LENGTHS, np.array(LENGTHS), torch.tensor(LENGTHS), tuple(LENGTHS)], ids=type)
def test_lengths_may_come_second(lengths: Any) -> None:
    """As with hmmlearn: in every method they are the lengths, and not one long sequence."""
    model = HMM(3, max_iter=4, random_state=0).fit(X, lengths)
    same = HMM(3, max_iter=4, random_state=0).fit(FRAMES)
    assert model.history_ == pytest.approx(same.history_, rel=1e-12)
    assert model.score(X, lengths) == pytest.approx(same.score(FRAMES), rel=1e-12)
    assert model.score(X, lengths) != pytest.approx(model.score(X), rel=1e-6)
    for name in ("score_samples", "predict_proba", "predict", "filter"):
        rows = getattr(same, name)(FRAMES)
        np.testing.assert_allclose(
            getattr(model, name)(X, lengths), rows if name == "score_samples" else np.concatenate(rows), atol=1e-10
        )
    assert len(model.segment(X, lengths)) == sum(map(len, same.segment(FRAMES)))
    assert model.bic(X, lengths) == pytest.approx(same.bic(FRAMES), rel=1e-12)
    model.partial_fit(X, lengths)


def test_what_is_no_lengths_is_a_target_or_refused() -> None:
    model = HMM(3, max_iter=2, random_state=0)
    target = np.arange(len(X)) % 3  # adds up to the rows, nearly; zeros are no lengths
    assert model.fit(X, target).score(X, target) == model.fit(X).score(X)
    assert model.score(X, np.arange(len(X)) / 2) == model.score(X)
    for y in ([1, 2, 3], np.array([len(X) + 1]), [len(X) / 2] * 2):
        for ask in (model.fit, model.score, model.partial_fit):
            with pytest.raises(ValueError, match=r"came as y(.|\n)*Labels of frames are labels="):
                ask(X, y)
    with pytest.raises(ValueError, match="lengths of sequences, or a target"):
        model.fit(X, np.ones(len(X), int))
    with pytest.raises(ValueError, match="came as y"):
        model.fit(FRAMES, LENGTHS)
    with pytest.raises(ValueError, match="came as y"):
        model.fit(X, 7)
    with pytest.raises(ValueError, match="came as y"):
        model.fit(X, LENGTHS, lengths=LENGTHS)


def test_columns_keep_their_names_and_order() -> None:
    full = np.nan_to_num(X)
    model = HMM(3, max_iter=3, random_state=0).fit(Table(full, ["x", "y"]))
    assert model.feature_names_in_.tolist() == ["x", "y"]
    answer = model.predict(Table(full, ["x", "y"]))
    swapped = Table(full[:, ::-1], ["y", "x"])
    for ask in (model.predict, model.score, model.predict_proba, model.partial_fit, model.segment, model.filter):
        with pytest.raises(ValueError, match=r"feature names should match(.|\n)*same order as they were in fit"):
            ask(swapped)
    with pytest.raises(ValueError, match=r"feature names should match(.|\n)*Unseen: \['z'\]; missing: \['y'\]"):
        model.predict(Table(full, ["x", "z"]))
    with pytest.warns(UserWarning, match="X does not have valid feature names, but HMM was fitted with"):
        np.testing.assert_array_equal(model.predict(full), answer)
    with pytest.raises(ValueError, match="sequence 1: the columns are"):
        model.fit([Table(full, ["x", "y"]), swapped])
    with pytest.raises(ValueError, match="the column 0 has no string"):
        model.fit(Table(full, ["x", 0]))
    row = types.SimpleNamespace(index=["y", "x"], __array__=lambda: full[0, ::-1])
    with pytest.raises(ValueError, match="feature names should match"):
        model.step(row)
    model.fit(full)
    assert not hasattr(model, "feature_names_in_")
    with pytest.warns(UserWarning, match="X has feature names, but HMM was fitted without"):
        model.predict(Table(full, ["x", "y"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(Table(full, [0, 1]))


def test_missing_strings_are_no_symbols(missing: Any) -> None:
    """None, NaN and NA are summed out, as -1 is among numbers."""
    for nothing in (None, float("nan"), np.nan, missing):
        texts = [["a", "b", nothing, "b"], np.array(["b", nothing, "a"], dtype=object)]
        numbers = [[0, 1, nothing, 1], np.array([1, nothing, 0], dtype=object)]
        plain = [[0, 1, -1, 1], [1, -1, 0]]
        models = [HMM(2, observations="categorical", random_state=0, max_iter=5) for _ in range(3)]
        scores = [model.fit(x).score(x) for model, x in zip(models, (texts, numbers, plain), strict=True)]
        assert models[0].symbols_.tolist() == ["a", "b"]
        assert models[1].symbols_.tolist() == [0, 1]
        assert scores == pytest.approx([scores[2]] * 3, rel=1e-12)
        np.testing.assert_allclose(models[0].step(nothing)[0], models[2].step(-1)[0])
    word = HMM(2, observations="categorical", random_state=0, max_iter=2).fit([["nan", "gran", "nan"]])
    assert word.symbols_.tolist() == ["gran", "nan"]


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ([np.array(["a", np.nan])], r"position 1: the symbol is 'nan' in an array of strings"),
        ([["a", 1]], r"position 1: the symbol is 1, but whole numbers or strings"),
        ([[1, "a"]], r"position 1: the symbol is 'a'"),
        ([[0, (1, 2)]], r"position 1: the symbol is \(1, 2\)"),
        ([[[0, 1], [2]]], "position 0: the symbol is"),
        ([3, 4], "sequence 0: is 3, but a row"),
        ([["a", "b"], [None, None]], "sequence 1: all 2 symbols are missing"),
        ([np.array([b"\xff", b"a"])], "bytes that are no text"),
        ([np.array(["2020-01-01"], dtype="datetime64[D]")], "symbols of datetime64"),
        (5, "sequence 0: is 5"),
        (None, "sequence 0: is None"),
        ([], "no sequences"),
    ],
    ids=repr,
)
def test_odd_symbols_are_refused(x: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        HMM(2, observations="categorical").fit(x)


def test_missing_features_of_any_spelling(missing: Any) -> None:
    expected = HMM(3, max_iter=3, random_state=0).fit(FRAMES).score(FRAMES)
    for nothing in (None, missing):
        odd = [np.where(np.isnan(x), nothing, x.astype(object)) for x in FRAMES]
        assert HMM(3, max_iter=3, random_state=0).fit(odd).score(odd) == pytest.approx(expected, rel=1e-12)
        model = HMM(3, max_iter=3, random_state=0).fit(odd)
        np.testing.assert_allclose(model.step([nothing, 1.0])[0], model.step([np.nan, 1.0])[0])
    tensors = [torch.tensor(x, requires_grad=True) for x in FRAMES]
    assert HMM(3, max_iter=3, random_state=0).fit(tensors).score(tensors) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.array([[1.0, "left"], [2.0, "right"]], dtype=object), "X, row 0, feature 1: 'left' is no number"),
        ([np.array([[1.0, {}], [2.0, 3.0]], dtype=object)], "sequence 0, row 0, feature 1: {} is no number"),
        (np.array([["a", "b"]]), "holds <U1 and not numbers"),
        ([[[1.0, 2.0], [3.0]]], "sequence 0: is no array"),
        (None, "single number"),
        ("abba", "holds <U4 and not numbers"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "holds datetime64"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_refused_by_name(x: Any, says: str) -> None:
    for kind in (HMM(2), HSMM(2, max_duration=1), HMM(2, observations="bernoulli", missing="row")):
        with pytest.raises(ValueError, match=says):
            kind.fit(x)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"device": "cuda:99"}, "device is 'cuda:99', but torch sees"),
        ({"device": "gpu"}, "device is 'gpu', but must be"),
        ({"device": "meta"}, "device is 'meta', but must be"),
        ({"device": 1.5}, "device is 1.5, but must be"),
        ({"random_state": -1}, "random_state is -1"),
        ({"random_state": "seed"}, "random_state is 'seed'"),
        ({"learning_rate": float("inf")}, "learning_rate is inf"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"forbidden": [[True], [False, True]]}, "forbidden is no matrix"),
        ({"observations": np.array(["gaussian", "bernoulli"])}, "observations is array"),
    ],
    ids=str,
)
def test_parameters_are_checked(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        HMM(2, **settings).fit(FRAMES)


def test_no_cuda_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"device is 'cuda', but torch sees 0 CUDA devices(.|\n)*cpu"):
        HMM(2, device="cuda").fit(FRAMES)


def test_samples_are_counted_in_whole_numbers() -> None:
    model = HMM(2, max_iter=2, random_state=0).fit(FRAMES)
    for bad in ({"n_samples": 0}, {"n_samples": 2.5}, {"n_samples": 3, "n_sequences": 0}):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            model.sample(**bad)  # type: ignore[arg-type]


def test_masked_values_are_missing() -> None:
    model = HMM(3, max_iter=3, random_state=0).fit(FRAMES)
    mask = X > 2
    masked = np.ma.masked_array(X, mask=mask)
    assert model.score(masked) == pytest.approx(model.score(np.where(mask, np.nan, X)), rel=1e-12)
    letters = HMM(2, observations="categorical", max_iter=3, random_state=0).fit(["abab"])
    hidden = np.ma.masked_array(list("abab"), mask=[False, True, False, False])
    assert letters.score([hidden]) == pytest.approx(letters.score([["a", None, "a", "b"]]), rel=1e-12)


def test_streams_and_samples_are_checked() -> None:
    model = HMM(2, max_iter=2, random_state=0).fit(FRAMES)
    _, state = model.step(FRAMES[2][0])
    segments = HSMM(2, max_duration=4, max_iter=2, random_state=0).fit([x[:4] for x in FRAMES])
    for asked, wrong in ((model, 3), (segments, state), (HMM(3, max_iter=1, random_state=0).fit(FRAMES), state)):
        with pytest.raises(ValueError, match="state is not what a step of this model returned"):
            asked.step(FRAMES[2][1], wrong)
    with pytest.raises(ValueError, match="a frame is 'left', but 2 finite"):
        model.step("left")
    for seed in (-2, "a"):
        with pytest.raises(ValueError, match="random_state is"):
            model.sample(3, random_state=seed)


@pytest.mark.parametrize(("dtype", "factor"), [("float32", 1e25), ("float32", 1e-25), ("float64", 1e-200)])
def test_features_beyond_the_dtype_are_refused(dtype: Any, factor: float) -> None:
    """Neither fitted nor scored: float32 has no squares of them."""
    with pytest.raises(ValueError, match="Rescale the feature"):
        HMM(2, dtype=dtype, random_state=0).fit([x * factor for x in FRAMES])
    if factor > 1:
        model = HMM(2, dtype=dtype, max_iter=2, random_state=0).fit(FRAMES)
        with pytest.raises(ValueError, match="Rescale the feature"):
            model.score([x * factor for x in FRAMES])


def test_gradient_steps_begin_inside() -> None:
    """Features that are 0 in all frames: smoothing leaves no probability of 0 to begin with."""
    x = np.zeros((12, 2))
    x[::2, 0] = 1
    model = HMM(2, observations="bernoulli", smoothing=0.5, max_iter=3, random_state=0).fit(x, algorithm="sgd")
    assert np.isfinite(model.history_).all()
    x[:, 0] = np.nan
    with pytest.raises(ValueError, match="feature 0 has no value in every frame"):
        HMM(2, observations="bernoulli").fit(x)
    with pytest.raises(ValueError, match="labels: is no array"):
        HMM(2).fit([x], labels=[[[1], [2, 3]]])


def test_a_table_of_one_column_is_a_sequence_of_symbols() -> None:
    """Not the names of its columns, which is what iterating a DataFrame gives."""
    words = np.array([["a"], ["b"], [None], ["b"]] * 10, dtype=object)
    fit = HMM(2, observations="categorical", random_state=0).fit(Table(words, ["word"]))
    assert fit.symbols_.tolist() == ["a", "b"]
    alone = HMM(2, observations="categorical", random_state=0).fit(words[:, 0])
    assert fit.score(Table(words, ["word"])) == alone.score(words[:, 0])
    with pytest.raises(DataError, match=r"sequence 0: has shape \(40, 2\)"):
        HMM(2, observations="categorical").fit(Table(np.repeat(words, 2, 1), ["word", "tag"]))
